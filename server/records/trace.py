"""The outcome of each request and job, with times by stage, in a local file of JSON lines for `caesura doctor`. It
holds numbers and kinds, never the user's text or paths.
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
MOST_PENDING = 4096  # records not written yet; beyond that, the oldest are dropped
NAME_LENGTH = 64  # code points of a name, which an editor may choose

AnswerKind = Literal["typed_through", "warm", "cold", "speculated", "nothing", "superseded", "cancelled", "off"]


@dataclass(frozen=True)
class RequestRecord:
    """One answered request. `ms` has the stages that took place: `context` (cut the context), `queue`, `prefill`,
    `denoise` and `first_lock` (the engine's, from Done), `gate` (finish and check the text), `wait` (from request to
    answer). `shown` counts code points; `job` is the job whose text was shown."""

    language: str
    kind: str
    answer: AnswerKind
    ms: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    shown: int = 0
    confidence: float = 0.0
    job: str = ""


@dataclass(frozen=True)
class SessionRecord:
    """One run of the server. `problems` are sentences about the user's settings."""

    client: str
    server: str = ""
    encoding: str = ""
    capabilities: tuple[str, ...] = ()
    model: str = ""
    device: str = ""
    problems: tuple[str, ...] = ()


@dataclass
class Past:
    """The records of one session. `at` is the Unix time of its last description."""

    at: float
    session: SessionRecord
    requests: list[RequestRecord] = field(default_factory=list)
    jobs: list[FinishedJob] = field(default_factory=list)


class Trace:
    """One session's records, written in batches."""

    def __init__(
        self, path: Callable[[], Path] | None = None, clock: Callable[[], float] = time.time, delay_s: float = DELAY_S
    ) -> None:
        self._enabled = True
        self._session: SessionRecord | None = None
        self._path = path or file
        self._clock = clock
        self._id = secrets.token_hex(4)
        self._pending: deque[dict[str, Any]] = deque(maxlen=MOST_PENDING)
        self._writer = store.BatchWriter(self._take, self._write, delay_s)

    def __repr__(self) -> str:
        return f"<Trace {self._id} {len(self._pending)} pending>"

    def enable(self, enabled: bool) -> None:
        """Off: record nothing, and drop what is not written yet."""
        if not enabled:
            self._pending.clear()
        again = enabled and not self._enabled
        self._enabled = enabled
        if again and self._session:
            self._add("session", self._session)

    def session(self, session: SessionRecord) -> None:
        """Describe this session. The last description counts; an unchanged one is not written."""
        if session != self._session:
            self._session = session
            self._add("session", session)

    def record(self, request: RequestRecord) -> None:
        self._add("request", request)

    def job(self, job: FinishedJob) -> None:
        self._add("job", job)

    async def close(self) -> None:
        """Write the rest."""
        await self._writer.close()

    def _add(self, kind: str, about: RequestRecord | FinishedJob | SessionRecord) -> None:
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
    return paths.logs() / "trace.jsonl"


def read(path: Path) -> list[Past]:
    """The sessions of a file and its older one, in the order in which they began. Skips lines that cannot be read, such
    as those of another version."""
    sessions: dict[str, Past] = {}
    for line in _lines(path):
        try:
            found = msgspec.json.decode(line, type=_Line)
            past = sessions.setdefault(found.session, Past(found.at, SessionRecord(client="")))
            match found.type:
                case "session":
                    past.at, past.session = found.at, msgspec.json.decode(line, type=SessionRecord)
                case "request":
                    past.requests.append(msgspec.json.decode(line, type=RequestRecord))
                case "job":
                    past.jobs.append(msgspec.json.decode(line, type=FinishedJob))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return list(sessions.values())


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p95, each one of the values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]


def by_stage(requests: Sequence[RequestRecord]) -> dict[str, tuple[float, float]]:
    """p50 and p95 in ms of each stage, over the requests that have it."""
    stages = dict.fromkeys(stage for request in requests for stage in request.ms)
    return {stage: percentiles([one.ms[stage] for one in requests if stage in one.ms]) for stage in stages}


def by_answer(requests: Sequence[RequestRecord]) -> dict[str, tuple[int, float, float]]:
    """By kind of answer: the number of requests, and p50 and p95 of their wait in ms."""
    kinds = dict.fromkeys(request.answer for request in requests)
    groups = {kind: [one.ms.get("wait", 0.0) for one in requests if one.answer == kind] for kind in kinds}
    return {kind: (len(waits), *percentiles(waits)) for kind, waits in groups.items()}


class _Line(msgspec.Struct):
    type: str
    session: str
    at: float


def _lines(path: Path) -> Iterator[bytes]:
    for one in (store.older(path), path):
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from one.read_bytes().splitlines()


def _short(value: object) -> object:
    """Cut names; round times to microseconds."""
    if isinstance(value, str):
        return value[:NAME_LENGTH]
    if isinstance(value, float):
        return round(value, 3)
    return {key: round(ms, 3) for key, ms in value.items()} if isinstance(value, Mapping) else value
