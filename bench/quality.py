"""How good the fills are, next to trivial and left-to-right baselines and to peers, in one run.

    python bench/quality.py --data FOLDER [--santa FILE] [--held-out FILE] [--base FOLDER] [--peers FOLDER]
                            [--model NAME|PATH] [--groups GROUP,GROUP] [--rows ROW,ROW] [--n 200] [--seed 7] [--docs]

A row of ours may name its model, as in `--rows ghost:coder,fill:coder`; otherwise it is `--model`. Every two rows
are compared on the cases that both have (`pairs`).

Cases are those of `infilling/cases.py`, rows those of `infilling/rows.py`; without `--groups` and `--rows` all whose
data and means are named. `canvas`, `left-to-right`, `fill` and `ghost` go through the real command `caesura eval`;
context is cold in every case, so ms is more than a keystroke costs. What the results file has of the same cases and is
not asked for stays in it, each row with its own conditions; so does what it has of this commit, so that a run that was
cut short goes on with the next row. `--docs` writes the table of docs/models.md.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from caesura import model_store

from infilling.cases import GROUPS, HUMAN_EVAL, SANTA, Case, Sources, read  # isort: skip  (next to this script)
from infilling.report import comparison, drawn, markdown, pairs, picture, summary  # isort: skip
from infilling.rows import OURS, ROWS, Completion, Means, complete, kind, label  # isort: skip
from infilling.sandbox import passes  # isort: skip
from infilling.scores import Score, score, score_drawn  # isort: skip
from latency import HERE, Report, conditions, own_engine, save  # isort: skip

DOCS = HERE.parent / "docs"
TABLE = re.compile(r"(<!-- table: quality -->\n).*?(?=<!-- end -->)", re.DOTALL)


def measure(options: argparse.Namespace, sources: Sources, means: Means, folder: Path) -> Report:
    """Group by group, saved after each row: a long run that is cut short has lost little."""
    groups: Report = json.loads(options.out.read_text("utf-8"))["groups"] if options.out.exists() else {}
    with own_engine():
        for name in options.groups:
            cases = read(sources, name, options.n, options.seed)
            group = groups[name] = _group(groups.get(name), sources, name, cases, options)
            (folder / name).mkdir(parents=True, exist_ok=True)
            for row in options.rows:
                about, named = conditions(means.model_of(row)) | {"deadline_ms": means.deadline_ms}, label(row)
                if _known(group["rows"].get(named), about):
                    continue
                completions = complete(row, cases, means, folder / name)
                found, scores = judged(row, cases, completions)
                group["rows"][named] = found | {"conditions": about}
                _keep(folder / name / f"{named}.scored.jsonl", cases, completions, scores)
                save(_report(groups), options.out)
                print(f"{name}, {named}: {group['rows'][named]['exact']:.1%} exact", file=sys.stderr)
    return _report(groups)


def _report(groups: Report) -> Report:
    groups = {name: groups[name] for name in GROUPS if name in groups}
    return {"bench": "quality", "context": "cold", "groups": groups, "pairs": pairs(groups)}


def _group(
    known: Report | None, sources: Sources, name: str, cases: Sequence[Case], options: argparse.Namespace
) -> Report:
    """What is known of a group, where it is of the same cases."""
    path = sources.of(name)
    assert path is not None, "a group is only asked for where its data is"
    about = {"data": path.name, "n": len(cases), "seed": options.seed}
    if known and about.items() <= known.items():
        return known
    runnable = [case for case in cases if case.test]
    passing = sum(passes(case.program(case.middle)) for case in runnable) if runnable else None
    return {**about, "reference_passes": passing, "rows": {}}


def _known(row: Report | None, about: Report) -> bool:
    """True if a row is of the same code, model and deadline. Code with uncommitted changes is not known again."""
    if row is None or row["errors"] or about["commit"].endswith("+"):
        return False
    return all(row["conditions"].get(key) == about[key] for key in ("commit", "model", "deadline_ms"))


def judged(row: str, cases: Sequence[Case], completions: Sequence[Completion]) -> tuple[Report, list[Score]]:
    """The figures of a row, and its scores. A row of ghost text is scored by what is drawn; its best candidates are not
    run."""
    pairs = list(zip(cases, completions, strict=True))
    if kind(row) != "ghost":
        scores = [score(case, completion.text) for case, completion in pairs]
        return summary(completions, scores), scores
    scores = [score_drawn(case, completion.text, completion.best) for case, completion in pairs]
    best = [score(replace(case, test=""), completion.best or "") for case, completion in pairs]
    return summary(completions, scores) | {"ghost": drawn(completions, scores, best)}, scores


def _keep(path: Path, cases: Sequence[Case], completions: Sequence[Completion], scores: Sequence[Score]) -> None:
    """One line a case, to be read by a person."""
    with path.open("w", encoding="utf-8") as file:
        for case, completion, verdict in zip(cases, completions, scores, strict=True):
            told = {"id": case.id, "wanted": case.middle, "got": completion.text, "best": completion.best}
            told |= vars(verdict)
            file.write(json.dumps(told, ensure_ascii=False) + "\n")


def document(report: Report, docs: Path) -> None:
    """The table and the picture between their marks; plots.py draws the picture."""
    page = docs / "models.md"
    made = f"{markdown(report)}\n![Exact matches by kind of gap, ours and llama.cpp](pictures/quality.svg)\n"
    text, found = TABLE.subn(lambda marks: marks[1] + made, page.read_text("utf-8"))
    assert found == 1, "docs/models.md has a place for the table"
    page.write_text(text, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description="Quality of fills.")
    add = found.add_argument
    add("--data", type=Path, metavar="FOLDER", help="HumanEval-Infilling's files")
    add("--santa", type=Path, metavar="FILE", help="SantaCoder-FIM's train.parquet; needs pyarrow, extra `bench`")
    add("--held-out", type=Path, metavar="FILE", help="what training/heldout.py made")
    add("--base", type=Path, metavar="FOLDER", help="SmolLM2 with its whole vocabulary, for the row smollm2")
    add("--peers", type=Path, metavar="FOLDER", help="weights and node_modules, for the rows of llama.cpp")
    add("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    add("--n", type=int, default=200, help="cases of a group")
    add("--seed", type=int, default=7)
    add("--groups", type=_names, metavar="GROUP,GROUP", help=",".join(GROUPS))
    add("--rows", type=_names, metavar="ROW,ROW", help=f"{','.join(ROWS)}; ours also as ROW:MODEL")
    add("--deadline-ms", type=float, default=10_000.0)
    add("--keep", type=Path, metavar="FOLDER", help="keep the completions and their scores there")
    add("--docs", action="store_true", help="write the table into docs/models.md")
    add("--json", action="store_true", help="one JSON line on stdout instead of the tables")
    add("--out", type=Path, default=HERE / "results" / "quality.json")
    return found


def _names(text: str) -> list[str]:
    return text.split(",")


def checked(asked: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[Sources, Means]:
    """Groups and rows filled in, what they need, or the end of the program."""
    options.model = model_store.resolve(options.model)
    sources = Sources(options.data, options.santa, options.held_out)
    means = Means(options.model, options.deadline_ms, options.base, options.peers)
    options.groups = options.groups or [group for group in GROUPS if sources.of(group)]
    options.rows = options.rows or [row for row in ROWS if not means.missing(row)]
    named_rows = [row if kind(row) not in OURS else kind(row) for row in options.rows]
    for word, named, known in (("group", options.groups, GROUPS), ("row", named_rows, ROWS)):
        if unknown := set(named) - set(known):
            asked.error(f"no {word} {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.n < 1:
        asked.error("--n is at least 1")
    if not options.groups:
        asked.error("no cases; give --data, --santa or --held-out")
    for group in options.groups:
        if sources.of(group) is None:
            option = "--data" if group in HUMAN_EVAL else "--santa" if group in SANTA else "--held-out"
            asked.error(f"the group {group} needs {option}")
    if set(SANTA) & set(options.groups) and find_spec("pyarrow") is None:
        asked.error("the groups of SantaCoder-FIM need pyarrow; install the extra `bench`")
    for row in options.rows:
        if option := means.missing(row):
            asked.error(f"the row {row} needs {option}")
    return sources, means


def main() -> None:
    asked = parser()
    options = asked.parse_args()
    sources, means = checked(asked, options)
    with tempfile.TemporaryDirectory(prefix="caesura-") as scratch:
        report = measure(options, sources, means, options.keep or Path(scratch))
    if options.docs:
        document(report, DOCS)
    print(json.dumps(report) if options.json else told(report))


def told(report: Report) -> str:
    """The report as a person reads it."""
    found = [picture(*group) for group in report["groups"].items()]
    return "\n\n".join([*found, comparison(report["pairs"])] if report["pairs"] else found)


if __name__ == "__main__":
    main()
