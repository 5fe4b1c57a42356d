"""Measure a model's canvas: alone, as a drafter, and in the places where a young one may already help.

    python bench/canvas.py curve --held-out FILE [--data FOLDER] [--model NAME|PATH ...] [--n 160]
    python bench/canvas.py passes --held-out FILE [--data FOLDER] [--model NAME|PATH] [--n 160]
    python bench/canvas.py places --held-out FILE [--model NAME|PATH] [--n 40] [--places PLACE,PLACE]
    python bench/canvas.py steps --held-out FILE [--data FOLDER] [--model NAME|PATH] [--n 160] [--fills 10]

The scheduler runs in this process. All ways fill one gap before the next gap begins, and the first way changes from gap
to gap. The context is read before the clock starts. `curve` compares several models, such as the checkpoints of a
training. bench/README.md says what each figure means.
"""

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import torch

from caesura import model_store, wire
from caesura.engine import models as engine_models
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.canvas.layout import SLOTS, Layout, lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import _forward, absorbing, verify
from caesura.engine.methods.verify.lookup import agreeing, agreement
from caesura.engine.model import Run
from caesura.engine.scores import Scores, told
from caesura.server.infill.choose import choice

import parts  # isort: skip  (next to this script)
from canvas_places import PLACES, Trial, mismatched, trials  # isort: skip
from forwards import Counted  # isort: skip
from infilling.cases import Sources  # isort: skip
from infilling.report import comparison  # isort: skip
from infilling.rows import SOURCES  # isort: skip
from infilling.scores import interval, paired, parses, similarity  # isort: skip
from inside import PEER  # isort: skip
from inside import scheduler as fresh_engine  # isort: skip
from latency import HERE, Report, conditions, save, spread, table  # isort: skip

MIX = {"python-line": 60, "js-line": 40, "python-span": 40, "json-value": 20, "single-line": 40}  # shares of a sample
LINES = {group: share for group, share in MIX.items() if group.endswith("line")}
BUCKETS = (16, 32)  # slots of a canvas, as in training/examples.py
RESAMPLED = 2000  # times, for an interval


# Ways to fill


def loaded(name: str) -> engine_models.Model:
    model = engine_models.load(model_store.resolve(name))
    if model.spec.null_id is None and model.drafter is None:
        raise SystemExit(f"The model {name} has no canvas that its base verifies, and no light drafter.")
    return model


@dataclass(frozen=True)
class Way:
    """How a job is filled: by a method, or by a canvas with a sampler. `steps` bounds the steps of the canvas. `drafts`
    makes the canvas draft for the verifier, or neither canvas nor light drafter, instead of the engine's choice. `warm`
    keeps the job's draft."""

    method: str | None = None
    sampler: str | None = None
    steps: int | None = None
    drafts: bool | None = None
    warm: bool = True

    def change(self, stack: ExitStack) -> None:
        """Patch the engine, since the product has no switch for it."""
        if self.steps is not None:
            stack.enter_context(patch.object(absorbing, "STEPS", self.steps))
            stack.enter_context(patch.object(absorbing, "decide", not_counting_growth(absorbing.decide)))
        if self.drafts is not None:
            stack.enter_context(patch.object(verify, "canvas_drafts", lambda *_, **__: self.drafts))
        if self.drafts is False:
            stack.enter_context(patch.object(_forward, "draft", lambda *_: None))


def not_counting_growth(decide: Callable[..., None]) -> Callable[..., None]:
    """`decide`, with one more step allowed after each step that only made the canvas longer."""

    def decided(model: Any, w: absorbing.Denoising, logits: torch.Tensor) -> None:
        slots = len(w.canvas.slots)
        decide(model, w, logits)
        w.of += len(w.canvas.slots) > slots

    return decided


