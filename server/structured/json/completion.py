"""What may be typed next in JSON, also in a document that is not finished: read from what stands before the cursor.

The brackets that are open there say whether a key or a value is wanted; of what stands behind only the next mark, the
rest of an open string, and the keys of the same object are looked at. Pure."""

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from caesura import wire
from caesura.schema.document import Schema
from caesura.server.structured.json.holes import Grammars
from caesura.server.structured.json.siblings import joined
from caesura.server.structured.offer import NoOffer, Offer, words
from caesura.server.text.json import (
    BLANK,
    CHARACTERS,
    CLOSE,
    COLON,
    COMMA,
    COMMENT,
    KEY,
    LINE_END,
    OPEN,
    OTHER,
    QUOTED,
    REMARK,
    SCALAR,
    TOKEN,
    Broken,
    Style,
    begins_line,
    decoded,
    indent_at,
    place,
    read,
)

MAX_BEFORE = 200_000  # code points before the cursor; with more there is no completion
MAX_BEHIND = 20_000  # code points behind it in which the keys of the open object are looked for
MAX_DEPTH = 500  # open brackets
MAX_STRING = 4096  # code points of a string on either side of the cursor
MAX_WORD = 400  # code points of a number
SAMPLE = 500  # colons and commas that the layout is taken from

_WORD = re.compile(r"[-+.0-9A-Za-z]+\Z")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][-+]?[0-9]*)?)?")  # begun
_STRING = re.compile(rf'"{CHARACTERS}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?')  # begun
_STRING_END = re.compile(rf'{CHARACTERS}"')
_KEY = re.compile(rf'"{CHARACTERS}"[ \t]*:')
_BLANKS = re.compile(r"[ \t\n\r]*+")
_SKIPPED = re.compile(rf"(?:[ \t\n\r]++|{COMMENT})*+")


@dataclass
class _Bracket:
    """An open bracket: the keys in it so far, the current one, and how many items are complete."""

    mark: str
    at: int
    keys: list[str] = field(default_factory=list)
    key: str = ""
    index: int = 0


class _Before:
    """What is open at the end of a text. `last` is the mark before: a bracket, ":", ",", "key" or "value". `string` is
    where an open string begins, -1: none. `sound`: it can become JSON, as far as that was looked at."""

    def __init__(self, text: str, relaxed: bool) -> None:
        self.text = text
        self.open: list[_Bracket] = []
        self.last, self.string, self.sound = "", -1, True
        self.blanks = Counter[str]()  # around colons and commas
        self._scan(relaxed)

    def __repr__(self) -> str:
        return f"<Before {''.join(bracket.mark for bracket in self.open)} {self.last}>"

    def _scan(self, relaxed: bool) -> None:
        text, before, seen, blanks = self.text, "", 0, self.blanks
        for match in TOKEN.finditer(text):
            token = match.lastindex
            if token is None:
                return
            at = match.start(QUOTED if token == KEY else token)
            if before and seen < SAMPLE:
                blanks[before + text[match.start() : at]] += 1
                seen += 1
            before = ""
            if token in (QUOTED, KEY) and self.wants == "key":
                self.open[-1].key = decoded(match[QUOTED])
                self.open[-1].keys.append(self.open[-1].key)
                self.last, before = (":", match[KEY]) if token == KEY else ("key", "")
            elif token == KEY:
                break
            elif token in (QUOTED, SCALAR):
                self.last = "value"
            elif token == OPEN and len(self.open) < MAX_DEPTH:
                self.open.append(_Bracket(text[at], at))
                self.last = text[at]
            elif token == CLOSE:
                if not self.open or (self.open.pop().mark == "{") != (text[at] == "}"):
                    break
                self.last = "value"
            elif token == COMMA and self.open:
                self.open[-1].index += 1
                self.last, before = ",", text[match.start() : at + 1]
            elif token == COLON:
                self.last = ":"
            elif token == OTHER and text[at] == '"' and _STRING.fullmatch(text, at):
                self.string = at
                return
            elif token != REMARK or not relaxed or (match.end() == len(text) and text[at + 1] == "/"):
                break
        else:
            return
        self.sound = False

    def usual(self, mark: str) -> str | None:
        """What mostly stands between a key and its value (":"), between items on one line (",")."""
        found = {one: count for one, count in self.blanks.items() if len(one) <= BLANK and one.strip(" \t") == mark}
        return max(found, key=found.__getitem__, default=None)

    @property
    def wants(self) -> str:
        """What may follow: a "key", a "value", or nothing."""
        if not self.open:
            return "value" if not self.last else ""
        if self.last == ":":
            return "value" if self.open[-1].mark == "{" else ""
        if self.last in (self.open[-1].mark, ","):
            return "key" if self.open[-1].mark == "{" else "value"
        return ""


