"""How fast each model ran on this machine the last time that `caesura doctor` asked it, for `caesura models`."""

import hashlib
from pathlib import Path

import msgspec

from caesura import paths

MOST = 64  # models that are remembered


class Speed(msgspec.Struct, frozen=True):
    """Of one fill. `pass_ms`: milliseconds of a pass of the model, `fill_ms` of the whole; `memory_mb`: MiB that the
    engine's processes use after it; `at`: the day."""

    at: str
    device: str
    pass_ms: float
    fill_ms: float
    memory_mb: float


def file() -> Path:
    return paths.logs() / "speeds.json"


def of(identity: str) -> Speed | None:
    """Of a model by model_store.identity. Raises UnsafeFolder."""
    return _read().get(_key(identity))


def _key(identity: str) -> str:
    """A hash: an identity may be a path, which does not belong in this file."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _read() -> dict[str, Speed]:
    """Empty where nothing was measured or what is there cannot be read. Raises UnsafeFolder."""
    try:
        return msgspec.json.decode(paths.read(file()) or b"{}", type=dict[str, Speed])
    except msgspec.DecodeError:
        return {}  # of another version; the next measurement replaces it


def record(identity: str, speed: Speed) -> None:
    """Raises OSError or UnsafeFolder."""
    kept = {key: value for key, value in _read().items() if key != _key(identity)} | {_key(identity): speed}
    newest = dict(list(kept.items())[-MOST:])
    paths.write(file(), msgspec.json.format(msgspec.json.encode(newest), indent=1))
