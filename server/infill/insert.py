"""Turn the engine's text for a hole into the text to insert: without repeating the text around it or exceeding the kind
of hole, and with the file's indentation and line ends. Pure: text in, text out."""

import re
from collections.abc import Iterator
from functools import lru_cache

from caesura.characters import is_word, visible
from caesura.server.context.context import (
    NEAR,
    USUAL_LINES,
    Context,
    line_after,
    line_before,
    opener_above,
    opens_block,
)
from caesura.server.infill.indentation import indented
from caesura.server.infill.repeats import is_alike, without_next_line
from caesura.server.languages import UNKNOWN, Language, language
from caesura.server.text.lexer import PARTNER, Scan, closes, heredocs, indent_of, literal_lines

_SENTINEL = re.compile(  # the special tokens of models' prompts
    r"<[|\uff5c][^|\uff5c<>\n]{1,40}[|\uff5c]>|</s>|<(?:fim_\w+|endoftext|file_sep|repo_?name|SUF|MID|EOT)>|\[MASK\]"
)
_ANNOUNCEMENT = re.compile(
    r"\s*(?:(?:Completion|Answer|Output|Response|Code)\s*:|Here(?:'s| is| are)\b[^\n]*:)[ \t]*\n", re.IGNORECASE
)
_LABEL = r"(?:(?:Path|File|Filename)\s*:|Compare this snippet from)"  # the label of another file, in a comment
_PLACEHOLDER = re.compile(r"\$\{\d+:([^{}$\n]*)\}")  # of a snippet; alone, `$0` and `${1}` are code
_LAST_STOP = re.compile(r"\$0\s*\Z")
_LAST_BREAK = re.compile(r".*(\r\n|\r|(?<!\r)\n)", re.DOTALL)
_FIRST_BREAK = re.compile(r"(\r\n|\r|\n)")
_ENDS = re.compile(r"(?<=[\w)\]}\"'`;])(?!\w)")  # possible ends of words, brackets, strings and statements
_CONTINUES = re.compile(r"[ \t]*[\w(\[\"'`]|(?<=\w)[.]")  # the expression continues
_GOES_ON = re.compile(r"\s*(?:[{?.]|&&|\|\||(?:else|catch|finally)\b)")  # a line that belongs to the one above
STATEMENT, EXPRESSION, WORD, INSIDE, IN_STRING = range(5)  # grades of an end, the best first


def ends(text: str, context: Context | None = None) -> Iterator[tuple[int, int]]:
    """The offsets where a start of `text` may end, each with its grade."""
    row = language(context.language) if context else UNKNOWN
    scan = _open_at_hole(context) if context else Scan(row)
    base, quote, at = len(scan.open), scan.quote, 0
    typed = context.prefix[-2:] if context else ""  # of the marks of a long quote
    documents = list(heredocs(text, row))
    apart = context is not None and not context.joins and is_word(context.suffix[:1])
    for match in _ENDS.finditer(text):
        end = match.start()
        scan.feed(text[at:end])
        at = end
        if (apart and is_word(text[end - 1])) or any(first < end < last for first, last in documents):
            continue
        if _opens_quote(typed + text, len(typed) + end, row) or (
            scan.quote != quote and _is_bare(scan.quote, text[:end])
        ):
            continue
        if scan.quote and (scan.quote != quote or len(scan.open) != base):
            grade = IN_STRING
        elif len(scan.open) > base:
            grade = INSIDE
        elif text[end : end + 1] in ("", "\n") and not opens_block(line_before(text, end), row):
            grade = STATEMENT
        else:
            grade = WORD if _CONTINUES.match(text, end) else EXPRESSION
        yield end, grade


def _opens_quote(text: str, end: int, row: Language) -> bool:
    """True if a cut there leaves the first marks of a long quote, which are an empty string."""
    cuts = ((mark, size) for mark in row.long_quotes for size in range(1, len(mark)))
    return any(text.startswith(mark, end - size) for mark, size in cuts if end >= size)


def _is_bare(quote: str, text: str) -> bool:
    """True if `text` ends in a string with that mark that has no letter yet."""
    return bool(quote) and not any(map(str.isalnum, text[max(0, text.rfind(quote)) :]))