def completion(text: str, offset: int, *, language: str, schema: Schema | None = None) -> Offer | None:
    """An edit with one hole at a cursor; None where nothing is to be said: in a comment, behind a whole value, before
    what stands already, or far into a large document."""
    with suppress(NoOffer):  # of a place that lies too deep in its schema
        if language == "jsonl":
            return _of_line(text, offset, schema)
        return _complete(text, offset, schema, relaxed=language == "jsonc")
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
    if offset > MAX_BEFORE:
        return None
    word = _WORD.search(text, max(0, offset - MAX_WORD), offset)
    before = _Before(text[: word.start() if word else offset], relaxed)
    typed, wants, quoted = word[0] if word else "", before.wants, before.string >= 0
    if quoted:
        typed = before.text[before.string :] + typed
    if not before.sound or not wants or not (_grows(typed) if wants == "value" or quoted else not typed):
        return None
    behind = _Behind(text, offset, relaxed=relaxed, quoted=quoted)
    if len(typed) > MAX_STRING or len(behind.then) > MAX_STRING:
        return None
    if (wants == "key" and not behind.whole) or (not before.open and behind.item):
        return None
    if not behind.free or (not typed and before.last != ":" and _leaves_line(text, offset)):
        return None
    keyed = wants == "key"
    start: Literal["value", "members", "key"] = (
        "value" if not keyed else "key" if behind.pairs or behind.then else "members"
    )
    grammars, layout = Grammars(schema), _layout(text, offset - len(typed), before, lines)
    level = None if layout.indent is None or start == "key" else layout.level + (bool(before.open) and not keyed)
    path = [bracket.key if bracket.mark == "{" else bracket.index for bracket in before.open]
    at = grammars.at(path[:-1] if keyed else path)
    taken = list(dict.fromkeys([*before.open[-1].keys, *behind.keys])) if keyed else []
    hole = grammars.hole(layout, level, at, start=start, typed=typed, then=behind.then, taken=taken, most=1)
    if isinstance(hole.grammar, wire.Json) and len(hole.grammar.taken) < len(taken):
        return None  # nobody looks at a suggestion again: a key could stand twice
    lead = layout.colon.partition(":")[2] if text[offset - 1 : offset] == ":" and not typed else ""
    return Offer(
        "Complete",
        offset,
        offset,
        joined([wire.Text(lead), hole, wire.Text("," if behind.item else "")]),
        grammars.schemas,
        part=partial(_part, typed=typed, keyed=keyed, inside=bool(behind.then), colon=layout.colon),
        check=_check(text, offset, relaxed),
        level="valid" if grammars.exact else "checked",
    )


def _part(text: str, end: int, *, typed: str, keyed: bool, inside: bool, colon: str) -> str:
    """The key of a member with its colon, or words `inside` of a string that ends behind the cursor."""
    if not keyed:
        return words(text, end) if inside else ""
    key = _KEY.match(typed + text)
    if key is None or end < (colon_at := key.end() - len(typed)):
        return ""
    return text[: min(end, colon_at - 1 + len(colon.lstrip()))]


