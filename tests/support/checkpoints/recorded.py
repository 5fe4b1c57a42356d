"""Sixty jobs whose answers are recorded in tests/data/fills.json: whoever changes how the engine is built, and not what
it answers, runs test_recorded.py before and after.

    python -m tests.support.checkpoints.recorded [--exactly FILE] [--write]

compares every answer with the recording, or writes it. With `--exactly` all events of all jobs are kept in a file, with
every probability in full: two such files from one machine are equal where nothing at all has changed.
"""

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from caesura import wire
from caesura.engine import models
from caesura.engine.model import Model
from caesura.engine.scheduler import Scheduler
from caesura.wire import Hole, Infill, Json, Neighbour, Pattern, Text

from . import gemma, tiny

RECORDING = Path(__file__).parents[2] / "data" / "fills.json"
MINI = Path(__file__).parents[2] / "data" / "mini"
LONG_MS = 600_000.0

IMPORTS = '"""Words of a file."""\n\nimport collections\nimport pathlib\nimport re\n\n\n'
COUNTER = "class Counter:\n    def __init__(self, minimum: int = 1) -> None:\n        self.minimum = minimum\n"
COMMON = "    def common(self, count: int) -> list[str]:\n        "
MAIN = '\n\n\nif __name__ == "__main__":\n    print(Counter().common(3))\n'
ROUTES = 'const routes = {\n  "/": home,\n  "/users": users,\n  "/items": '
RECORD = '{"name": "red stone", "color": "blue"}\n{"name": "'
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "port": {"type": "integer"}, "on": {"type": "boolean"}},
        "required": ["name", "port"],
        "additionalProperties": False,
    }
)
ELSEWHERE = Neighbour("# shapes.py", "def area(width, height):\n    return width * height\n")


def job(prefix: str, suffix: str, *segments: Text | Hole, **more: Any) -> Infill:
    fields = {"deadline_ms": LONG_MS, "segments": segments or (Hole(16),), **more}
    return Infill(job="recorded", document="recorded", prefix=prefix, suffix=suffix, **fields)


def lines(**more: Any) -> dict[str, Infill]:
    """Holes within a line: at its end, inside it, after half a word, with nothing after them, warm, and seeded."""
    return {
        "argument": job("def add(a, b):\n    return a + ", "\n", **more),
        "inside": job(IMPORTS + "for i in range(len(items", ")):\n    print(items[i])\n", **more),
        "half a word": job(IMPORTS + COUNTER + "        self.words = collections.Coun", "\n" + COMMON, **more),
        "the end": job("def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    ret", "", **more),
        "warm": job("def add(a, b):\n    re", "\n", Hole(12), draft=("turn a + b",), **more),
        "another answer": job("def area(w, h):\n    return ", "\n", seed=7, **more),
    }


def holes(**more: Any) -> dict[str, Infill]:
    """Several holes of one canvas."""
    three = (Hole(6), Text("(self, "), Hole(6), Text("):\n        return "), Hole(8, "line"))
    return {
        "two": job(ROUTES, "\n};\n", Hole(8, "span"), Text(",\n  "), Hole(12, "line"), **more),
        "three": job("class Box:\n    def ", "\n", *three, **more),
    }


def grammars(**more: Any) -> dict[str, Infill]:
    """Holes whose text is in a language."""
    schema = Hole(40, "block", Json(schema=0, indent="  "))
    members = Hole(24, "line", Json(start="members", taken=("name",), least=1, most=2))
    return {
        "schema": job("", "", schema, schemas=(SCHEMA,), **more),
        "members": job('{"name": "red", ', "}\n", members, **more),
        "pattern": job('VERSION = "', '"\n', Hole(12, "line", Pattern(r"\d{1,2}\.\d{1,2}(\.\d)?")), **more),
    }


def more_of_a_search() -> dict[str, Infill]:
    """What only a model that verifies can do."""
    return {
        "a body": job(IMPORTS + COUNTER + "\n" + COMMON, MAIN, Hole(32, "block"), language="python"),
        "candidates": job("for name in ", ":\n    print(name)\n", Hole(8), candidates=3),
        "a neighbour": job("def volume(w, h, depth):\n    return area(", ") * depth\n", neighbours=(ELSEWHERE,)),
        "repeated": job("left = values[0]\nright = values[-1]\nprint(left, right)\nprint(le", ")\n"),
        "no longer than sure": job("x = ", "\n", Hole(24), min_probability=0.2),
        "pattern and text": job(
            "HOST = ", "\n", Hole(8, "span", Pattern('"[a-z.]{3,20}"')), Text("\nPORT = "), Hole(6, "line")
        ),
    }


