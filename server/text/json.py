"""The one scanner of JSON text: which value stands at which offset, also in a text that is broken or unfinished.

Plain JSON as json.loads takes it (without NaN), or relaxed: with comments and trailing commas, as JSONC has them. One
pass in linear time, without recursion. Offsets are code points. It is here because context, which looks for a
document's schema, may not import structured edits. Pure."""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

JsonKind = Literal["object", "array", "string", "number", "literal"]
JsonPath = tuple[str | int, ...]  # the keys and indices that lead to a value

_BLANKS = r"[ \t\n\r]*+"
_PLAIN = r'[^"\\\x00-\x1f]*+'
CHARACTERS = rf'{_PLAIN}(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{{4}}){_PLAIN})*+'  # of a string, without its quotes
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_COMMENT = r"//[^\n\r]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/"
# The last group is all that is no JSON: a string or a comment that is not closed is read whole, since starting again at
# each quote in it would take quadratic time; else one character.
_TOKEN = re.compile(
    rf'{_BLANKS}(?:("{CHARACTERS}")({_BLANKS}:)?|({_NUMBER}|true|false|null)|([{{\[])|([}}\]])|(,)|(:)|({_COMMENT})'
    rf'|("{CHARACTERS}|/\*.*|.)|\Z)',
    re.DOTALL,
)
_STRING, _KEY, _SCALAR, _OPEN, _CLOSE, _COMMA, _COLON, _REMARK, _OTHER = range(1, 10)  # a key: a string with its colon
LINE_END = re.compile("\r\n|[\n\r]")
SKIPPED = re.compile(rf"(?:[ \t\n\r]++|{_COMMENT})*+")  # blanks and comments

# Which tokens may come next
_VALUE, _FIRST, _ITEM, _MEMBER, _COLON_NEXT, _AFTER, _END = range(7)
_EXPECTED = {
    _VALUE: "a value is missing here",
    _FIRST: "a value or the closing bracket is missing here",
    _ITEM: "a value is missing after the comma",
    _MEMBER: "a key in double quotes is missing here",
    _COLON_NEXT: "the colon after a key is missing here",
    _AFTER: "a comma or the closing bracket is missing here",
    _END: "there is text after the end of the document",
}


