"""How good the rules of the next edit are, without an engine, on scenarios and on cases from releases.

    python bench/next_edit.py --data FOLDER [--model NAME|PATH] [--cases] [--json] [--out FILE]

Ways: `nothing`, `replay` (the newest edit again at equal places), the rules with all places at once, and with the
first place alone; with `--model` also those that this model judges likely, best first, as the language server shows
them. Each row has shares with their 95 % intervals, of wanted cases or, for `quiet`, of the others; `sound` is of
those shown. `score` is deltaChrF x the harmonic mean of shown and quiet. `--cases` prints what is wrong or missing.
"""

import argparse
import difflib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from infilling.scores import interval
from inside import answers, scheduler
from latency import commit, machine, save, spread, table
from next_edit_cases import NextEditCase, Outcome, load, outcome

from caesura import model_store, wire
from caesura.engine import models
from caesura.engine.model import Model
from caesura.server.infill.job import Ask, question
from caesura.server.languages import language
from caesura.server.next_edit.asking import LIKELY
from caesura.server.next_edit.proposals import EditProposal, proposals
from caesura.server.text import repair

Judge = Callable[[NextEditCase, Sequence[EditProposal]], list[float]]  # how likely each proposal is
LATE_MS = 60_000.0

Way = Callable[[NextEditCase], str]  # the text with the answer in it
Report = dict[str, Any]


def nothing(case: NextEditCase) -> str:
    return case.text


def replay(case: NextEditCase) -> str:
    """The newest edit again wherever its old lines stand."""
    if not case.history or not case.history[-1].old:
        return case.text
    lines, newest = case.text.split("\n"), case.history[-1]
    said, at = list[str](), 0
    while at < len(lines):
        alike = tuple(lines[at : at + len(newest.old)]) == newest.old and not newest.at <= at < newest.end
        said += newest.new if alike else [lines[at]]
        at += len(newest.old) if alike else 1
    return "\n".join(said)


def rules(judge: Judge | None = None, *, alone: bool, least: float = 0.0) -> Way:
    """The proposals of the rules; `alone`: only the best place, but all places of a renaming."""

    def answer(case: NextEditCase) -> str:
        row = language(case.language)
        found = proposals(case.text, repair.parsed(case.text, row.id), row, case.history)
        if judge and found and found[0].kind == "repeat":
            scored = sorted(zip(judge(case, found), found, strict=True), key=lambda pair: -pair[0])
            found = [one for score, one in scored if score >= least]
        if alone and found and found[0].kind != "rename":
            found = found[:1]
        return applied(case.text, found)

    return answer


def applied(text: str, found: Iterable[EditProposal]) -> str:
    for one in sorted(found, key=lambda one: -one.start):
        text = text[: one.start] + one.text + text[one.end :]
    return text


WAYS: dict[str, Way] = {
    "nothing": nothing,
    "replay": replay,
    "rules, all places": rules(alone=False),
    "rules, one place": rules(alone=True),
}


def judge(model: Model) -> Judge:
    """Asks the engine in this process as the language server does."""
    engine, known = scheduler(model), dict[str, list[float]]()

    def chances(case: NextEditCase, found: Sequence[EditProposal]) -> list[float]:
        if case.id in known:
            return known[case.id]
        edits, places = ([(one.old, one.new) for one in some] for some in (case.history, found))
        job = question(language(case.language), edits, places, Ask(deadline_ms=LATE_MS))
        done = answers(engine, [job])[job.job][-1]
        holes = done.holes if isinstance(done, wire.Done) else ()  # else all of them are too long
        return known.setdefault(case.id, [fill.confidence for fill in holes] or [0.0] * len(places))

    return chances


def judged(model: Model) -> dict[str, Way]:
    found = judge(model)
    return {
        f"{level}, {places}": rules(found, alone=places == "one place", least=LIKELY[level])
        for level in ("quiet", "eager")
        for places in ("all places", "one place")
    }


def measure(cases: Sequence[NextEditCase], ways: dict[str, Way]) -> Report:
    """For each set, and each kind of it, the row of each way; and milliseconds of an answer."""
    report: Report = {"sets": {}, "ms": {}}
    for name, way in ways.items():
        spent, found = list[float](), list[tuple[NextEditCase, Outcome]]()
        for case in cases:
            began = time.perf_counter()
            answer = way(case)
            spent.append(1e3 * (time.perf_counter() - began))
            found.append((case, outcome(case, answer)))
        report["ms"][name] = spread(spent)
        for group, members in _groups(found):
            report["sets"].setdefault(group, {})[name] = summary(members)
    return report


