"""The weights of Caesura's model `coder` and nothing else; `caesura/model_store` finds them without an import."""
