"""Free generation, canvas after canvas, exactly as the reference does it: no pins, no locks, no forbidden tokens.

Only the tests of parity with Transformers' `generate` use it. It draws random numbers in the same order, so that on a
CPU a seed gives the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from caesura.engine.methods.uniform import renoise
from caesura.engine.methods.uniform.renoise import CanvasState, SlotStatistics
from caesura.engine.model import Renoiser, Run
from caesura.engine.noise import Schedule, Uniform

PAD = 0  # token after the end of a text, as in training


@dataclass(frozen=True)
class Generated:
    """New tokens, a whole number of canvases, padded after the first end token; denoise steps of each canvas."""

    ids: list[int]
    steps: list[int]


def generate(
    model: Renoiser, prompt: Sequence[int], *, max_new: int, seed: int, schedule: Schedule | None = None
) -> Generated:
    """At least `max_new` tokens after `prompt`, unless the text ends earlier."""
    noise = model.spec.noise
    assert isinstance(noise, Uniform), "free generation is for models of uniform noise"
    schedule = schedule or noise.schedule
    sampler = partial(renoise.by_entropy, bound=schedule.entropy_bound)
    generator = torch.Generator(model.device).manual_seed(seed)
    kv = model.cache().lease(list(prompt))
    stops = model.spec.ends - {PAD} or model.spec.ends  # some texts end with padding alone
    fresh, found, steps = list(prompt), list[int](), list[int]()

    def noisy() -> Tensor:
        return torch.randint(noise.vocabulary, (noise.canvas,), generator=generator, device=model.device)

    while len(found) < max_new:
        state, step = renoise.start(model, [None] * noise.canvas, noisy()), 0
        while step < schedule.steps:
            at = kv.length + len(fresh)
            run = Run(
                kv, state.ids.tolist(), range(at, at + noise.canvas), fresh=fresh, conditioning=state.conditioning
            )
            logits, fresh = model.logits(model.hidden([run])), []
            temperature = torch.tensor(schedule.temperature(step, schedule.steps))
            outlook = renoise.of_logits(model, logits, temperature)
            # The reference draws a token for every slot, even for those that it then renoises.
            drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
            again, every = noisy(), torch.ones_like(drawn, dtype=torch.bool)

            def pick(_: Tensor, drawn: Tensor = drawn) -> Tensor:
                return drawn

            state, scores, _ = renoise.advance(model, state, outlook, sampler, step, schedule.steps, every, pick, again)
            step += 1
            if reference_done(schedule, state, scores):
                break
        fresh = state.best.tolist()
        found += fresh
        steps.append(step)
        end = next((i for i, token in enumerate(found) if token in stops), None)
        if end is not None:
            found[end + 1 :] = [PAD] * (len(found) - end - 1)
            break
    return Generated(found, steps)


def reference_done(schedule: Schedule, state: CanvasState, scores: SlotStatistics) -> bool:
    """The reference's rule: nothing moved for long enough, and the mean entropy is low."""
    return bool((state.stable >= schedule.stability).all()) and float(scores.entropy.mean()) < schedule.confidence
