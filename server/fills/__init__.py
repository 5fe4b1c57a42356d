"""Fills and structured edits that the user asks for, and their results."""
