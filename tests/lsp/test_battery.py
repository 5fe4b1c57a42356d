"""The language server survives every client of support/faults, or ends as it should, and says nothing wrong."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from lsprotocol import types

from caesura.server.lsp import framing, transport

from ..support.faults.cases import RULES, URI, Case, cases, hello, opened, say
from ..support.faults.play import Client, Line, Peer, in_memory, play, stdio, tcp
from ..support.faults.served import SLOW, make

CASES = {case.name: case for case in cases("textDocument/inlineCompletion")}
PROCESSES = ("JSON that is malformed", "shutdown and exit", "the client closes", "a client that does not read")


def assert_passes(case: Case, peer: Peer) -> None:
    verdict = play(case, peer)
    assert not verdict.survival, verdict
    assert not verdict.conduct, verdict


def test_the_battery_is_whole() -> None:
    assert len(CASES) == len(cases("any")) >= 60
    assert {case.rule for case in CASES.values() if case.rule} == RULES.keys()
    assert len(RULES) == 12


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_in_memory(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PARENT_POLL_S", 0.05)
    assert_passes(case, Peer(in_memory))


@pytest.mark.parametrize("start", [stdio, tcp])
@pytest.mark.parametrize("name", PROCESSES)
def test_in_a_process(name: str, start: Callable[[], Line]) -> None:
    assert_passes(CASES[name], Peer(start))


def test_of_noise_that_begins_no_message_little_is_kept() -> None:
    framer = framing.Framer()
    for _ in range(20):
        assert list(framer.feed(b"x" * transport.CHUNK)) == []
    assert framer.held <= framing.MAX_HEADER


def test_a_request_that_waits_at_shutdown_is_cancelled() -> None:
    where = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}, "context": {"triggerKind": 1}}
    waits = say("textDocument/inlineCompletion", where, id=1)
    line = in_memory()
    client = Client(line)
    try:
        client.send([hello(initializationOptions={"stats": False}), opened(SLOW), waits, say("shutdown", id="bye")])
        assert client.wait(1, "bye")
        assert client.responses[1] == [(True, types.LSPErrorCodes.RequestCancelled)]
    finally:
        line.kill()


def unread(size: int, number: int) -> tuple[int, int]:
    """Bytes that a server takes of so many requests while nobody reads its answers, and how many it answers when
    somebody does."""
    sent, taken, answers, heard = say("no/such", "x" * size, id=1) * number, 0, list[bytes](), threading.Event()

    def read() -> bytes:
        nonlocal taken
        taken += (part := len(sent[taken : taken + transport.CHUNK]))
        return sent[taken - part : taken]

    def write(data: bytes) -> None:
        heard.wait()
        answers.append(data)

    server = threading.Thread(target=make().server.serve, args=(read, write), daemon=True)
    server.start()
    before = -1
    while before < taken < len(sent):
        before = taken
        time.sleep(0.3)  # in which it would read on
    at_most = taken
    heard.set()
    server.join(20)
    assert not server.is_alive()
    return at_most, len(answers)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HELD", 1 << 20)
    monkeypatch.setattr(transport, "BACKLOG", 64)


UNREAD = {  # size and number of requests, and the bytes that are taken at most while no answer is read
    "messages": (60_000, 70, (1 << 20) + transport.CHUNK),
    "small messages": (0, 4000, 2 * transport.CHUNK),
    "messages that are too large": (3 << 20, 3, (3 << 20) + 2 * transport.CHUNK),
}


@pytest.mark.parametrize(("size", "number", "most"), UNREAD.values(), ids=UNREAD)
def test_a_client_that_does_not_read_waits_and_goes_on(size: int, number: int, most: int, little_room: None) -> None:
    taken, answers = unread(size, number)
    assert taken <= most
    assert answers == number


@pytest.mark.slow
@pytest.mark.parametrize("start", [stdio, tcp])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_all_of_them_in_a_process_of_their_own(case: Case, start: Callable[[], Line]) -> None:
    assert_passes(case, Peer(start))


@pytest.mark.slow
def test_a_server_that_nobody_reads_from_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    line = stdio()
    try:
        line.write(hello(processId=parent.pid) + b"".join(say("no/such", id=id) for id in range(transport.BACKLOG)))
        parent.kill()
        parent.communicate()
        assert line.ended(20) == 1
    finally:
        line.kill()
