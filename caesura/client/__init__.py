"""The client of an engine: this machine's shared one, or a paired machine's."""
