"""One file per sampler: what a forward says of the slots in, what becomes of them out. A file in this folder is
registered by its name, unless that begins with `_`.

A file has one of two functions. `select` reads the scores alone and serves either noise. `begin` makes a
`CanvasSampler` for one canvas of absorbing noise: it may keep state, read whole distributions and take accepted tokens
back.

Contract (tests/engine/test_samplers.py runs every file): a sampler accepts at least one open slot of each canvas that
has one, changes only slots that are open or held, is deterministic, and stops asking for forwards.
"""

import importlib
import re
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from caesura.engine.draws import Draws
from caesura.engine.scores import Bools, Floats, Ids, Scores, Statistics
from caesura.wire import Impossible


class Sampler(Protocol):
    """The function `select` of a file."""

    def __call__(self, statistics: Statistics, open: Bools, step: int, of: int) -> Bools:
        """Accepted slots, bool [slots], at step `step` (from 0) of at most `of`; `open` is bool likewise."""


class Reading(NamedTuple):
    """A forward of one canvas. Per slot [slots]: `statistics`; `open` slots may be accepted; `held` ones have been,
    hold `token` (-1 in open slots), and may still be taken back; `check` is the probability of that token by a row that
    does not see it, for a sampler that `checks`. `scores` are of the allowed tokens of each slot. `slots` tell the
    slots apart, since some come and go. It is step `step` (from 0) of at most `of`, and `draws` has its random numbers.
    With `ratios`, the exponentials of the logits are estimated one by one and need not sum to 1."""

    slots: Sequence[Hashable]
    statistics: Statistics
    scores: Scores
    open: Bools
    held: Bools
    token: Ids
    check: Floats | None
    step: int
    of: int
    draws: Draws
    ratios: bool = False


class Decision(NamedTuple):
    """Bool [slots]. A slot of `accept` takes its best token: an open one is accepted, the token of a held one replaced.
    A held slot of `mask` is open again. If anything changed, `again` asks for another forward even with no slot
    open. Where `drawn` is not -1, an open slot takes that token instead of its best one, but not under a grammar."""

    accept: Bools
    mask: Bools
    again: bool = False
    drawn: Ids | None = None


class CanvasSampler(Protocol):
    """A sampler for one canvas of absorbing noise, with its state. One that `revises` may take accepted tokens back, so
    they do not lock; one that `checks` is told how likely they are (`Reading.check`)."""

    revises: bool
    checks: bool

    def __call__(self, seen: Reading) -> Decision: ...


class Selecting:
    """A `select` function as a sampler for one canvas."""

    revises = checks = False

    def __init__(self, select: Sampler) -> None:
        self.select = select

    def __call__(self, seen: Reading) -> Decision:
        accept = self.select(seen.statistics, seen.open, seen.step, seen.of)
        return Decision(accept, np.zeros_like(accept))


def begin(name: str) -> CanvasSampler:
    """A sampler for one canvas of absorbing noise, by name. Raises Impossible for an unknown one."""
    module = _module(name)
    sampler: CanvasSampler = module.begin() if hasattr(module, "begin") else Selecting(module.select)
    return sampler


def load(name: str) -> Sampler:
    """The function of a sampler that has one. Raises Impossible for an unknown one, and for one with state."""
    module = _module(name)
    if not hasattr(module, "select"):
        raise Impossible(f"The sampler {name!r} is for canvases of absorbing noise, which this model does not have.")
    sampler: Sampler = module.select
    return sampler


def _module(name: str) -> ModuleType:
    if name not in names():
        raise Impossible(f"There is no sampler named {name!r}; there are {', '.join(names())}.")
    return importlib.import_module(f"caesura.engine.samplers.{_modules()[name]}")


@cache
def _modules() -> dict[str, str]:
    """The module of each sampler, in this folder or one of its own."""
    folder = Path(__file__).parent
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    return {path.name: ".".join(path.parts) for path in paths if re.fullmatch(r"[a-z0-9][a-z0-9_]*", path.name)}


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(_modules()))


def surest(score: NDArray[np.floating], among: Bools, count: int) -> Bools:
    """Bool [slots]: the `count` slots with the highest score `among` some, the leftmost of equal ones."""
    order = np.argsort(np.where(among, -score, np.inf), kind="stable")
    chosen = np.zeros_like(among)
    chosen[order[: max(0, count)]] = True
    return chosen & among
