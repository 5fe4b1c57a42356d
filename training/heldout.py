"""Builds the held-out set: gaps in files of packages that no training corpus has, for `bench/quality.py`.

    python training/heldout.py --corpus FOLDER --exclude DATA --out heldout.jsonl.gz [--cases 200] [--seed 7]

The packages are named below by hand, none of them is in `corpus.py`, and that file must never name one of them. They go
through its licence gate and its filters of files; what its shards have nearly line by line is left out too. Gaps are
cut out of the newest release, only where it differs from the last one before 2025: in files that are not mostly in
that release, and in lines that it has nowhere before or behind the same line. A base that was trained until 2024 cannot
have learnt them. Beside the set lies `heldout.manifest.jsonl`, a package a line. A case is {id, group, package, path,
lang, kind, prefix, suffix, middle}: prefix + middle + suffix is the whole file.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import packages

# Each with its last release before 2025, as `pip download NAME --uploaded-prior-to 2025-01-01` and `npm view NAME time`
# say: what that release has may have been learnt by a base that was trained until 2024.
# ruff: noqa: SIM905 - one name a line would be two screens
PYPI = """
cyclopts==3.1.3 polyfactory==2.18.1 svcs==24.1.0 narwhals==1.20.1 granian==1.6.4 niquests==3.11.4 hishel==0.1.1
inline-snapshot==0.18.1 python-fasthtml==0.10.3 marimo==0.10.9 dlt==1.5.0 faststream==0.5.33 taskiq==0.11.10
cadwyn==4.4.5 advanced-alchemy==0.26.2 sqladmin==0.20.1 piccolo==1.22.0 rq==2.1.0 copier==9.4.1 aiogram==3.16.0
syrupy==4.8.0 nox==2024.10.9 anyio==4.7.0 mcp==1.1.2 jupyterlab==4.3.4 cfn-lint==1.22.3
pydantic-ai-slim==0.0.16 inspect-ai==0.3.55 dspy==2.5.43 instructor==1.7.2 browser-use==0.1.17
datamodel-code-generator==0.26.4 openapi-python-client==0.23.0 schemathesis==3.39.5
""".split()
NPM = """
koa@2.15.3 mysql2@3.11.5 winston@3.17.0 ora@8.1.1 execa@9.5.2 ejs@3.1.10 css-tree@3.1.0 svgo@3.3.2 sharp@0.33.5
ws@8.18.0 sinon@19.0.2 eslint-plugin-unicorn@56.0.1 eslint-plugin-n@17.14.0 fast-json-stringify@6.0.0
find-my-way@9.1.0 light-my-request@6.3.0 micromark@4.0.1 webpack-dev-server@5.1.0 @fastify/static@8.0.3
@fastify/swagger@9.4.0 @fastify/multipart@9.0.1 fastify-cli@7.0.1 markdownlint@0.37.0 eslint-plugin-jsdoc@50.6.0
release-it@17.10.0 node-gyp@11.0.0 i18n-iso-countries@7.13.0 lint-staged@15.2.10 npm-check-updates@17.1.11
eslint-plugin-vue@9.32.0 @eslint/markdown@6.2.1 @eslint/json@0.8.0 @npmcli/arborist@8.0.0 @npmcli/config@9.0.0
pacote@21.0.0 web-features@2.9.0 @primer/primitives@10.0.0 piscina@4.8.0 bullmq@5.34.0 c8@10.1.2 zx@8.2.4
@fastify/swagger-ui@5.2.0 @fastify/session@11.0.1 fastify-plugin@5.0.1 neostandard@0.11.9 eslint-plugin-yml@1.16.0
eslint-plugin-package-json@0.18.0 globals@15.13.0 knip@5.39.4 promptfoo@0.100.3 eslint-plugin-import-x@4.5.0
@playwright/test@1.49.1
""".split()

SIZES = range(200, 5_000_001)  # bytes of a file that is read: a piece of a large old one is not new text
FILE_CHARACTERS = 40_000  # of a file that gaps are cut into: a whole file lies in every case
OF_A_FILE = 4  # cases of a group
ROWS_OF_A_FILE = 8  # of tables: few files have a new one
OF_A_PACKAGE = 12  # cases of a group, of a hundred
LINE = range(8, 101)  # characters of what is wanted
BLOCK_LINES = range(2, 7)
SPAN = range(4, 41)
VALUE = range(2, 61)

Span = tuple[int, int]  # code points


@dataclass(frozen=True)
class Case:
    id: str
    group: str
    package: str
    path: str
    lang: str
    kind: str
    prefix: str
    suffix: str
    middle: str


# ---- places: the spans of a file that are wanted


class Source:
    """A Python file with the offsets of its nodes. `ast` counts columns in bytes."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.lines = [line + "\n" for line in text.split("\n")]  # as `ast` counts them: a form feed ends none
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, first: ast.stmt | ast.expr, last: ast.stmt | ast.expr | None = None) -> Span:
        last = last or first
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        start = self.offset(first.lineno, first.col_offset)
        return start, self.offset(last.end_lineno, last.end_col_offset)


