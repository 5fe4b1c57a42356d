"""The text that the user typed since a proposal was computed, and the rest of the proposal after it. State only."""

from dataclasses import dataclass

from caesura.server.context.context import CLOSERS
from caesura.server.text.document import Edit
from caesura.server.text.lexer import PARTNER

QUOTES = "\"'`"


@dataclass(frozen=True)
class Proposal:
    """`insert` replaces `back` code points before the cursor and `eat` after it; an empty one means no proposal.
    `closed` are the marks after the cursor that end it: the editor has inserted them. `others` are further texts for
    the same range, best first."""

    insert: str
    eat: int = 0
    back: int = 0
    closed: str = ""
    others: tuple[str, ...] = ()
    confidence: float = 0.0
    id: str = ""  # set when the editor gets it

    def continues(self, shown: "Proposal") -> bool:
        """True if it begins with all of `shown`, also with the end that the editor has inserted."""
        return (self.insert + self.closed).startswith(shown.insert + shown.closed)


class Typed:
    """The text that the user typed at the offset `origin` since a proposal was computed for it. `closing` are the
    brackets and quotes that stood there then; the proposal may replace them."""

    def __init__(self, origin: int, text: str = "", closing: str = "") -> None:
        self.origin = origin
        self.text = text + closing
        self.closing = closing

    @property
    def written(self) -> str:
        """The typed text, without `closing`."""
        return self.text.removesuffix(self.closing)

    def follow(self, edit: Edit) -> bool:
        """Apply an edit inside this text; False if it lies outside."""
        start, end = edit.start - self.origin, edit.end - self.origin
        if not 0 <= start <= end <= len(self.text):
            return False
        after = self.text[end:]
        self.text = self.text[:start] + edit.text + after
        self.closing = min(self.closing, after, key=len)  # a part that is gone was typed over
        return True

    def move(self, edit: Edit) -> bool:
        """Apply an edit before or after this text; False if it overlaps it."""
        if edit.end <= self.origin:
            self.origin += len(edit.text) - (edit.end - edit.start)
            return True
        return edit.start >= self.origin + len(self.text)

    def left(self, insert: str, cursor: int) -> Proposal | None:
        """The rest of `insert` at `cursor`; None if the typed text disagrees with it.

        Text of `self.text` after the cursor came from the editor: a bracket or quote that it closed."""
        size = cursor - self.origin
        before, after = self.text[: max(0, size)], self.text[max(0, size) :]
        if not 0 <= size <= len(self.text) or not insert.startswith(before):
            return None
        rest = insert[len(before) :]
        if not after:
            return Proposal(rest)
        whole = insert if after == self.closing else rest
        closed = _closed(whole, after) if CLOSERS.issuperset(after) else 0
        if closed < len(after) - len(self.closing):  # `closing` may stay
            return None
        body = len(rest) - closed
        ends = rest.endswith(after[:closed]) and not _closed(whole[: len(whole) - closed], after)
        return Proposal(rest[:body], closed=rest[body:]) if ends else Proposal(rest, eat=closed)

    def rest(self, insert: str, cursor: int) -> Proposal | None:
        """The rest of `insert` at `cursor`; None if nothing is left, or if the typed text disagrees with it."""
        left = self.left(insert, cursor)
        return left if left and left.insert else None

    def agrees(self, insert: str) -> bool:
        """True if the typed text agrees with `insert`, including brackets that the editor closed."""
        end = self.origin + len(self.text)
        cursors = {end, end - 1, self.origin + len(self.written)}
        return any(self.left(insert, cursor) is not None for cursor in cursors)


def _closed(text: str, closing: str) -> int:
    """The number of marks of `closing` that `text`, which begins inside of them, closes."""
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
