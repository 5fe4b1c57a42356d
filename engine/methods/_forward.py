"""The step that canvases of absorbing noise and token trees share: one forward gives the canvases logits and the trees
log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor

from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.methods._flanks import Flanks, narrowed
from caesura.engine.models import Drafter, Model, Run, Verifier
from caesura.engine.noise import Absorbing

if TYPE_CHECKING:
    from caesura.engine.methods.verify.search import Search


@dataclass(frozen=True)
class Pass:
    """A causal pass: ids [n], positions [n], mask [n, rows of the tree so far + n]."""

    ids: list[int]
    positions: list[int]
    mask: Tensor


class Asking(Protocol):
    """A filling with rows in a forward: those of its canvas if it `drafts`, of its `search`, or both. The first forward
    also reads `fresh` context. `hidden` rows of the canvas are masked. Logits are those of the slots, then of the
    hidden rows, then of one shadow for each row of `shadowed`."""

    fresh: Sequence[int]
    finite: bool

    @property
    def canvas(self) -> Canvas: ...
    @property
    def kv(self) -> KV: ...
    @property
    def drafts(self) -> bool: ...
    @property
    def flanks(self) -> Flanks | None: ...
    @property
    def hidden(self) -> Sequence[int]: ...
    @property
    def shadowed(self) -> Sequence[int]: ...
    @property
    def search(self) -> "Search | None": ...

    def decide(self, model: Model, logits: Tensor) -> None:
        """Take over the logits of the canvas, [slots, hidden rows and shadows, width]."""

    def close(self) -> None:
        """End the step."""


def advance(model: Model, fillings: Sequence[Asking]) -> None:
    """One step: one forward for all, then a decision for each. A canvas that drafts for a search is denoised once, in
    the search's first forward; the next forward scores its draft."""
    drafting = [w for w in fillings if w.drafts]
    searching = [w for w in fillings if w.search is not None]
    for w, logits in zip(drafting, forward(model, drafting, searching), strict=True):
        w.decide(model, logits)
    for w in fillings:
        w.close()


def forward(model: Model, work: Sequence[Asking], searching: Sequence[Asking] = ()) -> tuple[Tensor, ...]:
    """Returns the logits of each canvas, [slots, hidden rows and shadows, width], on the model's device; searches
    receive what they need of theirs."""
    canvases = narrowed(model, runs(model, work), [(w.flanks, w.canvas) for w in work])
    rows = [len(run.wanted or ()) for run in canvases]
    if not searching:
        parts: tuple[Tensor, ...] = model.denoise(canvases).split(rows)
        return parts
    if model.drafter is not None:
        draft(model.drafter, searching)
    searches = [w.search for w in searching if w.search is not None]
    plans = [search.plan() for search in searches]
    trees = [Run(w.kv, p.ids, p.positions, p.mask, fresh=w.fresh) for w, p in zip(searching, plans, strict=True)]
    for w in searching:
        w.fresh = ()
    verifier = cast(Verifier, model)  # the scheduler refuses jobs that other families cannot verify
    judged, logits = verifier.forward(trees, canvases)
    scored = judged.log_softmax(-1).split([len(p.ids) for p in plans])
    read = on_host(*(search.read(logp) for search, logp in zip(searches, scored, strict=True)))
    for w, search, told in zip(searching, searches, read, strict=True):
        w.finite = search.receive(told.tolist())
    parts = logits.split(rows)
    return parts


def draft(model: Drafter, searching: Sequence[Asking]) -> None:
    """Guess what follows the best hypothesis of each search that asks."""
    asking = [(w.kv, w.search, asked) for w in searching if w.search is not None and (asked := w.search.to_draft())]
    if not asking:
        return
    tokens, probabilities = model.draft([Run(kv, rows.ids, rows.positions, rows.mask) for kv, _, rows in asking])
    guessed = zip(asking, *(part.tolist() for part in on_host(tokens, probabilities)), strict=True)
    for (_, search, _), chain, chances in guessed:
        search.take_draft(chain, chances)


def on_host(*parts: Tensor) -> tuple[Tensor, ...]:
    """Small results of a step on the CPU, as ids and float32: in one copy, so that the step waits for the GPU once. The
    logits stay there: 40 rows of Qwen's vocabulary are 24 MB."""
    if not parts[0].is_cuda:
        return parts
    copied = torch.cat([part.flatten() for part in parts]).float().cpu()  # float32 holds every id
    split = zip(copied.split([part.numel() for part in parts]), parts, strict=True)
    return tuple(numbers.view(part.shape).to(part.dtype) for numbers, part in split)


def runs(model: Model, work: Sequence[Asking]) -> list[Run]:
    """The rows of each canvas in a forward."""
    found = []
    fresh = {id(w.kv): len(w.fresh) for w in work if w.fresh}
    for w in work:
        assert isinstance(model.noise, Absorbing), "a model without a canvas has only a search"
        slots, hidden = w.canvas.slot_rows(), list(w.hidden)
        ids = w.canvas.ids([model.noise.mask_id] * len(slots))
        for row in hidden:
            ids[row] = model.noise.mask_id
        at = len(w.kv.ids) + fresh.get(id(w.kv), 0)
        run = Run(w.kv, ids, range(at, at + len(ids)), None, slots + hidden, w.fresh)
        found.append(with_shadows(model, run, w.shadowed) if w.shadowed else run)
        w.fresh = ()
    return found


def with_shadows(model: Model, run: Run, rows: Sequence[int]) -> Run:
    """A run with a shadow of each of some rows: it has the place of that row, or of the one that predicts it, and sees
    all shadows and all rows but that one; no row sees a shadow (Hong et al. 2025, WINO)."""
    assert isinstance(model.noise, Absorbing)
    assert run.wanted is not None
    count, more, shift = len(run.ids), len(rows), model.shift
    seen = torch.ones(count + more, count + more, dtype=torch.bool)
    seen[:count, count:] = seen[range(count, count + more), rows] = False
    ids = [run.ids[max(0, row - 1)] if shift else model.noise.mask_id for row in rows]
    positions = [run.positions[max(0, row - shift)] for row in rows]
    wanted = range(count + shift, count + shift + more)
    return replace(
        run, ids=[*run.ids, *ids], positions=[*run.positions, *positions], mask=seen, wanted=[*run.wanted, *wanted]
    )
