"""The step that canvases of absorbing noise and token trees share: one forward scores the rows of all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol, cast

import numpy as np

from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.methods._flanks import Flanks, narrowed
from caesura.engine.model import Drafter, Model, Run, Verifier
from caesura.engine.noise import Absorbing
from caesura.engine.scores import Bools, Reply, Scores, told


@dataclass(frozen=True)
class Pass:
    """A causal pass: ids [n], positions [n], mask [n, rows of the tree so far + n]."""

    ids: list[int]
    positions: list[int]
    mask: Bools


class TokenTree(Protocol):
    """Rows of a causal pass, and what is asked of their scores."""

    def plan(self) -> Pass: ...
    def read(self, scores: Scores) -> list[Reply[Any]]: ...

    def receive(self, answers: Sequence[Any]) -> bool:
        """Take the answers to `read`. False if the model gave NaN."""

    def to_draft(self) -> Pass | None:
        """A row for a drafter; `take_draft` gets its answer."""

    def take_draft(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None: ...


class Asking(Protocol):
    """A filling with rows in a forward: those of its canvas if it `drafts`, of its `search`, or both. The first forward
    also reads `fresh` context. `hidden` rows of the canvas are masked. It is scored at the slots, then at the hidden
    rows, then at one shadow for each row of `shadowed`."""

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
    def search(self) -> TokenTree | None: ...

    def decide(self, model: Model, scores: Scores) -> None:
        """Take over the scores of the canvas: slots, hidden rows and shadows."""

    def close(self) -> None:
        """End the step."""


def advance(model: Model, fillings: Sequence[Asking]) -> None:
    """One step: one forward for all, then a decision for each. A canvas that drafts for a search is denoised once, in
    the search's first forward; the next forward scores its draft."""
    drafting = [w for w in fillings if w.drafts]
    searching = [w for w in fillings if w.search is not None]
    for w, scores in zip(drafting, forward(model, drafting, searching), strict=True):
        w.decide(model, scores)
    for w in fillings:
        w.close()


def forward(model: Model, work: Sequence[Asking], searching: Sequence[Asking] = ()) -> list[Scores]:
    """Returns the scores of each canvas: slots, hidden rows and shadows; searches receive what they need of theirs."""
    canvases = narrowed(model, runs(model, work), [(w.flanks, w.canvas) for w in work])
    rows = [len(run.wanted or ()) for run in canvases]
    if not searching:
        return split(model.denoise(canvases), rows)
    if model.drafter is not None:
        draft(model.drafter, searching)
    searches = [w.search for w in searching if w.search is not None]
    plans = [search.plan() for search in searches]
    trees = [Run(w.kv, p.ids, p.positions, p.mask, fresh=w.fresh) for w, p in zip(searching, plans, strict=True)]
    for w in searching:
        w.fresh = ()
    verifier = cast(Verifier, model)  # the scheduler refuses jobs that other families cannot verify
    judged, drawn = verifier.forward(trees, canvases)
    parts = split(judged, [len(p.ids) for p in plans])
    asked = [search.read(part) for search, part in zip(searches, parts, strict=True)]
    answers = iter(told(*chain.from_iterable(asked)))
    for w, search, questions in zip(searching, searches, asked, strict=True):
        w.finite = search.receive([next(answers) for _ in questions])
    return split(drawn, rows)


def split(scores: Scores, counts: Sequence[int]) -> list[Scores]:
    """So many rows each, in order."""
    return [scores.part(first, end) for first, end in pairwise(accumulate(counts, initial=0))]


def draft(model: Drafter, searching: Sequence[Asking]) -> None:
    """Guess what follows the best hypothesis of each search that asks."""
    asking = [(w.kv, w.search, asked) for w in searching if w.search is not None and (asked := w.search.to_draft())]
    if not asking:
        return
    tokens, probabilities = model.draft([Run(kv, rows.ids, rows.positions, rows.mask) for kv, _, rows in asking])
    for (_, search, _), guessed, chances in zip(asking, tokens.tolist(), probabilities.tolist(), strict=True):
        search.take_draft(guessed, chances)


def runs(model: Model, work: Sequence[Asking]) -> list[Run]:
    """The rows of each canvas in a forward."""
    found = []
    fresh = {id(w.kv): len(w.fresh) for w in work if w.fresh}
    for w in work:
        assert isinstance(model.spec.noise, Absorbing), "a model without a canvas has only a search"
        slots, hidden = w.canvas.slot_rows(), list(w.hidden)
        ids = w.canvas.ids([model.spec.noise.mask_id] * len(slots))
        for row in hidden:
            ids[row] = model.spec.noise.mask_id
        at = len(w.kv.ids) + fresh.get(id(w.kv), 0)
        run = Run(w.kv, ids, range(at, at + len(ids)), None, slots + hidden, w.fresh)
        found.append(with_shadows(model, run, w.shadowed) if w.shadowed else run)
        w.fresh = ()
    return found


def with_shadows(model: Model, run: Run, rows: Sequence[int]) -> Run:
    """A run with a shadow of each of some rows: it has the place of that row, or of the one that predicts it, and sees
    all shadows and all rows but that one; no row sees a shadow (Hong et al. 2025, WINO)."""
    assert isinstance(model.spec.noise, Absorbing)
    assert run.wanted is not None
    count, more, shift = len(run.ids), len(rows), model.spec.shift
    seen = np.ones((count + more, count + more), np.bool_)
    seen[:count, count:] = seen[range(count, count + more), rows] = False
    ids = [run.ids[max(0, row - 1)] if shift else model.spec.noise.mask_id for row in rows]
    positions = [run.positions[max(0, row - shift)] for row in rows]
    wanted = range(count + shift, count + shift + more)
    return replace(
        run, ids=[*run.ids, *ids], positions=[*run.positions, *positions], mask=seen, wanted=[*run.wanted, *wanted]
    )
