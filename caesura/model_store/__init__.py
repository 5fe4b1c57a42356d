"""The models on this machine: their names, folders, files, manifests and checksums. Loads no weights.

Two names are distributions, found without importing them. Every other name is a folder in the user's models folder. A
model may also be given by path: a folder, or a GGUF file.
"""

import functools
import hashlib
import importlib.util
import logging
import os
import re
import sys
from pathlib import Path

import msgspec

import caesura
from caesura import paths
from caesura.model_store import extras, reading
from caesura.model_store.reading import UnusableModel

DEFAULT = "default"  # stands for the first of PACKAGES that is installed
CODER, SMALL = "coder", "small"
PACKAGES = {CODER: "caesura_coder", SMALL: "caesura_small"}
FORMER = "embedded"  # the former name of `small`, which old settings contain
MANIFEST = "manifest.json"
PUBLISHED = ("model.safetensors", "model.safetensors.index.json")  # every published checkpoint has one of them
SHARDS = "model-*-of-*.safetensors"  # of a checkpoint with an index
GGUF = ".gguf"
WEIGHTS = (".safetensors", GGUF)  # files of any size
TILES = ".tiles.safetensors"  # how the name of a file ends that is mapped as it is (engine/weights/tiles)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # the names of a split file's parts, by llama.cpp

log = logging.getLogger(__name__)


class Manifest(msgspec.Struct, frozen=True):
    """The fields we read of a manifest: the sha256 of each file in its folder; for our own models the memory (MiB) of
    an engine that runs them; for those from a hub the repository and its commit."""

    files: dict[str, str]
    licence: str = ""
    license: str = ""  # the other spelling
    memory_mb: float | None = None
    repository: str = ""  # ORG/NAME
    revision: str = ""


class NoModel(Exception):
    """There is no such model; the message is a sentence for the user, with the next step."""


def named(model: str) -> str:
    """The name or path of a model, with `default` and a former name resolved. Raises NoModel if none is installed."""
    if model == DEFAULT:
        if (name := default()) is None:
            raise NoModel(none_installed())
        return name
    if model == FORMER:
        _say_renamed()
        return SMALL
    return model


def default() -> str | None:
    """The name that `default` stands for now."""
    return next(filter(_installed, PACKAGES), None)


def none_installed() -> str:
    """The next step if no model is installed, in a sentence."""
    return f"No model is installed: {_advice(CODER)}."


@functools.cache
def _say_renamed() -> None:
    """Logs once per process."""
    log.warning("The model `%s` is called `%s` now; change your setting to that, or to `default`.", FORMER, SMALL)


def _installed(name: str) -> Path | None:
    """The folder of a distribution; None if it is not installed or lacks its weights, as in some clones."""
    spec = importlib.util.find_spec(PACKAGES[name])  # locates the package without importing it
    homes = [Path(home) for home in spec.submodule_search_locations or []] if spec else []
    return next(filter(_whole, homes), None)


def _whole(folder: Path) -> bool:
    try:
        files = manifest(folder).files
    except UnusableModel:
        return False
    return bool(files) and all((folder / name).is_file() for name in files)


def _advice(name: str) -> str:
    clone = Path(caesura.__file__).parents[1] / "models" / name
    if clone.is_dir():
        return f"run `{sys.executable} -m pip install {clone}`"
    return extras.install(name)


def locate(model: str) -> Path:
    """The folder or the GGUF file of a model given by name or by path. Raises NoModel."""
    name = named(model)
    if name in PACKAGES:
        if folder := _installed(name):
            return folder
        raise NoModel(f"The model {name} is not installed: {_advice(name)}.")
    candidates = [paths.models() / name] if Path(name).name == name else []
    for path in [*candidates, Path(name).expanduser().absolute()]:
        if path.is_dir():
            return _only_file(path) or path
        if path.suffix == GGUF and path.is_file():
            return path
    raise NoModel(f"There is no model {name!r}; `caesura models` lists those there are.")


