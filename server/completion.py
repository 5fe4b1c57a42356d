"""From the engine's text for a hole to what is inserted there: nothing that stands after the hole already, nothing
beyond the kind of hole, and the file's own indentation and line ends. Pure: text and context in, text out."""

import re

from caesura.server.context import Context, indent_of, line_after, line_before, opens_block
from caesura.server.languages import Language, language

_INVISIBLE = re.compile(  # controls, soft hyphen, zero-width, bidi, line separators, tags, undecodable
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffd"
    "\U000e0000-\U000e007f]"
)
_LAST_BREAK = re.compile(r".*(\r\n|\r|(?<!\r)\n)", re.DOTALL)
_FIRST_BREAK = re.compile(r"(\r\n|\r|\n)")
_MARKS = re.compile(r"\\.|[()\[\]{}\"'`\n]", re.DOTALL)
_PARTNER = {")": "(", "]": "[", "}": "{"}
_NEAR = 2000  # code points on each side that bracket counts look at


def finish(text: str, context: Context) -> str:
    """What to insert at the hole of `context` for the fill `text`; empty when nothing of it is left."""
    row = language(context.language)
    before, after = line_before(context.prefix, len(context.prefix)), line_after(context.suffix, 0)
    text = _visible(text, context).replace("\r\n", "\n").replace("\r", "\n")
    text = _joined(text, context, row, before)
    text = _reindented(text, context, before)
    text = _within(text, context, row, before)
    text = _without_rest_of_line(text, context, row, after)
    text = _without_following_lines(text, context, row, before)
    text = _without_excess_closers(text, context, row)
    text = "\n".join([*(line.rstrip() for line in text.split("\n")[:-1]), text.rpartition("\n")[2]])
    if not after or after[0] in " \t" or not text.strip():
        text = text.rstrip()
    return text.replace("\n", line_break(context))


def line_break(context: Context) -> str:
    """The line end of the file, taken from the nearest line break."""
    found = _LAST_BREAK.match(context.prefix) or _FIRST_BREAK.search(context.suffix)
    return found[1] if found else "\n"


def _visible(text: str, context: Context) -> str:
    """Without the invisible characters that the file does not use itself."""
    return _INVISIBLE.sub(lambda c: c[0] if c[0] in context.prefix or c[0] in context.suffix else "", text)


def _within(text: str, context: Context, row: Language, before: str) -> str:
    """Without what lies beyond the hole's line, or beyond its block."""
    if context.kind != "block":
        return text.partition("\n")[0]
    first, *rest = text.split("\n")
    if before.strip():
        least = len(context.indent) + opens_block(before, row)
    else:
        least = len(context.indent) + len(indent_of(first))
    for index, line in enumerate(rest):
        outside = len(indent_of(line)) < least and line.strip()
        if outside and (row.offside or line.lstrip()[0] not in _PARTNER):
            return "\n".join([first, *rest[:index]])
    return text


def _joined(text: str, context: Context, row: Language, before: str) -> str:
    """The first line goes on at the cursor's column."""
    if before.strip():
        return text.lstrip(" \t") if before[-1] in " \t" else text
    return text.lstrip(" \t") if before and _deep_enough(context, row) else text


def _deep_enough(context: Context, row: Language) -> bool:
    """Whether the cursor, in a blank line, already stands at the depth that the line above asks for."""
    above = context.prefix.rstrip()
    opener = line_before(above, len(above))
    return len(context.indent) >= len(indent_of(opener)) + opens_block(opener, row)


def _reindented(text: str, context: Context, before: str) -> str:
    """Tabs or spaces as the file has them, in every line that the fill begins itself."""
    lines = text.split("\n")
    own = lines[1:] if before else lines
    indents = [indent_of(line) for line in re.split("[\r\n]+", context.prefix + context.suffix)]
    spaces = [len(indent) for indent in indents if indent.startswith("  ")]
    if sum(indent.startswith("\t") for indent in indents) > len(spaces):
        unit = 4 if all(len(indent_of(line)) % 4 == 0 for line in own if line.startswith(" ")) else 2
        old, new = " " * unit, "\t"
    else:
        old, new = "\t", " " * min(spaces, default=4)
    return "\n".join([*lines[: len(lines) - len(own)], *(_with_indent(line, old, new) for line in own)])


def _with_indent(line: str, old: str, new: str) -> str:
    return indent_of(line).replace(old, new) + line.lstrip(" \t")


def _without_rest_of_line(text: str, context: Context, row: Language, after: str) -> str:
    """Without an end that repeats what follows on the line, unless the text needs it to be whole."""
    body, rest = text.rstrip(), after.strip()
    for size in range(min(len(body), len(rest)), 0, -1):
        kept = body[:-size]
        if not body.endswith(rest[:size]) or _in_word(body, len(kept)) or _in_word(rest, size):
            continue
        if _faults(kept, context, row) <= _faults(body, context, row):
            return kept
    return text


def _in_word(text: str, offset: int) -> bool:
    return all(c.isalnum() or c == "_" for c in text[max(0, offset - 1) : offset + 1]) and 0 < offset < len(text)


def _without_following_lines(text: str, context: Context, row: Language, before: str) -> str:
    """Without the last lines where they repeat the lines after the hole."""
    rest, *below = context.suffix.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    following = [line.rstrip() for line in below if line.strip()]
    if rest.strip() or not following:
        return text
    lines = (before + text.rstrip()).split("\n")
    for index in range(1 if before.strip() else 0, len(lines)):
        tail = [line.rstrip() for line in lines[index:] if line.strip()]
        kept = "\n".join(lines[:index])[len(before) :]
        if tail and tail == following[: len(tail)] and _faults(kept, context, row) <= _faults(text, context, row):
            return kept
    return text


def _without_excess_closers(text: str, context: Context, row: Language) -> str:
    """Without closing brackets and quotes at the end that the text after the hole supplies."""
    body = text.rstrip()
    while body and body[-1] in ")]}\"'`" and _faults(body[:-1], context, row) < _faults(body, context, row):
        text = body = body[:-1].rstrip()
    return text


def _faults(text: str, context: Context, row: Language) -> int:
    """Brackets without a partner and strings without an end, with `text` in the hole. Only differences mean much:
    comments and the limits of the context add the same to each count."""
    faults = 0
    opened: list[str] = []
    quote = ""
    for found in _MARKS.finditer(context.prefix[-_NEAR:] + text + context.suffix[:_NEAR]):
        mark = found[0]
        if quote:
            if mark == quote or (mark == "\n" and quote != "`"):
                faults += mark == "\n"
                quote = ""
        elif mark in row.quotes:
            quote = mark
        elif mark in "([{":
            opened.append(mark)
        elif mark in _PARTNER:
            if opened and opened[-1] == _PARTNER[mark]:
                opened.pop()
            else:
                faults += 1
    return faults + len(opened) + bool(quote)
