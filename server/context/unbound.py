"""The name that the lines after an empty line read and that nothing binds: most likely the line binds it. Pure."""

import re
from collections.abc import Iterator
from functools import cached_property

import tree_sitter

from caesura import wire
from caesura.server.context.scopes import Code, Definition, Extent, LexicalScope, Read, Scopes
from caesura.server.languages import Language, query
from caesura.server.names import NameRules

LINES = 12  # after the hole, which may read the name
BEFORE, AFTER = 40_000, 10_000  # bytes around the hole in which definitions and reads are searched
OTHERS = 32  # other occurrences of a name, the nearest, that tell whether something unseen binds it
LONGEST = 64  # characters of a name

_BLANK = re.compile(r"[ \t]*(?=[\r\n]|$)")
_LINE = re.compile(r"([ \t]*)(\S?)[^\r\n]*(?:\r\n|\r|\n|$)")
_HOISTED = ("function", "type", "import", "wide")


def missing(
    text: str, start: int, language: Language, tree: tree_sitter.Tree | None, end: int | None = None
) -> wire.Missing | None:
    """The name that a fill of the hole `start:end` most likely binds; None unless the hole is alone on its line."""
    end, row = start if end is None else end, language.names
    if row is None or tree is None or query(language) is None:
        return None
    stop = _window(text, start, end)
    if stop == end:
        return None
    code = Code(text.encode(), tree, language)
    first = len(text[:start].encode())
    hole = Extent(first, first + len(text[start:end].encode()))
    window = Extent(hole.end, hole.end + len(text[end:stop].encode()))
    name = next(_unbound(code, hole, window, row), None)
    return _missing(name, row) if name else None


def _window(text: str, start: int, end: int) -> int:
    """The end of the lines that may read a name which the hole binds; `end` if there are none. If the first is indented
    more than the hole, the hole is no statement of its own."""
    indent = start - max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) - 1
    blank = _BLANK.match(text, end)
    if text[start - indent : start].strip(" \t") or not blank:
        return end
    stop, left = end, LINES
    for line in _LINE.finditer(text, blank.end(), end + AFTER):
        if line[2]:
            depth, left = len(line[1]), left - 1
            if depth < indent or left < 0 or (stop == end and depth > indent):
                break
            stop = line.end()
    return stop


def _missing(name: str, row: NameRules) -> wire.Missing | None:
    if len(name) > LONGEST or not name.isascii():  # `\w` and `\b` of RE2 know ASCII alone
        return None
    starts = tuple(start.replace("NAME", name) for start in row.starts)
    return wire.Missing(name=name, starts=starts, pattern=row.pattern.replace("NAME", re.escape(name)))


def _unbound(code: Code, hole: Extent, window: Extent, row: NameRules) -> Iterator[str]:
    """The names that are read in the window and that only the hole can bind, in their order."""
    block = code.block(window)
    reads = [read for read in code.reads(window) if row.is_variable(read.name)] if block else []
    if not block or not reads:
        return
    place = _Place(code, hole, block, row)
    names: dict[str, _Name] = {}
    for read in reads:
        name = names.setdefault(read.name, _Name(read.name, place))
        if place.serves(read) and not name.is_bound(read) and not name.is_unseen:
            yield read.name


class _Place:
    """A hole in a block. The nodes after a hole tell its place: those before it grow into it until the next parse."""

    def __init__(self, code: Code, hole: Extent, block: Extent, row: NameRules) -> None:
        self.code, self.hole, self.hoists = code, hole, row.hoists
        self.has_wildcard = code.has_wildcard
        self.searched = Extent(max(0, hole.start - BEFORE), hole.end + AFTER)
        self.scopes = Scopes(code, self.searched)
        self.path = self.scopes.around(Extent(min(hole.start, block.start), block.end))

    def serves(self, read: Read) -> bool:
        """True if a read sees what the hole binds."""
        path, owner = self.scopes.around(read), self.path[0]
        if owner not in path:
            return False
        later = _runs_later(path, owner)
        return not later if owner.kind == "class" else later or read.start >= self.hole.end


class _Name:
    """A name and what binds it besides the hole."""

    def __init__(self, name: str, place: _Place) -> None:
        self._name, self._place = name, place

    @cached_property
    def _definitions(self) -> list[Definition]:
        return [one for one in self._place.scopes.definitions(self._name) if one not in self._place.hole]

    def is_bound(self, read: Read) -> bool:
        path = self._place.scopes.around(read)
        return any(self._holds(definition, read, path) for definition in self._definitions)

    def _holds(self, definition: Definition, read: Read, path: tuple[LexicalScope, ...]) -> bool:
        """True if a read, in these scopes, sees a definition."""
        return definition.owner in path and (
            definition.start < read.start
            or (self._place.hoists and definition.kind in _HOISTED)
            or definition.owner not in self._place.path
            or _runs_later(path, definition.owner)
        )

    @cached_property
    def is_unseen(self) -> bool:
        """True if something unseen may bind the name: a wildcard import may, or the name occurs outside of the searched
        text, or a read that the hole cannot serve is unbound too."""
        place, name = self._place, re.escape(self._name)
        if place.has_wildcard:
            return True
        word = re.compile(rf"{name}(?<![\w$]{name})(?![\w$])".encode())  # letters first: `re` looks for them fast
        found = [Extent(*match.span()) for match in word.finditer(place.code.source)]
        if any(one not in place.searched for one in found):
            return True
        found = [one for one in found if one not in place.hole]
        near = sorted(found, key=lambda one: abs(one.start - place.hole.start))[:OTHERS]
        return any(place.code.is_broken(one) or any(map(self._is_elsewhere, place.code.reads(one))) for one in near)

    def _is_elsewhere(self, read: Read) -> bool:
        return not self._place.serves(read) and not self.is_bound(read)


def _runs_later(path: tuple[LexicalScope, ...], owner: LexicalScope) -> bool:
    """True if a read in these scopes runs later than the code of one of them."""
    return any(scope.kind == "function" for scope in path[: path.index(owner)])
