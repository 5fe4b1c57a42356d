"""Tensors in, tensors out: each file a PyTorch reference, its byte count and the fast path."""
