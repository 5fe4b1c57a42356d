"""How far capacity.py is from reality: the same users at the real engine on the wall clock, and in the simulation.

    python bench/capacity_check.py [--model NAME|PATH] [--users 1 2 4] [--seconds 25] [--seed 1] [--stretches 4]
                                   [--json] [--out bench/results/capacity-check.json]

The first stretches are recorded again, with their texts. Then users type them as in capacity.py: once the scheduler
runs over the real model in this process, once over the step table of results/jobs-MODEL.json. Measure on a quiet
machine.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from capacity import Outcome, Served, Team, crowd_of, played, recorded, summary, tabled
from crowd import Wall, replay
from job_traces import GivenJob, numbers, own_records, record
from latency import HERE, Report, conditions, save, table
from typist import STRETCHES, stretches

from caesura import model_store
from caesura.engine import models as engine_models
from caesura.engine.model import Model
from caesura.engine.scheduler import Scheduler

Texts = dict[str, list[GivenJob]]  # by stretch


def real(model: Model, served: Served, texts: Texts, users: int, seconds: float, seed: int) -> Outcome:
    """The jobs have the texts that were recorded; a line after the suffix makes each a document of its own."""
    asked, known = crowd_of(users, served.stretches, seconds, seed)
    jobs = {
        id(of): given.job
        for name, (_, _, ofs) in served.stretches.items()
        for of, given in zip(ofs, texts[name], strict=True)
    }
    for one in asked:
        text = jobs[id(known[one.job.job])]
        own = {"job": one.job.job, "document": one.job.document, "suffix": f"{text.suffix}\n# {one.job.document}\n"}
        one.job, one.arrives = msgspec.structs.replace(text, **own), one.at
    steps = replay(Scheduler(model), asked, Wall(), seconds)
    return Outcome(asked, 0, sum(steps) / seconds, 0)


WARM_S = 3.0  # not counted


def measure(name: str, users: Sequence[int], seconds: float, seed: int, count: int) -> Report:
    model, chosen = engine_models.load(model_store.resolve(name)), stretches(STRETCHES)[:count]
    with own_records():
        texts = {stretch.name: record(model, stretch) for stretch in chosen}
    found = json.loads((HERE / "results" / f"jobs-{name}.json").read_text())
    given = {s.name: {**found["stretches"][s.name], "jobs": numbers(texts[s.name])} for s in chosen}
    served = Served(name, "measured", recorded({"stretches": given}), tabled(found), found["engine"])
    rows = []
    for many in users:
        runs = {
            "measured": real(model, served, texts, many, seconds, seed),
            "simulated": played(served, Team(1), many, seconds, seed),
        }
        rows += [{"kind": kind, "users": many, **summary([run], WARM_S, seconds - 1)} for kind, run in runs.items()]
    return {"bench": "capacity-check", **conditions(name), "seconds": seconds, "seed": seed, "rows": rows}


def picture(report: Report) -> str:
    """The report as a person reads it."""
    lines = [
        (
            f"{row['users']} users, {row['kind']}",
            row["jobs"],
            *(row[name][rank] for name in ("warm_ms", "first_ms", "done_ms") for rank in ("p50", "p95")),
            100 * row["answered"],
            100 * row["busy"],
        )
        for row in report["rows"]
    ]
    head = ("", "jobs", "warm p50", "p95", "first p50", "p95", "done p50", "p95", "answered %", "busy %")
    return f"{report['model']['name']}, {report['machine']}, load {report['load']}; ms\n{table(head, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The simulation of capacity.py next to the real engine.")
    parser.add_argument("--model", default="small", metavar="NAME|PATH")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stretches", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "capacity-check.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = measure(options.model, options.users, options.seconds, options.seed, options.stretches)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