def finish(text: str, context: Context) -> str:
    """The text to insert at the hole of `context` for the fill `text`; empty if nothing remains."""
    row = language(context.language)
    before, after = line_before(context.prefix, len(context.prefix)), line_after(context.suffix, 0)
    text = visible(text, context.prefix, context.suffix).replace("\r\n", "\n").replace("\r", "\n")
    text = _without_leaks(text, context, row)
    text = _without_strays(indented(text, context, row, before), context, row, before)
    text = _within(text, context, row, before)
    text = _without_rest_of_line(text, context, row, after)
    text = without_next_line(_without_following_lines(text, context, row, before), context, row, before)
    if context.kind == "block":
        text = _without_half_lines(_without_loops(text, row), context, row)
    text = _without_empty_docstring(text, context, row, before)
    text = text[: next((first for first, last in heredocs(text, row) if last > len(text)), len(text))]
    if _repeats_lines(text, context, row, before, after):
        return ""
    text = "\n".join([*(line.rstrip() for line in text.split("\n")[:-1]), text.rpartition("\n")[2]])
    text = text if context.joins else _apart(text, before, after)
    if not after or after[0] in " \t" or not text.strip():
        text = text.rstrip()
    if context.kind == "block" and after.strip() and "\n" in text:
        text = text.rstrip() + "\n" + context.indent  # the rest of the line gets its own
    return text.replace("\n", line_break(context))


def is_half(text: str, context: Context) -> bool:
    """True if a fill of code opens a bracket, a string or a block that nothing closes, or is a comment without a
    word."""
    row = language(context.language)
    if row.prose or context.scope in ("string", "comment"):
        return False
    if row.comment and text.lstrip().startswith(row.comment) and not any(map(str.isalnum, text)):
        return True
    opened = _faults(text, context, row) - _faults("", context, row)
    rest, *below = _lines(context.suffix)
    following = next((line for line in below if line.strip()), "")
    last = line_before(context.prefix, len(context.prefix)) + text if "\n" not in text else text.rpartition("\n")[2]
    bodiless = row.offside and not rest.strip() and len(indent_of(following)) <= len(indent_of(last))
    return opened > 0 or (bodiless and opens_block(last, row))


def line_break(context: Context) -> str:
    """The line end of the file, taken from the nearest line break."""
    match = _LAST_BREAK.match(context.prefix) or _FIRST_BREAK.search(context.suffix)
    return match[1] if match else "\n"


def _without_leaks(text: str, context: Context, row: Language) -> str:
    """`text` without the marks of prompts, chats and snippets."""
    around = context.prefix + context.suffix
    while (match := _SENTINEL.search(text)) and match[0] not in around:
        text = text[: match.start()] if text[: match.start()].strip() else text[match.end() :]
    if not row.dollars and "${" not in context.prefix[-NEAR:]:
        plain = _PLACEHOLDER.sub(r"\1", text)
        text = _LAST_STOP.sub("", plain) if plain != text else text
    if not (row.comment or row.blocks) or context.scope in ("string", "comment"):
        return text  # prose may contain fences and announcements
    if match := _ANNOUNCEMENT.match(text):
        text = text[match.end() :]
    lines = text.split("\n")
    if text.lstrip().startswith("```"):
        lines = text.lstrip().split("\n")[1:]
    label = re.compile(rf"\s*{re.escape(row.comment or '//')}\s*{_LABEL}")
    for index, line in enumerate(lines):
        if line.startswith("```") or (label.match(line) and line.strip() not in around):
            return "\n".join(lines[:index])
    return "\n".join(lines)


def _without_strays(text: str, context: Context, row: Language, before: str) -> str:
    """`text` before its first line that is deeper than the finished statement above it. In a language with `headers`
    only those have deeper lines after them; grammars let such a line pass."""
    if not row.headers or not row.offside or context.scope != "code":
        return text
    scan, at = _open_at_hole(context), 0
    for line in text.split("\n"):
        code = line.strip() and not line.lstrip().startswith(row.comment or "\0")
        begins = at or (indent_of(line) and not before.strip())  # the cursor's own column is the user's choice
        if code and begins and not scan.open and not scan.quote:
            above = opener_above(context.prefix + text[:at], row)
            opens = opens_block(above, row) or above.rstrip().endswith((":", "\\")) or Scan(row).feed(above).quote
            deeper = len(indent_of(line if at else before + line).expandtabs()) > len(indent_of(above).expandtabs())
            if deeper and not opens:
                return text[: max(0, at - 1)]
        scan.feed(line + "\n")
        at += len(line) + 1
    return text


