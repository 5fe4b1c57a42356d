"""A replica in this process, around a worker loop that has nothing to do, and what Ray is told of its health."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import zmq

pytest.importorskip("grpc", reason="needs the extra `cluster`")

from caesura import logs, wire
from caesura.cluster import loop, replica
from caesura.cluster.loop import Loop
from caesura.cluster.models import Held
from caesura.cluster.replica import Replica
from caesura.cluster.rpc import MODEL
from caesura.cluster.sessions import Sessions
from caesura.engine import worker
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


def test_a_replica_whose_model_never_gets_loaded_is_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAESURA_RUNTIME", str(tmp_path))
    ended = threading.Event()

    def hangs(model: str, device: str) -> worker.Loaded:
        ended.wait()
        raise worker.CannotLoad("The test is over.")

    hung = Loop(zmq.Context.instance(), "coder", "cpu", hangs)
    hung.check()
    monkeypatch.setattr(loop, "LOAD_S", 0.0)
    with pytest.raises(RuntimeError, match="takes too long to load"):
        hung.check()
    ended.set()
    hung.ended.result()


async def test_a_model_that_cannot_be_loaded_keeps_its_place_until_its_memory_is_free(found: Replica) -> None:
    failed: Any = IdleLoop()
    failed.loading = Future()
    failed.loading.set_exception(worker.CannotLoad("It is damaged."))
    found._loops["damaged"] = failed
    found._sessions._models._held["damaged"] = Held("loading", 0.0, 0.0)
    running = asyncio.create_task(found._run("damaged", failed))
    for _ in range(5):
        await asyncio.sleep(0)
    assert found._sessions._models.loading("damaged")
    failed.ended.set_result(None)
    await running
    assert found._sessions._models.trouble("damaged", 0.0) == "It is damaged."
