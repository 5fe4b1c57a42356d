"""Builds the training corpus from packages of PyPI, npm and Debian, through filters of licence, quality and leaks.

    python training/corpus.py --out FOLDER --mb N --exclude DATA [--seed S]

Packages are named below by hand and fetched by packages.py: no code of a package ever runs.
One line of manifest.jsonl a finished package: a second run goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import random
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from licences import refused_header  # isort: skip  (beside this script)
from packages import Package, fetch_all, language, project, sha256  # isort: skip

# Large, maintained and permissive. Each is downloaded whole and used: a registry is no catalogue to scan.
# ruff: noqa: SIM905 - one name a line would be two screens
PYPI = """
homeassistant django sympy sqlalchemy twisted networkx statsmodels astropy xarray dask distributed bokeh holoviews panel
transformers diffusers accelerate peft datasets keras jax flax trl sentence-transformers torch-geometric timm kornia
nova neutron cinder keystone glance openstack-heat ironic octavia swift manila magnum designate trove openstacksdk
python-openstackclient oslo.messaging oslo.db apache-airflow-core apache-superset apache-libcloud moto mlflow dagster
prefect luigi kedro metaflow great-expectations dbt-core ibis-framework sqlglot feast zenml litellm langchain
langchain-community langchain-core llama-index-core google-adk crewai smolagents haystack-ai lightning monai
nemo-toolkit espnet speechbrain sktime nilearn mne nibabel sunpy trimesh pyvista vispy manim arcade textual rich
prompt-toolkit pyqtgraph qiskit cirq-core pennylane pymatgen nltk gluonts pyod optuna nevergrad botorch gpytorch
pyro-ppl pymc numpyro tensorflow-datasets tensorflow-probability tensor2tensor onnxscript wagtail django-cms
djangorestframework celery kombu flask werkzeug jinja2 aiohttp tornado starlette fastapi pydantic scrapy ipython
jupyter-server nbconvert sphinx pytest tox virtualenv poetry poetry-core hatch pdm mypy jedi black streamlit
peewee mongoengine mitmproxy angr checkov pymodbus discord.py telethon slack-sdk web3 vyper indico evennia beets
strawberry-graphql zha esphome pyomo pydicom yt pandas geopandas pyramid falcon bottle cherrypy sanic litestar
nicegui dulwich cvxpy lark mesa pybamm mteb pyiceberg temporalio python-lsp-server procrastinate hypercorn
""".split()

NPM = """
three ol @cesium/engine phaser eslint webpack mocha fastify mongoose sequelize knex undici express svelte rxjs zod
effect @effect/platform @effect/cli ajv mathjs video.js hls.js leaflet prosemirror-view prosemirror-model codemirror
@tanstack/query-core @tanstack/table-core @tanstack/router-core viem ethers @trpc/server redux @reduxjs/toolkit mobx
preact @react-aria/interactions @react-aria/utils fp-ts io-ts immer lexical typeorm jsdom prettier stylelint postcss
jquery bootstrap chart.js socket.io pino marked markdown-it vega node-red @node-red/nodes nodemailer axios got hono
@hapi/hapi @ai-sdk/provider-utils openai @deck.gl/core @luma.gl/core maplibre-gl matter-js tone d3-geo d3-shape
""".split()

# What wheels and npm packages have little of: Go, Rust, C, and files of configuration.
DEBIAN = """
etcd prometheus caddy containerd kubernetes docker.io hugo restic rclone gh libpod skopeo golang-golang-x-tools
golang-golang-x-net golang-google-grpc golang-github-spf13-cobra rust-clap rust-bat rust-ripgrep rust-serde rust-tokio
rust-syn rust-regex rust-hyper rust-rayon rust-nom rust-coreutils rust-fd-find cargo redis openssl libuv1 mbedtls musl
nginx lua5.4 memcached libevent jansson nghttp2 tmux wayland weston libzstd
""".split()

# Of the bytes asked for; Python takes the rest, at least 84 %.
LANGUAGE_SHARES = {
    "javascript": 0.045, "typescript": 0.045, "markdown": 0.02, "json": 0.01, "yaml": 0.005, "toml": 0.005,
    "html": 0.005, "css": 0.005, "go": 0.01, "rust": 0.01, "c": 0.01,
}  # fmt: skip
TEST_SHARE = 0.08
PACKAGE_SHARE = 0.06
SHARD_BYTES = 8_000_000

# ---- filters of one file

VENDORED = re.compile(
    r"(^|/)(_?vendor(ed)?|third_?party|externals?|_externals|extern|node_modules|bundled|dist|build|umd|cjs|esm|es"
    r"|bundles?|minified|static/(js|lib|libs))/",
    re.I,
)
GENERATED_PATH = re.compile(r"\.min\.|[.-]bundle\.|_pb2|\.d\.[cm]?ts$|package-lock|\.map$|parsetab")
GENERATED_TEXT = re.compile(
    r"do not edit|auto-?generated|@generated|(code|file|is|was) generated (by|from|with)|by the protocol buffer", re.I
)
TRANSPILED = re.compile(r"sourceMappingURL=|__esModule|__createBinding|_interopRequire|_classCallCheck")
TEST = re.compile(r"(^|/)(tests?|testing|specs?|__tests__)/|(^|/)(test_|conftest)[^/]*$|[._-](test|spec)s?\.\w+$", re.I)
SECRETS = re.compile(
    r"AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22}|xox[abprs]-[0-9A-Za-z-]{10,}|AIza[0-9A-Za-z_-]{35}"
    r"|\bsk-(proj-|ant-)?[A-Za-z0-9_-]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\."
    r"|(?i:passw(or)?d|secret|token|api_?key)['\"]?\s*[:=]\s*['\"](?=[^'\"]*\d)(?=[^'\"]*[A-Za-z])[^'\"\s]{16,}['\"]"
)
EMAIL = re.compile(r"(?<![\w.+-])(?!git@)[\w.+-]+@(?!example\.)([\w-]+\.)+(com|org|net|edu|gov|io|dev|[a-z]{2})\b")
PARSERS: dict[str, Callable[[str], object]] = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads}


def unparsable(text: str, lang: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            PARSERS.get(lang, len)(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return True
    return False


def misshapen(text: str) -> bool:
    """Minified code, data tables, text that is not UTF-8: lines too long, too few letters, or undecodable bytes."""
    lines = text.splitlines()
    letters = sum(map(str.isalpha, text))
    return len(text) > 100 * len(lines) or max(map(len, lines)) > 1000 or letters < 0.3 * len(text) or "\ufffd" in text


def fault(path: str, text: str, lang: str) -> str:
    """Why a file is left out for what it is by itself, or ""."""
    checks: list[tuple[str, Callable[[], object]]] = [
        ("vendored", lambda: VENDORED.search(path)),
        ("generated", lambda: GENERATED_PATH.search(path) or GENERATED_TEXT.search(text[:1500])),
        ("transpiled", lambda: lang == "javascript" and TRANSPILED.search(text)),
        ("misshapen", lambda: misshapen(text)),
        ("header licence", lambda: refused_header(text)),
        ("secret", lambda: SECRETS.search(text)),
        ("unparsable", lambda: unparsable(text, lang)),
    ]
    return next((reason for reason, found in checks if found()), "")


# ---- what must never be learnt


def grams(text: str, n: int = 13) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text)
    return zip(*(words[i:] for i in range(n)), strict=False)


@dataclass
class Exclusions:
    """Benchmarks and what was set aside for evaluation: hashed packages and lines, and texts by 13-grams and names."""

    packages: set[str]
    lines: set[str]
    grams: set[tuple[str, ...]]
    names: set[str]

    @classmethod
    def read(cls, data: Path) -> Exclusions:
        paths = sorted(data.glob("human*eval*/*.jsonl.gz"))
        tasks = [json.loads(line) for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]
        assert tasks, f"no benchmark under {data}: a corpus built without it would leak"
        texts = (task["prompt"] + task.get("canonical_solution", "") + task.get("suffix", "") for task in tasks)
        return cls(
            packages=set((data / "exclude/blocklist_sha256.txt").read_text().split()),
            lines=set((data / "exclude/target_line_hashes16.txt").read_text().split()),
            grams={gram for text in set(texts) for gram in grams(text)},
            names={task["entry_point"] for task in tasks if "entry_point" in task},
        )

    def package(self, registry: str, name: str) -> bool:
        return any(sha256(f"{registry}:{spelling}") in self.packages for spelling in (name.lower(), project(name)))

    def line(self, text: str) -> bool:
        return any(sha256(" ".join(line.split()))[:16] in self.lines for line in set(text.splitlines()))

    def leak(self, text: str) -> bool:
        """A benchmark's function defined at the top level, or three or more of its 13-grams."""
        defined = re.findall(r"^(?:async )?(?:def|function|func|fn|const) (\w+)", text, re.M)
        return not self.names.isdisjoint(defined) or len(self.grams.intersection(grams(text))) >= 3