VERIFY, LEFT_TO_RIGHT = "verify", "left_to_right"
ALONE = {f"canvas, {steps} step{'s' * (steps > 1)}": Way(sampler="top_k", steps=steps) for steps in (1, 4, 8)}
LEFT, LOOKUP, BOTH, CANVAS, USUAL = "left to right", "lookup only", "both", "canvas", "draft and verify"
CURVE = {**ALONE, LEFT: Way(LEFT_TO_RIGHT), LOOKUP: Way(VERIFY, drafts=False)}
PASSES = {LEFT: CURVE[LEFT], LOOKUP: CURVE[LOOKUP], BOTH: Way(VERIFY, drafts=True)}
LIGHT = {LEFT: CURVE[LEFT], LOOKUP: CURVE[LOOKUP], "lookup else light drafter": Way(VERIFY)}
YOUNG = {CANVAS: Way(sampler="threshold"), USUAL: Way(VERIFY), LOOKUP: CURVE[LOOKUP], LEFT: CURVE[LEFT]}
COLD = {f"{name}, no draft": replace(YOUNG[name], warm=False) for name in (CANVAS, USUAL)}


@dataclass(frozen=True)
class Filled:
    """An answer. `states` are the holes after each step that changed them; the first step took `first_ms`."""

    done: wire.Done
    ms: float
    first_ms: float
    forwards: int
    states: list[tuple[wire.Fill, ...]]

    @property
    def texts(self) -> list[str]:
        return [fill.text.rstrip() for fill in self.done.holes]


class Bench:
    """A model in an engine of its own, which keeps contexts warm."""

    def __init__(self, model: engine_models.Model) -> None:
        self.model: Any = Counted(model)
        self.engine = fresh_engine(self.model)

    def layout(self, job: wire.Infill) -> Layout:
        """The job in tokens, as the scheduler lays it out."""
        return lay(self.model, self.engine.vocabulary, job, SLOTS)

    @contextmanager
    def context(self, layout: Layout) -> Iterator[KV]:
        """Read the whole context; the next job finds it warm."""
        kv = self.engine.cache.lease(layout.context)
        if rest := layout.context[kv.length :]:
            self.model.prefill(rest, kv)
        yield kv
        self.engine.cache.give(kv)

    def fill(self, job: wire.Infill, way: Way) -> Filled:
        draft = job.draft if way.warm else None
        asked = msgspec.structs.replace(job, method=way.method, sampler=way.sampler, draft=draft)
        with self.context(self.layout(job)):
            pass
        with ExitStack() as stack:
            way.change(stack)
            began, before, first_ms = time.perf_counter(), self.model.forwards, 0.0
            events = self.engine.take(PEER, asked, began)
            while self.engine.busy:
                events += self.engine.step(time.perf_counter)
                first_ms = first_ms or (time.perf_counter() - began) * 1000
            ms = (time.perf_counter() - began) * 1000
        _, done = events[-1]
        assert isinstance(done, wire.Done), done
        states = [event.holes for _, event in events if isinstance(event, wire.Locked | wire.Done)]
        return Filled(done, ms, first_ms, self.model.forwards - before, states)

    def in_turn(self, job: wire.Infill, ways: dict[str, Way], number: int) -> dict[str, Filled]:
        """Fill one gap in every way; the first way changes with the number of the gap."""
        names = list(ways)
        at = number % len(names)
        return {name: self.fill(job, ways[name]) for name in (*names[at:], *names[:at])}


# Intervals


class Ratio(NamedTuple):
    """A ratio of two sums over the cases, with a bootstrap's 95 % interval."""

    value: float
    low: float
    high: float


