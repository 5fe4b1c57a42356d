"""The guarantee: a hole in a valid document is filled so that the document stays valid, whatever the model says and
whenever the time is up. Places, models and verdicts are those of bench/structured.py, which does the same at length.
"""

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from caesura import wire
from caesura.engine.models.llama.native import NativeLlama

from ...support.checkpoints.noisy import Noisy

TESTS = Path(__file__).parents[2]
LANGUAGES = {".json": "json", ".jsonc": "jsonc", ".jsonl": "jsonl"}
NOISES: dict[str, dict[str, Any]] = {
    "absorbing with null": {"scale": 4.0},
    "the same, verified": {"scale": 4.0, "method": "verify"},
    "uniform": {"uniform": True},
}
SCHEMA = """{
  "type": "object", "required": ["name", "size", "tags"], "additionalProperties": false,
  "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12},
    "size": {"type": "integer", "minimum": 3, "maximum": 40},
    "tags": {"type": "array", "items": {"enum": ["old", "new", null]}, "maxItems": 3}, "on": {"type": "boolean"}
  }
}"""


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    """The scripts beside each other in bench/."""
    sys.path.insert(0, str(TESTS.parent / "bench"))
    yield {name: importlib.import_module(name) for name in ("documents", "inside", "places", "verdicts")}
    sys.path.remove(str(TESTS.parent / "bench"))


@pytest.fixture(scope="module")
def documents(bench: dict[str, ModuleType]) -> list[Any]:
    """Written by hand, and made in many styles."""
    written = [
        bench["documents"].Document("by hand", file.name, file.read_bytes().decode(), LANGUAGES[file.suffix])
        for file in sorted((TESTS / "data" / "json").iterdir())
    ]
    return written + list(bench["documents"].manifests(random.Random(5), 20))


def verdicts(bench: dict[str, ModuleType], model: Noisy, asked: list[Any]) -> list[Any]:
    """What comes of the jobs, several at once, under a clock with which a deadline falls between any two steps."""
    engine, found = bench["inside"].scheduler(model), []
    for at in range(0, len(asked), 4):
        jobs = [bench["verdicts"].job(number, one) for number, one in enumerate(asked[at : at + 4])]
        events = bench["inside"].answers(engine, jobs, bench["inside"].Ticking(random.Random(at)))
        found += [
            bench["verdicts"].judged(one.document, one.edit, events[str(number)])
            for number, one in enumerate(asked[at : at + 4])
        ]
    return found


@pytest.mark.parametrize("noise", NOISES)
def test_what_is_filled_by_a_model_that_knows_nothing_stays_valid(
    bench: dict[str, ModuleType], documents: list[Any], tiny: NativeLlama, noise: str
) -> None:
    draw = random.Random(11)
    asked = []
    for number in range(12):
        document = documents[number % len(documents)]
        if edit := bench["places"].Places(document, draw).edit():
            asked.append(bench["verdicts"].Asked(document, edit, draw.choice((2.0, 5.0, 20.0, 10_000.0))))
    found = verdicts(bench, Noisy(tiny.tokenizer, **NOISES[noise]), asked)
    assert [f"{one.why}: {one.text}" for one in found if one.state == "invalid"] == []
    assert sum(one.state == "valid" for one in found) > 0.7 * len(found), {one.why for one in found}


@pytest.mark.parametrize("noise", NOISES)
def test_what_a_schema_asks_for_is_what_a_model_that_knows_nothing_writes(
    bench: dict[str, ModuleType], tiny: NativeLlama, noise: str
) -> None:
    hole = wire.Hole(64, "block", wire.Json(schema=0, indent="  "))
    edit = bench["places"].Edit("document", 0, 0, (hole,), (SCHEMA,), ruled=True)
    document = bench["documents"].Document("none", "empty", "", schema=SCHEMA)
    asked = [bench["verdicts"].Asked(document, edit, deadline) for deadline in (5.0, 10_000.0)]
    found = verdicts(bench, Noisy(tiny.tokenizer, **NOISES[noise]), asked)
    assert [(one.state, one.conforms) for one in found] == [("valid", True)] * 2, found


@pytest.mark.parametrize(
    ("fill", "why"),
    [("1, 2", "Extra data"), ('{"a": 1, "a": 2}', "twice"), ("NaN", "NaN"), ("'a'", "Expecting"), ("true", "conform")],
)
def test_the_judge_sees_what_is_not_valid(bench: dict[str, ModuleType], fill: str, why: str) -> None:
    document = bench["documents"].Document("none", "empty", "", schema='{"type": "object"}')
    edit = bench["places"].Edit("document", 0, 0, (wire.Hole(),), ruled=True)
    done = wire.Done(
        job="1",
        seq=0,
        holes=(wire.Fill(fill),),
        steps=1,
        tokens=wire.Tokens(),
        timings=wire.Timings(),
        stop="complete",
        level="valid",
    )
    verdict = bench["verdicts"].judged(document, edit, [done])
    assert verdict.state == "invalid"
    assert why in verdict.why
