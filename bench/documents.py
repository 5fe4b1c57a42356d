"""JSON documents to put holes into: JSONTestSuite's valid files, instances of MaskBench with their schemas, and files
such as a project has (package.json, tsconfig.json, composer.json, records), made in the styles that such files come in.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFESTS = 400  # documents made
NEWLINES = ("\n", "\n", "\n", "\r\n")
INDENTS = ("  ", "  ", "    ", "\t", None)
WORDS = (
    *("core", "utils", "cli", "server", "client", "parser", "stream", "types", "config", "plugin", "theme", "router"),
    *("fast", "tiny", "async", "safe", "strict", "legacy", "next", "edge", "naïve", "größe", "日本", "emoji-🎉"),
)
LICENCES = ("MIT", "Apache-2.0", "ISC", "BSD-3-Clause", "GPL-3.0-or-later")
TOOLS = ("tsc -p .", "eslint src --fix", "jest --coverage", 'rm -rf "dist" && node build.js', "C:\\tools\\run.exe")


@dataclass(frozen=True)
class Document:
    """A file that is valid JSON (`jsonc`: with comments and trailing commas, `jsonl`: a value a line)."""

    source: str
    name: str
    text: str
    language: str = "json"
    schema: str | None = None


def suite(folder: Path) -> list[Document]:
    """JSONTestSuite's files that every parser has to accept."""
    files = sorted((folder / "test_parsing").glob("y_*.json"))
    return [Document("JSONTestSuite", file.stem, file.read_bytes().decode()) for file in files]


def instances(folder: Path, draw: random.Random) -> list[Document]:
    """Valid instances of MaskBench, each in a style of its own, with the schema that it is valid against."""
    found = []
    for file in sorted(folder.glob("*.json")):
        bench = json.loads(file.read_bytes())
        schema = json.dumps(bench["schema"], ensure_ascii=False)
        for number, test in enumerate(bench["tests"]):
            if test["valid"]:
                text = written(test["data"], draw)
                found.append(Document("JSONSchemaBench", f"{file.stem}-{number}", text, schema=schema))
    return found


def manifests(draw: random.Random, count: int = MANIFESTS) -> list[Document]:
    """Files of projects, in turn of each kind."""
    makers = {"package.json": _package, "tsconfig.json": _tsconfig, "composer.json": _composer}
    found = []
    for number in range(count):
        name = draw.choice((*makers, "records.jsonl"))
        if name == "records.jsonl":
            newline = draw.choice(NEWLINES)
            lines = [_dumped(_record(draw), None, draw.random() < 0.5) for _ in range(draw.randint(1, 6))]
            found.append(Document("manifests", f"{number}-{name}", newline.join(lines) + newline, "jsonl"))
        elif name == "tsconfig.json" and draw.random() < 0.7:
            found.append(Document("manifests", f"{number}-{name}", commented(makers[name](draw), draw), "jsonc"))
        else:
            found.append(Document("manifests", f"{number}-{name}", written(makers[name](draw), draw)))
    return found


def written(value: Any, draw: random.Random) -> str:
    """JSON text in one of the styles: two or four spaces, tabs or one line; tight or not; line ends; a last one."""
    text = _dumped(value, draw.choice(INDENTS), draw.random() < 0.3).replace("\n", newline := draw.choice(NEWLINES))
    return text + draw.choice((newline, newline, ""))


def commented(value: Any, draw: random.Random) -> str:
    """The same with comments, and commas behind last items."""
    lines: list[str] = []
    text = _dumped(value, draw.choice(("  ", "\t")), tight=False).split("\n")
    for line, following in zip(text, [*text[1:], ""], strict=True):
        indent = line[: len(line) - len(line.lstrip())]
        if draw.random() < 0.2:
            lines.append(f'{indent}// {draw.choice(WORDS)}: "{{", see below')
        last = following.lstrip()[:1] in ("}", "]") and line[-1:] not in "{[,"
        comma = "," if last and following.strip() and draw.random() < 0.5 else ""
        lines.append(line + comma + draw.choice(("", "", "", " /* [1, */")))
    return draw.choice(NEWLINES).join([*lines, ""])