def _check(text: str, offset: int, relaxed: bool) -> Callable[[str], str | None]:
    """The document may be unfinished: its fault must not be in what was written, or before."""

    def check(new: str) -> str | None:
        try:
            read(new, relaxed=relaxed)
        except Broken as fault:
            if fault.offset < offset + len(new) - len(text):
                return f"The document would be broken at {place(new, fault.offset)}: {fault.what}."
        return None

    return check


def _check_line(text: str, offset: int) -> Callable[[str], str | None]:
    """Of a document whose lines are documents."""
    begin = text.rfind("\n", 0, offset) + 1
    behind = len(text) - found.start() if (found := LINE_END.search(text, offset)) else 0
    check = _check(text[begin : len(text) - behind], offset - begin, False)
    return lambda new: check(new[begin : len(new) - behind])


def _grows(typed: str) -> bool:
    """Whether more can follow what was typed of a value."""
    words = ("true", "false", "null")
    if typed.startswith('"'):
        return _STRING.fullmatch(typed) is not None
    return _NUMBER.fullmatch(typed) is not None or any(one.startswith(typed) and one != typed for one in words)


class _Behind:
    """What stands behind the cursor. `then`: the rest of its string; `pairs`: a colon follows; `item`: what
    follows is another item, with no comma before it; `free`: not on the same line. `keys`: those of
    the same object, as far as can be read; `whole`: they were looked for up to where that ends."""

    def __init__(self, text: str, offset: int, *, relaxed: bool, quoted: bool) -> None:
        line = text[offset : found.start() if (found := LINE_END.search(text, offset)) else len(text)]
        self.then = ""
        if quoted and line.replace("\\\\", "").replace('\\"', "").count('"') % 2:  # one of them ends the string
            self.then = found[0] if (found := _STRING_END.match(line)) else ""
        at = offset + len(self.then)
        at = (_SKIPPED if relaxed else _BLANKS).match(text, at).end()  # type: ignore[union-attr]
        mark = text[at : at + 1]
        self.pairs, self.item = mark == ":", mark not in ("", ",", ":", "}", "]") and not self.then
        self.free = not self.item or at > offset + len(line)
        self.whole = True
        self.keys = self._keys(text, at)

    def __repr__(self) -> str:
        return f"<Behind {self.then!r} and {len(self.keys)} keys>"

    def _keys(self, text: str, at: int) -> list[str]:
        keys, depth, end = list[str](), 0, min(len(text), at + MAX_BEHIND)
        for match in TOKEN.finditer(text, at, end):
            token = match.lastindex
            depth += (token == OPEN) - (token == CLOSE)
            if token in (None, OTHER) or depth < 0:
                return keys
            if token == KEY and not depth:
                keys.append(decoded(match[QUOTED]))
        self.whole = end == len(text)
        return keys


def _leaves_line(text: str, offset: int) -> bool:
    """Whether the next item stands on the next line, as far as it shows: a line that is not blank ends here."""
    found = LINE_END.search(text, offset)
    if begins_line(text, offset) or found is None:
        return False
    return not text[offset : found.start()].strip()


def _layout(text: str, start: int, before: _Before, lines: bool) -> Style:
    """As far as it shows before the cursor. `start` is where the item or value begins."""
    found = LINE_END.search(text)
    base = indent_at(text, before.open[-1].at) if before.open else ""
    line = indent_at(text, start)
    indent: str | None = None if found is None and text.strip() else "  "
    if before.open:
        indent = line[len(base) :] if line.startswith(base) and line != base else None
    level = len(base) // len(indent) if indent else 0
    if lines or (indent is not None and (base != indent * level or len(indent) > BLANK)):
        indent, level = None, 0
    colon = before.usual(":") or ": "
    comma = before.usual(",") or ("," if colon == ":" else ", ")
    newline = found[0] if found else "\n"
    return Style(indent, level, base, None, colon, comma, newline, "")  # type: ignore[arg-type]
