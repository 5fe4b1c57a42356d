"""Autoregressive code models in the shapes of Qwen2.5-Coder with random weights in bfloat16, as the engine serves them
(engine/models/causal.py). Of each shape:

prefill: a context that is cold, in chunks as the engine reads it on a GPU and in smaller ones.
pass: a verifying pass of so many rows after a context, with its log-probabilities, which stay on the device, as it is
    served, and launched kernel by kernel (`unrecorded`). `recorded`: whether it was replayed; false in a served one if
    recording has failed. `of_floor` is the share of it that its bytes and FLOP take.
job: a key of one token after a warm context and a hole of 24 tokens, through the scheduler to the answer, once by the
    search and once with the best token of each pass.

Random weights make flat logits: a search goes on for as many passes as it may, where one over real text mostly ends
after a few. What counts is the time of a pass, and how much of it the model is.
"""

import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caesura import wire
from caesura.engine.cache import KV
from caesura.engine.model import ModelSpec, Run
from caesura.engine.models.causal import CONTEXT
from caesura.engine.models.llama.config import MATRICES, Config, chunk_of
from caesura.engine.models.llama.gpu.passes import RecordedPass
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.weights.sources import Source, Valueless

from roofline import Work, bound_ms  # isort: skip  (bench/, on the path by gpu/env)
from measuring import BANDWIDTH, PEAK, Book, Line, Name, clock, run, table  # isort: skip  (of this folder)
from stand_in import Pieces  # isort: skip

FIELDS = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "vocab_size")
SHAPES = {
    "0.5B": (896, 4864, 24, 14, 2, 151_936),
    "1.5B": (1536, 8960, 28, 12, 2, 151_936),
    "7B": (3584, 18_944, 28, 28, 4, 152_064),
}
TINY_SHAPE = (64, 96, 2, 4, 2, 512)
UNTIED = "7B"  # its head is a matrix of its own
HOLE = 24  # tokens
METHODS = ("verify", "left_to_right")
WAYS = ("served", "unrecorded")  # of a pass
SUFFIX = 40  # tokens
NUMBERS = 1_000_003  # drawn weights; a prime


class Plan(NamedTuple):
    """What is measured, in tokens and rows."""

    contexts: Sequence[int] = (768, 4096)
    chunks: Sequence[int] = (128, 512)
    rows: Sequence[int] = (1, 4, 16, 41)
    repeats: int = 20


TINY = Plan(contexts=(48,), chunks=(16, 32), repeats=1)


class Drawn(Source):
    """Random tensors of a shape. Drawing billions of numbers would take minutes, so they repeat."""

    def __init__(self, config: Config, *, tied: bool) -> None:
        embed, hidden = (config.vocab_size, config.hidden_size), (config.hidden_size,)
        self._shapes: dict[str, tuple[int, ...]] = {"embed": embed, "norm": hidden} | ({} if tied else {"head": embed})
        for layer in range(config.num_layers):
            shapes = {matrix: config.shape(matrix) for matrix in MATRICES}
            named = {**shapes, "qkv_bias": shapes["qkv"][:1], "attn_norm": hidden, "mlp_norm": hidden}
            self._shapes |= {f"layers.{layer}.{name}": shape for name, shape in named.items()}
        self._numbers = np.random.default_rng(0).standard_normal(NUMBERS, np.float32) * np.float32(0.02)
        super().__init__(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def floats(self, name: str) -> NDArray[np.float32]:
        shape = self._shapes[name]
        return np.ones(shape, np.float32) if len(shape) == 1 else np.resize(self._numbers, shape)


class Numbers(Pieces):
    """As much of a tokenizer as a job asks for. No token is the start of another: its rest would be none."""

    sentencepiece = False

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.pieces = [b" %06d" % number for number in range(size)]

    def bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[number] for number in ids)

    def pretokens(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r" ?\d+|\s+", text)]


def sizes(shape: str, *, tiny: bool) -> Config:
    fields = dict(zip(FIELDS, TINY_SHAPE if tiny else SHAPES[shape], strict=True))
    return Config.read({**fields, "rope_theta": 1e6, "rms_norm_eps": 1e-6})


def model(shape: str, device: str, *, tiny: bool) -> BlockLlama:
    """In bfloat16, or of a shape like `7B-nvfp4` in that form."""
    size, _, form = shape.partition("-")
    config = sizes(size, tiny=tiny)
    drawn, words = Drawn(config, tied=size != UNTIED), Numbers(config.vocab_size)
    base = Valueless(drawn) if device == "meta" else drawn
    spec = ModelSpec(None, "verify", CONTEXT, chunk_of(device), config.tail, config.head, shift=1, separator=(0,))
    return BlockLlama(shape, config, words, spec, base, None, device, torch.bfloat16, quantise=form)  # type: ignore[arg-type]


def recorded(model: BlockLlama) -> list[RecordedPass]:
    """Its passes of every size, which can be replayed as long as it lends no KV."""
    model.rehearse()
    assert model._passes is not None
    assert model._passes._held is not None
    model._passes._held.lent = model.cache().lease([]).buffers
    return list(model._passes.recordings.values())


def work(model: BlockLlama, rows: int, context: int, *, head: bool = True) -> dict[str, Work]:
    """What a forward over rows after a context moves and computes, by part: each matrix read once, of the embedding a
    row for each. Without the head where the rows are context."""
    c = model.config
    columns, layers = context + rows, [weights for weights, _ in model._layers]
    matrices = [matrix.packed for seen, mlp in layers for matrix in (seen.qkv, seen.out, mlp.gate_up, mlp.down)]
    parts = {"matrices": matrices, "head": [model._head] if head else []}
    counted = {n: Work(sum(t.nbytes for t in of), 2 * rows * sum(prod(t.shape) for t in of)) for n, of in parts.items()}
    keys = 2 * columns * c.num_kv_heads * c.head_dim * 2
    products = 4 * rows * columns * c.num_heads * c.head_dim
    return counted | {"attention": Work(c.num_layers * keys, c.num_layers * products)}


