"""Packages of PyPI and npm, and source packages of Debian: fetched by pip (wheels only), npm and apt-get, read without
being installed. No code of a package ever runs. Go modules are read from git clones, which their user has made.
"""

from __future__ import annotations

import atexit
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path, PurePosixPath

from licences import LICENCE_FILE, gate, licence_of_module, licences_of_files  # isort: skip  (beside this script)

LANGUAGES = {
    ".py": "python", ".pyi": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript",
    ".jsx": "javascript", ".ts": "typescript", ".tsx": "typescript", ".json": "json", ".md": "markdown",
    ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".html": "html", ".css": "css", ".go": "go", ".rs": "rust",
    ".c": "c", ".h": "c",
}  # fmt: skip
FILE_BYTES = range(200, 60_001)
HELD_OUT_ONE_IN = 50
DOWNLOADS = 4  # each is a process of its own and costs a core for a second


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def project(name: str) -> str:
    """One spelling a package: the blocklist and the split must not depend on `-`, `_` or `.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


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


def download(registry: str, name: str, folder: str, clones: Path | None = None) -> Path | None:
    """The package's archive, by the registry's own client. Of Debian, that of its authors; debian/copyright lies in
    another beside it. Of `git`, OWNER/NAME@COMMIT from the clone in a folder of that name."""
    if registry == "pypi":
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command = [*pip, "--ignore-requires-python", "--disable-pip-version-check", "--dest", folder, name]
    elif registry == "npm":
        command = ["npm", "pack", name, "--silent", "--ignore-scripts", "--pack-destination", folder]
    elif registry == "git":
        assert clones is not None, "Go modules are read from clones"
        clone, _, commit = name.partition("@")
        command = [
            "git",
            "-C",
            str(clones.resolve() / clone),
            "archive",
            "--prefix=module/",
            f"--output={folder}/module.tgz",
        ]
        command += [commit, "--", "*.go", ":(icase)*licen[cs]e*"]  # with an odd name of it there is no archive
    else:
        command = [*apt(), "source", "--download-only", "--only-source", name]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=600, check=False).returncode:
        return None  # apt-get may have brought one of two files
    return next((path for path in Path(folder).iterdir() if ARCHIVE.search(path.name)), None)


ARCHIVE = re.compile(r"\.(whl|tgz)$|\.orig\.tar\.\w+$")


@cache
def apt() -> list[str]:
    """apt-get with an index of the sources behind the machine's own packages, kept apart from its own."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-apt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    wanted = ["--format", "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)", "Identifier: Packages", "Origin: Debian"]
    known = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True, check=False).stdout
    (folder / "list").write_text(known)
    options = {"Etc::SourceList": "list", "State": "", "State::Lists": "lists", "Cache": "cache"}
    places = [f"-oDir::{name}={folder / path}" for name, path in options.items()]
    command = ["apt-get", *places, "-oDir::Etc::SourceParts=-", "-oDir::State::status=/var/lib/dpkg/status"]
    subprocess.run([*command, "update"], capture_output=True, check=False)
    return command


def unpack(archive: Path) -> Iterator[tuple[str, Callable[[], bytes], int]]:
    """(path, reader, size) of each regular file, without the top folder that all have in common, if there is one;
    nothing is written to the disk."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                yield info.filename, partial(wheel.read, info), info.file_size
        return
    with tarfile.open(archive) as tar:
        members = {member.name.removeprefix("./"): member for member in tar if member.isfile()}
        tops = {path.partition("/")[0] for path in members}
        for path, member in members.items():
            short = path.partition("/")[2] if len(tops) == 1 and "/" in path else path
            yield short, partial(tar_member, tar, member), member.size


def tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    contents = tar.extractfile(member)
    assert contents is not None, "only regular files are asked for"
    return contents.read()


def language(path: str) -> str:
    return LANGUAGES.get(PurePosixPath(path).suffix.lower(), "")


def wanted(path: str, size: int, sizes: range) -> bool:
    if LICENCE_FILE.search(path) or path == "package.json" or path.endswith(".dist-info/METADATA"):
        return size <= 1_000_000
    return bool(language(path)) and size in sizes


def fetch(registry: str, name: str, sizes: range = FILE_BYTES, clones: Path | None = None) -> Package | None:
    """A package by its name, the newest release; or `NAME==1.0`, `NAME@1.0`, as the client would say."""
    with tempfile.TemporaryDirectory() as folder:
        archive = download(registry, name, folder, clones)
        if archive is None:
            return None
        files = {path: read() for path, read, size in unpack(archive) if wanted(path, size, sizes)}
        with archive.open("rb") as raw:
            digest = hashlib.file_digest(raw, "sha256").hexdigest()
        if registry == "debian":
            version = re.sub(r"^[^_]*_|\.orig\.tar\.\w+$", "", archive.name)
            allowed = dict(licences_of_files(copyright_of(Path(folder)), files))
            files, licence = {path: files[path] for path in allowed}, both(allowed.values())
        elif registry == "git":
            version, licence = name.partition("@")[2], licence_of_module(files)
        else:
            version, licence = gate(files)
    sources = [(path, raw) for path, raw in files.items() if language(path) and not LICENCE_FILE.search(path)]
    return Package(registry, bare(name), version, licence, digest, sources)


def bare(name: str) -> str:
    """The name of a package, of which a release may be named."""
    return name[:1] + re.split("[=@]", name[1:])[0]


def both(licences: Iterable[str]) -> str:
    """One expression for files under several."""
    return " AND ".join(f"({one})" if " " in one else one for one in sorted(set(licences)))


def copyright_of(folder: Path) -> str:
    """debian/copyright of a source package, "" where it has none of its own (the old format, a diff)."""
    for archive in folder.glob("*.debian.tar.*"):
        for path, read, _ in unpack(archive):
            if path == "copyright":
                return read().decode("utf-8", "replace")
    return ""


def fetch_all(
    names: list[tuple[str, str]], sizes: range = FILE_BYTES, clones: Path | None = None
) -> Iterator[tuple[str, str, Package | None]]:
    """In order, a few downloads ahead of the filters and no more: archives wait on the disk and in memory."""
    if any(registry == "debian" for registry, _ in names):
        apt()  # once, before several threads would make it
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        ahead: deque[tuple[str, str, Future[Package | None]]] = deque()
        todo = iter(names)
        try:
            while True:
                while len(ahead) < 2 * DOWNLOADS and (one := next(todo, None)):
                    ahead.append((*one, pool.submit(fetch, *one, sizes, clones)))
                if not ahead:
                    return
                registry, name, future = ahead.popleft()
                yield registry, name, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
