"""Measure what each part of a fill is worth with a base: take one out at a time and fill every case again.

    python bench/parts.py [--model NAME|PATH] [--data FOLDER] [--held-out FILE]
                          [--groups GROUP,GROUP] [--parts PART,PART] [--n 60] [--seed 7] [--json]
                          [--out bench/results/parts.json]

The cases are quality.py's. The scheduler runs in this process, where a patch takes the part out of the engine: no
switch of the product does. It inserts as `caesura eval` does. Each part is compared with the whole
on the same cases.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from caesura import model_store, wire
from caesura.engine import models as engine_models
from caesura.engine import scheduler
from caesura.engine.canvas import prompts, vocabulary
from caesura.engine.methods.verify import search
from caesura.engine.model import Model
from caesura.server.infill.choose import choice
from caesura.server.infill.insert import finish
from caesura.server.infill.site import Site, at_cursor
from caesura.server.options import Options

from forwards import without_lookup  # isort: skip  (next to this script)
from infilling.cases import GROUPS, Sources, read  # isort: skip
from infilling.scores import interval, paired  # isort: skip
from latency import HERE, Report, conditions, save, spread, table  # isort: skip

LATE_MS = 60_000
CONTEXTS = (512, 768, 1024)  # tokens


@dataclass(frozen=True)
class Case:
    group: str
    asked: Site
    wanted: str


def _chosen(asked: Site, done: wire.Done) -> str:
    return choice(asked, done)[0]


def _ungated(asked: Site, done: wire.Done) -> str:
    """The engine's best, whatever it does to the syntax. What a grammar rules has no gate."""
    return _chosen(asked, done) if asked.offer else finish(done.holes[0].text, asked.context)


@dataclass(frozen=True)
class Part:
    """A way to fill without something: `change` takes it out of the engine, or of what the engine is asked."""

    change: Callable[[ExitStack], object] = lambda stack: None
    insert: Callable[[Site, wire.Done], str] = _chosen
    prompt: str | None = None


def _patched(owner: object, name: str, value: object) -> Callable[[ExitStack], object]:
    return lambda stack: stack.enter_context(patch.object(owner, name, value))


def parts(model: Model) -> dict[str, Part]:
    """The whole first."""
    found = {
        "whole": Part(),
        "no suffix judge": Part(_patched(search, "HEAD", 1)),
        "no lookup": Part(without_lookup),
        "no end inside a token": Part(_patched(vocabulary.Vocabulary, "crossing", lambda *_: {})),
        "no syntax gate": Part(insert=_ungated),
    }
    found |= {f"prompt {name}": Part(prompt=name) for name in _formats(model)}
    contexts = (tokens for tokens in CONTEXTS if tokens != model.spec.max_context)
    return found | {
        f"context {tokens}": Part(_patched(model, "spec", replace(model.spec, max_context=tokens)))
        for tokens in contexts
    }


def _formats(model: Model) -> Iterator[str]:
    """The other prompts that the model can be shown."""
    for name in prompts.FORMATS:
        try:
            prompts.prompt(model, "a", "b", name=name)
        except wire.Impossible:
            continue
        if name not in (model.spec.prompt, "edits"):  # that one shows no place
            yield name


# Cases


def of_group(sources: Sources, group: str, n: int, seed: int) -> list[Case]:
    return [
        Case(group, at_cursor(case.prefix + case.suffix, len(case.prefix), case.lang, case.kind), case.middle)
        for case in read(sources, group, n, seed)
    ]


# Fills


@dataclass(frozen=True)
class Fill:
    text: str
    ms: float
    right: bool


def fill_all(model: Model, cases: Sequence[Case], part: Part) -> list[Fill]:
    with ExitStack() as stack:
        part.change(stack)
        engine = scheduler.Scheduler(model)
        return [_fill(engine, f"{number}", case, part) for number, case in enumerate(cases)]


def _fill(engine: scheduler.Scheduler, name: str, case: Case, part: Part) -> Fill:
    began = time.perf_counter()
    events = engine.take(b"bench", job(name, case, part), time.monotonic())
    while engine.busy:
        events += engine.step(time.monotonic)
    ms = (time.perf_counter() - began) * 1000
    _, last = events[-1]
    assert isinstance(last, wire.Done), last
    text = part.insert(case.asked, last)
    return Fill(text, ms, text.rstrip() == case.wanted.rstrip())


