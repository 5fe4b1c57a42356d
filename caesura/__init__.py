"""Caesura fills gaps in text while you type. This package root imports nothing heavy."""

__version__ = "0.1.0"
