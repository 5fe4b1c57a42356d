"""Lines, keys and imports of a fill that the document has already. Pure: text in, text out."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile

from caesura.characters import is_word
from caesura.server.context.context import Context, opens_block
from caesura.server.languages import Language
from caesura.server.text.lexer import indent_of

_MARK = re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]+")  # of a list
_CLOSING = " \t,;)]}"
_ALIKE = frozenset(["try", "do", "else", "finally", "loop", "unsafe", "begin"])  # words that open many blocks
_TAG = re.compile(r"<[A-Za-z][^<>]*>\Z")
_YAML_KEY = re.compile(
    r"(?P<items>(?:-[ \t]+)*)(?P<key>'[^']*'|\"[^\"]*\"|[^\s#'\"\[\]{}&*!|>%@`,-][^#\n]*?)[ \t]*:(?=\s|\Z)"
)
_TOML_KEY = re.compile(r"(?P<items>)(?P<key>[\w-]+(?:[ \t]*\.[ \t]*[\w-]+)*|'[^']*'|\"[^\"]*\")[ \t]*=")
_KEYS = {"yaml": _YAML_KEY, "toml": _TOML_KEY}
_BLOCK_SCALAR = re.compile(r"(?:^|[\s:-])[|>][-+\d]*(?:[ \t]+#.*)?\Z")  # the end of the line above a YAML text


def without_next_line(text: str, context: Context, row: Language, before: str) -> str:
    """`text` without a beginning or an end that says what the next line of the document says, and up to a line that has
    a key or an import for a second time; where nothing but blanks follows the hole on its line. A line that is deeper
    or shallower than the next one may begin like it."""
    rest, *below = re.split(r"\r\n|\r|\n", context.suffix)
    if rest.strip():
        return text
    following = [line for line in below if line.strip()] or [""]
    above = re.split(r"\r\n|\r|\n", context.prefix)[:-1]
    lines = (before + text.rstrip()).split("\n")
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        alike = last or (number == 0 and _goes_on(lines, following, row))
        said = alike and _says(line, following[0], row, whole=not last)
        before_it = [*above, *lines[:number]]
        second = context.scope == "code" and _is_second(line, before_it, below, row)
        if said or second or _is_imported(line, before_it, below, row):
            return "\n".join(lines[:number])[len(before) :]
    return text


def _goes_on(lines: Sequence[str], following: Sequence[str], row: Language) -> bool:
    """True if the first line opens a block, as the selector of a rule does, or the others too say what the following
    lines say. Else the first one may be alike by chance, as `@Override` and `try {` are."""
    if opens_block(lines[0], row) and not is_alike(lines[0], row):
        return True
    more = [line for line in lines[1:] if line.strip()]
    pairs = list(zip(more, following[1:], strict=False))
    return bool(pairs) and all(_says(line, other, row, whole=True) for line, other in pairs)


def _says(line: str, following: str, row: Language, *, whole: bool) -> bool:
    """True if the line is all of the following one, or unless `whole` its beginning, up to the end of a word. Marks of
    lists and closing signs do not count; nor does a word that opens a block, since the body may differ."""
    one, other = _bare(line), _bare(following)
    if indent_of(line) != indent_of(following) or not any(map(str.isalnum, one)) or is_alike(line, row):
        return False
    return one == other or (not whole and other.startswith(one) and not (is_word(one[-1]) and is_word(other[len(one)])))


def is_alike(line: str, row: Language) -> bool:
    """True for a word or a tag alone that opens a block: another one may follow, with another body."""
    word = _bare(line).rstrip(": {")
    return _TAG.match(word) is not None or word in _ALIKE or word in row.headers


def _bare(line: str) -> str:
    return _MARK.sub("", line.strip(), count=1).rstrip(_CLOSING)


def _key(line: str, row: Language) -> tuple[int, str] | None:
    """The key of a line and its column, if the line has one."""
    pattern, indent = _KEYS.get(row.edits), indent_of(line)
    match = pattern.match(line, len(indent)) if pattern else None
    return (len(indent) + len(match["items"]), match["key"].strip("'\"")) if match else None


def _is_second(line: str, above: Sequence[str], below: Sequence[str], row: Language) -> bool:
    """True if the mapping that the line is part of has its key already. The lines of a YAML text have no keys."""
    if (key := _key(line, row)) is None:
        return False
    depth = len(indent_of(line))
    opener = next((other for other in reversed(above) if other.strip() and len(indent_of(other)) < depth), "")
    if row.edits == "yaml" and _BLOCK_SCALAR.search(opener.rstrip()):
        return False
    begins_item = indent_of(line) != line[: key[0]]
    over = () if begins_item else _in_mapping(reversed(above), key[0], row, upward=True)
    others = (_key(other, row) for other in (*over, *_in_mapping(iter(below), key[0], row, upward=False)))
    return any(other is not None and other[1] == key[1] for other in others)


def _is_imported(line: str, above: Sequence[str], below: Sequence[str], row: Language) -> bool:
    """True if the imports around the line have it already."""
    rules = row.names.import_rules if row.names else None
    if rules is None or not re.match(rules.line, line.strip()):
        return False
    around = (
        takewhile(lambda other: not other.strip() or re.match(rules.line, other.strip()), lines)
        for lines in (reversed(above), below)
    )
    return any(_bare(other) == _bare(line) for other in chain(*around))


def _in_mapping(lines: Iterator[str], column: int, row: Language, *, upward: bool) -> Iterator[str]:
    """The lines with keys in this column, up to where the mapping begins or ends."""
    for line in lines:
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if row.edits == "toml":
            if bare.startswith("["):
                return
            yield line
            continue
        depth, key = len(indent_of(line)), _key(line, row)
        begins = key is not None and key[0] == column and depth < column
        if (depth < column and not (begins and upward)) or bare in ("---", "..."):
            return
        if key is not None and key[0] == column:
            yield line
        if begins:
            return
