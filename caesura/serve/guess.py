"""The language of a text whose file nobody names: the one that a comment tells, as minuet and Continue write it above
the text, else the one whose grammar finds the fewest faults.

A fill takes little from it: what opens a block, what a comment is. Grammars that accept nearly anything are not asked.
"""

import re
from functools import lru_cache

import tree_sitter

from caesura.server.languages import grammar, language

ASKED = ("python", "javascript", "typescript", "typescriptreact", "json", "go", "rust", "java", "c", "cpp", "css")
READ = 1000  # code points on each side that are parsed
MOST = 0.15  # the share of them that may be faults
TOLD = re.compile(  # `# language: python`, `// Path: src/area.ts`, `# area.py`
    r"^(?://|#|--|;|%|/\*|<!--) *(?:language: *(\w+)|(?:(?:Path|File): *)?(\S*\w\.\w+)) *(?:\*/|-->)?$", re.MULTILINE
)


def guessed(prefix: str, suffix: str) -> str:
    """The id of a language, empty where none fits. The line that is typed does not count."""
    above = prefix[: prefix.rfind("\n") + 1]
    return _told(above) or _guessed(above[-READ:], suffix[:READ])


def _told(text: str) -> str:
    """By the last comment: those before it may be of other files."""
    *_, (name, file) = [("", ""), *TOLD.findall(text)]
    found = language(name, file) if name or file else None
    return found.id if found and found.comment else ""


@lru_cache(maxsize=64)  # while a line is typed, what is above stays
def _guessed(above: str, below: str) -> str:
    text = above + below
    source = text.encode(errors="replace")
    faults = {name: _faults(name, source) for name in ASKED if grammar(language(name))}
    best = min(faults, key=lambda name: faults[name], default="")
    return best if best and faults[best] <= MOST * len(source) and text.strip() else ""


def _faults(name: str, source: bytes) -> int:
    """The bytes that are in an ERROR node, and one for each that is missing."""
    known = grammar(language(name))
    assert known is not None, "asked for by a caller who has looked"
    found, waiting = 0, [tree_sitter.Parser(known).parse(source).root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            found += max(1, node.end_byte - node.start_byte)
        else:
            waiting += [child for child in node.children if child.has_error]
    return found
