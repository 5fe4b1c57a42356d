"""The tokenizer and its file."""
