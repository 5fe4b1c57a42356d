"""Make cases of next edits from the commits of git repositories: the form of next_edit_cases.py's releases.

    python bench/next_edit_make.py --out FILE.jsonl REPOSITORY...

A commit's changes of a file are edits: one is taken back and wanted, up to three others are the history. `repeat`: one
of these makes the same change of tokens; `related`: one adds or drops a common identifier; `near`: one lies within NEAR
lines; other edits are no case. `quiet`: the file as committed, after which nothing is wanted. At most EACH cases of a
repository and kind, one of a commit and kind.
"""

import argparse
import json
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from caesura.server.languages import UNKNOWN, language
from caesura.server.next_edit.history import PastEdit
from caesura.server.next_edit.transfer import EditPattern

EACH, COMMITS = 6, 1500
LINES, HUNK, HUNKS, NEAR = 800, 8, (2, 24), 12  # lines of a file and of an edit, edits of a file, lines apart
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_NAME = re.compile(r"[^\W\d]\w{2,}")
_LEFT_OUT = re.compile(
    r"(^|/)(vendor|node_modules|dist|build|testdata|fixtures|generated)/|\.min\.|\.d\.ts$|_pb2|lock", re.I
)
_NO_CODE = re.compile(r"\s*(#|//|/?\*|\"\"\"|$)")
_VERSION = re.compile(r"\bversion\b|\d+\.\d+\.\d+", re.IGNORECASE)


class Hunk(NamedTuple):
    """Lines `old` from row `start` on of the file before the commit, and `new` from row `at` on after it."""

    start: int
    at: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def git(repository: Path, *arguments: str, check: bool = True) -> str:
    """Without `check`, what there is before an error: the history of a partial clone ends in one."""
    found = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=check)
    return found.stdout.decode("utf-8", "replace")


def hunks(before: Sequence[str], after: Sequence[str], diff: str) -> Iterator[Hunk]:
    for found in _HUNK.finditer(diff):
        a, b, c, d = (int(number) if number else 1 for number in found.groups())
        start, at = a - (b > 0), c - (d > 0)  # git counts the line before an empty side
        yield Hunk(start, at, tuple(before[start : start + b]), tuple(after[at : at + d]))


def changes(repository: Path) -> Iterator[tuple[str, str, list[str], list[Hunk]]]:
    """(commit, path, lines after it, edits) of the newest commits."""
    log = git(
        repository,
        "log",
        "--no-merges",
        "--diff-filter=M",
        "--name-only",
        f"-{COMMITS}",
        "--format=%x00%H",
        check=False,
    )
    for block in log.split("\0")[1:]:
        commit, *paths = block.split("\n")
        for path in filter(None, paths):
            if _LEFT_OUT.search(path) or language("", path) is UNKNOWN or language("", path).prose or "." not in path:
                continue
            try:
                before, after = (git(repository, "show", f"{commit}{side}:{path}").split("\n") for side in ("~", ""))
                diff = git(repository, "diff", "-U0", f"{commit}~", commit, "--", path)
            except subprocess.CalledProcessError:  # renamed, or beyond what was cloned
                continue
            found = [one for one in hunks(before, after, diff) if is_edit(one)]
            if len(after) <= LINES and HUNKS[0] <= len(found) <= HUNKS[1]:
                yield commit, path, after, found


def is_edit(hunk: Hunk) -> bool:
    """True for a short change of code that is none of a version."""
    lines = (*hunk.old, *hunk.new)
    code = any(not _NO_CODE.match(line) for line in lines)
    return len(hunk.old) <= HUNK and len(hunk.new) <= HUNK and code and not any(map(_VERSION.search, lines))


def names(hunk: Hunk) -> set[str]:
    """The identifiers that an edit adds or drops."""
    old, new = (Counter(_NAME.findall("\n".join(lines))) for lines in (hunk.old, hunk.new))
    return {*(old - new), *(new - old)}


def signature(hunk: Hunk) -> object:
    if not hunk.old:
        return tuple(line.strip() for line in hunk.new)
    return EditPattern(PastEdit(hunk.old, hunk.new, 0)).signature


def kind_of(wanted: Hunk, others: Sequence[Hunk]) -> tuple[str, list[Hunk]]:
    """The kind of a case, and the edits that make it one."""
    ways = {
        "repeat": [one for one in others if signature(one) == signature(wanted)],
        "related": [one for one in others if names(one) & names(wanted)],
        "near": [one for one in others if abs(one.at - wanted.at) <= NEAR],
    }
    return next(((kind, found) for kind, found in ways.items() if found), ("", []))


def case(
    name: str, kind: str, path: str, after: list[str], wanted: Hunk | None, past: Sequence[Hunk]
) -> dict[str, Any]:
    text, expected, moved = after, None, 0
    if wanted:
        text = [*after[: wanted.at], *wanted.old, *after[wanted.at + len(wanted.new) :]]
        expected, moved = after, len(wanted.old) - len(wanted.new)
    history = [
        {"old": one.old, "new": one.new, "at": one.at + 1 + (moved if wanted and one.at > wanted.at else 0)}
        for one in past
    ]
    about = {"id": name, "kind": kind, "language": language("", path).id}
    return {**about, "text": text, "history": history, "expected": expected}


def cases(repository: Path, draw: random.Random) -> Iterator[dict[str, Any]]:
    left = Counter(dict.fromkeys(("repeat", "related", "near", "quiet"), EACH))
    for commit, path, after, found in changes(repository):
        name = f"{repository.parent.name}:{commit[:10]}:{path}"
        made = set[str]()
        for wanted in draw.sample(found, len(found)):
            others = [one for one in found if one is not wanted]
            kind, telling = kind_of(wanted, others)
            if not left[kind] or kind in made:
                continue
            rest = [one for one in others if one not in telling]
            past = sorted((telling + rest)[:3], key=lambda one: (one in telling, one.at))
            made.add(kind)
            left[kind] -= 1
            yield case(f"{name}:{wanted.at + 1}", kind, path, after, wanted, past)
        if left["quiet"] and draw.random() < 1 / 2:
            left["quiet"] -= 1
            yield case(f"{name}:quiet", "quiet", path, after, None, found[-3:])
        if not +left:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", type=Path, metavar="REPOSITORY")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    made = [one for repository in options.repositories for one in cases(repository, draw)]
    options.out.write_text("".join(json.dumps(one) + "\n" for one in made))
    print(dict(Counter(one["kind"] for one in made)))


if __name__ == "__main__":
    main()