def _within(text: str, context: Context, row: Language, before: str) -> str:
    """`text` up to the end of the hole's line or block, or of the bracket or string around the hole."""
    if context.kind != "block":
        return _inside(text.partition("\n")[0], context, row)
    first, *rest = text.split("\n")
    if before.strip():
        least = len(context.indent) + opens_block(before, row)
    else:
        least = len(context.indent) + len(indent_of(first))
    lines, literal, conditions = [first], literal_lines(text, row, before), int(first.lstrip().startswith("#if"))
    for number, line in enumerate(rest, 1):
        directive = line.startswith("#") and conditions and row.directives
        outside = len(indent_of(line)) < least and line.strip() and number not in literal and not directive
        if outside and (row.offside or not closes(line, row)):
            break
        lines.append(line)
        conditions += line.lstrip().startswith("#if") - line.lstrip().startswith("#endif")
    return _low_enough(_inside("\n".join(lines), context, row).split("\n"), context)


def _low_enough(lines: list[str], context: Context) -> str:
    """At most `context.lines` lines that are not blank, or USUAL_LINES if those are more, cut after one that leaves no
    bracket or string of the fill open; all lines if there is no such cut."""
    most = max(context.lines, USUAL_LINES)
    if sum(bool(line.strip()) for line in lines) <= most:
        return "\n".join(lines)
    scan, kept, height = _open_at_hole(context), 0, 0
    base = len(scan.open)
    row = language(context.language)
    for index, line in enumerate(lines):
        height += bool(line.strip())
        scan.feed(line + "\n")
        goes_on = "{" in row.openers and _GOES_ON.match("\n".join(lines[index + 1 : index + 2]))
        if height <= most and len(scan.open) <= base and not scan.quote and not goes_on:
            kept = index + 1
    return "\n".join(lines[:kept] if kept else lines)


def _inside(text: str, context: Context, row: Language) -> str:
    """`text` up to where it leaves the innermost brackets or string of the prefix, if the suffix closes them. A line
    such as `} else {` leaves no bracket."""
    before, after = line_before(context.prefix, len(context.prefix)), line_after(context.suffix, 0)
    scan = _open_at_hole(context)
    depth, quote = len(scan.open), scan.quote
    spans = quote in (*row.long_quotes, *row.spanning)
    leaves = []
    for begin, end in scan.steps(text):
        if quote and not scan.quote and len(scan.open) == depth:
            if spans and context.suffix.count(quote) % 2 == 0:
                return text  # nothing else ends the string
            leaves.append(begin)
            quote = ""
        elif len(scan.open) < depth and not _turns(_line_at(before + text + after, len(before) + end - 1), row):
            leaves.append(begin)
            depth = len(scan.open)
    if not leaves:
        return text
    opened = sum(bracket.mark != "(" and bracket.at >= len(context.prefix) for bracket in scan.open)
    last = line_before(before + text, len(before + text))
    later = opens_block(last, row) or len(context.suffix) > NEAR  # the user closes them, or the suffix beyond NEAR does
    faults = {end: _faults(text[:end], context, row) for end in leaves}
    faults[len(text)] = _faults(text, context, row) - opened * later
    return text[: min(faults, key=lambda end: (faults[end], end))]


def _turns(line: str, row: Language) -> bool:
    """True if the line closes a bracket and opens another of the same kind, as `} else {` does."""
    bare = line.strip()
    scan = Scan(row).feed(bare)
    return PARTNER.get(bare[:1]) == bare[-1:] and scan.faults == len(scan.open) == 1


def _line_at(text: str, offset: int) -> str:
    return line_before(text, offset) + line_after(text, offset)


def _without_rest_of_line(text: str, context: Context, row: Language, after: str) -> str:
    """`text` without an end that repeats the text after it on the line, unless its brackets need that end."""
    body, rest = text.rstrip(), after.strip()
    for size in range(min(len(body), len(rest)), 0, -1):
        kept = body[:-size]
        if not body.endswith(rest[:size]) or _in_word(body, len(kept)) or _in_word(rest, size):
            continue
        if _faults(kept, context, row) <= _faults(body, context, row):
            return kept
    return text


