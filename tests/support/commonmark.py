"""What markdown-it makes of an edit: whether all but the edit is as it was, inline text included."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from caesura.automata.dfa import Dfa
from caesura.automata.regex import matching
from caesura.server.structured.offer import Offer
from caesura.wire import Pattern

READER = MarkdownIt("commonmark").enable("table")
Mark = tuple[Any, ...]


def marks(text: str) -> list[Mark]:
    """The tokens, without where they stand."""
    return [_mark(token) for token in READER.parse(text)]


def _mark(token: Token) -> Mark:
    inner = tuple(_mark(child) for child in token.children or ())
    content = token.content.removesuffix("\n")  # which HTML at the text's end has only where a line follows
    info = "" if token.type == "list_item_open" else token.info  # its number, which goes on from an item added above
    return token.type, token.tag, content, info, token.hidden, tuple(sorted(token.attrs.items())), inner


BLOCKS = {
    "blockquote_open": "quote",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "hr": "rule",
    "code_block": "code",
    "fence": "fence",
    "html_block": "html",
    "table_open": "table",
}


def blocks(text: str) -> list[tuple[int, str, int]]:
    """Depth, kind and first line of each block, definitions and front matter left out."""
    return [(t.level, BLOCKS[t.type], t.map[0]) for t in READER.parse(text) if t.type in BLOCKS and t.map]


def paragraphs(text: str) -> list[str]:
    """The text of each paragraph, its lines without blanks around them."""
    tokens = READER.parse(text)
    inline = [tokens[n + 1].content for n, token in enumerate(tokens) if token.type == "paragraph_open"]
    return ["\n".join(line.strip(" \t") for line in content.split("\n")) for content in inline]


def links(text: str) -> set[str]:
    """What the text links to, images included."""
    found, waiting = set[str](), list(READER.parse(text))
    while waiting:
        token = waiting.pop()
        found |= {str(value) for name, value in token.attrs.items() if name in ("href", "src")}
        waiting += token.children or ()
    return found


def edited(text: str, offer: Offer, fills: Sequence[str]) -> str:
    return text[: offer.start] + offer.text(fills) + text[offer.end :]


def problem(old: str, offer: Offer, fills: Sequence[str]) -> str | None:
    """Why the edit is not what its title says, by markdown-it; None where it is."""
    new = edited(old, offer, fills)
    before, after = READER.parse(old), READER.parse(new)
    was, now = marks(old), marks(new)
    title = offer.title
    if title == "Add a row below":
        return None if any(was == rest for rest in _without(after, now, "tr", "tbody")) else "not one row more"
    if title == "Add an item below":
        return None if any(was == rest for rest in _without(after, now, "list_item")) else "not one item more"
    if title == "Add a column to the right":
        return (
            None if any(was == rest for rest in _without_column(now, _columns(before, after))) else "not a column more"
        )
    if title == "Fill the code":
        same = [(a, b) for a, b in zip(was, now, strict=False) if a != b]
        body = offer.text(fills).strip("\n")
        return None if len(same) <= 1 and len(was) == len(now) and body else "more than a fence differs"
    plain = marks(edited(old, offer, ["#x" if "link's target" in title else "x"] * len(fills)))
    if [(m[0], m[1], m[3:6]) for m in plain] != [(m[0], m[1], m[3:6]) for m in now]:
        return "another structure" if title != "Fill the language of the code" else None
    changed = sum(a != b for a, b in zip(plain, now, strict=True))
    return None if changed <= len(fills) else "text changes elsewhere"


def _without(tokens: Sequence[Token], found: Sequence[Mark], *kinds: str) -> Iterator[list[Mark]]:
    """The marks without one row or item, for each that there is."""
    for at, token in enumerate(tokens):
        if (kind := token.type.removesuffix("_open")) in kinds and token.nesting == 1:
            closing, level = f"{kind}_close", token.level
            end = next(e for e in range(at, len(tokens)) if (tokens[e].type, tokens[e].level) == (closing, level))
            yield [*found[:at], *found[end + 1 :]]


def _columns(before: Sequence[Token], after: Sequence[Token]) -> list[tuple[int, int]]:
    """The tables that have more cells than before, as spans of tokens."""
    sizes = [[b - a for a, b in _tables(tokens)] for tokens in (before, after)]
    return [span for span, old, new in zip(_tables(after), *sizes, strict=True) if new != old]


def _tables(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    opens = [n for n, token in enumerate(tokens) if token.type == "table_open"]
    return [(a, next(e for e in range(a, len(tokens)) if tokens[e].type == "table_close")) for a in opens]


def _without_column(found: Sequence[Mark], tables: Sequence[tuple[int, int]]) -> Iterator[list[Mark]]:
    for first, last in tables:
        for column in range(128):
            kept, at = list(found[:first]), -1
            for mark in found[first:last]:
                if mark[0] == "tr_open":
                    at = -1
                if mark[0] in ("td_open", "th_open"):
                    at += 1
                if at != column or mark[0] in ("tr_close", "thead_close", "tbody_close", "tbody_open", "thead_open"):
                    kept.append(mark)
            yield [*kept, *found[last:]]


# Texts of a pattern


def walker(seed: int) -> Callable[[Pattern, int], str]:
    """A function that draws texts of a pattern, of about so many bytes: marks of Markdown more often than not."""
    draw = random.Random(seed)
    likely = [ord(mark) for mark in '|`*_#>-+[]()!<:\\/ 1.~=&"@w' + "aZ"]
    ways: dict[str, tuple[Dfa, list[int]]] = {}

    def walk(pattern: Pattern, size: int) -> str:
        if pattern.regex not in ways:
            dfa = matching(pattern.regex, whole=True)
            ways[pattern.regex] = dfa, _distances(dfa)
        dfa, far = ways[pattern.regex]
        state, text = 0, bytearray()
        while True:
            rows = dfa.rows[state]
            if state in dfa.accepting and (len(text) >= size or not rows):
                return text.decode()
            if len(text) >= size:
                mask, state = min(rows, key=lambda row: far[row[1]])
                text.append((mask & -mask).bit_length() - 1)
                continue
            fit = [(mark, target) for mark in likely for mask, target in rows if mask >> mark & 1]
            if not fit or draw.random() < 0.4:
                mask, target = draw.choice(rows)
                fit = [(value, target) for value in range(256) if mask >> value & 1]
            mark, state = draw.choice(fit)
            text.append(mark)

    return walk


def _distances(dfa: Dfa) -> list[int]:
    """How many bytes each state is from a text's end."""
    into: list[list[int]] = [[] for _ in dfa.rows]
    for state, rows in enumerate(dfa.rows):
        for _, target in rows:
            into[target].append(state)
    far, waiting = [-1] * len(dfa.rows), list(dfa.accepting)
    for state in waiting:
        far[state] = 0
    for state in waiting:
        for source in into[state]:
            if far[source] < 0:
                far[source] = far[state] + 1
                waiting.append(source)
    return far


def fills(offer: Offer, walk: Callable[[Pattern, int], str], size: int) -> list[str]:
    patterns = [hole.grammar for hole in offer.holes]
    return [walk(pattern, size) for pattern in patterns if isinstance(pattern, Pattern)]
