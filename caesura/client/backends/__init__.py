"""Engines behind HTTP that the user has named: each kind is one file."""
