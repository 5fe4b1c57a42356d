"""A decoder of the Llama kind on a GPU: its layers, and passes that are recorded."""
