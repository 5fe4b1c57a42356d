"""Structured edits of YAML and TOML: the value of a key or an element of a list, on one line.

A trial document with a sample value in the hole shows, in its syntax tree, what the hole is. Values of the same key, or
else next to it, give the type. Patterns are ECMA-262 with the u flag.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Literal

import tree_sitter

from caesura import wire
from caesura.server.structured.markdown.patterns import UNFIT, quoted
from caesura.server.structured.offer import NoOffer, Offer
from caesura.server.text import repair

_TOKENS = 32  # maximum for a value
_SAMPLES = {"yaml": "x", "toml": "0"}
_PLACE = "Put the cursor after a key without a value, or select a whole value on one line."

_TABLES = "Only a table of scalars and lists with the keys of its siblings can be edited; fill the selection instead."

_INTEGER = r"-?(?:0|[1-9][0-9]{0,17})"
_DECIMAL = r"-?(?:0|[1-9][0-9]{0,14})\.[0-9]{1,15}"
_DOUBLE = rf'"(?:[^"\\{UNFIT}]|\\["\\nt])+"'
_DATE = (
    r"[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    r"02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = r"(?:Z|[+\-](?:0[0-9]|1[0-4]):[0-5][0-9])"


# Plain words that are not strings in YAML 1.1 or 1.2.
_TAKEN = "|".join(
    "".join(f"[{letter}{letter.upper()}]" for letter in word)
    for word in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
)


def _plain(within: str) -> str:
    """The pattern of a plain YAML scalar: begins with a letter, an underscore or a slash, contains no `: ` and no ` #`,
    and none of the marks in `within`."""
    mark = rf"[^ :#{within}{UNFIT}]"
    first = rf"[^\x00-.0-@\[-^`{{-\x7f{UNFIT}]"
    go_on = rf"(?:{mark}|#{'' if within else f'|:+(?:{mark}|#)'})*"
    more = mark if within else f"(?:{mark}|:+{mark})"
    return f"{first}{go_on}(?: {more}{go_on})*"


_YAML = {
    "integer": _INTEGER,
    "float": _DECIMAL,
    "number": f"(?:{_INTEGER}|{_DECIMAL})",
    "boolean": "(?:true|false)",
    "capital": "(?:True|False)",
    "yes": "(?:yes|no)",
    "on": "(?:on|off)",
    "date": _DATE,
    "double": _DOUBLE,
    "single": rf"'(?:[^'{UNFIT}]|'')+'",
}
_TOML = {
    "integer": _INTEGER,
    "float": _DECIMAL,
    "number": f"(?:{_INTEGER}|{_DECIMAL})",
    "boolean": "(?:true|false)",
    "double": _DOUBLE,
    "single": rf"'[^'{UNFIT}]+'",
    "local_date": _DATE,
    "local_time": _TIME,
    "local_date_time": rf"{_DATE}[T ]{_TIME}",
    "offset_date_time": rf"{_DATE}[T ]{_TIME}{_ZONE}",
}
_WORDLIKE = {
    "yes": "yes|no",
    "on": "on|off",
    "date": r"\d{4}-\d\d-\d\d",
}  # plain words in YAML's grammar
_TAGS = {"!!int": "integer", "!!float": "number", "!!bool": "boolean"}  # the kind of value that a YAML tag allows
_PROPERTIES = ("anchor", "tag")  # of a YAML node, before its content; they stay
_BRACKETS = r",\[\]{}"  # end a plain scalar in a list or mapping on one line
_LISTS = ("flow_sequence", "array")
_PAIRS = ("block_mapping_pair", "flow_pair", "pair")


def offers(text: str, start: int, end: int, *, language: str) -> list[Offer]:
    """The edit of the value at a cursor or selection. `language` is "yaml" or "toml". Raises NoOffer."""
    sample = _SAMPLES[language]
    old = repair.parsed(text, language)
    if old is None:
        raise NoOffer("The document is too long for structured edits; fill a selection instead.")
    selected = text[start:end]
    if selected and (selected != selected.strip() or "\n" in selected):
        raise NoOffer(_PLACE)
    if selected:
        start = _content_start(old, text, start, end)
        selected = text[start:end]
    was = _value_at(old, text, start, end) if selected else None
    if selected and was is None:
        raise NoOffer(_PLACE)
    before, after = _glue(text, start, end)
    span = start, end if selected else _end_of_blanks(text, end)
    trial = text[:start] + before + sample + after + text[span[1] :]
    tree = repair.parsed(trial, language)
    at = start + len(before)
    value = _value_at(tree, trial, at, at + len(sample)) if tree else None
    if tree is None or value is None or repair.faults(tree).nodes > repair.faults(old).nodes:
        raise NoOffer(_PLACE)
    if language == "toml":
        _loaded(trial)
    pattern = _expected(value, was, language)
    pieces: list[str | wire.Hole] = [before, wire.Hole(_TOKENS, "span", wire.Pattern(pattern)), after]
    segments = tuple(wire.Text(piece) if isinstance(piece, str) else piece for piece in pieces if piece)
    level: Literal["valid", "parses"] = "valid" if language == "toml" else "parses"
    check = _Check(trial, tree, at, len(sample), language)
    return [Offer(_title(value), *span, segments, check=check, level=level)]


class _Check:
    """Compares the new document with the trial: they may differ only within the value."""

    def __init__(self, trial: str, tree: tree_sitter.Tree, start: int, length: int, language: str) -> None:
        self._trial, self._language = trial, language
        self._start, self._after = start, len(trial) - start - length
        self._faults = repair.faults(tree).nodes
        self._outline = _outline(tree, *_bytes(trial, start, start + length))

    def __repr__(self) -> str:
        return f"<_Check of {self._language} at {self._start}>"

    def __call__(self, text: str) -> str | None:
        end = len(text) - self._after
        tree = repair.parsed(text, self._language)
        if tree is None or repair.faults(tree).nodes > self._faults:
            return f"The document would not parse as {self._language.upper()}."
        if _value_at(tree, text, self._start, end) is None:
            return "The value would not be on one line."
        if _outline(tree, *_bytes(text, self._start, end)) != self._outline:
            return "The value would change the text around it."
        if self._language == "toml":
            try:
                differences = _differences(_loaded(self._trial), _loaded(text))
            except NoOffer as refusal:
                return str(refusal)
            if differences > 1:
                return "The value would change other values."
        return None


def _loaded(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number that Python cannot read
        raise NoOffer(f"The document is not valid TOML: {error}. Correct it first.") from None


def _differences(a: object, b: object) -> int:
    """The number of values that differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return sum(_differences(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return sum(_differences(*pair) for pair in zip(a, b, strict=True))
    nan = a != a and b != b
    return int(type(a) is not type(b) or (a != b and not nan))


def _outline(tree: tree_sitter.Tree, start: int, end: int) -> list[tuple[int, str, int, int]]:
    """All nodes except those of the value at start:end (bytes), with offsets as if the value were empty."""
    found, depth, cursor = list[tuple[int, str, int, int]](), 0, tree.walk()
    while True:
        node = cursor.node
        assert node is not None, "a cursor is on a node"
        a, b = node.start_byte, node.end_byte
        if not start <= a < b <= end:
            first, last = (at if at <= start else at - (end - start) for at in (a, b))
            found.append((depth, node.type, first, last))
            if cursor.goto_first_child():
                depth += 1
                continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return found
            depth -= 1


# The hole


def _glue(text: str, start: int, end: int) -> tuple[str, str]:
    """Blanks to add at a cursor: after a key's mark, and before a comment."""
    before = " " if start == end and text[start - 1 : start] in (":", "=", "-") else ""
    return before, " " if start == end and text[end : end + 1] == "#" else ""


def _end_of_blanks(text: str, at: int) -> int:
    """The end of the line if only blanks follow `at`, else `at`."""
    end = at
    while text[end : end + 1] in (" ", "\t"):
        end += 1
    return end if text[end : end + 1] in ("", "\n", "\r") else at


def _value_at(tree: tree_sitter.Tree, text: str, start: int, end: int) -> tree_sitter.Node | None:
    """The node of the value or list element whose content is exactly start:end; None if there is none."""
    first, last = _bytes(text, start, end)
    node = tree.root_node.descendant_for_byte_range(first, last)
    if node is None or (node.start_byte, node.end_byte) != (first, last):
        return None
    while node.parent and (node.parent.start_byte, node.parent.end_byte) == (first, last):
        node = node.parent
    if node.type == "flow_node" and _content(node) != node.named_children[0]:
        return None  # an anchor or a tag is no part of the content
    if node.parent and node.parent.type == "flow_node" and _content(node.parent) == node:
        node = node.parent
    parent = node.parent
    if parent is None or _kind(node) == "":
        return None
    if parent.type in _PAIRS:
        return node if _value(parent) == node else None
    return node if parent.type in ("block_sequence_item", *_LISTS) else None


def _content_start(tree: tree_sitter.Tree, text: str, start: int, end: int) -> int:
    """The offset after the anchor and the tag of the node that is exactly start:end; `start` if it has none."""
    first, last = _bytes(text, start, end)
    node = tree.root_node.descendant_for_byte_range(first, last)
    if node is None or (node.start_byte, node.end_byte) != (first, last) or node.type != "flow_node":
        return start
    content = _content(node)
    return start if content is None else start + len(text[start:].encode()[: content.start_byte - first].decode())


def _content(node: tree_sitter.Node) -> tree_sitter.Node | None:
    """What a node has besides its anchor and its tag."""
    found = [child for child in node.named_children if child.type not in _PROPERTIES]
    return found[0] if len(found) == 1 else None


def _value(pair: tree_sitter.Node) -> tree_sitter.Node | None:
    """The value of a pair, if it has one."""
    if pair.type == "pair":
        return next((node for node in pair.named_children[1:] if node.type != "comment"), None)
    return pair.child_by_field_name("value")


def _key(pair: tree_sitter.Node) -> str:
    node = pair.child(0) if pair.type == "pair" else pair.child_by_field_name("key")
    return (node.text or b"").decode() if node else ""


def _kind(value: tree_sitter.Node) -> str:
    """A key of `_YAML` or `_TOML`, "plain", "null", a list or a table; empty for anything else."""
    node = value
    while node.type in ("flow_node", "plain_scalar"):
        if (content := _content(node)) is None:
            return ""
        node = content
    text = (node.text or b"").decode()
    if node.type == "string":
        return "single" if text.startswith("'") else "double"
    if node.type == "boolean_scalar" and not text.islower():
        return "capital" if text.istitle() else ""
    if node.type == "string_scalar" and (
        kind := next((k for k, like in _WORDLIKE.items() if re.fullmatch(like, text)), "")
    ):
        return kind
    kinds = {"string_scalar": "plain", "double_quote_scalar": "double", "single_quote_scalar": "single"}
    kind = kinds.get(node.type, node.type.removesuffix("_scalar"))
    return kind if kind in (*_YAML, *_TOML, *_LISTS, "plain", "null", "inline_table") else ""


# Its type


def _expected(value: tree_sitter.Node, was: tree_sitter.Node | None, language: str) -> str:
    """The pattern: of the siblings' kind if they agree, else of the old value's kind, else of any scalar. A tag, which
    siblings need not have, says more than they do."""
    within = _BRACKETS if _in_brackets(value) else ""
    if tag := _tag(value):
        kind = _TAGS.get(tag) or ("" if was is None else _kind(was))
        return _like([was] if was else [], "" if kind == "null" else kind, language, within)
    models = _siblings(value)
    kind = _agreed({_kind(node) for node in models} - {"null"})
    if was is not None and (not kind or (kind == "inline_table" and not _table(models))):
        kind, models = _kind(was), [was]
    return _like(models, "" if kind == "null" else kind, language, within)


def _like(models: Sequence[tree_sitter.Node], kind: str, language: str, within: str) -> str:
    """The pattern of a value of this kind, formed like `models`."""
    if kind in _LISTS:
        return _list([node for node in map(_inner, models) if node.type in _LISTS], language)
    if kind == "inline_table":
        if (table := _table(models)) is None:
            raise NoOffer(_TABLES)
        return table
    return _scalar(kind, language, within)


def _scalar(kind: str, language: str, within: str) -> str:
    table = _YAML if language == "yaml" else _TOML
    plain = [f"(?!(?:{_TAKEN})$){_plain(within)}"] if language == "yaml" else []
    if kind == "plain":
        return plain[0]
    return table.get(kind) or f"(?:{'|'.join([*plain, _DOUBLE, table['number'], table['boolean']])})"


def _agreed(kinds: set[str]) -> str:
    """The common kind ("number" for integers and floats), or empty."""
    if kinds and kinds <= {"integer", "float"}:
        return "number" if len(kinds) == 2 else next(iter(kinds))
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _list(lists: Sequence[tree_sitter.Node], language: str) -> str:
    """The pattern of a list on one line, with elements like those of `lists` and the same blanks inside brackets."""
    elements = [node for parent in lists for node in parent.named_children if node.type != "comment"]
    kind = _agreed({_kind(node) for node in elements})
    if kind in ("", "null", "inline_table", *_LISTS):
        kind = "double"
    pad = " " if (lists[0].text or b"")[1:2] == b" " else ""
    if kind == "plain":
        guard, element = rf"(?!.*[\[ ](?:{_TAKEN})[,\] ])", _plain(_BRACKETS)
    else:
        guard, element = "", _scalar(kind, language, _BRACKETS)
    return rf"{guard}\[(?:{pad}{element}(?:, {element})*{pad})?\]"


def _table(tables: Sequence[tree_sitter.Node]) -> str | None:
    """The pattern of an inline table, if all `tables` have the same keys in the same order."""
    pairs = [[node for node in table.named_children if node.type == "pair"] for table in tables]
    keys = [[_key(pair) for pair in found] for found in pairs]
    if not (keys and keys[0]) or any(other != keys[0] for other in keys):
        return None
    parts = list[str]()
    for column in zip(*pairs, strict=True):
        values = [value for pair in column if (value := _value(pair)) is not None]
        if any(_kind(value) == "inline_table" for value in values):
            return None
        parts.append(f"{quoted(_key(column[0]))} = {_like(values, _agreed(set(map(_kind, values))), 'toml', '')}")
    return rf"\{{ {', '.join(parts)} \}}"


def _siblings(value: tree_sitter.Node) -> list[tree_sitter.Node]:
    """Values of the same key elsewhere, else of the neighbouring keys if there are at least two; for an element, the
    list's other elements."""
    parent = value.parent
    assert parent is not None, "a value has a parent"
    if parent.type in _LISTS:
        return [node for node in parent.named_children if node != value and node.type != "comment"]
    around = parent.parent
    assert around is not None, "a pair has a parent"
    if parent.type == "block_sequence_item":
        items = [node for node in around.named_children if node.type == parent.type and node != parent]
        return [child for node in items for child in node.named_children if child.type != "comment"]
    key = _key(parent)
    same = [node for pair in _pairs(parent) if _key(pair) == key and (node := _value(pair)) and node != value]
    if same:
        return same
    pairs = [node for node in around.named_children if node.type in _PAIRS and node != parent]
    values = [node for pair in pairs if (node := _value(pair))]
    return values if len(values) > 1 and not {_kind(node) for node in values} & {"inline_table", *_LISTS} else []


def _pairs(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """All pairs of the document."""
    while node.parent:
        node = node.parent
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.type in _PAIRS:
            yield node
        waiting += reversed(node.named_children)


def _in_brackets(value: tree_sitter.Node) -> bool:
    node = value.parent
    while node is not None and not node.type.startswith("flow_"):
        node = node.parent
    return node is not None


def _inner(value: tree_sitter.Node) -> tree_sitter.Node:
    return (_content(value) if value.type == "flow_node" else None) or value


def _tag(value: tree_sitter.Node) -> str:
    return next(((node.text or b"").decode() for node in value.named_children if node.type == "tag"), "")


def _title(value: tree_sitter.Node) -> str:
    parent = value.parent
    assert parent is not None, "a value has a parent"
    if parent.type not in _PAIRS:
        return "Fill the element"
    key = _key(parent).strip("\"'")
    return f'Fill the value of "{key if len(key) <= 40 else key[:39] + "…"}"'


def _bytes(text: str, start: int, end: int) -> tuple[int, int]:
    first = len(text[:start].encode())
    return first, first + len(text[start:end].encode())
