"""The models on this machine: names, and the folders and files that they stand for; manifests and checksums. Loads no
weights.

Two names are distributions of their own, found without importing them. Every other name is a folder of the user's
models folder. A model may also be given by path: a folder, or a GGUF file.
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

DEFAULT = "default"  # stands for the first of PACKAGES that is installed
CODER, SMALL = "coder", "small"
PACKAGES = {CODER: "caesura_coder", SMALL: "caesura_small"}
FORMER = "embedded"  # what `small` was called, in settings of that time
MANIFEST = "manifest.json"
PUBLISHED = ("model.safetensors", "model.safetensors.index.json")  # one of them is in every published checkpoint
GGUF = ".gguf"
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")  # how llama.cpp names the parts of a split file

log = logging.getLogger(__name__)


class Manifest(msgspec.Struct, frozen=True):
    """What every manifest says, whatever else it does: the sha256 of each file of its folder. Our own models also have
    the MiB that an engine takes with them, those from a hub their repository and its commit."""

    files: dict[str, str]
    licence: str = ""
    license: str = ""  # as others spell it
    memory_mb: float | None = None
    repository: str = ""  # ORG/NAME
    revision: str = ""


class NoManifest(Exception):
    """A folder without a readable manifest; the message is a sentence for the user."""


class NoModel(Exception):
    """There is no such model; the message is a sentence for the user, with what to do about it."""


def named(model: str) -> str:
    """The name or path of a model, where a word may stand for another. Raises NoModel where `default` has nothing to
    stand for."""
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
    """What to do where `default` stands for nothing, in a sentence."""
    return f"No model is installed: {_advice(CODER)}."


@functools.cache
def _say_renamed() -> None:
    """Once a process."""
    log.warning("The model `%s` is called `%s` now; change your setting to that, or to `default`.", FORMER, SMALL)


def _installed(name: str) -> Path | None:
    """The folder of a distribution that is whole. One without its weights, as in a clone that lacks them, is none."""
    spec = importlib.util.find_spec(PACKAGES[name])  # locates the package without importing it
    homes = [Path(home) for home in spec.submodule_search_locations or []] if spec else []
    return next(filter(_whole, homes), None)


def _whole(folder: Path) -> bool:
    try:
        files = manifest(folder).files
    except NoManifest:
        return False
    return bool(files) and all((folder / name).is_file() for name in files)


def _advice(name: str) -> str:
    clone = Path(caesura.__file__).parents[1] / "models" / name
    if clone.is_dir():
        return f"run `{sys.executable} -m pip install {clone}`"
    return f"run `pip install ./models/{name}` in a clone of Caesura"


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
    """The parts of a split GGUF file that lie beside the given one, in their order; of any other file, itself."""
    part = _PART.search(file.name)
    if part is None:
        return [file]
    stem, total = file.name[: part.start()], part[2]
    found = (file.with_name(f"{stem}-{number:05}-of-{total}{GGUF}") for number in range(1, int(total) + 1))
    return [path for path in found if path.is_file()] or [file]


def title(file: Path) -> str:
    """What a GGUF file is called: without its number where it is part of a split one."""
    part = _PART.search(file.name)
    return file.name[: part.start()] if part else file.stem


def resolve(model: str) -> str:
    """The model in words that mean the same in every folder: the name of a distribution or an absolute path. A name
    that stands for nothing stays as it is, for the engine to say so. Raises NoModel as `named`."""
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
    """The models that can be named: distributions, then those in the user's models folder."""
    return [*filter(_installed, PACKAGES), *sorted(found.name for found in paths.models().iterdir() if _usable(found))]


def _usable(found: Path) -> bool:
    return (found / MANIFEST).is_file() or published(found) or _only_file(found) is not None


def published(found: Path) -> bool:
    """Whether a folder has weights as their publishers name them; such a folder needs no manifest."""
    return any((found / name).is_file() for name in PUBLISHED)


def files(found: Path) -> list[Path]:
    """The files of a model. A distribution has some of Python's besides."""
    if found.is_file():
        return parts(found)
    return sorted(file for file in found.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc"))


def identity(model: str) -> str:
    """What tells this model from every other: its manifest, or where it lies if it has none; of a file its size and
    time too. Raises NoModel as `named`."""
    name = named(model)
    try:
        found = locate(name)
    except NoModel:
        return name
    if found.is_file():
        return "|".join(_of_file(part) for part in parts(found))
    try:
        return hashlib.sha256((found / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return str(found.resolve())


def _of_file(file: Path) -> str:
    state = file.stat()
    return f"{file.resolve()}:{state.st_size}:{state.st_mtime_ns}"


def manifest(found: Path) -> Manifest:
    """The manifest of a model folder. Raises NoManifest."""
    try:
        return msgspec.json.decode((found / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise NoManifest(f"{found} has no {MANIFEST}; install the model again.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NoManifest(f"{found / MANIFEST} is damaged; install the model again.") from error


def damaged(found: Path) -> list[str]:
    """The files that are missing from a model folder or differ from its manifest. Raises NoManifest."""
    return [name for name, expected in manifest(found).files.items() if not _matches(found / name, expected)]


def _matches(path: Path, expected: str) -> bool:
    try:
        return sha256(path) == expected
    except OSError:
        return False


def sha256(path: Path) -> str:
    """In hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
