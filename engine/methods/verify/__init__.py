"""Draft and verify: a token tree that causal passes of the base score."""
