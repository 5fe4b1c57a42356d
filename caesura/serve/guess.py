"""The language of a text without a file name: the one that a comment names, as minuet and Continue write it above the
text, else the one whose grammar finds the fewest faults.

Fills need little of it: block openers and comment markers. Grammars that accept nearly anything are left out.
"""

import re
from functools import lru_cache

import tree_sitter

from caesura.server.languages import grammar, language

GUESSABLE = ("python", "javascript", "typescript", "typescriptreact", "json", "go", "rust", "java", "c", "cpp", "css")
WINDOW = 1000  # code points on each side that are parsed
MAX_FAULTS = 0.15  # share of the bytes that may be faults
COMMENT = re.compile(  # `# language: python`, `// Path: src/area.ts`, `# area.py`
    r"^(?://|#|--|;|%|/\*|<!--) *(?:language: *(\w+)|(?:(?:Path|File): *)?(\S*\w\.\w+)) *(?:\*/|-->)?$", re.MULTILINE
)


def guessed(prefix: str, suffix: str) -> str:
    """The id of a language, empty where none fits. The line with the gap does not count."""
    above = prefix[: prefix.rfind("\n") + 1]
    return _named(above) or _guessed(above[-WINDOW:], suffix[:WINDOW])


def _named(text: str) -> str:
    """From the last such comment: earlier ones may belong to other files."""
    *_, (name, file) = [("", ""), *COMMENT.findall(text)]
    found = language(name, file) if name or file else None
    return found.id if found and found.comment else ""


@lru_cache(maxsize=64)  # the text above stays while the user types a line
def _guessed(above: str, below: str) -> str:
    text = above + below
    source = text.encode(errors="replace")
    faults = {name: _faults(name, source) for name in GUESSABLE if grammar(language(name))}
    best = min(faults, key=lambda name: faults[name], default="")
    return best if best and faults[best] <= MAX_FAULTS * len(source) and text.strip() else ""


def _faults(name: str, source: bytes) -> int:
    """The number of bytes in ERROR nodes, plus one for each MISSING node."""
    known = grammar(language(name))
    assert known is not None, "the caller has checked that there is a grammar"
    found, waiting = 0, [tree_sitter.Parser(known).parse(source).root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            found += max(1, node.end_byte - node.start_byte)
        else:
            waiting += [child for child in node.children if child.has_error]
    return found