def compared(parts: Sequence[dict[str, Work]], p50: float) -> Line:
    """The least time of forwards that follow one another, and the share of it."""
    floor = sum(bound_ms(of, BANDWIDTH, PEAK) for of in parts)
    return {"floor_ms": floor, "of_floor": floor / p50, "gb": sum(w.bytes for of in parts for w in of.values()) / 1e9}


class Served:
    """A model of the plan, and how it is measured."""

    def __init__(self, shape: str, device: str, plan: Plan, *, tiny: bool) -> None:
        self._model, self._device, self._plan = model(shape, device, tiny=tiny), device, plan
        longest = 2 * max(plan.contexts)  # nothing of a prefix that grows is cut off
        self._model.spec = replace(self._model.spec, max_context=longest)
        self._model.rehearse()
        self._random = random.Random(0)

    def __repr__(self) -> str:
        return f"<Served {self._model!r}>"

    def _ids(self, count: int) -> list[int]:
        return self._random.choices(range(self._model.config.vocab_size), k=count)

    def _read(self, ids: Sequence[int], chunk: int) -> KV:
        """A context of its own."""
        kv = self._model.cache().lease([])
        for at in range(0, len(ids), chunk):
            self._model.prefill(ids[at : at + chunk], kv)
        return kv

    def prefill(self, context: int, chunk: int) -> Line:
        ids = self._ids(context)
        line = clock(partial(self._read, ids, chunk), self._device, -(-self._plan.repeats // 4))
        parts = [work(self._model, chunk, at, head=False) for at in range(0, context, chunk)]
        return {**line, "tokens_s": context / line["p50_ms"] * 1e3, **compared(parts, line["p50_ms"])}

    def verifying(self, context: int, rows: int, way: str) -> Callable[[], Tensor]:
        """A pass over so many rows after a context of its own: log-probabilities on the device."""
        kv, mask = self._read(self._ids(context), 512), np.tri(rows, dtype=np.bool_)
        run = Run(kv, self._ids(rows), range(context, context + rows), mask)
        forward = self._model.forward if way == "served" else self._model._launched

        def judged() -> Tensor:
            kv.truncate(context)
            found = forward([run], ())[0]
            logits = found.logits if isinstance(found, TensorScores) else found
            return logits.log_softmax(-1)

        return judged

    def verify(self, context: int, rows: int, way: str) -> Line:
        line, passes = clock(self.verifying(context, rows, way), self._device, self._plan.repeats), self._model._passes
        recorded = way == "served" and passes is not None and bool(passes.recordings)
        return {**line, "recorded": recorded, **compared([work(self._model, rows, context)], line["p50_ms"])}

    def job(self, context: int, method: str) -> Line:
        scheduler, passes = Scheduler(self._model), list[int]()
        suffix, words = self._text(SUFFIX), [self._text(context - SUFFIX)]

        def key() -> None:
            words.append(self._text(1))
            job = wire.Infill(
                job=f"{len(words)}",
                document="d",
                prefix="".join(words),
                suffix=suffix,
                segments=(wire.Hole(HOLE, "line"),),
                method=method,
            )
            scheduler.take(b"p", job, 0.0)
            while scheduler.busy:
                events = scheduler.step(lambda: 0.0)
            done = events[-1][1]
            assert isinstance(done, wire.Done), done
            passes.append(done.steps)

        line = clock(key, self._device, -(-self._plan.repeats // 2))
        usual = sorted(passes[3:])[len(passes[3:]) // 2]
        return {**line, "passes": usual, "ms_a_pass": line["p50_ms"] / usual}

    def _text(self, count: int) -> str:
        return "".join(f" {number:06}" for number in self._ids(count))


def measure(book: Book, plan: Plan, shape: str, device: str, *, tiny: bool) -> None:
    kinds = {
        "prefill": [{"context": context, "chunk": chunk} for context in plan.contexts for chunk in plan.chunks],
        "verify": [
            {"context": context, "rows": rows, "way": way}
            for context in plan.contexts
            for rows in plan.rows
            for way in WAYS
        ],
        "job": [{"context": context, "method": method} for context in plan.contexts for method in METHODS],
    }
    names: list[tuple[Name, str, dict[str, Any]]] = [
        ({"measure": f"causal {kind}", "shape": shape, **fields}, kind, fields)
        for kind, wanted in kinds.items()
        for fields in wanted
    ]
    if not book.plan([name for name, _, _ in names]):
        return
    try:
        served = Served(shape, device, plan, tiny=tiny)
    except Exception as error:
        return book.fail([name for name, _, _ in names], error)
    for name, kind, fields in names:
        way: Callable[..., Line] = getattr(served, kind)
        book.measure(name, partial(way, **fields))


def show(book: Book) -> None:
    times, bound = ("p50_ms", "p95_ms", "n"), ("gb", "floor_ms", "of_floor")
    for kind, title, columns in (
        ("prefill", "A cold context", ("context", "chunk", *times, "tokens_s", *bound)),
        ("verify", "A verifying pass", ("context", "rows", "way", "recorded", *times, *bound)),
        ("job", f"A key and a hole of {HOLE} tokens", ("context", "method", *times, "passes", "ms_a_pass")),
    ):
        table(title, ("shape", *columns), book.lines(measure=f"causal {kind}"))


if __name__ == "__main__":
    sys.exit(run(__doc__, SHAPES, (TINY, Plan()), measure, show))
