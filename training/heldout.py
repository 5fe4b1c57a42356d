"""Builds sets of gaps in files of packages that no training corpus has: the held-out set, for `bench/quality.py`, and
the fresh set, on which a search is tuned and reported.

    python training/heldout.py --corpus FOLDER --exclude DATA --out heldout.jsonl.gz [--cases 200] [--seed 7]
    python training/heldout.py --packages training/fresh.manifest.jsonl --exclude DATA --out fresh.jsonl.gz [--seed 7]

The held-out packages are named below by hand, none of them is in `corpus.py`, and that file must never name one of
them. They go through its licence gate and its filters of files; what its shards have nearly line by line is left out
too. Gaps are cut out of the newest release, only where it differs from the last one before 2025: in files that are
not mostly in that release, and in lines that it has nowhere before or after the same line. A base that was trained
until 2024 cannot have learnt them. Beside a set lies its manifest, a package a line. A case of the held-out set is {id,
group, package, path, lang, kind, prefix, suffix, middle}: prefix + middle + suffix is the whole file.

The fresh set is cut in the same way from a list of packages, small and large, each of which goes to one half by its
name. Its cases also have {version, licence, line, size, half}, and at most 6,000 characters on each side.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, product, zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import corpus
import gap_places
import packages
from gap_places import Span

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

# Of the fresh set: cases of a language, kind, size and half, and at most of a package.
FRESH = {"line": (75, 8), "block": (25, 3), "span": (10, 3)}
FRESH_LANGUAGES = ("python", "javascript", "typescript", "go")
FRESH_FILES = 60  # of a package
SIDE = 6_000  # characters of a prefix or suffix


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


@dataclass(frozen=True)
class FreshCase(Case):
    version: str
    licence: str
    line: int  # the first of the middle, from 1
    size: str
    half: str


GROUPS: dict[
    str, tuple[str, str, Callable[[str], Iterator[Span]], int]
] = {  # language, kind of hole, places, cases of a file at most
    "python-line": ("python", "line", gap_places.python_lines, OF_A_FILE),
    "python-block": ("python", "block", gap_places.python_blocks, OF_A_FILE),
    "python-span": ("python", "span", gap_places.python_spans, OF_A_FILE),
    "js-line": ("javascript", "line", gap_places.javascript_lines, OF_A_FILE),
    "json-value": ("json", "span", gap_places.json_values, OF_A_FILE),
    "json-key": ("json", "span", gap_places.json_keys, OF_A_FILE),
    "markdown-row": ("markdown", "line", gap_places.markdown_rows, ROWS_OF_A_FILE),
    "markdown-item": ("markdown", "line", gap_places.markdown_items, OF_A_FILE),
}


# ---- packages


class Old:
    """What releases before 2025 have, of all packages."""

    def __init__(self) -> None:
        self.files, self._pairs, self.paths = corpus.Duplicates(), set[int](), set[tuple[str, str]]()

    def add(self, package: str, path: str, text: str) -> None:
        self.paths.add((package, path))
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


@dataclass(frozen=True)
class Release:
    """Of a package the release to cut gaps from ("": the newest) and the one that must not have them ("": none)."""

    registry: str
    name: str
    version: str
    before: str
    size: str = ""

    @classmethod
    def of(cls, row: dict[str, str]) -> Release:
        registry, _, name = row["package"].partition(":")
        return cls(registry, name, row["version"], row["before"], row["size"])

    def asked(self, version: str) -> str:
        """In the words of the registry's client."""
        return self.name + (SIGNS[self.registry] + version if version else "")

    @property
    def label(self) -> str:
        return f"{self.registry}:{self.name}"

    @property
    def half(self) -> str:
        return ("tune", "report")[int(packages.sha256(packages.project(self.name)), 16) % 2]


