"""The streams of one replica, and the jobs that each is owed. Pure: frames of clients in, frames and messages to the
worker loop out; time is an argument."""

from typing import NamedTuple

import msgspec

from caesura import wire
from caesura.engine.supervisor import link
from caesura.engine.supervisor.ledger import MAX_JOBS, Ledger, Places
from caesura.ipc.rendezvous import BUILD

MAX_STREAMS = 1024
RECENT_S = 10.0  # how long the last queue time counts


class Heard(NamedTuple):
    """The consequences of a frame: answers to its stream, and messages to the worker loop."""

    frames: list[bytes]
    messages: list[link.ToWorker]


class Sessions:
    """`model` and `device` are those of the worker loop."""

    def __init__(self, model: str, device: str, jobs: int = MAX_JOBS) -> None:
        self._model, self._device = model, device
        self._ledger = Ledger(Places(MAX_STREAMS, jobs))
        self._untouched = dict[tuple[bytes, str], float]()  # jobs without an event: when they arrived
        self._queue = (0.0, float("-inf"))  # the milliseconds that the last job waited, and when it ended

    def __repr__(self) -> str:
        return f"<Sessions {self._ledger!r}>"

    @property
    def running(self) -> int:
        return len(list(self._ledger.jobs()))

    def hear(self, stream: bytes, frame: bytes, now: float) -> Heard:
        """A client's frame. Frames that nobody could have meant, and all before a Hello, are dropped."""
        try:
            message = wire.decode_client(frame)
        except msgspec.DecodeError:
            return Heard([], [])
        if isinstance(message, wire.Hello):
            return Heard([wire.encode(self._greet(stream, message, now))], [])
        if not self._ledger.hear(stream, now):
            return Heard([], [])
        match message:
            case wire.Infill():
                return self._admit(stream, message, frame, now)
            case wire.Cancel(job) if self._ledger.find(stream, job):
                return Heard([], [link.CancelJob(stream, job)])
            case wire.Ping():
                return Heard([wire.encode(wire.Pong(self.running))], [])
        return Heard([], [])

    def _greet(self, stream: bytes, hello: wire.Hello, now: float) -> wire.Welcome:
        trouble = ""
        if hello.protocol != wire.PROTOCOL:
            trouble = f"The engine speaks protocol {wire.PROTOCOL}, the door {hello.protocol}: update the older one."
        elif not self._ledger.greet(stream, hello.client, now, user="door"):
            trouble = "Too many documents are open at this replica."
        state = "failed" if trouble else "ready"
        return wire.Welcome(wire.PROTOCOL, BUILD, self._model[-256:], self._device, state, trouble)  # type: ignore[arg-type]

    def _admit(self, stream: bytes, request: wire.Infill, frame: bytes, now: float) -> Heard:
        if self._ledger.find(stream, request.job):
            return Heard([], [])  # its first copy will be answered
        if refusal := self._ledger.admit(stream, request, frame, now):
            return Heard([wire.encode(refusal)], [])
        job = self._ledger.find(stream, request.job)
        assert job is not None
        job.frame = None  # the worker loop has it
        self._untouched[stream, request.job] = now
        return Heard([], [link.NewJob(stream, request.deadline_ms, frame)])

    def relay(self, answer: link.Answer, now: float) -> str | None:
        """The job that the answer's stream waits to hear of; None if nobody does."""
        head = wire.decode_head(answer.frame)
        if self._ledger.find(answer.peer, head.job) is None:
            return None
        self._untouched.pop((answer.peer, head.job), None)
        if head.type != "locked":
            self._ledger.settle(answer.peer, head.job)
        if head.timings:
            self._queue = head.timings.queue_ms, now
        return head.job

    def leave(self, stream: bytes) -> list[link.ToWorker]:
        """A stream has ended: its jobs are dropped."""
        self._untouched = {key: since for key, since in self._untouched.items() if key[0] != stream}
        return [link.Gone(stream)] if self._ledger.leave(stream) else []

    def queue_ms(self, now: float) -> float:
        """How long jobs wait before the engine turns to them: the oldest that waits, or the last one that ended."""
        waiting = max((now - since for since in self._untouched.values()), default=0.0) * 1000
        last, ended = self._queue
        return max(waiting, last if now - ended < RECENT_S else 0.0)
