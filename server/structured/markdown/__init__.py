"""Markdown: edits that keep the blocks around them."""
