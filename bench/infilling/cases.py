"""The cases: HumanEval-Infilling, SantaCoder-FIM and the held-out set, each as an editor shows it.

The cursor stands behind the indentation of a missing line or block, and the line's break belongs to the suffix. A span
that is random in HumanEval stays as it is: a user who selects it says with it whether it is of one line or of several.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["line", "block", "span"]


@dataclass(frozen=True)
class Case:
    """`middle` is wanted between `prefix` and `suffix`. With a `test` it is a program that can be run."""

    id: str
    prefix: str
    suffix: str
    middle: str
    lang: str = "python"
    kind: Kind = "line"
    test: str = ""
    entry_point: str = ""

    def filled(self, fill: str) -> str:
        return self.prefix + fill + self.suffix

    def program(self, fill: str) -> str:
        """As in openai/human-eval-infilling."""
        return f"{self.filled(fill)}\n{self.test}\ncheck({self.entry_point})\n"


@dataclass(frozen=True)
class Sources:
    """Where the data lies; None where there is none."""

    human_eval: Path | None = None  # a folder
    santa: Path | None = None  # a Parquet file
    held_out: Path | None = None  # a file of training/heldout.py

    def of(self, group: str) -> Path | None:
        """The file of a group."""
        if group in HUMAN_EVAL:
            return self.human_eval / f"HumanEval-{HUMAN_EVAL[group]}Infilling.jsonl.gz" if self.human_eval else None
        return self.santa if group in SANTA else self.held_out


HUMAN_EVAL = {"single-line": "SingleLine", "multi-line": "MultiLine", "random-span": "RandomSpan"}
SANTA = {"santa-python": ("py", "python"), "santa-js": ("js", "javascript")}
HELD_OUT = (
    *("python-line", "python-block", "python-span", "js-line"),
    *("json-value", "json-key", "markdown-row", "markdown-item"),
)
GROUPS = (*HUMAN_EVAL, *SANTA, *HELD_OUT)


def read(sources: Sources, group: str, n: int, seed: int) -> list[Case]:
    """A sample that (n, seed) fixes, in the order of the file."""
    path = sources.of(group)
    assert path is not None, "a group is only asked for where its data is"
    if group in HUMAN_EVAL:
        found, case = lines(path), spanned if group == "random-span" else at_cursor
    elif group in SANTA:
        found, case = santa(path, SANTA[group][0]), joined
    else:
        found, case = [row for row in lines(path) if row["group"] == group], held_out
    return [case(row) for row in sample(found, n, seed)]


def sample(rows: list[dict[str, Any]], n: int, seed: int) -> Iterable[dict[str, Any]]:
    chosen = sorted(random.Random(seed).sample(range(len(rows)), min(n, len(rows))))
    return [rows[i] for i in chosen]


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def santa(path: Path, language: str) -> list[dict[str, Any]]:
    from pyarrow import parquet  # of the extra `bench`, and of this data alone

    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return [row for row in rows if row["language"] == language and row["canonical_solution"].strip()]


Reader = Callable[[dict[str, Any]], Case]


def at_cursor(task: dict[str, str]) -> Case:
    """A missing line, or several."""
    whole = task["canonical_solution"]
    middle = whole.strip()
    start = whole.index(middle)
    return Case(
        id=task["task_id"],
        prefix=task["prompt"] + whole[:start],
        suffix=whole[start + len(middle) :] + task["suffix"],
        middle=middle,
        kind="block" if "\n" in middle else "line",
        test=task["test"],
        entry_point=task["entry_point"],
    )


def spanned(task: dict[str, str]) -> Case:
    middle = task["canonical_solution"]
    kind: Kind = "block" if "\n" in middle else "span"
    about = (task["task_id"], task["prompt"], task["suffix"], middle)
    return Case(*about, kind=kind, test=task["test"], entry_point=task["entry_point"])


def joined(task: dict[str, str]) -> Case:
    """SantaCoder's texts are lines that were taken apart."""
    line = task["canonical_solution"]
    middle = line.strip()
    start = line.index(middle)
    prefix, suffix = f"{task['prompt']}\n{line[:start]}", f"{line[start + len(middle) :]}\n{task['suffix']}"
    language = dict(SANTA.values())[task["language"]]
    return Case(f"{task['language']}/{task['name']}", prefix, suffix, middle, language)


def held_out(row: dict[str, Any]) -> Case:
    return Case(row["id"], row["prefix"], row["suffix"], row["middle"], row["lang"], row["kind"])
