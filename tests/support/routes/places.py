"""Sixty files, each with a place to fill and the author's text for it, and eight stretches of typing.

A place follows from the text of its file alone, so no change of the server moves it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).parents[3]
TRUE_TEXT = ROOT / "tests" / "data" / "true_text.jsonl"  # files of other projects
OWN = ROOT / "tests" / "data" / "routes" / "files.txt"  # files of ours, whose holes are marked
STRETCHES = ROOT / "bench" / "typing_stretches"
MARKED = re.compile("«(.*?)»", re.DOTALL)
KEY = "sk-ant-api03-" + "Qw7Zr2Lm9Xk4Tv6Bn1Hs8Dp3" * 2  # looks like a key, and opens nothing
EACH, MORE = 2, {"python": 4, "javascript": 4, "typescript": 4}  # files of a language
APART = 200  # code points between two holes of a file, at least
LINE = re.compile(r"(?<=\n)[ \t]*(\w[^\n]{8,})")  # after its indentation
KINDS = (
    LINE,
    re.compile(r"(?<=\n)[ \t]+\w+\W+\w{2}(\w*[^\n]{6,})"),  # the end of a line
    re.compile(r"(?<=\n)([ \t]*)\S[^\n]*\n\1[ \t]+(\S[^\n]*(?:\n\1[ \t]+\S[^\n]*){1,4})(?=\n)"),  # deeper lines
    re.compile(r"(?<=\w)\(([^()\n]{4,})\)"),  # what is in the brackets of a line
)


@dataclass(frozen=True)
class Place:
    """`pieces`: text, the author's text of a hole, text, ..., text. The first hole is the place."""

    number: int
    name: str
    language: str
    pieces: tuple[str, ...]

    @property
    def before(self) -> str:
        return self.pieces[0]

    @property
    def truths(self) -> tuple[str, ...]:
        return self.pieces[1::2]

    @property
    def after(self) -> str:
        return "".join(self.pieces[2:])

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def marked(self) -> str:
        """The text with a marker in each hole."""
        return "<FILL>".join(self.pieces[::2])


def places() -> list[Place]:
    return [Place(number, *one) for number, one in enumerate([*_cut(), *_own()])]


def stretches() -> dict[str, dict[str, Any]]:
    """The first stretch of eight files, by its name; bench/typing_stretches/make.py says what its events mean."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(STRETCHES.glob("0[1-8]-*.json"))}


def _own() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for part in OWN.read_text("utf-8").split("=== ")[1:]:
        head, _, text = part.partition("\n")
        name, language = head.split()
        yield name, language, tuple(MARKED.split(text.replace('"KEY"', f'"{KEY}"')))


def _cut() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Places in the files of other projects, with two holes where the file has room."""
    counts = Counter[str]()
    for row in map(json.loads, TRUE_TEXT.read_text("utf-8").splitlines()):
        name, text = row["language"], row["text"]
        counts[name] += 1
        if counts[name] <= MORE.get(name, EACH):
            kind = KINDS[sum(counts.values()) % len(KINDS)]
            first = _choice(kind, text, 0, crc32(text.encode())) or _choice(LINE, text, 0, 0)
            assert first, "a file has a line"
            ends = [0, *first, *(_choice(LINE, text, first[1] + APART, 7) or ()), len(text)]
            yield f"{name}{counts[name]}{Path(row['path']).suffix}", name, tuple(text[a:b] for a, b in pairwise(ends))


def _choice(pattern: re.Pattern[str], text: str, at: int, draw: int) -> tuple[int, int] | None:
    """One of the matches that begin after `at`: the span of its last group."""
    found = list(pattern.finditer(text, at))
    return found[draw % len(found)].span(pattern.groups) if found else None