class Duplicates:
    """Remembers the long lines of every file taken, and the files themselves without their white space."""

    def __init__(self) -> None:
        self.files: set[int] = set()
        self.lines: set[int] = set()

    def add(self, text: str) -> None:
        self.files.add(hash("".join(text.split())))
        self.lines.update(self.long_lines(text))

    def seen(self, text: str) -> bool:
        lines = self.long_lines(text)
        known = sum(line in self.lines for line in lines)
        return hash("".join(text.split())) in self.files or known > 0.6 * len(lines)

    @staticmethod
    def long_lines(text: str) -> list[int]:
        return [hash(line) for line in map(str.strip, text.splitlines()) if len(line) >= 24]


# ---- the corpus


class Corpus:
    """Takes packages, applies every filter and writes shards. Records and manifest lines wait until a shard is full."""

    def __init__(self, folder: Path, target: int, exclusions: Exclusions, seed: int) -> None:
        self.folder, self.target, self.exclusions = folder, target, exclusions
        self.random = random.Random(seed)
        self.duplicates = Duplicates()
        self.bytes: Counter[str] = Counter()
        self.waiting: dict[str, list[dict[str, str]]] = {"shard": [], "heldout": []}
        self.rows: list[dict[str, object]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.resume()

    def __repr__(self) -> str:
        python, done, target = (n / 1e6 for n in (self.bytes["python"], self.bytes["all"], self.target))
        return f"<Corpus {done:.0f} of {target:.0f} MB, python {python:.0f}>"

    @property
    def full(self) -> bool:
        return self.bytes["all"] >= self.target

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.jsonl"

    def resume(self) -> None:
        for path in sorted(self.folder.glob("*.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for record in map(json.loads, lines):
                    self.count(record)

    def finished(self) -> set[str]:
        if not self.manifest.exists():
            return set()
        return {json.loads(line)["package"] for line in self.manifest.read_text().splitlines()}

    def count(self, record: dict[str, str]) -> None:
        size = len(record["text"].encode())
        self.duplicates.add(record["text"])
        self.bytes.update({"all": size, record["lang"]: size, "test": size if TEST.search(record["path"]) else 0})

    def take(self, package: Package) -> None:
        """All files of a package, in an order of chance, so that a share of a large one is a sample of it."""
        kept, dropped = 0, Counter[str]()
        before = self.bytes["all"]
        self.random.shuffle(package.files)
        for path, raw in package.files if package.licence else ():
            text = EMAIL.sub("name@example.com", raw.decode("utf-8", "replace"))
            reason = self.refusal(path, text, self.bytes["all"] - before)
            if reason:
                dropped[reason] += 1
                continue
            kept += 1
            self.accept(package, path, text)
        if not package.licence:
            dropped["package licence"] = len(package.files)
        row = package.origin | {"sha256": package.sha256, "files": kept, "bytes": self.bytes["all"] - before}
        self.rows.append(row | {"dropped": dict(dropped)})
        if sum(map(text_size, self.waiting.values())) >= SHARD_BYTES:
            self.flush()

    def refusal(self, path: str, text: str, package_bytes: int) -> str:
        lang = language(path)
        if package_bytes > PACKAGE_SHARE * self.target:
            return "package share"
        if self.bytes[lang] > LANGUAGE_SHARES.get(lang, 1.0) * self.target:
            return "language share"
        if TEST.search(path) and self.bytes["test"] > TEST_SHARE * self.target:
            return "test share"
        if reason := fault(path, text, lang):
            return reason
        if self.exclusions.line(text):
            return "excluded line"
        if self.exclusions.leak(text):
            return "leak"
        return "duplicate" if self.duplicates.seen(text) else ""

    def accept(self, package: Package, path: str, text: str) -> None:
        record = {"path": path, **package.origin, "lang": language(path), "text": text}
        self.count(record)
        self.waiting["heldout" if package.held_out else "shard"].append(record)

    def flush(self) -> None:
        """Shards first, then their manifest lines: a package counts as finished only when its text is on the disk."""
        for stem, records in self.waiting.items():
            self.random.shuffle(records)
            shards = max(1, round(text_size(records) / SHARD_BYTES))
            for first in range(shards):
                self.write(stem, records[first::shards])
            records.clear()
        with self.manifest.open("a") as manifest:
            manifest.writelines(json.dumps(row) + "\n" for row in self.rows)
        self.rows.clear()

    def write(self, stem: str, records: list[dict[str, str]]) -> None:
        if not records:
            return
        path = self.folder / f"{stem}-{len(list(self.folder.glob(f'{stem}-*.jsonl.gz'))):03d}.jsonl.gz"
        partial = path.with_suffix(".partial")
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=6) as out:
            out.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        partial.rename(path)  # a reader sees whole shards only


def text_size(records: list[dict[str, str]]) -> int:
    return sum(len(record["text"]) for record in records)


def sources(exclusions: Exclusions, finished: set[str], seed: int) -> list[tuple[str, str]]:
    lists = {"pypi": PYPI, "npm": NPM, "debian": DEBIAN}
    names = [(registry, name) for registry, some in lists.items() for name in some]
    random.Random(seed).shuffle(names)
    names.sort(key=lambda one: not Package(*one).held_out)  # first, so that a small corpus has a held-out split too
    return [one for one in names if ":".join(one) not in finished and not exclusions.package(*one)]


def build(folder: Path, target: int, data: Path, seed: int) -> None:
    exclusions = Exclusions.read(data)
    corpus = Corpus(folder, target, exclusions, seed)
    for registry, name, package in fetch_all(sources(exclusions, corpus.finished(), seed)):
        if package is None:
            print(f"no archive: {registry}:{name}", flush=True)
            continue
        corpus.take(package)
        print(corpus, package.label, package.version, package.licence[:40] or "(refused)", flush=True)
        if corpus.full:
            break
    corpus.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards and the manifest")
    parser.add_argument("--mb", type=float, required=True, help="megabytes of text in all")
    parser.add_argument("--exclude", type=Path, required=True, help="data folder with exclude/ and the benchmarks")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    build(arguments.out, round(arguments.mb * 1e6), arguments.exclude, arguments.seed)


if __name__ == "__main__":
    main()
