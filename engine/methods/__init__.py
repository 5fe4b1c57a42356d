"""How a job is filled: a module or folder here for each way, found by its name.

A method has `prepare`, called once for a model; what that returns begins the filling of one laid-out job. From then on
the scheduler sees a `Filling`, whatever the method. Contract (tests/engine/methods/test_methods.py runs every method):
every filling ends within its steps, its locked text only grows, and a batch gives each what it would get alone.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

from caesura.engine.cache import KV
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.models import Model
from caesura.wire import Fill, Infill, Tokens


class Filling(Protocol):
    """A job on its way. `of` bounds its steps. Once what the model said were no numbers it is not `sound`, nor is what
    it left in the KV."""

    of: int

    @property
    def advance(self) -> Callable[[Model, Sequence[Any]], None]:
        """A step of several fillings: those that have the same one share a forward."""

    @property
    def finished(self) -> bool: ...

    @property
    def sound(self) -> bool: ...

    @property
    def rows(self) -> int:
        """Rows of its canvases in the next forward."""

    def spent(self, steps: int) -> bool:
        """True if `steps` are all that the shown canvas may take."""

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        """The holes as they stand, or as they are answered."""

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        """Further answers, best first, beside the final `fills`."""

    def tokens(self) -> Tokens:
        """Where the tokens of the answer came from."""


class Begin(Protocol):
    def __call__(self, job: Infill, layout: Layout, kv: KV, fresh: Sequence[int], sampler: str | None) -> Filling:
        """Start to fill a job behind the context of `kv`, to which the first forward appends `fresh`."""


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def chosen(job: Infill, model: Model) -> tuple[str, str | None]:
    """The method of a job, and the sampler that it asks for. A sampler alone asks for the canvas that it samples; a
    method may still be named in the place of a sampler, as before there were methods."""
    if job.method is None and job.sampler in names():
        return job.sampler, None
    of_canvas = model.noise.method if job.sampler is not None and model.noise is not None else model.method
    return job.method or of_canvas, job.sampler


def prepare(name: str, model: Model, vocabulary: Vocabulary) -> Begin:
    """A method for a model, by its name."""
    begin: Begin = importlib.import_module(f"{__name__}.{name}").prepare(model, vocabulary)
    return begin


def refusal(name: str, model: Model) -> str:
    """Why a model cannot be asked to fill so, in one sentence, or nothing."""
    if name not in names():
        return f"There is no method named {name!r}; there are {', '.join(names())}."
    return str(importlib.import_module(f"{__name__}.{name}").refusal(model))


def advance(model: Model, fillings: Sequence[Filling]) -> None:
    """One step of every filling."""
    together = dict[Callable[[Model, Sequence[Any]], None], list[Filling]]()
    for filling in fillings:
        together.setdefault(filling.advance, []).append(filling)
    for step, some in together.items():
        step(model, some)


def settled(fill: Fill) -> Fill:
    """A fill as answered: its drafts count as decided."""
    return msgspec.structs.replace(fill, locked=((0, len(fill.text)),) if fill.text else (), open=0)
