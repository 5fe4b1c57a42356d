"""The context of a hole: the text around it and the kind of text that belongs there. Pure.

The tree may be missing or out of date, so it is used only for strings and comments that begin on a line above."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import tree_sitter

from caesura import wire
from caesura.server.context.unbound import missing
from caesura.server.languages import Language
from caesura.server.languages import language as language_row
from caesura.server.text.lexer import Scan, indent_of

HoleKind = Literal["line", "block", "span"]
Scope = Literal["code", "arguments", "string", "comment"]

LINE_TOKENS = 32  # maximum for a line or a span
BLOCK_TOKENS = 16  # maximum per line of a block
LEAST_LINES, USUAL_LINES, MOST_LINES = 3, 6, 12  # lines of a block; USUAL_LINES if the file has no other bodies
MOST_HEADER = 40  # lines of the statement that opens a block
NEAR = 2000  # code points on each side that are scanned for brackets, strings and openers

_LINE_BREAK = re.compile("[\r\n]")
_WORD = re.compile(r"\w+")
_LABEL = re.compile(r"\s*(?:case\b.*|default\s*):")  # of a switch
_LAST_WORD = re.compile(r"\w*\Z")
_CONTROL = re.compile("and|assert|await|case|catch|elif|else|except|for|if|in|match|not|or|return|switch|while|yield")
_GROUP = re.compile("import|const|var|type")  # of declarations in parentheses, after a blank
_STRINGS = ("string", "quote_scalar")  # parts of node types
_CODE_IN_STRINGS = ("interpolation", "substitution", "expansion", "concatenated")
CLOSERS = frozenset(")]}>\"'`")  # inserted by editors after the cursor
_CLOSING = frozenset(")]}>\"'`;:,.?! \t\r\f\v")


@dataclass(frozen=True)
class Budget:
    """Code points of context; `wire.MAX_CONTEXT` limits both."""

    before: int = 6000
    after: int = 2000


@dataclass(frozen=True)
class Context:
    """`indent` is the white space at the start of the hole's line, up to the hole. `scope` says where the hole is;
    "arguments" are those of a call or a definition. `lines` is the maximum for a block, 1 for other kinds. `missing` is
    the name that the hole most likely binds. `joins`: the fill may become a part of the word after it."""

    prefix: str
    suffix: str
    kind: HoleKind
    language: str
    indent: str
    scope: Scope
    lines: int
    missing: wire.Missing | None = None
    joins: bool = False

    def missing_from(self, segments: Sequence[wire.Text | wire.Hole]) -> wire.Missing | None:
        """`missing` for a job with these segments: only a single hole can bind it."""
        return self.missing if sum(isinstance(part, wire.Hole) for part in segments) == 1 else None


@dataclass(frozen=True)
class Snapshot:
    """Another file of a trusted folder. `name` is its path within the folder and identifies it."""

    name: str
    language: str
    text: str


def context(
    text: str,
    start: int,
    end: int,
    *,
    language: str,
    tree: tree_sitter.Tree | None = None,
    budget: Budget = Budget(),
    kind: HoleKind | None = None,
    following: bool = False,
) -> Context:
    """The context of the hole `start:end` (code points): a cursor if they are equal, else a selection to replace.

    `kind` overrides the kind that follows from the text. `following`: the fill of a line of code may add more lines."""
    row = language_row(language)
    scope = _scope(text, start, row, tree)
    kind = kind or _kind(text, start, end, scope, row, tree)
    if following and kind == "line" and scope == "code" and row.blocks and not line_after(text, end).strip():
        kind = "block"
    return Context(
        prefix=window_before(text, budget.before, start),
        suffix=window_after(text, budget.after, end),
        kind=kind,
        language=language,
        indent=indent_of(line_before(text, start)),
        scope=scope,
        lines=_height(text, start, end, row) if kind == "block" else 1,
        missing=missing(text, start, row, tree, end) if scope == "code" else None,
        joins=start < end and bool(_WORD.fullmatch(text[end - 1 : end + 1])),
    )


def hole(context: Context, most: int) -> wire.Hole:
    """The hole to request, with at most `most` tokens."""
    size = context.lines * BLOCK_TOKENS if context.kind == "block" else LINE_TOKENS
    return wire.Hole(max_tokens=min(size, most), kind=context.kind)


def line_before(text: str, offset: int) -> str:
    """The part of its line before `offset`."""
    return text[max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1 : offset]


def line_after(text: str, offset: int) -> str:
    """The part of its line after `offset`, without the line break."""
    found = _LINE_BREAK.search(text, offset)
    return text[offset : found.start() if found else len(text)]


def after_closing(text: str, offset: int, row: Language) -> int:
    """The end of the line if only closing brackets and quotes follow `offset`, else `offset`. Braces around an empty
    block stay, since its body goes between them. So does `);`: no editor adds a semicolon by itself, and a fill that
    repeats it is cut there."""
    after = line_after(text, offset)
    closing = CLOSERS.issuperset(after) and not _between_braces(line_before(text, offset), after, row)
    return offset + len(after) if closing else offset


@lru_cache(maxsize=1024)  # called many times for the same lines
def opens_block(line: str, row: Language) -> bool:
    """True if `line` ends in a block opener of its language, not counting a comment after it."""
    code = line.split(" " + row.comment)[0].rstrip() if row.comment else line.rstrip()
    if row.words and (
        row.words.turns(code) or ((opened := Scan(row).feed(code).open) and opened[-1].mark not in "([{")
    ):
        return True
    if "{" in row.openers and _LABEL.fullmatch(code):
        return True
    if not any(code.endswith(o) and not (o.isalpha() and code[-len(o) - 1 : -len(o)].isalnum()) for o in row.openers):
        return False
    word = _WORD.search(code)
    if not row.headers or (word and word[0] in row.headers):
        return True
    return bool(Scan(row).feed(code).faults)  # the last line of a header of several lines


@lru_cache(maxsize=16)
def opener_above(text: str, row: Language) -> str:
    """The last line of code, skipping comments and docstrings, with the indentation of its statement's first line.
    Kept, as each candidate of a place asks for the same one."""
    while text := text.rstrip():
        line = line_before(text, len(text))
        if row.comment and line.lstrip().startswith(row.comment):
            text = text[: len(text) - len(line)]
        elif (at := _prose_at_end(text, row)) >= 0:
            text = text[:at]
        else:
            return indent_of(_from_bracket(text, line, row)) + line.lstrip(" \t")
    return ""


def _from_bracket(text: str, line: str, row: Language) -> str:
    """The end of `text`, from the line that opens the brackets closed by its last `line`."""
    begin = len(text) - len(line)
    for _ in range(MOST_HEADER):
        if not Scan(row).feed(text[begin:]).faults:
            return text[begin:]
        begin = max(0, begin - len(line_before(text, begin - 1)) - 1)
    return line


def _prose_at_end(text: str, row: Language) -> int:
    """The start of the block comment or docstring that ends `text`; -1 if there is none on lines of its own."""
    marks = [*((mark, mark) for mark in row.long_quotes), *([row.block_comment] if row.block_comment else [])]
    for opening, closing in marks:
        if text.endswith(closing):
            at = text.rfind(opening, 0, len(text) - len(closing))
            if at >= 0 and line_before(text, at).strip() in ("", "r", "u", "R", "U"):
                return at
    return -1


def window_before(text: str, size: int, start: int | None = None) -> str:
    """At most `size` code points before `start` (default: the end), cut at a line start if one is near.

    The cut moves in strides, so that the KV cache of the prefix stays valid while the user types."""
    start, size = len(text) if start is None else start, min(size, wire.MAX_CONTEXT)
    stride = max(1, size // 4)
    cut = -(-max(0, start - size) // stride) * stride
    # The search depends on the cut only, so a line break typed at the cursor never becomes the cut.
    if cut and (line_break := text.find("\n", cut - 1, min(start, cut + 2 * stride + 1))) >= 0:
        cut = line_break + 1
    return text[cut:start]


def window_after(text: str, size: int, end: int = 0) -> str:
    """At most `size` code points after `end`, whole lines if at least one fits."""
    cut = min(len(text), end + min(size, wire.MAX_CONTEXT))
    if cut < len(text) and (line_break := text.rfind("\n", end, cut)) >= 0:
        cut = line_break + 1
    return text[end:cut]


def _scope(text: str, start: int, row: Language, tree: tree_sitter.Tree | None) -> Scope:
    """The tree gives the state at the start of the line; the lexer does the rest, or all without a tree."""
    line = start - len(line_before(text, start))
    inside = _began_above(text, line, row, tree) if tree else None
    near = max(0, start - NEAR)
    near = text.find("\n", near, start) + 1 if near else 0
    around = Scan(row).feed(text[near:start])
    scan = inside.feed(text[line:start]) if inside else around
    if scan.comment:
        return "comment"
    if scan.quote:
        return "string"
    return "arguments" if _in_arguments(text, near, around) else "code"


def _began_above(text: str, line: int, row: Language, tree: tree_sitter.Tree) -> Scan:
    """The state at `line`, the offset of a line start: in a comment, in a string, or in code. An outdated tree may
    report a string that cannot span lines; such a string is taken as code."""
    byte = len(text[:line].encode())
    node, string = tree.root_node.descendant_for_byte_range(byte, byte), None
    while node is not None and not any(part in node.type for part in _CODE_IN_STRINGS):
        if node.start_byte < byte < node.end_byte:
            if ("comment" in node.type or "string" in node.type) and (raw := Scan(row).feed(_head(text, node))).raw:
                return raw
            if "comment" in node.type:
                opening, closing = row.block_comment or ("", "")
                return Scan(row, comment=closing if _head(text, node).startswith(opening) else "")
            if node.type == "heredoc_body":
                return Scan(row, quote="<<")
            if any(part in node.type for part in _STRINGS):
                string = node
        node = node.parent
    if string is None:
        return Scan(row)
    head = _head(text, string).lstrip(row.prefixes)
    spanning = (mark for mark in (*row.long_quotes, *row.spanning) if head.startswith(mark))
    return Scan(row, quote=next(spanning, ""))


def _head(text: str, node: tree_sitter.Node) -> str:
    return text.encode()[node.start_byte : node.start_byte + 8].decode(errors="replace")


def _in_arguments(text: str, near: int, scan: Scan) -> bool:
    """True if the innermost open bracket is the parenthesis of a call or a definition."""
    if not scan.row.blocks or not scan.open or scan.open[-1].mark != "(":
        return False
    before = text[near : near + scan.open[-1].at].rstrip(" ")
    word = _LAST_WORD.findall(before)[0]
    if _GROUP.fullmatch(word) and text[near + scan.open[-1].at - 1] == " ":
        return False
    return before[-1:] in (")", "]", ">", "!") or bool(word and not _CONTROL.fullmatch(word))


def _kind(text: str, start: int, end: int, scope: Scope, row: Language, tree: tree_sitter.Tree | None) -> HoleKind:
    before, after = line_before(text, start), line_after(text, end)
    if not _CLOSING.issuperset(after):
        return "span"
    if _LINE_BREAK.search(text, start, end):
        return "block"
    if scope in ("string", "comment"):
        return "line"
    if after.strip():
        return "block" if _between_braces(before, after, row) else "line"
    if before.strip():
        return "block" if opens_block(before, row) and _lacks_body(before, text, end) else "line"
    return (
        "block"
        if _begins_body(text, start, end, row) or (tree and _in_empty_braces(tree, text, start, row))
        else "line"
    )


def _between_braces(before: str, after: str, row: Language) -> bool:
    return "{" in row.openers and before.endswith("{") and not before.endswith("${") and after.startswith("}")


def _begins_body(text: str, start: int, end: int, row: Language) -> bool:
    """True if the code above ends in the opener of a block without a body; comments and docstrings do not count."""
    opener = opener_above(text[max(0, start - NEAR) : start], row)
    return opens_block(opener, row) and _lacks_body(opener, text, end)


def _lacks_body(opener: str, text: str, end: int) -> bool:
    """True if the next line with text is not indented deeper than `opener`."""
    below = text[end : end + NEAR].lstrip("\r\n \t\f")
    following = line_before(text, text.find(below, end)) if below else ""
    return _depth(following) <= _depth(opener)


def _depth(line: str) -> int:
    return len(indent_of(line).expandtabs())


def _in_empty_braces(tree: tree_sitter.Tree, text: str, offset: int, row: Language) -> bool:
    """True if the nearest braces around `offset` contain only comments."""
    source = text.encode()
    byte = len(text[:offset].encode())
    node = tree.root_node.descendant_for_byte_range(byte, byte)
    while node is not None:
        inner = node.children
        if len(inner) >= 2 and inner[0].type == "{" and inner[0].end_byte <= byte <= inner[-1].start_byte:
            within = source[inner[0].end_byte : inner[-1].start_byte].decode(errors="replace")
            return inner[-1].type == "}" and not _without_comments(within, row).strip()
        node = node.parent
    return False


def _without_comments(text: str, row: Language) -> str:
    opening, closing = map(re.escape, row.block_comment or ("\0", "\0"))
    return re.sub(rf"{opening}.*?{closing}|{re.escape(row.comment or chr(0))}[^\n]*", "", text, flags=re.DOTALL)


def _height(text: str, start: int, end: int, row: Language) -> int:
    """The 90th percentile of the heights of bodies nearby: those with the same first word, else at the same depth, else
    all. Read from the indentation, since the tree may be out of date."""
    opener = line_before(text, start).rstrip() or opener_above(text[max(0, start - NEAR) : start], row)
    alike: dict[object, list[int]] = defaultdict(list)
    for line, height in _bodies(_LINE_BREAK.split(text[max(0, start - 2 * NEAR) : end + 2 * NEAR]), row):
        for key in (_first_word(line), _depth(line), None):
            alike[key].append(height)
    found = sorted(alike[_first_word(opener)] or alike[_depth(opener)] or alike[None]) or [USUAL_LINES]
    usual = found[len(found) * 9 // 10]
    selected = len(_LINE_BREAK.findall(text, start, end))
    return max(LEAST_LINES, selected + 1, min(usual, MOST_LINES))


def _bodies(lines: list[str], row: Language) -> list[tuple[str, int]]:
    """The lines that open a block with a body, each with the number of non-empty lines in it."""
    found: list[tuple[str, int]] = []
    growing: list[tuple[str, int, int]] = []  # opener, depth, lines so far
    for line in filter(str.strip, [*lines, "."]):
        depth = _depth(line)
        while growing and depth <= growing[-1][1]:
            opener, _, height = growing.pop()
            found += [(opener, height)] if height else []
        growing = [(opener, at, height + 1) for opener, at, height in growing]
        if opens_block(line, row):
            growing.append((line, depth, 0))
    return found


def _first_word(line: str) -> str:
    word = _WORD.search(line)
    return word[0] if word else ""
