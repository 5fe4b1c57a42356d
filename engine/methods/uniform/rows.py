"""The rows of a recorded forward, as the host knows them: the canvases of a job, then the context that it reads first.

Canvases see the same context and not each other. So each has its own place after that context, while their positions
are the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

from caesura.engine.canvas.canvas import Slot
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.engine.scores import Allowed

ANYTHING, ANY, ANY_OF_LINE, MAY_END, HEALING = range(5)  # sets of tokens, by number; `healing` has the last ones


class ForwardRow(NamedTuple):
    """A row: its token, wrong for an open slot; its position in the text; the column that keeps its keys and values;
    the columns that it sees: context up to `context`, and from `own` to `end`; the number of its canvas, and 1 as its
    `mode` if it belongs to one; the number of its set of tokens as its `bias`; and what holds of a slot."""

    token: int
    position: int
    place: int
    context: int
    own: int
    end: int
    canvas: int = 0
    mode: int = 1
    bias: int = ANYTHING
    is_slot: bool = False
    may_lock: bool = False
    must_lock: bool = False
    may_end: bool = False
    locked: bool = True


def laid(works: Sequence[Renoising]) -> list[ForwardRow]:
    """The rows of canvases after one KV."""
    length, fresh, healed = works[0].kv.length, fresh_of(works), healing(works)
    context = place = length + len(fresh)
    rows = list[ForwardRow]()
    for number, w in enumerate(works):
        end, slots = place + w.canvas.rows, dict(zip(w.canvas.slot_rows(), w.canvas.slots, strict=True))
        for at, token in enumerate(w.canvas.ids([0] * len(slots))):
            row = ForwardRow(token, context + at, place + at, context, place, end, number)
            rows.append(_of_slot(row, w, slots[at], healed) if at in slots else row)
        place = end
    return rows + [ForwardRow(token, at, at, at, at, at + 1, mode=0) for at, token in enumerate(fresh, length)]


def _of_slot(row: ForwardRow, w: Renoising, slot: Slot, healed: Sequence[Allowed]) -> ForwardRow:
    """The row with what holds of its slot; `canvases.terms` and `Canvas.allowed` have the rules."""
    hole, waiting = w.canvas.holes[slot.hole], w.canvas.unhealed().get(slot.hole)
    heals = slot is waiting
    bias = ANY_OF_LINE if hole.one_line else ANY
    if heals:
        bias = HEALING + next(i for i, some in enumerate(healed) if some is _healing(w, slot))
    return row._replace(
        bias=bias,
        is_slot=True,
        may_lock=not w.judged and waiting is None,
        must_lock=not w.judged and heals,
        may_end=hole.last and not heals,
        locked=slot.locked,
    )


def _healing(w: Renoising, slot: Slot) -> Allowed:
    """The tokens of a slot that begins a healed start, or goes on with it."""
    hole = w.canvas.holes[slot.hole]
    return w.canvas.vocabulary.allowed(w.canvas.pending(slot.hole)[1], hole.one_line)


def healing(works: Sequence[Renoising]) -> list[Allowed]:
    """The sets of tokens of healed starts, each once."""
    found = [_healing(w, slot) for w in works for slot in w.canvas.unhealed().values()]
    return list({id(some): some for some in found}.values())


def fresh_of(works: Sequence[Renoising]) -> Sequence[int]:
    """The context that the next forward of these canvases reads."""
    return next((w.fresh for w in works if w.fresh), ())
