"""Deterministic automata over the UTF-8 bytes of a text: from literals, lengths and characters, and combined.

Every `Dfa` is minimal, trimmed and numbered breadth first, so two automata of one language are equal.
(Minimisation: Hopcroft 1971.)
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from caesura.recent import remembered
from caesura.wire import Impossible

MAX_STATES = 4096  # of an automaton
MAX_WORK = 4 * MAX_STATES  # states before equivalent ones are merged
ALL = (1 << 256) - 1  # the mask of every byte
LAST = 0x10FFFF  # code point
CACHED = 2 << 20  # bytes of automata kept by each maker
EDGE = 110  # approximate bytes of an edge

Transitions = Sequence[Iterable[tuple[int, int]]]
StateKey = TypeVar("StateKey", bound=Hashable)


class TooLarge(Impossible):
    """An automaton would exceed its limits; one sentence."""

    def __init__(self, sentence: str = f"It needs more than {MAX_STATES:,} states; give it smaller bounds.") -> None:
        super().__init__(sentence)


class Unsupported(Impossible):
    """There is no automaton for this; one sentence."""


@dataclass(frozen=True, slots=True, repr=False)
class Dfa:
    """A row of (mask, target) pairs for each state. The masks of a row are disjoint; bit b of a mask stands for byte b,
    and a byte in no mask is refused. State 0 is the start."""

    rows: tuple[tuple[tuple[int, int], ...], ...]
    accepting: frozenset[int]

    def __repr__(self) -> str:
        return f"<Dfa of {len(self.rows)} states>"

    @property
    def empty(self) -> bool:
        return not self.accepting

    @property
    def nbytes(self) -> int:
        return EDGE * sum(map(len, self.rows))

    def accepts(self, text: str | bytes) -> bool:
        state = 0
        for byte in text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text:
            for mask, target in self.rows[state]:
                if mask >> byte & 1:
                    state = target
                    break
            else:
                return False
        return state in self.accepting


def weight(made: Dfa, *asked: object, **more: object) -> int:
    """The bytes of an automaton and of the automata it was made from."""
    return made.nbytes + sum(one.nbytes for one in asked if isinstance(one, Dfa))


def explore(
    start: StateKey, edges: Callable[[StateKey], Iterable[tuple[int, StateKey]]], accepts: Callable[[StateKey], bool]
) -> Dfa:
    """The automaton whose states are the keys reached from `start`; the masks of one key's edges are disjoint."""
    numbers = {start: 0}
    found = [start]
    rows = []
    for key in found:
        row = []
        for mask, target in edges(key):
            if (number := numbers.setdefault(target, len(found))) == len(found):
                if number == MAX_WORK:
                    raise TooLarge
                found.append(target)
            row.append((mask, number))
        rows.append(row)
    return _minimal(rows, {number for key, number in numbers.items() if accepts(key)})


def alphabet(masks: Iterable[int]) -> list[int]:
    """The coarsest partition of the bytes such that every mask is a union of parts; bytes in no mask are left out."""
    parts: list[int] = []
    for mask in set(masks):
        split = []
        for part in parts:
            split += [piece for piece in (part & mask, part & ~mask) if piece]
            mask &= ~part
        parts = [*split, mask] if mask else split
    return parts


def letters(masks: Iterable[int]) -> dict[int, list[int]]:
    """The parts of the alphabet in each mask."""
    masks = set(masks)
    parts = alphabet(masks)
    return {mask: [part for part in parts if part & mask] for mask in masks}


def _minimal(rows: Transitions, accepting: set[int]) -> Dfa:
    alive = _alive(rows, accepting)
    if 0 not in alive:
        return Dfa(((),), frozenset())
    kept = [[edge for edge in row if edge[1] in alive] for row in rows]
    block = _blocks(kept, alive, accepting)
    # Breadth first over the blocks; a block's row is that of any of its states.
    numbers = {block[0]: 0}
    found = [0]
    out = []
    shared: dict[int, int] = {}  # equal masks share one object, since automata are cached
    for state in found:
        merged: dict[int, int] = defaultdict(int)
        for mask, target in kept[state]:
            merged[block[target]] |= mask
        row = []
        first = {block[target]: target for _, target in kept[state]}
        for target, mask in sorted(merged.items(), key=lambda item: item[1] & -item[1]):
            if target not in numbers:
                numbers[target] = len(found)
                found.append(first[target])
            row.append((shared.setdefault(mask, mask), numbers[target]))
        out.append(tuple(row))
    if len(out) > MAX_STATES:
        raise TooLarge
    return Dfa(tuple(out), frozenset(number for number, state in enumerate(found) if state in accepting))


def _alive(rows: Transitions, accepting: set[int]) -> set[int]:
    """The states from which acceptance can be reached."""
    before = defaultdict(list)
    for state, row in enumerate(rows):
        for _, target in row:
            before[target].append(state)
    alive = set(accepting)
    found = list(accepting)
    for state in found:
        for source in before[state]:
            if source not in alive:
                alive.add(source)
                found.append(source)
    return alive