def _only_file(folder: Path) -> Path | None:
    """The GGUF file of a folder that holds no other model: the first part of a split one."""
    if (folder / "config.json").is_file():
        return None
    found = [file for file in folder.glob(f"*{GGUF}") if file.is_file() and parts(file)[0] == file]
    return found[0] if len(found) == 1 else None


def parts(file: Path) -> list[Path]:
    """The parts of a split GGUF file that lie next to the given one, in order; any other file is its only part."""
    part = _PART.search(file.name)
    if part is None:
        return [file]
    stem, total = file.name[: part.start()], part[2]
    found = (file.with_name(f"{stem}-{number:05}-of-{total}{GGUF}") for number in range(1, int(total) + 1))
    return [path for path in found if path.is_file()] or [file]


def title(file: Path) -> str:
    """The name of a GGUF file, without the number of its part."""
    part = _PART.search(file.name)
    return file.name[: part.start()] if part else file.stem


def resolve(model: str) -> str:
    """The model as a name or path that means the same in every folder: a distribution or an absolute path. An unknown
    name stays as it is, and the engine reports it. Raises NoModel as `named`."""
    name = named(model)
    if name in PACKAGES:
        return name
    try:
        return str(locate(name))
    except NoModel:
        return name


def drafting() -> str:
    """The model that drafts for another one, as the user names it, or an empty text."""
    return os.environ.get("CAESURA_DRAFT", "")


def names() -> list[str]:
    """The models that can be named: distributions, then those in the user's models folder. Raises UnsafeFolder."""
    own = paths.models()
    found = [path.name for path in own.iterdir() if _usable(path)] if own.is_dir() else []
    return [*filter(_installed, PACKAGES), *sorted(found)]


def _usable(found: Path) -> bool:
    return (found / MANIFEST).is_file() or published(found) or _only_file(found) is not None


def published(found: Path) -> bool:
    """True if a folder has weights under their publishers' names; such a folder needs no manifest. Shards without their
    index count, so that the missing index is named."""
    return any((found / name).exists() for name in PUBLISHED) or any(found.glob(SHARDS))


def files(found: Path) -> list[Path]:
    """The files of a model, without the Python files of a distribution."""
    if found.is_file():
        return parts(found)
    return sorted(file for file in found.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc"))


def identity(model: str) -> str:
    """A text that differs for every two models: the hash of the manifest, else the path; for a file also its size and
    time. Raises NoModel as `named`."""
    name = named(model)
    try:
        found = locate(name)
    except NoModel:
        return name
    if found.is_file():
        return "|".join(_of_file(part) for part in parts(found))
    try:
        return hashlib.sha256(reading.read(found / MANIFEST)).hexdigest()
    except UnusableModel:
        return str(found.resolve())


def _of_file(file: Path) -> str:
    state = file.stat()
    return f"{file.resolve()}:{state.st_size}:{state.st_mtime_ns}"


def manifest(found: Path) -> Manifest:
    """The manifest of a model folder. Raises UnusableModel."""
    made = reading.decoded(found / MANIFEST, Manifest)
    for name in made.files:
        if Path(name).name != name:  # anything else could leave the folder
            raise UnusableModel(
                f"{found / MANIFEST} names {reading.quoted(name)}, which is no file of its folder; {reading.AGAIN}."
            )
    return made


def damaged(found: Path) -> list[str]:
    """The files that are missing from a model folder or differ from its manifest. Raises UnusableModel."""
    return [name for name, expected in manifest(found).files.items() if not _matches(found / name, expected)]


def _matches(path: Path, expected: str) -> bool:
    try:
        return sha256(path) == expected
    except (UnusableModel, OSError):
        return False


def sha256(path: Path) -> str:
    """In hexadecimal digits. Raises UnusableModel or OSError."""
    with reading.opened(path, None if path.suffix in WEIGHTS else reading.MAX_LARGE) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
