"""What becomes of a suggestion: taken, taken in part, or typed over; and how forward the next ones are after it."""

import asyncio
from dataclasses import dataclass
from typing import Literal, Protocol

from caesura.server.answers.worth import Bar
from caesura.server.ghost.backoff import Backoff
from caesura.server.ghost.typed import Typed
from caesura.server.options import MODES, Settings
from caesura.server.text.document import Edit

Outcome = Literal["accepted", "partly", "rejected"]

SEEN_S = 0.3  # a suggestion that was typed over sooner was not rejected: nobody had read it
TAKEN = 2  # code points that come at once are taken, not typed


class Tally(Protocol):
    """Counts outcomes, in code points; see stats.py."""

    def shown(self, language: str, characters: int) -> None: ...
    def grown(self, language: str, characters: int) -> None: ...
    def accepted(self, language: str, characters: int) -> None: ...
    def partly(self, language: str, characters: int) -> None: ...
    def rejected(self, language: str, characters: int) -> None: ...


@dataclass
class Suggestion:
    """Text that the editor shows. `since` is when it was first drawn, in seconds of the loop's clock; `taken` counts
    code points."""

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
        """True while it agrees with the text."""
        return not self.moved and self.typed.agrees(self.insert)

    @property
    def left(self) -> int:
        """Code points that may still be taken."""
        return len(self.insert) - self.taken

    def continues(self, cursor: int, insert: str) -> bool:
        """True if a proposal for `cursor` is what is left of this one, or begins with it."""
        return self.stands(cursor) and insert.startswith(self.insert[len(self.typed.written) :])

    def stands(self, cursor: int) -> bool:
        """True if what is left of it can be taken at `cursor`."""
        return not self.over and self.fits and cursor == self.typed.origin + len(self.typed.written)

    def follow(self, edit: Edit, now: float) -> tuple[Outcome, int] | None:
        """Take an edit into account. The outcome, if the edit decides one, and its size in code points."""
        if not self.typed.follow(edit):
            self.moved = True
        if self.over or self.moved:
            return None
        rest = len(self.insert) - len(self.typed.written)
        if not self.fits:
            self.over = True
            return ("rejected", len(self.insert)) if now - self.since >= SEEN_S else None
        self.over = not rest
        size = min(len(edit.text), self.left)  # text that was undone and is taken again counts once
        if len(edit.text) < TAKEN or not size or not self.insert.startswith(self.typed.written):
            return None
        self.taken += size
        return ("partly" if rest else "accepted"), size

    def told(self, taken: int) -> tuple[Outcome, int] | None:
        """The editor says that `taken` code points were accepted in all. The outcome that its edits did not show."""
        more = min(taken, len(self.insert)) - self.taken
        if more <= 0:
            return None
        self.taken += more
        self.over = self.taken == len(self.insert)
        return ("accepted" if self.over else "partly"), more


class Feedback:
    """Counts the outcomes of all documents, and raises the bar after rejections."""

    def __init__(self, settings: Settings, tally: Tally) -> None:
        self._settings = settings
        self._tally = tally
        self._backoff = Backoff()

    def bar(self, *, invoked: bool) -> Bar:
        """What a suggestion must reach to be shown. If the user asked for one, a short one will do."""
        options = self._settings.options
        if invoked:
            return Bar(min(options.chance, MODES["manual"].chance))
        return Bar(self._backoff.chance(options.chance, _now()), options.least_keys)

    def shown(self, new: Suggestion, before: Suggestion | None) -> None:
        """`new` is shown from now on. If it continues what was shown before, only its new text counts."""
        if before is None or not before.continues(new.typed.origin, new.insert):
            self._tally.shown(new.language, len(new.insert))
            return
        new.since = before.since
        if (more := len(new.insert) - before.left) > 0:
            self._tally.grown(new.language, more)

    def judge(self, suggestion: Suggestion, outcome: tuple[Outcome, int] | None) -> None:
        """Count an outcome, and be more or less forward after it."""
        match outcome:
            case ("accepted", size):
                self._tally.accepted(suggestion.language, size)
                self._backoff.accepted(_now())
            case ("partly", size):
                self._tally.partly(suggestion.language, size)
            case ("rejected", size):
                self._tally.rejected(suggestion.language, size)
                if MODES[self._settings.options.mode].backs_off:
                    self._backoff.rejected(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