def ends_line(text: str, span: Span) -> bool:
    """Whether a span is what its lines hold, from their indentation to their end."""
    before = text[text.rfind("\n", 0, span[0]) + 1 : span[0]]
    return not before.strip() and text[span[1] : span[1] + 1] in ("", "\n")


def python_lines(text: str) -> Iterator[Span]:
    """Statements of one line, headers of blocks apart. Imports and docstrings are nobody's to guess."""
    source = Source(text)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) and not is_text(node):
            span = source.span(node)
            if node.lineno == node.end_lineno and span[1] - span[0] in LINE and ends_line(text, span):
                yield span


def python_blocks(text: str) -> Iterator[Span]:
    """Bodies of functions, branches and loops, behind a docstring if there is one."""
    source = Source(text)
    for node in ast.walk(source.tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef) or not isinstance(body, list):
            continue
        body = body[1:] if is_text(body[0]) else body
        if body and isinstance(body[0], ast.stmt):
            span = source.span(body[0], body[-1])
            if text[slice(*span)].count("\n") + 1 in BLOCK_LINES and ends_line(text, span):
                yield span


def python_spans(text: str) -> Iterator[Span]:
    """Expressions with something of their line on both sides."""
    source = Source(text)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call | ast.BinOp | ast.Compare | ast.Attribute | ast.Subscript | ast.BoolOp):
            start, end = source.span(node)
            before = text[text.rfind("\n", 0, start) + 1 : start]
            after = text[end:].partition("\n")[0]
            if node.lineno == node.end_lineno and end - start in SPAN and before.strip() and after.strip(" :"):
                yield start, end


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def javascript_lines(text: str) -> Iterator[Span]:
    for found in re.finditer(r"^[ \t]+(?!//|\*|/\*)(\S.*?)[ \t]*$", text, re.M):
        if len(found[1]) in LINE and re.search(r"\w.*[;{,)]$", found[1]):
            yield found.span(1)


SCALAR = r'"(?:[^"\\\n]|\\.)*"|-?\d[\d.eE+-]*|true|false|null'
MEMBER = re.compile(rf'[{{,]\s*("(?:[^"\\\n]|\\.)*")\s*:\s*({SCALAR})(?=\s*[,}}])')


def json_values(text: str) -> Iterator[Span]:
    """Scalars of objects that have a member before them."""
    yield from (found.span(2) for found in MEMBER.finditer(text) if found[0][0] == "," and len(found[2]) in VALUE)


def json_keys(text: str) -> Iterator[Span]:
    yield from (found.span(1) for found in MEMBER.finditer(text) if found[0][0] == "," and len(found[1]) in VALUE)


