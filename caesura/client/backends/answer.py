"""The text of a hole while a service writes it, and where it ends. An engine of our own knows the end from its canvas;
another one writes on until it is stopped. A repeated suffix stays: the language server cuts that. Pure."""

import math

from caesura import wire
from caesura.client.backends.api import ServiceGap, TextPiece

MAX_TEXT = 16_384  # code points of a fill, as on the wire
CLOSERS = ")]}>"  # a line that begins with one may stand further left than the block before it


def is_one_line(hole: wire.Hole, suffix: str) -> bool:
    """`auto` is one line where text follows the hole on its line."""
    if hole.kind == "auto":
        return bool(suffix.partition("\n")[0].strip())
    return hole.kind != "block"


class HoleText:
    """What has been written of a gap; `ended` once the text has left it."""

    def __init__(self, gap: ServiceGap) -> None:
        self.text = ""
        self.tokens = 0
        self.ended = False
        self._gap = gap
        self._indent = _indent(gap.prefix)
        self._known = True  # the probabilities of all pieces
        self._probabilities: list[tuple[int, float]] = []

    def __repr__(self) -> str:
        return f"<HoleText {self.tokens} tokens{' ended' * self.ended}>"

    @property
    def too_long(self) -> bool:
        """True if the service goes on where it should have stopped."""
        return len(self.text) > MAX_TEXT or max(self.tokens, len(self._probabilities)) > wire.MAX_TOKENS

    def add(self, piece: TextPiece) -> None:
        self.tokens += piece.tokens
        self._known &= piece.probability is not None
        chance = min(max(piece.probability or 0.0, 0.0), 1.0)
        if self._probabilities and (not piece.text or not self.text):  # without text: a part of a character
            chance *= self._probabilities.pop()[1]
        self.text += piece.text
        self._probabilities.append((len(self.text), chance))
        end = _line_end(self.text) if self._gap.one_line else _block_end(self.text, self._indent)
        if end is not None:
            self.ended, self.text = True, self.text[:end]

    def fill(self, *, done: bool) -> wire.Fill:
        """The state of the hole. All text is locked; until the end at least one slot counts as open."""
        left = 0 if done else max(1, self._gap.max_tokens - self.tokens)
        known = self._cut() if self._known else ()
        confidence = math.prod(chance for _, chance in known) if self._known else 1.0
        return wire.Fill(self.text, ((0, len(self.text)),) if self.text else (), confidence, left, known)

    def _cut(self) -> tuple[tuple[int, float], ...]:
        """The probabilities of the text, without those of what was cut off."""
        found = list[tuple[int, float]]()
        for end, chance in self._probabilities if self.text else ():
            if not found or found[-1][0] < len(self.text):
                found.append((min(end, len(self.text)), chance))
        return tuple(found)


def _line_end(text: str) -> int | None:
    return min((at for at in (text.find("\n"), text.find("\r")) if at >= 0), default=None)


def _block_end(text: str, indent: str) -> int | None:
    """Before the first line that stands further left than the hole's own."""
    at = text.find("\n")
    while at >= 0:
        end = text.find("\n", at + 1)
        line = text[at + 1 : end if end >= 0 else len(text)]
        body = line.lstrip(" \t\r")
        if body and body[0] not in CLOSERS and len(line) - len(body) < len(indent):
            return at
        at = end
    return None


def _indent(prefix: str) -> str:
    """The white space that the last line begins with."""
    line = prefix[max(prefix.rfind("\n"), prefix.rfind("\r")) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]
