"""The link between supervisor and worker: messages over one PAIR socket, and a counter in shared memory. A team's door
has a second kind of worker, the relay of `caesura.cluster`, which passes the jobs on to engines.

Internal: both ends come from one installation and one start. The frames inside are those of `caesura.wire`.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import zmq

from caesura import paths
from caesura.ipc import rendezvous

_Socket = TypeVar("_Socket", bound=zmq.Socket[Any])  # of a loop that waits, or of asyncio
_COUNTER = struct.Struct("=Q")
Refusal = Literal["", "model", "budget", "size", "busy", "suspect"]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    pass


# Worker to supervisor


class Ready(_Message, frozen=True):
    """The model is loaded; the longest of its first steps took `step_s` seconds."""

    model: str
    device: str
    step_s: float


class Loading(_Message, frozen=True):
    """How far the load is, for users: a stage, and after a comma the share that is done if it is known."""

    message: str


class LoadFailed(_Message, frozen=True):
    """The model cannot be used, and a retry will not help; the worker waits to be killed."""

    message: str


class Answer(_Message, frozen=True):
    """A message for a client. `refusal` is why a team's door has refused the job, if it has."""

    peer: bytes
    frame: bytes
    refusal: Refusal = ""


class Upstream(_Message, frozen=True):
    """The news of a team's relay: the open `streams` to replicas, those that were `lost` since it last said so, and
    whether a replica answers."""

    streams: int
    lost: int
    reached: bool


# Supervisor to worker


class NewJob(_Message, frozen=True):
    """A client's Infill as it was sent, with the milliseconds left until its deadline. `user` is the key that another
    machine has proved, in hex; empty for this machine's own. `model`: chosen by a team's door; a worker that runs its
    own model ignores it."""

    peer: bytes
    left_ms: float
    frame: bytes
    user: str = ""
    model: str = ""


class CancelJob(_Message, frozen=True):
    """The client has cancelled a job."""

    peer: bytes
    job: str


class Gone(_Message, frozen=True):
    """The client has left: drop its jobs."""

    peer: bytes


FromWorker = Loading | Ready | LoadFailed | Answer | Upstream
ToWorker = NewJob | CancelJob | Gone

_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


def encode(message: FromWorker | ToWorker) -> bytes:
    return _encoder.encode(message)


def decode_from_worker(frame: bytes) -> FromWorker:
    return _from_worker.decode(frame)


def decode_to_worker(frame: bytes) -> ToWorker:
    return _to_worker.decode(frame)


def pair(context: zmq.Context[_Socket]) -> _Socket:
    """One end of the link, not yet bound or connected."""
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 1024)
    socket.setsockopt(zmq.RCVHWM, 1024)
    return socket


class Heartbeat:
    """A counter that the worker increments and the supervisor reads. It shows a hang that no socket does, such as a
    thread that holds the GIL for ever. Raises rendezvous.NoPlace."""

    def __init__(self, path: Path) -> None:
        with rendezvous.writing(path), open(path, "a+b", buffering=0, opener=paths.own) as file:
            file.truncate(_COUNTER.size)
            if hasattr(os, "posix_fallocate"):  # otherwise the first tick on a full disk is a SIGBUS
                os.posix_fallocate(file.fileno(), 0, _COUNTER.size)
            self._memory = mmap.mmap(file.fileno(), _COUNTER.size)

    def tick(self) -> None:
        _COUNTER.pack_into(self._memory, 0, (self.read() + 1) % 2**64)

    def read(self) -> int:
        count: int = _COUNTER.unpack_from(self._memory)[0]
        return count