SIGNS = {"pypi": "==", "npm": "@", "git": "@"}


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
        for path, raw in before.files:
            self.old.add(package.label, path, readable(raw))
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
        if self.exclusions.line(text):
            return "excluded line"
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

    def fresh(self, release: Release, lang: str, kind: str, most: int, draw: random.Random) -> list[FreshCase]:
        """Of one package, in an order of chance: those of files that its old release has nowhere come first."""
        files = [one for one in self.files if one[0].label == release.label and packages.language(one[1]) == lang]
        files = draw.sample(files, len(files))
        found, middles = list[FreshCase](), set[str]()
        for package, path, text in sorted(files, key=lambda one: (release.label, one[1]) in self.old.paths):
            if len(found) == most:
                break
            spans = [one for one in gap_places.Code(text, path).spans(kind) if not obvious(text, one)]
            spans = list(filter(self.old.spares(text), spans))
            for start, end in draw.sample(spans, len(spans))[: min(OF_A_FILE, most - len(found))]:
                middle = text[start:end]
                if middle in middles:
                    continue
                middles.add(middle)
                about = (f"{kind}/{release.label}/{path}:{start}", f"{lang}-{kind}", release.label, path, lang, kind)
                sides = (ending(text[:start]), beginning(text[end:]), middle)
                line = text.count("\n", 0, start) + 1
                version = release.version or package.version
                found.append(FreshCase(*about, *sides, version, package.licence, line, release.size, release.half))
        return found


def ending(prefix: str) -> str:
    """Its last whole lines, `SIDE` characters at most."""
    return prefix if len(prefix) <= SIDE else prefix[-SIDE:].partition("\n")[2]


def beginning(suffix: str) -> str:
    return suffix if len(suffix) <= SIDE else suffix[:SIDE].rpartition("\n")[0] + "\n"


def obvious(text: str, span: Span) -> bool:
    """Whether the next line that is not blank, on either side, has what is wanted."""
    before, after = text[: span[0]].rstrip(), text[span[1] :].lstrip()
    return text[slice(*span)] in before[before.rfind("\n") + 1 :] + "\n" + after.partition("\n")[0]


def releases() -> list[Release]:
    pypi = [("pypi", *release.split("==")) for release in PYPI]
    npm = [("npm", *release.rsplit("@", 1)) for release in NPM]
    return [Release(registry, name, "", before) for registry, name, before in (*pypi, *npm)]


def gather(
    held_out: HeldOut,
    some: list[Release],
    narrow: Callable[[packages.Package, packages.Package], object] = lambda package, before: None,
    clones: Path | None = None,
) -> Iterator[Release]:
    """Fetches, narrows and takes releases. Those that are taken."""
    asked = [(one.registry, one.asked(one.version)) for one in some]
    newest = packages.fetch_all(asked, SIZES, clones)
    asked = [(one.registry, one.asked(one.before)) for one in some if one.before]
    old = packages.fetch_all(asked, SIZES, clones)
    for one, (_, name, package) in zip(some, newest, strict=True):
        before = next(old)[2] if one.before else packages.Package(one.registry, one.name)
        if package is None or before is None or (one.before and not before.files):
            print(f"no archive: {one.registry}:{name if package is None else one.asked(one.before)}", flush=True)
            continue
        narrow(package, before)
        held_out.take(package, before)
        print(held_out, package.label, package.version, package.licence[:40] or "(refused)", flush=True)
        yield one


def only_code(package: packages.Package, before: packages.Package) -> None:
    """Leaves of a package what fresh gaps are cut from: code that is no test. Of much, files that the old release has
    not come first, then an order of chance holds."""
    for one in (package, before):
        one.files = [file for file in one.files if packages.language(file[0]) in FRESH_LANGUAGES]
    known = {path for path, _ in before.files}
    kept = [(path in known, packages.sha256(path), path, raw) for path, raw in package.files if is_code(path, raw)]
    package.files = [(path, raw) for _, _, path, raw in sorted(kept)[:FRESH_FILES]]


