"""A canvas that computes guesses of its next steps in the same forward (Wu and Zhang 2025, FreeDave: lossless). The
answer is that of `absorbing` with the same sampler and as many steps, in fewer forwards; by default a step accepts one
token.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, _forward, _race, absorbing
from caesura.engine.methods._race import Race
from caesura.engine.methods.absorbing import Denoising
from caesura.engine.methods.absorbing import refusal as refusal
from caesura.engine.model import Model
from caesura.engine.samplers import begin as begin_sampler
from caesura.engine.scores import Scores
from caesura.wire import Impossible, Infill, StopReason

WIDTH = 4  # most canvases of a forward: the present one, and guesses of the next steps
ONE = "top_k"  # accepts one slot a step if there are as many steps as slots
SPARE = 16  # steps beyond one for each slot: those that only find a length


def advance(model: Model, fillings: Sequence[Any]) -> None:
    """One forward of all canvases and their guesses; then each takes the steps whose canvas was computed."""
    asked = [[w, *guesses(w, model.spec.null_id)] for w in fillings]
    found = iter(_forward.forward(model, [one for some in asked for one in some]))
    for w, some in zip(fillings, asked, strict=True):
        w.take(model, {state(one.canvas): next(found) for one in some})


@dataclass(eq=False)
class Guessing(Denoising):
    """A canvas that has at most `most` rows together with its guesses."""

    most: int = 0

    advance = staticmethod(advance)

    @property
    def width(self) -> int:
        """Canvases of the next forward. The first step has nothing to guess from, and a race drops most canvases."""
        if self.judged or self.step == 0:
            return 1
        return max(1, min(WIDTH, len(self.canvas.open()), self.most // self.canvas.rows))

    @property
    def rows(self) -> int:
        return self.width * self.canvas.rows

    def stop(self, steps: int) -> StopReason:
        """By its own steps: a forward takes several."""
        return "steps" if self.step >= self.of else "complete"

    def take(self, model: Model, known: dict[Hashable, Scores]) -> None:
        """Take steps as long as the scores of the canvas are `known`."""
        while self.finite and not self.finished and (now := state(self.canvas)) in known:
            self.decide(model, known.pop(now))
            self.close()


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    return partial(begin, model, partial(_race.advance, advance))


def begin(
    model: Model,
    race: Callable[[Model, Sequence[Any]], None],
    job: Infill,
    layout: Layout,
    kv: KV,
    fresh: Sequence[int],
    sampler: str | None = None,
) -> Denoising | Race:
    canvas, accepts = absorbing.opening(model, job, layout.canvas), begin_sampler(sampler or ONE)
    if accepts.checks:
        raise Impossible("The method freedave has no rows that check tokens; name another sampler, or absorbing.")
    of = max(sum(hole.max_tokens for hole in canvas.holes) + SPARE, absorbing.most_steps(canvas))
    first = Guessing(canvas, kv, accepts, of, job.seed, fresh, most=model.spec.rows)
    return absorbing.fill(model, race, job, first)


def guesses(w: Guessing, null: int | None) -> Iterator[Guessing]:
    """The canvas one step later, two, and so on, if each step accepts the likeliest slot and changes no other."""
    canvas = w.canvas
    for _ in range(w.width - 1):
        canvas = canvas.copied()
        best = max(canvas.open(), key=lambda slot: slot.prob, default=None)
        if best is None or best.draft is None:
            return
        accepted = absorbing.healed_first(canvas, canvas.slots, [slot is best for slot in canvas.slots])
        absorbing.accept(canvas, [slot for slot, yes in zip(canvas.slots, accepted, strict=True) if yes], null)
        yield replace(w, canvas=canvas, fresh=())


def state(canvas: Canvas) -> Hashable:
    """What the scores of a canvas depend on."""
    return tuple((slot.hole, slot.token) for slot in canvas.slots)
