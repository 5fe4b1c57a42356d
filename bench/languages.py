"""How often the model's fills are right in each language with a grammar, in this tree and in an older one.

    python bench/languages.py cut REPOSITORY... --out CASES.jsonl
    python bench/languages.py ask CASES.jsonl --before PYTHON [--keep FOLDER] [--out bench/results/languages.json]

`cut` takes gaps from clones with their history, where git dates all lines of a gap after 2024: a base that was trained
until then cannot have learnt them. `ask` has both trees fill each gap, a group in turns, as `caesura eval` does; PYTHON
is the older tree's. Where both ask the same, the engine is asked once (infilling/arm.py). This tree's grammars
judge both. A run that was cut short goes on from `--keep`.

Lines and spans are asked for as such; the kind of a body is found from the text, as in an editor. A body is whole if it
is not empty, leaves nothing open, and the file has no more syntax errors than with the author's.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import tree_sitter

from caesura.server.infill.insert import is_half
from caesura.server.infill.site import bare_site
from caesura.server.languages import Language, language

from infilling.cases import Case  # isort: skip  (next to this script)
from infilling.scores import Score, paired, parses, score  # isort: skip
from latency import HERE, Report, conditions, save, spread, table  # isort: skip
from true_text import files  # isort: skip
from tests.support.true_text import Place, parsed, places  # isort: skip

SINCE = "2025-01-01"
SEED = 7
MAIN = ("python", "java", "go", "rust", "c", "cpp", "javascript", "typescript")
OTHERS = (
    "csharp",
    "php",
    "shellscript",
    "kotlin",
    "ruby",
    "html",
    "css",
    "sql",
    "swift",
    "yaml",
    "lua",
    "toml",
    "scss",
)
KINDS = {"line": (40, 20), "body": (6, 6), "span": (10, 0)}  # gaps of a main language and of another
OF_A_FILE, FILES = 4, 40  # gaps of a kind; files of a language
WIDTH = {"line": range(3, 101), "span": range(4, 41), "body": range(3, 601)}  # code points of what is wanted
EXPRESSIONS = (
    "call",
    "invocation",
    "attribute",
    "subscript",
    "access",
    "index",
    "member",
    "binary",
    "field_expression",
)
DEADLINE_MS = 60_000.0  # far more than a fill takes, so that a busy machine cuts none
ARMS = ("before", "after")
MODEL = "coder"


def cut(repositories: list[Path]) -> Iterator[dict[str, str]]:
    """Gaps, each a line of JSON. Files of a language are taken from the repositories in turns."""
    found: dict[str, list[list[tuple[Path, Path, str]]]] = defaultdict(list)
    for repository in repositories:
        changed, of_language = _changed(repository), defaultdict(list)
        for path, row, text in files(repository):
            if str(path.relative_to(repository)) in changed:
                of_language[row.id].append((repository, path, text))
        for name, listed in of_language.items():
            found[name].append(random.Random(SEED).sample(listed, len(listed)))
    for name in sorted(found, key=lambda name: (name not in MAIN, name)):
        pool: dict[str, list[dict[str, str]]] = defaultdict(list)
        taken = 0
        for repository, path, text in _in_turns(found[name]):
            gaps = _gaps(repository, path, text, language(name))
            taken += bool(gaps)
            for gap_ in gaps:
                pool[gap_["group"]].append(gap_)
            if taken == FILES:
                break
        for kind, most in KINDS.items():
            group, n = f"{name}-{kind}", most[name not in MAIN]
            yield from random.Random(SEED).sample(pool[group], min(n, len(pool[group])))


def _in_turns(listed: list[list[tuple[Path, Path, str]]]) -> Iterator[tuple[Path, Path, str]]:
    for number in range(max(map(len, listed))):
        yield from (one[number] for one in listed if number < len(one))


def _gaps(repository: Path, path: Path, text: str, row: Language) -> list[dict[str, str]]:
    found: dict[str, list[Place]] = defaultdict(list)
    cuts = list(places(text, row))
    if not cuts:
        return []
    new = _new_lines(repository, path)
    for place in [*cuts, *_spans(text, row, [place for place in cuts if place.kind == "line"])]:
        first = place.before.count("\n")
        wanted = place.text.rstrip()
        if len(wanted) in WIDTH.get(place.kind, ()) and new >= set(range(first, first + wanted.count("\n") + 1)):
            found[place.kind].append(place)
    name, commit = repository.name.replace("+", "/"), _git(repository, "rev-parse", "HEAD").strip()
    about = {"repository": name, "commit": commit, "path": str(path.relative_to(repository))}
    return [
        {
            **about,
            "id": f"{row.id}-{kind}/{name}/{about['path']}:{len(place.before)}",
            "group": f"{row.id}-{kind}",
            "lang": row.id,
            "kind": "" if kind == "body" else kind,
            "prefix": place.before,
            "suffix": place.after,
            "middle": place.text,
        }
        for kind, chosen in found.items()
        for place in random.Random(SEED).sample(chosen, min(OF_A_FILE, len(chosen)))
    ]


def _spans(text: str, row: Language, whole: list[Place]) -> Iterator[Place]:
    """Expressions with something of their line on both sides."""
    lines = {place.before.count("\n") for place in whole}
    source, waiting = text.encode(), [parsed(row, text).root_node]
    while waiting:
        node: tree_sitter.Node = waiting.pop()
        waiting += node.named_children
        line, end = node.start_point[0], node.end_point[0]
        if line == end and line in lines and any(word in node.type for word in EXPRESSIONS):
            before, after = source[: node.start_byte].decode(), source[node.end_byte :].decode()
            if before.rpartition("\n")[2].strip() and after.partition("\n")[0].strip(" :;,{"):
                yield Place("span", before, source[node.start_byte : node.end_byte].decode(), after)


def _changed(repository: Path) -> set[str]:
    return set(_git(repository, "log", f"--since={SINCE}", "--name-only", "--format=").split("\n"))


def _new_lines(repository: Path, path: Path) -> set[int]:
    """The lines of a file that are newer than SINCE, from 0: git marks the others with a caret."""
    told = _git(repository, "blame", "-s", f"--since={SINCE}", "HEAD", "--", str(path.relative_to(repository)))
    return {number for number, line in enumerate(told.split("\n")[:-1]) if not line.startswith("^")}


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", repository, *arguments], check=True, capture_output=True).stdout.decode(
        errors="replace"
    )


def ask(cases: list[Case], before: str, folder: Path, about: Report, out: Path) -> Report:
    """Both arms, group by group, saved after each."""
    report: Report = {
        "bench": "languages",
        "deadline_ms": DEADLINE_MS,
        "since": SINCE,
        "seed": SEED,
        **about,
        "groups": {},
    }
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[_group(case)].append(case)
    order = sorted(groups, key=_turn)
    with ExitStack() as stack:
        runtimes = [stack.enter_context(tempfile.TemporaryDirectory(prefix="caesura-")) for _ in ARMS]
        for python, runtime in zip((before, sys.executable), runtimes, strict=True):
            stack.callback(_run, python, runtime, "-m", "caesura", "stop")
        for group in order:
            rows = {}
            for arm, python, runtime in zip(ARMS, (before, sys.executable), runtimes, strict=True):
                rows[arm] = _row(groups[group], _answers(groups[group], python, runtime, folder / f"{group}.{arm}"))
            exact = [[hit == "1" for hit in rows[arm]["exact"]] for arm in reversed(ARMS)]
            report["groups"][group] = {"n": len(groups[group]), **rows, "paired": paired(*exact)._asdict()}
            save(report, out)
            print(told({group: report["groups"][group]}), file=sys.stderr, flush=True)
    return report


def _turn(group: str) -> tuple[bool, bool, int]:
    """Main languages first, their lines before their bodies, the others by use; spans last."""
    name, kind = group.split("-")
    if name in MAIN:
        return kind == "span", False, kind == "body"
    return False, True, OTHERS.index(name) if name in OTHERS else len(OTHERS)


def _answers(cases: list[Case], python: str, runtime: str, stem: Path) -> list[dict[str, object]]:
    asked, answered = stem.with_name(f"{stem.name}.cases.jsonl"), stem.with_name(f"{stem.name}.jsonl")
    questions = [{"id": one.id, "prefix": one.prefix, "suffix": one.suffix, "lang": one.lang} for one in cases]
    for question, case in zip(questions, cases, strict=True):
        question["kind"] = "" if case.kind == "block" else case.kind
    asked.write_text("".join(f"{json.dumps(question)}\n" for question in questions), "utf-8")
    said = stem.with_name("said.jsonl")
    _run(python, runtime, str(HERE / "infilling" / "arm.py"), str(asked), str(answered), str(said), str(DEADLINE_MS))
    found = {answer["id"]: answer for answer in map(json.loads, answered.read_text("utf-8").splitlines())}
    return [found[case.id] for case in cases]


def _run(python: str, runtime: str, *arguments: str) -> None:
    subprocess.run(
        [python, "-P", *arguments],
        check=True,
        env={**os.environ, "CAESURA_RUNTIME": runtime},
        stdout=subprocess.DEVNULL,
    )


def _row(cases: list[Case], answers: list[dict[str, object]]) -> Report:
    """A character a gap: 1 is yes, 0 no, and - there was no fill."""
    fills = [str(answer["completion"]) for answer in answers]
    scores = [score(case, fill) for case, fill in zip(cases, fills, strict=True)]
    return {
        "exact": "".join("01"[one.exact] for one in scores),
        "parses": "".join(
            "01"[bool(one.parses)] if fill.strip() else "-" for one, fill in zip(scores, fills, strict=True)
        ),
        "breaks": "".join("01"[_breaks(*one)] for one in zip(cases, fills, scores, strict=True)),
        "whole": "".join("01"[_whole(*one)] for one in zip(cases, fills, scores, strict=True)),
        "late": sum(answer.get("stop") == "deadline" for answer in answers),
        "ms": spread([float(str(answer["ms"])) for answer in answers]),
    }


def _whole(case: Case, fill: str, found: Score) -> bool:
    return bool(fill.strip()) and bool(found.parses) and not _is_open(case, fill)


def _breaks(case: Case, fill: str, found: Score) -> bool:
    """True if the file is whole without the fill and broken with it, although the fill leaves nothing open."""
    return bool(fill.strip()) and not found.parses and bool(parses(case, "")) and not _is_open(case, fill)


def _is_open(case: Case, fill: str) -> bool:
    at = len(case.prefix)
    return is_half(fill, bare_site(case.prefix + case.suffix, at, at, case.lang).context)


def told(groups: Report) -> str:
    """Counts before and now, and the difference of the exact ones in percent, now less before."""
    lines = []
    for name, group in groups.items():
        cells = []
        for what in ("exact", "parses", "breaks", "whole"):
            counts = [f"{group[arm][what].count('1')}/{len(group[arm][what].replace('-', ''))}" for arm in ARMS]
            cells.append(" -> ".join(counts))
        bounds = " to ".join(f"{100 * bound:+.0f}" for bound in group["paired"]["interval"])
        lines.append((name, *cells, f"{100 * group['paired']['difference']:+.1f} ({bounds})"))
    return table(("", "exact", "parses", "breaks", "whole", "exact %, 95 %"), lines)


def _group(case: Case) -> str:
    return f"{case.lang}-{'body' if case.kind == 'block' else case.kind}"


def _read(found: list[dict[str, str]]) -> list[Case]:
    return [
        Case(one["id"], one["prefix"], one["suffix"], one["middle"], one["lang"], one["kind"] or "block")
        for one in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fills in each language, now and before.")
    commands = parser.add_subparsers(dest="command", required=True)
    cutting, asking = commands.add_parser("cut"), commands.add_parser("ask")
    cutting.add_argument("repositories", nargs="+", type=Path)
    cutting.add_argument("--out", type=Path, required=True)
    asking.add_argument("cases", type=Path)
    asking.add_argument("--before", required=True, metavar="PYTHON")
    asking.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the fills there, and go on from them")
    asking.add_argument("--out", type=Path, default=HERE / "results" / "languages.json")
    options = parser.parse_args()
    if options.command == "cut":
        found = cut([path.resolve() for path in options.repositories])
        options.out.write_text("".join(f"{json.dumps(one)}\n" for one in found), "utf-8")
        return
    with tempfile.TemporaryDirectory(prefix="caesura-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = list(map(json.loads, options.cases.read_text("utf-8").splitlines()))
        about = {"conditions": conditions(MODEL), "repositories": {one["repository"]: one["commit"] for one in found}}
        print(told(ask(_read(found), options.before, folder, about, options.out)["groups"]))


if __name__ == "__main__":
    main()