def markdown_rows(text: str) -> Iterator[Span]:
    """Rows of a table behind its first, from the first cell on."""
    for table in re.finditer(r"^\|.*\n\|[ :|-]+\|[ ]*\n\|.*\n((?:\|.*\|[ ]*\n)+)", prose(text), re.M):
        for row in re.finditer(r"^\|[ ]*(\S.*?)[ ]*$", table[1], re.M):
            if len(row[1]) in LINE:
                yield table.start(1) + row.start(1), table.start(1) + row.end(1)


def markdown_items(text: str) -> Iterator[Span]:
    """Items of a list behind its first, without their mark."""
    for found in re.finditer(r"^[ ]*(?:[-*]|\d+\.) .*\n(?=([ ]*(?:[-*]|\d+\.) +)(\S.*?)[ ]*$)", prose(text), re.M):
        if len(found[2]) in LINE:
            yield found.span(2)


def prose(text: str) -> str:
    """Markdown with its fenced code as blanks: offsets stay."""
    return re.sub(r"^( *```|~~~).*?^\1", lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.M | re.S)


Places = Callable[[str], Iterator[Span]]
GROUPS: dict[str, tuple[str, str, Places, int]] = {  # language, kind of hole, places, cases of a file at most
    "python-line": ("python", "line", python_lines, OF_A_FILE),
    "python-block": ("python", "block", python_blocks, OF_A_FILE),
    "python-span": ("python", "span", python_spans, OF_A_FILE),
    "js-line": ("javascript", "line", javascript_lines, OF_A_FILE),
    "json-value": ("json", "span", json_values, OF_A_FILE),
    "json-key": ("json", "span", json_keys, OF_A_FILE),
    "markdown-row": ("markdown", "line", markdown_rows, ROWS_OF_A_FILE),
    "markdown-item": ("markdown", "line", markdown_items, OF_A_FILE),
}


# ---- packages


class Old:
    """What releases before 2025 have, of all packages."""

    def __init__(self) -> None:
        self.files, self._pairs = corpus.Duplicates(), set[int]()

    def add(self, text: str) -> None:
        self.files.add(text)
        self._pairs.update(pair for _, _, pair in pairs(text))

    def spares(self, text: str) -> Callable[[Span], bool]:
        """Whether no line of a span of `text` is old: stands before or behind the same line there."""
        old = {line for *both, pair in pairs(text) if pair in self._pairs for line in both}

        def new(span: Span) -> bool:
            first = text.count("\n", 0, span[0])
            return old.isdisjoint(range(first, first + text.count("\n", *span) + 1))

        return new


def pairs(text: str) -> Iterator[tuple[int, int, int]]:
    """The numbers of two lines, one behind the other but for blank ones, and a hash of them without indentation. Before
    the first and behind the last line stands an empty one."""
    lines = ["", *(line.strip() for line in text.split("\n")), ""]
    whole = [number for number, line in enumerate(lines) if line]
    for one, other in pairwise([0, *whole, len(lines) - 1]):
        yield one - 1, other - 1, hash((lines[one], lines[other]))


def readable(raw: bytes) -> str:
    return corpus.EMAIL.sub("name@example.com", raw.decode("utf-8", "replace")).replace("\r\n", "\n")


