"""Members that an insertion invents: it reads them on `self` or `this`, in a class that is whole in the file, and
nothing in the file or the language defines them. Pure.

A language's query captures `class`, its `base` classes and `decorator`s, which may hide members; `member`, a name that
is defined as one; and `read`, a name that is read from, or set in, the receiver.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import tree_sitter

from caesura.server.languages import Language, grammar, members_query
from caesura.server.names import MemberRules
from caesura.server.text.lexer import CLOSER, Scan

MAX_SOURCE = 200_000  # most bytes of a file that is parsed for this; in a larger one nothing counts as invented

_VALUE = b"0"  # stands for a member that is read
_ENDINGS = b"", b";", b":0"  # one of them ends most statements, in a condition as its body

Captures = Mapping[str, Sequence[tree_sitter.Node]]


class ClassMembers:
    """Judges insertions in place of `start:end` (bytes) of a source; `tree` is that of the source, if it is known."""

    def __init__(self, row: Language, source: bytes, start: int, end: int, tree: tree_sitter.Tree | None) -> None:
        self._row, self._start = row, start
        self._head, self._tail = source[:start], source[end:]
        self._tree = tree.copy() if tree else None
        self._rules = row.names.members if row.names and members_query(row) and len(source) <= MAX_SOURCE else None
        if self._tree:
            ends = _point(self._head), _point(source[:end])
            self._tree.edit(start, end, start, ends[0], ends[1], ends[0])

    def __repr__(self) -> str:
        return f"<ClassMembers at {self._start} of {self._row.id}>"

    def known_lines(self, insert: str) -> str:
        """The lines of `insert` before the first that reads an invented member; all of it if there is none."""
        first = next(self._invented(insert), None)
        if first is None:
            return insert
        kept = insert.encode()[: max(0, first.start_byte - self._start)].decode(errors="ignore")
        return kept[: kept.rfind("\n") + 1].rstrip()

    def invented(self, insert: str) -> tuple[str, ...]:
        """The members that `insert` invents."""
        return tuple(dict.fromkeys(node.text.decode() for node in self._invented(insert) if node.text))

    @cached_property
    def _hides(self) -> bool:
        """True if the file may have members that it does not show."""
        assert self._rules is not None, "checked by the caller"
        return re.search(self._rules.unseen.encode(), self._head + self._tail) is not None

    @cached_property
    def _read_elsewhere(self) -> frozenset[str]:
        """Most members that need no search: the receiver's name stands before them."""
        assert self._rules is not None, "checked by the caller"
        return frozenset(re.findall(self._rules.reads, (self._head + b"\n" + self._tail).decode(errors="replace")))

    def _last_line(self) -> str:
        return self._head[self._head.rfind(b"\n") + 1 :].decode(errors="replace")

    def _invented(self, text: str) -> Iterator[tree_sitter.Node]:
        """The invented members in the source with the insertion `text`, as they are read."""
        rules = self._rules
        names = re.findall(rules.reads, self._last_line() + text) if rules else ()
        if rules is None or not names or self._hides or self._read_elsewhere.issuperset(names):
            return
        insert = text.encode()
        root, captures = self._read(self._start, insert)
        end = self._start + len(insert)
        new = [node for node in captures.get("read", ()) if node.start_byte < end and node.end_byte > self._start]
        outside = (*captures.get("member", ()), *(node for node in captures.get("read", ()) if node not in new))
        defined = self._before.union(node.text for node in outside)
        for node in sorted(new, key=lambda one: one.start_byte):
            if node.text is None or node.text in defined:
                continue
            seen = self._seen_in_line(node, insert, rules) if root.has_error else _seen(node, captures, rules)
            if seen is not None and node.text.decode() not in seen:
                yield node

    @cached_property
    def _before(self) -> frozenset[bytes | None]:
        """The names of members without an insertion."""
        _, captures = self._read(self._start, b"")
        inside = (node for node in captures.get("read", ()) if not node.start_byte < self._start <= node.end_byte)
        return frozenset(node.text for node in (*captures.get("member", ()), *inside))

    def _seen_in_line(self, read: tree_sitter.Node, insert: bytes, rules: MemberRules) -> frozenset[str] | None:
        """As `_seen`, in a text that `insert` leaves broken, as by a condition that has no body yet. The class and the
        function around the read are those of the text whose line stops there, is closed and goes on nowhere. A name
        that the file has anywhere may be a member that a broken tree does not show."""
        assert read.text is not None, "checked by the caller"
        if re.search(rb"(?<![\w$#])" + re.escape(read.text) + rb"(?![\w$])", self._head + b"\n" + self._tail):
            return None
        line = self._head.rfind(b"\n") + 1
        receiver = read.parent.start_byte if read.parent else read.start_byte
        written = (self._head + insert)[line:receiver]
        opened = reversed(Scan(self._row).feed(written.decode(errors="replace")).open)
        closers = "".join(CLOSER[bracket.mark] for bracket in opened).encode()
        indent = written[: len(written) - len(written.lstrip())]
        known, ways = None, [(written, closers + ending) for ending in _ENDINGS]
        for before, after in (*ways, (indent, b"")):
            root, captures = self._read(line, before + _VALUE + after, self._line_end)
            at = line + len(before)
            node = root.descendant_for_byte_range(at, at + len(_VALUE))
            if node is None or node.text != _VALUE:
                continue
            known = _seen(node, captures, rules)
            if not root.has_error:
                break
        return known

    @cached_property
    def _line_end(self) -> int:
        """The end of the hole's line in the source."""
        line_break = self._tail.find(b"\n")
        return self._start + (line_break if line_break >= 0 else len(self._tail))

    def _read(self, start: int, new: bytes, end: int | None = None) -> tuple[tree_sitter.Node, Captures]:
        """The root and the captures of the source with `new` in place of `start:end`, or of nothing at `start`."""
        known, rules = grammar(self._row), members_query(self._row)
        assert known is not None, "checked at the beginning"
        assert rules is not None, "a query needs a grammar"
        source, end = self._head + self._tail, start if end is None else end
        head, tree = source[:start], self._tree.copy() if self._tree else None
        if tree:
            tree.edit(start, end, start + len(new), _point(head), _point(source[:end]), _point(head + new))
        changed, parser = head + new + source[end:], tree_sitter.Parser(known)
        root = (parser.parse(changed, tree) if tree else parser.parse(changed)).root_node
        return root, tree_sitter.QueryCursor(rules).captures(root)


