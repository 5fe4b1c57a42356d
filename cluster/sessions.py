"""The streams of one replica, and the jobs that each is owed. Pure: frames of clients in; frames, messages to worker
loops, and models to load or let go out; time is an argument. A job waits here until its model is loaded."""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from caesura import wire
from caesura.cluster.models import Load, LoadedModels, Unload
from caesura.engine.supervisor import link
from caesura.engine.supervisor.ledger import MAX_JOBS, Ledger, Places
from caesura.ipc.rendezvous import BUILD

MAX_STREAMS = 1024  # of a replica
RECENT_S = 10.0  # how long the last queue time counts
LATE = "The model was not ready in time."


class Say(NamedTuple):
    """A frame for a stream's client, about a job or none."""

    stream: bytes
    job: str
    frame: bytes


class Give(NamedTuple):
    """A message for the worker loop of a model."""

    model: str
    message: link.ToWorker


ReplicaOrder = Say | Give | Load | Unload


class Sessions:
    """`models` are those that may be asked for. The first one is being loaded on `device`, and `most` are kept."""

    def __init__(self, models: Collection[str], device: str, most: int, jobs: int = MAX_JOBS) -> None:
        self._offered, self._device = models, device
        self._models = LoadedModels(most, next(iter(models)))
        self._ledger = Ledger(Places(MAX_STREAMS, jobs, peers_of_user=MAX_STREAMS))
        self._asked = dict[bytes, str]()  # the model of each stream
        self._untouched = dict[tuple[bytes, str], float]()  # jobs that a loop has, without an event: since when
        self._queue = (0.0, float("-inf"))  # the milliseconds that the last job waited, and when it ended

    def __repr__(self) -> str:
        return f"<Sessions {self._ledger!r} {self._models!r}>"

    @property
    def running(self) -> int:
        return len(list(self._ledger.jobs()))

    # Streams

    def open(self, stream: bytes, model: str) -> None:
        """A new stream, whose jobs are for this model."""
        self._asked[stream] = model

    def hear(self, stream: bytes, frame: bytes, now: float) -> list[ReplicaOrder]:
        """A client's frame. Frames that nobody could have meant, and all before a Hello, are dropped."""
        try:
            message = wire.decode_client(frame)
        except msgspec.DecodeError:
            return []
        if isinstance(message, wire.Hello):
            return [Say(stream, "", wire.encode(self._greet(stream, message, now)))]
        if not self._ledger.hear(stream, now):
            return []
        match message:
            case wire.Infill():
                return self._admit(stream, message, frame, now)
            case wire.Cancel(job):
                return self._cancel(stream, job, now)
            case wire.Ping():
                return [Say(stream, "", wire.encode(wire.Pong(self.running)))]
        return []

    def _greet(self, stream: bytes, hello: wire.Hello, now: float) -> wire.Welcome:
        """The `client` of a Hello stands for a user: streams with the same one take turns as one."""
        model = self._asked[stream]
        trouble = self._models.trouble(model, now)
        if hello.protocol != wire.PROTOCOL:
            trouble = f"The engine speaks protocol {wire.PROTOCOL}, the door {hello.protocol}: update the older one."
        elif model not in self._offered:
            trouble = "The team's engine and its door have different models; tell their administrator."
        elif not trouble and not self._ledger.greet(stream, hello.client, now, user=hello.client or "door"):
            trouble = "Too many documents are open at this replica."
        state = "failed" if trouble else "loading" if self._models.loading(model) else "ready"
        device = self._models.device(model) or self._device
        return wire.Welcome(wire.PROTOCOL, BUILD, model[-256:], device, state, trouble[:256])  # type: ignore[arg-type]

    def leave(self, stream: bytes, now: float) -> list[ReplicaOrder]:
        """A stream has ended: its jobs are dropped."""
        model = self._asked.pop(stream)
        self._untouched = {key: since for key, since in self._untouched.items() if key[0] != stream}
        known = self._ledger.leave(stream) and self._models.device(model)  # else no loop has heard of the stream
        return [*([Give(model, link.Gone(stream))] if known else []), *self.look(now)]

    # Jobs

    def _admit(self, stream: bytes, request: wire.Infill, frame: bytes, now: float) -> list[ReplicaOrder]:
        if self._ledger.find(stream, request.job):
            return []  # its first copy will be answered
        if why := self._models.trouble(self._asked[stream], now):
            return [_say(stream, wire.Failed(request.job, "unavailable", why[:256]))]
        if refusal := self._ledger.admit(stream, request, frame, now):
            return [_say(stream, refusal)]
        replaced = self._ledger.supersede(stream, request)
        return [*(_say(stream, wire.Failed(job.request.job, "superseded")) for job in replaced), *self.look(now)]

    def _cancel(self, stream: bytes, name: str, now: float) -> list[ReplicaOrder]:
        job = self._ledger.find(stream, name)
        if job is None:
            return []
        if job.forwarded:
            return [Give(self._asked[stream], link.CancelJob(stream, name))]
        self._ledger.settle(stream, name)
        return [_say(stream, wire.Failed(name, "cancelled"))]

    def relay(self, answer: link.Answer, now: float) -> list[ReplicaOrder]:
        """An event of a worker loop."""
        head = wire.decode_head(answer.frame)
        if self._ledger.find(answer.peer, head.job) is None:
            return []  # nobody waits to hear of it
        self._untouched.pop((answer.peer, head.job), None)
        said = Say(answer.peer, head.job, answer.frame)
        if head.timings:
            self._queue = head.timings.queue_ms, now
        if head.type == "locked":
            return [said]
        self._ledger.settle(answer.peer, head.job)
        return [said, *self.look(now)]

    def look(self, now: float) -> list[ReplicaOrder]:
        """Jobs whose time is over, jobs whose model is there, and models to load or let go."""
        orders = list[ReplicaOrder]()
        waiting = dict[str, None]()
        for job in sorted(self._ledger.waiting(), key=lambda job: job.arrived):
            model, left_ms = self._asked[job.peer], job.remaining_ms(now)
            if left_ms <= 0:
                self._ledger.settle(job.peer, job.request.job)
                orders.append(_say(job.peer, wire.Failed(job.request.job, "expired", LATE)))
            elif self._models.ready(model):
                assert job.frame is not None
                owner = self._ledger.peers[job.peer].user
                orders.append(Give(model, link.NewJob(job.peer, left_ms, job.frame, owner)))
                job.frame = None  # the worker loop has it
                self._untouched[job.peer, job.request.job] = now
            else:
                waiting[model] = None
        running = {self._asked[job.peer] for job in self._ledger.live()}
        return [*orders, *self._models.look(running, waiting, now)]

    def queue_ms(self, now: float) -> float:
        """How long jobs wait before an engine turns to them: the oldest that waits, or the last one that ended. Jobs
        whose model is being loaded do not count, since another replica would have to load it too."""
        since = [*self._untouched.values()]
        since += [job.arrived for job in self._ledger.waiting() if not self._models.loading(self._asked[job.peer])]
        last, ended = self._queue
        return max(max((now - at for at in since), default=0.0) * 1000, last if now - ended < RECENT_S else 0.0)

    # Models

    def loaded(self, model: str, device: str, now: float) -> list[ReplicaOrder]:
        self._models.loaded(model, device, now)
        return self.look(now)

    def refused(self, model: str, why: str, now: float) -> list[ReplicaOrder]:
        """The model cannot be loaded: its jobs have failed, and those of others have not."""
        self._models.refused(model, why, now)
        lost = [job for job in self._ledger.waiting() if self._asked[job.peer] == model]
        for job in lost:
            self._ledger.settle(job.peer, job.request.job)
        told = [_say(job.peer, wire.Failed(job.request.job, "unavailable", why[:256])) for job in lost]
        return [*told, *self.look(now)]

    def gone(self, model: str, now: float) -> list[ReplicaOrder]:
        """The memory of a model that was let go is free."""
        self._models.gone(model)
        return self.look(now)


def _say(stream: bytes, answer: wire.Failed | wire.Busy) -> Say:
    return Say(stream, answer.job, wire.encode(answer))
