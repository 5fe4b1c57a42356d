"""A canvas of uniform noise. The model has no null token, so it fills a hole at several lengths in one forward."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from caesura.engine.cache import KV
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, settled
from caesura.engine.methods.uniform import race
from caesura.engine.methods.uniform.canvases import Renoising, Replay, step
from caesura.engine.methods.uniform.graphs import Graphs
from caesura.engine.models import Model, Replayable
from caesura.engine.noise import Uniform
from caesura.engine.samplers import Sampler, entropy_bound, load
from caesura.wire import Fill, Infill, Tokens

LEAST_STEPS = 8  # steps of a small canvas; a larger one gets one for every two slots


def advance(model: Model, fillings: Sequence[Any]) -> None:
    """One step of all their canvases; then the best lengths go on."""
    step(model, [w for filling in fillings for w in filling.works if not w.finished], fillings[0].replay)
    for filling in fillings:
        filling.choose()


@dataclass(eq=False)
class Race:
    """A job's canvases, one for each length, best first. As many stay as the job wants answers."""

    works: list[Renoising]
    wanted: int
    replay: Replay | None
    steps: int = 0
    of: int = field(init=False)

    advance = staticmethod(advance)

    def __post_init__(self) -> None:
        self.of = max(work.of for work in self.works)

    @property
    def finished(self) -> bool:
        return all(work.finished for work in self.works)

    @property
    def sound(self) -> bool:
        return all(work.sound for work in self.works)

    @property
    def rows(self) -> int:
        return sum(work.canvas.rows for work in self.works if not work.finished)

    def choose(self) -> None:
        self.steps += 1
        if len(self.works) > 1 and self.sound:
            self.works = race.choose(self.works, self.steps, self.wanted)

    def spent(self, steps: int) -> bool:
        return steps >= self.works[0].of

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        fills = self.works[0].canvas.fills()
        return tuple(map(settled, fills)) if final else fills

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        found = {tuple(f.text for f in fills): fills}
        for work in self.works[1:]:
            others = tuple(map(settled, work.canvas.fills()))
            if all(fill.text for fill in others):
                found.setdefault(tuple(f.text for f in others), others)
        return tuple(found.values())[1 : self.wanted]

    def tokens(self) -> Tokens:
        return Tokens(canvas=self.works[0].canvas.written())


def refusal(model: Model) -> str:
    return "" if isinstance(model.noise, Uniform) else f"The model {model.name} has no canvas of uniform noise."


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    assert isinstance(model.noise, Uniform)
    schedule = model.noise.schedule
    sampler, replay = partial(entropy_bound.select, bound=schedule.entropy_bound), None
    if model.device.startswith("cuda"):
        graphs = Graphs(cast(Replayable, model), schedule, sampler, vocabulary)
        graphs.rehearse()
        replay = graphs.step
    return partial(begin, model, sampler, replay)


def begin(
    model: Model,
    usual: Sampler,
    replay: Replay | None,
    job: Infill,
    layout: Layout,
    kv: KV,
    fresh: Sequence[int],
    sampler: str | None = None,
) -> Race:
    assert isinstance(model.noise, Uniform)
    canvas, encode, schedule = layout.canvas, model.tokenizer.encode, model.noise.schedule
    forced = [encode(hole.forced.decode()) for hole in canvas.holes]
    texts = zip(canvas.holes, job.draft or (), strict=False)
    drafts = [encode(hole.forced.decode() + text) if text else [] for hole, text in texts]
    works = []
    for one in race.starters(canvas, [len(tokens) for tokens in forced], drafts):
        of = min(schedule.steps, max(LEAST_STEPS, -(-len(one.slots) // 2)))
        generator = torch.Generator(model.device).manual_seed(job.seed % 2**63)
        works.append(Renoising(one, kv, load(sampler) if sampler else usual, of, generator))
    for work in works:
        work.judged = len(works) > 1
    works[0].fresh = fresh
    return Race(works, job.candidates, replay)
