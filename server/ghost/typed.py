"""What is left of a text at the cursor, after what the user typed since it was computed. State only."""

from dataclasses import dataclass

from caesura.server.context.context import CLOSERS
from caesura.server.text.document import Edit
from caesura.server.text.lexer import PARTNER

QUOTES = "\"'`"


@dataclass(frozen=True)
class Proposal:
    """`insert` replaces `back` code points before the cursor and `eat` after it; an empty one means nothing to propose.
    `others` are further texts for the same range, best first."""

    insert: str
    eat: int = 0
    back: int = 0
    others: tuple[str, ...] = ()
    confidence: float = 0.0
    id: str = ""  # once the editor was given it


@dataclass(frozen=True)
class Draft:
    """A canvas on its way: `text` is the best guess for the cursor; its first `locked` code points will not change,
    though an answer may end before them, where it is surer or sound. The first `ready` are what the plain request
    would be answered with by now."""

    text: str
    eat: int = 0
    locked: int = 0
    confidence: float = 0.0
    ready: int = 0


class Typed:
    """What stands at `origin` that was typed since something was computed for that place. `closing` are the brackets
    and quotes that stood there then; what was computed may replace them."""

    def __init__(self, origin: int, text: str = "", closing: str = "") -> None:
        self.origin = origin
        self.text = text + closing
        self.closing = closing

    @property
    def written(self) -> str:
        """Without what closes."""
        return self.text.removesuffix(self.closing)

    def follow(self, edit: Edit) -> bool:
        """Take an edit of this text into account; False when it is of other text."""
        start, end = edit.start - self.origin, edit.end - self.origin
        if not 0 <= start <= end <= len(self.text):
            return False
        behind = self.text[end:]
        self.text = self.text[:start] + edit.text + behind
        self.closing = min(self.closing, behind, key=len)  # typed over, as far as it is gone
        return True

    def move(self, edit: Edit) -> bool:
        """Take an edit wholly before or behind this text into account; False when it cuts into it."""
        if edit.end <= self.origin:
            self.origin += len(edit.text) - (edit.end - edit.start)
            return True
        return edit.start >= self.origin + len(self.text)

    def left(self, insert: str, cursor: int) -> Proposal | None:
        """What of `insert` is left to insert at `cursor`; None where the typed text disagrees with it.

        Typed text after the cursor was put there by the editor: a bracket it closed by itself."""
        size = cursor - self.origin
        before, after = self.text[: max(0, size)], self.text[max(0, size) :]
        if not 0 <= size <= len(self.text) or not insert.startswith(before):
            return None
        rest = insert[len(before) :]
        if not after:
            return Proposal(rest)
        whole = insert if after == self.closing else rest
        closed = _closed(whole, after) if CLOSERS.issuperset(after) else 0
        if after != self.closing and closed < len(after):
            return None
        body = len(rest) - closed
        ends = rest.endswith(after[:closed]) and not _closed(whole[: len(whole) - closed], after)
        return Proposal(rest[:body]) if ends else Proposal(rest, eat=closed)

    def agrees(self, insert: str) -> bool:
        """True if this is what one types who wants `insert`, a bracket that the editor closes included."""
        end = self.origin + len(self.text)
        cursors = {end, end - 1, self.origin + len(self.written)}
        return any(self.left(insert, cursor) is not None for cursor in cursors)


def _closed(text: str, closing: str) -> int:
    """How many of `closing`, the brackets and quotes that `text` begins in, it closes."""
    closed, depth, quote, at = 0, 0, "", 0
    while at < len(text) and closed < len(closing):
        character, inside = text[at], quote or closing[closed]
        if inside in QUOTES:
            at += character == "\\"
            if character == inside:
                closed, quote = closed + (not quote), ""
        elif character in QUOTES:
            quote = character if character in text[at + 1 :] else ""
        elif character == inside and not depth:
            closed += 1
        else:
            depth += (character in PARTNER.values()) - (character in PARTNER)
        at += 1
    return closed
