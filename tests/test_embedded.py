"""The model that ships: whole, small enough, and not silly. What it is worth is measured by `caesura eval`."""

import pytest
import torch

from caesura import wire
from caesura.engine import models, weights
from caesura.engine.models import EMBEDDED, Model, Run
from caesura.engine.samplers import names
from caesura.engine.scheduler import Scheduler

from .tiny import alone, done, infill, run

SNIPPET = '''\
"""Count words in text files."""

import argparse
import collections
import pathlib
import re

WORD = re.compile(r"[a-z]+")


class Counter:
    """Counts how often each word appears."""

    def __init__(self, minimum: int = 1) -> None:
        self.minimum = minimum
        self.words = collections.Counter()

    def add(self, text: str) -> None:
        for match in WORD.finditer(text.lower()):
            self.words[match.group()] += 1

    def common(self, count: int) -> list[tuple[str, int]]:
        found = [(word, n) for word, n in self.words.items() if n >= self.minimum]
        found.sort(key=lambda pair: (-pair[1], pair[0]))
        return found[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    counter = Counter()
    for path in arguments.files:
        counter.add(path.read_text(encoding="utf-8"))
    for word, n in counter.common(arguments.count):
        print(f"{n:6d} {word}")
'''


@pytest.fixture(scope="module")
def embedded() -> Model:
    torch.set_num_threads(1)
    return models.load("embedded")


def test_the_files_are_what_the_manifest_says_and_small_enough() -> None:
    assert len(weights.verify(EMBEDDED)) == 64
    files = [p for p in EMBEDDED.iterdir() if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 95e6
    assert {p.name for p in files} >= {"base.safetensors", "config.json", "tokenizer.json", "manifest.json"}


def test_the_base_reads_code(embedded: Model) -> None:
    ids = embedded.tokenizer.encode(SNIPPET)
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    kv = embedded.cache().lease([])
    logp = embedded.forward([Run(kv, ids, range(len(ids)), causal)])[0].log_softmax(-1)
    loss = -logp[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean()
    assert 0.3 < float(loss) < 3.0


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [
        ("def add(a, b):\n    return a + ", "\n"),
        ("def add(a, b):\n    retu", "\n"),
        ("import o", "\nprint(os.getcwd())\n"),
        ("", "\nprint(os.getcwd())\n"),
        ("for i in range(len(items", ")):\n    print(items[i])\n"),
    ],
)
def test_a_gap_gets_one_line(embedded: Model, prefix: str, suffix: str) -> None:
    answer = alone(embedded, infill("j", prefix, suffix, deadline_ms=600_000))
    (fill,) = answer.holes
    assert fill.text.strip()
    assert "\n" not in fill.text
    assert 0 < fill.confidence <= 1


def test_the_obvious_gap(embedded: Model) -> None:
    answer = alone(embedded, infill("j", "def add(a, b):\n    return a + ", "\n"))
    assert answer.holes[0].text == "b"


@pytest.mark.parametrize("sampler", names())
def test_the_canvas_alone_answers_too(embedded: Model, sampler: str) -> None:
    job = infill("j", "def add(a, b):\n    return a + ", "\n", sampler=sampler)
    assert "\n" not in alone(embedded, job).holes[0].text


def test_typing_reuses_the_context(embedded: Model) -> None:
    scheduler = Scheduler(embedded)
    for end in (400, 405, 410):
        job = infill(str(end), SNIPPET[:end], "\n", wire.Hole(4), document="d", sampler="top_k")
        done(run(scheduler, [job])[job.job])
    assert scheduler.cache.reused > scheduler.cache.asked / 2


def test_every_special_the_engine_relies_on_is_there(embedded: Model) -> None:
    assert len(embedded.separator) == 1
    pieces = embedded.tokenizer.pieces
    assert pieces[embedded.separator[0]] == b""
    printable = {bytes([b]) for b in (*range(0x20, 0x7F), *b"\t\n\r\f", *range(0x80, 0xC0), *range(0xC2, 0xF1))}
    assert printable <= set(pieces)
