"""The fault battery of the tests, played to other language servers beside ours: who lives on, and who keeps the rules.

    python bench/battery.py [--peers FOLDER] [--patience 4] [--json] [--out bench/results/battery.json]

Every case has a fresh server. A server survives a case if it reads what is sent, answers a valid request afterwards (or
has ended, where the case asks for that) and has grown by no more memory than the case allows. It keeps a rule if all
cases of that rule pass whole. FOLDER is a virtual environment into which `pip install python-lsp-server pygls ruff`
was run; without it only ours is measured, with an engine that answers at once. In memory, in a thread of this process,
ours has no memory of its own that could be measured.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from latency import conditions, save, table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from faults import play as player  # noqa: E402
from faults.cases import RULES, cases  # noqa: E402
from faults.play import Peer, Stdio, in_memory, play, stdio, tcp  # noqa: E402

HOVER = "textDocument/hover"
AT_ONCE = 3  # servers: most of the time is waiting

Report = dict[str, Any]


def peers(folder: Path | None) -> dict[str, Peer]:
    """By name."""
    found = {"caesura lsp": Peer(stdio), "caesura lsp --tcp": Peer(tcp), "caesura lsp in memory": Peer(in_memory)}
    if folder is not None:
        run = folder.resolve() / "bin"
        commands = {
            "pygls alone": [str(run / "python"), str(HERE / "peers" / "bare_pygls.py")],
            "pylsp": [str(run / "pylsp")],
            "ruff server": [str(run / "ruff"), "server"],
        }
        found |= {name: Peer(partial(Stdio, command), HOVER, ours=False) for name, command in commands.items()}
    return found


def measure(name: str, peer: Peer, tell: Callable[[str], None]) -> Report:
    """What became of every case."""
    died, broken = dict[str, list[str]](), dict[str, list[str]]()
    battery = cases(peer.method)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(lambda case: play(case, peer), battery))
    for case, verdict in zip(battery, verdicts, strict=True):
        if verdict.survival:
            died[case.name] = verdict.survival
        if verdict.survival or verdict.conduct:
            broken[case.name] = verdict.conduct
    tell(f"{name}: {len(battery) - len(died)} of {len(battery)} in {time.monotonic() - began:.0f} s")
    lost = {case.rule for case in battery if case.rule and case.name in broken}
    return {
        "cases": len(battery),
        "survived": len(battery) - len(died),
        "rules": len(RULES.keys() - lost),
        "not survived": died,
        "rules broken": sorted(lost),
        "whole": len(battery) - len(broken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--patience", type=float, default=4.0, help="s for an answer; twice for an end")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    player.ANSWER_S = options.patience
    found = {name: measure(name, peer, partial(print, file=sys.stderr)) for name, peer in peers(options.peers).items()}
    report = {"bench": "battery", **conditions("fake"), "servers": found}
    if options.out:
        save(report, options.out)
    print(json.dumps(report, indent=2) if options.json else rows(found))


def rows(found: dict[str, Report]) -> str:
    lines = [[name, f"{r['survived']} of {r['cases']}", f"{r['rules']} of {len(RULES)}"] for name, r in found.items()]
    return table(["server", "survived", "rules"], lines)


if __name__ == "__main__":
    main()
