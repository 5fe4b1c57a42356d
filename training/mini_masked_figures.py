"""What a mini of absorbing noise can do in the engine: values of records it has not seen, as jobs, and how often their
lengths are found.

    python training/mini_masked_figures.py --model FOLDER [--count 200] [--race]

`--race` tries other weights of the text behind a hole, and other numbers of its rows that the first forward hides.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from caesura import wire
from caesura.engine import length, models
from caesura.engine.methods import absorbing, blocks
from caesura.engine.model import Model
from caesura.engine.scheduler import Scheduler

from mini_files import Files  # isort: skip  (beside this script)

ROOM = 90  # tokens of a file
HIDDEN, WEIGHTS = (0, 1, 4, 8), (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)


class Gap(NamedTuple):
    """A value, and the file around it."""

    prefix: str
    value: str
    suffix: str

    def job(self, sampler: str | None = None) -> wire.Infill:
        hole = wire.Hole(16, "line")
        return wire.Infill(
            job="j", document="d", prefix=self.prefix, suffix=self.suffix, segments=(hole,), sampler=sampler
        )


def gaps(model: Model, count: int, seed: str = "held out", room: int = ROOM) -> Iterator[Gap]:
    """Values of records, each of a file of its own. Training draws from other seeds."""
    rng, files = random.Random(seed), Files(model.tokenizer.encode)
    while count:
        text, spans = files.draw(rng, room)
        values = [span for span in spans if text[span[1]] != files.records.newline]
        if values:
            start, end = rng.choice(values)
            yield Gap(*map(model.tokenizer.decode, (text[:start], text[start:end], text[end:])))
            count -= 1


def filled(scheduler: Scheduler, job: wire.Infill) -> wire.Done:
    scheduler.take(b"p", job, 0.0)
    while scheduler.busy:
        events = scheduler.step(lambda: 0.0)
    done = events[-1][1]
    assert isinstance(done, wire.Done), done
    return done


class Found(NamedTuple):
    """Shares of right values and of right lengths; the mean number of forwards."""

    values: float
    lengths: float
    forwards: float


def found(model: Model, count: int, sampler: str | None = None) -> Found:
    scheduler, encode = Scheduler(model), model.tokenizer.encode
    answers = [(gap.value, filled(scheduler, gap.job(sampler))) for gap in gaps(model, count)]
    texts = [(value, done.holes[0].text) for value, done in answers]
    return Found(
        sum(value == text for value, text in texts) / count,
        sum(len(encode(value)) == len(encode(text)) for value, text in texts) / count,
        sum(done.steps for _, done in answers) / count,
    )


def race_table(model: Model, count: int) -> None:
    score = length.score
    print("| rows hidden | weight of the text behind | lengths | values |\n|---|---|---|---|", flush=True)
    for hidden in HIDDEN:
        for weight in WEIGHTS if hidden else (0.0,):
            absorbing.SEAM = blocks.SEAM = hidden
            length.score = lambda hole, pins, _, weight=weight: score(hole, pins, weight)
            values, lengths, _ = found(model, count)
            print(f"| {hidden} | {weight} | {lengths:.1%} | {values:.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--race", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = models.load(str(arguments.model), "cpu")
    values, lengths, forwards = found(model, arguments.count)
    print(f"{values:.1%} of values are right, {lengths:.1%} of lengths; {forwards:.1f} forwards a value.")
    if arguments.race:
        race_table(model, arguments.count)


if __name__ == "__main__":
    main()
