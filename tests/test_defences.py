"""The list of defences: without any one of them, a case of the battery fails, and in the way that is named here."""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from lsprotocol.types import ErrorCodes

from caesura.server import document, framing, loopback, protocol, transport, workspace
from caesura.server.app import App
from caesura.server.document import Document
from caesura.server.framing import Framer
from caesura.server.protocol import Rules
from caesura.server.transport import Room, Server
from caesura.server.workspace import Workspace

from . import test_battery as battery
from .faults import play
from .faults.play import Peer
from .test_battery import little_room  # noqa: F401 (a fixture)

Patch = Callable[[object, str, Any], None]


def nothing(*arguments: Any) -> None:
    """In the place of what defends."""


def without(refused: ErrorCodes) -> Any:
    """`_refusal` that lets pass what it would refuse so."""
    real = Rules._refusal

    def refusal(self: Rules, method: str, request: int | str | None) -> ErrorCodes | None:
        found = real(self, method, request)
        return None if found == refused else found

    return refusal


def header_at_once(self: Framer) -> bool:
    """What does not begin with a length ends the session."""
    if len(self._buffer) > 20 and not re.match(rb"(?i)content-length: *\d", self._buffer):
        raise framing.MessageTooLarge
    return Framer.found(self)  # type: ignore[attr-defined, no-any-return]


def sorted_ends(self: Document, start: Any, end: Any, text: str) -> Any:
    return Document.real(self, *sorted((start, end)), text)  # type: ignore[attr-defined]


def after_all(self: Server, body: bytes) -> None:
    self.protocol.receive(body)


def aloud(self: Server, data: bytes) -> None:
    self._write(data)


def resync(patch: Patch) -> None:
    patch(Framer, "found", Framer._header)
    patch(Framer, "_header", header_at_once)


def inverted(patch: Patch) -> None:
    patch(Document, "real", Document.edit)
    patch(Document, "edit", sorted_ends)


def silence(patch: Patch) -> None:
    patch(Server, "_take", after_all)
    patch(Server, "send", aloud)


