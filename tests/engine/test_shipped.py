"""The models `coder` and `small`: whole, small enough, and not silly. What they are worth `caesura eval` measures."""

import numpy as np
import pytest
import torch

from caesura import wire
from caesura.engine import models
from caesura.engine.model import Model, Run
from caesura.engine.samplers import names
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores import told
from caesura.engine.weights import stored
from caesura.model_store import CODER, PACKAGES, SMALL, files, locate

from ..support.checkpoints.tiny import alone, done, infill, run

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


MB = {CODER: 268, SMALL: 95}  # on disk, at most: of coder 248 for the base, the rest for its canvas
NATS = {CODER: 0.32, SMALL: 0.5}  # of a byte of SNIPPET, at most
IN_COMMENTS = {CODER: 1.8, SMALL: 3.2}  # of a byte of a comment in another language after it, at most


@pytest.fixture(scope="module", params=PACKAGES)
def model(request: pytest.FixtureRequest) -> Model:
    torch.set_num_threads(1)
    return models.load(request.param)


@pytest.mark.parametrize("name", PACKAGES)
def test_the_files_are_what_the_manifest_says_and_small_enough(name: str) -> None:
    assert len(stored.verify(locate(name))) == 64
    sizes = {file.name: file.stat().st_size for file in files(locate(name))}
    assert sizes.keys() >= {"config.json", "tokenizer.json", "manifest.json"}
    assert sum(sizes.values()) < MB[name] * 1e6
    assert max(sizes.values()) < 95e6, "hosts of repositories refuse files of 100 MB"


def nats(model: Model, text: str, before: str = "") -> float:
    """Of a byte of `text`, on average."""
    read, ids = model.tokenizer.encode(before or "\n"), model.tokenizer.encode(text)
    both = [*read, *ids]
    causal = np.tri(len(both), dtype=np.bool_)
    scores = model.forward([Run(model.cache().lease([]), both, range(len(both)), causal)])[0]
    (logp,) = told(scores.logp(range(len(read) - 1, len(both) - 1), ids))
    return -float(logp.sum()) / len(text.encode())


def test_the_base_reads_code(model: Model) -> None:
    assert 0.05 < nats(model, SNIPPET) < NATS[model.name]


@pytest.mark.parametrize(
    "comment",
    [
        "    # Возвращает сумму всех чисел списка, которые больше нуля.\n",
        "    # 正の数だけを合計して返します。\n",
        "    # Gibt die Länge der größten Zeile zurück.\n",
    ],
)
def test_the_base_reads_comments_in_other_languages(model: Model, comment: str) -> None:
    assert nats(model, comment, SNIPPET) < IN_COMMENTS[model.name]


def test_an_edit_like_the_last_one_is_likely_and_a_senseless_one_is_not(model: Model) -> None:
    last = "original:\n    total = add(first, second)\nupdated:\n    total = add(first, second, timeout=3)"
    places = {
        "    rest = add(third, fourth, timeout=3)": "    rest = add(third, fourth)",
        "    rest = 3(third, timeout, add)": "    rest = add(third, fourth)",
    }
    job = infill(
        "j",
        "",
        "",
        *(wire.Hole(1, instead=old) for old in places.values()),
        **{"draft": tuple(places), "method": "judge", "prompt": "edits"},
        neighbours=(wire.Neighbour("sums.py.diff", last),),
    )
    right, senseless = alone(model, job).holes
    assert right.confidence > {CODER: 0.95, SMALL: 0.7}[model.name]
    assert senseless.confidence < 0.01


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
def test_a_gap_gets_one_line(model: Model, prefix: str, suffix: str) -> None:
    answer = alone(model, infill("j", prefix, suffix, deadline_ms=600_000))
    (fill,) = answer.holes
    assert fill.text.strip()
    assert "\n" not in fill.text
    assert 0 < fill.confidence <= 1


def test_the_obvious_gap(model: Model) -> None:
    answer = alone(model, infill("j", "def add(a, b):\n    return a + ", "\n"))
    assert answer.holes[0].text == "b"


@pytest.mark.parametrize("sampler", names())
@pytest.mark.parametrize("model", [SMALL], indirect=True)
def test_the_canvas_alone_answers_too(model: Model, sampler: str) -> None:
    job = infill("j", "def add(a, b):\n    return a + ", "\n", sampler=sampler)
    assert "\n" not in alone(model, job).holes[0].text


def test_typing_reuses_the_context(model: Model) -> None:
    scheduler = Scheduler(model)
    for end in (400, 405, 410):
        job = infill(str(end), SNIPPET[:end], "\n", wire.Hole(4), document="d")
        done(run(scheduler, [job])[job.job])
    assert scheduler.cache.reused > scheduler.cache.asked / 2


def test_every_special_the_engine_relies_on_is_there(model: Model) -> None:
    assert len(model.spec.separator) == 1
    pieces = model.tokenizer.pieces
    assert pieces[model.spec.separator[0]] == b""
    printable = {bytes([b]) for b in (*range(0x20, 0x7F), *b"\t\n\r\f", *range(0x80, 0xC0), *range(0xC2, 0xF1))}
    assert printable <= set(pieces)