def job(name: str, case: Case, part: Part) -> wire.Infill:
    around = case.asked.context
    return wire.Infill(
        job=name,
        document=name,
        prefix=around.prefix,
        suffix=around.suffix,
        language=around.language,
        segments=case.asked.segments,
        candidates=Options().candidates,
        prompt=part.prompt,
        deadline_ms=LATE_MS,
    )


# The report


def summary(cases: Sequence[Case], found: Sequence[Fill], whole: Sequence[Fill]) -> Report:
    """One part on all cases, next to the whole, and by group what was exact."""
    hits = [fill.right for fill in found]
    pair = paired(hits, [fill.right for fill in whole])
    groups: dict[str, list[bool]] = {}
    for case, right in zip(cases, hits, strict=True):
        groups.setdefault(case.group, []).append(right)
    return {
        "n": len(hits),
        "exact": round(statistics.fmean(hits), 4),
        "exact_95": interval(sum(hits), len(hits)),
        "only_part": pair.only_left,
        "only_whole": pair.only_right,
        "difference": pair.difference,
        "difference_95": pair.interval,
        "same_text": round(statistics.fmean(a.text == b.text for a, b in zip(found, whole, strict=True)), 4),
        "ms": spread([fill.ms for fill in found]),
        "groups": {group: {"n": len(of), "exact": sum(of)} for group, of in groups.items()},
    }


def measure(options: argparse.Namespace, cases: Sequence[Case]) -> Report:
    report: Report = {"bench": "parts", **conditions(options.model), "n": options.n, "seed": options.seed, "parts": {}}
    model = engine_models.load(options.model)
    ways = parts(model)
    if unknown := set(options.parts or ()) - set(ways):
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(ways)}")
    fill_all(model, cases[:2], Part())  # the first forwards of a process are slower
    whole: list[Fill] = []
    for name, part in ways.items():
        if whole and options.parts and name not in options.parts:
            continue
        found = fill_all(model, cases, part)
        whole = whole or found
        report["parts"][name] = summary(cases, found, whole)
        save(report, options.out)
        print(f"{name}: {report['parts'][name]['exact']:.1%} exact", file=sys.stderr, flush=True)
    return report


def picture(report: Report) -> str:
    """The report as a person reads it."""
    head = ("", "n", "exact %", "only so", "only whole", "change %", "95 %", "same text %", "ms p50", "p95")
    where = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    return "\n".join([where, "", table(head, [_line(*part) for part in report["parts"].items()])])


def _line(name: str, part: dict[str, Any]) -> list[object]:
    return [
        name,
        part["n"],
        100 * part["exact"],
        part["only_part"],
        part["only_whole"],
        100 * part["difference"],
        " to ".join(f"{100 * bound:+.1f}" for bound in part["difference_95"]),
        100 * part["same_text"],
        part["ms"]["p50"],
        part["ms"]["p95"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What each part of a fill is worth.")
    add = parser.add_argument
    add("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    add("--data", type=Path, metavar="FOLDER", help="HumanEval-Infilling's files")
    add("--held-out", type=Path, metavar="FILE", help="what training/heldout.py made")
    add("--groups", type=lambda text: text.split(","), metavar="GROUP,GROUP", help=",".join(GROUPS))
    add("--parts", type=lambda text: text.split(","), metavar="PART,PART", help="with the whole; all without it")
    add("--n", type=int, default=60, help="cases of a group")
    add("--seed", type=int, default=7)
    add("--json", action="store_true", help="one JSON line on stdout instead of the table")
    add("--out", type=Path, default=HERE / "results" / "parts.json")
    options = parser.parse_args()
    options.model = model_store.resolve(options.model)
    sources = Sources(options.data, None, options.held_out)
    named = options.groups or [group for group in GROUPS if sources.of(group)]
    if unusable := [group for group in named if group not in GROUPS or not sources.of(group)]:
        parser.error(f"no cases of {', '.join(unusable)}; give --data or --held-out")
    cases = [case for group in named for case in of_group(sources, group, options.n, options.seed)]
    if not cases:
        parser.error("no cases; give --data or --held-out")
    torch.set_num_threads(1)
    report = measure(options, cases)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
