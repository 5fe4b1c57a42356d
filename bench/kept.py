"""What each filter between the engine and the screen is worth: characters kept and files that still parse.

    python bench/kept.py [--cases 120] [--seed 7] [--json] [--out bench/results/kept.json]

A place in a standard library file (not in our corpus; the base may have seen it); what stood there from the place on
is cut out up to the line's end, and for every fifth place the lines of its body too. The server's own Panes answer in
this process, from the real engine, with one setting changed at a time. Kept are the first code points of a proposal
that are those cut out. The last WARM_KEYS characters before the place are typed one by one, as a user does.
"""

import argparse
import ast
import asyncio
import json
import random
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caesura.client.shared import Engine
from caesura.model_store import DEFAULT
from caesura.server.context.project import Project
from caesura.server.ghost.panes import Panes
from caesura.server.ghost.typed import Proposal
from caesura.server.options import Options, Settings
from caesura.server.records.stats import Stats
from caesura.server.records.trace import Trace
from caesura.server.text.workspace import Workspace

from latency import HERE, conditions, own_engine, save, table  # isort: skip  (next to this script)

FILES = ("argparse", "configparser", "csv", "shlex", "tarfile", "textwrap", "json/decoder", "http/cookies")
WINDOW = 300  # lines of a file: more would only be cut again
WARM_KEYS = 6
BLOCKS = 5  # one place in so many is a body
START_S = 300.0
ROWS: dict[str, dict[str, Any]] = {
    "all": {},
    "without confidence cut": {"min_confidence": 0.0},
    "without syntax gate": {"syntax_gate": False},
    "without both": {"min_confidence": 0.0, "syntax_gate": False},
    "without warm canvas": {"warm": False},
    "quiet": {"mode": "quiet"},
    "eager": {"mode": "eager"},
}


@dataclass(frozen=True)
class Case:
    """`truth` was cut out of `before + truth + after`."""

    file: str
    before: str
    truth: str
    after: str


@dataclass(frozen=True)
class Outcome:
    shown: int
    kept: int
    parses: bool