def is_code(path: str, raw: bytes) -> bool:
    bad = (corpus.TEST, corpus.VENDORED, corpus.GENERATED_PATH)
    return len(raw) <= FILE_CHARACTERS and not any(pattern.search(path) for pattern in bad)


def build(arguments: argparse.Namespace) -> None:
    folder: Path | None = arguments.corpus
    manifest = folder / "manifest.jsonl" if folder else Path(__file__).with_name("corpus.manifest.jsonl")
    trained = {json.loads(line)["package"] for line in manifest.read_text().splitlines()}
    lists = {"pypi": corpus.PYPI, "npm": corpus.NPM}
    known = trained | {f"{registry}:{name}" for registry, names in lists.items() for name in names}
    exclusions = corpus.Exclusions.read(arguments.exclude)
    held_out, draw = HeldOut(folder, exclusions), random.Random(arguments.seed)
    if arguments.packages:
        known |= {one.label for one in releases()}
        some = [Release.of(json.loads(line)) for line in arguments.packages.read_text().splitlines()]
        some = [one for one in some if one.label not in known and not exclusions.package(one.registry, one.name)]
        taken = list(gather(held_out, some, only_code, arguments.clones))
        found: list[Case] = list(fresh_cases(held_out, taken, draw))
        held_out.rows = [fresh_row(*both, found) for both in zip(held_out.rows, taken, strict=True)]
    else:
        some = [one for one in releases() if one.label not in known]
        list(gather(held_out, some))
        found = [case for group in GROUPS for case in held_out.cases(group, arguments.cases, draw)]
    with gzip.open(arguments.out, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(case), ensure_ascii=False) + "\n" for case in found)
    rows = (json.dumps(row) + "\n" for row in held_out.rows)
    arguments.out.with_name(arguments.out.name.partition(".")[0] + ".manifest.jsonl").write_text("".join(rows))
    for group, count in Counter(map(counted, found)).items():
        print(*group, count, len({case.package for case in found if counted(case) == group}), sep="\t", flush=True)


def fresh_cases(held_out: HeldOut, some: list[Release], draw: random.Random) -> Iterator[FreshCase]:
    """One of each package, then a second one of each, until there are enough."""
    given = Counter[tuple[str, str]]()  # by kind and package, which may have several languages
    for lang, kind, size, half in product(FRESH_LANGUAGES, FRESH, ("small", "large"), ("tune", "report")):
        count, most = FRESH[kind]
        asked = [one for one in some if (one.size, one.half) == (size, half)]
        asked = draw.sample(asked, len(asked))
        stacks = [held_out.fresh(one, lang, kind, most - given[kind, one.label], draw) for one in asked]
        found = [case for row in zip_longest(*stacks) for case in row if case][:count]
        given.update((kind, case.package) for case in found)
        yield from found


def fresh_row(row: dict[str, object], release: Release, found: list[Case]) -> dict[str, object]:
    """Of the manifest, which is a list of packages too: what was asked for, and the cases that came of it."""
    cases = Counter(case.group for case in found if case.package == release.label)
    asked = {"version": release.version or row["version"], "before": release.before, "size": release.size}
    return row | asked | {"half": release.half, "cases": dict(cases)}


def counted(case: Case) -> tuple[str, ...]:
    return (case.group, case.size, case.half) if isinstance(case, FreshCase) else (case.group,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="folder of a training corpus, to be kept clear of")
    parser.add_argument(
        "--packages", type=Path, metavar="FILE.jsonl", help="of the fresh set: {package, version, before, size}"
    )
    parser.add_argument("--clones", type=Path, metavar="FOLDER", help="of the fresh set: clones of git, OWNER/NAME")
    parser.add_argument("--exclude", type=Path, required=True, help="data folder with exclude/ and the benchmarks")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl.gz")
    parser.add_argument(
        "--cases", type=int, default=200, help="of a group of the held-out set, where there are as many"
    )
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    if not arguments.packages and not arguments.corpus:
        parser.error("the held-out set needs --corpus")
    build(arguments)


if __name__ == "__main__":
    main()
