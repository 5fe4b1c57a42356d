"""What a file defines, which names its pieces hold, and how a definition is shown in few lines. Pure.

By rules for text, not by a tree: most of these files are not open, so nobody has parsed them, and a definition's first
line is enough.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from caesura.recent import Recent
from caesura.server.context.secrets import masked

INDEXED = 16 << 20  # bytes of indexes kept: of all that neighbours.py looks at for one place, and more
COST = 12  # bytes that an index and its text take for each code point
CHUNK = 4, 10  # lines of a piece of a file, at least and at most
MAX_HEAD = 12  # lines of a definition's head

NAME = re.compile(r"[^\W\d]\w+")
COMMON = frozenset(  # names that say nothing of what a piece of code is about
    name
    for line in (
        "abstract and as assert async await bool boolean break case catch char class const continue def default del do",
        "elif else enum except export extends extern false False final finally float fn for from func function global",
        "go if impl implements import in include instanceof int interface is lambda let long loop match mod mut",
        "namespace new nil None not null number or override package pass private protected pub public raise readonly",
        "ref return self Self short signed sizeof static str string struct super switch template this This throw",
        "throws trait true True try type typedef typeof undefined union unsafe unsigned use using var virtual void",
        "while with yield",
    )
    for name in line.split()
)
_DEFINITIONS = {  # by family; the last group of a match that took part is the name. Of variables, only what is meant
    # for others: a script's own say nothing of the same names elsewhere.
    "python": r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)|^([A-Z]\w+)(?:[ \t]*:[^=\n]{1,80})?[ \t]*=(?!=)",
    "ecma": r"^[ \t]*(?:export[ \t]+)?(?:default[ \t]+)?(?:declare[ \t]+)?(?:abstract[ \t]+)?(?:async[ \t]+)?"
    r"(?:function\*?|class|interface|type|enum|namespace)[ \t]+(\w+)"
    r"|^export[ \t]+(?:const|let|var)[ \t]+(\w+)"
    r"|^[ \t]+(?:(?:public|private|protected|static|async|get|set|override)[ \t]+)*(\w+)[ \t]*\([^;\n]*\{[ \t]*$",
    "go": r"^func[ \t]+(?:\([^)\n]*\)[ \t]*)?(\w+)|^(?:type|var|const)[ \t]+(\w+)",
    "rust": r"^[ \t]*(?:pub(?:\([^)\n]*\))?[ \t]+)?(?:(?:async|const|unsafe)[ \t]+)*"
    r"(?:fn|struct|enum|union|trait|type|mod|static|const|macro_rules!)[ \t]+(\w+)",
    "c": r"^#[ \t]*define[ \t]+(\w+)|^[ \t]*(?:typedef[ \t]+)?(?:struct|enum|union|class|namespace)[ \t]+(\w+)"
    r"|^[A-Za-z_][\w:*&<>, \t]{0,100}?[ *&](\w+)[ \t]*\(",
}
_OTHERS = (  # the words of many languages, and methods that begin with what may be done with them
    r"^[ \t]*(?:[\w@]+[ \t]+){0,6}"
    r"(?:class|interface|enum|record|struct|trait|object|protocol|fun|func|function|def|module)[ \t]+(\w+)"
    r"|^[ \t]+(?:public|private|protected|internal|static|final|abstract|override|async|virtual)[ \t]+"
    r"[\w<>\[\], ?.\t]{0,100}?[ \t](\w+)[ \t]*\("
)
_FAMILIES = {
    **dict.fromkeys(("javascript", "javascriptreact", "typescript", "typescriptreact"), "ecma"),
    **dict.fromkeys(("c", "cpp", "objective-c"), "c"),
}


@dataclass(frozen=True)
class Index:
    """A file whose secrets are covered. `chunks` are half-open spans of lines that end at a blank line or before a
    definition where there is one in reach; `words` says in which chunks a name occurs; `sizes` are names a chunk;
    `definitions` says which lines define a name; `heads` are the indents of these lines, in their order."""

    lines: tuple[str, ...] = field(repr=False)
    chunks: tuple[tuple[int, int], ...] = field(repr=False)
    sizes: tuple[int, ...] = field(repr=False)
    words: dict[str, tuple[int, ...]] = field(repr=False)
    definitions: dict[str, tuple[int, ...]] = field(repr=False)
    heads: dict[int, int] = field(repr=False)


_kept = Recent[tuple[str, str], Index](INDEXED, lambda key, _: COST * len(key[0]))


def index(text: str, language: str) -> Index:
    """Kept by the text itself, so it is never stale, and a caller may prepare it on a thread. Lines are LSP's."""
    found = _kept.get((text, language))
    if found is None:
        found = _index(text, language)
        _kept.put((text, language), found)
    return found


