"""The spans of a file that become gaps. First come the groups of the held-out set, a function for each; then the fresh
set: lines, blocks and expressions inside functions, found by syntax tree in the same way for each language."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import tree_sitter

from caesura.server import languages

Span = tuple[int, int]  # code points

LINE = range(8, 101)  # characters of what is wanted
BLOCK_LINES = range(2, 7)
SPAN = range(4, 41)
VALUE = range(2, 61)


class Source:
    """A Python file with the offsets of its nodes. `ast` counts columns in bytes."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.lines = [line + "\n" for line in text.split("\n")]  # as `ast` counts them: a form feed ends none
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, first: ast.stmt | ast.expr, last: ast.stmt | ast.expr | None = None) -> Span:
        last = last or first
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        start = self.offset(first.lineno, first.col_offset)
        return start, self.offset(last.end_lineno, last.end_col_offset)


def ends_line(text: str, span: Span) -> bool:
    """Whether a span is what its lines hold, from their indentation to their end."""
    before = text[text.rfind("\n", 0, span[0]) + 1 : span[0]]
    return not before.strip() and text[span[1] : span[1] + 1] in ("", "\n")


def python_lines(text: str) -> Iterator[Span]:
    """Statements of one line, headers of blocks apart. Imports and docstrings are nobody's to guess."""
    source = Source(text)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) and not is_text(node):
            span = source.span(node)
            if node.lineno == node.end_lineno and span[1] - span[0] in LINE and ends_line(text, span):
                yield span


def python_blocks(text: str) -> Iterator[Span]:
    """Bodies of functions, branches and loops, after a docstring if there is one."""
    source = Source(text)
    for node in ast.walk(source.tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef) or not isinstance(body, list):
            continue
        body = body[1:] if is_text(body[0]) else body
        if body and isinstance(body[0], ast.stmt):
            span = source.span(body[0], body[-1])
            if text[slice(*span)].count("\n") + 1 in BLOCK_LINES and ends_line(text, span):
                yield span


def python_spans(text: str) -> Iterator[Span]:
    """Expressions with something of their line on both sides."""
    source = Source(text)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call | ast.BinOp | ast.Compare | ast.Attribute | ast.Subscript | ast.BoolOp):
            start, end = source.span(node)
            before = text[text.rfind("\n", 0, start) + 1 : start]
            after = text[end:].partition("\n")[0]
            if node.lineno == node.end_lineno and end - start in SPAN and before.strip() and after.strip(" :"):
                yield start, end


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def javascript_lines(text: str) -> Iterator[Span]:
    for found in re.finditer(r"^[ \t]+(?!//|\*|/\*)(\S.*?)[ \t]*$", text, re.M):
        if len(found[1]) in LINE and re.search(r"\w.*[;{,)]$", found[1]):
            yield found.span(1)


SCALAR = r'"(?:[^"\\\n]|\\.)*"|-?\d[\d.eE+-]*|true|false|null'
MEMBER = re.compile(rf'[{{,]\s*("(?:[^"\\\n]|\\.)*")\s*:\s*({SCALAR})(?=\s*[,}}])')


def json_values(text: str) -> Iterator[Span]:
    """Scalars of objects that have a member before them."""
    yield from (found.span(2) for found in MEMBER.finditer(text) if found[0][0] == "," and len(found[2]) in VALUE)


def json_keys(text: str) -> Iterator[Span]:
    yield from (found.span(1) for found in MEMBER.finditer(text) if found[0][0] == "," and len(found[1]) in VALUE)


def markdown_rows(text: str) -> Iterator[Span]:
    """Rows of a table after its first, from the first cell on."""
    for table in re.finditer(r"^\|.*\n\|[ :|-]+\|[ ]*\n\|.*\n((?:\|.*\|[ ]*\n)+)", prose(text), re.M):
        for row in re.finditer(r"^\|[ ]*(\S.*?)[ ]*$", table[1], re.M):
            if len(row[1]) in LINE:
                yield table.start(1) + row.start(1), table.start(1) + row.end(1)


def markdown_items(text: str) -> Iterator[Span]:
    """Items of a list after its first, without their mark."""
    for found in re.finditer(r"^[ ]*(?:[-*]|\d+\.) .*\n(?=([ ]*(?:[-*]|\d+\.) +)(\S.*?)[ ]*$)", prose(text), re.M):
        if len(found[2]) in LINE:
            yield found.span(2)


def prose(text: str) -> str:
    """Markdown with its fenced code as blanks: offsets stay."""
    return re.sub(r"^( *```|~~~).*?^\1", lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.M | re.S)


# ---- the fresh set: where a user's cursor may stand

ANY_LINE = range(3, 101)  # characters: `break` is a line that a user wants too

