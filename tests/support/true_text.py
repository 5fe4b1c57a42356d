"""Places cut from real files: the author's text goes through everything that finishes and judges a fill.

No model is asked, so thousands of places take seconds. A place is found by indentation, not by our own rows: what
opens a block is a line with deeper lines after it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import tree_sitter

from caesura.server.infill.site import site
from caesura.server.languages import Language, grammar
from caesura.server.text.lexer import Scan, indent_of

Kind = Literal["line", "header", "statement", "body", "span"]

FILES = Path(__file__).parents[1] / "data" / "true_text.jsonl"
LICENCES = FILES.with_suffix(".licences")
LONGEST = 24_000  # code points of a file
LEAST, MOST = 3, 6  # lines of a statement
TALLEST = 6  # lines of a body
CONTINUES = (*"([,\\=+-*/&|.?", "and", "or", "return")  # the end of a line that opens no block
OPENS = {"python": ":", "yaml": ":", "html": ">"}
CLOSES = re.compile(
    r"[)\]}]|</|(?:end|fi|done|esac|until|END|#endif|endif|endforeach|endwhile|endfor|endfunction)\b|'?\)"
)


@dataclass(frozen=True)
class Place:
    """`text` stands between `before` and `after` in the author's file, or stood there when it was written."""

    kind: Kind
    before: str
    text: str
    after: str


@dataclass(frozen=True)
class Shown:
    """What came of a place: the kind of its hole, and the part of the author's text that is left."""

    kind: str
    gated: str


def places(text: str, row: Language) -> Iterator[Place]:
    """The places of a file that the grammar reads without an error."""
    tree = parsed(row, text)
    if len(text) > LONGEST or tree.root_node.has_error or "\r" in text or "\f" in text:
        return
    lines = text.split("\n")
    inside = _inside(tree, text)
    for number, line in enumerate(lines):
        if not line.strip() or number in inside or not re.search(r"\w", line):
            continue
        yield _hole("line", lines, number, number + 1)
        below = next((line for line in lines[number + 1 :] if line.strip()), "")
        start = number + (below.strip() == "{" and _depth(below) == _depth(line))  # where the brace has its own line
        last = _block(lines, start, row)
        if last is None:
            continue
        end = _end(lines, start, last)
        if lines[number].rstrip().endswith(OPENS.get(row.id, "")) and not lines[number].rstrip().endswith(CONTINUES):
            above, below = lines[: number + 1], lines[end:]
            yield _hole("header", [*above, *below], number, number + 1)
            if last - start <= TALLEST and (end > last or row.offside):
                yield _hole("body", lines, start + 1, last + 1)
    for node in _statements(tree.root_node):
        first, last = node.start_point[0], node.end_point[0]
        above = Scan(row).feed("\n".join(lines[:first]) + "\n").open
        bracketed = any(bracket.mark in ("(", "[") for bracket in above)
        if not bracketed and not lines[last].encode()[node.end_point[1] :].strip(b" \t;,"):
            yield _hole("statement", lines, first, last + 1)


def shown(place: Place, row: Language) -> Shown:
    """What ghost text makes of the author's text."""
    text, start = place.before + place.after, len(place.before)
    tree = parsed(row, text)
    ghost = replace(site(text, start, start, row.id, tree=tree, following=True), finished=False)
    plain = site(text, start, start, row.id, tree=tree)
    return Shown(plain.context.kind, ghost.sound_start(ghost.fitted(place.text)))


def is_whole(place: Place, result: Shown) -> bool:
    """True if all of the author's text is left; blanks at the ends of lines and a last semicolon do not count."""
    return _bare(result.gated) == _bare(place.text)


def _bare(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip(" \t;\n").split("\n"))


def _hole(kind: Kind, lines: list[str], first: int, last: int) -> Place:
    """The lines `first:last` as a hole that begins after the indentation of the first."""
    indent = indent_of(lines[first])
    before = "\n".join([*lines[:first], indent])
    return Place(
        kind, before, "\n".join(map(str.rstrip, lines[first:last]))[len(indent) :], "\n".join(["", *lines[last:]])
    )


def _block(lines: list[str], number: int, row: Language) -> int | None:
    """The last line of the block that a line opens; None if it opens none."""
    depth = _depth(lines[number])
    last = None
    for index in range(number + 1, len(lines)):
        if lines[index].strip():
            if _depth(lines[index]) <= depth:
                closed = _depth(lines[index]) == depth and CLOSES.match(lines[index].strip())
                return last if row.offside or closed else None
            last = index
    return last if row.offside else None


def _end(lines: list[str], number: int, last: int) -> int:
    """The line after the statement that a line begins: after its closer, and all that goes on from that, as
    `} else {`."""
    depth, index = _depth(lines[number]), last + 1
    while index < len(lines) and (not lines[index].strip() or _depth(lines[index]) >= depth):
        if _depth(lines[index]) == depth and lines[index].strip():
            if not CLOSES.match(lines[index].strip()):
                break
            index += 1
            following = next((line for line in lines[index:] if line.strip()), "")
            if _depth(following) <= depth:
                return index
        else:
            index += 1
    return last + 1


def _statements(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """The largest nodes of some lines that begin a line."""
    waiting = list(root.named_children)
    while waiting:
        node = waiting.pop()
        lines = node.end_point[0] - node.start_point[0] + 1
        before = node.start_point[1]
        alone = node.prev_sibling is None or node.prev_sibling.end_point[0] < node.start_point[0]
        if LEAST <= lines <= MOST and alone and before >= 0 and "comment" not in node.type and _ends(node):
            yield node
        elif lines > MOST:
            waiting += node.named_children


def _ends(node: tree_sitter.Node) -> bool:
    return (
        node.next_sibling is None
        or node.next_sibling.start_point[0] > node.end_point[0]
        or bool(node.next_sibling.type in (";", ","))
    )


def _inside(tree: tree_sitter.Tree, text: str) -> set[int]:
    """The lines that begin inside of a string or a comment."""
    found, waiting = set[int](), [tree.root_node]
    while waiting:
        node = waiting.pop()
        if "string" in node.type or "comment" in node.type or "heredoc" in node.type or node.type == "text":
            found.update(range(node.start_point[0] + ("string" in node.type), node.end_point[0] + 1))
        waiting += node.children
    return found


def _depth(line: str) -> int:
    return len(indent_of(line).expandtabs())


def parsed(row: Language, text: str) -> tree_sitter.Tree:
    return _parser(row).parse(text.encode())


@cache
def _parser(row: Language) -> tree_sitter.Parser:
    known = grammar(row)
    assert known is not None, f"there is no grammar of {row.id}"
    return tree_sitter.Parser(known)
