"""A passage of the document that lies beyond the model's context and goes on from a text like the one before the hole.

People repeat in a file what they have written in it: a test, a case, a call. The model's context holds some 60 lines,
and the passage shows it the earlier writing. Of 537 new lines of 14 repositories this made 17 more exact and none less
(docs/log.md). Pure.
"""

import re
from dataclasses import dataclass
from itertools import takewhile

from caesura import wire
from caesura.server.context import secrets
from caesura.server.context.context import Budget
from caesura.server.languages import language

IN_VIEW = Budget(before=1800, after=900)  # code points that a context of 768 tokens shows on most lines of code
AGREEING = 32  # fewest code points that agree before the hole and the place; with fewer, nothing was gained
TELLING = 16  # fewest of these that are not blank
COMPARED = 400  # most code points compared
PLACES = 64  # most places compared, those nearest to the hole
ABOVE, BELOW = 2, 8  # lines shown around the line of the place
SHOWN = 640  # most code points shown
NEARBY = 30  # lines from the hole to the next one within which a passage stays: another one costs the prefix's prefill
AROUND = 16_000  # code points around a passage that tell whether it is in a secret: more than a private key has


@dataclass(frozen=True)
class Passage:
    """Lines of a document as they stand there, found for a hole in the line `row`, and what the model sees of them."""

    text: str
    row: int
    neighbour: wire.Neighbour


def recall(text: str, start: int, end: int, language_id: str, kept: Passage | None = None) -> Passage | None:
    """The passage for the hole `start:end` (code points) of a text. `kept`, the passage of the hole before it, stays
    while its lines still go on from the place that agrees most, or while there is no such place."""
    row, place = text.count("\n", 0, start), _place(text, start, end)
    if kept and abs(row - kept.row) <= NEARBY and _holds(text, kept, place, start, end):
        return kept
    if place is None:
        return None
    first, last = _lines(text, place, start, end)
    return Passage(text[first:last], row, _neighbour(text, first, last, language_id)) if last > place else None


def _place(text: str, start: int, end: int) -> int | None:
    """The place out of the model's view that agrees with the hole in most code points before it, and in more than every
    place in view."""
    key = text[max(0, start - AGREEING) : start]
    if len(key) < AGREEING or len("".join(key.split())) < TELLING:
        return None
    places = [found.end() for found in re.finditer(re.escape(key), text)]
    near = sorted((at for at in places if at != start), key=lambda at: abs(at - start))[:PLACES]
    agreed = {at: _agreed(text, at, start) for at in near}
    seen = range(start - IN_VIEW.before, end + IN_VIEW.after)
    in_view = max((size for at, size in agreed.items() if at in seen), default=0)
    beyond = [at for at in agreed if at not in seen]
    best = max(beyond, key=lambda at: (agreed[at], -abs(at - start)), default=None)
    return best if best is not None and agreed[best] > in_view else None


def _agreed(text: str, here: int, there: int) -> int:
    """How many code points before the two offsets are the same."""
    before, other = text[max(0, here - COMPARED) : here], text[max(0, there - COMPARED) : there]
    pairs = zip(reversed(before), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _holds(text: str, kept: Passage, place: int | None, start: int, end: int) -> bool:
    """True if a passage is unchanged and not around the hole and, where there is a place, shows at least one line after
    it."""
    at = text.find(kept.text)
    if at < 0 or (at < end and start < at + len(kept.text)):
        return False
    return place is None or at <= place < at + kept.text.rstrip().rfind("\n")


def _lines(text: str, place: int, start: int, end: int) -> tuple[int, int]:
    """The span of the lines around a place, without the hole, in at most SHOWN code points. It ends at the place if the
    line there is too long."""
    low, high = (0, start) if place < start else (end, len(text))
    first, last = place, place
    for _ in range(ABOVE + 1):
        above = max(low, text.rfind("\n", low, max(low, first - 1)) + 1)
        if place - above > SHOWN // 2:
            break
        first = above
    for _ in range(BELOW + 1):
        found = text.find("\n", last, min(high, first + SHOWN))
        if found < 0:
            break
        last = found + 1
    return first, last


def _neighbour(text: str, first: int, last: int, language_id: str) -> wire.Neighbour:
    start = max(0, first - AROUND)
    masked = secrets.masked(text[start : last + AROUND])[first - start : last - start]
    comment = language(language_id).comment or ""
    return wire.Neighbour(f"{comment} ..." if comment else "", masked.replace("\r\n", "\n").strip("\n"))
