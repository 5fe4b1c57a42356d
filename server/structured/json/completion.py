"""Completion of JSON at the cursor, also in an unfinished document.

The text before the cursor tells which containers are open, and whether a key or a value comes next. From the text after
it, only the next mark, the rest of an open string and the keys of the same object are read. Pure."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Literal

from caesura import wire
from caesura.schema.document import Schema
from caesura.server import languages
from caesura.server.structured.json.checks import repeats
from caesura.server.structured.json.holes import Grammars
from caesura.server.structured.json.layout import BLANK, STEP, Style, begins_line, indent_at, marks
from caesura.server.structured.json.siblings import joined
from caesura.server.structured.offer import NoOffer, Offer, words
from caesura.server.text.json import (
    CHARACTERS,
    LINE_END,
    SKIPPED,
    JsonPath,
    JsonTree,
    commented,
    line_column,
    members,
    scan,
)

MAX_BEFORE = 200_000  # most code points before the cursor; with more there is no completion
MAX_AFTER = 20_000  # code points after the cursor that are searched for keys of the open object
MAX_DEPTH = 500  # most nested containers
MAX_STRING = 4096  # most code points of a string on each side of the cursor
MAX_WORD = 400  # most code points of a number

_WORD = re.compile(r"[-+.0-9A-Za-z]+\Z")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][-+]?[0-9]*)?)?")  # the start of a number
_STRING = re.compile(rf'"{CHARACTERS}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?')  # the start of a string
_STRING_END = re.compile(rf'{CHARACTERS}"')
_KEY = re.compile(rf'"{CHARACTERS}"[ \t]*:')
_BLANKS = re.compile(r"[ \t\n\r]*+")


def completion(text: str, offset: int, *, language: str, schema: Schema | None = None) -> Offer | None:
    """An edit with one hole at the cursor; None if nothing may follow there: in a comment, after a whole value, before
    other text on the line, or far into a large document."""
    if offset > MAX_BEFORE:
        return None
    with suppress(NoOffer):  # the place lies too deep in its schema
        row = languages.language(language)
        if row.lines:
            return _of_line(text, offset, schema)
        return _complete(text, offset, schema, relaxed=row.comment is not None or commented(text[: offset + MAX_AFTER]))
    return None


def _of_line(text: str, offset: int, schema: Schema | None) -> Offer | None:
    begin = text.rfind("\n", 0, offset) + 1
    found = LINE_END.search(text, offset)
    line = text[begin : found.start() if found else len(text)]
    offer = _complete(line, offset - begin, schema, lines=True)
    return offer and replace(offer, start=offset, end=offset, check=_check_line(text, offset))


def _complete(
    text: str, offset: int, schema: Schema | None, *, relaxed: bool = False, lines: bool = False
) -> Offer | None:
    word = _WORD.search(text, max(0, offset - MAX_WORD), offset)
    before = scan(text[: word.start() if word else offset], relaxed=relaxed)
    string = _open_string(before)
    if before.depth > MAX_DEPTH or _in_comment(before) or (before.fault and string is None):
        return None
    typed, keyed, quoted = (string or "") + (word[0] if word else ""), before.wants == "key", string is not None
    if not before.wants or not (not typed if keyed and not quoted else _grows(typed)):
        return None
    after = _After(text, offset, relaxed=relaxed, quoted=quoted)
    if len(typed) > MAX_STRING or len(after.then) > MAX_STRING:
        return None
    if (keyed and not after.whole) or (not before.open and after.item):
        return None
    if not after.free or (not typed and not before.pending and _leaves_line(text, offset)):
        return None
    start: Literal["value", "members", "key"] = (
        "value" if not keyed else "key" if after.pairs or after.then else "members"
    )
    grammars, layout = Grammars(schema), _layout(text, offset - len(typed), before, lines)
    level = None if layout.indent is None or start == "key" else layout.level + (bool(before.open) and not keyed)
    at = grammars.at(_path(before))
    taken = list(dict.fromkeys([*before.keys_of(before.open[-1]), *after.keys])) if keyed else []
    hole = grammars.hole(layout, level, at, start=start, typed=typed, then=after.then, taken=taken, most=1)
    if isinstance(hole.grammar, wire.Json) and len(hole.grammar.taken) < len(taken):
        return None  # a key could be a duplicate, and no later check would find it
    lead = layout.colon.partition(":")[2] if text[offset - 1 : offset] == ":" and not typed else ""
    return Offer(
        "Complete",
        offset,
        offset,
        joined([wire.Text(lead), hole, wire.Text("," if after.item else "")]),
        grammars.schemas,
        part=partial(_part, typed=typed, keyed=keyed, inside=bool(after.then), colon=layout.colon),
        check=_check(text, offset, before.relaxed),
        level="valid" if grammars.exact else "checked",
    )


def _open_string(before: JsonTree) -> str | None:
    """The open string at the end of a text, if a string may stand there."""
    if before.fault is None or not before.wants:
        return None
    found = _STRING.fullmatch(before.text, before.fault.offset)
    return found and found[0]


def _in_comment(before: JsonTree) -> bool:
    """True if a text ends in a comment that only a line end closes."""
    start, end = before.comments[-1] if before.comments else (0, 0)
    return bool(end) and end == len(before.text) and before.text[start + 1] == "/"


def _path(before: JsonTree) -> JsonPath:
    """The path of the value that comes at the end of a text; if a key comes there, the path of its object."""
    if not before.open:
        return ()
    inner = before.open[-1]
    path = before.path(inner)
    if before.wants == "key":
        return path
    return (*path, sum(1 for _ in before.children(inner)) if before.pending is None else before.decoded(before.pending))


def _part(text: str, end: int, *, typed: str, keyed: bool, inside: bool, colon: str) -> str:
    """The part of a completion up to `end` that may stand alone: a key with its colon, or whole words `inside` of a
    string that ends after the cursor."""
    if not keyed:
        return words(text, end) if inside else ""
    key = _KEY.match(typed + text)
    if key is None or end < (colon_at := key.end() - len(typed)):
        return ""
    return text[: min(end, colon_at - 1 + len(colon.lstrip()))]


def _check(text: str, offset: int, relaxed: bool) -> Callable[[str], str | None]:
    """The check of a document that may be unfinished: a fault must come after the inserted text, and no key may come
    twice."""
    old = cache(partial(scan, text, relaxed=relaxed))

    def check(new: str) -> str | None:
        tree, end = scan(new, relaxed=relaxed), offset + len(new) - len(text)
        if tree.fault and tree.fault.offset < end:
            return f"The document would be broken at {line_column(new, tree.fault.offset)}: {tree.fault.what}."
        return repeats(tree, offset, end, [old()])

    return check


def _check_line(text: str, offset: int) -> Callable[[str], str | None]:
    """The check of the edited line, if each line is a document."""
    begin = text.rfind("\n", 0, offset) + 1
    rest = len(text) - found.start() if (found := LINE_END.search(text, offset)) else 0
    check = _check(text[begin : len(text) - rest], offset - begin, False)
    return lambda new: check(new[begin : len(new) - rest])


def _grows(typed: str) -> bool:
    """True if the typed start of a value can be continued."""
    words = ("true", "false", "null")
    if typed.startswith('"'):
        return _STRING.fullmatch(typed) is not None
    return _NUMBER.fullmatch(typed) is not None or any(one.startswith(typed) and one != typed for one in words)


class _After:
    """The text after the cursor. `then`: the rest of an open string; `pairs`: a colon follows; `item`: another item
    follows, without a comma; `free`: no item follows on the same line. `keys`: the keys found in the same object;
    `whole`: these are all of them."""

    def __init__(self, text: str, offset: int, *, relaxed: bool, quoted: bool) -> None:
        line = text[offset : found.start() if (found := LINE_END.search(text, offset)) else len(text)]
        self.then = ""
        if quoted and line.replace("\\\\", "").replace('\\"', "").count('"') % 2:  # one ends it
            self.then = found[0] if (found := _STRING_END.match(line)) else ""
        at = offset + len(self.then)
        at = (SKIPPED if relaxed else _BLANKS).match(text, at).end()  # type: ignore[union-attr]
        mark = text[at : at + 1]
        self.pairs, self.item = mark == ":", mark not in ("", ",", ":", "}", "]") and not self.then
        self.free = not self.item or at > offset + len(line)
        self.keys, self.whole = members(text, at, min(len(text), at + MAX_AFTER))

    def __repr__(self) -> str:
        return f"<After {self.then!r} and {len(self.keys)} keys>"


def _leaves_line(text: str, offset: int) -> bool:
    """True if the next item seems to belong on the next line: a line that is not blank ends here."""
    found = LINE_END.search(text, offset)
    if begins_line(text, offset) or found is None:
        return False
    return not text[offset : found.start()].strip()


def _layout(text: str, start: int, before: JsonTree, lines: bool) -> Style:
    """The layout that the text before the cursor shows. `start` is the offset of the item or value."""
    found = LINE_END.search(text)
    base = indent_at(text, before.starts[before.open[-1]]) if before.open else ""
    line = indent_at(text, start)
    indent: str | None = None if found is None and text.strip() else STEP
    if before.open:
        indent = line[len(base) :] if line.startswith(base) and line != base else None
    level = len(base) // len(indent) if indent else 0
    if lines or (indent is not None and (base != indent * level or len(indent) > BLANK)):
        indent, level = None, 0
    newline = found[0] if found else "\n"
    return Style(indent, level, base, None, *marks(before), newline, "")  # type: ignore[arg-type]
