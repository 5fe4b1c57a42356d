"""The door's routing table: which stream a job travels on, what its user may still ask for, and who is owed an answer.

Pure: it takes the supervisor's messages, frames of replicas and the time, and returns what the relay has to do. A
stream is of one client, one document and one model. Its affinity key is the same for the same user, document and model,
and reveals none of the three: the ingress hashes it, so that a document's jobs go where its model is loaded and its KV
is warm.
"""

import hashlib
import hmac
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from caesura import wire
from caesura.cluster.budget import Bucket
from caesura.engine.supervisor import link
from caesura.engine.supervisor.ledger import Suspects
from caesura.ipc.rendezvous import BUILD

GRACE_S = 2.0  # after a job's deadline, until its replica counts as hung
ONE_LOSS_S = 0.25  # in which the streams of a lost replica end, one after the other
LIFE_S = 20.0  # an older stream takes no new job and is closed after its last, so that a replica that drains is left
MAX_STREAMS = 4096
MAX_RESTING = 64  # streams of a user without a job
MAX_OWED = 32  # jobs a stream may owe, replaced ones included: bounds memory when a replica stops reading
MAX_USERS = 4096  # whose budgets are kept

HELLO = wire.encode(wire.Hello(wire.PROTOCOL, BUILD, "door"))
LOST = "The engine's replica was lost in the middle of the job."
SILENT = "The engine's replica did not answer in time."
UNREADABLE = "The answer of the engine's replica could not be read."
NOT_OFFERED = "The team's engine does not offer the model {}; ask its administrator to invite you again."
AWAY = "The team's engine cannot be reached; ask its administrator if this lasts."

