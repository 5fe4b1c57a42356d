"""The interface between a server and its engine: this machine's shared engine, or a paired machine's."""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from caesura import wire

State = Literal["connecting", "loading", "ready", "unavailable"]
Feature = Literal["candidates", "drafts", "grammars", "holes", "judge", "priorities", "speculation"]


class EngineError(Exception):
    """A job has no answer; the message is a sentence for the user."""


class EngineFailed(EngineError):
    """The engine refused or lost the job; `code` is that of wire.Failed."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or f"The engine gave no answer ({code}).")
        self.code = code


class EngineUnavailable(EngineError):
    """No engine can answer."""


class EngineBusy(EngineError):
    """The engine's queue is full."""


@dataclass(frozen=True)
class Condition:
    """The engine's condition. `message` says why it is unavailable, `progress` how far it has loaded; `busy`: a job of
    ours is running. It `lacks` what it cannot do: jobs with a grammar or several holes are refused then, and
    speculative ones; candidates and drafts are only left out. Without priorities it begins each job at once, and none
    is sent again to be continued."""

    state: State
    model: str = ""
    device: str = ""
    message: str = ""
    busy: bool = False
    lacks: frozenset[Feature] = frozenset()
    policy: wire.Policy = field(default_factory=wire.Policy)
    progress: str = ""


def needs(job: wire.Infill) -> frozenset[Feature]:
    """The features without which a job has no answer."""
    holes = [segment for segment in job.segments if isinstance(segment, wire.Hole)]
    judged = job.method == "judge"
    grammars = any(hole.grammar for hole in holes)
    found: dict[Feature, bool] = {"grammars": grammars, "holes": len(holes) != 1 and not judged, "judge": judged}
    return frozenset(feature for feature, needed in found.items() if needed)


def job_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class FinishedJob:
    """`end` is `done`, `cancelled` (by us), `busy`, or the code of wire.Failed. `ms` has the whole time as `total`;
    its other stages are the engine's, for answered jobs only. `steps` is the last number reported."""

    job: str
    end: str
    priority: str
    steps: int = 0
    ms: Mapping[str, float] = field(default_factory=dict)


class Infiller(Protocol):
    def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events of a job, ending with a Done. Leaving early cancels the job. Raises EngineError."""


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
