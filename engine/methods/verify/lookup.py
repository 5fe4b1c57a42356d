"""Proposals that are copied: text found elsewhere, in the buffer or its neighbours, between a text like the one before
the hole and one like the text after it; and names from the job's earlier fills."""

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise

PLACES = 500  # places tried, those nearest to the hole
REACH = 200  # code points tried in a line, so that a buffer of one long line takes milliseconds
UNKNOWN = "\0"  # stands for unknown text, such as a later hole; no proposal crosses it
_END = re.compile(r"[\r\n\0]")
_NAME = re.compile(r"[^\W\d]\w*")


def lookup(
    before: str, after: str, neighbours: Sequence[str] = (), *, most: int = 2, longest: int = 48, least: int = 3
) -> list[str]:
    """Texts within a line, found elsewhere between an end of `before` and a start of `after`. At the end of a line that
    is the rest of one. Places that agree with the hole in more characters come first, then nearer ones: `most` from the
    buffer, then only the neighbours' best one, since every proposed token is a row of the first pass."""
    written = len(before.rstrip())
    key = before[max(0, min(len(before) - least, written - 1)) :]  # after indentation, also the end of the line before
    unknown = after[len(line(after)) :].startswith(UNKNOWN) and not line(after).strip()
    if not written or unknown or not least <= len(key) <= longest:
        return []
    sides = before[-longest:], after[:longest].partition(UNKNOWN)[0]
    own = between(*sides, key, before + UNKNOWN + after, len(before))[:most]
    others = between(*sides, key, UNKNOWN.join(neighbours), 0)
    return own + [text for text in others if text not in own][:1]


def between(before: str, after: str, key: str, text: str, here: int) -> list[str]:
    """The texts that `lookup` finds in `text` after an occurrence of `key`, an end of `before`; best first."""
    found: dict[str, tuple[int, int]] = {}
    ends = [match.end() for match in re.finditer(re.escape(key), text)]
    middle = bisect(ends, here)
    for end in ends[max(0, middle - PLACES // 2) : middle + PLACES // 2]:
        size, agreed = fitting(text, end, after)
        filling = text[end : end + size]
        if filling.strip():
            agreed += agreement(text[max(0, end - len(before)) : end][::-1], before[::-1])
            found[filling] = max((agreed, -abs(end - here)), found.get(filling, (0, 0)))
    return sorted(found, key=found.__getitem__, reverse=True)


def fitting(text: str, start: int, after: str) -> tuple[int, int]:
    """How much of the line from `start` on comes before the text that agrees with `after` in the most characters, and
    their number; 0 and 0 if none does."""
    end = _END.search(text, start, start + REACH)
    stop = end.start() if end else min(len(text), start + REACH)
    if not line(after).strip():
        whole = end is not None or stop == len(text)
        return (stop - start, agreement(text[stop : stop + len(after)], after)) if whole else (0, 0)

    def at(count: int) -> int:
        return text.find(after[:count], start, stop - 1 + count)

    agreed, most = 0, len(after)
    while agreed < most:
        count = (agreed + most + 1) // 2
        agreed, most = (count, most) if at(count) >= 0 else (agreed, count - 1)
    return (at(agreed) - start, agreed) if agreed else (0, 0)


def line(text: str) -> str:
    """The first line."""
    return _END.split(text, maxsplit=1)[0]


def agreement(left: str, right: str) -> int:
    """Length of the common start, up to an UNKNOWN."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b or a == UNKNOWN), min(len(left), len(right)))


class Repeats:
    """Drafts from what follows the same tokens elsewhere in a context (prompt lookup decoding, Saxena 2023)."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids, self._behind = ids, dict[tuple[int, int], list[int]]()
        for at, pair in enumerate(pairwise(ids[:-1]), 2):
            self._behind.setdefault(pair, []).append(at)

    def after(self, path: Sequence[int], *, most: int = 5, longest: int = 8) -> Sequence[int]:
        """Find the earlier place that shares the longest run of tokens, at least two, with the end of the context and
        `path`; return what follows it. Ties go to the latest."""
        end, best, place = [*self._ids[-longest:], *path][-longest:][::-1], 0, 0
        for at in self._behind.get((end[1], end[0]), ()) if len(end) > 1 else ():
            agreed = agreeing(self._ids[max(0, at - longest) : at][::-1], end)
            if agreed >= best:
                best, place = agreed, at
        return self._ids[place : place + most] if best else ()


def agreeing(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def identifiers(fills: Sequence[str], *, most: int = 8) -> list[str]:
    """Identifiers in the earlier fills, the latest first: a hole may use what another one defines."""
    found = [name for text in fills for name in _NAME.findall(text)]
    return list(dict.fromkeys(reversed(found)))[:most]
