"""What became of each request and of each job, by stage: kept in a local file of JSON lines, which `caesura doctor`
reads. Numbers and kinds, never text of the user's, and no paths.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from caesura import paths
from caesura.client.backend import FinishedJob
from caesura.server.records import store

DELAY_S = 5.0
MOST_PENDING = 4096  # records; where they cannot be written, the oldest go first
NAME_LENGTH = 64  # code points of a name that an editor chose

Answer = Literal["typed_through", "warm", "cold", "speculated", "nothing", "superseded", "off"]


@dataclass(frozen=True)
class Request:
    """One answered request. `ms` by stage, as far as a stage took place: `context` (cutting it), `queue`, `prefill`,
    `denoise`, `first_lock` (the engine's, from Done), `gate` (finishing and checking the text), `wait` (from request
    to answer). `shown` counts code points, and `job` is the one whose text it was."""

    language: str
    kind: str
    answer: Answer
    ms: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    shown: int = 0
    confidence: float = 0.0
    job: str = ""


@dataclass(frozen=True)
class Session:
    """One run of the server. `problems` are sentences about its settings."""

    client: str
    server: str = ""
    encoding: str = ""
    capabilities: tuple[str, ...] = ()
    model: str = ""
    device: str = ""
    problems: tuple[str, ...] = ()


@dataclass
class Past:
    """What a file tells of one session. `at` is when it was described last, in seconds of Unix time."""

    at: float
    session: Session
    requests: list[Request] = field(default_factory=list)
    jobs: list[FinishedJob] = field(default_factory=list)


class Trace:
    """Records of one session, written in batches."""

    def __init__(
        self, path: Callable[[], Path] | None = None, clock: Callable[[], float] = time.time, delay_s: float = DELAY_S
    ) -> None:
        self._enabled = True
        self._session: Session | None = None
        self._path = path or file
        self._clock = clock
        self._id = secrets.token_hex(4)
        self._pending: deque[dict[str, Any]] = deque(maxlen=MOST_PENDING)
        self._writer = store.Writer(self._take, self._write, delay_s)

    def __repr__(self) -> str:
        return f"<Trace {self._id} {len(self._pending)} pending>"

    def enable(self, enabled: bool) -> None:
        """Off: nothing is kept, and what is not written yet is dropped."""
        if not enabled:
            self._pending.clear()
        again = enabled and not self._enabled
        self._enabled = enabled
        if again and self._session:
            self._add("session", self._session)

    def session(self, session: Session) -> None:
        """Describe this session; the last description counts, and one that is no news is not written."""
        if session != self._session:
            self._session = session
            self._add("session", session)

    def record(self, request: Request) -> None:
        self._add("request", request)

    def job(self, job: FinishedJob) -> None:
        self._add("job", job)

    async def close(self) -> None:
        """Write what is left."""
        await self._writer.close()

    def _add(self, kind: str, about: Request | FinishedJob | Session) -> None:
        if self._enabled:
            about_it = {key: _short(value) for key, value in vars(about).items()}
            self._pending.append({"type": kind, "session": self._id, "at": round(self._clock(), 3), **about_it})
            self._writer.soon()

    def _take(self) -> list[dict[str, Any]] | None:
        taken = list(self._pending)
        self._pending.clear()
        return taken or None

    def _write(self, news: list[dict[str, Any]]) -> None:
        store.append(self._path(), b"".join(msgspec.json.encode(line) + b"\n" for line in news))


def file() -> Path:
    """Raises paths.UnsafeFolder."""
    return paths.logs() / "trace.jsonl"


def read(path: Path) -> list[Past]:
    """The sessions of a file and of the one before it, in the order in which they began. Lines that cannot be read, as
    of another version, are left out."""
    sessions: dict[str, Past] = {}
    for line in _lines(path):
        try:
            found = msgspec.json.decode(line, type=_Line)
            past = sessions.setdefault(found.session, Past(found.at, Session(client="")))
            match found.type:
                case "session":
                    past.at, past.session = found.at, msgspec.json.decode(line, type=Session)
                case "request":
                    past.requests.append(msgspec.json.decode(line, type=Request))
                case "job":
                    past.jobs.append(msgspec.json.decode(line, type=FinishedJob))
        except msgspec.DecodeError:
            continue
    return list(sessions.values())


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p95, each a value that occurred."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]


def by_stage(requests: Sequence[Request]) -> dict[str, tuple[float, float]]:
    """p50 and p95 in ms of each stage, over the requests in which it took place."""
    stages = dict.fromkeys(stage for request in requests for stage in request.ms)
    return {stage: percentiles([one.ms[stage] for one in requests if stage in one.ms]) for stage in stages}


def by_answer(requests: Sequence[Request]) -> dict[str, tuple[int, float, float]]:
    """How many of each kind of answer, and p50 and p95 in ms of the wait for it."""
    kinds = dict.fromkeys(request.answer for request in requests)
    groups = {kind: [one.ms.get("wait", 0.0) for one in requests if one.answer == kind] for kind in kinds}
    return {kind: (len(waits), *percentiles(waits)) for kind, waits in groups.items()}


class _Line(msgspec.Struct):
    type: str
    session: str
    at: float


def _lines(path: Path) -> Iterator[bytes]:
    for one in (store.older(path), path):
        with suppress(FileNotFoundError):
            yield from one.read_bytes().splitlines()


def _short(value: object) -> object:
    """Names are cut, times are whole microseconds."""
    if isinstance(value, str):
        return value[:NAME_LENGTH]
    if isinstance(value, float):
        return round(value, 3)
    return {key: round(ms, 3) for key, ms in value.items()} if isinstance(value, Mapping) else value
