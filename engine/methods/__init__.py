"""How a canvas is filled: a module for each way."""
