"""The canvas of another model drafts for a search, by that model's own method and before the first pass. Its text goes
to the search, so neither its layout nor its visibility has to be that of the base.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from caesura.engine import methods
from caesura.engine.cache import KV, Cache
from caesura.engine.canvas.layout import SLOTS, Layout, lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, Filling
from caesura.engine.model import Model
from caesura.wire import Fill, Impossible, Infill

STEPS = 8  # forwards of the other model; its best guess of what is still open is worth a row of the pass that follows


@dataclass(frozen=True)
class DraftingModel:
    """A model that drafts, and what its jobs begin with."""

    model: Model
    vocabulary: Vocabulary
    cache: Cache
    begin: Begin

    def draft(self, job: Infill) -> "CanvasDraft | None":
        """A canvas for the job; None if this model cannot lay it out, or keeps no more contexts."""
        own = msgspec.structs.replace(job, candidates=1, method=None, sampler=None, prompt=None)
        if self.cache.full:
            return None
        try:
            layout = lay(self.model, self.vocabulary, own, SLOTS)
        except Impossible:
            return None
        return CanvasDraft(self, own, layout, self.cache.lease(layout.context))


@dataclass(eq=False)
class CanvasDraft:
    """A job's canvas in the model that drafts, until it is `over`."""

    by: DraftingModel
    job: Infill
    layout: Layout
    kv: KV
    filling: Filling | None = None
    steps: int = 0
    over: bool = False
    lost: weakref.finalize = field(init=False)  # type: ignore[type-arg]  # it is generic in stubs only

    def __post_init__(self) -> None:
        self.lost = weakref.finalize(self, self.by.cache.discard, self.kv)  # a job can end at any time

    @property
    def rows(self) -> int:
        return self.layout.canvas.rows if self.filling is None else self.filling.rows

    def begin(self) -> bool:
        """Begin to fill, or read a chunk of a longer context. True if it has begun."""
        if self.filling is None:
            missing, model = self.layout.context[self.kv.length :], self.by.model
            if len(missing) > model.spec.chunk:
                model.prefill(missing[: model.spec.chunk], self.kv)
                return False
            try:
                self.filling = self.by.begin(self.job, self.layout, self.kv, missing, None)
            except Impossible:
                self.over = True
        return not self.over

    def close(self) -> None:
        """End a step."""
        assert self.filling is not None
        self.steps += 1
        self.over = self.filling.finished or not self.filling.finite or self.steps >= STEPS
        if self.over and self.filling.finite:
            self.lost.detach()
            self.by.cache.give(self.kv)

    def fills(self) -> tuple[Fill, ...]:
        """The holes as they are now; none of it is locked, since the base decides. Nothing if there is no text."""
        if self.filling is None or not self.filling.finite:
            return ()
        return tuple(msgspec.structs.replace(fill, locked=()) for fill in self.filling.fills())


def prepare(model: Model) -> DraftingModel:
    """Have the canvas of a model draft."""
    assert model.spec.noise is not None
    vocabulary = Vocabulary(model)
    name = model.spec.noise.method if model.spec.method == "verify" else model.spec.method
    return DraftingModel(model, vocabulary, model.cache(), methods.prepare(name, model, vocabulary))


def advance(drafts: Sequence[CanvasDraft]) -> None:
    """One step of several canvases of one model."""
    begun = [draft for draft in drafts if draft.begin()]
    if begun:
        methods.advance(begun[0].by.model, [draft.filling for draft in begun if draft.filling is not None])
    for draft in begun:
        draft.close()
