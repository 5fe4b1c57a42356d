"""Engines over HTTP that the user has named; each kind is one file."""

from typing import Literal, get_args

Kind = Literal["llama-server", "vllm", "fim", "inception"]
KINDS: tuple[Kind, ...] = get_args(Kind)
