"""Published drafters: each is trained for one autoregressive base, whose hidden states it reads, and is loaded with it.

A family of drafters has a file. Its `pair` loads a base and a drafter as one `Model` that is its own
`caesura.engine.model.Drafter`.
"""
