"""`caesura settings`: the language server's settings as a list, or as a JSON schema; the table of docs/configuration.md
is made of the same descriptions.
"""

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from caesura.commands.common import print_json
from caesura.server.options import Options

WIDTH, INDENT = 100, " " * 4  # columns


def run(options: argparse.Namespace) -> None:
    if options.schema:
        print_json(schema())
    else:
        for name, about in schema()["properties"].items():
            print("\n".join(_entry(name, about)))


def schema() -> dict[str, Any]:
    """A JSON schema of the object that an editor sends."""
    found = msgspec.json.schema(Options)
    parts: dict[str, Any] = found["$defs"]
    whole = parts.pop("Options")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": parts}
    return {**head, **whole, "additionalProperties": False}


def _entry(name: str, about: Mapping[str, Any]) -> Iterator[str]:
    """A setting as a terminal shows it, wrapped at its width."""
    yield f"{name} = {_default(about['default'])}   ({_range(about)})".replace("`", "")
    width = min(shutil.get_terminal_size().columns, WIDTH)
    yield from textwrap.wrap(
        about["description"].replace("`", ""), width, initial_indent=INDENT, subsequent_indent=INDENT
    )


def table() -> str:
    """Markdown, ending in a line break."""
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
