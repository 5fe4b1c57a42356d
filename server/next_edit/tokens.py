"""Tokens of source lines, and how the tokens of two texts are aligned.

A token is an identifier, a number, a line break with the indentation after it, blanks, or one other sign. Lines have
no line breaks of their own; their tokens begin with a line break, so that the indentation of the first line is a token
like that of the others.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

CodeTokens = tuple[str, ...]

KNOWN = 64  # pairs of texts whose changes are kept, since several gates ask for those of one place

_TOKEN = re.compile(r"[^\W\d]\w*|\d+(?:\.\d+)*\w*|\n[ \t]*|[ \t]+|.", re.DOTALL)
_INDENT = re.compile(r"[ \t]*")
_IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")
_QUOTES = "\"'`"


class Change(NamedTuple):
    """Tokens `start:end` of the old text became the tokens `new`."""

    start: int
    end: int
    new: CodeTokens


def tokens(lines: Sequence[str]) -> CodeTokens:
    return tuple(_TOKEN.findall("".join(f"\n{line}" for line in lines)))


def is_identifier(token: str) -> bool:
    return _IDENTIFIER.match(token) is not None


def is_number(token: str) -> bool:
    return token[:1].isdigit()


def indent(line: str) -> str:
    found = _INDENT.match(line)
    assert found is not None, "the pattern matches an empty text"
    return found[0]


def dedented(lines: Sequence[str], margin: str) -> list[str] | None:
    """The lines without `margin` at their start, which blank lines may lack; None if another line lacks it."""
    if all(line.startswith(margin) or not line.strip() for line in lines):
        return [line.removeprefix(margin) for line in lines]
    return None


def aligned(old: CodeTokens, new: CodeTokens) -> Sequence[tuple[str, int, int, int, int]]:
    """The operations of difflib that turn `old` into `new`."""
    return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


@lru_cache(KNOWN)
def changes(old: CodeTokens, new: CodeTokens) -> Sequence[Change]:
    """The differences, in order."""
    return tuple(Change(a, b, new[c:d]) for kind, a, b, c, d in aligned(old, new) if kind != "equal")


def strings(row: CodeTokens) -> Iterator[bool]:
    """For each token: True if it lies inside the quotes of a string that begins on its line."""
    quote = ""
    for token in row:
        if token[0] == "\n" or (quote and token == quote):
            quote = ""
        elif not quote and token in _QUOTES:
            quote = token
            yield False
            continue
        yield bool(quote)
