"""`caesura stats`: how many suggestions were taken, from the counts that the language servers keep on this machine."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from datetime import date, timedelta

import msgspec

from caesura.commands.common import print_json
from caesura.server.records import stats
from caesura.server.records.stats import Counts

PERIODS = (7, 30)  # days, today included
HEAD = ("language", "shown", "whole", "in parts", "rejected", "characters taken")


def run(options: argparse.Namespace) -> None:
    path = stats.file()
    if options.reset:
        stats.reset(path)
        print("All counts are gone.")
        return
    days, today = stats.read(path), date.today()
    periods = {length: stats.total(days, today - timedelta(days=length - 1), today) for length in PERIODS}
    if options.json:
        print_json({"file": str(path), "days": {str(length): _values(found) for length, found in periods.items()}})
    elif not any(periods.values()):
        print(f"Nothing was shown in the last {PERIODS[-1]} days; an editor that runs `caesura lsp` counts it.")
    else:
        for length, found in periods.items():
            sys.stdout.write(f"Last {length} days\n" + "".join(f"{line}\n" for line in _table(found)) + "\n")
        print(f"Counted on this machine only, in {path}.")


def _values(found: Mapping[str, Counts]) -> dict[str, object]:
    return {
        language: {**msgspec.to_builtins(counts), "share": _share(counts)}
        for language, counts in _with_sum(found).items()
    }


def _table(found: Mapping[str, Counts]) -> Iterator[str]:
    rows = [HEAD, *(_row(language, counts) for language, counts in _with_sum(found).items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for first, *others in rows:
        yield "  ".join(
            [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        )


def _row(language: str, counts: Counts) -> tuple[str, ...]:
    characters = f"{counts.accepted_characters} of {counts.shown_characters}, {_share(counts):4.0%}"
    return (language, *map(str, (counts.shown, counts.accepted, counts.partly, counts.rejected)), characters)


def _share(counts: Counts) -> float:
    """Of the characters shown, those that were taken."""
    return round(counts.accepted_characters / counts.shown_characters, 3) if counts.shown_characters else 0.0


def _with_sum(found: Mapping[str, Counts]) -> dict[str, Counts]:
    """With a row of all languages at the end."""
    whole = Counts()
    for counts in found.values():
        whole.add(counts)
    return {**found, "all": whole}
