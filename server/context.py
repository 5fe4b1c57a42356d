"""What the engine is shown of a document around a hole, and what kind of hole it is. Pure: text in, Context out."""

import re
from dataclasses import dataclass
from typing import Literal

import tree_sitter

from caesura import wire
from caesura.server.languages import Language
from caesura.server.languages import language as language_row

Kind = Literal["line", "block", "span"]

_LINE_BREAK = re.compile("[\r\n]")
_CLOSING = frozenset(")]}>\"'`;:,.?! \t\r\f\v")


@dataclass(frozen=True)
class Budget:
    """Code points of context; `wire.MAX_CONTEXT` bounds both whatever is asked."""

    before: int = 6000
    after: int = 2000


@dataclass(frozen=True)
class Context:
    """`indent` is the white space that the hole's line begins with, up to the hole."""

    prefix: str
    suffix: str
    kind: Kind
    language: str
    indent: str


def context(
    text: str,
    start: int,
    end: int,
    *,
    language: str,
    tree: tree_sitter.Tree | None = None,
    budget: Budget = Budget(),
) -> Context:
    """The context of the hole `start:end` (code points): a cursor where they are equal, else a selection to replace."""
    row = language_row(language)
    return Context(
        prefix=_prefix(text, start, min(budget.before, wire.MAX_CONTEXT)),
        suffix=_suffix(text, end, min(budget.after, wire.MAX_CONTEXT)),
        kind=_kind(text, start, end, row, tree),
        language=language,
        indent=indent_of(line_before(text, start)),
    )


def line_before(text: str, offset: int) -> str:
    """The part of the line at `offset` that lies before it."""
    return text[max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1 : offset]


def line_after(text: str, offset: int) -> str:
    """The part of the line at `offset` that lies after it, without the line break."""
    found = _LINE_BREAK.search(text, offset)
    return text[offset : found.start() if found else len(text)]


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def opens_block(line: str, row: Language) -> bool:
    """Whether `line` ends in one of its language's block openers; a comment behind it does not count."""
    code = line.split(" " + row.comment)[0].rstrip() if row.comment else line.rstrip()
    return any(code.endswith(o) and not (o.isalpha() and code[-len(o) - 1 : -len(o)].isalnum()) for o in row.openers)


def _prefix(text: str, start: int, size: int) -> str:
    """At most `size` code points, from a line start if one is near. The cut moves in strides, not with every line, so
    that the engine's KV of the prefix stays valid while somebody types."""
    stride = max(1, size // 4)
    cut = -(-max(0, start - size) // stride) * stride
    # A window that moves with the cut alone: a line break typed at the cursor never becomes the cut.
    if cut and (line_break := text.find("\n", cut - 1, min(start, cut + 2 * stride + 1))) >= 0:
        cut = line_break + 1
    return text[cut:start]


def _suffix(text: str, end: int, size: int) -> str:
    cut = min(len(text), end + size)
    if cut < len(text) and (line_break := text.rfind("\n", end, cut)) >= 0:
        cut = line_break + 1
    return text[end:cut]


def _kind(text: str, start: int, end: int, row: Language, tree: tree_sitter.Tree | None) -> Kind:
    after = line_after(text, end)
    if not _CLOSING.issuperset(after):
        return "span"
    if _LINE_BREAK.search(text, start, end):
        return "block"
    if after.strip():
        return "line"
    before = line_before(text, start)
    if before.strip():
        return "block" if opens_block(before, row) and _lacks_body(before, text, end) else "line"
    return "block" if _begins_body(text, start, end, row) or (tree and _in_empty_braces(tree, text, start)) else "line"


def _begins_body(text: str, start: int, end: int, row: Language) -> bool:
    """Whether the last line with text above opens a block that has no body yet."""
    above = text[max(0, start - 2000) : start].rstrip()
    opener = line_before(above, len(above))
    return opens_block(opener, row) and _lacks_body(opener, text, end)


def _lacks_body(opener: str, text: str, end: int) -> bool:
    """Whether the next line with text is indented no deeper than the line that opens the block."""
    below = text[end : end + 2000].lstrip("\r\n \t\f")
    following = line_before(text, text.find(below, end)) if below else ""
    return len(following.expandtabs()) <= len(indent_of(opener).expandtabs())


def _in_empty_braces(tree: tree_sitter.Tree, text: str, offset: int) -> bool:
    """Whether the nearest braces around `offset` hold nothing but comments."""
    byte = len(text[:offset].encode())
    node = tree.root_node.descendant_for_byte_range(byte, byte)
    while node is not None:
        inner = node.children
        if len(inner) >= 2 and inner[0].type == "{" and inner[0].end_byte <= byte <= inner[-1].start_byte:
            return inner[-1].type == "}" and all("comment" in child.type for child in inner[1:-1])
        node = node.parent
    return False