def _blocks(rows: Transitions, alive: set[int], accepting: set[int]) -> dict[int, int]:
    """The number of each live state's class of equivalent states."""
    parts = letters(mask for state in alive for mask, _ in rows[state])
    before: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for state in alive:
        for mask, target in rows[state]:
            before[target] += [(letter, state) for letter in parts[mask]]
    blocks = [members for members in (alive & accepting, alive - accepting) if members]
    block = {state: number for number, members in enumerate(blocks) for state in members}
    waiting = set(range(len(blocks)))
    while waiting:
        sources: dict[int, list[int]] = defaultdict(list)
        for target in blocks[waiting.pop()]:
            for letter, state in before[target]:
                sources[letter].append(state)
        for states in sources.values():
            touched: dict[int, set[int]] = defaultdict(set)
            for state in states:
                touched[block[state]].add(state)
            for number, inside in touched.items():
                if len(inside) == len(blocks[number]):
                    continue
                outside = blocks[number] - inside
                # Both halves of a waiting block wait; of a finished block only the smaller half does (Hopcroft).
                blocks[number], new = (inside, outside) if len(inside) > len(outside) else (outside, inside)
                for state in new:
                    block[state] = len(blocks)
                waiting.add(len(blocks))
                blocks.append(new)
    return block


def literals(texts: Iterable[str]) -> Dfa:
    """Exactly these texts. A text with a lone surrogate has no UTF-8 and is left out."""
    nodes: list[dict[int, int]] = [{}]
    accepting = set()
    for text in texts:
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            continue
        state = 0
        for byte in raw:
            if byte not in nodes[state]:
                if len(nodes) > 2 * MAX_WORK:
                    raise TooLarge
                nodes[state][byte] = len(nodes)
                nodes.append({})
            state = nodes[state][byte]
        accepting.add(state)
    return _minimal([[(1 << byte, target) for byte, target in node.items()] for node in nodes], accepting)


Ranges = tuple[tuple[int, int], ...]
_LEADS = ((0x00, 0, 0x00, 0x7F), (0xC0, 6, 0x80, 0x7FF), (0xE0, 12, 0x800, 0xFFFF), (0xF0, 18, 0x10000, LAST))


@remembered(CACHED, weight)
def characters(ranges: Ranges) -> Dfa:
    """Texts of one character from these ranges of code points, both ends included, without surrogates."""
    ranges = tuple(_clip(ranges, 0, 0xD7FF)) + tuple(_clip(ranges, 0xE000, LAST))

    def edges(key: tuple[int, Ranges]) -> Iterator[tuple[int, tuple[int, Ranges]]]:
        bits, inside = key  # bits to be written, -1 before the lead byte; their ranges
        if bits < 0:
            for lead, low, first, last in _LEADS:
                yield from _leads(lead, low, tuple(_clip(inside, first, last)))
        elif bits:
            yield from _leads(0x80, bits - 6, inside)

    start: tuple[int, Ranges] = (-1, ranges)
    return explore(start, edges, lambda key: key[0] == 0)


def _clip(ranges: Ranges, first: int, last: int) -> Iterator[tuple[int, int]]:
    for a, b in ranges:
        if a <= last and b >= first:
            yield max(a, first), min(b, last)


def _leads(lead: int, low: int, ranges: Ranges) -> Iterator[tuple[int, tuple[int, Ranges]]]:
    """The bytes for the bits above the `low` ones, grouped by the ranges that may follow."""
    follow: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for a, b in ranges:
        for top in range(a >> low, (b >> low) + 1):
            base = top << low
            follow[top].append((max(a, base) - base, min(b, base + (1 << low) - 1) - base))
    masks: dict[Ranges, int] = defaultdict(int)
    for top, inside in follow.items():
        masks[tuple(inside)] |= 1 << (lead + top)
    for key, mask in masks.items():
        yield mask, (low, key)


def _any() -> Dfa:
    one = characters(((0, LAST),))
    rows = [[(mask, 0 if target in one.accepting else target) for mask, target in row] for row in one.rows]
    return _minimal(rows, {0})


ANY = _any()  # every text of valid UTF-8; state 0 is between two characters, and the only one that accepts


