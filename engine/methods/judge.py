"""Judge edits instead of filling: the answer of a hole is its draft, and its confidence the probability of the draft
rather than of what stands there (`Hole.instead`), by what the base says of both after the edits before them.

A small base cannot write an edit that was not asked for, but it knows a right one when it sees one. All texts of a step
are one token tree after the history, whose rows stay in the KV; the job's prompt is `edits`, and its neighbours are the
history. The format of a place is Sweep's (docs/log.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from caesura import model_store
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.prompts import edit_place
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, _forward, verify
from caesura.engine.methods._forward import Pass
from caesura.engine.model import Model
from caesura.engine.scores import Reply, Scores
from caesura.wire import Fill, Hole, Impossible, Infill, StopReason, Tokens

ROWS = 160  # most rows of a step of one job; an edit that takes more alone is not judged


@dataclass(frozen=True)
class JudgedEdit:
    """The tokens before a place and of both texts there, each with its end."""

    place: list[int]
    new: list[int]
    old: list[int]

    @property
    def rows(self) -> int:
        return len(self.place) + len(self.new) + len(self.old) - 2  # nothing comes after the last token of a text


@dataclass(eq=False)
class EditTree:
    """The token tree of some edits after `tail`, the last tokens of the context of `start` rows. `ratios`: what the
    base says of each edit, in nats for the new text."""

    tail: list[int]
    start: int
    edits: Sequence[JudgedEdit]
    ratios: list[float] = field(default_factory=list)
    _rows: dict[tuple[int, int], int] = field(default_factory=dict)  # (row above, token) -> row
    _asked: list[tuple[list[int], list[int]]] = field(default_factory=list)  # of each text: rows, and tokens after them

    def plan(self) -> Pass:
        self._rows, self._asked = {}, []
        above = (self._path(-1, self.tail) or [-1])[-1]
        for edit in self.edits:
            place = self._path(above, edit.place)[-1]
            for text in (edit.new, edit.old):
                self._asked.append(([place, *self._path(place, text[:-1])], text))
        return self._pass()

    def _path(self, row: int, tokens: Sequence[int]) -> list[int]:
        """The rows of tokens after a row; texts that begin alike share rows."""
        rows = []
        for token in tokens:
            row = self._rows.setdefault((row, token), len(self._rows))
            rows.append(row)
        return rows

    def _pass(self) -> Pass:
        count = len(self._rows)
        mask, depths = np.eye(count, dtype=np.bool_), [0] * count
        for (above, _), row in self._rows.items():
            if above >= 0:
                mask[row] |= mask[above]
                depths[row] = depths[above] + 1
        return Pass([token for _, token in self._rows], [self.start + depth for depth in depths], mask)

    def read(self, scores: Scores) -> list[Reply[Any]]:
        rows, tokens = ([one for asked in self._asked for one in asked[side]] for side in (0, 1))
        return [scores.finite(), scores.logp(rows, tokens)]

    def receive(self, answers: Sequence[Any]) -> bool:
        finite, logp = answers
        if not finite.all():
            return False
        of_each = iter(logp.tolist())
        new_and_old = [math.fsum(next(of_each) for _ in tokens) for _, tokens in self._asked]
        self.ratios = [new - old for new, old in zip(new_and_old[::2], new_and_old[1::2], strict=True)]
        return True

    def to_draft(self) -> None:
        """Nothing is drafted here."""

    def take_draft(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None: ...


@dataclass(eq=False)
class Judging:
    """The edits of a job by their holes, judged in steps of several: `groups` of holes are left after those of
    `search`."""

    job: Infill
    canvas: Canvas
    kv: KV
    fresh: Sequence[int]
    start: int
    edits: Sequence[JudgedEdit]
    groups: list[list[int]]
    of: int = field(init=False)
    search: EditTree = field(init=False)
    known: dict[int, float] = field(default_factory=dict)  # nats for the draft of a hole
    finite: bool = True

    drafts = approximate = False
    flanks = None
    hidden = shadowed = ()

    def __post_init__(self) -> None:
        self.of = len(self.groups)
        self._next()

    def _next(self) -> None:
        self.kv.truncate(len(self.kv.ids))
        group = self.groups[0] if self.groups else []
        self.search = EditTree(self.canvas.tail, self.start, [self.edits[hole] for hole in group])

    @property
    def advance(self) -> Callable[[Model, Sequence[Any]], None]:
        return _forward.advance

    @property
    def finished(self) -> bool:
        return not self.groups

    @property
    def rows(self) -> int:
        return len(self.canvas.tail) + sum(edit.rows for edit in self.search.edits)

    def decide(self, model: Model, scores: Scores) -> None:
        """No canvas drafts here."""

    def close(self) -> None:
        if self.finite:
            self.known |= zip(self.groups.pop(0), self.search.ratios, strict=True)
            self._next()

    def stop(self, steps: int) -> StopReason:
        return "complete" if self.finished else "steps"

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        """The drafts. One that is not judged is as unlikely as can be."""
        drafts = self.job.draft or ("",) * len(self.edits)
        return tuple(
            Fill(text, ((0, len(text)),) if text else (), sigmoid(self.known.get(hole, -math.inf)))
            for hole, text in enumerate(drafts)
        )

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        return ()

    def tokens(self) -> Tokens:
        return Tokens()


def sigmoid(nats: float) -> float:
    return 1 / (1 + math.exp(-nats)) if nats > -700 else 0.0


def refusal(model: Model) -> str:
    if verify.refusal(model) or not model.spec.separator:
        return f"The model {model.name} cannot judge edits; use {model_store.DEFAULT} or another code model."
    return ""


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    return partial(begin, model)


def begin(
    model: Model, job: Infill, layout: Layout, kv: KV, fresh: Sequence[int], sampler: str | None = None
) -> Judging:
    """Begin to judge the drafts of a job's holes; a job without drafts has empty ones."""
    holes = [segment for segment in job.segments if isinstance(segment, Hole)]
    drafts = job.draft or ("",) * len(holes)
    edits = [edit(model, job, hole.instead, draft) for hole, draft in zip(holes, drafts, strict=True)]
    groups = grouped(edits)
    if not groups:
        raise Impossible("The edits of this job are too long to be judged.")
    return Judging(job, layout.canvas, kv, fresh, len(layout.context), edits, groups)


def edit(model: Model, job: Infill, old: str, new: str) -> JudgedEdit:
    encode, end = model.tokenizer.encode, list(model.spec.separator)
    place = [*end, *encode(edit_place(job.neighbours[-1].line if job.neighbours else "", old))]
    return JudgedEdit(place, [*encode(f"{new}\n"), *end], [*encode(f"{old}\n"), *end])


def grouped(edits: Sequence[JudgedEdit]) -> list[list[int]]:
    """The numbers of the edits by steps, in their order, without those that are too long."""
    groups, rows = list[list[int]](), ROWS
    for number, one in enumerate(edits):
        if one.rows > ROWS:
            continue
        if rows + one.rows > ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(number)
        rows += one.rows
    return groups
