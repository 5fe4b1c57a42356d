"""JSON Schema: documents, and what they say about an instance."""
