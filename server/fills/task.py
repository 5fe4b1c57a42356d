"""A text with gaps, and the check of the texts to fill them. Pure: spans and texts, no engine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tree_sitter

from caesura.server.context.secrets import reveals
from caesura.server.infill.members import ClassMembers
from caesura.server.languages import JSON, language
from caesura.server.text import json as json_text
from caesura.server.text import repair
from caesura.server.text.document import Span

MARKER = "<FILL>"
HARMLESS = ("", "x", "0")  # texts for a gap; at most places one of them breaks nothing

_STRAY = re.compile(r"[\s)\]}>\"'`,;]*")  # text that a repair may delete without a replacement


Candidate = tuple[str, ...]  # a text for each gap; empty if nothing is proposed
HoleIndex = tuple[int, int]  # index of the gap, and of the part in it


class NoFill(Exception):
    """There is nothing to apply; the message is a sentence for the user."""


@dataclass(frozen=True)
class Gap:
    """`parts` replace the span `start:end`: a text is inserted as it is, None is a hole, which takes one of the
    `choices` if there are any. A gap that is `like` the gap of that index takes its text; until that is known, it shows
    its own parts."""

    start: int
    end: int
    parts: tuple[str | None, ...] = (None,)
    choices: tuple[str, ...] = ()
    like: int | None = None


@dataclass(frozen=True)
class Task:
    """A text with ascending, disjoint gaps, and its tree. With `repairs`, a candidate must leave fewer faults."""

    text: str
    language: str
    gaps: tuple[Gap, ...]
    tree: tree_sitter.Tree | None
    repairs: bool = False

    @property
    def holes(self) -> list[HoleIndex]:
        return [(g, p) for g, gap in enumerate(self.gaps) for p, part in enumerate(gap.parts) if part is None]

    @property
    def original(self) -> Candidate:
        return tuple(self.text[gap.start : gap.end] for gap in self.gaps)

    def replaced(self, index: HoleIndex) -> str:
        """The text that the hole at `index` replaces; empty in a gap that keeps other parts."""
        gap = self.gaps[index[0]]
        return self.text[gap.start : gap.end] if gap.parts == (None,) else ""

    def choices(self, index: HoleIndex) -> tuple[str, ...]:
        """The texts of which the hole at `index` takes one; empty if it may take any, as next to a kept part."""
        gap = self.gaps[index[0]]
        return gap.choices if gap.parts == (None,) else ()

    def lay(self, filled: Mapping[HoleIndex, str]) -> tuple[str, dict[HoleIndex, int]]:
        """The text with its kept and filled parts, and the offsets of its open holes."""
        pieces, size, holes, after = list[str](), 0, dict[HoleIndex, int](), 0
        for g, gap in enumerate(self.gaps):
            parts = self._known(g, filled)
            for p, piece in enumerate([self.text[after : gap.start], *parts]):
                if piece is None:
                    holes[g, p - 1] = size
                else:
                    pieces.append(piece)
                    size += len(piece)
            after = gap.end
        return "".join([*pieces, self.text[after:]]), holes

    def candidate(self, filled: Mapping[HoleIndex, str]) -> Candidate:
        return tuple("".join(part or "" for part in self._known(g, filled)) for g in range(len(self.gaps)))

    def _known(self, g: int, filled: Mapping[HoleIndex, str]) -> list[str | None]:
        """The parts of a gap with the fills that are known."""
        gap = self.gaps[g]
        if gap.like is not None:
            likened = self._known(gap.like, filled)
            return list(gap.parts) if None in likened else likened
        return [part if part is not None else filled.get((g, p)) for p, part in enumerate(gap.parts)]

    def put(self, texts: Sequence[str]) -> tuple[str, list[Span]]:
        """The text with `texts` in its gaps, and their spans in it."""
        pieces, spans, size, after = list[str](), list[Span](), 0, 0
        for gap, text in zip(self.gaps, texts, strict=True):
            pieces += [self.text[after : gap.start], text]
            size += gap.start - after
            spans.append((size, size + len(text)))
            size, after = size + len(text), gap.end
        return "".join([*pieces, self.text[after:]]), spans

    def parsed(self, text: str) -> tree_sitter.Tree | None:
        """The tree of `text`, which differs from this task's text only in its gaps."""
        if self.tree is None:
            return None
        tail = len(self.text) - self.gaps[-1].end
        return repair.reparsed(self.tree, self.text, text, self.gaps[0].start, tail, self.language)

    def faults(self, candidate: Candidate) -> repair.SyntaxFaults:
        """The syntax faults of the text with `candidate` in its gaps; none without a tree."""
        tree = self.parsed(self.put(candidate)[0])
        return repair.faults(tree) if tree else repair.SyntaxFaults(0, 0)

    @cached_property
    def least_broken(self) -> int:
        """The least number of broken nodes with the original or harmless texts in the gaps: the most that a fill may
        leave."""
        harmless = [tuple(text for _ in self.gaps) for text in HARMLESS]
        return min(self.faults(texts).nodes for texts in (self.original, *harmless))

    def invented(self, candidate: Candidate) -> tuple[str, ...]:
        """The members that the candidate reads and a class does not have."""
        text, spans = self.put(candidate)
        found = dict[str, None]()
        for start, end in spans:
            at, source = len(text[:start].encode()), (text[:start] + text[end:]).encode()
            members = ClassMembers(language(self.language), source, at, at, None)
            found |= dict.fromkeys(members.invented(text[start:end]))
        return tuple(found)

    def sound(self, candidate: Candidate) -> bool:
        """True if the text with `candidate` has no new syntax error, no header without a body at a gap's end, no
        invented member and in JSON no repeated key. Harmless texts fill the gaps that it leaves empty."""
        texts = dict.fromkeys(tuple(text or harmless for text in candidate) for harmless in HARMLESS)
        return any(map(self._fits, texts)) and not self.invented(candidate)

    def _fits(self, candidate: Candidate) -> bool:
        text, spans = self.put(candidate)
        tree = self.parsed(text)
        if tree and repair.faults(tree).nodes > self.least_broken:
            return False
        bare = tree and any(repair.lacks_body(tree, text, end) for _, end in spans)
        return not bare and not repeats_key(text, spans, self.language)

    def usable(self, candidate: Candidate) -> bool:
        """True if the candidate has no placeholder of a secret, and proposes something or, for a repair, makes the text
        parse better."""
        if reveals("".join(candidate), self.text, ""):
            return False
        if not self.repairs:
            return any(candidate)
        remark = language(self.language).comment or "\n"
        gone = all(not text or text.startswith(remark) for text in candidate)
        if gone and not _STRAY.fullmatch("".join(self.original)):
            return False  # deleting code proves nothing: the rest always parses better
        return self.faults(candidate).fewer_than(self.faults(self.original))


def repeats_key(text: str, spans: Sequence[Span], language: str) -> bool:
    """True if a key written in one of the spans repeats one of its object; False for other languages than JSON."""
    return language in JSON and json_text.repeats_key(text, spans)


def markers(text: str, spans: Sequence[Span], marker: str = MARKER) -> list[Span]:
    """The markers in `spans`, or in the whole text if there are no spans. An editor that closes tags turns a typed
    marker into `<FILL></FILL>`: the closing tag is part of the marker."""
    end = f"(?:{re.escape(f'</{marker[1:]}')})?" if marker.startswith("<") else ""
    pattern = re.compile(re.escape(marker) + end)
    return [m.span() for span in spans or [(0, len(text))] for m in pattern.finditer(text, *span)]


def trimmed(text: str, start: int, end: int) -> Span:
    """A span without the white space at its ends, so that a fill keeps the lines and the indentation around it."""
    inner = text[start:end]
    if not inner.strip():
        return start, end
    return start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())
