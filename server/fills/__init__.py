"""Gaps that the user asks to fill, and what came of them."""
