"""Builds the held-out set: gaps in files of packages that no training corpus has, for `bench/quality.py`.

    python training/heldout.py --corpus FOLDER --exclude DATA --out heldout.jsonl.gz [--cases 200] [--seed 7]

The packages are named below by hand, none of them is in `corpus.py`, and that file must never name one of them. They go
through its licence gate and its filters of files; what its shards have nearly line by line is left out too. The newest
version is taken: what was released after the base was trained cannot have been learnt. Beside the set lies
`heldout.manifest.jsonl`, a package a line. A case is {id, group, package, path, lang, kind, prefix, suffix, middle}:
prefix + middle + suffix is the whole file.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import packages

# ruff: noqa: SIM905 - one name a line would be two screens
PYPI = """
cyclopts polyfactory svcs narwhals granian niquests hishel inline-snapshot python-fasthtml marimo dlt faststream taskiq
cadwyn advanced-alchemy sqladmin piccolo rq copier aiogram syrupy nox anyio mcp jupyterlab cfn-lint
""".split()
NPM = """
koa mysql2 winston log4js nunjucks ora execa ejs css-tree csso svgo sharp ws sinon eslint-plugin-unicorn eslint-plugin-n
fast-json-stringify find-my-way light-my-request micromark webpack-dev-server @fastify/static @fastify/swagger passport
@fastify/multipart fastify-cli markdownlint eslint-plugin-jsdoc release-it node-gyp i18n-iso-countries lint-staged
npm-check-updates eslint-plugin-vue
""".split()

FILE_CHARACTERS = 40_000  # of a file that gaps are cut into: a whole file lies in every case
OF_A_FILE = 4  # cases of a group
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
GROUPS: dict[str, tuple[str, str, Places]] = {  # language, kind of hole
    "python-line": ("python", "line", python_lines),
    "python-block": ("python", "block", python_blocks),
    "python-span": ("python", "span", python_spans),
    "js-line": ("javascript", "line", javascript_lines),
    "json-value": ("json", "span", json_values),
    "json-key": ("json", "span", json_keys),
    "markdown-row": ("markdown", "line", markdown_rows),
    "markdown-item": ("markdown", "line", markdown_items),
}


# ---- packages


class HeldOut:
    """Takes packages through the corpus' gate and filters, and has the files that are left."""

    def __init__(self, shards: Path, exclusions: corpus.Exclusions) -> None:
        self.exclusions, self.known = exclusions, corpus.Duplicates()
        for path in sorted(shards.glob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    self.known.add(json.loads(line)["text"])
        self.files: list[tuple[packages.Package, str, str]] = []
        self.rows: list[dict[str, object]] = []

    def __repr__(self) -> str:
        return f"<HeldOut {len(self.files)} files of {len(self.rows)} packages>"

    def take(self, package: packages.Package) -> None:
        dropped = Counter[str]()
        before = len(self.files)
        for path, raw in sorted(package.files) if package.licence else ():
            text = corpus.EMAIL.sub("name@example.com", raw.decode("utf-8", "replace")).replace("\r\n", "\n")
            if reason := self.refusal(path, text):
                dropped[reason] += 1
                continue
            self.known.add(text)
            self.files.append((package, path, text))
        if not package.licence:
            dropped["package licence"] = len(package.files)
        row = package.origin | {"sha256": package.sha256, "files": len(self.files) - before}
        self.rows.append(row | {"dropped": dict(dropped)})

    def refusal(self, path: str, text: str) -> str:
        if len(text) > FILE_CHARACTERS:
            return "size"
        if reason := corpus.fault(path, text, packages.language(path)):
            return reason
        if self.exclusions.leak(text):
            return "leak"
        return "duplicate" if self.known.seen(text) else ""

    def cases(self, group: str, count: int, draw: random.Random) -> list[Case]:
        """At most OF_A_FILE of a file and a share of a package, in an order of chance."""
        lang, kind, places = GROUPS[group]
        files = [one for one in self.files if packages.language(one[1]) == lang]
        found, of_package = list[Case](), Counter[str]()
        most = -(-OF_A_PACKAGE * count // 100)
        for package, path, text in draw.sample(files, len(files)):
            spans = sorted(set(places(text)))
            for start, end in draw.sample(spans, min(OF_A_FILE, len(spans))):
                if of_package[package.label] < most and len(found) < count:
                    of_package[package.label] += 1
                    name = f"{group}/{len(found)}"
                    about = (name, group, package.label, path, lang, kind)
                    found.append(Case(*about, text[:start], text[end:], text[start:end]))
        return found


def build(arguments: argparse.Namespace) -> None:
    manifest = (arguments.corpus / "manifest.jsonl").read_text().splitlines()
    trained = {json.loads(line)["package"] for line in manifest}
    named = {f"pypi:{name}" for name in corpus.PYPI} | {f"npm:{name}" for name in corpus.NPM}
    names = [("pypi", name) for name in PYPI] + [("npm", name) for name in NPM]
    held_out = HeldOut(arguments.corpus, corpus.Exclusions.read(arguments.exclude))
    left = [one for one in names if ":".join(one) not in trained | named]
    for registry, name, package in packages.fetch_all(left):
        if package is None:
            print(f"no archive: {registry}:{name}", flush=True)
            continue
        held_out.take(package)
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
