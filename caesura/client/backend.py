"""What a server asks of an engine: the one that this machine's editors share, or a paired machine's."""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from caesura import wire

State = Literal["connecting", "loading", "ready", "unavailable"]


class EngineError(Exception):
    """A job has no answer; the message is a sentence for a person."""


class EngineFailed(EngineError):
    """The engine refused the job or lost it; `code` as in wire.Failed."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or f"The engine gave no answer ({code}).")
        self.code = code


class EngineUnavailable(EngineError):
    """There is no engine that could answer."""


class EngineBusy(EngineError):
    """The engine's queue is full."""


@dataclass(frozen=True)
class Condition:
    """How the engine is. `message` says why it is unavailable; `busy`: a job of ours is under way."""

    state: State
    model: str = ""
    device: str = ""
    message: str = ""
    busy: bool = False


def job_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class FinishedJob:
    """`end` is `done`, `cancelled` by us, `busy`, or the code of wire.Failed. `ms`: `total` is the time from sending
    the job to its end; the other stages are the engine's, known of answered jobs only. `steps` are those that we heard
    of."""

    job: str
    end: str
    priority: str
    steps: int = 0
    ms: Mapping[str, float] = field(default_factory=dict)


class Infiller(Protocol):
    def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events of a job, the last a Done; leaving early cancels the job. Raises EngineError."""


class Backend(Infiller, Protocol):
    """`on_change` is called whenever `condition` may have changed, `on_job` when a job is over."""

    on_change: Callable[[], None]
    on_job: Callable[[FinishedJob], None]

    @property
    def condition(self) -> Condition: ...

    async def start(self) -> None:
        """Connect in the background."""

    async def close(self) -> None:
        """Drop all jobs and the connection."""
