"""JSON: completions and edits that always parse."""
