"""The model folders on this machine: their names, manifests and checksums. Loads no weights."""

import hashlib
import importlib.util
from pathlib import Path

import msgspec

from caesura import paths

EMBEDDED = "embedded"
MANIFEST = "manifest.json"
PUBLISHED = ("model.safetensors", "model.safetensors.index.json")  # one of them is in every published checkpoint


class Manifest(msgspec.Struct, frozen=True):
    """What every manifest says, whatever else it does: the sha256 of each file of its folder."""

    files: dict[str, str]


class NoManifest(Exception):
    """A folder without a readable manifest; the message is a sentence for the user."""


def folder(model: str) -> Path | None:
    """The folder of a model given by name or by path, or None when there is none."""
    if model == EMBEDDED:
        spec = importlib.util.find_spec("caesura.engine")  # locates the package without importing it
        candidates = [Path(home) / EMBEDDED for home in spec.submodule_search_locations or []] if spec else []
    elif Path(model).name == model:
        candidates = [paths.models() / model, Path(model).absolute()]
    else:
        candidates = [Path(model).absolute()]
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def resolve(model: str) -> str:
    """The model in words that mean the same in every folder: a built-in name or an absolute path."""
    found = None if model == EMBEDDED else folder(model)
    return str(found) if found else model


def names() -> list[str]:
    """The models that can be named: the embedded one and those in the user's models folder."""
    own = sorted(found.name for found in paths.models().iterdir() if (found / MANIFEST).is_file() or published(found))
    embedded = folder(EMBEDDED)
    return [*([EMBEDDED] if embedded and (embedded / MANIFEST).is_file() else []), *own]


def published(found: Path) -> bool:
    """Whether a folder has weights as their publishers name them; such a folder needs no manifest."""
    return any((found / name).is_file() for name in PUBLISHED)


def identity(model: str) -> str:
    """What tells this model from every other: its manifest, or its path where it has none."""
    found = folder(model)
    if found is None:
        return model
    try:
        return hashlib.sha256((found / MANIFEST).read_bytes()).hexdigest()
    except OSError:
        return str(found.resolve())


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
    return [name for name, sha256 in manifest(found).files.items() if _sha256(found / name) != sha256]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
