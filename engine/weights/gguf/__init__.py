"""GGUF, the format of llama.cpp: its files, and models in them in the words of the hub."""