def ratio(cases: Sequence[tuple[float, float]]) -> Ratio:
    """The sum of the left numbers over the sum of the right ones; a case has one of each."""

    def of(some: Sequence[tuple[float, float]]) -> float:
        right = sum(b for _, b in some)
        return sum(a for a, _ in some) / right if right else 0.0

    draw = random.Random(7)
    found = sorted(of(draw.choices(cases, k=len(cases))) for _ in range(RESAMPLED))
    return Ratio(*(round(x, 4) for x in (of(cases), found[RESAMPLED // 40], found[-1 - RESAMPLED // 40])))


def mean(values: Sequence[float]) -> Ratio:
    return ratio([(value, 1.0) for value in values])


# Rows


@dataclass
class Row:
    """The results of one way."""

    exact: list[bool] = field(default_factory=list)
    similar: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, said: str, wanted: str, filled: Filled) -> None:
        self.exact.append(said == wanted)
        self.similar.append(similarity(said, wanted))
        self.ms.append(filled.ms)
        self.forwards.append(filled.forwards)
        self.tokens.update(msgspec.to_builtins(filled.done.tokens))

    def report(self) -> Report:
        n, right = len(self.exact), sum(self.exact)
        return {
            "n": n,
            "exact": round(right / n, 4),
            "exact_95": interval(right, n),
            "hits": "".join("01"[hit] for hit in self.exact),
            "similarity": round(fmean(self.similar), 4),
            "ms": spread(self.ms),
            "forwards": round(fmean(self.forwards), 2),
            "tokens": {source: self.tokens[source] for source in SOURCES},
        }

    def share_of(self, usual: "Row") -> Report:
        """Milliseconds and forwards as shares of those of another row."""
        shares = (zip(self.ms, usual.ms, strict=True), zip(self.forwards, usual.forwards, strict=True))
        return {name: ratio(list(pairs)) for name, pairs in zip(("ms_share", "forwards_share"), shares, strict=True)}


def against(left: str, right: str, mine: Row, yours: Row, group: str = "all") -> Report:
    """Compare two rows on the same gaps, in the form that `comparison` prints."""
    return {"left": left, "right": right, "group": group, **paired(mine.exact, yours.exact)._asdict()}


def sampled(options: argparse.Namespace, mix: dict[str, int]) -> list[parts.Case]:
    """Draw `--n` cases from the groups whose data is there, each group by its share."""
    sources = Sources(options.data, None, options.held_out)
    groups = {group: share for group, share in mix.items() if sources.of(group)}
    whole = sum(groups.values())
    sizes = {group: max(1, round(options.n * share / whole)) for group, share in groups.items()}
    return [case for group, n in sizes.items() for case in parts.of_group(sources, group, n, options.seed)]


def counted(cases: Sequence[parts.Case]) -> Iterator[tuple[int, parts.Case]]:
    """The cases with their numbers, and a line of progress for every twentieth."""
    for number, case in enumerate(cases):
        if number % 20 == 0:
            print(f"{number} of {len(cases)}", file=sys.stderr, flush=True)
        yield number, case


def job(number: int, case: parts.Case) -> wire.Infill:
    return parts.job(f"{number}", case, parts.Part())


def plain(number: int, case: parts.Case) -> wire.Infill:
    """The job with one hole and no grammar."""
    return msgspec.structs.replace(job(number, case), segments=(case.asked.hole,), schemas=())


def add_fills(bench: Bench, number: int, case: parts.Case, ways: dict[str, Way], rows: dict[str, Row]) -> None:
    """Fill one gap in every way and add each fill, as the product would insert it, to the row of its way."""
    for name, filled in bench.in_turn(job(number, case), ways, number).items():
        rows[name].add(choice(case.asked, filled.done)[0].rstrip(), case.wanted.rstrip(), filled)


# The curve of a checkpoint


@dataclass(frozen=True)
class Reading:
    """One gap, read by both paths: the nats of each of its tokens, on an all-hidden canvas and by the base left to
    right; how many leading tokens of the canvas's draft the base would choose, and how many the author wrote. The first
    `healed` tokens only repeat the end of the prefix, which was cut for healing."""

    canvas: list[float]
    base: list[float]
    greedy: int
    truth: int
    healed: int


def read(bench: Bench, asked: wire.Infill, wanted: str) -> Reading | None:
    """Read a gap. None where it is longer than the canvases of training. The job has one hole."""
    layout, model, vocabulary = bench.layout(asked), bench.model, bench.engine.vocabulary
    [hole] = layout.canvas.holes
    tokens = model.tokenizer.encode(hole.forced.decode() + wanted)
    slots = next((size for size in BUCKETS if size >= len(tokens)), None)
    if slots is None:
        return None
    canvas = layout.canvas.resized([min(slots, hole.max_tokens)])
    tail, at = canvas.tail, len(layout.context)
    noise = [model.spec.noise.mask_id] * len(canvas.slots)
    with bench.context(layout) as kv:
        drawn = Run(kv, canvas.ids(noise), range(at, at + canvas.rows), None, canvas.slot_rows())
        base, seen = model.forward([chain(kv, at, [*tail, *tokens[:-1]])], [drawn])
        kv.truncate(at)
        draft = first_draft(canvas, seen, model.spec.null_id)
        judged, _ = model.forward([chain(kv, at, [*tail, *draft[:-1]])])
    return Reading(
        of_tokens(seen, tokens),
        of_tokens(base.part(len(tail) - 1, base.rows), tokens),
        agreeing(draft, greedy(vocabulary, judged.part(len(tail) - 1, judged.rows), draft, hole.forced)),
        agreeing(draft, tokens),
        sum(end <= len(hole.forced) for end in itertools.accumulate(len(vocabulary.pieces[t]) for t in tokens)),
    )


def chain(kv: KV, at: int, ids: Sequence[int]) -> Run:
    """Rows that the base reads left to right, from position `at` on."""
    return Run(kv, ids, range(at, at + len(ids)), np.tri(len(ids), dtype=np.bool_))


def of_tokens(scores: Scores, tokens: Sequence[int]) -> list[float]:
    """The nats of each token in its row."""
    (logp,) = told(scores.logp(range(len(tokens)), tokens))
    return (-logp).tolist()


def first_draft(canvas: Canvas, scores: Scores, null: int) -> list[int]:
    """The best tokens of the slots up to the first null, at least one."""
    (found,) = told(canvas.constrain(scores).best(1))
    best: list[int] = found.ids[:, 0].tolist()
    return best[: max(1, best.index(null) if null in best else len(best))]


def greedy(vocabulary: Vocabulary, scores: Scores, draft: Sequence[int], forced: bytes) -> list[int]:
    """The base's best token at each place of a draft, given the draft before it. Where the prefix was cut for healing,
    the base has to repeat what was cut, as it does in use."""
    allowed = []
    for token in draft:
        allowed.append(vocabulary.allowed(forced, True) if forced else None)
        forced = forced[len(vocabulary.pieces[token]) :] if token < len(vocabulary.pieces) else b""
    (found,) = told(scores.best(1, allowed))
    best: list[int] = found.ids[:, 0].tolist()
    return best


VIEWS = {"slots": True, "text": False}  # whether the tokens count that repeat the end of the prefix


@dataclass
class Checkpoint:
    """The results of one model."""

    about: Report
    rows: dict[str, Row]
    readings: list[Reading | None] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.about["model"]["name"])

    def nats(self, path: str, *, first: bool, healed: bool) -> list[tuple[float, float]]:
        """The nats and the number of the first token of each gap, or of all others. With `healed` the tokens that
        repeat the prefix count too."""
        found = []
        for one in filter(None, self.readings):
            values = getattr(one, path)[0 if healed else one.healed :]
            chosen = values[:1] if first else values[1:]
            found.append((sum(chosen), float(len(chosen))))
        return found

    def accepted(self, by: str, *, healed: bool) -> list[float]:
        """Accepted tokens of each draft, without the first one, which a pass of the base gives for free."""
        found = filter(None, self.readings)
        return [float(max(0, getattr(one, by) - 1 - (0 if healed else one.healed))) for one in found]

    def report(self) -> Report:
        rows = {name: row.report() for name, row in self.rows.items()}
        read = {view: self.read(healed=healed) for view, healed in VIEWS.items()}
        return {**self.about, "rows": rows, "read": sum(one is not None for one in self.readings), **read}

    def read(self, *, healed: bool) -> Report:
        nats = {
            kind: {path: ratio(self.nats(path, first=first, healed=healed)) for path in ("canvas", "base")}
            for kind, first in (("first_nats", True), ("rest_nats", False))
        }
        return nats | {"accepted": {by: mean(self.accepted(by, healed=healed)) for by in ("greedy", "truth")}}


def checkpoint(model: str, cases: Sequence[parts.Case]) -> Checkpoint:
    found, bench = Checkpoint(conditions(model), {name: Row() for name in CURVE}), Bench(loaded(model))
    bench.in_turn(job(0, cases[0]), CURVE, 0)  # the first forwards of a process are slower
    for number, case in counted(cases):
        found.readings.append(read(bench, plain(number, case), case.wanted.rstrip()))
        add_fills(bench, number, case, CURVE, found.rows)
    return found


def curve(options: argparse.Namespace) -> tuple[Report, str]:
    cases, found = sampled(options, MIX), list[Checkpoint]()
    report: Report = {"bench": "canvas curve", **about_cases(options, cases), "models": [], "pairs": [], "changes": []}
    for model in options.model:
        one = checkpoint(model, cases)
        report["models"].append(one.report())
        report["pairs"] += [against(f"{one.name}: {name}", LEFT, one.rows[name], one.rows[LEFT]) for name in ALONE]
        for other in found:
            pairs = [(name, one.rows[name], other.rows[name]) for name in ALONE]
            report["pairs"] += [against(f"{one.name}: {name}", other.name, *rows) for name, *rows in pairs]
            report["changes"].append(change(one, other))
        found.append(one)
        save(report, options.out)
    return report, pictured_curve(report)


def change(one: Checkpoint, other: Checkpoint) -> Report:
    """Compare two canvases on the gaps that both have read: nats and accepted tokens of `one` less those of `other`."""
    both = [pair for pair in zip(one.readings, other.readings, strict=True) if all(pair)]
    mine, yours = (Checkpoint({}, {}, list(readings)) for readings in zip(*both, strict=True))
    found: Report = {"left": one.name, "right": other.name}
    for view, healed in VIEWS.items():
        nats, others = (of.nats("canvas", first=False, healed=healed) for of in (mine, yours))
        drafts = zip(*(of.accepted("greedy", healed=healed) for of in (mine, yours)), strict=True)
        found[view] = {
            "rest_nats": ratio([(a - b, n) for (a, n), (b, _) in zip(nats, others, strict=True)]),
            "accepted": mean([a - b for a, b in drafts]),
        }
    return found


def pictured_curve(report: Report) -> str:
    found = [(one["model"]["name"], one) for one in report["models"]]
    exact = [
        (name, report["n"], *(f"{100 * r['exact']:.1f} ({100 * r['similarity']:.0f})" for r in one["rows"].values()))
        for name, one in found
    ]
    nats = [
        (
            f"{name}, {view}",
            one["read"],
            *(shown(one[view][kind][path]) for kind in ("first_nats", "rest_nats") for path in ("canvas", "base")),
            *(shown(one[view]["accepted"][by]) for by in ("greedy", "truth")),
        )
        for name, one in found
        for view in VIEWS
    ]
    head = ("nats a token, drafts", "gaps", "1st: canvas", "base", "others: canvas", "base", "accepted: base", "author")
    changes = [
        (f"{one['left']} - {one['right']}, {view}", shown(one[view]["rest_nats"]), shown(one[view]["accepted"]))
        for one in report["changes"]
        for view in VIEWS
    ]
    tables = [
        table(("exact % (edit similarity %)", "n", *CURVE), exact),
        table(head, nats),
        comparison(report["pairs"]),
        table(("left - right", "nats of the others", "accepted: base"), changes) if changes else "",
    ]
    return "\n\n".join(filter(None, tables))


def shown(found: Ratio) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


# Passes and milliseconds


def passes(options: argparse.Namespace) -> tuple[Report, str]:
    model = loaded(options.model)
    ways = LIGHT if model.spec.null_id is None else PASSES
    cases, bench, rows = sampled(options, LINES), Bench(model), {name: Row() for name in ways}
    report = {"bench": "canvas passes", **conditions(options.model), **about_cases(options, cases)}
    bench.in_turn(job(0, cases[0]), ways, 0)  # the first forwards of a process are slower
    for number, case in counted(cases):
        add_fills(bench, number, case, ways, rows)
    usual = rows[LOOKUP]
    report["rows"] = {name: row.report() | row.share_of(usual) for name, row in rows.items()}
    report["pairs"] = [against(name, LOOKUP, row, usual) for name, row in rows.items() if name != LOOKUP]
    return report, pictured_passes(report)


def pictured_passes(report: Report) -> str:
    head = ("", "exact %", "forwards", "ms p50", "p95", "ms / lookup only", "forwards / lookup only", "c/l/r")
    lines = [
        (
            name,
            100 * row["exact"],
            row["forwards"],
            row["ms"]["p50"],
            row["ms"]["p95"],
            shown(row["ms_share"]),
            shown(row["forwards_share"]),
            "/".join(map(str, row["tokens"].values())),
        )
        for name, row in report["rows"].items()
    ]
    return f"{table(head, lines)}\n\n{comparison(report['pairs'])}"


# Places


@dataclass
class Place(Row):
    """The results of one way at one place: `own` has the figures that only this place has."""

    parses: list[bool] = field(default_factory=list)
    own: dict[str, list[float]] = field(default_factory=dict)

    def take(self, trial: Trial, filled: Filled, own: dict[str, float]) -> None:
        self.add("\0".join(filled.texts), "\0".join(trial.wanted).rstrip(), filled)
        if (sound := parses(trial.case(), trial.joined(filled.texts))) is not None:
            self.parses.append(sound)
        for name, value in own.items():
            self.own.setdefault(name, []).append(value)

    def report(self) -> Report:
        share = round(fmean(self.parses), 4) if self.parses else None
        return super().report() | {"parses": share, "own": {name: mean(of) for name, of in self.own.items()}}


def own(place: str, trial: Trial, filled: Filled) -> dict[str, float]:
    """The figures of one place alone. A first draft is `kept` as far as the final text begins with it."""
    if place == "two holes, one name":
        return {"same name": trial.agrees(filled.texts)}
    if place == "renamed variable":
        return {"new name": trial.uses(filled.texts)}
    if place != "first draft":
        return {}
    draft, [wanted] = filled.states[0][0].text, trial.wanted
    kept = agreement(draft, filled.texts[0])
    right = agreement(draft[:kept], wanted)
    return {"drafted": len(draft), "kept": kept, "kept and right": right, "first ms": filled.first_ms}


def ways_of(place: str) -> dict[str, Way]:
    return YOUNG | COLD if place in ("repair", "after a mismatch") else YOUNG


def places(options: argparse.Namespace) -> tuple[Report, str]:
    bench = Bench(loaded(options.model))
    about = {"n": options.n, "seed": options.seed, "places": {}, "pairs": []}
    report: Report = {"bench": "canvas places", **conditions(options.model), **about}
    for place in options.places:
        found = trials(options.held_out, place, options.n, options.seed)
        if not found:
            print(f"{place}: the held-out files have no such place", file=sys.stderr, flush=True)
            continue
        rows, drafts = measured(bench, place, found)
        report["places"][place] = {name: row.report() for name, row in rows.items()}
        report["pairs"] += [against(name, LEFT, row, rows[LEFT], place) for name, row in rows.items() if name != LEFT]
        report["pairs"].append(against(USUAL, LOOKUP, rows[USUAL], rows[LOOKUP], place))
        if drafts:
            report["places"][place]["the draft itself"] = drafts
        save(report, options.out)
        print(place, file=sys.stderr, flush=True)
    return report, pictured_places(report)


def measured(bench: Bench, place: str, found: Sequence[Trial]) -> tuple[dict[str, Place], Report]:
    """The rows of the ways, and how good the drafts are that the trials bring."""
    ways, drafts = ways_of(place), list[Trial]()
    rows = {name: Place() for name in ways}
    for number, one in enumerate(found):
        trial: Trial | None = one
        if place == "after a mismatch":
            trial = mismatched(one, bench.fill(one.job(f"{number}"), YOUNG[USUAL]).texts[0])
        if trial is None:
            continue
        drafts += [trial] if trial.draft else []
        for name, filled in bench.in_turn(trial.job(f"{number}+"), ways, number).items():
            rows[name].take(trial, filled, own(place, trial, filled))
    if not drafts:
        return rows, {}
    alike = [similarity(*pair) for one in drafts for pair in zip(one.draft or (), one.wanted, strict=True)]
    return rows, {"n": len(drafts), "exact": sum(x == 1 for x in alike) / len(alike), "similarity": fmean(alike)}


def pictured_places(report: Report) -> str:
    head = ("", "n", "exact %", "similarity %", "parses %", "ms p50", "p95", "forwards", "of the place")
    lines = [_line(f"{place}: {name}", row) for place, rows in report["places"].items() for name, row in rows.items()]
    return f"{table(head, lines)}\n\n{comparison(report['pairs'])}"


def _line(name: str, row: Report) -> tuple[object, ...]:
    quality = name, row["n"], 100 * row["exact"], 100 * row["similarity"]
    if "ms" not in row:  # of drafts
        return *quality, *[None] * 5
    figures = ", ".join(f"{kind} {shown(value)}" for kind, value in row["own"].items())
    share = None if row["parses"] is None else 100 * row["parses"]
    return *quality, share, row["ms"]["p50"], row["ms"]["p95"], row["forwards"], figures


# Steps


def steps(options: argparse.Namespace) -> tuple[Report, str]:
    """Fills of the canvas alone, at even distances from the best of the sample to the worst."""
    cases, bench, found = sampled(options, MIX), Bench(loaded(options.model)), list[Report]()
    for number, case in counted(cases):
        filled, wanted = bench.fill(plain(number, case), YOUNG[CANVAS]), case.wanted.rstrip()
        before, after = case.asked.context.prefix, case.asked.context.suffix
        place = f"{before.rpartition(chr(10))[2]}▮{after.partition(chr(10))[0]}"
        about = {"group": case.group, "place": place, "wanted": wanted}
        states = [marked(fills[0]) for fills in filled.states]
        found.append({**about, "similarity": round(similarity(filled.texts[0], wanted), 4), "steps": states})
    found.sort(key=lambda one: one["similarity"], reverse=True)
    distance = (len(found) - 1) / max(1, options.fills - 1)
    chosen = [found[round(number * distance)] for number in range(min(options.fills, len(found)))]
    report = {"bench": "canvas steps", **conditions(options.model), **about_cases(options, cases), "fills": chosen}
    return report, "\n".join(map(markdown, chosen))


def marked(fill: wire.Fill) -> str:
    """The text of a canvas, with brackets around what is not locked yet."""
    text, at = "", 0
    for start, end in (*fill.locked, (len(fill.text), len(fill.text))):
        open_text = fill.text[at:start]
        text += (f"⟨{open_text}⟩" if open_text else "") + fill.text[start:end]
        at = end
    return text


def markdown(one: Report) -> str:
    states = [f"{number:3}  {text}" for number, text in enumerate(one["steps"], 1)]
    title = f"### {one['group']}, edit similarity {100 * one['similarity']:.0f} %\n\n~~~~"
    return "\n".join([title, one["place"], *states, f"  =  {one['wanted']}", "~~~~\n"])


# Command line


def about_cases(options: argparse.Namespace, cases: Sequence[parts.Case]) -> Report:
    groups = Counter(case.group for case in cases)
    return {"n": len(cases), "seed": options.seed, "groups": dict(groups)}


COMMANDS: dict[str, Callable[[argparse.Namespace], tuple[Report, str]]] = {
    "curve": curve,
    "passes": passes,
    "places": places,
    "steps": steps,
}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = found.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        add = commands.add_parser(name).add_argument
        several = (
            {"nargs": "+", "default": [model_store.DEFAULT]} if name == "curve" else {"default": model_store.DEFAULT}
        )
        add("--model", metavar="NAME|PATH", **several)  # type: ignore[arg-type]
        add("--held-out", type=Path, required=True, metavar="FILE", help="what training/heldout.py made")
        if name != "places":
            add("--data", type=Path, metavar="FOLDER", help="HumanEval-Infilling's files")
        add("--n", type=int, default=40 if name == "places" else 160, help="gaps, of each place or in all")
        if name == "places":
            add("--places", type=lambda text: text.split(","), default=list(PLACES), help=",".join(PLACES))
        if name == "steps":
            add("--fills", type=int, default=10, help="shown, of the n")
        add("--seed", type=int, default=7)
        add("--json", action="store_true", help="one JSON line on stdout instead of the tables")
        add("--out", type=Path, default=HERE / "results" / f"canvas-{name}.json")
    return found


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    report, picture = COMMANDS[options.command](options)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture)


if __name__ == "__main__":
    main()
