"""Whatever a client sends, the language server lives on or ends as it should, and says nothing wrong: tests/faults."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from .faults.cases import RULES, Case, cases, hello, say
from .faults.play import Line, Memory, Peer, play, stdio, tcp
from .faults.served import make

CASES = {case.name: case for case in cases("textDocument/inlineCompletion")}
PROCESSES = ("JSON that is malformed", "shutdown and exit", "the client closes", "a client that does not read")


def in_memory() -> Line:
    return Memory(make().server.serve)


def assert_passes(case: Case, peer: Peer) -> None:
    verdict = play(case, peer)
    assert not verdict.survival, verdict
    assert not verdict.conduct, verdict


def test_the_battery_is_whole() -> None:
    assert len(CASES) == len(cases("any")) >= 60
    assert {case.rule for case in CASES.values() if case.rule} == RULES.keys()
    assert len(RULES) == 12


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_in_memory(case: Case) -> None:
    assert_passes(case, Peer(in_memory))


@pytest.mark.parametrize("start", [stdio, tcp])
@pytest.mark.parametrize("name", PROCESSES)
def test_in_a_process(name: str, start: Callable[[], Line]) -> None:
    assert_passes(CASES[name], Peer(start))


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
        line.write(hello(processId=parent.pid) + b"".join(say("no/such", id=id) for id in range(5000)))
        parent.kill()
        parent.communicate()
        assert line.ended(20) == 1
    finally:
        line.kill()
