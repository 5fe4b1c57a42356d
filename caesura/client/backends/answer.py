"""The text of a hole while a service writes it, and where it ends. An engine of our own knows the end from its canvas;
another one writes on until it is stopped. A repeated suffix stays: the language server cuts that. Pure."""

import math

from caesura import wire
from caesura.client.backends.api import ServiceGap, TextPiece

MAX_TEXT = 16_384  # code points of a fill, as on the wire
BLANK = " \t\r"
CLOSERS = ")]}>"  # a line that begins with one may stand further left than the block before it


def is_one_line(hole: wire.Hole, suffix: str) -> bool:
    """`auto` is one line where text follows the hole on its line."""
    if hole.kind == "auto":
        return bool(suffix.partition("\n")[0].strip())
    return hole.kind != "block"


class HoleText:
    """The text written for a gap so far; `ended` once it has left the gap."""

    def __init__(self, gap: ServiceGap, markers: tuple[str, ...] = ()) -> None:
        self.text = ""
        self.tokens = 0
        self.ended = False
        self._gap = gap
        self._markers = markers  # an answer ends before the first one
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
        own = _line_end(self.text) if self._gap.one_line else _block_end(self.text, self._indent)
        ends = [end for end in (own, *map(self.text.find, self._markers)) if end >= 0]
        if ends:
            self.ended, self.text = True, self.text[: min(ends)]

    def interrupt(self) -> None:
        """No more text comes, in the middle of the answer: its last characters may belong to its end."""
        self.text = self._locked()

    def fill(self, *, done: bool) -> wire.Fill:
        """The state of the hole, with its locked text alone; until the end at least one slot counts as open."""
        text = self.text if done else self._locked()
        left = 0 if done else max(1, self._gap.max_tokens - self.tokens)
        known = self._chances(text) if self._known else ()
        confidence = math.prod(chance for _, chance in known) if self._known else 1.0
        return wire.Fill(text, ((0, len(text)),) if text else (), confidence, left, known)

    def _locked(self) -> str:
        """The text that stays whatever follows: neither the start of a marker nor white space at a block's end, since
        the answer may end before them."""
        if self.ended:
            return self.text
        starts = (marker[:size] for marker in self._markers for size in range(1, len(marker)))
        text = self.text[: len(self.text) - max((len(one) for one in starts if self.text.endswith(one)), default=0)]
        return text if self._gap.one_line else text.rstrip()

    def _chances(self, text: str) -> tuple[tuple[int, float], ...]:
        """The probabilities of the start of what was written."""
        found = list[tuple[int, float]]()
        for end, chance in self._probabilities if text else ():
            if not found or found[-1][0] < len(text):
                found.append((min(end, len(text)), chance))
        return tuple(found)


def _line_end(text: str) -> int:
    """-1 where there is none."""
    return min((at for at in (text.find("\n"), text.find("\r")) if at >= 0), default=-1)


def _block_end(text: str, indent: str) -> int:
    """Before the first line that stands further left than the hole's own, and the blank lines before that; -1 where
    there is none."""
    at = text.find("\n")
    while at >= 0:
        end = text.find("\n", at + 1)
        line = text[at + 1 : end if end >= 0 else len(text)]
        body = line.lstrip(BLANK)
        if body and body[0] not in CLOSERS and len(line) - len(body) < len(indent):
            return len(text[:at].rstrip())
        at = end
    return -1


def _indent(prefix: str) -> str:
    """The white space that the last line begins with."""
    line = prefix[max(prefix.rfind("\n"), prefix.rfind("\r")) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]
