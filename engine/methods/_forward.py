"""The step that canvases of absorbing noise and token trees share: one forward, whose logits and log-probabilities each
gets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.models import Drafter, Model, Run, Verifier


@dataclass(frozen=True)
class Pass:
    """A causal pass: ids [n], positions [n], mask [n, rows of the tree so far + n]."""

    ids: list[int]
    positions: list[int]
    mask: Tensor


class TokenTree(Protocol):
    """A token tree over one hole; see Search, in verify/search.py."""

    def to_draft(self) -> Pass | None: ...
    def take_draft(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None: ...
    def plan(self) -> Pass: ...
    def receive(self, logp: Tensor) -> None: ...


class Asking(Protocol):
    """A filling with rows in a forward behind one KV: a canvas, if it `drafts`, a token tree, or both. The first
    forward takes `fresh` context along. Once the model's answer was no numbers it is not `sound`."""

    fresh: Sequence[int]
    sound: bool

    @property
    def canvas(self) -> Canvas: ...
    @property
    def kv(self) -> KV: ...
    @property
    def generator(self) -> torch.Generator: ...
    @property
    def drafts(self) -> bool: ...
    @property
    def search(self) -> TokenTree | None: ...

    def decide(self, model: Model, logits: Tensor) -> None:
        """What the forward said of the canvas, [slots, width]."""

    def close(self) -> None:
        """The end of the step."""


def advance(model: Model, fillings: Sequence[Asking]) -> None:
    """One step: one forward for all, then a decision of each. A canvas that is to be verified is denoised once, in the
    same forward that first scores its token tree; the next one has its draft in the tree."""
    drafting = [w for w in fillings if w.drafts]
    searching = [w for w in fillings if w.search is not None]
    for w, logits in zip(drafting, forward(model, drafting, searching), strict=True):
        w.decide(model, logits)
    for w in fillings:
        w.sound = w.sound and all(math.isfinite(slot.prob) for slot in w.canvas.slots)
        w.close()


def forward(model: Model, work: Sequence[Asking], searching: Sequence[Asking] = ()) -> tuple[Tensor, ...]:
    """Per canvas: logits [slots, width]. Those of the token trees go to their searches."""
    canvases = runs(model, work)
    rows = [len(w.canvas.slots) for w in work]
    if not searching:
        parts: tuple[Tensor, ...] = on_host(model.denoise(canvases)).split(rows)
        return parts
    if model.drafter is not None:
        draft(model.drafter, searching)
    plans = [w.search.plan() for w in searching if w.search is not None]
    trees = [Run(w.kv, p.ids, p.positions, p.mask, fresh=w.fresh) for w, p in zip(searching, plans, strict=True)]
    for w in searching:
        w.fresh = ()
    verifier = cast(Verifier, model)  # a job that asks another family for it is not taken
    judged, logits = verifier.forward(trees, canvases)
    for w, of_tree in zip(searching, judged.split([len(p.ids) for p in plans]), strict=True):
        assert w.search is not None
        logp = on_host(of_tree.log_softmax(-1))
        w.sound = bool(logp[:, 0].isfinite().all())  # one logit of a row that is no number makes all of them none
        if w.sound:
            w.search.receive(logp)
    parts = on_host(logits).split(rows)
    return parts


def draft(model: Drafter, searching: Sequence[Asking]) -> None:
    """Guess what follows the best hypothesis of each search that asks for it."""
    asking = [(w.kv, w.search, asked) for w in searching if w.search is not None and (asked := w.search.to_draft())]
    if not asking:
        return
    tokens, probabilities = model.draft([Run(kv, rows.ids, rows.positions, rows.mask) for kv, _, rows in asking])
    for (_, search, _), chain, chances in zip(asking, tokens.tolist(), probabilities.tolist(), strict=True):
        search.take_draft(chain, chances)


def on_host(rows: Tensor) -> Tensor:
    """On the CPU, which decides whatever is not uniform noise: a search asks for many single numbers, and would wait
    for a GPU at each. From a GPU it is one copy, into pinned memory: 40 rows of Qwen's vocabulary are 24 MB."""
    if not rows.is_cuda:
        return rows.cpu()
    copied = rows.to("cpu", non_blocking=True)
    torch.cuda.current_stream(rows.device).synchronize()
    return copied


def runs(model: Model, work: Sequence[Asking]) -> list[Run]:
    """A forward's rows of each canvas."""
    found = []
    for w in work:
        assert model.noise is not None, "without a canvas there is only a search"
        ids = w.canvas.ids(model.noise.draw(len(w.canvas.slots), w.generator).tolist())
        at = w.kv.length + len(w.fresh)
        found.append(Run(w.kv, ids, range(at, at + len(ids)), None, w.canvas.slot_rows(), w.fresh))
        w.fresh = ()
    return found