def _in_word(text: str, offset: int) -> bool:
    return all(map(is_word, text[max(0, offset - 1) : offset + 1])) and 0 < offset < len(text)


def _apart(text: str, before: str, after: str) -> str:
    """`text` up to where the word after it stays a word of its own; but in the middle of a word it may be letters
    alone."""
    if not _in_word(text + after, len(text)) or (_in_word(before + text, len(before)) and all(map(is_word, text))):
        return text
    return text[: next((end for end in range(len(text), 0, -1) if not is_word(text[end - 1])), 0)]


def _without_following_lines(text: str, context: Context, row: Language, before: str) -> str:
    """`text` without last lines that repeat the lines after the hole."""
    rest, *below = _lines(context.suffix)
    following = [line.rstrip() for line in below if line.strip()]
    if rest.strip() or not following:
        return text
    lines = (before + text.rstrip()).split("\n")
    for index in range(1 if before.strip() else 0, len(lines)):
        tail = [line.rstrip() for line in lines[index:] if line.strip()]
        kept = "\n".join(lines[:index])[len(before) :]
        if len(tail) == 1 and is_alike(tail[0], row):
            continue
        if tail and tail == following[: len(tail)] and _faults(kept, context, row) <= _faults(text, context, row):
            return kept
    return text


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _without_loops(text: str, row: Language) -> str:
    """`text` cut after a group of one to three lines that comes three times in a row. Lines that close blocks are alike
    only if they are as deep."""
    lines = text.split("\n")
    bare = [line.rstrip() if closes(line, row) else line.strip() for line in lines]
    for start in range(len(lines)):
        for size in (1, 2, 3):
            group = bare[start : start + size]
            again = bare[start + size : start + 3 * size] == group * 2
            if again and any(c.isalnum() for c in "".join(group)):
                return "\n".join(lines[: start + size])
    return text


def _without_empty_docstring(text: str, context: Context, row: Language, before: str) -> str:
    """`text` without last lines that are a statement of quotes alone."""
    lines = text.rstrip().split("\n")
    while lines and not set((lines[-1] if lines[1:] else before + lines[0]).strip()) - set(row.quotes):
        lines.pop()
    kept = "\n".join(lines)
    scan = _open_at_hole(context).feed(kept + "\n")
    return text if scan.quote or scan.open or not text[len(kept) :].strip() else kept


def _without_half_lines(text: str, context: Context, row: Language) -> str:
    """`text` without last lines that the token limit has cut: they leave a bracket open, or lack a body."""
    kept = text.rstrip()
    while "\n" in kept:
        shorter, _, last = kept.rpartition("\n")
        bodiless = row.offside and opens_block(last, row)
        if not bodiless and _faults(kept, context, row) <= _faults(shorter, context, row):
            break
        kept = shorter.rstrip()
    return kept if len(kept) < len(text.rstrip()) else text


def _repeats_lines(text: str, context: Context, row: Language, before: str, after: str) -> bool:
    """True if the insertion only repeats the lines above or below."""
    made = [line.rstrip() for line in (before + text + after).split("\n") if line.strip()]
    if not made or not any(c.isalnum() for c in text):
        return False
    above = [line.rstrip() for line in _lines(context.prefix)[:-1] if line.strip()]
    below = [line.rstrip() for line in _lines(context.suffix)[1:] if line.strip()]
    if len(made) == 1 and closes(made[0], row):
        return made == below[:1]  # the block around may end too
    return made == above[-len(made) :] or (
        made == below[: len(made)] and not (len(made) == 1 and is_alike(made[0], row))
    )


def _faults(text: str, context: Context, row: Language) -> int:
    """The number of unpaired brackets and strings with `text` in the hole. Compare two counts: the limits of the
    context add the same to both."""
    scan = _open_at_hole(context).feed(text)
    return scan.feed_suffix(context.suffix[:NEAR], cut=len(context.prefix) > NEAR).total


def _open_at_hole(context: Context) -> Scan:
    """The brackets and strings that are open at the hole."""
    at = context.prefix.rfind("\n") + 1  # the lines above stay the same during typing
    return _open_after(context.prefix[:at], context.language).copy().feed(context.prefix[at:])


@lru_cache(maxsize=8)
def _open_after(lines: str, name: str) -> Scan:
    """The brackets and strings that are open after whole lines. Copy it before feeding it."""
    return Scan(language(name)).feed(lines)
