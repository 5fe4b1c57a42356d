"""Builds the training corpus from packages of PyPI and npm, through a licence gate and quality and leak filters.

    python training/corpus.py --out FOLDER --mb N --exclude DATA [--seed S]

Packages are named below by hand and fetched by pip (wheels only) and npm: no code of a package ever runs.
One line of manifest.jsonl a finished package: a second run goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import warnings
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import partial
from pathlib import Path, PurePosixPath

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

LANGUAGES = {
    ".py": "python", ".pyi": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript",
    ".jsx": "javascript", ".ts": "typescript", ".tsx": "typescript", ".json": "json", ".md": "markdown",
    ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".html": "html", ".css": "css", ".go": "go", ".rs": "rust",
    ".c": "c", ".h": "c",
}  # fmt: skip
# Of the bytes asked for; Python takes the rest, at least 84 %.
LANGUAGE_SHARES = {
    "javascript": 0.045, "typescript": 0.045, "markdown": 0.02, "json": 0.01, "yaml": 0.005, "toml": 0.005,
    "html": 0.005, "css": 0.005, "go": 0.01, "rust": 0.01, "c": 0.01,
}  # fmt: skip
TEST_SHARE = 0.08
PACKAGE_SHARE = 0.06
FILE_BYTES = range(200, 60_001)
SHARD_BYTES = 8_000_000
HELD_OUT_ONE_IN = 50
DOWNLOADS = 4  # each is a pip or npm process and costs a core for a second

# ---- the licence gate

ALLOWED = {
    "mit", "mit-0", "bsd-2-clause", "bsd-3-clause", "apache-2.0", "psf-2.0", "python-2.0", "isc", "0bsd", "zlib",
}  # fmt: skip
ALLOWED_CLASSIFIER = re.compile(r"\b(MIT|BSD|Apache Software|Python Software|ISC License|Zero-Clause|zlib)\b", re.I)
ALLOWED_WORDS = re.compile(
    r"(the )?(new |modified |simplified |revised |\d-clause )?(MIT|BSD|Apache|PSF|Python Software|ISC|0BSD|zlib)\b",
    re.I,
)
REFUSED_TEXT = re.compile(
    r"GNU (lesser |library |affero )?general public|\b[AL]?GPL(v|-)?[23]|mozilla public|\bMPL-?[12]|creative ?commons"
    r"|\bCC[- ]BY|business source|server side public|elastic license|commons clause|eclipse public|non-?commercial",
    re.I,
)
# A sentence of Python's own licence, which is allowed and names the GPL only to say where older code came from.
PYTHON_LICENCE = re.compile(r"previously\s+distributed\s+under\s+the\s+GNU\s+General\s+Public\s+License\s+\(GPL\)")
LICENCE_FILE = re.compile(r"(^|/)((un)?licen[cs]es?|copying)\b[^/]*$|(^|/)licen[cs]es/[^/]+$", re.I)
SPDX_HEADER = re.compile(r"SPDX-License-Identifier:\s*([\w.+() -]+)")


def spdx_allowed(expression: str) -> bool:
    """AND: all allowed; OR: any; WITH is refused, since `X WITH Y` is no allowed id."""
    while inner := re.search(r"\(([^()]*)\)", expression):
        expression = expression.replace(inner[0], "MIT" if spdx_allowed(inner[1]) else "refused")
    choices = re.split(r"\s+OR\s+", expression, flags=re.I)
    return any(all(one.strip().lower() in ALLOWED for one in re.split(r"\s+AND\s+", c, flags=re.I)) for c in choices)


def licence_of(spdx: str, classifiers: Iterable[str], words: str) -> str:
    """The licence a package declares, or "" if that is none of the allowed ones: SPDX, else classifiers, else words."""
    named = [c.rsplit("::", 1)[-1].strip() for c in classifiers if c.startswith("License ::")]
    named = [name for name in named if name != "OSI Approved"]
    if spdx:
        return spdx if spdx_allowed(spdx) else ""
    if named:
        return " AND ".join(named) if all(ALLOWED_CLASSIFIER.search(name) for name in named) else ""
    if spdx_allowed(words):
        return words
    match = ALLOWED_WORDS.match(words.strip())
    return match[0] if match and not REFUSED_TEXT.search(words) else ""


def refused_header(text: str) -> bool:
    """Whether a file says at its top that another licence than the package's holds for it."""
    head = text[:2000]
    spdx = SPDX_HEADER.search(head)
    return bool(REFUSED_TEXT.search(head) or (spdx and not spdx_allowed(spdx[1].strip())))


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


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def grams(text: str, n: int = 13) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text)
    return zip(*(words[i:] for i in range(n)), strict=False)


