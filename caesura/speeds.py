"""The speed of each model on this machine, measured by `caesura doctor` and shown by `caesura models`."""

import hashlib
from pathlib import Path

import msgspec

from caesura import paths

MOST = 64  # models kept


class Speed(msgspec.Struct, frozen=True):
    """One measured fill: its day, the milliseconds of its steps for each token and of the whole fill, and the MiB that
    the engine's processes used after it."""

    at: str
    device: str
    token_ms: float
    fill_ms: float
    memory_mb: float


def file() -> Path:
    return paths.logs() / "speeds.json"


def of(identity: str) -> Speed | None:
    """The speed of a model, by model_store.identity; None without a record that can be read."""
    return _read().get(_key(identity))


def _key(identity: str) -> str:
    """A hash, since an identity may be a path, which this file must not contain."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _read() -> dict[str, Speed]:
    try:
        return msgspec.json.decode(paths.read(file()) or b"{}", type=dict[str, Speed])
    except (OSError, paths.UnsafeFolder, msgspec.DecodeError, UnicodeDecodeError):
        return {}  # from another version or user; the next measurement replaces it, or says why it cannot


def record(identity: str, speed: Speed) -> None:
    """Raises OSError or UnsafeFolder."""
    kept = {key: value for key, value in _read().items() if key != _key(identity)} | {_key(identity): speed}
    newest = dict(list(kept.items())[-MOST:])
    paths.write(file(), msgspec.json.format(msgspec.json.encode(newest), indent=1))
