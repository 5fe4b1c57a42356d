"""An index of a file: its definitions, the names in its chunks, and the lines that show a definition briefly. Pure.

The index uses patterns instead of a syntax tree: most of these files are not open, so they are not parsed, and a
definition's first line is enough.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from caesura.recent import Recent
from caesura.server.context.secrets import masked
from caesura.server.languages import COMMON, language

INDEXED = 16 << 20  # bytes of cached indexes: more than neighbours.py needs for one place
COST = 12  # bytes of an index and its text per code point of the text
CHUNK = 4, 10  # lines of a chunk: fewest, most
MAX_HEAD = 12  # most lines of a definition's head

NAME = re.compile(r"[^\W\d]\w+")


@dataclass(frozen=True)
class Index:
    """The index of a file, with its secrets masked. `chunks` are half-open spans of lines that end at a blank line or
    before a definition if one is near. `words` maps a name to the chunks with it, `definitions` to the lines that
    define it. `sizes` counts the names of each chunk. `heads` maps each defining line to its indent, in their order."""

    lines: tuple[str, ...] = field(repr=False)
    chunks: tuple[tuple[int, int], ...] = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)
    words: dict[str, tuple[int, ...]] = field(repr=False)
    definitions: dict[str, tuple[int, ...]] = field(repr=False)
    heads: dict[int, int] = field(repr=False)


_kept = Recent[tuple[str, str], Index](INDEXED, lambda key, _: COST * len(key[0]))


def index(text: str, language_id: str) -> Index:
    """The index of a text, cached by the text itself: it is never stale, and a thread may prepare it. Lines are
    LSP's."""
    found = _kept.get((text, language_id))
    if found is None:
        found = _index(text, language_id)
        _kept.put((text, language_id), found)
    return found


def _index(text: str, language_id: str) -> Index:
    text = masked(text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = tuple(text.split("\n"))
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    found: dict[str, list[int]] = {}
    heads: dict[int, int] = {}
    for name, start in definitions(text, language_id):
        line = bisect_right(starts, start) - 1
        found.setdefault(name, []).append(line)
        heads[line] = indent(lines[line])
    chunks = tuple(_chunks(lines, heads))
    names = [set(NAME.findall(text[starts[start] : starts[end]])) - COMMON for start, end in chunks]
    words: dict[str, list[int]] = {}
    for number, chunk in enumerate(names):
        for name in chunk:
            words.setdefault(name, []).append(number)
    return Index(
        lines,
        chunks,
        tuple(len(chunk) for chunk in names),
        {name: tuple(numbers) for name, numbers in words.items()},
        {name: tuple(places) for name, places in found.items()},
        heads,
    )


def definitions(text: str, language_id: str) -> Iterator[tuple[str, int]]:
    """The names that a text defines, each with the offset of its line."""
    for found in re.finditer(language(language_id).definitions, text, re.MULTILINE):
        if len(name := found[found.lastindex or 0]) > 2 and name not in COMMON:
            yield name, found.start()


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _chunks(lines: Sequence[str], heads: dict[int, int]) -> Iterator[tuple[int, int]]:
    start = 0
    for number, line in enumerate(lines):
        size = number - start
        if size >= CHUNK[1] or (size >= CHUNK[0] and (number in heads or not line.strip())):
            yield start, number
            start = number
        if start == number and not line.strip():
            start += 1  # no chunk begins with a blank line
    if start < len(lines):
        yield start, len(lines)


# The lines that show a definition, as line numbers, the most useful first

_CONSTRUCTOR = re.compile(r"\b(?:__init__|constructor|new|New\w*)\b")
_PRIVATE = re.compile(r"[ \t]*(?:\w+[ \t]+){0,3}(?:_\w+|#\w+)[ \t]*[(:=]|[ \t]*private\b")
_FIELD = re.compile(
    r"[ \t]*(?:(?:public|protected|readonly|static|pub|const|final)[ \t]+)*[A-Za-z]\w*\??[ \t]*[:=](?!=)"
)


def body(file: Index, start: int, wanted: dict[str, float], *, constructed: bool = True) -> tuple[int, ...]:
    """The head of a definition, then its fields and its members' heads, or all its lines if it has fewer than two
    members. Constructors come first if something may be `constructed`; else they are ordinary members, and each member
    is one line."""
    end = start + 1
    while end < len(file.lines) and (not (line := file.lines[end]).strip() or indent(line) > file.heads[start]):
        end += 1
    if end < len(file.lines) and file.lines[end].lstrip()[0] in ")]}":
        end += 1
    inner = {number: file.heads[number] for number in range(start + 1, end) if number in file.heads}
    least = min(inner.values(), default=0)
    members = [number for number, depth in inner.items() if depth == least]
    if len(members) > 1:
        fields = _fields(file, range(start + 1, members[0]), least)
        first = [number for number in members if constructed and _CONSTRUCTOR.search(file.lines[number])]
        others = [number for number in members if number not in first]
        heads = by_use(file, others, wanted)
        return (start, *_heads(file, first), *fields, *(heads if constructed else (n for n in heads if n in others)))
    return tuple(number for number in range(start, end) if file.lines[number].strip())


def _fields(file: Index, numbers: Iterable[int], depth: int) -> Iterator[int]:
    """The lines at this depth, outside of docstrings, that give a name a value or a type."""
    prose = False
    for number in numbers:
        line = file.lines[number]
        if not prose and indent(line) == depth and _FIELD.match(line):
            yield number
        prose ^= (line.count('"""') + line.count("'''")) % 2 == 1


def by_use(file: Index, numbers: Sequence[int], wanted: dict[str, float]) -> Iterator[int]:
    """The lines of the heads at `numbers`, those that share most names with the code near the cursor first, private
    ones last. A name that many heads share counts little."""
    names = {number: set(NAME.findall(file.lines[number])) for number in numbers}
    shared = Counter(name for of_one in names.values() for name in of_one)

    def rank(number: int) -> tuple[bool, float, int]:
        use = sum(wanted.get(name, 0.0) / shared[name] for name in sorted(names[number]))
        return bool(_PRIVATE.match(file.lines[number])), -use, number

    return _heads(file, sorted(numbers, key=rank))


def _heads(file: Index, numbers: Iterable[int]) -> Iterator[int]:
    return (line for number in numbers for line in _head(file, number))


def _head(file: Index, number: int) -> range:
    """The lines of a definition, up to the end of its parameters."""
    depth, end = 0, number
    while end < min(len(file.lines), number + MAX_HEAD):
        line = file.lines[end]
        depth += sum(line.count(mark) for mark in "([") - sum(line.count(mark) for mark in ")]")
        end += 1
        if depth <= 0:
            break
    return range(number, end)
