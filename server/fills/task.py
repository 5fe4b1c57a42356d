"""The gaps of a text, and which texts may be filled in. Pure: spans and texts, no engine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tree_sitter

from caesura.server.context.secrets import reveals
from caesura.server.languages import JSON, language
from caesura.server.text import json as json_text
from caesura.server.text import repair
from caesura.server.text.document import Span

MARKER = "<FILL>"
HARMLESS = ("", "x", "0")  # one of them leaves most places sound

_PLACEHOLDER = re.compile(r"\$\{\d+(?::[^{}]*)?\}|\$\d+")
_STRAY = re.compile(r"[\s)\]}>\"'`,;]*")  # what a repair may take out without a replacement


Candidate = tuple[str, ...]  # one text a gap; empty where nothing is proposed
HoleIndex = tuple[int, int]  # gap, part of the gap


class NoFill(Exception):
    """There is nothing to apply; the message is a sentence for a person."""


@dataclass(frozen=True)
class Gap:
    """The span `start:end` gives way to `parts`: None is a hole, a text is kept as it is."""

    start: int
    end: int
    parts: tuple[str | None, ...] = (None,)


@dataclass(frozen=True)
class Task:
    """A text with gaps, ascending and apart, and its tree. What `repairs` it must leave fewer faults."""

    text: str
    language: str
    gaps: tuple[Gap, ...]
    tree: tree_sitter.Tree | None
    repairs: bool = False

    @property
    def places(self) -> list[HoleIndex]:
        return [(g, p) for g, gap in enumerate(self.gaps) for p, part in enumerate(gap.parts) if part is None]

    @property
    def original(self) -> Candidate:
        return tuple(self.text[gap.start : gap.end] for gap in self.gaps)

    def replaced(self, place: HoleIndex) -> str:
        """What the hole at `place` takes the place of; empty where it stands beside text that is kept."""
        gap = self.gaps[place[0]]
        return self.text[gap.start : gap.end] if gap.parts == (None,) else ""

    def lay(self, filled: Mapping[HoleIndex, str]) -> tuple[str, dict[HoleIndex, int]]:
        """The text with what is kept and what is filled in place, and where the open holes lie in it."""
        pieces, size, holes, behind = list[str](), 0, dict[HoleIndex, int](), 0
        for g, gap in enumerate(self.gaps):
            parts = [part if part is not None else filled.get((g, p)) for p, part in enumerate(gap.parts)]
            for p, piece in enumerate([self.text[behind : gap.start], *parts]):
                if piece is None:
                    holes[g, p - 1] = size
                else:
                    pieces.append(piece)
                    size += len(piece)
            behind = gap.end
        return "".join([*pieces, self.text[behind:]]), holes

    def candidate(self, filled: Mapping[HoleIndex, str]) -> Candidate:
        return tuple(
            "".join(filled[g, p] if part is None else part for p, part in enumerate(gap.parts))
            for g, gap in enumerate(self.gaps)
        )

    def put(self, texts: Sequence[str]) -> tuple[str, list[Span]]:
        """The text with `texts` in its gaps, and where they lie in it."""
        pieces, spans, size, behind = list[str](), list[Span](), 0, 0
        for gap, text in zip(self.gaps, texts, strict=True):
            pieces += [self.text[behind : gap.start], text]
            size += gap.start - behind
            spans.append((size, size + len(text)))
            size, behind = size + len(text), gap.end
        return "".join([*pieces, self.text[behind:]]), spans

    def parsed(self, text: str) -> tree_sitter.Tree | None:
        """The tree of this text with something else in its gaps."""
        if self.tree is None:
            return None
        tail = len(self.text) - self.gaps[-1].end
        return repair.reparsed(self.tree, self.text, text, self.gaps[0].start, tail, self.language)

    def faults(self, candidate: Candidate) -> repair.SyntaxFaults:
        """What is broken with `candidate` in place; nothing, where that cannot be told."""
        tree = self.parsed(self.put(candidate)[0])
        return repair.faults(tree) if tree else repair.SyntaxFaults(0, 0)

    @cached_property
    def least_broken(self) -> int:
        """How many nodes are, with what stood in the gaps or with something harmless; no fill should break more."""
        harmless = [tuple(text for _ in self.gaps) for text in HARMLESS]
        return min(self.faults(texts).nodes for texts in (self.original, *harmless))

    def sound(self, candidate: Candidate) -> bool:
        """Whether it leaves the syntax next to it as it is, ends in no header without a body, and in JSON writes no key
        that its object has already; with something harmless in the holes that it leaves empty."""
        texts = dict.fromkeys(tuple(text or harmless for text in candidate) for harmless in HARMLESS)
        return any(map(self._fits, texts))

    def _fits(self, candidate: Candidate) -> bool:
        text, spans = self.put(candidate)
        tree = self.parsed(text)
        if tree and repair.faults(tree).nodes > self.least_broken:
            return False
        bare = tree and any(repair.lacks_body(tree, text, end) for _, end in spans)
        return not bare and not repeats_key(text, spans, self.language)

    def usable(self, candidate: Candidate) -> bool:
        """Whether it proposes something; of a repair, whether the text parses better with it."""
        if reveals("".join(candidate), self.text, ""):
            return False
        if not self.repairs:
            return any(candidate)
        remark = language(self.language).comment or "\n"
        gone = all(not text or text.startswith(remark) for text in candidate)
        if gone and not _STRAY.fullmatch("".join(self.original)):
            return False  # where code is taken out, what is left parses
        return self.faults(candidate).fewer_than(self.faults(self.original))


def repeats_key(text: str, spans: Sequence[Span], language: str) -> bool:
    """Whether what stands in one of the spans writes a key that its object has already; only JSON is looked at."""
    return language in JSON and json_text.repeats_key(text, spans)


def markers(text: str, spans: Sequence[Span], language_id: str, marker: str = MARKER) -> list[Span]:
    """The markers in `spans`, or in the whole text where there are none. In spans without markers, snippet placeholders
    (`$1`, `${1:name}`) count as such, unless that is code in this language. Editors that close tags have made
    `<FILL></FILL>` of a typed marker: the end belongs to it."""
    end = f"(?:{re.escape(f'</{marker[1:]}')})?" if marker.startswith("<") else ""
    pattern = re.compile(re.escape(marker) + end)
    found = [m.span() for span in spans or [(0, len(text))] for m in pattern.finditer(text, *span)]
    if found or not spans or language(language_id).dollars:
        return found
    return [m.span() for span in spans for m in _PLACEHOLDER.finditer(text, *span)]


def trimmed(text: str, start: int, end: int) -> Span:
    """A span without the white space around its text, so that what stands around it keeps its lines and indentation."""
    inner = text[start:end]
    if not inner.strip():
        return start, end
    return start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())
