"""The outcome of each suggestion (accepted, partly accepted or rejected), and the back-off that follows from it."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from caesura.server.ghost.backoff import Backoff
from caesura.server.ghost.typed import Proposal, Typed
from caesura.server.infill.choose import ShowThreshold
from caesura.server.options import MODES, Settings
from caesura.server.records.stats import Stats
from caesura.server.text.document import Edit

Outcome = Literal["accepted", "partly", "rejected"]

SEEN_S = 0.3  # a suggestion that was shown for less is not rejected by other text: the user had no time to read it
TAKEN = 2  # code points; an insertion of at least this many is an acceptance, not typing


@dataclass
class Suggestion:
    """Text that the editor shows. `since` is the time when it was first drawn, in seconds of the loop's clock; `taken`
    counts accepted code points."""

    id: str
    language: str
    typed: Typed
    insert: str
    since: float
    taken: int = 0
    over: bool = False  # its outcome is known
    moved: bool = False  # the text elsewhere has changed

    @property
    def fits(self) -> bool:
        """True if it agrees with the text typed since."""
        return not self.moved and self.typed.agrees(self.insert)

    @property
    def left(self) -> int:
        """The number of code points that can still be accepted."""
        return len(self.insert) - self.taken

    def rest(self, cursor: int) -> Proposal | None:
        """The rest of it at `cursor`; None if there is none."""
        return None if self.over or self.moved else self.typed.rest(self.insert, cursor)

    def continues(self, cursor: int, insert: str) -> bool:
        """True if a proposal for `cursor` is the rest of this suggestion, or begins with it."""
        return self.stands(cursor) and insert.startswith(self.insert[len(self.typed.written) :])

    def stands(self, cursor: int) -> bool:
        """True if the rest of it can be accepted at `cursor`."""
        return not self.over and self.fits and cursor == self.typed.origin + len(self.typed.written)

    def follow(self, edit: Edit, now: float) -> tuple[Outcome, int] | None:
        """Apply an edit. Returns the outcome that it decides, if any, and its size in code points."""
        if not self.typed.follow(edit):
            self.moved = True
        if self.over or self.moved:
            return None
        rest = len(self.insert) - len(self.typed.written)
        if not self.fits:
            self.over = True
            return ("rejected", len(self.insert)) if now - self.since >= SEEN_S else None
        self.over = not rest
        size = min(len(edit.text), self.left)  # text that was undone and accepted again counts once
        if len(edit.text) < TAKEN or not size or not self.insert.startswith(self.typed.written):
            return None
        self.taken += size
        return ("partly" if rest else "accepted"), size

    def told(self, taken: int) -> tuple[Outcome, int] | None:
        """Apply the editor's report that `taken` code points were accepted in all. Returns the outcome that no edit has
        shown yet, if any."""
        more = min(taken, len(self.insert)) - self.taken
        if more <= 0:
            return None
        self.taken += more
        self.over = self.taken == len(self.insert)
        return ("accepted" if self.over else "partly"), more


class Feedback:
    """Counts the outcomes of all documents, and raises the threshold after rejections."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self._settings = settings
        self._stats = stats
        self._backoff = Backoff()

    def threshold(self, *, invoked: bool) -> ShowThreshold:
        """The requirement for showing a suggestion. One that the user asked for may be short."""
        options = self._settings.options
        if invoked:
            return ShowThreshold(min(options.chance, MODES["manual"].chance))
        return ShowThreshold(self._backoff.chance(options.chance, _now()), options.least_keys)

    def shown(self, new: Suggestion, before: Suggestion | None) -> None:
        """Count a suggestion that the editor shows from now on. If it continues the one `before`, only its new text
        counts."""
        if before is None or not before.continues(new.typed.origin, new.insert):
            self._stats.shown(new.language, len(new.insert))
            return
        new.since = before.since
        if (more := len(new.insert) - before.left) > 0:
            self._stats.grown(new.language, more)

    def judge(self, suggestion: Suggestion, outcome: tuple[Outcome, int] | None) -> None:
        """Count an outcome, and adapt the back-off to it."""
        match outcome:
            case ("accepted", size):
                self._stats.accepted(suggestion.language, size)
                self._backoff.accepted(_now())
            case ("partly", size):
                self._stats.partly(suggestion.language, size)
            case ("rejected", size):
                self._stats.rejected(suggestion.language, size)
                if MODES[self._settings.options.mode].backs_off:
                    self._backoff.rejected(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