DEFENCES: list[tuple[str, Callable[[Patch], None], str, str]] = [
    (
        "a limit for messages",
        lambda patch: patch(framing, "MAX_MESSAGE", 1 << 60),
        "a header that announces 8 GiB",
        "not ended",
    ),
    ("noise is skipped", resync, "a length that is no number", "not answered"),
    (
        "names of headers in any case",
        lambda patch: patch(framing, "_LENGTH", re.compile(rb"Content-Length: *(\d{1,15})[ \t]*\r?\n")),
        "a header in lower case",
        "not answered|1: ",
    ),
    (
        "line feeds alone end a header",
        lambda patch: patch(framing, "_END", re.compile(rb"\n\r\n")),
        "line feeds alone",
        "1: ",
    ),
    ("NaN is no JSON", lambda patch: patch(protocol, "_refuse_constant", float), "NaN", "without an id"),
    (
        "types are what LSP says",
        lambda patch: patch(protocol, "_exactly", lambda value, kind: kind(value)),
        "edit: a text that is null",
        "of another text",
    ),
    (
        "nothing before initialize",
        lambda patch: patch(Rules, "_refusal", without(ErrorCodes.ServerNotInitialized)),
        "a request before initialize",
        "1: ",
    ),
    (
        "initialize once",
        lambda patch: patch(Rules, "_refusal", without(ErrorCodes.InvalidRequest)),
        "initialize twice",
        "'hello': ",
    ),
    (
        "nothing after shutdown",
        lambda patch: patch(Rules, "_refusal", without(ErrorCodes.InvalidRequest)),
        "a request after shutdown",
        "1: ",
    ),
    (
        "an id is of one request",
        lambda patch: patch(Rules, "_refusal", without(ErrorCodes.InvalidRequest)),
        "an id that is in use",
        "1: ",
    ),
    (
        "unknown requests are answered",
        lambda patch: patch(Rules, "_refuse", nothing),
        "a request that nobody knows",
        "5: ",
    ),
    ("bad parameters are answered", lambda patch: patch(Rules, "_refuse", nothing), "no parameters", "5: "),
    (
        "cancelled requests are answered",
        lambda patch: patch(Rules, "_forget", nothing),
        "a cancel in the same breath",
        "1: ",
    ),
    (
        "exit has its code",
        lambda patch: patch(Server, "stop", lambda self, code, real=Server.stop: real(self, 0)),
        "exit without shutdown",
        "exit code 0",
    ),
    ("silence after exit", silence, "a request behind exit", "1: |to nobody"),
    ("the end of the stream ends it", lambda patch: patch(Server, "_end", nothing), "the client closes", "not ended"),
    (
        "the parent is watched",
        lambda patch: patch(Server, "watch", nothing),
        "the client's process ends, its pipe stays",
        "not ended",
    ),
    (
        "a process id may be none",
        lambda patch: patch(transport, "_alive", lambda process: os.kill(process, 0) is None),
        "a process id beyond all numbers",
        "'hello': ",
    ),
    ("inverted ranges are refused", inverted, "edit: an inverted range", "of another text"),
    (
        "a text that is not known is silent",
        lambda patch: patch(Workspace, "lose", nothing),
        "edit: an inverted range",
        "of another text",
    ),
    (
        "an edit that cannot be read is missed",
        lambda patch: patch(App, "malformed", nothing),
        "edit: a change without a text",
        "of another text",
    ),
    (
        "a limit for documents that grow",
        lambda patch: patch(workspace, "MAX_DOCUMENT", 1 << 40),
        "a document that grows to 9 MB",
        "of another text",
    ),
    (
        "half characters are mended",
        lambda patch: patch(document, "_SURROGATE", re.compile("(?!)")),
        "half a character",
        "of another text",
    ),
    (
        "lines end as LSP says",
        lambda patch: patch(document, "_split", lambda text: [*text.splitlines(True), ""]),
        "line ends that are none",
        "of another text",
    ),
    (
        "errors are logged without their text",
        lambda patch: patch(logging.Logger, "setLevel", nothing),
        "a kind that is a text",
        "in the log",
    ),
]


@pytest.mark.parametrize(("remove", "case", "trouble"), [d[1:] for d in DEFENCES], ids=[d[0] for d in DEFENCES])
def test_a_defence_that_is_removed_is_missed(
    remove: Callable[[Patch], None], case: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "ANSWER_S", 1.0)
    monkeypatch.setattr(play, "START_S", 1.0)
    monkeypatch.setattr(play, "SETTLE_S", 0.3)
    monkeypatch.setattr(transport, "STUCK_S", 60.0)  # the process is the test's
    monkeypatch.setattr(transport, "PARENT_POLL_S", 0.05)
    logging.getLogger("pygls").setLevel(logging.NOTSET)
    remove(lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
    verdict = play.play(battery.CASES[case], Peer(play.in_memory))
    assert re.search(trouble, " ".join(verdict.survival + verdict.conduct)), verdict


@pytest.mark.parametrize(("part", "case"), [("to_read", "messages"), ("take", "small messages")])
def test_without_a_bound_all_is_held_that_a_client_sends(
    part: str,
    case: str,
    little_room: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Room, part, nothing)
    size, number, most = battery.UNREAD[case]
    assert battery.unread(size, number)[0] > most


async def admitted(greeting: bytes) -> bool:
    """Whether someone who begins so is let in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        admitting = asyncio.create_task(loopback.admit(listener, "a" * 64))
        _, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(greeting)
        done, _ = await asyncio.wait([admitting], timeout=0.5)
        admitting.cancel()
        return bool(done)


@pytest.mark.parametrize("greeting", [b"b" * 64 + b"\n", b"POST / HTTP/1.1\r\n\r\n"])
async def test_without_the_check_of_the_token_anybody_is_let_in(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await admitted(b"a" * 64 + b"\n")
    assert not await admitted(greeting)
    monkeypatch.setattr(loopback.hmac, "compare_digest", lambda one, other: True)
    assert await admitted(greeting)
