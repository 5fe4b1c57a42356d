"""The weights of Caesura's model `coder` and nothing else. `caesura/models.py` finds them without importing this."""
