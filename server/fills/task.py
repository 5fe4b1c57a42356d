"""A text with gaps, and the check of the texts to fill them. Pure: spans and texts, no engine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tree_sitter

from caesura.server.context.secrets import reveals
from caesura.server.infill.check import HARMLESS
from caesura.server.infill.insert import is_half
from caesura.server.infill.site import Site, site
from caesura.server.languages import language
from caesura.server.structured.offer import Offer
from caesura.server.text import repair
from caesura.server.text.document import Span

MARKER = "<FILL>"
MAX_TRIALS = 40  # most checks for the part of a candidate that may stand: about a second in a long file

_STRAY = re.compile(r"[\s)\]}>\"'`,;]*")  # text that a repair may delete without a replacement


Candidate = tuple[str, ...]  # a text for each gap; empty if nothing is proposed
HoleIndex = tuple[int, int]  # index of the gap, and of the part in it


class NoFill(Exception):
    """There is nothing to apply; the message is a sentence for the user."""


class Invented(NoFill):
    """Nothing may stand in the text, and some of it reads members that a class does not have."""

    def __init__(self, names: Sequence[str]) -> None:
        named = ", ".join(f"`{name}`" for name in names)
        super().__init__(f"The model's text reads {named}, which its class does not have.")


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
    """A text with ascending, disjoint gaps, and its tree. With `repairs`, a candidate must leave fewer faults. The
    text of a single gap may have the grammar of an `offer`. `is_checked` as in Site."""

    text: str
    language: str
    gaps: tuple[Gap, ...]
    tree: tree_sitter.Tree | None
    repairs: bool = False
    offer: Offer | None = None
    is_checked: bool = True

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

    def invented(self, candidate: Candidate) -> tuple[str, ...]:
        """The members that the candidate reads and a class does not have."""
        return self._site.invented(*self._joined(candidate))

    def sound(self, candidate: Candidate, gaps: Sequence[int] | None = None) -> bool:
        """True if the candidate may stand in the text. Harmless texts fill the gaps that it leaves empty. Members are
        looked for in the texts of these `gaps`, by default in all."""
        texts = dict.fromkeys(tuple(text or harmless for text in candidate) for harmless in HARMLESS)
        for insert, spans in map(self._joined, texts):
            if self._site.is_sound(insert, spans if gaps is None else [spans[gap] for gap in gaps]):
                return True
        return False

    def is_half(self, candidate: Candidate) -> bool:
        return self.offer is None and is_half(self._joined(candidate)[0], self._site.context)

    def sound_part(self, candidate: Candidate) -> Candidate:
        """The texts of a candidate that may stand in the text together; empty for the others. If it has only one text,
        a sound start of it."""
        if len(candidate) == 1:
            return (self._site.sound_start(candidate[0]),)
        kept, parts, trials = ("",) * len(candidate), [range(len(candidate))], 0
        while parts and (trials := trials + 1) <= MAX_TRIALS:
            part = parts.pop()
            more = tuple(candidate[gap] if gap in part else text for gap, text in enumerate(kept))
            if self.sound(more, part):
                kept = more
            elif len(part) > 1:  # the half that comes first is tried first
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        return kept

    @cached_property
    def _site(self) -> Site:
        """The span from the first gap to the last."""
        start, end = self.gaps[0].start, self.gaps[-1].end
        found = site(self.text, start, end, self.language, tree=self.tree, kind="span")
        harmless = [self._joined([text for _ in self.gaps])[0] for text in HARMLESS]
        return replace(found, harmless=harmless, offer=self.offer, is_checked=self.is_checked)

    def _joined(self, texts: Sequence[str]) -> tuple[str, list[Span]]:
        """The text from the first gap to the last with `texts` in the gaps, and their spans in it."""
        text, spans = self.put(texts)
        start, tail = self.gaps[0].start, len(self.text) - self.gaps[-1].end
        return text[start : len(text) - tail], [(first - start, last - start) for first, last in spans]

    def faults(self, candidate: Candidate) -> repair.SyntaxFaults:
        """The syntax faults of the text with `candidate` in its gaps; none without a tree."""
        tree = self.parsed(self.put(candidate)[0])
        return repair.faults(tree) if tree else repair.SyntaxFaults(0, 0)

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
