"""Bodies that are begun and not finished: they lack a value at their end. Pure."""

import re
from collections.abc import Iterator

import tree_sitter

_FUNCTIONS = frozenset([
    "function_definition", "function_declaration", "function_expression", "generator_function", "arrow_function",
    "generator_function_declaration", "method_definition", "method_declaration", "func_literal", "lambda",
])  # fmt: skip
_LEAVES = frozenset(["return_statement", "raise_statement", "throw_statement"])
_LOOPS = frozenset(["for_statement", "for_in_statement", "while_statement"])
_SIMPLE = frozenset([
    "expression_statement", "assignment_statement", "short_var_declaration", "var_declaration", "lexical_declaration",
    "variable_declaration", "local_variable_declaration", "inc_statement", "dec_statement", "pass_statement",
    "assert_statement",
])  # fmt: skip
_ENDLESS = re.compile(rb"while\s*\(?\s*(?:True|true|1)\b|for\s*(?:\(\s*;\s*;|\{)")
_NO_VALUE = re.compile(  # a call may give none
    rb"return\s*(?:None|null|undefined|void 0)?\s*;?|return\s[\w.$]+\(.*", re.DOTALL
)
_STUBS = frozenset([b"...", b"pass"])
_NO_RESULT = re.compile(rb"[:\s]*(?:None|NoReturn|Never|void|never|undefined|Promise\s*<\s*void\s*>|asserts\b.*)", re.S)


def is_begun(tree: tree_sitter.Tree | None, text: str, start: int, end: int) -> bool:
    """True if the span is the whole body of a function that returns a value on some path, and not at its end."""
    first, last = (len(text[:at].encode()) for at in (start, end))
    function = _around(tree, first, last) if tree else None
    body = function.child_by_field_name("body") if function else None
    if function is None or body is None or body.has_error or body.type not in ("block", "statement_block"):
        return False
    statements = _statements(body)
    whole = statements and statements[0].start_byte >= first and statements[-1].end_byte <= last
    if not whole or _STUBS.issuperset(node.text for node in statements):
        return False
    return _gives_value(function, body) and not _ends(statements)


def _around(tree: tree_sitter.Tree, first: int, last: int) -> tree_sitter.Node | None:
    node = tree.root_node.descendant_for_byte_range(first, last)
    while node is not None and node.type not in _FUNCTIONS:
        node = node.parent
    return node


def _statements(block: tree_sitter.Node) -> list[tree_sitter.Node]:
    """The statements of a block, without comments and a docstring."""
    statements = [node for node in block.named_children if not node.is_extra]
    if [node.type for node in statements] == ["statement_list"]:  # of Go
        statements = [node for node in statements[0].named_children if not node.is_extra]
    first = statements[0] if statements else None
    bare = first and first.type == "expression_statement" and [node.type for node in first.named_children] == ["string"]
    return statements[1:] if bare else statements


def _gives_value(function: tree_sitter.Node, body: tree_sitter.Node) -> bool:
    result = next((node for name in ("return_type", "result") if (node := function.child_by_field_name(name))), None)
    returns = [node for node in _inside(body) if node.type == "return_statement"]
    if any(node.type == "yield" for node in _inside(body)) or (result and _NO_RESULT.fullmatch(result.text or b"")):
        return False
    return result is not None or any(not _NO_VALUE.fullmatch(node.text or b"") for node in returns)


def _inside(body: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """The nodes of a body, without those of functions in it."""
    waiting = [body]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in node.named_children if child.type not in _FUNCTIONS]


def _ends(statements: list[tree_sitter.Node]) -> bool:
    """True unless the last statement is known to go on to what follows."""
    last = statements[-1] if statements else None
    if last is None or last.type in _LEAVES:
        return last is not None
    if last.type == "if_statement":
        branches = [last.child_by_field_name("consequence"), *last.children_by_field_name("alternative")]
        closed = len(branches) > 1 and branches[-1] is not None and branches[-1].type != "elif_clause"
        return closed and all(_ends(_branch(branch)) for branch in branches if branch)
    if last.type in _LOOPS:
        return _ENDLESS.match(last.text or b"") is not None
    return last.type not in _SIMPLE


def _branch(node: tree_sitter.Node) -> list[tree_sitter.Node]:
    """The statements of a branch: a block, a statement, or a clause with either."""
    while node.type in ("else_clause", "elif_clause") and node.named_children:
        node = node.named_children[-1]
    return _statements(node) if node.type in ("block", "statement_block") else [node]
