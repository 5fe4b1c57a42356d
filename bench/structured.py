"""Whether what was valid stays valid: holes in JSON documents, filled by models that know nothing and by ours.

    python bench/structured.py --data FOLDER [--json-files FOLDER ...] [--llguidance PYTHON]
                               [--parts noise,small,schemas,masks,siblings] [--holes 12000]
                               [--schemas 20] [--cases 200] [--minutes 8] [--seed 7] [--json]
                               [--out bench/results/structured.json]

`--data` holds JSONTestSuite and jsonschemabench, `--json-files` other JSON for `siblings`. Every job goes through the
real scheduler in this process: the noise models under a clock that ticks when it is read, so that deadlines fall
anywhere, the model `small` under the real one. `--minutes` bounds each part. Parts that are not asked for keep what
the results file has of them.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from caesura import wire
from caesura.engine import models
from caesura.engine.model import Model
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.model_store import SMALL, locate

import masks  # isort: skip  (next to this script)
from documents import Document, instances, manifests, suite  # isort: skip
from inside import Ticking, answers, scheduler, watched  # isort: skip
from latency import HERE, Report, conditions, save, spread, table  # isort: skip
from places import Edit, Places  # isort: skip
from siblings import cases, exact, files  # isort: skip
from verdicts import Asked, Tally, job, judged  # isort: skip

sys.path.insert(0, str(HERE.parent))
from tests.support.checkpoints.noisy import Noisy

PARTS = ("noise", "small", "schemas", "masks", "siblings")
NOISES: dict[str, dict[str, Any]] = {
    "noise, absorbing with null": {},
    "noise, absorbing with null, sure of itself": {"scale": 8.0},
    "noise, absorbing with null, verified by noise": {"scale": 4.0, "method": "verify"},
    "noise, uniform": {"uniform": True},
}
FAKE_MS = (1.0, 5.0, 5.0, 20.0, 20.0, 10_000.0)  # deadlines, of a clock that ticks
REAL_MS = (1.0, 5.0, 20.0, 250.0, 1_000.0, 10_000.0, 10_000.0, 10_000.0)
TICK_S = 0.002  # at most, whenever that clock is read
BATCH = 4  # jobs at once
INSTANCE = 96  # tokens of one made from a schema, where that is enough


def drawn(documents: Sequence[Document], draw: random.Random, deadlines: Sequence[float]) -> Iterator[Asked]:
    """Holes without end: a source, a document of it, a place in it, a deadline."""
    sources = sorted({document.source for document in documents})
    places: dict[str, Places] = {}
    while True:
        source = draw.choice(sources)
        document = draw.choice([document for document in documents if document.source == source])
        found = places.get(document.name) or places.setdefault(document.name, Places(document, draw))
        edit = found.edit()
        if edit is not None:
            yield Asked(document, edit, draw.choice(deadlines))


def guarantee(
    model: Model, asked: Iterator[Asked], holes: int, clock: Callable[[], Callable[[], float]], until: float
) -> dict[float, Tally]:
    """Verdicts by deadline, until so many holes were asked for or the time is up (seconds of perf_counter)."""
    engine, found, number = scheduler(model), dict[float, Tally](), 0
    while number < holes and time.perf_counter() < until:
        batch = [next(asked) for _ in range(BATCH)]
        began = time.perf_counter()
        events = answers(engine, [job(i, one) for i, one in enumerate(batch)], clock())
        for i, one in enumerate(batch):
            verdict = judged(one.document, one.edit, events[str(i)])
            tally = found.setdefault(one.deadline_ms, Tally())
            tally.add(one, verdict)
            tally.ms.append(1000 * (time.perf_counter() - began) / BATCH)
            number += verdict.holes
    return found


@dataclass
class Generated:
    """Instances made from schemas of one set: verdicts, and what the grammar took."""

    tally: Tally = field(default_factory=Tally)
    making_ms: list[float] = field(default_factory=list)
    asking_us: list[float] = field(default_factory=list)  # in the grammar, a token of the fill
    again_us: list[float] = field(default_factory=list)  # the same for the second one
    percent: list[float] = field(default_factory=list)  # of the job's time

    def report(self) -> Report:
        return self.tally.report() | {
            "making_ms": spread(self.making_ms),
            "asking_us_a_token": spread(self.asking_us),
            "again_us_a_token": spread(self.again_us),
            "grammar_percent": spread(self.percent),
        }


def generated(
    model: Model, folder: Path, count: int, draw: random.Random, until: float, deadline_ms: float
) -> dict[str, Generated]:
    """An instance of each of `count` schemas of a set, sets in turn, through a hole that is the whole document; and a
    second one, when the grammar is known."""
    engine, found = scheduler(model), dict[str, Generated]()
    sets = {kind.name: sorted(kind.glob("*.json")) for kind in sorted(folder.iterdir()) if kind.is_dir()}
    chosen = {kind: draw.sample(of_kind, min(count, len(of_kind))) for kind, of_kind in sets.items()}
    for number in range(count):
        for kind, schemas_of in chosen.items():
            if number >= len(schemas_of) or time.perf_counter() > until:
                continue
            schema, made = schemas_of[number].read_bytes().decode(), found.setdefault(kind, Generated())
            hole = wire.Hole(INSTANCE, "block", wire.Json(schema=0, indent=draw.choice(("  ", None))))
            edit = Edit("document", 0, 0, (hole,), (schema,), ruled=True)
            asked = Asked(Document(kind, schemas_of[number].stem, "", schema=schema), edit, deadline_ms)
            for us, ms in ((made.asking_us, made.making_ms), (made.again_us, [])):
                with watched() as spent:
                    began = time.perf_counter()
                    events = answers(engine, [job(0, asked)])["0"]
                    took = time.perf_counter() - began
                made.tally.add(asked, judged(asked.document, edit, events))
                made.tally.ms.append(1000 * took)
                ms.append(1000 * spent.making)
                if isinstance(done := events[-1], wire.Done):
                    us.append(1e6 * spent.asking / max(1, len(model.tokenizer.encode(done.holes[0].text))))
                    made.percent.append(100 * (spent.asking + spent.making) / took)
    return found


# The report


def report_of(found: dict[float, Tally]) -> Report:
    return {f"{deadline:g} ms": tally.report() for deadline, tally in sorted(found.items())}


def noise(options: argparse.Namespace, draw: random.Random) -> Report:
    documents = everything(options.data, draw)
    tokenizer, found = Tokenizer(locate(SMALL) / "tokenizer.json"), Report()
    for name, settings in NOISES.items():
        model = Noisy(tokenizer, seed=options.seed, **settings)
        until = time.perf_counter() + 60 * options.minutes
        holes = options.holes // len(NOISES)
        found[name] = report_of(
            guarantee(model, drawn(documents, draw, FAKE_MS), holes, lambda: Ticking(draw, TICK_S), until)
        )
    return found


def small(options: argparse.Namespace, draw: random.Random) -> Report:
    until = time.perf_counter() + 60 * options.minutes
    asked = drawn(everything(options.data, draw), draw, REAL_MS)
    return report_of(guarantee(models.load(SMALL), asked, options.holes, lambda: time.perf_counter, until))


def schemas(options: argparse.Namespace, draw: random.Random) -> Report:
    folder, found = options.data / "jsonschemabench" / "schemas", Report()
    noisy = Noisy(Tokenizer(locate(SMALL) / "tokenizer.json"), seed=options.seed, scale=8.0)
    for name, model, count, deadline_ms in (
        ("noise, sure of itself", noisy, options.schemas, 2_000.0),
        ("small", models.load(SMALL), max(1, options.schemas // 5), 10_000.0),
    ):
        until = time.perf_counter() + 60 * options.minutes
        made = generated(model, folder, count, draw, until, deadline_ms)
        found[name] = {kind: one.report() for kind, one in made.items()}
    return found


def mask(options: argparse.Namespace, draw: random.Random) -> Report:
    tokenizer = Tokenizer(locate(SMALL) / "tokenizer.json")
    until = time.perf_counter() + 60 * options.minutes
    folder = options.data / "jsonschemabench" / "maskbench"
    found = masks.measure(folder, tokenizer, draw, until).report()
    if options.llguidance:
        found["llguidance_here"] = masks.peer(options.llguidance, folder, locate(SMALL) / "tokenizer.json")
    return found


def sibling(options: argparse.Namespace, draw: random.Random) -> Report:
    documents = files(options.json_files) + instances(options.data / "jsonschemabench" / "maskbench", draw)
    found = cases(documents, draw, options.cases)
    until = time.perf_counter() + 60 * options.minutes
    return {name: row.report() for name, row in exact(models.load(SMALL), found, until).items()}


def everything(data: Path, draw: random.Random) -> list[Document]:
    maskbench = data / "jsonschemabench" / "maskbench"
    return suite(data / "JSONTestSuite") + instances(maskbench, draw) + manifests(draw)


MEASURED: dict[str, Callable[[argparse.Namespace, random.Random], Report]] = dict(
    zip(PARTS, (noise, small, schemas, mask, sibling), strict=True)
)


def picture(report: Report) -> str:
    """The report as a person reads it."""
    lines = [f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"]
    rows = [
        [f"{name}, {deadline}", *_row(of)]
        for part in ("noise", "small")
        for name, by in (report.get(part, {}) if part == "noise" else {"small": report.get(part, {})}).items()
        for deadline, of in by.items()
    ]
    rows += [
        [f"schemas, {name}, {kind}", *_row(of)]
        for name, by in report.get("schemas", {}).items()
        for kind, of in by.items()
    ]
    head = ("", "jobs", "holes valid", "checked", "expired", "refused", "invalid", "p50 ms", "p95 ms")
    lines += ["", table(head, [*rows, _sum(rows)])] if rows else []
    if found := report.get("masks"):
        columns = ("microseconds", "TTFM p50", "p95", "TBM p50", "p95", "p99", "passing %")
        here = {"ours": found} | ({"llguidance, here": there} if (there := found.get("llguidance_here")) else {})
        figures = [[name, *_masks(of)] for name, of in here.items()]
        others = [[name, *of["TTFM"], *of["TBM"], of["passing_percent"]] for name, of in found["published"].items()]
        lines += ["", table(columns, [*figures, *others])]
    if found := report.get("siblings"):
        titles = ("", "values exact %", "keys exact %", "invalid", "p50 ms", "p95 ms", "grammar %")
        cells = [[name, *_sibling(of)] for name, of in found.items()]
        lines += ["", table(titles, cells)]
    return "\n".join(lines)


def _sum(rows: Sequence[Sequence[Any]]) -> list[object]:
    return ["all", *(sum(row[i] for row in rows) for i in range(1, 7)), None, None]


def _row(of: Report) -> list[object]:
    holes = [of["holes"].get(state, 0) for state in ("valid", "checked", "expired", "refused", "invalid")]
    return [sum(of["jobs"].values()), *holes, of["ms"]["p50"], of["ms"]["p95"]]


def _masks(of: Report) -> list[object]:
    first, between = of["TTFM_us"], of["TBM_us"]
    return [first["p50"], first["p95"], between["p50"], between["p95"], between["p99"], of["passing_percent"]]


def _sibling(of: Report) -> list[object]:
    exactly = [of.get(kind, {}).get("exact_percent") for kind in ("value", "key")]
    times = of.get("ms", {"p50": None, "p95": None})
    return [*exactly, of["invalid"], times["p50"], times["p95"], of.get("grammar_percent")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether what was valid stays valid.")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--json-files", type=Path, nargs="*", default=[], metavar="FOLDER")
    parser.add_argument("--llguidance", type=Path, metavar="PYTHON", help="an interpreter that has it, for `masks`")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--holes", type=int, default=12_000, help="asked for of all noise models together")
    parser.add_argument("--schemas", type=int, default=20, help="of each set")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "structured.json")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    torch.set_num_threads(1)  # as the worker does
    for part in options.parts:
        began, about = time.perf_counter(), conditions(SMALL)
        found = MEASURED[part](options, random.Random(options.seed))
        report: Report = json.loads(options.out.read_text()) if options.out.exists() else {}
        measured = report.get("measured", {}) | {part: {name: about[name] for name in ("at", "commit", "load")}}
        report |= {"bench": "structured", **about, "seed": options.seed, "measured": measured, part: found}
        save(report, options.out)
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
