"""The published decoding loops, token by token: each is written here once more, in plain torch and from its rule as
published, over Transformers' model. A canvas with the sampler of that name goes through the same states.

A loop sees `logits(x)` [rows, vocabulary] of a whole text, in which banned tokens have -inf, and which rows are its
slots; it yields the slots after every forward. Temperature 0. Forwards that change nothing are left out.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from caesura.engine import models, samplers
from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import _forward
from caesura.engine.methods.absorbing import Denoising
from caesura.engine.model import Model
from caesura.engine.scores.tensors import bias

from ...support.checkpoints import masked

SHARP = 4.0  # the head's factor: a random model is sure of nothing, and thresholds would never be reached
SLOTS = 14
SEEDS = range(6)
FAMILIES = ("llada", "dream")  # one of either shift


class Made(NamedTuple):
    """A model of ours and Transformers' of the same weights."""

    ours: Model
    theirs: Any


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    place, found = tmp_path_factory.mktemp("loops"), {}
    for family in FAMILIES:
        theirs = masked.oracle(family)
        theirs.lm_head.weight.data *= SHARP
        folder = masked.published(place / family, family, theirs)
        found[family] = Made(models.load(str(folder), "cpu", exact=True), theirs)
    return found


class Task(NamedTuple):
    """A text with a hole: its ids, and the rows of the slots."""

    x: Tensor
    slots: Tensor
    mask: int
    logits: Callable[..., Tensor]


