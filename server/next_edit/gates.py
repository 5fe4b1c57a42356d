"""The reasons to stay silent about an edit that was carried over. Each is a rule of one sentence."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from caesura.server.languages import COMMON
from caesura.server.next_edit.history import PastEdit
from caesura.server.next_edit.source import EditedSource
from caesura.server.next_edit.tokens import Change, changes, is_identifier, is_number, strings, tokens
from caesura.server.next_edit.transfer import Transfer

REPEATED = 2  # edits that make the same change, with which it counts as a pattern

_TWICE = re.compile(r"(\b\w+(?:\.|::|->))\1")
_DECLARES = frozenset(("def", "fn", "func", "function"))

EditGate = Callable[[Transfer, EditedSource, Sequence[PastEdit]], bool]


def changes_nothing(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """Only blanks would change, or the new lines stand there already."""
    there = tuple(source.rows[found.row : found.row + len(found.new)])
    stands = len(found.new) > len(found.old) and there == found.new
    return stands or _code(found.old) == _code(found.new)


def says_twice(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The place has already what the edit added, as `retry=True` in a call, or would get a receiver twice."""
    before, there = _joined(found.edit.old), _joined(found.old)
    if _TWICE.search(_joined(found.new)) and not _TWICE.search(there):
        return True
    added = (_signs(one.new) for one in _additions(found.edit.old, found.edit.new))
    return any(sign in there and sign not in before for sign in added if any(map(str.isalnum, sign)))


def adds_elsewhere(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The edit only added tokens, and the place lacks the name next to them, or the call or signature around them."""
    shared = frozenset[Surrounding].intersection(*(_surroundings(edit.old, edit.new) for edit in found.peers))
    if not shared:
        return False
    there = _surroundings(found.old, found.new)
    around = {one for one in shared if one.side == "around"}
    return not around <= there or (around < shared and not shared & there)


def undoes(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The new lines are the old ones of an edit: never undo the user."""
    return any(_code(edit.old) == _code(found.new) for edit in history)


def adds_once(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The edit only added whole lines: a line added once is rarely added elsewhere."""
    rest = iter(found.edit.new)
    return len(found.peers) < REPEATED and all(line in rest for line in found.edit.old)


def is_prose(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The place lies in a comment or a docstring, where words repeat by chance."""
    return len(found.peers) < REPEATED and any(_in_prose(source, row, column) for row, column in _places(found))


def chooses_value(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """Only a number or the inside of a string changed, and the lines differ: values are chosen, not repeated."""
    return len(found.peers) < REPEATED and found.old != found.edit.old and _only_values(found.edit)


def takes_other_name(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The edit only swaps one identifier that is still declared: the places left belong to that declaration."""
    swap = swapped(found.edit)
    if swap is None:
        return False
    return source.scopes is not None and any(source.scopes.definitions(swap[0]))


def breaks_syntax(found: Transfer, source: EditedSource, history: Sequence[PastEdit]) -> bool:
    """The text would have more syntax errors than before."""
    return source.breaks(found.row, found.end, found.new)


GATES: tuple[EditGate, ...] = (  # the cheap ones first
    changes_nothing,
    undoes,
    adds_once,
    chooses_value,
    says_twice,
    adds_elsewhere,
    is_prose,
    takes_other_name,
    breaks_syntax,
)


def swapped(edit: PastEdit) -> tuple[str, str] | None:
    """The identifier and its successor, if the edit changes nothing else but blanks."""
    old, new = (tuple(token for token in tokens(lines) if token.strip()) for lines in (edit.old, edit.new))
    pairs = {(old[one.start : one.end], one.new) for one in changes(old, new)}
    if len(pairs) != 1 or len(edit.old) != len(edit.new):
        return None
    (before, after), *_ = pairs
    names = len(before) == len(after) == 1 and is_identifier(before[0]) and is_identifier(after[0])
    return (before[0], after[0]) if names else None


class Surrounding(NamedTuple):
    """A name before or after tokens that were added, or the call or signature around them: `f(` or `def f(`."""

    side: Literal["before", "after", "around"]
    text: str


def _surroundings(old: Sequence[str], new: Sequence[str]) -> frozenset[Surrounding]:
    """The surroundings of the first addition; empty if the edit does not only add."""
    added = _additions(old, new)
    if not added or len(added) < len(changes(tokens(old), tokens(new))):
        return frozenset()
    before, after = (
        [token for token in part if token.strip() or token[0] == "\n"]
        for part in (tokens(old)[: added[0].start], tokens(old)[added[0].start :])
    )
    found = [Surrounding("around", text) for text in _around(before)]
    sides: tuple[tuple[Literal["before", "after"], list[str]], ...] = (("before", before[::-1]), ("after", after))
    for side, run in sides:
        line = next((at for at, token in enumerate(run) if token[0] == "\n"), len(run))
        found += [Surrounding(side, token) for token in run[:line] if is_identifier(token) and token not in COMMON][:1]
    return frozenset(found)


def _around(before: Sequence[str]) -> Iterator[str]:
    """The call or signature whose parenthesis is open after these tokens."""
    depth = 0
    for at in reversed(range(1, len(before))):
        depth += (before[at] == ")") - (before[at] == "(")
        if depth < 0:
            if is_identifier(before[at - 1]):
                keyword = before[at - 2] + " " if at > 1 and before[at - 2] in _DECLARES else ""
                yield f"{keyword}{before[at - 1]}("
            return


def _additions(old: Sequence[str], new: Sequence[str]) -> list[Change]:
    return [one for one in changes(tokens(old), tokens(new)) if one.start == one.end]


def _joined(lines: Sequence[str]) -> str:
    return _signs(tokens(lines))


def _signs(found: Sequence[str]) -> str:
    return "".join(token for token in found if token.strip())


def _only_values(edit: PastEdit) -> bool:
    old, new = tokens(edit.old), tokens(edit.new)
    before, after = list(strings(old)), list(strings(new))
    at = 0
    for one in changes(old, new):
        first = one.start + at
        at += len(one.new) - (one.end - one.start)
        dropped = zip(old[one.start : one.end], before[one.start : one.end], strict=True)
        added = zip(one.new, after[first : first + len(one.new)], strict=True)
        if not all(inside or is_number(token) for token, inside in (*dropped, *added)):
            return False
    return True


def _places(found: Transfer) -> Iterator[tuple[int, int]]:
    """(row, column) of the first sign of the first row that changes, and of the change in it."""
    pairs = list(zip(found.old, found.new, strict=False))
    at = next((at for at, (old, new) in enumerate(pairs) if old != new), len(pairs))
    at = min(at, len(found.old) - 1)  # after lines that stay, lines are added or removed
    old, new = found.old[at], found.new[at] if at < len(found.new) else ""
    yield found.row + at, len(old) - len(old.lstrip())
    yield (
        found.row + at,
        next((i for i, pair in enumerate(zip(old, new, strict=False)) if len(set(pair)) > 1), len(new)),
    )


def _in_prose(source: EditedSource, row: int, column: int) -> bool:
    node = source.node_at(row, column)
    if node is None:
        mark = source.language.comment
        return source.language.prose or bool(mark and source.rows[row].lstrip().startswith(mark))
    while node is not None:
        around = node.parent
        if "comment" in node.type or (node.type == "string" and around and around.type == "expression_statement"):
            return True
        node = around
    return False


def _code(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines without their blanks."""
    return tuple("".join(line.split()) for line in lines if line.strip())