def lacking(members: Sequence[str]) -> str:
    """A regular expression of any text that reads none of these members."""
    names = "|".join(name.replace("$", r"\$") for name in members)  # the only mark of a name that patterns read
    return rf"(?![\s\S]*\.(?:{names})(?:[^\w$]|$))[\s\S]+"


def _seen(read: tree_sitter.Node, captures: Captures, rules: MemberRules) -> frozenset[str] | None:
    """The members that the language gives the class around a read; None if that class is not whole in the file, or
    another object may be the receiver."""
    function = _outer(read, rules.functions.split())
    holder = function.parent if function else None
    if holder and holder.type == "decorated_definition":
        holder = holder.parent
    around = holder.parent if holder else None
    return _of_class(around, captures, rules, ()) if around in captures.get("class", ()) else None


def _of_class(
    node: tree_sitter.Node | None, captures: Captures, rules: MemberRules, below: tuple[tree_sitter.Node, ...]
) -> frozenset[str] | None:
    body = node.child_by_field_name("body") if node else None
    if node is None or body is None or node in below:
        return None
    outer = node.parent if node.parent and node.parent.type in ("decorated_definition", "export_statement") else node
    seen = frozenset(rules.known.split())
    for one in (*captures.get("base", ()), *captures.get("decorator", ())):
        inside = one.type == "index_signature" and one.parent == body
        if not inside and not (outer.start_byte <= one.start_byte < body.start_byte):
            continue
        text = (one.text or b"").decode(errors="replace")
        if re.fullmatch(rules.plain, text, re.DOTALL):
            continue
        if (own := rules.builtins.get(text)) is not None:
            seen |= frozenset(own.split())
        elif _of_class(_named(text, captures), captures, rules, (*below, node)) is None:
            return None
    return seen


def _named(name: str, captures: Captures) -> tree_sitter.Node | None:
    """The class of that name, if the file has one and no more."""
    heads = [(node, node.child_by_field_name("name")) for node in captures.get("class", ())]
    known = [node for node, head in heads if head and head.text == name.encode()]
    return known[0] if len(known) == 1 else None


def _outer(node: tree_sitter.Node, kinds: Sequence[str]) -> tree_sitter.Node | None:
    outer = node.parent
    while outer and outer.type not in kinds:
        outer = outer.parent
    return outer


def _point(source: bytes) -> tuple[int, int]:
    return source.count(b"\n"), len(source) - source.rfind(b"\n") - 1
