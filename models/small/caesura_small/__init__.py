"""The weights of Caesura's model `small` and nothing else; `caesura/model_store.py` finds them without an import."""