@remembered(CACHED, weight)
def lengths(least: int, most: int | None) -> Dfa:
    """Texts of `least` to `most` code points, both included; None is unbounded."""

    def edges(key: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
        state, count = key
        if state == 0 and count == most:
            return
        for mask, target in ANY.rows[state]:
            step = target == 0 and (most is not None or count < least)
            yield mask, (target, count + step)

    return explore((0, 0), edges, lambda key: key[0] == 0 and key[1] >= least and (most is None or key[1] <= most))


def both(a: Dfa, b: Dfa) -> Dfa:
    """The texts of both a and b."""
    return _product(a, b, lambda x, y: x and y)


def either(a: Dfa, b: Dfa) -> Dfa:
    """The texts of a or b."""
    return _product(a, b, lambda x, y: x or y)


def without(a: Dfa, b: Dfa) -> Dfa:
    """The texts of a that are not texts of b."""
    return _product(a, b, lambda x, y: x and not y)


_REFUSED = -1


def _product(a: Dfa, b: Dfa, keep: Callable[[bool, bool], bool]) -> Dfa:
    left, right = keep(True, False), keep(False, True)  # whether one side can accept alone

    def edges(key: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
        for mask_a, i in _row(a, key[0]):
            for mask_b, j in _row(b, key[1]):
                mask = mask_a & mask_b
                if mask and (i >= 0 or right) and (j >= 0 or left) and (i >= 0 or j >= 0):
                    yield mask, (i, j)

    return explore((0, 0), edges, lambda key: keep(key[0] in a.accepting, key[1] in b.accepting))


def _row(dfa: Dfa, state: int) -> Iterator[tuple[int, int]]:
    """The edges of a state and one for all refused bytes, so that the other side of a product can go on alone."""
    rest = ALL
    if state != _REFUSED:
        for mask, target in dfa.rows[state]:
            rest &= ~mask
            yield mask, target
    if rest:
        yield rest, _REFUSED


def of_bytes(values: Iterable[int]) -> int:
    """The mask of these bytes."""
    out = 0
    for value in values:
        out |= 1 << value
    return out


_CONTROLS = of_bytes(range(0x20))
_BARE = ALL & ~_CONTROLS & ~of_bytes(b'"\\')
_SHORT = dict(zip(b'"\\bfnrt', b'"\\\b\f\n\r\t', strict=True))  # the byte after a backslash -> the byte it means
_HEX = tuple(of_bytes({*b"%x" % digit, *b"%X" % digit}) for digit in range(16))
_LONG = _CONTROLS & ~of_bytes(_SHORT.values())


@remembered(CACHED, weight)
def escaped(dfa: Dfa) -> Dfa:
    """The same texts as they are written inside a JSON string, without the quotes.

    Each text has one form, up to the case of hex digits: a short escape where there is one, `\\u00xx` for other control
    characters, and the character itself for the rest. Only for ANY every form of every character is allowed.
    """
    if dfa == ANY:
        return _written_anyhow()

    def edges(key: tuple[int, bytes]) -> Iterator[tuple[int, tuple[int, bytes]]]:
        state, begun = key  # the bytes of the escape so far
        row = dfa.rows[state]
        if not begun:
            yield from ((mask & _BARE, (target, b"")) for mask, target in row if mask & _BARE)
            if any(mask & ~_BARE for mask, _ in row):
                yield 1 << ord("\\"), (state, b"\\")
        elif begun == b"\\":
            for written, meant in _SHORT.items():
                yield from ((1 << written, (target, b"")) for mask, target in row if mask >> meant & 1)
            if any(mask & _LONG for mask, _ in row):
                yield 1 << ord("u"), (state, b"u")
        elif len(begun) < 3:
            yield 1 << ord("0"), (state, begun + b"0")
        elif len(begun) == 3:
            for high in range(2):
                if any(mask & _LONG & (0xFFFF << 16 * high) for mask, _ in row):
                    yield _HEX[high], (state, begun + b"01"[high : high + 1])
        else:
            base = 16 * (begun[3] - ord("0"))
            for mask, target in row:
                hits = [digit for digit in range(16) if mask & _LONG & (1 << base + digit)]
                yield from ((_HEX[digit], (target, b"")) for digit in hits)

    return explore((0, b""), edges, lambda key: not key[1] and key[0] in dfa.accepting)


def _written_anyhow() -> Dfa:
    """All contents of a JSON string; a surrogate only as half of a pair."""
    any_hex = of_bytes(b"0123456789abcdefABCDEF")
    d, rest = _HEX[13], any_hex & ~_HEX[13]
    high, low = of_bytes(b"89abAB"), of_bytes(b"cdefCDEF")
    table: Mapping[str, list[tuple[int, str]]] = {
        "\\": [(of_bytes(b'"\\/bfnrt'), ""), (1 << ord("u"), "u")],
        "u": [(rest, "3"), (d, "d")],
        "d": [(of_bytes(b"01234567"), "2"), (high, "high 2")],
        "3": [(any_hex, "2")],
        "2": [(any_hex, "1")],
        "1": [(any_hex, "")],
        "high 2": [(any_hex, "high 1")],
        "high 1": [(any_hex, "pair")],
        "pair": [(1 << ord("\\"), "pair \\")],
        "pair \\": [(1 << ord("u"), "pair u")],
        "pair u": [(d, "pair d")],
        "pair d": [(low, "2")],
    }

    def edges(key: str | int) -> Iterator[tuple[int, str | int]]:
        if isinstance(key, int):  # a state of ANY
            yield from ((mask & _BARE, target) for mask, target in ANY.rows[key] if mask & _BARE)
            if key == 0:
                yield 1 << ord("\\"), "\\"
        else:
            yield from ((mask, target or 0) for mask, target in table[key])

    start: str | int = 0
    return explore(start, edges, lambda key: key == 0)
