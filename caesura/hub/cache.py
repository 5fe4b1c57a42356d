"""The cache that all tools of a hub share: `models--ORG--NAME` has `blobs/HASH`, `snapshots/COMMIT/FILE` as links to
them, and `refs/REVISION` with a commit. These names are the user's words, or hexadecimal digits.
"""

import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # the import reads it

from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented

from caesura.hub.requests import AGAIN, HubError
from caesura.ipc import locks
from caesura.model_store import reading

COMMIT = re.compile(r"[0-9a-f]{40}")
HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
REVISION = re.compile(r"\w[\w.+-]*(?:/\w[\w.+-]*)*", re.ASCII)
MAX_REVISION = 200  # characters


def root() -> Path:
    return Path(constants.HF_HUB_CACHE)


def room() -> int:
    """Free bytes on the disk of the cache."""
    there = next(folder for folder in (root(), *root().parents) if folder.exists())
    return shutil.disk_usage(there).free


def is_name(text: str) -> bool:
    """True for ORG/NAME, which may become a folder."""
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def is_revision(text: str) -> bool:
    """True for a branch, tag or commit, which may become a file."""
    return len(text) <= MAX_REVISION and ".." not in text and bool(REVISION.fullmatch(text))


def snapshot(name: str, commit: str) -> Path:
    assert COMMIT.fullmatch(commit), "checked where it came in"
    return _home(name) / "snapshots" / commit


def blob(name: str, digest: str) -> Path:
    assert HASH.fullmatch(digest), "checked where it came in"
    return _home(name) / "blobs" / digest


def _home(name: str) -> Path:
    return root() / repo_folder_name(repo_id=name, repo_type="model")


def remember(name: str, revision: str | None, commit: str) -> None:
    """Note the commit of a revision, for use without a network."""
    if revision != commit:
        ref = _ref(name, revision)
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)


def commit_of(name: str, revision: str | None) -> str | None:
    """The commit of a revision that is in the cache; None if it is not there."""
    found = revision or ""
    if not COMMIT.fullmatch(found):
        with suppress(FileNotFoundError), _ref(name, revision).open("rb") as ref:
            found = ref.read(len("0" * 40)).decode("ascii", "replace")
    return found if COMMIT.fullmatch(found) and snapshot(name, found).is_dir() else None


def _ref(name: str, revision: str | None) -> Path:
    return _home(name) / "refs" / (revision or constants.DEFAULT_REVISION)


def files(name: str, commit: str) -> list[Path]:
    return [one for one in snapshot(name, commit).iterdir() if one.is_file()]


def hash_of(file: Path) -> str:
    """The hash that a file of the cache is kept under; empty where the system has no links."""
    found = file.resolve().name
    return found if HASH.fullmatch(found) else ""


def checked(file: Path, digest: str) -> str | None:
    """The sha256 of a file; None if it does not have the hash `digest`, unless that is empty. Raises UnusableModel."""
    with reading.opened(file) as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    wanted = _of_git(file) if len(digest) == len("0" * 40) else found
    return found if digest in ("", wanted) else None


def _of_git(file: Path) -> str:
    begun = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with reading.opened(file) as content:
        return hashlib.file_digest(content, lambda: begun).hexdigest()


def put(name: str, digest: str, place: Path) -> None:
    """Link a file to its blob; copy it where links are not allowed, as on Windows without that right."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)  # a link to a blob that is gone
    try:
        place.symlink_to(os.path.relpath(blob(name, digest), place.parent))
    except FileExistsError:
        pass  # another process has just put it there
    except (OSError, NotImplementedError):
        shutil.copy(blob(name, digest), place)


class Partial:
    """A file that is being downloaded. If the download breaks off, the file keeps the bytes that have arrived."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw

    def __repr__(self) -> str:
        return f"<Partial {self._raw.name} {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._raw.fileno()).st_size

    def append(self, chunk: bytes) -> None:
        left = memoryview(chunk)
        while left:
            left = left[self._raw.write(left) :]

    def clear(self) -> None:
        self._raw.truncate(0)


@contextmanager
def partial(name: str, digest: str) -> Iterator[Partial]:
    """The part of a blob that is there, for this process alone. Raises HubError."""
    path = _partial(name, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as raw:
        if not locks.lock(raw):
            raise HubError(f"Another process is downloading a file of {name}; wait for it.")
        yield Partial(raw)


def complete(name: str, digest: str) -> str | None:
    """Make a partial file that has arrived a blob. Returns its sha256; None if its hash is wrong, and deletes it."""
    path = _partial(name, digest)
    found = checked(path, digest)
    if found is None:
        path.unlink()
    else:
        path.replace(blob(name, digest))
    return found


def present(name: str, digest: str) -> int:
    """Bytes of a blob that are there, whole or in part."""
    for path in (blob(name, digest), _partial(name, digest)):
        if path.exists():
            return path.stat().st_size
    return 0


def _partial(name: str, digest: str) -> Path:
    return blob(name, digest).with_name(f"{digest}.incomplete")


@contextmanager
def sentences() -> Iterator[None]:
    """Turn errors of files into sentences with the next step."""
    try:
        yield
    except reading.UnusableModel as error:
        raise HubError(f"{error} If it is in {root()}, delete it first.") from error
    except OSError as error:  # usually a full disk
        todo = f"free some space or set HF_HOME to another folder, then {AGAIN}"
        raise HubError(f"{root()}: {error.strerror or 'the download failed'}; {todo}.") from error