class HeldOut:
    """Takes packages through the corpus' gate and filters, and has the files that are left."""

    def __init__(self, shards: Path | None, exclusions: corpus.Exclusions) -> None:
        self.exclusions, self.known, self.old = exclusions, corpus.Duplicates(), Old()
        for path in sorted(shards.glob("*.jsonl.gz")) if shards else ():
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    self.known.add(json.loads(line)["text"])
        self.files: list[tuple[packages.Package, str, str]] = []
        self.rows: list[dict[str, object]] = []

    def __repr__(self) -> str:
        return f"<HeldOut {len(self.files)} files of {len(self.rows)} packages>"

    def take(self, package: packages.Package, before: packages.Package) -> None:
        """The files of a package that are not those of its release `before` 2025."""
        for _, raw in before.files:
            self.old.add(readable(raw))
        dropped = Counter[str]()
        count = len(self.files)
        for path, raw in sorted(package.files) if package.licence else ():
            text = readable(raw)
            if reason := self.refusal(path, text):
                dropped[reason] += 1
                continue
            self.known.add(text)
            self.files.append((package, path, text))
        if not package.licence:
            dropped["package licence"] = len(package.files)
        row = package.origin | {"sha256": package.sha256, "files": len(self.files) - count}
        self.rows.append(row | {"before": before.version, "before_sha256": before.sha256, "dropped": dict(dropped)})

    def refusal(self, path: str, text: str) -> str:
        if len(text) > FILE_CHARACTERS:
            return "size"
        if reason := corpus.fault(path, text, packages.language(path)):
            return reason
        if self.exclusions.leak(text):
            return "leak"
        if self.old.files.seen(text):
            return "old"
        return "duplicate" if self.known.seen(text) else ""

    def cases(self, group: str, count: int, draw: random.Random) -> list[Case]:
        """A few of a file and a share of a package, in an order of chance."""
        lang, kind, places, of_a_file = GROUPS[group]
        files = [one for one in self.files if packages.language(one[1]) == lang]
        found, of_package = list[Case](), Counter[str]()
        most = -(-OF_A_PACKAGE * count // 100)
        for package, path, text in draw.sample(files, len(files)):
            spans = sorted(filter(self.old.spares(text), set(places(text))))
            for start, end in draw.sample(spans, min(of_a_file, len(spans))):
                if of_package[package.label] < most and len(found) < count:
                    of_package[package.label] += 1
                    name = f"{group}/{len(found)}"
                    about = (name, group, package.label, path, lang, kind)
                    found.append(Case(*about, text[:start], text[end:], text[start:end]))
        return found


def releases() -> list[tuple[str, str, str]]:
    """(registry, name, its release before 2025), the last one in the words of the registry's client."""
    pypi = [("pypi", release.partition("==")[0], release) for release in PYPI]
    return pypi + [("npm", release.rpartition("@")[0], release) for release in NPM]


def build(arguments: argparse.Namespace) -> None:
    manifest = (arguments.corpus / "manifest.jsonl").read_text().splitlines()
    trained = {json.loads(line)["package"] for line in manifest}
    named = {f"pypi:{name}" for name in corpus.PYPI} | {f"npm:{name}" for name in corpus.NPM}
    left = [one for one in releases() if f"{one[0]}:{one[1]}" not in trained | named]
    held_out = HeldOut(arguments.corpus, corpus.Exclusions.read(arguments.exclude))
    newest = packages.fetch_all([(registry, name) for registry, name, _ in left], SIZES)
    before = packages.fetch_all([(registry, release) for registry, _, release in left], SIZES)
    for (registry, name, package), (_, release, old) in zip(newest, before, strict=True):
        if package is None or old is None:
            print(f"no archive: {registry}:{name if package is None else release}", flush=True)
            continue
        held_out.take(package, old)
        print(held_out, package.label, package.version, package.licence[:40] or "(refused)", flush=True)
    draw = random.Random(arguments.seed)
    with gzip.open(arguments.out, "wt", encoding="utf-8") as out:
        for group in GROUPS:
            found = held_out.cases(group, arguments.cases, draw)
            out.writelines(json.dumps(asdict(case), ensure_ascii=False) + "\n" for case in found)
            print(f"{group}: {len(found)} cases of {len({case.package for case in found})} packages", flush=True)
    rows = (json.dumps(row) + "\n" for row in held_out.rows)
    arguments.out.with_name("heldout.manifest.jsonl").write_text("".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder of a training corpus, to be kept clear of")
    parser.add_argument("--exclude", type=Path, required=True, help="data folder with exclude/ and the benchmarks")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl.gz")
    parser.add_argument("--cases", type=int, default=200, help="of a group, where there are as many")
    parser.add_argument("--seed", type=int, default=7)
    build(parser.parse_args())


if __name__ == "__main__":
    main()
