"""The reasons to stay silent about an edit that was carried over. Each is a rule of one sentence."""

from collections.abc import Callable, Iterator, Sequence

from caesura.server.next_edit.history import PastEdit
from caesura.server.next_edit.source import Source
from caesura.server.next_edit.tokens import changes, is_identifier, is_number, strings, tokens
from caesura.server.next_edit.transfer import Transfer
from caesura.server.text import repair

REPEATED = 2  # edits that make the same change, with which it counts as a pattern

Gate = Callable[[Transfer, Source, Sequence[PastEdit]], bool]


def changes_nothing(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """Only blanks would change, or the new lines stand there already."""
    there = tuple(source.rows[found.row : found.row + len(found.new)])
    return there == found.new or _code(found.old) == _code(found.new)


def undoes(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """The new lines are the old ones of an edit: never undo the user."""
    return any(_code(edit.old) == _code(found.new) for edit in history)


def adds_once(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """The edit only added whole lines: a line added once is rarely added elsewhere."""
    rest = iter(found.edit.new)
    return found.support < REPEATED and all(line in rest for line in found.edit.old)


def is_prose(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """The place lies in a comment or a docstring, where words repeat by chance."""
    return found.support < REPEATED and any(_in_prose(source, row, column) for row, column in _places(found))


def chooses_value(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """Only a number or the inside of a string changed, and the lines differ: values are chosen, not repeated."""
    return found.support < REPEATED and found.old != found.edit.old and _only_values(found.edit)


def takes_other_name(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """The edit only swaps one identifier that is still declared: the places left belong to that declaration."""
    swap = swapped(found.edit)
    if swap is None:
        return False
    return source.scopes is not None and any(source.scopes.definitions(swap[0]))


def breaks_syntax(found: Transfer, source: Source, history: Sequence[PastEdit]) -> bool:
    """The text would have more syntax errors than before."""
    if source.tree is None:
        return False
    start, end = source.span(found.row, found.end)
    text = source.text[:start] + "\n".join(found.new) + source.text[end:]
    tail = len(source.text) - end
    tree = repair.reparsed(source.tree, source.text, text, start, tail, source.language.id)
    return repair.faults(tree).nodes > source.faults


GATES: tuple[Gate, ...] = (  # the cheap ones first
    changes_nothing,
    undoes,
    adds_once,
    chooses_value,
    is_prose,
    takes_other_name,
    breaks_syntax,
)


def swapped(edit: PastEdit) -> tuple[str, str] | None:
    """The identifier and its successor, if the edit changes nothing else but blanks."""
    old, new = tokens(edit.old), tokens(edit.new)
    pairs = {(old[one.start : one.end], one.new) for one in changes(old, new)}
    pairs = {pair for pair in pairs if "".join(map("".join, pair)).strip()}
    if len(pairs) != 1 or len(edit.old) != len(edit.new):
        return None
    (before, after), *_ = pairs
    names = len(before) == len(after) == 1 and is_identifier(before[0]) and is_identifier(after[0])
    return (before[0], after[0]) if names else None


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


def _in_prose(source: Source, row: int, column: int) -> bool:
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
