"""The indentation of a fill's lines: from the cursor's column on, in the file's tabs or spaces and steps. Pure.

Nothing else in the server knows how wide a step is; structured edits read theirs from the items of the document.
"""

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from caesura.server.context.context import Context, line_before, opener_above, opens_block
from caesura.server.languages import Language, language
from caesura.server.text.lexer import closes, indent_of, literal_lines

MOSTLY = 2 / 3  # share of the bodies of a file that have its step; else the file has no step of its own
_AS_DEEP = re.compile(  # lines that may be as deep as what they are in: items, directives, labels, patterns of a shell
    r"- |#(?:if|else|end)|(?:case\b.*|default|public|private|protected)[ \t]*:|[^()\n]*\)[ \t]*(?:\Z|\n)"
)

_NAMESPACE = re.compile(r"\s*(?:(?:inline|export)\s+)*(?:namespace\b|extern\s*\")")


def indented(text: str, context: Context, row: Language, before: str) -> str:
    """`text` with the indentation that it needs after `before`, the start of the hole's line."""
    return _reindented(_joined(text, context, row, before), context, row, before)


def _joined(text: str, context: Context, row: Language, before: str) -> str:
    """`text` without the first line's indentation if the cursor has it already."""
    if before.strip():
        return text.lstrip(" \t") if before[-1] in " \t" else text
    return text.lstrip(" \t") if before and _deep_enough(context, row) else text


def _deep_enough(context: Context, row: Language) -> bool:
    """True if the cursor, in a blank line, is as deep as the line above requires."""
    above = context.prefix.rstrip()
    opener = line_before(above, len(above))
    return len(context.indent) >= len(indent_of(opener)) + opens_block(opener, row)


def _reindented(text: str, context: Context, row: Language, before: str) -> str:
    """`text` with the file's tabs or spaces and steps in every line that the fill begins. The body of an empty block is
    at least one step deeper than its opener."""
    lines = text.split("\n")
    first = 1 if before else 0
    lines, own, theirs = lines[:first], lines[first:], lines[first:]
    literal = literal_lines(text, row, before)
    unit, certain = _indent_unit(context)
    if unit == "\t":
        old = " " * (4 if all(len(indent_of(line)) % 4 == 0 for line in own if line.startswith(" ")) else 2)
    else:
        old = "\t"
    own = [indent_of(line).replace(old, unit) + line.lstrip(" \t") for line in own]
    if context.kind == "block":
        own = _stepped(lines, own, len(context.indent), len(unit), row) if certain and unit != "\t" else own
        if not before.strip():
            own = _deepened(lines, own, context, row, before, unit)
    both = enumerate(zip(own, theirs, strict=True), first)
    return "\n".join([*lines, *(old if number in literal else line for number, (line, old) in both)])


def _indent_unit(context: Context) -> tuple[str, bool]:
    """As `usual_step`, in the file of the hole."""
    above = context.prefix[: context.prefix.rfind("\n") + 1]  # the hole's line changes during typing
    return usual_step(above + context.indent + context.suffix, context.language)


@lru_cache(maxsize=8)
def usual_step(text: str, name: str) -> tuple[str, bool]:
    """One step of indentation in a file of that language, and True if it is known rather than guessed: the language
    allows no other one, or it was read after openers."""
    row, steps = language(name), Counter[str]()
    if row.tabs:
        return row.step, True
    tabs, spaces, last = 0, [], ""
    for line in re.split("[\r\n]+", text):
        indent = indent_of(line)
        tabs += indent.startswith("\t")
        spaces += [len(indent)] if indent.startswith("  ") else []
        if line.strip():
            if opens_block(last, row) and len(indent) > len(indent_of(last)) and indent.startswith(indent_of(last)):
                steps[indent[len(indent_of(last)) :]] += 1
            last = line
    if tabs > len(spaces):
        return "\t", True
    [(step, _)] = steps.most_common(1) or [("", 0)]
    if step.startswith("  "):
        return step, steps[step] > MOSTLY * steps.total()
    return (" " * min(spaces), False) if spaces else (row.step, False)


def _stepped(first: list[str], own: list[str], base: int, unit: int, row: Language) -> list[str]:
    """The lines with steps of `unit` columns after `base`, if the bodies in the fill have other steps. A line that only
    goes on may be deeper by any number of columns."""
    depths = {len(indent_of(line)) - base for line in own if line.strip()}
    lines = [" " * base + line.lstrip() for line in first] + [line for line in own if line.strip()]
    steps = {len(indent_of(below)) - len(indent_of(line)) for line, below in pairwise(lines) if opens_block(line, row)}
    step = min((step for step in steps if step > 0), default=unit)
    if step == unit or step not in (2, 4, 8) or any(depth < 0 or depth % step for depth in depths):
        return own
    return [
        " " * (base + (len(indent_of(line)) - base) // step * unit) + line.lstrip() if line.strip() else line
        for line in own
    ]


def _is_settled(context: Context, row: Language) -> bool:
    """True if the depth of the hole's line is what the user wants, though the opener above has no body: where a comment
    at that depth is above it or, without `offside`, a blank line; in an `offside` language two blank lines."""
    lines = context.prefix.split("\n")[-3:-1]
    *_, last = lines or [""]
    blank = sum(not line.strip() for line in lines) >= (2 if row.offside else 1)
    alike = indent_of(last) == context.indent and bool(last.strip()) and not opens_block(last, row)
    return blank or (alike and not row.offside)


def _is_flat(context: Context, row: Language, opener: str) -> bool:
    """True if the file shows that a body of that kind is no deeper than its opener: the body of a namespace, for which
    nothing to show is enough, or of an element at the depth of `opener`."""
    deeper = Counter[bool]()
    above, below = context.prefix[: context.prefix.rfind("\n") + 1].splitlines(), context.suffix.splitlines()
    above, below = [line for line in above if line.strip()], [line for line in below if line.strip()]
    namespace = row.kin == "c"
    if namespace and not _NAMESPACE.match(opener if opener.strip() != "{" else "".join(above[-2:-1])):
        return False
    for lines in (above, below):
        for head, line, following in zip(["", *lines], lines, lines[1:], strict=False):
            if namespace:
                header = head if line.strip() == "{" else line
                alike = line.rstrip().endswith("{") and _NAMESPACE.match(header) is not None
            else:
                alike = opens_block(line, row) and indent_of(line) == indent_of(opener)
            if alike and not closes(following, row):
                deeper[len(indent_of(following)) > len(indent_of(line))] += 1
    return deeper[False] > deeper[True] or (namespace and not deeper[True])


def _deepened(first: list[str], own: list[str], context: Context, row: Language, before: str, unit: str) -> list[str]:
    """The lines `own`, moved right to where the body of the opener above begins; `first` is changed in place."""
    begun = next((line for line in first or own if line.strip()), "")
    opener, begins = opener_above(context.prefix, row), (before + begun).lstrip()
    if not opens_block(opener, row) or _AS_DEEP.match(begins) or closes(begins, row) or _is_settled(context, row):
        return own
    if (row.kin == "c" or opener.lstrip().startswith("<")) and _is_flat(context, row, opener):
        return own
    depth, least = len(before) + len(indent_of(begun)), len(indent_of(opener)) + len(unit)
    if depth > len(indent_of(opener)):
        return own
    missing = least - depth
    if first:
        first[0] = unit[0] * missing + first[0]
        missing = least - min((len(indent_of(line)) for line in own if line.strip()), default=least)
    return [unit[0] * missing + line if line.strip() else line for line in own]
