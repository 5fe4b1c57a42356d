"""From the engine's text for a hole to what is inserted there: nothing that stands around the hole already, nothing
beyond the kind of hole, and the file's own indentation and line ends. Pure: text in, text out."""

import re
from collections.abc import Iterator
from functools import lru_cache

from caesura.server.answers.indentation import indented
from caesura.server.context.context import NEAR, Context, line_after, line_before, opens_block
from caesura.server.context.secrets import visible
from caesura.server.languages import UNKNOWN, Language, language
from caesura.server.text.lexer import PARTNER, Scan, indent_of

_SENTINEL = re.compile(  # what models mark their prompts with
    r"<[|\uff5c][^|\uff5c<>\n]{1,40}[|\uff5c]>|</s>|<(?:fim_\w+|endoftext|file_sep|repo_?name|SUF|MID|EOT)>|\[MASK\]"
)
_ANNOUNCEMENT = re.compile(
    r"\s*(?:(?:Completion|Answer|Output|Response|Code)\s*:|Here(?:'s| is| are)\b[^\n]*:)[ \t]*\n", re.IGNORECASE
)
_LABEL = r"(?:(?:Path|File|Filename)\s*:|Compare this snippet from)"  # of another file, in a comment
_PLACEHOLDER = re.compile(r"\$\{\d+(?::([^{}$\n]*))?\}|\$0\s*\Z")  # of a snippet
_LAST_BREAK = re.compile(r".*(\r\n|\r|(?<!\r)\n)", re.DOTALL)
_FIRST_BREAK = re.compile(r"(\r\n|\r|\n)")
_ENDS = re.compile(r"(?<=[\w)\]}\"'`;])(?!\w)")  # where a word, a bracket, a string or a statement may end
_GOES_ON = re.compile(r"[ \t]*[\w(\[\"'`]|(?<=\w)[.]")  # no whole expression ends here
STATEMENT, EXPRESSION, WORD, INSIDE, IN_STRING = range(5)  # how good an end is, the best first


def ends(text: str, context: Context | None = None) -> Iterator[tuple[int, int]]:
    """The offsets where a shorter `text` may end, each with its grade."""
    row = language(context.language) if context else UNKNOWN
    scan = _behind_prefix(context) if context else Scan(row)
    base, quote, at = len(scan.open), scan.quote, 0
    for found in _ENDS.finditer(text):
        end = found.start()
        scan.feed(text[at:end])
        at = end
        if scan.quote and (scan.quote != quote or len(scan.open) != base):
            grade = IN_STRING
        elif len(scan.open) > base:
            grade = INSIDE
        elif text[end : end + 1] in ("", "\n") and not opens_block(line_before(text, end), row):
            grade = STATEMENT
        else:
            grade = WORD if _GOES_ON.match(text, end) else EXPRESSION
        yield end, grade


def finish(text: str, context: Context) -> str:
    """What to insert at the hole of `context` for the fill `text`; empty when nothing of it is left."""
    row = language(context.language)
    before, after = line_before(context.prefix, len(context.prefix)), line_after(context.suffix, 0)
    text = visible(text, context.prefix, context.suffix).replace("\r\n", "\n").replace("\r", "\n")
    text = _without_leaks(text, context, row)
    text = indented(text, context, row, before)
    text = _within(text, context, row, before)
    text = _without_rest_of_line(text, context, row, after)
    text = _without_following_lines(text, context, row, before)
    if context.kind == "block":
        text = _without_half_lines(_without_loops(text), context, row)
    if _repeats_lines(text, context, before, after):
        return ""
    text = "\n".join([*(line.rstrip() for line in text.split("\n")[:-1]), text.rpartition("\n")[2]])
    if not after or after[0] in " \t" or not text.strip():
        text = text.rstrip()
    if context.kind == "block" and after.strip() and "\n" in text:
        text = text.rstrip() + "\n" + context.indent  # the closing bracket gets a line of its own
    return text.replace("\n", line_break(context))


def line_break(context: Context) -> str:
    """The line end of the file, taken from the nearest line break."""
    found = _LAST_BREAK.match(context.prefix) or _FIRST_BREAK.search(context.suffix)
    return found[1] if found else "\n"


def _without_leaks(text: str, context: Context, row: Language) -> str:
    """Without what belongs to a prompt, a chat or a snippet and not to the file."""
    around = context.prefix + context.suffix
    while (found := _SENTINEL.search(text)) and found[0] not in around:
        text = text[: found.start()] if text[: found.start()].strip() else text[found.end() :]
    if not row.dollars and "${" not in context.prefix[-NEAR:]:
        text = _PLACEHOLDER.sub(lambda placeholder: placeholder[1] or "", text)
    if not (row.comment or row.openers) or context.scope in ("string", "comment"):
        return text  # prose may well have fences and announcements
    if found := _ANNOUNCEMENT.match(text):
        text = text[found.end() :]
    lines = text.split("\n")
    if text.lstrip().startswith("```"):
        lines = text.lstrip().split("\n")[1:]
    label = re.compile(rf"\s*{re.escape(row.comment or '//')}\s*{_LABEL}")
    for index, line in enumerate(lines):
        if line.startswith("```") or (label.match(line) and line.strip() not in around):
            return "\n".join(lines[:index])
    return "\n".join(lines)


