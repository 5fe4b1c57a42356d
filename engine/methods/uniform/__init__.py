"""A canvas of uniform noise. The model has no null token, so it fills a hole at several lengths in one forward."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from caesura.engine.cache import KV
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import Begin, _race
from caesura.engine.methods._race import Race, Runner
from caesura.engine.methods.uniform import renoise
from caesura.engine.methods.uniform.canvases import Renoising, step
from caesura.engine.methods.uniform.graphs import Graphs
from caesura.engine.model import Model, Replayable
from caesura.engine.noise import Uniform
from caesura.engine.samplers import load
from caesura.wire import Infill

LEAST_STEPS = 8  # steps of a small canvas; a larger one gets one for every two slots
TRIAL = 2  # steps of every length; the first one sees nothing but noise


def refusal(model: Model) -> str:
    return "" if isinstance(model.spec.noise, Uniform) else f"The model {model.name} has no canvas of uniform noise."


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    assert isinstance(model.spec.noise, Uniform)
    schedule = model.spec.noise.schedule
    sampler, replay = partial(renoise.by_entropy, bound=schedule.entropy_bound), None
    if model.device.startswith("cuda"):
        graphs = Graphs(cast(Replayable, model), schedule, sampler, vocabulary)
        graphs.rehearse()
        replay = graphs.step
    return partial(begin, model, sampler, partial(_race.advance, partial(step, replay=replay)))


def begin(
    model: Model,
    usual: renoise.TensorSampler,
    advance: Callable[[Model, Sequence[Any]], None],
    job: Infill,
    layout: Layout,
    kv: KV,
    fresh: Sequence[int],
    sampler: str | None = None,
) -> Race:
    assert isinstance(model.spec.noise, Uniform)
    schedule = model.spec.noise.schedule
    works = list[Runner[Any]]()
    for one in _race.canvases(model, job, layout.canvas):
        of = min(schedule.steps, max(LEAST_STEPS, -(-len(one.slots) // 2)))
        works.append(Renoising(one, kv, renoise.on_host(load(sampler)) if sampler else usual, of, job.seed))
    works[0].fresh = fresh
    return Race(works, job.candidates, advance, TRIAL)