def _index(text: str, language: str) -> Index:
    text = masked(text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = tuple(text.split("\n"))
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    found: dict[str, list[int]] = {}
    heads: dict[int, int] = {}
    for name, start in definitions(text, language):
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


def definitions(text: str, language: str) -> Iterator[tuple[str, int]]:
    """The names that a text defines, each with the offset of the line (or of its indentation) that does so."""
    for found in _pattern(family(language)).finditer(text):
        if len(name := found[found.lastindex or 0]) > 2 and name not in COMMON:
            yield name, found.start()


def family(language: str) -> str:
    """Languages of a family use each other's definitions."""
    return _FAMILIES.get(language, language)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@lru_cache
def _pattern(family: str) -> re.Pattern[str]:
    return re.compile(_DEFINITIONS.get(family, _OTHERS), re.MULTILINE)


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


# How a definition is shown: line numbers, what is worth most first

_CONSTRUCTOR = re.compile(r"\b(?:__init__|constructor|new|New\w*)\b")
_PRIVATE = re.compile(r"[ \t]*(?:\w+[ \t]+){0,3}(?:_\w+|#\w+)[ \t]*[(:=]|[ \t]*private\b")
_FIELD = re.compile(
    r"[ \t]*(?:(?:public|protected|readonly|static|pub|const|final)[ \t]+)*[A-Za-z]\w*\??[ \t]*[:=](?!=)"
)


def body(file: Index, start: int, wanted: dict[str, float], *, constructed: bool = True) -> tuple[int, ...]:
    """The head of a definition with its fields and its members' heads, or with its first lines where it has no members.
    Constructors come first where something may be `constructed`, else among the other members."""
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
    """The lines at a depth that give a name a value or a type, and are not part of a docstring."""
    prose = False
    for number in numbers:
        line = file.lines[number]
        if not prose and indent(line) == depth and _FIELD.match(line):
            yield number
        prose ^= (line.count('"""') + line.count("'''")) % 2 == 1


def by_use(file: Index, numbers: Sequence[int], wanted: dict[str, float]) -> Iterator[int]:
    """The heads at these lines: those first that share most with the code near the cursor, private ones last. What
    many of them share counts little."""
    names = {number: set(NAME.findall(file.lines[number])) for number in numbers}
    shared = Counter(name for of_one in names.values() for name in of_one)

    def rank(number: int) -> tuple[bool, float, int]:
        use = sum(wanted.get(name, 0.0) / shared[name] for name in sorted(names[number]))
        return bool(_PRIVATE.match(file.lines[number])), -use, number

    return _heads(file, sorted(numbers, key=rank))


def _heads(file: Index, numbers: Iterable[int]) -> Iterator[int]:
    return (line for number in numbers for line in _head(file, number))


def _head(file: Index, number: int) -> range:
    """The lines of a definition up to the end of its parameters."""
    depth, end = 0, number
    while end < min(len(file.lines), number + MAX_HEAD):
        line = file.lines[end]
        depth += sum(line.count(mark) for mark in "([") - sum(line.count(mark) for mark in ")]")
        end += 1
        if depth <= 0:
            break
    return range(number, end)
