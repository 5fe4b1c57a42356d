"""Uniform noise: every slot is predicted anew at every step, until it is locked."""
