"""Downloads models from a hub into the cache that all tools of the hub share: safetensors, configuration and tokenizer
files, never pickles or code. No other module contacts a machine that the user has not paired.

`hf_hub_download` deletes a partial file when it gives up, so large files are downloaded here: a partial file is kept,
and enters the cache once its hash is right.
"""

import io
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from caesura import model_store
from caesura.ipc import locks

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # the import reads it

import httpx2
from huggingface_hub import (
    HfApi,
    constants,
    errors,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import build_hf_headers, disable_progress_bars  # type: ignore[attr-defined]  # documented

logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it warns about each broken connection
disable_progress_bars()

CONFIG = "config.json"
TAKEN = (
    *(CONFIG, "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
)
WHOLE = "model.safetensors"
SHARD = re.compile(r"model-\d{5,6}-of-\d{5,6}\.safetensors")
SHA256 = re.compile(r"[0-9a-f]{64}")
UNSAFE = re.compile(r"[^\w.+ ,-]")  # characters of a licence that are not printed
TIMEOUT_S = 10.0  # of the request for a list of files
UNREACHABLE = (  # from the hub's library and its HTTP library
    *(httpx2.HTTPError, errors.RevisionResolutionError, errors.LocalEntryNotFoundError, errors.FileMetadataError),
)
AGAIN = "run the same command again; it resumes"


class HubError(Exception):
    """A model cannot be downloaded; the message is a sentence for the user, with the next step."""


@dataclass(frozen=True)
class HubFile:
    name: str
    size: int  # bytes
    sha256: str  # from the hub; empty for small files, for which it has none


@dataclass(frozen=True)
class Repository:
    """A model at one commit, and the files of it that Caesura uses."""

    name: str  # ORG/NAME
    commit: str
    licence: str  # empty where none is stated
    parameters: int  # 0 where the hub has not counted them
    files: tuple[HubFile, ...]

    @property
    def page(self) -> str:
        return f"{constants.ENDPOINT}/{self.name}"

    @property
    def folder(self) -> Path:
        """Its files in the cache."""
        return _home(self.name) / "snapshots" / self.commit

    @property
    def weights(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files if file.name not in TAKEN)

    @property
    def missing(self) -> int:
        """Bytes to download."""
        return sum(file.size - _present(self, file) for file in self.files)


def cache() -> Path:
    return Path(constants.HF_HUB_CACHE)


def _home(name: str) -> Path:
    return cache() / repo_folder_name(repo_id=name, repo_type="model")


def find(name: str, revision: str | None) -> Repository:
    """Look up a model in the hub, or in the cache if HF_HUB_OFFLINE is set. Raises HubError."""
    with _sentences(name, revision):
        if constants.is_offline_mode():
            return _cached(name, revision)
        api = HfApi()
        commit = api.resolve_revision(name, revision=revision).resolved  # the cache keeps it, for offline use
        about = api.model_info(name, revision=commit, files_metadata=True, timeout=TIMEOUT_S)
        offered = [
            HubFile(one.rfilename, one.size or 0, _hash(one.lfs.sha256 if one.lfs else ""))
            for one in about.siblings or []
        ]
        parameters = about.safetensors.total if about.safetensors else 0
        return Repository(name, commit, _licence(about), parameters, _taken(name, offered))


def _cached(name: str, revision: str | None) -> Repository:
    """A model in the cache, which has no licences. Files with a hash are links to files named by it."""
    folder = Path(snapshot_download(name, revision=revision))
    offered = [HubFile(one.name, one.stat().st_size, _hash(one.resolve().name)) for one in folder.iterdir()]
    return Repository(name, folder.name, "", 0, _taken(name, offered))


def _taken(name: str, offered: list[HubFile]) -> tuple[HubFile, ...]:
    """The files to use. Raises HubError without weights or configuration."""
    names = {file.name for file in offered}
    weights = {WHOLE} & names or set(filter(SHARD.fullmatch, names))
    if not weights or CONFIG not in names:
        raise HubError(
            f"{name} has no {CONFIG} with safetensors, the only form that Caesura loads; choose another model."
        )
    return tuple(file for file in offered if file.name in weights or file.name in TAKEN)


def _hash(text: str) -> str:
    """A valid hash, else empty: it becomes the name of a file."""
    return text if SHA256.fullmatch(text) else ""


def _licence(about: ModelInfo) -> str:
    card = about.card_data
    said = (card.get("license"), card.get("license_name")) if card else (None, None)
    licence = said[1] if said[0] == "other" and said[1] else said[0]
    return UNSAFE.sub("", ", ".join(licence) if isinstance(licence, list) else str(licence or ""))[:60]


def fetch(model: Repository, file: HubFile, seen: Callable[[int], None]) -> str:
    """Download a file into the cache unless it is there. Returns its sha256. `seen` gets the number of bytes so far.
    Raises HubError."""
    with _sentences(model.name, model.commit):
        new = bool(file.sha256) and not _there(model, file)
        if new:
            _download(model, file, seen)
        path = Path(hf_hub_download(model.name, file.name, revision=model.commit))
        digest = file.sha256 if new else model_store.sha256(path)
    if file.sha256 and digest != file.sha256:
        raise HubError(f"{path.resolve()} is damaged: delete it and run the same command again.")
    seen(file.size)
    return digest


def _download(model: Repository, file: HubFile, seen: Callable[[int], None]) -> None:
    """Download a file into the cache, under its hash, where `hf_hub_download` finds it."""
    blob, partial = _blob(model, file), _partial(model, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab", buffering=0) as raw, _Growing(raw, seen) as growing:
        if not locks.lock(raw):
            raise HubError(f"Another process is downloading {file.name} of {model.name}; wait for it.")
        if (start := growing.tell()) < file.size:
            url = hf_hub_url(model.name, file.name, revision=model.commit)
            http_get(url, growing, resume_size=start, headers=build_hf_headers())
    if model_store.sha256(partial) != file.sha256:
        partial.unlink()
        raise HubError(
            f"{file.name} of {model.name} arrived damaged (its sha256 is wrong); run the same command again."
        )
    partial.replace(blob)


def _there(model: Repository, file: HubFile) -> bool:
    return (model.folder / file.name).exists() or (bool(file.sha256) and _blob(model, file).exists())


def _present(model: Repository, file: HubFile) -> int:
    """Bytes of a file in the cache."""
    if _there(model, file):
        return file.size
    partial = _partial(model, file)
    return min(file.size, partial.stat().st_size) if file.sha256 and partial.exists() else 0


def _blob(model: Repository, file: HubFile) -> Path:
    return _home(model.name) / "blobs" / file.sha256


def _partial(model: Repository, file: HubFile) -> Path:
    return _home(model.name) / "blobs" / f"{file.sha256}.incomplete"


class _Growing(io.BufferedWriter):
    """A writer that reports its length after every write."""

    def __init__(self, raw: io.FileIO, seen: Callable[[int], None]) -> None:
        super().__init__(raw)
        self._seen = seen

    def write(self, chunk: object) -> int:
        written = super().write(chunk)  # type: ignore[arg-type]  # as its base
        self._seen(self.tell())
        return written


def room() -> int:
    """Free bytes on the disk of the cache."""
    there = next(folder for folder in (cache(), *cache().parents) if folder.exists())
    return shutil.disk_usage(there).free


@contextmanager
def _sentences(name: str, revision: str | None) -> Iterator[None]:
    """Turn the library's errors into sentences with the next step."""
    hub = constants.ENDPOINT
    try:
        yield
    except errors.HFValidationError as error:
        raise HubError(f"{name!r} is not a valid name of a model on a hub; give it as ORG/NAME.") from error
    except errors.GatedRepoError as error:
        terms = f"accept its terms at {hub}/{name}, then set HF_TOKEN to a token of that account"
        raise HubError(f"{name} is gated: {terms}, and run the same command again.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"{hub} has no model {name}; check the name, or set HF_TOKEN if it is private.") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{name} has no revision {revision!r}; leave out `@{revision}` for the newest.") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        todo = "check HF_TOKEN" if status in (401, 403) else f"wait a moment, then {AGAIN}"
        raise HubError(f"{hub} answered {status} for {name}; {todo}.") from error
    except UNREACHABLE as error:
        if constants.is_offline_mode():
            raise HubError(f"{name} is not in {cache()}, and HF_HUB_OFFLINE is set; unset it to download.") from error
        raise HubError(f"{hub} cannot be reached; check the network and HF_ENDPOINT, then {AGAIN}.") from error
    except OSError as error:  # usually a full disk
        todo = f"free some space or set HF_HOME to another folder, then {AGAIN}"
        raise HubError(f"{cache()}: {error.strerror or 'the download failed'}; {todo}.") from error