AtLeastOne = Annotated[int, Meta(ge=1, le=2**31)]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of one user: denoise steps a minute, after `burst` at once; unanswered `jobs`; `characters` of one
    job; `seconds` until its deadline."""

    steps_per_minute: AtLeastOne = 6000
    burst: AtLeastOne = 6000
    jobs: AtLeastOne = 8
    characters: AtLeastOne = 200_000
    seconds: AtLeastOne = 60


class Open(NamedTuple):
    """Begin a stream for a model. `key` says where it goes."""

    stream: int
    key: str
    model: str


class Send(NamedTuple):
    stream: int
    frame: bytes


class Close(NamedTuple):
    stream: int


Order = Open | Send | Close | link.Answer
Refused = tuple[link.Refusal, wire.Failed | wire.Busy]  # why, for figures, and the answer


@dataclass
class Carried:
    """A job that a replica owes an answer. `steps` are those that its user has paid for."""

    request: wire.Infill
    user: str
    deadline: float
    steps: int = 0
    cancelled: bool = False


@dataclass
class DocumentStream:
    peer: bytes
    user: str
    document: str
    model: str
    opened: float
    welcomed: bool = False
    jobs: dict[str, Carried] = field(default_factory=dict)


class Router:
    """The streams and the jobs on them. `models` are those that replicas have."""

    def __init__(self, limits: Limits, models: Sequence[str], secret: bytes) -> None:
        self._limits = limits
        self._models = models
        self._secret = secret
        self._streams: dict[int, DocumentStream] = {}
        self._places: dict[tuple[bytes, str], int] = {}  # (client, document) -> stream
        self._budgets: dict[str, Bucket] = {}
        self._suspects = Suspects()
        self._lost = 0  # streams that a replica has broken, since `news` was asked for
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<Router {len(self._streams)} streams, {self.running} jobs>"

    @property
    def running(self) -> int:
        return sum(len(stream.jobs) for stream in self._streams.values())

    def news(self, reached: bool) -> link.Upstream:
        lost, self._lost = self._lost, 0
        return link.Upstream(len(self._streams), lost, reached)

    # From the clients

    def take(self, message: link.ToWorker, now: float) -> list[Order]:
        match message:
            case link.NewJob(peer, left_ms, frame, user, model):
                request = wire.decode_client(frame)
                assert isinstance(request, wire.Infill), "the supervisor forwards nothing else"
                left_ms = min(left_ms, self._limits.seconds * 1000)
                return self._begin(peer, user, model, msgspec.structs.replace(request, deadline_ms=left_ms), now)
            case link.CancelJob(peer, job):
                return [order for number in self._having(peer, job) for order in self._cancel(number, job)]
            case link.Gone(peer):
                gone = [number for number, stream in self._streams.items() if stream.peer == peer]
                return [order for number in gone for order in self._close(number)]

    def _begin(self, peer: bytes, user: str, model: str, request: wire.Infill, now: float) -> list[Order]:
        if refused := self._refusal(peer, user, model, request, now):
            why, refusal = refused
            return self._answered(peer, refusal, why)
        orders = self._retire(peer, model, request, now)
        number, opened = self._stream(peer, user, model, request.document, now)
        stream = self._streams[number]
        stream.jobs[request.job] = Carried(request, user, now + request.deadline_ms / 1000)
        return [*orders, *opened, Send(number, wire.encode(request))]

    def _refusal(self, peer: bytes, user: str, model: str, request: wire.Infill, now: float) -> Refused | None:
        if model not in self._models:
            return "model", wire.Failed(request.job, "unavailable", NOT_OFFERED.format(model[:64]))
        limits, size = self._limits, characters(request)
        if size > limits.characters:
            sentence = f"This job has {size} characters, the team's engine takes {limits.characters}."
            return "size", wire.Failed(request.job, "invalid", sentence)
        place = peer, request.document, request.kind  # a job that this one replaces does not count
        others = [
            job
            for stream in self._streams.values()
            for job in stream.jobs.values()
            if job.user == user and (stream.peer, job.request.document, job.request.kind) != place
        ]
        here = self._places.get((peer, request.document))
        full = here is not None and len(self._streams[here].jobs) >= MAX_OWED
        if full or len(others) >= limits.jobs or len(self._streams) >= MAX_STREAMS:
            return "busy", wire.Busy(request.job)
        if wait_s := self._budget(user, now).wait_s(now):
            sentence = f"Your budget of steps on the team's engine is used up; wait {math.ceil(wait_s)} seconds."
            return "budget", wire.Failed(request.job, "unavailable", sentence)
        if suspected := self._suspects.refusal(request, now):
            return "suspect", suspected
        return None

    def _budget(self, user: str, now: float) -> Bucket:
        if user not in self._budgets:
            if len(self._budgets) >= MAX_USERS:
                self._budgets.pop(next(iter(self._budgets)))
            limits = self._limits
            self._budgets[user] = Bucket(limits.steps_per_minute / 60, limits.burst, limits.burst, now)
        return self._budgets[user]

    def _retire(self, peer: bytes, model: str, request: wire.Infill, now: float) -> list[Order]:
        """Leave a stream that is too old, or of another model, to its other jobs, and end those that `request`
        replaces."""
        number = self._places.get((peer, request.document))
        if number is None:
            return []
        stream, orders = self._streams[number], list[Order]()
        if now - stream.opened <= LIFE_S and stream.model == model:
            return []
        del self._places[peer, request.document]
        for job in [job for job, carried in stream.jobs.items() if carried.request.kind == request.kind]:
            del stream.jobs[job]
            orders += [
                *self._answered(peer, wire.Failed(job, "superseded")),
                Send(number, wire.encode(wire.Cancel(job))),
            ]
        return orders if stream.jobs else [*orders, *self._close(number)]

    def _stream(self, peer: bytes, user: str, model: str, document: str, now: float) -> tuple[int, list[Order]]:
        if (number := self._places.get((peer, document))) is not None:
            return number, []
        rested = self._rest(user)
        number = self._places[peer, document] = next(self._numbers)
        self._streams[number] = DocumentStream(peer, user, document, model, now)
        key, owner = self._hidden(f"{user}|{model}|{document}"), self._hidden(user)
        return number, [
            *rested,
            Open(number, key, model),
            Send(number, wire.encode(wire.Hello(wire.PROTOCOL, BUILD, owner))),
        ]

    def _hidden(self, text: str) -> str:
        """The same for the same text, and tells nothing of it."""
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()[:32]

    def _rest(self, user: str) -> list[Order]:
        """Close the oldest stream of a user who has as many without a job as one may have."""
        resting = [number for number, stream in self._streams.items() if stream.user == user and not stream.jobs]
        return self._close(resting[0]) if len(resting) >= MAX_RESTING else []

    def _cancel(self, number: int, job: str) -> list[Order]:
        """Once, however often it is asked for: a replica that reads nothing may cost no more."""
        carried = self._streams[number].jobs[job]
        before, carried.cancelled = carried.cancelled, True
        return [] if before else [Send(number, wire.encode(wire.Cancel(job)))]

    def _having(self, peer: bytes, job: str) -> list[int]:
        return [number for number, s in self._streams.items() if s.peer == peer and job in s.jobs]

    # From the replicas

    def hear(self, number: int, frame: bytes, now: float) -> list[Order]:
        """A frame of a stream's replica."""
        stream = self._streams.get(number)
        if stream is None:
            return []
        if not stream.welcomed:
            return self._welcomed(number, stream, frame)
        try:
            head = wire.decode_head(frame)
        except msgspec.DecodeError:
            return self._lose(number, now, UNREADABLE)
        job = stream.jobs.get(head.job)
        if job is None:
            return []  # it was answered here
        self._budget(job.user, now).take(max(0, head.taken - job.steps), now)
        job.steps = max(job.steps, head.taken)
        if head.type != "locked":
            del stream.jobs[head.job]
        return [link.Answer(stream.peer, frame)]

    def _welcomed(self, number: int, stream: DocumentStream, frame: bytes) -> list[Order]:
        """The first frame. A replica of another protocol says so in it."""
        try:
            welcome = wire.decode_engine(frame)
        except msgspec.DecodeError:
            welcome = None
        if not isinstance(welcome, wire.Welcome) or welcome.protocol != wire.PROTOCOL:
            return self._drop(number, "unavailable", "The team's engine is of another version than its door.")
        if welcome.state == "failed":
            return self._drop(number, "unavailable", welcome.message)
        stream.welcomed = True
        return []

    def lost(self, number: int, now: float) -> list[Order]:
        """A stream has ended without our asking. Its replica is gone, or none could be reached."""
        stream = self._streams.get(number)
        if stream is None:
            return []
        if not stream.welcomed:
            return self._drop(number, "unavailable", AWAY)
        return self._lose(number, now, LOST)

    def look(self, now: float) -> list[Order]:
        """Fail the jobs that no replica answers, and close old streams without a job."""
        orders = list[Order]()
        for number, stream in list(self._streams.items()):
            if any(now > job.deadline + GRACE_S for job in stream.jobs.values()):
                orders += self._lose(number, now, SILENT)
            elif not stream.jobs and now - stream.opened > LIFE_S:
                orders += self._close(number)
        return orders

    # Ends

    def _lose(self, number: int, now: float, why: str) -> list[Order]:
        """Fail the jobs of a stream whose replica may have died of one of them."""
        self._lost += 1
        for job in self._streams[number].jobs.values():
            self._suspects.add(job.request, now, ONE_LOSS_S)
        return self._drop(number, "engine_lost", why)

    def _drop(self, number: int, code: str, why: str) -> list[Order]:
        stream, orders = self._streams[number], list[Order]()
        for job in list(stream.jobs):
            orders += self._answered(stream.peer, wire.Failed(job, code, why[:256]))  # type: ignore[arg-type]
        return [*orders, *self._close(number)]

    def _answered(self, peer: bytes, answer: wire.Failed | wire.Busy, refusal: link.Refusal = "") -> list[Order]:
        return [link.Answer(peer, wire.encode(answer), refusal)]

    def _close(self, number: int) -> list[Order]:
        stream = self._streams.pop(number)
        if self._places.get((stream.peer, stream.document)) == number:
            del self._places[stream.peer, stream.document]
        return [Close(number)]


def characters(request: wire.Infill) -> int:
    """The code points that a job brings."""
    holes = [segment for segment in request.segments if isinstance(segment, wire.Hole)]
    texts: Iterable[str] = (
        *(request.prefix, request.suffix, *request.schemas, *(request.draft or ())),
        *(text for hole in holes for text in (hole.instead, *_written(hole.grammar))),
        *(segment.text for segment in request.segments if isinstance(segment, wire.Text)),
        *(text for neighbour in request.neighbours for text in (neighbour.name, neighbour.text)),
    )
    return sum(map(len, texts))


def _written(grammar: wire.Json | wire.Pattern | None) -> tuple[str, ...]:
    match grammar:
        case wire.Json():
            return grammar.typed, grammar.then, grammar.at, *grammar.taken
        case wire.Pattern(regex):
            return (regex,)
    return ()