def _dumped(value: Any, indent: str | None, tight: bool) -> str:
    separators = (",", ":") if tight and indent is None else (",", ": ") if indent else (", ", ": ")
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)


# Files of projects


def _name(draw: random.Random) -> str:
    return "-".join(draw.sample(WORDS, draw.randint(1, 2)))


def _version(draw: random.Random) -> str:
    return draw.choice(("", "^", "~", ">=")) + ".".join(str(draw.randint(0, 20)) for _ in range(3))


def _some(draw: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    """A few of the fields, in their order."""
    kept = sorted(draw.sample(range(len(fields)), draw.randint(1, len(fields))))
    names: Sequence[str] = list(fields)
    return {names[i]: fields[names[i]] for i in kept}


def _packages(draw: random.Random, owner: str = "@") -> dict[str, str]:
    return {f"{owner}{_name(draw)}/{_name(draw)}": _version(draw) for _ in range(draw.randint(0, 6))}


def _person(draw: random.Random) -> dict[str, Any]:
    return _some(draw, {"name": f"Ada {draw.choice(WORDS)}", "email": "ada@example.org", "url": "https://example.org/"})


def _package(draw: random.Random) -> dict[str, Any]:
    fields = {
        "name": _name(draw),
        "version": _version(draw).lstrip("^~>="),
        "description": f'A {draw.choice(WORDS)} of "{draw.choice(WORDS)}"\nand more\u0007',
        "private": draw.random() < 0.5,
        "license": draw.choice(LICENCES),
        "author": _person(draw),
        "contributors": [_person(draw) for _ in range(draw.randint(0, 3))],
        "files": [f"dist/{draw.choice(WORDS)}.js" for _ in range(draw.randint(0, 4))],
        "exports": {".": {"import": "./index.mjs", "require": "./index.cjs"}, "./package.json": "./package.json"},
        "scripts": {word: draw.choice(TOOLS) for word in draw.sample(WORDS, draw.randint(0, 5))},
        "engines": {"node": ">=18"},
        "dependencies": _packages(draw),
        "devDependencies": _packages(draw),
        "config": {"port": draw.randint(0, 65535), "ratio": draw.random(), "none": None, "empty": {}, "list": []},
    }
    return _some(draw, fields)


def _tsconfig(draw: random.Random) -> dict[str, Any]:
    options = {
        "target": draw.choice(("ES2020", "ES2022", "ESNext")),
        "module": draw.choice(("CommonJS", "NodeNext")),
        "strict": draw.random() < 0.5,
        "lib": ["DOM", "ES2022"],
        "paths": {"@/*": ["src/*"], f"{_name(draw)}/*": ["vendor/*", "lib/*"]},
        "outDir": "dist",
        "maxNodeModuleJsDepth": draw.randint(0, 3),
    }
    return _some(draw, {"extends": "./base.json", "compilerOptions": _some(draw, options), "include": ["src/**/*.ts"]})


def _composer(draw: random.Random) -> dict[str, Any]:
    fields = {
        "name": f"{_name(draw)}/{_name(draw)}",
        "type": "library",
        "require": {"php": ">=8.1", **_packages(draw, "")},
        "autoload": {"psr-4": {"App\\": "src/", f"App\\{draw.choice(WORDS)}\\": ["a/", "b/"]}},
        "authors": [_person(draw) for _ in range(draw.randint(0, 3))],
        "extra": [[1, -2.5e-3, [True, [False, [None]]]], {}],
        "minimum-stability": "stable",
    }
    return _some(draw, fields)


def _record(draw: random.Random) -> dict[str, Any]:
    fields = {
        "id": draw.randint(0, 10**6),
        "at": f"2026-0{draw.randint(1, 9)}-11T10:00:00Z",
        "level": draw.choice(("info", "warning", "error")),
        "ms": round(draw.random() * 100, 2),
        "tags": draw.sample(WORDS, draw.randint(0, 3)),
        "user": _person(draw),
    }
    return _some(draw, fields)