def project(name: str) -> str:
    """One spelling a package: the blocklist and the split must not depend on `-`, `_` or `.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


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


# ---- packages


@dataclass
class Package:
    registry: str
    name: str
    version: str = ""
    licence: str = ""
    sha256: str = ""
    files: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.registry}:{self.name}"

    @property
    def origin(self) -> dict[str, str]:
        return {"package": self.label, "version": self.version, "licence": self.licence}

    @property
    def held_out(self) -> bool:
        return int(sha256(project(self.name)), 16) % HELD_OUT_ONE_IN == 0


def download(registry: str, name: str, folder: str) -> Path | None:
    """The package's archive, by the registry's own client; neither command runs code of the package."""
    if registry == "pypi":
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command = [*pip, "--ignore-requires-python", "--disable-pip-version-check", "--dest", folder, name]
    else:
        command = ["npm", "pack", name, "--silent", "--ignore-scripts", "--pack-destination", folder]
    subprocess.run(command, capture_output=True, timeout=600, check=False)
    return next((path for path in Path(folder).iterdir() if path.suffix in (".whl", ".tgz")), None)


def unpack(archive: Path) -> Iterator[tuple[str, Callable[[], bytes], int]]:
    """(path, reader, size) of each regular file; nothing is written to the disk."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                yield info.filename, partial(wheel.read, info), info.file_size
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                path = member.name.split("/", 1)[-1]
                yield path, partial(tar_member, tar, member), member.size


def tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    contents = tar.extractfile(member)
    assert contents is not None, "only regular files are asked for"
    return contents.read()


def language(path: str) -> str:
    return LANGUAGES.get(PurePosixPath(path).suffix.lower(), "")


def wanted(path: str, size: int) -> bool:
    if LICENCE_FILE.search(path) or path == "package.json" or path.endswith(".dist-info/METADATA"):
        return size <= 1_000_000
    return bool(language(path)) and size in FILE_BYTES


def declared(files: dict[str, bytes]) -> tuple[str, str]:
    """(version, licence) from a wheel's METADATA or an npm package.json."""
    metadata = next((raw for path, raw in files.items() if path.endswith(".dist-info/METADATA")), None)
    if metadata is not None:
        head = HeaderParser().parsestr(metadata.decode("utf-8", "replace"))
        spdx, words = head["License-Expression"] or "", head["License"] or ""
        return head["Version"], licence_of(spdx, head.get_all("Classifier", []), words)
    manifest = json.loads(files["package.json"])
    licence = manifest.get("license", "")
    return manifest["version"], licence_of(licence if isinstance(licence, str) else "", [], "")


def gate(files: dict[str, bytes]) -> tuple[str, str]:
    """(version, licence); no licence if what is declared or what lies in the archive is not allowed."""
    version, licence = declared(files)
    texts = (raw.decode("utf-8", "replace") for path, raw in files.items() if LICENCE_FILE.search(path))
    refused = any(REFUSED_TEXT.search(PYTHON_LICENCE.sub("", text)) for text in texts)
    return version, "" if refused else licence


def fetch(registry: str, name: str) -> Package | None:
    with tempfile.TemporaryDirectory() as folder:
        archive = download(registry, name, folder)
        if archive is None:
            return None
        files = {path: read() for path, read, size in unpack(archive) if wanted(path, size)}
        version, licence = gate(files)
        with archive.open("rb") as raw:
            digest = hashlib.file_digest(raw, "sha256").hexdigest()
    sources = [(path, raw) for path, raw in files.items() if language(path) and not LICENCE_FILE.search(path)]
    return Package(registry, name, version, licence, digest, sources)


def fetch_all(names: list[tuple[str, str]]) -> Iterator[tuple[str, str, Package | None]]:
    """In order, a few downloads ahead of the filters and no more: archives wait on the disk and in memory."""
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        ahead: deque[tuple[str, str, Future[Package | None]]] = deque()
        todo = iter(names)
        try:
            while True:
                while len(ahead) < 2 * DOWNLOADS and (one := next(todo, None)):
                    ahead.append((*one, pool.submit(fetch, *one)))
                if not ahead:
                    return
                registry, name, future = ahead.popleft()
                yield registry, name, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


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
    names = [("pypi", name) for name in PYPI] + [("npm", name) for name in NPM]
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