def task(one: Made, seed: int) -> Task:
    """Random text around a hole, with the bans and the shift of our model."""
    generator = torch.Generator().manual_seed(seed)
    before, after = (torch.randint(10, 380, (n,), generator=generator) for n in (20, 9))
    assert one.ours.spec.noise is not None
    assert one.ours.spec.noise.absorbing
    mask, bans = one.ours.spec.noise.mask_id, bias(Vocabulary(one.ours).allowed(b"", False), torch.device("cpu"))

    def logits(x: Tensor, sees: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """[rows, vocabulary]; `sees` [rows, rows] and positions `at` where rows are added."""
        seen = torch.ones(len(x), len(x)).bool() if sees is None else sees
        added = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        places = (torch.arange(len(x)) if at is None else at)[None]
        with torch.inference_mode():
            found = one.theirs(x[None], attention_mask=added, position_ids=places).logits[0]
        if one.ours.spec.shift:
            found = torch.cat((found[:1], found[:-1]))
        return found[:, : one.ours.width] + bans

    x = torch.cat((before, torch.full((SLOTS,), mask), after))
    return Task(x, torch.arange(20, 20 + SLOTS), mask, logits)


def ours(one: Made, name: str, given: Task, of: int) -> list[list[int]]:
    """The slots after every forward of a canvas; the mask in open ones."""
    first, end = int(given.slots[0]), int(given.slots[-1]) + 1
    tail, head = given.x[:first].tolist(), given.x[end:].tolist()
    layout = [Slot(0) for _ in given.slots]
    canvas = Canvas(tail, [*layout], head, [HoleState(False, SLOTS)], Vocabulary(one.ours))
    kv = one.ours.cache().lease([])
    w, found = Denoising(canvas, kv, samplers.begin(name), of, 0), []
    while not w.finished:
        _forward.advance(one.ours, [w])
        found.append([given.mask if slot.token is None else slot.token for slot in layout])
        locked = [slot.locked for slot in layout]
        assert w.finished or w.sampler.revises or locked == [slot.token is not None for slot in layout]
    return found


# The loops

Loop = Callable[[Task, int], Iterator[Tensor]]


def top(score: Tensor, count: int) -> Tensor:
    return score.sort(descending=True, stable=True).indices[:count]


def llada(t: Task, steps: int) -> Iterator[Tensor]:
    """ML-GSAI/LLaDA generate.py: the masks are spread evenly over the steps, the first ones get one more."""
    x, total = t.x.clone(), len(t.slots)
    for step in range(steps):
        prob, best = t.logits(x).softmax(-1).max(-1)
        prob[x != t.mask] = -torch.inf
        take = top(prob, total // steps + (step < total % steps))
        x[take] = best[take]
        yield x[t.slots].clone()


def dream(score: Callable[[Tensor], Tensor], t: Task, steps: int) -> Iterator[Tensor]:
    """DreamLM/Dream generation_utils.py."""
    x, times = t.x.clone(), torch.linspace(1, 1e-3, steps + 1)
    for step in range(steps):
        probs, open = t.logits(x).softmax(-1), x == t.mask
        count = open.sum() * (1 - times[step + 1] / times[step]) if step < steps - 1 else open.sum()
        take = top(score(probs).masked_fill(~open, -torch.inf), int(count))
        x[take] = probs.argmax(-1)[take]
        yield x[t.slots].clone()


def negative_entropy(probs: Tensor) -> Tensor:
    return (probs * (probs + 1e-10).log()).sum(-1)


def lead(probs: Tensor) -> Tensor:
    first, second = probs.topk(2).values.unbind(-1)
    return first - second


def rnd1(t: Task, steps: int) -> Iterator[Tensor]:
    """RadicalNumerics/RND1 rnd/sampling.py: the slots of most entropy stay masked."""
    x, total = t.x.clone(), torch.tensor([len(t.slots)])
    for step in range(steps - 1, -1, -1):
        probs, open = t.logits(x).softmax(-1), x == t.mask
        stay = top((-negative_entropy(probs)).masked_fill(~open, -torch.inf), int((total * (step / steps)).long()))
        open[stay] = False
        x[open] = probs.argmax(-1)[open]
        yield x[t.slots].clone()


def fast(t: Task, steps: int) -> Iterator[Tensor]:
    """NVlabs/Fast-dLLM, threshold 0.9."""
    x = t.x.clone()
    while (x == t.mask).any():
        prob, best = t.logits(x).softmax(-1).max(-1)
        order = top(prob.masked_fill(x != t.mask, -torch.inf), int((x == t.mask).sum()))
        for at, row in enumerate(order.tolist()):
            if at == 0 or prob[row] >= 0.9:
                x[row] = best[row]
        yield x[t.slots].clone()


def factor(t: Task, steps: int) -> Iterator[Tensor]:
    """Fast-dLLM by factor 1: the largest n of which the n-th most confident passes, at least one."""
    x = t.x.clone()
    while (x == t.mask).any():
        prob, best = t.logits(x).softmax(-1).max(-1)
        order = top(prob.masked_fill(x != t.mask, -torch.inf), int((x == t.mask).sum())).tolist()
        n = 1
        while n < len(order) and prob[order[n]] >= 1 - 1 / (n + 2):
            n += 1
        x[order[:n]] = best[order[:n]]
        yield x[t.slots].clone()


def klass(t: Task, steps: int) -> Iterator[Tensor]:
    """shkim0116/KLASS src/model/llada_klass.py, a step a slot: confidence 0.9, divergence 0.01 over 2 forwards."""
    x, before = t.x.clone(), torch.zeros(len(t.x), t.logits(t.x).shape[1], dtype=torch.float64)
    history = torch.zeros(len(t.x), 2, dtype=torch.float64)
    while (x == t.mask).any():
        probs = t.logits(x).double().softmax(-1)
        moved = (probs * ((probs + 1e-12).log() - (before + 1e-12).log())).sum(-1)
        history, before = torch.stack((history[:, 1], moved), dim=1), probs
        (prob, best), open = probs.max(-1), x == t.mask
        take = (history < 0.01).all(-1) & (prob > 0.9) & open
        if not take.any():
            take[top(prob.masked_fill(~open, -torch.inf), 1)] = True
        x[take] = best[take]
        yield x[t.slots].clone()


def p2(t: Task, steps: int) -> Iterator[Tensor]:
    """pengzhangzhi/Open-dLLM veomni/models/transformers/qwen2/generation_utils.py."""
    x, slots = t.x.clone(), torch.zeros(len(t.x), dtype=torch.bool)
    slots[t.slots] = True
    for step in range(steps):
        (prob, best), open = t.logits(x).softmax(-1).max(-1), x == t.mask
        if not open.any():
            break
        count = int((slots.sum().float() * (1 - (step + 1) / steps)).floor())
        masked = top((-prob).masked_fill(~slots, -torch.inf), count)
        open[masked], x[masked] = False, t.mask
        x[open] = best[open]
        yield x[t.slots].clone()


def wino(t: Task, steps: int) -> Iterator[Tensor]:
    """Feng-Hong/WINO-DLLM LLaDA/decoding.py, one block: thresholds 0.6 and 0.9."""
    count, more = len(t.x), len(t.slots)
    x, at = torch.cat((t.x, torch.full((more,), t.mask))), torch.cat((torch.arange(count), t.slots))
    sees = torch.ones(count + more, count + more, dtype=torch.bool)
    sees[:, count:] = False
    sees[count:, count:] = True
    sees[torch.arange(count, count + more), t.slots] = False
    last = 30
    while (x[:count] == t.mask).any():
        open, held = x[:count] == t.mask, x[t.slots] != t.mask
        probs = t.logits(x, sees, at).softmax(-1)
        prob, best = probs[:count].max(-1)
        prob[~open] = -torch.inf
        most = min(max(int(open.sum() * 0.7), 5), 20)
        take = (prob > 0.6).nonzero()[:, 0]
        take = top(prob, min(max(len(take), 1), most)) if len(take) > most or not len(take) else take
        told = probs[count:].gather(1, x[t.slots][:, None])[:, 0].masked_fill(~held, torch.inf)
        back = (told < 0.9).nonzero()[:, 0] if len(take) > 1 else take[:0]
        if len(back) >= last:
            back = top(-told, last - 1)
        x[take], x[t.slots[back]] = best[take], t.mask
        last = len(take)
        yield x[t.slots].clone()


def joint(t: Task, steps: int) -> Iterator[Tensor]:
    """ZHZisZZ/dllm dllm/pipelines/llada21/sampler.py, one block: thresholds 0.95 and 0.9, 16 forwards at the end."""
    x, prompt, looks = t.x.clone(), torch.ones(len(t.x), dtype=torch.bool), 0
    prompt[t.slots] = False
    while True:
        open = x == t.mask
        looks += not open.any()
        if looks > 16:
            break
        prob, best = t.logits(x).softmax(-1).max(-1)
        take = open & (prob > 0.95)
        if open.any() and not take.any():
            take[top(prob.masked_fill(~open, -torch.inf), 1)] = True
        edit = ~open & ~prompt & (prob > 0.9) & (best != x)
        x[take | edit] = best[take | edit]
        yield x[t.slots].clone()
        if not open.any() and not edit.any():
            break


LOOPS: dict[str, Loop] = {
    "top_k": llada,
    "maskgit": partial(dream, lambda probs: probs.max(-1).values),
    "margin": partial(dream, lead),
    "entropy": partial(dream, negative_entropy),
    "linear_entropy": rnd1,
    "threshold": fast,
    "factor": factor,
    "klass": klass,
    "p2": p2,
    "wino": wino,
    "joint_edit": joint,
}


def changed(states: list[list[int]], mask: int) -> list[list[int]]:
    """Without forwards that change nothing; at first all slots are open."""
    whole = [[mask] * len(states[0]), *states]
    return [after for before, after in pairwise(whole) if after != before]


def until_again(states: list[list[int]], mask: int) -> list[list[int]]:
    """The states up to the first in which a slot loses a token for the second time, or gets one again in exchange for
    another. Ours does not allow that."""
    lost = set[tuple[int, int]]()
    for number, (before, after) in enumerate(pairwise([[mask] * len(states[0]), *states])):
        moved = [(at, old, new) for at, (old, new) in enumerate(zip(before, after, strict=True)) if mask != old != new]
        if any((at, old) in lost or (at, new) in lost for at, old, new in moved):
            return states[:number]
        lost |= {(at, old) for at, old, _ in moved}
    return states


# WINO is published for models without a shift.
CASES = [(name, family) for name in LOOPS for family in FAMILIES if (name, family) != ("wino", "dream")]
SCHEDULED = ("top_k", "maskgit", "margin", "entropy", "linear_entropy", "p2")


@pytest.mark.parametrize(("name", "family"), CASES)
def test_a_canvas_goes_through_the_states_of_the_published_loop(made: dict[str, Made], name: str, family: str) -> None:
    forwards, lost = 0, 0
    for seed in SEEDS:
        of = (5, SLOTS)[seed % 2] if name in SCHEDULED else 48
        given = task(made[family], seed)
        published = changed([state.tolist() for state in LOOPS[name](given, of)], given.mask)
        compared = until_again(published, given.mask)
        found = changed(ours(made[family], name, given, of), given.mask)
        assert found[: len(compared)] == compared
        assert given.mask not in found[-1]
        assert len(compared) > 1
        forwards += len(published)
        lost += sum(given.mask != a != b for states in pairwise(compared) for a, b in zip(*states, strict=True))
    assert forwards < len(SEEDS) * SLOTS or name in ("klass", "joint_edit"), "several slots at once"
    assert (lost > len(SEEDS)) == (name in ("p2", "wino", "joint_edit")), "tokens are taken back"
