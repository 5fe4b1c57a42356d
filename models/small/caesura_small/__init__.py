"""The weights of Caesura's model `small` and nothing else; `caesura/model_store` finds them without an import."""
