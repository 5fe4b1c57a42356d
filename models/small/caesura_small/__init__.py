"""The weights of Caesura's model `small` and nothing else. `caesura/models.py` finds them without importing this."""
