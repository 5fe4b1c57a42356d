"""`caesura settings` and `caesura stats`: the language server's settings, and its counts of accepted suggestions.

The settings are shown as a list or as a JSON schema; the table in docs/configuration.md has the same descriptions.
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Any

import msgspec

from caesura.commands.common import print_json
from caesura.server.options import Options
from caesura.server.records import stats as records
from caesura.server.records.stats import Counts

WIDTH, INDENT = 100, " " * 4  # columns
PERIODS = (7, 30)  # days, including today
HEAD = ("language", "shown", "whole", "in parts", "rejected", "characters taken")


def settings(options: argparse.Namespace) -> None:
    if options.schema:
        print_json(schema())
    else:
        for name, about in schema()["properties"].items():
            print("\n".join(_entry(name, about)))


def schema() -> dict[str, Any]:
    """The JSON schema of the settings object of an editor."""
    found = msgspec.json.schema(Options)
    parts: dict[str, Any] = found["$defs"]
    whole = parts.pop("Options")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": parts}
    return {**head, **whole, "additionalProperties": False}


def _entry(name: str, about: Mapping[str, Any]) -> Iterator[str]:
    """A setting for a terminal, wrapped at its width."""
    yield f"{name} = {_default(about['default'])}   ({_range(about)})".replace("`", "")
    width = min(shutil.get_terminal_size().columns, WIDTH)
    yield from textwrap.wrap(
        about["description"].replace("`", ""), width, initial_indent=INDENT, subsequent_indent=INDENT
    )


def table() -> str:
    """The table of all settings in Markdown, with a final line break."""
    return "".join(f"{line}\n" for line in _lines(schema()["properties"]))


def _lines(properties: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| name | default | range | what it does |"
    yield "|---|---|---|---|"
    for name, about in properties.items():
        what = about["description"].replace("|", "\\|")
        yield f"| `{name}` | `{_default(about['default'])}` | {_range(about)} | {what} |"


def _default(value: object) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _range(about: Mapping[str, Any]) -> str:
    if "anyOf" in about:
        return " or ".join(_range(one) for one in about["anyOf"])
    if "enum" in about:
        return ", ".join(f"`{value}`" for value in about["enum"])
    if "minimum" in about:
        return f"{about['minimum']:,} to {about['maximum']:,}"
    if "$ref" in about.get("items", {}):
        return "list of objects"
    names = {"boolean": "`true`, `false`", "array": "list of text", "object": "name to `true` or `false`"}
    return names.get(about["type"], "`null`" if about["type"] == "null" else "text")


# Counts


def stats(options: argparse.Namespace) -> None:
    path = records.file()
    if options.reset:
        records.reset(path)
        print("All counts are deleted.")
        return
    days, today = records.read(path), date.today()
    periods = {length: records.total(days, today - timedelta(days=length - 1), today) for length in PERIODS}
    if options.json:
        print_json({"file": str(path), "days": {str(length): _values(found) for length, found in periods.items()}})
    elif not any(periods.values()):
        print(f"Nothing was shown in the last {PERIODS[-1]} days; an editor that runs `caesura lsp` counts it.")
    else:
        for length, found in periods.items():
            sys.stdout.write(f"Last {length} days\n" + "".join(f"{line}\n" for line in _count_lines(found)) + "\n")
        print(f"Counted on this machine only, in {path}.")


def _values(found: Mapping[str, Counts]) -> dict[str, object]:
    return {
        language: {**msgspec.to_builtins(counts), "share": _share(counts)}
        for language, counts in _with_sum(found).items()
    }


def _count_lines(found: Mapping[str, Counts]) -> Iterator[str]:
    rows = [HEAD, *(_counts_row(language, counts) for language, counts in _with_sum(found).items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for first, *others in rows:
        yield "  ".join(
            [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        )


def _counts_row(language: str, counts: Counts) -> tuple[str, ...]:
    characters = f"{counts.accepted_characters} of {counts.shown_characters}, {_share(counts):4.0%}"
    return (language, *map(str, (counts.shown, counts.accepted, counts.partly, counts.rejected)), characters)


def _share(counts: Counts) -> float:
    """The share of shown characters that were accepted."""
    return round(counts.accepted_characters / counts.shown_characters, 3) if counts.shown_characters else 0.0


def _with_sum(found: Mapping[str, Counts]) -> dict[str, Counts]:
    """The counts, with a row for all languages at the end."""
    whole = Counts()
    for counts in found.values():
        whole.add(counts)
    return {**found, "all": whole}
