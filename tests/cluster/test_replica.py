"""A replica in this process, around a worker loop that has nothing to do, and what Ray is told of its health."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import NoReturn

import msgspec
import pytest

pytest.importorskip("grpc", reason="needs the extra `cluster`")

from caesura import logs, wire
from caesura.cluster import replica
from caesura.cluster.replica import Replica
from caesura.cluster.rpc import MODEL
from caesura.cluster.sessions import Sessions
from caesura.engine.supervisor import link

from ..support.clients import until
from .test_sessions import HELLO

pytestmark = pytest.mark.cluster


class IdleLoop:
    def __init__(self, *_: object) -> None:
        self.loading, self.ended = Future[str](), Future[None]()
        self.loading.set_result("cpu")

    def connect(self) -> None: ...

    def check(self) -> None: ...

    def send(self, message: link.ToWorker) -> None: ...

    async def answers(self) -> AsyncIterator[link.Answer]:
        for answer in ():
            yield answer


class Call:
    """Of a client that says Hello and no more."""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [(MODEL, "coder")]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield HELLO
        await asyncio.Event().wait()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    monkeypatch.setattr(logs, "begin", lambda *_: None)  # which would change this process for good
    monkeypatch.setattr(replica, "Loop", IdleLoop)
    interval = sys.getswitchinterval()
    yield Replica({"coder": "coder"}, "cpu", most=1)
    sys.setswitchinterval(interval)


def healthy(found: Replica) -> bool:
    try:
        found.check_health()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("part", ["look", "loaded"])
async def test_a_replica_of_which_a_part_has_failed_is_to_be_replaced(
    found: Replica, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NoReturn:
        raise ValueError

    call = Call()
    stream = found.Session(aiter(call), grpc_context=call)
    with monkeypatch.context() as broken:
        broken.setattr(Sessions, part, failing)
        assert healthy(found)
        assert isinstance(wire.decode_engine((await anext(stream)).data), wire.Welcome)
        await until(lambda: not healthy(found))
    await stream.aclose()  # type: ignore[attr-defined]


def test_serve_deploy_refuses_arguments_that_would_change_nothing() -> None:
    deployment = pytest.importorskip("caesura.cluster.deployment")
    for ignored in ({"replicas": 2}, {"address": "192.0.2.8:9000"}):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            deployment.app({"model": "coder", **ignored})