@cache
def jobs() -> dict[str, dict[str, Infill]]:
    """By model. The speed of a machine decides nothing."""
    canvas = {**lines(sampler="threshold"), **holes(sampler="threshold"), **grammars(sampler="threshold")}
    del canvas["another answer"]  # a canvas of absorbing noise draws nothing
    shares = lines(sampler="top_k")
    left = lines(sampler="left_to_right")
    return {
        "coder": {
            **lines(),
            **holes(),
            **grammars(),
            **more_of_a_search(),
            **{f"{name}, left to right": left[name] for name in ("argument", "inside")},
        },
        "small": {
            **lines(),
            **holes(),
            **{f"{name}, threshold": asked for name, asked in canvas.items()},
            **{f"{name}, top k": shares[name] for name in ("argument", "inside")},
        },
        "tiny": {
            **{name: lines()[name] for name in ("argument", "warm")},
            **{f"{name}, verify": lines(sampler="verify")[name] for name in ("argument", "another answer")},
            **{f"{name}, entropy bound": lines(sampler="entropy_bound")[name] for name in ("inside", "half a word")},
            **{f"{name}, threshold": asked for name, asked in grammars(sampler="threshold").items()},
        },
        "gemma": {
            **{name: lines()[name] for name in ("argument", "half a word", "another answer")},
            **holes(),
            "pattern": grammars()["pattern"],
        },
        "mini": {
            "a value": job(RECORD, '", "color": "blue"}\n'),
            "candidates": job(RECORD, '", "color": "blue"}\n', candidates=3),
            "half a word": job(RECORD[:-9] + '"name": "re', ' stone", "color": "green"}\n', Hole(8)),
            "two": job(RECORD, '"}\n', Hole(6, "span"), Text('", "color": "'), Hole(6, "span")),
            "warm": job(RECORD, '", "color": "blue"}\n', Hole(8), draft=("red stone",)),
            "a pattern": job(RECORD, '", "color": "blue"}\n', Hole(6, "span", Pattern("[a-z]+( [a-z]+)?"))),
        },
    }


def load(name: str) -> Model:
    torch.set_num_threads(1)  # as the worker does
    make = {"tiny": tiny.make, "gemma": gemma.published, "mini": exact_mini}.get(name)
    if make is None:
        return models.load(name, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        return models.load(str(make(Path(folder) / name)), "cpu")


def exact_mini(folder: Path) -> Path:
    """The weights of mini in float32: in bfloat16 kinds of CPU differ by more than a draw allows."""
    shutil.copytree(MINI, folder)
    path = folder / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    return folder


def events(model: Model, asked: Infill) -> list[wire.EngineMessage]:
    """All that a fresh engine says to a job."""
    return tiny.run(Scheduler(model), [asked])[asked.job]


def told(said: Sequence[wire.EngineMessage]) -> dict[str, Any]:
    """What is recorded of a job: all of it but times and probabilities, which differ between kinds of CPU, and of the
    drafts on the way a digest of their texts."""
    way = [
        [(fill.text, fill.locked, fill.open) for fill in event.holes]
        for event in said
        if isinstance(event, wire.Locked)
    ]
    answer = tiny.done(said)
    found = {
        "fills": [fill.text for fill in answer.holes],
        "steps": answer.steps,
        "tokens": [answer.tokens.canvas, answer.tokens.lookup, answer.tokens.left_to_right],
        "stop": answer.stop,
        "way": f"{len(way)} {hashlib.sha256(repr(way).encode()).hexdigest()[:12]}",
    }
    if answer.alternatives:
        found["alternatives"] = [[fill.text for fill in other] for other in answer.alternatives]
    return found | ({"level": answer.level} if answer.level else {})


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORDING.read_text())
    return found


def text(found: dict[str, dict[str, Any]]) -> str:
    """A recording as it is kept: a line for each job."""
    parts = []
    for name, answers in found.items():
        rows = [f" {json.dumps(label)}: {json.dumps(answer, ensure_ascii=False)}" for label, answer in answers.items()]
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def exact(said: Sequence[wire.EngineMessage]) -> Iterator[str]:
    for event in said:
        yield repr(event).partition(", timings=")[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.checkpoints.recorded")
    parser.add_argument("--exactly", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found, full = dict[str, dict[str, Any]](), list[str]()
    for name, asked in jobs().items():
        model, found[name] = load(name), {}
        for label, one in asked.items():
            said = events(model, one)
            found[name][label] = told(said)
            full += [f"{name}: {label}", *exact(said)]
    if options.exactly:
        options.exactly.write_text("\n".join(full))
    if options.write:
        RECORDING.write_text(text(found))
    known = recorded()
    for name, answers in found.items():
        for label, answer in answers.items():
            if answer != known[name][label]:
                print(f"{name}: {label}\n  {known[name][label]}\n  {answer}")


if __name__ == "__main__":
    main()
