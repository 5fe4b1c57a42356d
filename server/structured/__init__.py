"""Edits that keep a document valid: one file or folder for each format."""