class NotJson(Exception):
    """The text is not JSON. `offset` is where that shows; `what` says why, without a capital and a full stop."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset, self.what = offset, what


@dataclass
class JsonTree:
    """The values of a text in the order in which they begin: value 0 is the whole document.

    Lists by value: its `kinds`, where it `starts` and `ends`, its container in `parents` (-1: none), the span of its
    key in `keys`, and in `after` the first value after all that it contains. `comments` and trailing `commas` stand
    only in relaxed documents. `depth` is that of the deepest container.

    `open` are the containers that the text does not close, outermost first; they reach to its end. `pending` is the
    span of the last key while its value is missing. `fault` says where the text stops being JSON, even unfinished JSON:
    the tree has what stands before.
    """

    text: str
    kinds: list[JsonKind] = field(default_factory=list, repr=False)
    starts: list[int] = field(default_factory=list, repr=False)
    ends: list[int] = field(default_factory=list, repr=False)
    parents: list[int] = field(default_factory=list, repr=False)
    keys: list[tuple[int, int] | None] = field(default_factory=list, repr=False)
    after: list[int] = field(default_factory=list, repr=False)
    comments: list[tuple[int, int]] = field(default_factory=list, repr=False)
    commas: list[int] = field(default_factory=list, repr=False)
    depth: int = 0
    open: list[int] = field(default_factory=list)
    pending: tuple[int, int] | None = None
    wants: Literal["key", "value", ""] = ""  # next: a key, a value, or neither
    fault: NotJson | None = None

    @property
    def relaxed(self) -> bool:
        """True if the text is valid only as relaxed JSON."""
        return bool(self.comments or self.commas)

    def children(self, container: int) -> Iterator[int]:
        child = container + 1
        while child < self.after[container]:
            yield child
            child = self.after[child]

    def item_start(self, value: int) -> int:
        """Where a member or element begins: at its key if it has one."""
        key = self.keys[value]
        return self.starts[value] if key is None else key[0]

    def key(self, value: int) -> str | None:
        """The key of a member, without quotes and escapes."""
        span = self.keys[value]
        return None if span is None else self.decoded(span)

    def keys_of(self, container: int) -> Iterator[str]:
        """The keys of the members of a container."""
        return (self.decoded(span) for child in self.children(container) if (span := self.keys[child]) is not None)

    def decoded(self, span: tuple[int, int]) -> str:
        """The text of the string at a span, without quotes and escapes."""
        return decoded(self.text[span[0] : span[1]])

    def source(self, value: int) -> str:
        return self.text[self.starts[value] : self.ends[value]]

    def innermost(self, start: int, end: int) -> int:
        """The deepest container with start:end between its brackets; -1 where there is none."""
        value = bisect_right(self.starts, start) - 1
        while value >= 0 and not (
            self.kinds[value] in ("object", "array") and self.starts[value] < start and end < self.ends[value]
        ):
            value = self.parents[value]
        return value

    def path(self, value: int) -> JsonPath:
        """The keys and indices that lead to a value."""
        steps: list[str | int] = []
        while (parent := self.parents[value]) >= 0:
            key = self.key(value)
            steps.append(sum(1 for child in self.children(parent) if child < value) if key is None else key)
            value = parent
        return tuple(reversed(steps))

    def repeated(self, container: int) -> tuple[int, int] | None:
        """The span of the first key that an object has for the second time."""
        known = set[str]()
        for child in self.children(container):
            key = self.key(child)
            if key is not None:
                if key in known:
                    return self.keys[child]
                known.add(key)
        return None

    def covered(self, start: int, end: int) -> str:
        """The text of a span, with NUL instead of each character of a comment."""
        text = self.text[start:end]
        for first, last in self.comments:
            if start <= first < end:
                text = text[: first - start] + "\0" * (min(last, end) - first) + text[last - start :]
        return text

    def value(self, value: int = 0) -> Any:
        """The value as json.loads reads it. Raises ValueError for a number of more digits than Python reads."""
        start, end = self.starts[value], self.ends[value]
        pieces, done = list[str](), start
        for at, until in sorted([*self.comments, *((comma, comma + 1) for comma in self.commas)]):
            if start <= at < end:
                pieces.append(self.text[done:at])
                done = until
        return json.loads("".join([*pieces, self.text[done:end]]))


def decoded(string: str) -> str:
    """The text of a quoted string, without quotes and escapes."""
    return str(json.loads(string)) if "\\" in string else string[1:-1]


def read(text: str, *, relaxed: bool) -> JsonTree:
    """The values of a whole document. Raises NotJson."""
    tree = scan(text, relaxed=relaxed)
    if tree.fault:
        raise tree.fault
    if tree.open:
        where = line_column(text, tree.starts[tree.open[-1]])
        raise NotJson(len(text), f"the text ends before the bracket of {where} is closed")
    if not tree.kinds:
        raise NotJson(len(text), _EXPECTED[_VALUE])
    return tree


def scan(text: str, *, relaxed: bool) -> JsonTree:
    """The values of a text, up to its first fault; it may be unfinished."""
    tree = JsonTree(text)
    kinds, starts, ends, parents, keys, after = tree.kinds, tree.starts, tree.ends, tree.parents, tree.keys, tree.after
    parent, inside, state, key, comma = -1, "", _VALUE, None, -1  # comma: the one just before, in _MEMBER and _ITEM
    for match in _TOKEN.finditer(text):
        token = match.lastindex
        if token is None:
            break
        at = match.start(_STRING if token == _KEY else token)
        if token == _KEY and state == _MEMBER:
            key, state = match.span(_STRING), _VALUE
        elif token == _STRING and state == _MEMBER:
            key, state = match.span(_STRING), _COLON_NEXT
        elif token in (_STRING, _SCALAR, _OPEN) and state <= _ITEM:
            parents.append(parent)
            starts.append(at)
            ends.append(match.end())
            keys.append(key)
            key = None
            if token == _OPEN:
                parent, inside = len(kinds), text[at]
                tree.open.append(parent)
                kinds.append("object" if inside == "{" else "array")
                after.append(0)
                tree.depth = max(tree.depth, len(tree.open))
                state, comma = _MEMBER if inside == "{" else _FIRST, -1
            else:
                kinds.append("string" if token == _STRING else "literal" if text[at] in "tfn" else "number")
                after.append(len(kinds))
                state = _AFTER if inside else _END
        elif token == _CLOSE and (text[at] == "}") == (inside == "{") and _may_close(state, comma, relaxed):
            if state != _AFTER and comma >= 0:
                tree.commas.append(comma)
            ends[parent], after[parent] = match.end(), len(kinds)
            tree.open.pop()
            parent = parents[parent]
            inside = text[starts[parent]] if tree.open else ""
            state = _AFTER if inside else _END
        elif token == _COMMA and state == _AFTER:
            state, comma = _MEMBER if inside == "{" else _ITEM, at
        elif token == _COLON and state == _COLON_NEXT:
            state = _VALUE
        elif token == _REMARK and relaxed:
            tree.comments.append((at, match.end()))
        else:
            tree.fault = NotJson(at, _fault(token, text[at], state, comma))
            break
    for container in tree.open:
        ends[container], after[container] = len(text), len(kinds)
    tree.pending, tree.wants = key, "key" if state == _MEMBER else "value" if state <= _ITEM else ""
    return tree


def commented(text: str) -> bool:
    """True if there is a comment in a text, however broken the rest is."""
    return ("//" in text or "/*" in text) and any(match.lastindex == _REMARK for match in _TOKEN.finditer(text))


def repeats_key(text: str, spans: Sequence[tuple[int, int]]) -> bool:
    """True if a key that lies at least partly in one of the spans is in its object twice; False where the text cannot
    be read."""
    try:
        tree = read(text, relaxed=True)
    except NotJson:
        return False
    keys = [
        (tree.parents[value], decoded(text[start:end]), start, end)
        for value, (start, end) in enumerate(key or (0, 0) for key in tree.keys)
        if end
    ]
    counted = Counter(key[:2] for key in keys)
    return any(counted[key[:2]] > 1 and any(start < key[3] and key[2] < end for start, end in spans) for key in keys)


def _may_close(state: int, comma: int, relaxed: bool) -> bool:
    return state in (_AFTER, _FIRST) or (state in (_MEMBER, _ITEM) and (relaxed or comma < 0))


def _fault(token: int, mark: str, state: int, comma: int) -> str:
    """The reason why a token may not stand where it does."""
    if token == _OTHER and mark == '"':
        return "the string that begins here is not closed, or has a character that JSON does not allow"
    if token == _REMARK or (token == _OTHER and mark == "/"):
        return "JSON has no comments, or the comment that begins here is not closed"
    if token == _CLOSE and state in (_MEMBER, _ITEM) and comma >= 0:
        return "there is a comma too many before this bracket"
    return _EXPECTED[state]


def line_column(text: str, offset: int) -> str:
    """`line:column`, both from 1, the column in code points."""
    line, start = 1, 0
    for end in LINE_END.finditer(text, 0, offset):
        line, start = line + 1, end.end()
    return f"{line}:{offset - start + 1}"


def members(text: str, start: int, end: int) -> tuple[dict[str, int], bool]:
    """The keys of the object around `start`, each with the offset after its first colon, however broken the text is.
    Read before `end` only; True if that is as far as the object or the text goes."""
    found, depth = dict[str, int](), 0
    for match in _TOKEN.finditer(text, start, end):
        token = match.lastindex
        depth += (token == _OPEN) - (token == _CLOSE)
        if depth < 0:
            return found, True
        if token == _KEY and not depth:
            found.setdefault(decoded(match[_STRING]), match.end())
    return found, end >= len(text)


def member(text: str, key: str, end: int) -> str:
    """The string literal that is the value of a key in the object that a text begins with, however broken the rest is.
    Looked for before `end`; empty without one."""
    opening = next((found for found in _TOKEN.finditer(text, 0, end) if found.lastindex in (_OPEN, _CLOSE)), None)
    if opening is None or opening[_OPEN] != "{":
        return ""
    keys, _ = members(text, opening.end(), end)
    value = _TOKEN.match(text, SKIPPED.match(text, keys[key]).end()) if key in keys else None  # type: ignore[union-attr]
    return value[_STRING] if value and value.lastindex == _STRING else ""
