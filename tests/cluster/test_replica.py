"""A replica in this process, whose model is that of fake_engine.py, and what Ray is told of its health."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

pytest.importorskip("grpc")  # of the extra `cluster`

from caesura import logs, wire
from caesura.cluster.replica import Replica
from caesura.cluster.rpc import MODEL
from caesura.cluster.sessions import Sessions

from ..supervisor.test_processes import until
from ..support.processes import fake_engine
from .test_sessions import HELLO

pytestmark = pytest.mark.cluster


class Call:
    """Of a client that says Hello and no more."""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [(MODEL, "fake")]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield HELLO
        await asyncio.Event().wait()


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    monkeypatch.setenv("CAESURA_RUNTIME", str(tmp_path))
    monkeypatch.setattr(logs, "begin", lambda *_: None)  # which would change this process for good
    interval = sys.getswitchinterval()
    yield Replica({"fake": "fake"}, "cpu", 1, fake_engine.load)
    sys.setswitchinterval(interval)


def failing(*_: object) -> NoReturn:
    raise ValueError


def healthy(found: Replica) -> bool:
    try:
        found.check_health()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("part", ["look", "loaded"])
async def test_a_replica_of_which_a_part_has_failed_is_to_be_replaced(
    replica: Replica, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call()
    stream = replica.Session(aiter(call), grpc_context=call)
    with monkeypatch.context() as broken:
        broken.setattr(Sessions, part, failing)
        assert healthy(replica)
        assert isinstance(wire.decode_engine((await anext(stream)).data), wire.Welcome)
        await until(lambda: not healthy(replica))
    await stream.aclose()  # type: ignore[attr-defined]
