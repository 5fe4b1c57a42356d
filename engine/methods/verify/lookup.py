"""What may stand in a hole because it stands elsewhere: between such a text as before the hole and such a one as behind
it, in the buffer or in its neighbours; and the names that the job's earlier holes were given."""

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise

PLACES = 500  # looked at, those nearest to the hole
REACH = 200  # code points of a line that are looked at: also a buffer of one line is read in a few milliseconds
UNKNOWN = "\0"  # stands for what is not known yet, such as a later hole; nothing is found across it
_END = re.compile(r"[\r\n\0]")
_NAME = re.compile(r"[^\W\d]\w*")


def lookup(
    before: str, after: str, neighbours: Sequence[str] = (), *, most: int = 2, longest: int = 48, least: int = 3
) -> list[str]:
    """Texts within a line that stand elsewhere as the hole stands here: behind what ends as `before` does, in front of
    what begins as `after` does. At the end of a line that is the rest of one. Those come first whose place agrees with
    the hole's in the most characters on both sides, and of equals the nearest: `most` of the buffer, then the
    neighbours' best, one only: every token of a proposal is a row of the first pass."""
    written = len(before.rstrip())
    key = before[max(0, min(len(before) - least, written - 1)) :]  # behind indentation, the end of the line before too
    unknown = after[len(line(after)) :].startswith(UNKNOWN) and not line(after).strip()
    if not written or unknown or not least <= len(key) <= longest:
        return []
    sides = before[-longest:], after[:longest].partition(UNKNOWN)[0]
    own = between(*sides, key, before + UNKNOWN + after, len(before))[:most]
    others = between(*sides, key, UNKNOWN.join(neighbours), 0)
    return own + [text for text in others if text not in own][:1]


def between(before: str, after: str, key: str, text: str, here: int) -> list[str]:
    """What `lookup` finds in `text`, best first; `key` is the end of `before` that has to stand there."""
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
    """How much of the line from `start` on stands before what goes on as `after` does for the most characters, and how
    many those are; 0 and 0 where nothing does."""
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
    """The first one."""
    return _END.split(text, maxsplit=1)[0]


def agreement(left: str, right: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b or a == UNKNOWN), min(len(left), len(right)))


class Repeats:
    """What follows the same tokens elsewhere in a context: a draft for any place of a hole (prompt lookup decoding,
    Saxena 2023)."""

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
    """How many tokens both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def names(fills: Sequence[str], *, most: int = 8) -> list[str]:
    """Names in the fills of the holes before, the latest first: what one hole defines another may use."""
    found = [name for text in fills for name in _NAME.findall(text)]
    return list(dict.fromkeys(reversed(found)))[:most]
