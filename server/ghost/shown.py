"""A suggestion that the editor shows, and what becomes of it: taken, taken in part, or typed over. State only."""

from dataclasses import dataclass
from typing import Literal, Protocol

from caesura.server.ghost.canvas import Typed
from caesura.server.text.document import Edit

Outcome = Literal["accepted", "partly", "rejected"]

SEEN_S = 0.3  # a suggestion that was typed over sooner was not refused: nobody had read it
TAKEN = 2  # code points that come at once are taken, not typed


class Tally(Protocol):
    """Where outcomes are counted, in code points; see stats.py."""

    def shown(self, language: str, characters: int) -> None: ...
    def grown(self, language: str, characters: int) -> None: ...
    def accepted(self, language: str, characters: int) -> None: ...
    def partly(self, language: str, characters: int) -> None: ...
    def rejected(self, language: str, characters: int) -> None: ...


@dataclass
class Shown:
    """`since` is when it was first drawn, in seconds of the caller's clock; `taken` counts code points."""

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
        """Whether it still agrees with the text."""
        return not self.moved and self.typed.agrees(self.insert)

    @property
    def left(self) -> int:
        """Code points that may still be taken."""
        return len(self.insert) - self.taken

    def goes_on(self, cursor: int, insert: str) -> bool:
        """Whether a proposal for `cursor` is what is left of this one, or begins with it."""
        return self.stands(cursor) and insert.startswith(self.insert[len(self.typed.written) :])

    def stands(self, cursor: int) -> bool:
        """Whether what is left of it can be taken at `cursor`."""
        return not self.over and self.fits and cursor == self.typed.origin + len(self.typed.written)

    def follow(self, edit: Edit, now: float) -> tuple[Outcome, int] | None:
        """Take an edit into account: what it decided, and about how many code points."""
        if not self.typed.follow(edit):
            self.moved = True
        if self.over or self.moved:
            return None
        rest = len(self.insert) - len(self.typed.written)
        if not self.fits:
            self.over = True
            return ("rejected", len(self.insert)) if now - self.since >= SEEN_S else None
        self.over = not rest
        size = min(len(edit.text), self.left)  # what was undone and is taken again counts once
        if len(edit.text) < TAKEN or not size or not self.insert.startswith(self.typed.written):
            return None
        self.taken += size
        return ("partly" if rest else "accepted"), size

    def told(self, taken: int) -> tuple[Outcome, int] | None:
        """The editor says that `taken` code points were accepted in all: what its edits have not told already."""
        more = min(taken, len(self.insert)) - self.taken
        if more <= 0:
            return None
        self.taken += more
        self.over = self.taken == len(self.insert)
        return ("accepted" if self.over else "partly"), more
