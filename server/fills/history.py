"""The last fill of each document, and the check that no newer one has superseded it. State only."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from caesura import wire
from caesura.server.fills.task import Candidate, NoFill, Task
from caesura.server.text.document import Document, Span

MAX_DOCUMENTS = 16  # documents whose last fill is kept
STALE = "The text has changed meanwhile; try again."


@dataclass
class FillHistory:
    """A fill and its candidates. `standing` has the text of each gap once the last result is applied, `waiting` the
    candidates not shown yet; `seed` is that of the next job. `invented` are the members that candidates read and a
    class does not have: the next job avoids them. `fills` has the engine's fills of which a candidate was made."""

    id: str
    task: Task
    standing: Candidate = ()
    shown: set[Candidate] = field(default_factory=set)
    waiting: list[Candidate] = field(default_factory=list)
    seed: int = 0
    invented: tuple[str, ...] = ()
    fills: dict[Candidate, Sequence[wire.Fill]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.standing = self.standing or self.task.original
        self.shown = {*self.shown, self.task.original}

    def __repr__(self) -> str:
        return f"<FillHistory {len(self.task.gaps)} gaps, {len(self.shown)} shown, seed {self.seed}>"

    def receive(self, candidates: Sequence[Candidate], fills: Sequence[Sequence[wire.Fill]]) -> list[Candidate]:
        """Take in the candidates of an answer, best first, each with its fills."""
        self.fills |= dict(zip(reversed(candidates), reversed(fills), strict=True))  # of two alike, the better
        self.waiting = list(candidates)
        return self.waiting

    def take(self) -> Candidate | None:
        """The best candidate not shown yet, which counts as shown from now on. It fills most holes; if
        several do, it leaves nothing open. A repair leaves fewest faults; if several do, it is the shortest."""
        task = self.task
        fresh = [c for c in dict.fromkeys(self.waiting) if c not in self.shown and task.usable(c)]
        if task.repairs:
            fresh.sort(key=lambda candidate: (task.faults(candidate).nodes, len("".join(candidate))))
        else:
            names = [*self.invented, *(name for c in fresh for name in task.invented(c))]
            self.invented = tuple(dict.fromkeys(names))
            fresh = [c for c in fresh if task.sound(c)]
            fresh.sort(key=lambda candidate: (candidate.count(""), task.is_half(candidate)))
        self.waiting = fresh[1:]
        self.shown |= set(fresh[:1])
        return fresh[0] if fresh else None

    def take_part(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The sound part of the best candidate that has one, unless it was shown before: a part of another one would be
        a poor answer."""
        parts = ((self.task.sound_part(one), one) for one in candidates if not self.task.repairs)
        part, whole = next(((part, one) for part, one in parts if self.task.usable(part)), ((), ()))
        if part:
            self.receive([part], [self.fills[whole]])
        return self.take()

    def applied(self) -> tuple[str, list[Span]]:
        """The text with the last result in it, and the spans of its gaps."""
        return self.task.put(self.standing)

    def where(self, text: str) -> list[Span]:
        """The spans of the gaps in `text`, which is the text with the last result or without; raises NoFill for any
        other."""
        applied, spans = self.applied()
        if text == applied:
            return spans
        if text == self.task.text:
            return [(gap.start, gap.end) for gap in self.task.gaps]
        raise NoFill("The text has changed since that fill; ask for a new one.")

    def keeping(self, kept: Sequence[Span]) -> "FillHistory":
        """A new history, for the rest of the fill: `kept` are spans of the text with the last result in it."""
        text, spans = self.applied()
        gaps = tuple(
            gap if gap.like is not None else replace(gap, parts=_parts(text, span, sorted(kept)))
            for gap, span in zip(self.task.gaps, spans, strict=True)
        )
        if not any(part for gap in gaps if gap.like is None for part in gap.parts):
            raise NoFill("The selection lies outside of the fill; select the part of the fill to keep.")
        task = replace(self.task, gaps=gaps, offer=None)  # its grammar is one of the whole text
        if not task.holes:
            raise NoFill("All of the fill is kept; there is nothing left to fill.")
        return FillHistory(self.id, task, self.standing, self.shown)


@dataclass
class Turn:
    """The right to edit `document`, until it changes or a newer fill or edit begins there."""

    document: Document
    version: int
    over: bool = False

    def check(self) -> None:
        """Raise NoFill if the result would be useless."""
        if self.over:
            raise NoFill("This fill was cancelled: a newer one has begun, or the document was closed.")
        if self.document.version != self.version:
            raise NoFill(STALE)


class LastFills:
    """The newest fill or structured edit of each document, and the fill that can be continued there."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._histories: OrderedDict[str, FillHistory] = OrderedDict()

    def __repr__(self) -> str:
        return f"<LastFills {list(self._histories.values())}>"

    def begin(self, document: Document) -> Turn:
        """Supersede every fill and edit of the document so far."""
        self._end(document.uri)
        turn = self._turns[document.uri] = Turn(document, document.version)
        return turn

    def keep(self, document: Document, history: FillHistory) -> None:
        self._histories[document.uri] = history
        self._histories.move_to_end(document.uri)
        if len(self._histories) > MAX_DOCUMENTS:
            self._histories.popitem(last=False)

    def history(self, document: Document, id: str | None) -> FillHistory:
        """The last fill of the document. Raises NoFill if that is not the fill `id`."""
        found = self._histories.get(document.uri)
        if found is None or id not in (None, found.id):
            raise NoFill("That fill is no longer known; ask for a new one.")
        return found

    def close(self, uri: str) -> None:
        """Forget a document, and end its fills."""
        self._histories.pop(uri, None)
        self._end(uri)

    def _end(self, uri: str) -> None:
        if turn := self._turns.pop(uri, None):
            turn.over = True


def _parts(text: str, span: Span, kept: Sequence[Span]) -> tuple[str | None, ...]:
    """The parts of a gap at `span`: the kept texts, and None for a hole wherever other text stood."""
    parts, at = list[str | None](), span[0]
    for start, end in kept:
        start, end = max(start, at), min(end, span[1])
        if start < end:
            parts += [None, text[start:end]] if start > at else [text[start:end]]
            at = end
    return (*parts, None) if at < span[1] or not parts else tuple(parts)
