"""A model's files: reading, checking, converting and asking them."""