def _within(text: str, context: Context, row: Language, before: str) -> str:
    """Without what lies beyond the hole's line or block, or behind the bracket or string that the hole is in."""
    if context.kind != "block":
        return _inside(text.partition("\n")[0], context, row)
    first, *rest = text.split("\n")
    if before.strip():
        least = len(context.indent) + opens_block(before, row)
    else:
        least = len(context.indent) + len(indent_of(first))
    lines = [first]
    for line in rest:
        outside = len(indent_of(line)) < least and line.strip()
        if outside and (row.offside or line.lstrip()[0] not in PARTNER):
            break
        lines.append(line)
    return _low_enough(_inside("\n".join(lines), context, row).split("\n"), context)


def _low_enough(lines: list[str], context: Context) -> str:
    """As many lines as the block may take, to the end of one that closes what it opened."""
    if sum(bool(line.strip()) for line in lines) <= context.lines:
        return "\n".join(lines)
    scan, kept, height = _behind_prefix(context), 0, 0
    base = len(scan.open)
    for index, line in enumerate(lines):
        height += bool(line.strip())
        scan.feed(line + "\n")
        if height <= context.lines and len(scan.open) <= base and not scan.quote:
            kept = index + 1
    return "\n".join(lines[:kept] if kept else lines)


def _inside(text: str, context: Context, row: Language) -> str:
    """Up to where `text` leaves the innermost brackets or string of the prefix, if the suffix closes them. A line that
    goes from one bracket into the next leaves none."""
    before, after = line_before(context.prefix, len(context.prefix)), line_after(context.suffix, 0)
    scan = _behind_prefix(context)
    depth, quote = len(scan.open), scan.quote
    spans = quote in (*row.long_quotes, *row.spanning)
    leaves = []
    for end in scan.steps(text):
        if quote and not scan.quote and len(scan.open) == depth:
            if spans and context.suffix.count(quote) % 2 == 0:
                return text  # no one else ends the string
            leaves.append(end - len(quote))
            quote = ""
        elif len(scan.open) < depth and not _turns(_line_at(before + text + after, len(before) + end - 1), row):
            leaves.append(end - 1)
            depth = len(scan.open)
    if not leaves:
        return text
    opened = sum(bracket.mark == "{" and bracket.at >= len(context.prefix) for bracket in scan.open)
    faults = {end: _faults(text[:end], context, row) for end in leaves}
    faults[len(text)] = _faults(text, context, row) - opened * (
        len(context.suffix) > NEAR
    )  # closed where we cannot see
    return text[: min(faults, key=lambda end: (faults[end], end))]


def _turns(line: str, row: Language) -> bool:
    """Whether it closes a bracket and opens another of its kind, as `} else {` does."""
    bare = line.strip()
    scan = Scan(row).feed(bare)
    return PARTNER.get(bare[:1]) == bare[-1:] and scan.faults == len(scan.open) == 1


def _line_at(text: str, offset: int) -> str:
    return line_before(text, offset) + line_after(text, offset)


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
    rest, *below = _lines(context.suffix)
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


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _without_loops(text: str) -> str:
    """Cut where up to three lines begin to come again and again."""
    lines = text.split("\n")
    bare = [line.strip() for line in lines]
    for start in range(len(lines)):
        for size in (1, 2, 3):
            group = bare[start : start + size]
            again = bare[start + size : start + 3 * size] == group * 2
            if again and any(c.isalnum() for c in "".join(group)):
                return "\n".join(lines[: start + size])
    return text


def _without_half_lines(text: str, context: Context, row: Language) -> str:
    """Without last lines that a token limit has cut: they open what nothing closes, or lack the body they announce."""
    kept = text.rstrip()
    while "\n" in kept:
        shorter, _, last = kept.rpartition("\n")
        bodiless = row.offside and opens_block(last, row)
        if not bodiless and _faults(kept, context, row) <= _faults(shorter, context, row):
            break
        kept = shorter.rstrip()
    return kept if len(kept) < len(text.rstrip()) else text


def _repeats_lines(text: str, context: Context, before: str, after: str) -> bool:
    """Whether the insertion only makes the lines above or below appear once more."""
    made = [line.rstrip() for line in (before + text + after).split("\n") if line.strip()]
    if not made or not any(c.isalnum() for c in text):
        return False
    above = [line.rstrip() for line in _lines(context.prefix)[:-1] if line.strip()]
    below = [line.rstrip() for line in _lines(context.suffix)[1:] if line.strip()]
    return made in (above[-len(made) :], below[: len(made)])


def _faults(text: str, context: Context, row: Language) -> int:
    """Brackets without a partner and strings without an end, with `text` in the hole. Only differences mean much:
    the limits of the context add the same to each count."""
    scan = _behind_prefix(context).feed(text)
    return scan.feed_suffix(context.suffix[:NEAR], cut=len(context.prefix) > NEAR).total


def _behind_prefix(context: Context) -> Scan:
    """What is open at the hole."""
    at = context.prefix.rfind("\n") + 1  # the lines above stay the same while one is typed
    return _behind_lines(context.prefix[:at], context.language).copy().feed(context.prefix[at:])


@lru_cache(maxsize=8)
def _behind_lines(lines: str, name: str) -> Scan:
    """What is open behind whole lines; to be copied before it is fed."""
    return Scan(language(name)).feed(lines)
