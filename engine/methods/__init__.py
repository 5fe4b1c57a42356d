"""How a job is filled: each method is a module or folder here, found by its name.

A method's `prepare`, called once for a model, returns a function that begins to fill a laid-out job. From then on the
scheduler sees only a `Filling`. Contract (tests/engine/methods/test_methods.py runs every method): every filling ends
within its steps, its locked text only grows, and a batch does not change any result.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.model import Model
from caesura.wire import Fill, Infill, StopReason, Tokens


class Filling(Protocol):
    """A job in progress, of at most `of` steps. It is `finite` unless the model gave NaN; else its KV is spoilt
    too."""

    of: int

    @property
    def advance(self) -> Callable[[Model, Sequence[Any]], None]:
        """One step of several fillings: those with the same `advance` share a forward."""

    @property
    def finished(self) -> bool: ...

    @property
    def finite(self) -> bool: ...

    @property
    def approximate(self) -> bool:
        """True if any forward took keys and values of an earlier canvas (_flanks.py)."""

    @property
    def rows(self) -> int:
        """Rows that its canvases have in the next forward."""

    def stop(self, steps: int) -> StopReason:
        """Why it is finished, after so many steps of the shown canvas."""

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        """The holes as they are now, or as the final answer."""

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        """Further answers next to the final `fills`, best first."""

    def tokens(self) -> Tokens:
        """Sources of the answer's tokens."""


class Begin(Protocol):
    def __call__(self, job: Infill, layout: Layout, kv: KV, fresh: Sequence[int], sampler: str | None) -> Filling:
        """Begin to fill a job after the context of `kv`, to which the first forward appends `fresh`."""


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def chosen(job: Infill, model: Model) -> tuple[str, str | None]:
    """The method of a job and its sampler, if it names one. A sampler alone selects the model's canvas. Older clients
    name a method as the sampler."""
    if job.method is None and job.sampler in names():
        return job.sampler, None
    of_canvas = (
        model.spec.noise.method if job.sampler is not None and model.spec.noise is not None else model.spec.method
    )
    return job.method or of_canvas, job.sampler


def prepare(name: str, model: Model, vocabulary: Vocabulary) -> Begin:
    begin: Begin = importlib.import_module(f"{__name__}.{name}").prepare(model, vocabulary)
    return begin


def refusal(name: str, model: Model) -> str:
    """One sentence if the model cannot use this method, else an empty string."""
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


def shown(canvas: Canvas, *, final: bool) -> tuple[Fill, ...]:
    """The holes of a canvas as they are now, or as the final answer."""
    fills = canvas.fills()
    return tuple(map(settled, fills)) if final else fills


def settled(fill: Fill) -> Fill:
    """A fill as the final answer: its drafts are decided."""
    return msgspec.structs.replace(fill, locked=((0, len(fill.text)),) if fill.text else (), open=0)
