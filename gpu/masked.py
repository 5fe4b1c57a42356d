"""Diffusion models of absorbing noise in published shapes with random weights in bfloat16, NVFP4 and FP8, as the engine
serves them: Dream 7B, whose rows all see each other (engine/models/full). Of each shape:

step: a forward over a text of so many rows, with the logits of a hole and of the rows behind it on the CPU, where the
    sampler reads them; `of_floor` is the share that its bytes and FLOP take.
race: the same for all lengths of a hole at once, as in the first forward of a job.
job: a key in a text of so many tokens and a hole of 24, through the scheduler to the answer.

Random weights are sure of nothing, so a canvas takes a step for each slot, where real text takes a few. What counts is
the time of a step, and how much of it the model is.
"""

import argparse
import gc
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caesura import wire
from caesura.engine import length
from caesura.engine.methods._forward import on_host
from caesura.engine.methods.absorbing import SEAM
from caesura.engine.models import Run
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.models.full import ROWS
from caesura.engine.noise import Absorbing
from caesura.engine.scheduler import Scheduler

from causal import HOLE, beside, model, work  # isort: skip  (beside this script)
from measuring import Book, Line, Name, clock, table  # isort: skip

SHAPES = ("7B", "7B-nvfp4", "7B-fp8")  # of gpu/causal; weights in bfloat16, or in a form
SAMPLERS = ("threshold", "entropy_bound")


class Plan(NamedTuple):
    """What is measured, in rows of a text."""

    texts: Sequence[int] = (256, 768, 2048)
    repeats: int = 20


TINY = Plan(texts=(48,), repeats=1)


def served(shape: str, device: str, *, tiny: bool) -> BlockLlama:
    """As `full.load` makes it."""
    made = model(shape, device, tiny=tiny)
    made.noise, made.shift = Absorbing(made.config.vocab_size - 1), 1
    made.visibility, made.lengths = "full", "race"
    made.method, made.prompt = made.noise.method, "inline"
    made.rows = ROWS
    return made


class Served:
    """A model of the plan, and how it is measured."""

    def __init__(self, shape: str, device: str, plan: Plan, *, tiny: bool) -> None:
        self._model, self._device, self._plan = served(shape, device, tiny=tiny), device, plan
        self._model.max_context = self._model.tail = self._model.head = 2 * max(plan.texts)
        self._random = random.Random(0)

    def __repr__(self) -> str:
        return f"<Served {self._model!r}>"

    def _ids(self, count: int) -> list[int]:
        return self._random.choices(range(self._model.config.vocab_size), k=count)

    def _runs(self, sizes: Sequence[int], wanted: int) -> list[Run]:
        kv = self._model.cache().lease([])
        return [Run(kv, self._ids(rows), range(rows), wanted=range(1, wanted + 1)) for rows in sizes]

    def _forward(self, sizes: Sequence[int], wanted: int) -> Line:
        runs = self._runs(sizes, wanted)

        def judged() -> Tensor:
            return on_host(self._model.denoise(runs))

        line = clock(judged, self._device, self._plan.repeats)
        rows = sum(sizes)
        parts = work(self._model, rows, 0)
        parts["head"] = parts["head"]._replace(flops=parts["head"].flops * wanted * len(sizes) / rows)
        return {**line, "rows": rows, "copied_mb": judged().nbytes / 1e6, **beside([parts], line["p50_ms"])}

    def step(self, text: int) -> Line:
        return self._forward([text], HOLE + SEAM)

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
        "race": [{"text": text} for text in plan.texts],
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
    times, bound = ("p50_ms", "p95_ms", "n"), ("copied_mb", "gb", "floor_ms", "of_floor")
    for kind, title, columns in (
        ("step", "A step of a hole in a text", ("text", *times, *bound)),
        ("race", f"All lengths of a hole of at most {HOLE} tokens", ("text", "rows", *times, *bound)),
        ("job", f"A key and a hole of {HOLE} tokens", ("text", "sampler", *times, "steps", "ms_a_step")),
    ):
        table(title, ("shape", *columns), book.lines(measure=f"masked {kind}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="every size small, for a CPU")
    parser.add_argument("--seconds", type=float, default=500, help="after which nothing more is begun")
    parser.add_argument("--book", type=Path, required=True, help="file of lines; what is in it is not measured again")
    parser.add_argument("--out", type=Path, help="file for all of it as one JSON document")
    arguments = parser.parse_args()
    if unknown := set(arguments.shapes) - {*SHAPES}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    book, plan = Book(arguments.book, arguments.device, arguments.seconds), TINY if arguments.tiny else Plan()
    for shape in arguments.shapes:
        measure(book, plan, shape, arguments.device, tiny=arguments.tiny)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    show(book)
    return book.report(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
