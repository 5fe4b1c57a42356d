"""What may stand in a hole because it stands elsewhere: how a line went on where it stood before, in the buffer and in
its neighbours, and the names that the job's earlier holes were given."""

import itertools
import re
from collections.abc import Sequence

PLACES = 2000  # occurrences looked at
_LINE = re.compile(r"[^\r\n\0]*")
_NAME = re.compile(r"[^\W\d]\w*")


def lookup(
    before: str, after: str, neighbours: Sequence[str] = (), *, most: int = 2, longest: int = 48, least: int = 3
) -> list[str]:
    """Continuations of the text before the cursor found elsewhere: the rest of the line behind the places that agree
    with it for the most characters, best first. The buffer's own come first, `most` of them; then the neighbours' best,
    one only: every token of a proposal is a row of the first pass.

    A NUL stands for what is not known yet, such as a later hole; nothing is found across it.
    """
    written = len(before.rstrip())
    key = before[max(0, min(len(before) - least, written - 1)) :]  # behind indentation, the end of the line before too
    if not written or not least <= len(key) <= longest:
        return []
    own = continuations(before, key, before + "\0" + after, longest)[:most]
    return own + [text for text in continuations(before, key, "\0".join(neighbours), longest) if text not in own][:1]


def continuations(before: str, key: str, text: str, longest: int) -> list[str]:
    """The rest of the line wherever `key`, the end of `before`, stands in `text`, the cursor apart; best first."""
    found: dict[str, int] = {}
    for match in itertools.islice(re.finditer(re.escape(key), text), PLACES):
        end = match.end()
        rest = _LINE.match(text, end)
        if rest and rest.group().strip():
            agreed = agreement(before, text, end, longest)
            found[rest.group()] = max(agreed, found.get(rest.group(), 0))
    return sorted(found, key=found.__getitem__, reverse=True)


def agreement(before: str, text: str, end: int, longest: int) -> int:
    """How many characters before `end` of the text are those at the end of `before`."""
    count = 0
    while count < min(longest, end, len(before)) and text[end - 1 - count] == before[-1 - count]:
        count += 1
    return count


def names(fills: Sequence[str], *, most: int = 8) -> list[str]:
    """Names in the fills of the holes before, the latest first: what one hole defines another may use."""
    found = [name for text in fills for name in _NAME.findall(text)]
    return list(dict.fromkeys(reversed(found)))[:most]
