"""The placeholders of a snippet as gaps: `$1`, `${1}`, `${1:name}` and `${1|one,two|}`. Pure.

Equal numbers in one snippet are one hole: one of them is filled, and the others take its text. Meanwhile they show the
model their name. Other forms, such as transforms and nested placeholders, are left alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caesura.server.fills.task import Gap
from caesura.server.structured.markdown.patterns import few
from caesura.server.text.document import Span

MOST_NAMED = 3  # most placeholders that a sentence quotes

_FORM = re.compile(
    r"\\+."  # an escape: in JSON the backslash itself is escaped
    r"|\$(?P<bare>\d+)"
    r"|\$\{(?P<number>\d+)(?::(?P<name>[^{}$\\\n]*)|\|(?P<choices>[^|{}$\\\n]+)\|)?\}"
    r"|(?P<other>\$\{\d+)",
    re.DOTALL,
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_FILES = (".code-snippets", ".snippets")
_BORDER = re.compile(r'^(?:end)?snippet\b|"body"\s*:', re.MULTILINE)  # numbers begin again in each snippet


@dataclass(frozen=True)
class _Placeholder:
    start: int
    end: int
    key: tuple[int, int]  # number of the snippet in the text, number of the placeholder
    name: str
    choices: tuple[str, ...]


def is_snippets(path: str) -> bool:
    """True for a file of snippets, in which `$1` is a placeholder; elsewhere it is code."""
    return path.endswith(_FILES)


def placeholders(text: str, spans: Sequence[Span]) -> tuple[list[Gap], str]:
    """The gaps for the placeholders in `spans`, and a sentence on those that are left alone, or an empty one."""
    found, others = list[_Placeholder](), list[str]()
    for start, end in sorted(spans):
        for one in _read(text, start, end):
            if isinstance(one, str):
                others.append(one)
            else:
                found.append(one)
    owners: dict[tuple[int, int], int] = {}  # of a number, the place with most to say
    for at in sorted(range(len(found)), key=lambda at: (not found[at].choices, not found[at].name, at)):
        owners.setdefault(found[at].key, at)
    gaps = [_gap(one, owners[one.key], at, found[owners[one.key]].name) for at, one in enumerate(found)]
    return gaps, _sentence(others)


def _gap(one: _Placeholder, owner: int, at: int, name: str) -> Gap:
    if owner == at:
        return Gap(one.start, one.end, choices=few(one.choices))
    return Gap(one.start, one.end, (name,), like=owner)


def _read(text: str, start: int, end: int) -> Iterator[_Placeholder | str]:
    """The placeholders in a part of the text, and the other forms as they are written."""
    at = start
    while found := _FORM.search(text, at, end):
        at = found.end()
        if found["other"]:
            at = _after_brace(text, at, end)
            yield text[found.start() : at]
        elif number := found["bare"] or found["number"]:
            snippet = len(_BORDER.findall(text, 0, found.start()))
            choices = tuple(dict.fromkeys(filter(None, (found["choices"] or "").split(","))))
            yield _Placeholder(*found.span(), (snippet, int(number)), found["name"] or "", choices)


def _after_brace(text: str, at: int, end: int) -> int:
    """The offset after the brace that closes the one before `at`, or `at` if none does."""
    depth = 1
    for found in _BRACE.finditer(text, at, end):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return at


def _sentence(others: Sequence[str]) -> str:
    if not others:
        return ""
    named = ", ".join(dict.fromkeys(others[:MOST_NAMED])) + (" and others" if len(others) > MOST_NAMED else "")
    return f"Left as it is: {named}; transforms and nested placeholders are not filled."
