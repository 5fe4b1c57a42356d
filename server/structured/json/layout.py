"""The layout of a JSON text: indentation, line ends, blanks around colons and commas. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from caesura.server.languages import LANGUAGES
from caesura.server.text.json import LINE_END, JsonTree

STEP = LANGUAGES["json"].step  # of indentation, where the document shows none

BLANK = 16  # most code points of white space in one place of a grammar's layout
SAMPLE = 2000  # most values that are read for a document's layout

_INDENT = re.compile("[ \t]*")


@dataclass(frozen=True)
class Style:
    """The layout of a container's items. `base` is the indentation of the container's line, `item` that of each item;
    None if the items share a line. `indent` is one step; None: new text stays on one line. `level` is the number of
    steps of the container's line. `pad` is the text inside of brackets on one line."""

    indent: str | None
    level: int
    base: str
    item: str | None
    colon: str
    comma: str
    newline: Literal["\n", "\r\n", "\r"]
    pad: str


def style(tree: JsonTree, container: int) -> Style:
    """The layout of a container's items (-1: of the document): as in the container, else as elsewhere in the text, else
    the usual one."""
    text, sample = tree.text, range(min(SAMPLE, len(tree.kinds)))
    near = [] if container < 0 else list(islice(tree.children(container), SAMPLE))
    newline = match[0] if (match := LINE_END.search(text)) else "\n"
    colon, comma = marks(tree, near)
    if container < 0:
        base, item, pad = "", None, ""
        indent = _step(tree, sample) or (None if len(sample) > 1 and match is None else STEP)
    else:
        base, pad = indent_at(text, tree.starts[container]), _pad(tree, tree.kinds[container], sample)
        item = _item_indent(tree, container, near, sample, base)
        indent = item[len(base) :] or None if item is not None and item.startswith(base) else None
    level = len(base) // len(indent) if indent else 0
    if indent is not None and (base != indent * level or len(indent) > BLANK):
        indent, level = None, 0
    return Style(indent, level, base, item, colon, comma, newline, pad)  # type: ignore[arg-type]


def marks(tree: JsonTree, near: Sequence[int] = ()) -> tuple[str, str]:
    """The text between a key and its value, and that between two items on one line; `near` values decide first."""
    sample = range(min(SAMPLE, len(tree.kinds)))
    colon = _commonest(_colons(tree, near)) or _commonest(_colons(tree, sample)) or ": "
    usual = "," if colon == ":" else ", "
    return colon, _commonest(_commas(tree, near)) or _commonest(_commas(tree, sample)) or usual


def indent_at(text: str, offset: int) -> str:
    """The indentation of the line at an offset."""
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1
    return _INDENT.match(text, start)[0]  # type: ignore[index]


def begins_line(text: str, offset: int) -> bool:
    """True if only white space precedes an offset in its line."""
    while offset and text[offset - 1] in " \t":
        offset -= 1
    return offset == 0 or text[offset - 1] in "\r\n"


def _commonest(found: Counter[str]) -> str | None:
    return max(found, key=found.__getitem__, default=None)


def _colons(tree: JsonTree, values: Sequence[int]) -> Counter[str]:
    spans = ((tree.keys[value], tree.starts[value]) for value in values)
    return _blanks(tree.text[key[1] : start] for key, start in spans if key is not None)


def _commas(tree: JsonTree, values: Sequence[int]) -> Counter[str]:
    """The texts between items on one line, counted."""
    pairs = ((value, tree.after[value], tree.parents[value]) for value in values)
    return _blanks(
        tree.text[tree.ends[value] : tree.item_start(next)]
        for value, next, parent in pairs
        if parent >= 0 and next < tree.after[parent]
    )


def _blanks(found: Iterable[str]) -> Counter[str]:
    """The texts that are a comma or a colon with blanks around it, counted."""
    return Counter(one for one in found if len(one) <= BLANK and one.strip(" \t") in (",", ":"))


def _item_indent(tree: JsonTree, container: int, near: Sequence[int], sample: Sequence[int], base: str) -> str | None:
    """The indentation of items that have lines of their own; None if the items share a line."""
    text = tree.text
    if near:
        alone = [value for value in near if begins_line(text, tree.item_start(value))]
        return indent_at(text, tree.item_start(alone[-1])) if 2 * len(alone) > len(near) else None
    inside = text[tree.starts[container] + 1 : tree.ends[container] - 1]
    alike = [value for value in _containers(tree, sample) if tree.kinds[value] == tree.kinds[container]]
    spread = sum(begins_line(text, tree.item_start(value + 1)) for value in alike)
    if LINE_END.search(inside) or 2 * spread > len(alike) or (len(sample) == 1 and LINE_END.search(text)):
        return base + (_step(tree, sample) or STEP)
    return None


def _containers(tree: JsonTree, values: Sequence[int]) -> list[int]:
    """The containers that are not empty."""
    return [value for value in values if tree.after[value] > value + 1]


def _step(tree: JsonTree, sample: Sequence[int]) -> str | None:
    """The usual indentation of an item relative to its container's line."""
    steps = Counter[str]()
    for value in _containers(tree, sample):
        first = tree.item_start(value + 1)
        if begins_line(tree.text, first):
            base, item = indent_at(tree.text, tree.starts[value]), indent_at(tree.text, first)
            steps[item[len(base) :] if item.startswith(base) else ""] += 1
    return _commonest(steps)


def _pad(tree: JsonTree, kind: str, sample: Sequence[int]) -> str:
    """The usual text between a bracket and the first item on its line."""
    pads = Counter[str]()
    for value in _containers(tree, sample):
        if tree.kinds[value] == kind:
            pads[tree.text[tree.starts[value] + 1 : tree.item_start(value + 1)]] += 1
    pad = _commonest(pads) or ""
    return pad if not pad.strip(" \t") else ""