# ruff: noqa: SIM905 - one name a line would be two screens
FUNCTIONS = frozenset(
    """
    function_definition function_declaration function_expression generator_function
    generator_function_declaration arrow_function method_definition method_declaration func_literal
    """.split()
)
BLOCKS = frozenset("block statement_block".split())
EXPRESSIONS = frozenset(
    """
    call call_expression binary_operator binary_expression boolean_operator comparison_operator attribute
    member_expression selector_expression subscript subscript_expression index_expression
    """.split()
)
NOBODYS = frozenset(  # to guess
    "comment import_statement import_from_statement future_import_statement import_declaration ERROR".split()
)
STRINGS = frozenset("string template_string raw_string_literal interpreted_string_literal".split())


class Code:
    """The text of a file and its tree, which counts in bytes."""

    def __init__(self, text: str, path: str) -> None:
        grammar = languages.grammar(languages.language("", path))
        assert grammar is not None, path
        self.text, self.raw = text, text.encode()
        self.root = tree_sitter.Parser(grammar).parse(self.raw).root_node

    def __repr__(self) -> str:
        return f"<Code {len(self.text)} characters, {self.root.type}>"

    def spans(self, kind: str) -> list[Span]:
        found = list({"line": self._lines, "block": self._blocks, "span": self._expressions}[kind]())
        ends = sorted({end for span in found for end in span})
        characters, at, count = {}, 0, 0
        for end in ends:
            count += len(self.raw[at:end].decode())
            characters[end], at = count, end
        return sorted({(characters[start], characters[end]) for start, end in found})

    def _lines(self) -> Iterator[Span]:
        """Whole lines, headers of blocks too."""
        start = 0
        for line in self.raw.split(b"\n"):
            end, first = start + len(line), start + len(line) - len(line.lstrip())
            words = line.strip().decode()
            if len(words) in ANY_LINE and any(map(str.isalpha, words)) and first + len(line.strip()) == end:
                leaf = self._leaf(first)
                if guessable(leaf) and guessable(self._leaf(end - 1)) and not inside_text(leaf, first):
                    yield first, end
            start = end + 1

    def _blocks(self) -> Iterator[Span]:
        """The statements of a block, after a docstring if there is one."""
        for block in self._nodes(self.root):
            if block.type not in BLOCKS or block.has_error or not in_function(block):
                continue
            statements = block.named_children
            if [one.type for one in statements] == ["statement_list"]:
                statements = statements[0].named_children
            if any(one.type == "comment" for one in statements):
                continue
            statements = statements[1:] if statements and is_docstring(statements[0]) else statements
            if statements:
                start, end = statements[0].start_byte, statements[-1].end_byte
                end += self.raw.startswith(b";", end)
                if self.raw[start:end].count(b"\n") + 1 in BLOCK_LINES and not any(self._beside(start, end)):
                    yield start, end

    def _expressions(self) -> Iterator[Span]:
        """On one line, with something of it on both sides."""
        for node in self._nodes(self.root):
            start, end = node.start_byte, node.end_byte
            if node.type in EXPRESSIONS and guessable(node) and node.start_point.row == node.end_point.row:
                before, after = self._beside(start, end)
                if end - start in SPAN and before and after.strip(b" :;,{"):
                    yield start, end

    def _beside(self, start: int, end: int) -> tuple[bytes, bytes]:
        """The text before and after them on their lines."""
        before = self.raw[self.raw.rfind(b"\n", 0, start) + 1 : start]
        return before.strip(), self.raw[end:].partition(b"\n")[0].strip()

    def _leaf(self, at: int) -> tree_sitter.Node:
        node = self.root.descendant_for_byte_range(at, at + 1)
        assert node is not None
        return node

    def _nodes(self, node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
        stack = [node]
        while stack:
            yield (node := stack.pop())
            stack.extend(node.named_children)


def ancestors(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    one: tree_sitter.Node | None = node
    while one is not None:
        yield one
        one = one.parent


def in_function(node: tree_sitter.Node) -> bool:
    """Whether it lies in the body of one."""
    child = node
    for one in ancestors(node):
        if one.type in FUNCTIONS and one.child_by_field_name("body") == child:
            return True
        child = one
    return False


def guessable(node: tree_sitter.Node) -> bool:
    return in_function(node) and NOBODYS.isdisjoint(one.type for one in ancestors(node))


def is_docstring(node: tree_sitter.Node) -> bool:
    return node.type == "expression_statement" and [one.type for one in node.named_children] == ["string"]


def inside_text(node: tree_sitter.Node, at: int) -> bool:
    """Whether a line that begins here goes on with a string, or is one and no more."""
    return any((one.type in STRINGS and one.start_byte < at) or is_docstring(one) for one in ancestors(node))
