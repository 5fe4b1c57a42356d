"""Diffusion models of absorbing noise in published shapes with random weights, as the engine serves them: Dream 7B in
bfloat16, NVFP4 and FP8, whose rows all see each other (engine/models/full), and LLaDA2.0-mini, 16B-A1.4B, in blocks of
32 (engine/models/blocks). Of each shape:

step: a forward over a text of so many rows, or over a block after it, with the logits of a hole and of the rows after
    it on the CPU, where the sampler reads them; `of_floor` is the share that its bytes and FLOP take.
race: the same for all lengths of a hole at once, as in the first forward of a job where all rows see each other.
job: a key in a text of so many tokens and a hole of 24, through the scheduler to the answer.

Random weights are sure of nothing, so a canvas takes a step for each slot, where real text takes a few. What counts is
the time of a step, and how much of it the model is.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caesura import wire
from caesura.engine import length
from caesura.engine.methods.absorbing import SEAM
from caesura.engine.model import ModelSpec, Run
from caesura.engine.models.causal import CONTEXT
from caesura.engine.models.full import ROWS
from caesura.engine.models.llama.config import FEEDING, Config, Mixture, chunk_of
from caesura.engine.models.llama.experts import Experts
from caesura.engine.models.llama.layer import Mlp
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.noise import Absorbing
from caesura.engine.scheduler import Scheduler

import causal  # isort: skip  (of this folder)
from causal import HOLE, Drawn, Numbers, compared  # isort: skip
from roofline import Work  # isort: skip  (bench/, on the path by gpu/env)
from measuring import Book, Line, Name, clock, run, table  # isort: skip

DENSE, MIXED = ("7B", "7B-nvfp4", "7B-fp8"), "16B-A1.4B"  # the former are of gpu/causal: in bfloat16, or in a form
SHAPES = (*DENSE, MIXED)
BLOCK = 32
EXPERTS = Mixture(256, 8, 512, shared=512, sigmoid=True, renormalised=True, scale=2.5, groups=8, best_groups=4)
SIZES: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5120,  # of the first layer, which has no experts
    "num_layers": 20,
    "num_heads": 16,
    "num_kv_heads": 4,
    "head_dim": 128,
    "vocab_size": 157_184,
    "rope_theta": 6e5,
    "rms_norm_eps": 1e-6,
    "rotary": 0.5,
}
TINY_EXPERTS = replace(EXPERTS, count=16, top=2, width=32, shared=32)
TINY_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "head_dim": 16}
SAMPLERS = ("threshold", "entropy_bound")


class Plan(NamedTuple):
    """What is measured, in rows of a text."""

    texts: Sequence[int] = (256, 768, 2048)
    repeats: int = 20


TINY = Plan(texts=(64,), repeats=1)


class Mixed(Drawn):
    """The tensors of a shape with experts in all layers but the first."""

    def __init__(self, config: Config, experts: Mixture) -> None:
        super().__init__(config, tied=False)
        inner, d = {"": experts.width, "shared.": experts.shared}, config.hidden_size
        for layer in range(config.num_layers):
            at = f"layers.{layer}."
            del self._shapes[f"{at}qkv_bias"]
            self._shapes |= {f"{at}{part}_norm": (config.head_dim,) for part in "qk"}
            for matrix in FEEDING if layer else ():
                del self._shapes[at + matrix]
                self._shapes[f"{at}shared.{matrix}"] = config.shape(matrix, inner["shared."])
                for expert in range(experts.count):
                    self._shapes[f"{at}experts.{expert}.{matrix}"] = config.shape(matrix, inner[""])
            if layer:
                self._shapes |= {f"{at}router": (experts.count, d), f"{at}router_bias": (experts.count,)}


def sizes(*, tiny: bool) -> Config:
    """The sizes of LLaDA2.0-mini."""
    small = {**TINY_SIZES, "num_kv_heads": 2, "vocab_size": 512} if tiny else {}
    return replace(Config.read({**SIZES, **small}), mixture=TINY_EXPERTS if tiny else EXPERTS)


def served(shape: str, device: str, *, tiny: bool) -> BlockLlama:
    """As `full.load` or `blocks.load` makes it."""
    if shape in DENSE:
        made = causal.model(shape, device, tiny=tiny)
        noise = Absorbing(made.config.vocab_size - 1)
        made.spec = replace(
            made.spec, noise=noise, method=noise.method, rows=ROWS, visibility="full", separator=(), prompt="inline"
        )
    else:
        config = sizes(tiny=tiny)
        assert config.mixture is not None
        base, words = Mixed(config, config.mixture), Numbers(config.vocab_size)
        noise = Absorbing(config.vocab_size - 1, "blocks")
        spec = ModelSpec(
            noise,
            noise.method,
            CONTEXT,
            chunk_of(device),
            tail=0,
            head=BLOCK - 1,
            rows=ROWS,
            shift=1,
            visibility="blocks",
            block_size=BLOCK,
            separator=(0,),
        )
        made = BlockLlama(shape, config, words, spec, base, None, device, torch.bfloat16)  # type: ignore[arg-type]
    return made


def work(model: BlockLlama, rows: int, context: int, asked: int) -> dict[str, Work]:
    """What a forward over rows after a context moves and computes, by part: each matrix read once, of the experts
    those that so many rows touch at uniform routing; the head computes the rows `asked`."""
    c, layers = model.config, [weights for weights, _ in model._layers]
    experts = [fed for _, fed in layers if isinstance(fed, Experts)]
    matrices = [matrix.packed for seen, _ in layers for matrix in (seen.qkv, seen.out)]
    matrices += [matrix.packed for _, fed in layers if isinstance(fed, Mlp) for matrix in (fed.gate_up, fed.down)]
    matrices += [matrix.packed for fed in experts for matrix in fed.shared or ()]
    stacks = [stack for fed in experts for stack in (fed.gate_up, fed.down)]
    routed = c.mixture.top / c.mixture.count if c.mixture is not None else 0.0
    seen = c.num_layers * (context + rows)
    return {
        "matrices": Work(sum(m.nbytes for m in matrices), 2 * rows * sum(prod(m.shape) for m in matrices)),
        "experts": Work(
            (1 - (1 - routed) ** rows) * sum(stack.nbytes for stack in stacks),
            2 * rows * routed * sum(prod(stack.shape) for stack in stacks),
        ),
        "head": Work(model._head.nbytes, 2 * asked * prod(model._head.shape)),
        "attention": Work(4 * seen * c.num_kv_heads * c.head_dim, 4 * rows * seen * c.num_heads * c.head_dim),
    }


class Served:
    """A model of the plan, and how it is measured."""

    def __init__(self, shape: str, device: str, plan: Plan, *, tiny: bool) -> None:
        self._model, self._device, self._plan = served(shape, device, tiny=tiny), device, plan
        longest = 2 * max(plan.texts)
        spec = replace(self._model.spec, max_context=longest)
        self._model.spec = replace(spec, tail=longest, head=longest) if shape in DENSE else spec
        self._random = random.Random(0)

    def __repr__(self) -> str:
        return f"<Served {self._model!r}>"

    def _ids(self, count: int) -> list[int]:
        return self._random.choices(range(self._model.config.vocab_size), k=count)

    def denoising(self, sizes: Sequence[int], wanted: int, context: int = 0) -> Callable[[], Tensor]:
        """Canvases of so many rows after a context of their own, and the logits of some rows of each."""
        kv = self._model.cache().lease([])
        self._model.prefill(self._ids(context), kv)
        asked = range(self._model.spec.shift, self._model.spec.shift + wanted)
        runs = [Run(kv, self._ids(rows), range(context, context + rows), wanted=asked) for rows in sizes]
        return lambda: self._model.denoise(runs).logits

    def _forward(self, sizes: Sequence[int], wanted: int, context: int = 0) -> Line:
        judged = self.denoising(sizes, wanted, context)
        line, rows = clock(judged, self._device, self._plan.repeats), sum(sizes)
        parts = work(self._model, rows, context, wanted * len(sizes))
        return {**line, "rows": rows, **compared([parts], line["p50_ms"])}

    def step(self, text: int) -> Line:
        if self._model.spec.visibility == "full":
            return self._forward([text], HOLE + SEAM)
        return self._forward([BLOCK], HOLE + SEAM, text)

    def race(self, text: int) -> Line:
        lengths = length.tried(HOLE, one_line=True)
        return self._forward([text - HOLE + slots for slots in lengths], HOLE // 2 + SEAM)

    def job(self, text: int, sampler: str) -> Line:
        scheduler, steps = Scheduler(self._model), list[int]()
        words, suffix = [self._text(text // 2)], self._text(text // 2 - HOLE)

        def key() -> None:
            words.append(self._text(1))
            job = wire.Infill(
                job=f"{len(words)}",
                document="d",
                prefix="".join(words),
                suffix=suffix,
                segments=(wire.Hole(HOLE, "line"),),
                sampler=sampler,
            )
            scheduler.take(b"p", job, 0.0)
            while scheduler.busy:
                events = scheduler.step(lambda: 0.0)
            done = events[-1][1]
            assert isinstance(done, wire.Done), done
            steps.append(done.steps)

        line = clock(key, self._device, -(-self._plan.repeats // 4))
        usual = sorted(steps[3:])[len(steps[3:]) // 2]
        return {**line, "steps": usual, "ms_a_step": line["p50_ms"] / usual}

    def _text(self, count: int) -> str:
        return "".join(f" {number:06}" for number in self._ids(count))


def measure(book: Book, plan: Plan, shape: str, device: str, *, tiny: bool) -> None:
    kinds = {
        "step": [{"text": text} for text in plan.texts],
        "race": [{"text": text} for text in plan.texts if shape in DENSE],
        "job": [{"text": text, "sampler": sampler} for text in plan.texts for sampler in SAMPLERS],
    }
    names: list[tuple[Name, str, dict[str, Any]]] = [
        ({"measure": f"masked {kind}", "shape": shape, **fields}, kind, fields)
        for kind, wanted in kinds.items()
        for fields in wanted
    ]
    if not book.plan([name for name, _, _ in names]):
        return
    try:
        made = Served(shape, device, plan, tiny=tiny)
    except Exception as error:
        return book.fail([name for name, _, _ in names], error)
    for name, kind, fields in names:
        way: Callable[..., Line] = getattr(made, kind)
        book.measure(name, partial(way, **fields))


def show(book: Book) -> None:
    times, bound = ("p50_ms", "p95_ms", "n"), ("gb", "floor_ms", "of_floor")
    for kind, title, columns in (
        ("step", "A step of a hole in a text", ("text", *times, *bound)),
        ("race", f"All lengths of a hole of at most {HOLE} tokens", ("text", "rows", *times, *bound)),
        ("job", f"A key and a hole of {HOLE} tokens", ("text", "sampler", *times, "steps", "ms_a_step")),
    ):
        table(title, ("shape", *columns), book.lines(measure=f"masked {kind}"))


if __name__ == "__main__":
    sys.exit(run(__doc__, SHAPES, (TINY, Plan()), measure, show))
