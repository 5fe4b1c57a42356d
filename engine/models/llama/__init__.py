"""Decoders of the Llama kind."""