def _groups(found: Sequence[tuple[NextEditCase, Outcome]]) -> Iterator[tuple[str, list[tuple[NextEditCase, Outcome]]]]:
    for name in dict.fromkeys(case.set for case, _ in found):
        members = [pair for pair in found if pair[0].set == name]
        yield name, members
        for kind in dict.fromkeys(case.kind for case, _ in members):
            yield f"{name}, {kind}", [pair for pair in members if pair[0].kind == kind]


def summary(found: Sequence[tuple[NextEditCase, Outcome]]) -> Report:
    """Counts, shares with their intervals, and the score; None for a share of nothing."""
    wanted = [one for case, one in found if case.wanted is not None]
    quiet = [not one.shown for case, one in found if case.wanted is None]
    shown = [one for one in wanted if one.shown]
    delta = sum(one.delta for one in wanted) / len(wanted) if wanted else None
    row: Report = {"wanted": len(wanted), "unwanted": len(quiet), "delta_chrf": delta and round(100 * delta, 1)}
    row["exact"] = _share([one.exact for one in wanted])
    row["shown"] = _share([one.shown for one in wanted])
    row["sound"] = _share([one.sound for one in shown])
    row["quiet"] = _share(quiet)
    row["score"] = None
    if delta is not None and quiet:
        rates = len(shown) / len(wanted), sum(quiet) / len(quiet)
        row["score"] = round(delta * 2 * rates[0] * rates[1] / sum(rates), 3) if sum(rates) else 0.0
    return row


def _share(hits: Sequence[bool]) -> Report | None:
    if not hits:
        return None
    return {"share": round(sum(hits) / len(hits), 4), "interval": interval(sum(hits), len(hits))}


def picture(report: Report) -> str:
    """A table for each set and kind."""
    rows = []
    for group, ways in report["sets"].items():
        for way, row in ways.items():
            shares = [_percent(row[name]) for name in ("exact", "shown", "sound", "quiet")]
            score = None if row["score"] is None else f"{row['score']:.2f}"
            rows.append([f"{group}: {way}", f"{row['wanted']}+{row['unwanted']}", score, *shares])
    head = ["set, kind: way", "cases", "score", "exact %", "shown %", "sound %", "quiet %"]
    times = [[name, ms["p50"], ms["p95"]] for name, ms in report["ms"].items()]
    return table(head, rows) + "\n\n" + table(["ms of an answer", "p50", "p95"], times)


def _percent(share: Report | None) -> str | None:
    return (
        f"{100 * share['share']:.0f} ({'-'.join(f'{100 * end:.0f}' for end in share['interval'])})" if share else None
    )


def faults(cases: Sequence[NextEditCase], way: Way) -> Iterator[str]:
    """Each wrong or missing answer: the history, the answer and the wanted text, each as a diff."""
    for case in cases:
        answer = way(case)
        one = outcome(case, answer)
        if one.shown == one.exact and (one.exact or case.wanted is None):
            continue
        yield f"== {case.set}, {case.kind}: {case.id}{' (sound)' if one.sound else ''}"
        for past in case.history:
            yield from [f"  line {past.at + 1}", *(f"   -{line}" for line in past.old)]
            yield from (f"   +{line}" for line in past.new)
        for name, text in (("answer", answer), ("wanted", case.wanted)):
            lines = difflib.unified_diff(case.text.split("\n"), (text or case.text).split("\n"), n=0, lineterm="")
            yield from [f"  {name}", *(f"   {line}" for line in list(lines)[2:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the cases")
    parser.add_argument("--model", metavar="NAME|PATH", help="judges the proposals")
    parser.add_argument("--cases", action="store_true", help="print what is wrong or missing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cases = list(load(options.data))
    if options.cases:
        print("\n".join(faults(cases, WAYS["rules, one place"])))
        return
    report: Report = {"bench": "next_edit", "commit": commit(), "machine": machine(), "model": options.model}
    report |= measure(cases, WAYS | (judged(models.load(model_store.resolve(options.model))) if options.model else {}))
    if options.out:
        save(report, options.out)
    print(json.dumps(report, indent=2) if options.json else picture(report))


if __name__ == "__main__":
    main()
