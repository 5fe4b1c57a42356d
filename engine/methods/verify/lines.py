"""Judges a fill by the lines around its hole: whether it only copies them, and where a block ends. Text only."""

from collections.abc import Callable
from typing import NamedTuple

LINES = 16  # of the text on each side that are compared

Judge = Callable[[str], bool]  # of a fill's text
Ending = Callable[[str], str | None]  # of a growing fill's text


def never(text: str) -> bool:
    return False


class Rules(NamedTuple):
    """What a search asks of a fill's text: whether it only copies what is around the hole, whether it binds the missing
    name, and where its block ends. `is_needed`: something belongs in the hole."""

    copies: Judge = never
    binds: Judge = never
    block_end: Ending | None = None
    is_needed: bool = False


NO_RULES = Rules()


def copying(before: str, after: str) -> Judge:
    """A judge of fills between two texts. True for a fill at a line's end whose last lines repeat the next lines, or
    that equals the lines above: the server would take it back, so it must not win the search."""
    rest, *below = after.split("\n", LINES)
    *above, begun = before.rsplit("\n", LINES)
    following, preceding = written(below[:LINES]), written(above[-LINES:])
    if rest.strip() or not (following or preceding):
        return never

    def judge(text: str) -> bool:
        first, *others = text.split("\n")
        made = written([begun + first, *others])
        if not made or not any(character.isalnum() for character in made[-1]):
            return False
        tails = (made[at:] for at in range(len(made)))
        return any(tail == following[: len(tail)] for tail in tails) or made == preceding[-len(made) :]

    return judge


def lacks_body(before: str, after: str) -> bool:
    """True for a hole alone on a line that is deeper than the lines around it: the line above opens a block, which has
    no other line."""
    *above, begun = before.rsplit("\n", LINES)
    rest, *below = after.split("\n", LINES)
    preceding, following = written(above), written(below)
    if begun.strip() or rest.strip() or not preceding:
        return False
    return indent(begun) > max(map(indent, (preceding[-1], *following[:1])))


def ending(before: str, copies: Judge) -> Ending:
    """Where a block after `before` ends by its structure: before a blank line, a copy of what follows, or a line with
    less indentation than the hole's. The block so far, or None if it may go on."""
    begun = before[before.rfind("\n") + 1 :]
    least = indent(begun)

    def end(text: str) -> str | None:
        lines = text.split("\n")
        for at in range(1, len(lines)):
            kept = "\n".join(lines[:at])
            if at > 1 and copies(kept):
                return "\n".join(lines[: at - 1])
            whole = at < len(lines) - 1
            if (whole and not lines[at].strip()) or (lines[at].strip() and indent(lines[at]) < least):
                return kept
        return None

    return end


def written(lines: list[str]) -> list[str]:
    """Those that are not blank, without blanks at their ends."""
    return [line.rstrip() for line in lines if line.strip()]


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())