def cases(number: int, seed: int) -> list[Case]:
    draw = random.Random(seed)
    texts = {name: (Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py").read_text() for name in FILES}
    found: list[Case] = []
    while len(found) < number:
        name = draw.choice(FILES)
        lines = texts[name].splitlines(keepends=True)
        first = draw.randrange(max(1, len(lines) - WINDOW))
        if case := _case(
            name, lines, first + draw.randrange(min(WINDOW, len(lines))), draw, body=len(found) % BLOCKS == 0
        ):
            found.append(case)
    return found


def _case(name: str, lines: Sequence[str], number: int, draw: random.Random, *, body: bool) -> Case | None:
    """A place in line `number`, or the body that it opens; None where there is nothing worth filling."""
    line = lines[number % len(lines)].rstrip("\n")
    code = line.strip()
    if len(code) < 12 or code.startswith(("#", '"""')):
        return None
    depth = len(line) - len(code)
    if body:
        end = number + 1
        while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > depth):
            end += 1
        inside = "".join(lines[number + 1 : end]).rstrip("\n")
        if not code.endswith(":") or not inside[:1].isspace() or inside[0] == "\n" or inside.count("\n") > 5:
            return None
        indent = inside[: len(inside) - len(inside.lstrip())]
        before = "".join(lines[: number + 1]) + indent
        return Case(name, before, inside.removeprefix(indent), "\n" + "".join(lines[end:]))
    at = draw.randrange(depth, len(line) - 6)
    before = "".join(lines[:number]) + line[:at]
    return Case(name, before, line[at:], "\n" + "".join(lines[number + 1 :]))


class User:
    """One document at a time, typed in as an editor would, without the editor."""

    def __init__(self, engine: Engine, options: Options) -> None:
        root = sysconfig.get_paths()["stdlib"]
        self._root, self._options = Path(root), options
        self._workspace = Workspace("utf-32", [root])
        settings = Settings(options)
        project = Project(self._workspace, settings)
        counts, trace = Stats(), Trace()
        counts.enable(False)
        trace.enable(False)
        self._typing = Panes(engine, settings, project, counts, trace)

    async def answer(self, case: Case) -> Proposal:
        uri = (self._root / f"{case.file}.py").as_uri()
        typed = case.before[-WARM_KEYS:]
        self._workspace.open(uri, "python", 0, case.before.removesuffix(typed) + case.after)
        opened = self._workspace.get(uri)
        assert opened
        opened.tree.parse(opened.document.text)
        at = len(case.before) - len(typed)
        for key in typed:
            where = opened.document.position(at)
            edits = self._workspace.edit(uri, opened.document.version + 1, [(where, where, key)])
            assert edits
            at += 1
            self._typing.edited(opened, edits)
            await asyncio.sleep(0.15)  # 80 words a minute
        opened.tree.parse(opened.document.text)
        answer = await self._typing.propose(opened, at, invoked=False)()
        self._typing.close_all()
        return answer if isinstance(answer, Proposal) else Proposal("")


def judged(case: Case, proposal: Proposal) -> Outcome:
    kept = next((i for i, (a, b) in enumerate(zip(proposal.insert, case.truth, strict=False)) if a != b), None)
    kept = min(len(proposal.insert), len(case.truth)) if kept is None else kept
    try:
        ast.parse(case.before + proposal.insert + case.after[proposal.eat :])
    except (SyntaxError, ValueError):
        return Outcome(len(proposal.insert), kept, parses=False)
    return Outcome(len(proposal.insert), kept, parses=True)


async def measure(found: Sequence[Case]) -> dict[str, list[Outcome]]:
    engines = {row: Engine(client=f"bench {row}") for row in ROWS}
    for engine in engines.values():
        await engine.start()
        await engine.ready(START_S)
    outcomes: dict[str, list[Outcome]] = {row: [] for row in ROWS}
    shared = {"deadline_ms": 10_000, "speculate": False}
    users = {row: User(engines[row], Options(**shared | settings)) for row, settings in ROWS.items()}
    for case in found:
        answers = await asyncio.gather(*(user.answer(case) for user in users.values()))
        for row, answer in zip(users, answers, strict=True):
            outcomes[row].append(judged(case, answer))
    for engine in engines.values():
        await engine.close()
    return outcomes


def summary(outcomes: Sequence[Outcome], truth: int) -> dict[str, float | int]:
    shown = [one for one in outcomes if one.shown]
    return {
        "n": len(outcomes),
        "shown_percent": round(100 * len(shown) / len(outcomes), 1),
        "shown_characters": sum(one.shown for one in outcomes),
        "kept_characters": sum(one.kept for one in outcomes),
        "kept_of_shown_percent": round(100 * sum(o.kept for o in shown) / max(1, sum(o.shown for o in shown)), 1),
        "kept_of_truth_percent": round(100 * sum(o.kept for o in shown) / truth, 1),
        "parses_of_shown_percent": round(100 * sum(o.parses for o in shown) / max(1, len(shown)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kept.json")
    arguments = parser.parse_args()
    found = cases(arguments.cases, arguments.seed)
    with own_engine():
        about = conditions(DEFAULT)
        outcomes = asyncio.run(measure(found))
    truth = sum(len(case.truth) for case in found)
    rows = {row: summary(of_row, truth) for row, of_row in outcomes.items()}
    report = {"bench": "kept", **about, "seed": arguments.seed, "rows": rows}
    save(report, arguments.out)
    if arguments.json:
        print(json.dumps(report))
    else:
        head = ["", "shown %", "chars shown", "kept", "kept/shown %", "kept/truth %", "parses %"]
        print(table(head, [[row, *list(values.values())[1:]] for row, values in rows.items()]))


if __name__ == "__main__":
    main()
