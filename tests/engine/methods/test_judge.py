"""The method that says how likely an edit is rather than the lines that stand there."""

import math

import numpy as np
import pytest

from caesura import wire
from caesura.engine.canvas.prompts import edit_place
from caesura.engine.methods import judge
from caesura.engine.model import Run
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores import told

from ...support.checkpoints.tiny import alone, infill, run

NAME = "shop.py.diff"
HISTORY = wire.Neighbour(NAME, "original:\n    total = price(a)\nupdated:\n    total = price(a, tax)")
EDITS = [
    ("    rest = price(b)", "    rest = price(b, tax)"),
    ("    return total", ""),
    ("    x = 1\n    y = 2", "    x = 1"),
]


def judged(name: str, *edits: tuple[str, str], history: tuple[wire.Neighbour, ...] = (HISTORY,)) -> wire.Infill:
    holes = [wire.Hole(1, instead=old) for old, _ in edits]
    drafts = tuple(new for _, new in edits)
    return infill(name, "", "", *holes, method="judge", prompt="edits", neighbours=history, draft=drafts)


def nats(fill: wire.Fill) -> float:
    return math.log(fill.confidence / (1 - fill.confidence))


def alone_in_full(model: NativeLlama, old: str, new: str) -> float:
    """The same number from two plain forwards."""
    encode, end = model.tokenizer.encode, list(model.spec.separator)
    before = [*model.spec.start, *end, *encode(f"{NAME}\n{HISTORY.text}\n"), *end, *encode(edit_place(NAME, old))]

    def logp(text: str) -> float:
        wanted = [*encode(f"{text}\n"), *end]
        ids = [*before, *wanted]
        seen = np.tril(np.ones((len(ids), len(ids)), np.bool_))
        scores, _ = model.forward([Run(model.cache().lease([]), ids, range(len(ids)), seen)], [])
        [found] = told(scores.logp(range(len(before) - 1, len(ids) - 1), wanted))
        return float(found.sum())

    return logp(new) - logp(old)


def test_the_confidence_is_what_plain_forwards_say(tiny: NativeLlama) -> None:
    answer = alone(tiny, judged("j", *EDITS))
    assert [fill.text for fill in answer.holes] == [new for _, new in EDITS]
    for fill, (old, new) in zip(answer.holes, EDITS, strict=True):
        assert fill.confidence == pytest.approx(judge.sigmoid(alone_in_full(tiny, old, new)), abs=1e-4)


def test_edits_that_one_step_cannot_take_are_judged_in_several_and_alike(tiny: NativeLlama) -> None:
    many = [(f"    rest = price({letter})", f"    rest = price({letter}, tax)") for letter in "abcdefghijklmnop"]
    answer = alone(tiny, judged("j", *many))
    assert answer.steps > 1
    for fill, edit in zip(answer.holes, many, strict=True):
        assert nats(fill) == pytest.approx(nats(alone(tiny, judged("one", edit)).holes[0]), abs=1e-3)


def test_a_history_that_grows_is_read_once(tiny: NativeLlama) -> None:
    engine = Scheduler(tiny)
    run(engine, [judged("first", EDITS[0])])
    more = wire.Neighbour(NAME, "original:\n    a = 1\nupdated:\n    a = 2")
    before = engine.cache.reused
    run(engine, [judged("second", EDITS[0], history=(HISTORY, more))])
    rows = len(tiny.spec.start) + len(tiny.spec.separator) + len(tiny.tokenizer.encode(f"{NAME}\n{HISTORY.text}\n"))
    assert engine.cache.reused - before >= rows - 1


def test_an_edit_that_is_too_long_is_as_unlikely_as_can_be(tiny: NativeLlama) -> None:
    long = "    x = 1\n" * judge.ROWS
    assert [fill.confidence > 0 for fill in alone(tiny, judged("j", EDITS[0], (long, ""))).holes] == [True, False]
    (said,) = run(Scheduler(tiny), [judged("j", (long, ""))])["j"]
    assert said == wire.Failed("j", "invalid", "The edits of this job are too long to be judged.")


def test_a_long_history_loses_its_earliest_edits_and_never_its_last(tiny: NativeLlama) -> None:
    long = wire.Neighbour(NAME, "original:\n" + "    a = 1\n" * 2000 + "updated:\n    b = 2")
    confidences = [alone(tiny, judged("j", EDITS[0], history=past)).holes for past in ((HISTORY,), (long, HISTORY))]
    assert confidences[0] == confidences[1]
    (said,) = run(Scheduler(tiny), [judged("j", EDITS[0], history=(HISTORY, long))])["j"]
    assert said == wire.Failed("j", "invalid", "The last edit is too long for the model's context.")


def test_judging_takes_turns_with_a_fill(tiny: NativeLlama) -> None:
    fill = infill("fill", "def total(a, b):\n    retu", "\n", wire.Hole(8))
    together = run(Scheduler(tiny), [fill, judged("j", *EDITS)])
    assert together["j"][-1].holes == alone(tiny, judged("j", *EDITS)).holes  # type: ignore[union-attr]
    assert together["fill"][-1].holes == alone(tiny, fill).holes  # type: ignore[union-attr]
