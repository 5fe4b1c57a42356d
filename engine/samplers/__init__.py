"""One file per sampler: scores of the slots in, accepted positions out. A file in this folder is registered.

Contract (tests/engine/test_samplers.py runs every file): a sampler accepts at least one open slot of each canvas that
has one, never a slot that is not open, and is deterministic.
"""

import importlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from caesura.wire import Impossible


class Scores(NamedTuple):
    """Per-slot statistics of one forward, all [canvases, slots]: best token, its probability, its lead over the
    second, and the entropy of the distribution in nats."""

    token: Tensor
    prob: Tensor
    margin: Tensor
    entropy: Tensor


def statistics(logits: Tensor) -> Scores:
    """[slots, width] -> scores [1, slots], in one pass over the distribution. A banned token has -inf."""
    logp = logits.log_softmax(-1)
    probs = logp.exp()
    top = probs.topk(2)
    entropy = -(probs * logp.nan_to_num(neginf=0.0)).sum(-1)
    token, prob, second = top.indices[:, 0], top.values[:, 0], top.values[:, 1]
    return Scores(token[None], prob[None], (prob - second)[None], entropy[None])


class Sampler(Protocol):
    def __call__(self, scores: Scores, open: Tensor, step: int, of: int) -> Tensor:
        """Accepted slots, bool [canvases, slots], at step `step` (from 0) of at most `of`; `open` is bool likewise."""


def load(name: str) -> Sampler:
    """Load a sampler by its name. Raises Impossible for an unknown one."""
    if name not in names():
        raise Impossible(f"There is no sampler named {name!r}; there are {', '.join(names())}.")
    sampler: Sampler = importlib.import_module(f"caesura.engine.samplers.{name}").select
    return sampler


@cache
def names() -> tuple[str, ...]:
    folder = Path(__file__).parent
    found = (p.stem for p in folder.glob("*.py") if re.fullmatch(r"[a-z0-9_]+", p.stem) and p.stem != "__init__")
    return tuple(sorted(found))
