"""A race of lengths: a model without a null token fills a hole at several lengths, as rows of the same forwards, and
the text that fits best wins. Pure: canvases in, those that go on out.
"""

import math
from collections.abc import Sequence

from caesura.engine import length
from caesura.engine.canvas.canvas import MAX_ROWS, Canvas
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.wire import Impossible

UNKNOWN = 8  # slots of a hole without a draft, next to one with a draft
SPELLED = 2  # tokens of a healed start, above which they are added to the lengths


def starters(canvas: Canvas, forced: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[Canvas]:
    """A canvas for each length, the same in all holes, and one for the drafts of each hole; together at most MAX_ROWS
    rows. `forced` is how many tokens each hole's healed start takes as written; the model may need fewer. Raises
    Impossible if no canvas fits.
    """
    holes = range(len(canvas.holes))
    most, one_line = max(hole.max_tokens for hole in canvas.holes), all(hole.one_line for hole in canvas.holes)
    lengths = [[n] * len(canvas.holes) for n in length.tried(most, one_line=one_line)]
    if max(forced) > SPELLED:
        lengths += [[slots[i] + forced[i] for i in holes] for slots in lengths]
    made = distinct([fitted(canvas, slots) for slots in lengths])
    if any(drafts):
        warm = fitted(canvas, [len(tokens) or UNKNOWN for tokens in drafts])
        for number, tokens in enumerate(drafts):
            for slot, token in zip(warm.of_hole(number), tokens, strict=False):
                slot.shown = token
        made = [warm, *made]
    fitting = [one for one in made if one.rows <= MAX_ROWS]
    if not fitting:
        raise Impossible(f"The holes take {min(one.rows for one in made)} tokens together, and {MAX_ROWS} fit.")
    while len(fitting) > 1 and sum(one.rows for one in fitting) > MAX_ROWS:
        fitting = [*fitting[:1], *fitting[2::2]] if len(fitting) > 2 else fitting[:1]
    return fitting


def fitted(canvas: Canvas, slots: Sequence[int]) -> Canvas:
    """The canvas with `slots` in each hole. A hole whose grammar has no fill of that many gets the next smaller number
    that has one, or that of the shortest fill."""
    fitting = list(slots)
    for number, hole in enumerate(canvas.holes):
        if hole.grammar is not None:
            wanted = min(slots[number], hole.max_tokens)
            tried = [n for n in (wanted, *reversed(length.LINE)) if n <= wanted]
            tried.append(len(hole.shortest))
            fitting[number] = next(n for n in tried if canvas.simplest(number, n) is not None)
    whole = canvas.resized(fitting)
    whole.begin()
    return whole


def distinct(canvases: Sequence[Canvas]) -> list[Canvas]:
    """Drop canvases of equal lengths, which budgets cause."""
    return list({tuple(len(one.of_hole(n)) for n in range(len(one.holes))): one for one in canvases}.values())


def choose(works: Sequence[Renoising], step: int, keep: int) -> list[Renoising]:
    """The canvases that go on after `step` steps, best first: from the second on a third of them, at least `keep`."""
    ordered = sorted(works, key=lambda work: work.score, reverse=True)
    if step < 2 or len(ordered) <= keep:
        return ordered
    left = ordered[: max(keep, math.ceil(len(ordered) / 3))]
    if len(left) == 1:
        left[0].judged = False
    return left
