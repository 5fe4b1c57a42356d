"""Plays a case of the battery to a server, over stdio, TCP or in memory, and judges what it does."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from .cases import ANY, CLOSE, DEAF, INVALID, MARK, MAYBE, ORPHAN, TWICE, URI, Case, Hang, hello, opened, say

SERVED = Path(__file__).with_name("served.py")
START_S = 30.0  # for a process to be there
ANSWER_S = 5.0  # for what a client waits for, on a machine that is busy
SETTLE_S = 5.0  # for answers that are due, before the next request is sent; they count until the end
PROBE = "file:///project/probe.txt"
_HEADER = re.compile(rb"(?i)\A(?:[^\r\n]+\r\n)*?content-length: *(\d+)\r\n(?:[^\r\n]+\r\n)*\r\n")


class Line(Protocol):
    """A server, and the two streams to it."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None:
        """The client says no more."""

    def read(self) -> bytes:
        """Some bytes; none at the end."""

    def ended(self, timeout_s: float) -> int | None:
        """The exit code, or None while it runs."""

    def resident(self) -> tuple[float, float]:
        """MiB now and at most; 0 where it has no process of its own."""

    def logged(self) -> str: ...
    def kill(self) -> None: ...


class Stdio:
    """A process on two pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, bufsize=0)

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        view = memoryview(data)
        while view:
            view = view[os.write(self.process.stdin.fileno(), view) :]

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def read(self) -> bytes:
        assert self.process.stdout
        return os.read(self.process.stdout.fileno(), 1 << 16)

    def ended(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def resident(self) -> tuple[float, float]:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            now, most = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        except (OSError, IndexError):  # it has ended, or this is no Linux
            return 0.0, 0.0
        return now, most

    def logged(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream
            stream.close()


class Tcp(Stdio):
    """A process on a loopback connection, as `caesura lsp --tcp` is."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command)
        assert self.process.stdout
        place = json.loads(self.process.stdout.readline())
        self._socket = socket.create_connection((place["host"], place["port"]))
        self._socket.sendall(f"{place['token']}\n".encode())

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except ConnectionResetError:  # it has ended with bytes of ours unread
            return b""

    def kill(self) -> None:
        self._socket.close()
        super().kill()


class Memory(logging.Handler):
    """A server in a thread of this process, on two queues."""

    def __init__(self, serve: Callable[[Callable[[], bytes], Callable[[bytes], None]], int]) -> None:
        super().__init__(logging.WARNING)
        self._in: SimpleQueue[bytes] = SimpleQueue()
        self._out: SimpleQueue[bytes] = SimpleQueue()
        self._records: list[str] = []
        self._code: int | None = None
        logging.getLogger().addHandler(self)

        def run() -> None:
            self._code = serve(self._in.get, self._out.put)
            self._out.put(b"")

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record.getMessage())

    def write(self, data: bytes) -> None:
        if data:
            self._in.put(data)

    def close(self) -> None:
        self._in.put(b"")

    def read(self) -> bytes:
        return self._out.get()

    def ended(self, timeout_s: float) -> int | None:
        self._thread.join(timeout_s)
        return self._code

    def resident(self) -> tuple[float, float]:
        return 0.0, 0.0

    def logged(self) -> str:
        return "\n".join(self._records)

    def kill(self) -> None:
        logging.getLogger().removeHandler(self)
        self._in.put(b"")


def stdio() -> Line:
    return Stdio([sys.executable, "-P", str(SERVED)])


def tcp() -> Line:
    return Tcp([sys.executable, "-P", str(SERVED), "--tcp"])


def in_memory() -> Line:
    from .served import make

    return Memory(make().server.serve)


@dataclass(frozen=True)
class Peer:
    """A server to play to: how to start it, which request it knows, and whether what it answers to it is `ours`."""

    start: Callable[[], Line]
    method: str = "textDocument/inlineCompletion"
    ours: bool = True


@dataclass
class Verdict:
    """What was wrong: with its survival, and with what it said. None of either: the case has passed."""

    survival: list[str] = field(default_factory=list)
    conduct: list[str] = field(default_factory=list)


class Client:
    """Sends steps, and keeps what comes."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.responses: dict[Any, list[Any]] = {}  # of an id: the code of each, or its result
        self.broken = b""  # bytes that are no message
        self._arrived = threading.Condition()
        self._reads = threading.Event()
        self._reads.set()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def send(self, steps: Sequence[bytes | Hang]) -> bool:
        """Whether the server took all of it in time."""
        sending = threading.Thread(target=self._send, args=(steps,), daemon=True)
        sending.start()
        sending.join(4 * ANSWER_S)
        self._reads.set()
        return not sending.is_alive()

    def wait(self, *ids: Any, limit_s: float = 0.0) -> bool:
        """Until each of them has a response. False where they do not get one in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self.responses.keys() >= set(ids), limit_s or ANSWER_S)

    def _send(self, steps: Sequence[bytes | Hang]) -> None:
        try:
            for step in steps:
                if step is CLOSE:
                    self.line.close()
                elif step is DEAF:
                    self._reads.clear()
                elif step is ORPHAN:
                    self._orphan()
                elif isinstance(step, bytes):
                    self.line.write(step)
        except (OSError, ValueError):  # it has ended; whether it should is judged from its exit
            return

    def _orphan(self) -> None:
        parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.line.write(hello(processId=parent.pid))
        self.wait("hello", limit_s=START_S)  # or the process is gone before it is named
        self.responses.pop("hello", None)
        assert parent.stdin
        parent.stdin.close()
        parent.kill()
        parent.wait()

    def _read(self) -> None:
        rest = b""
        while data := self._chunk():
            rest += data
            while (found := _HEADER.match(rest)) and len(rest) >= found.end() + int(found[1]):
                end = found.end() + int(found[1])
                self._take(json.loads(rest[found.end() : end]))
                rest = rest[end:]
        self.broken = rest

    def _chunk(self) -> bytes:
        self._reads.wait()
        try:
            return self.line.read()
        except (OSError, ValueError):  # closed by us
            return b""

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            if "id" in message:
                self.send([say("", id=message["id"]).replace(b'"method": ""', b'"result": null')])
            return
        with self._arrived:
            answer = message["error"]["code"] if "error" in message else message.get("result")
            id = message.get("id")  # of any type, as far as some servers are concerned
            key = id if id is None or isinstance(id, int | str) else json.dumps(id)
            self.responses.setdefault(key, []).append(("error" in message, answer))
            self._arrived.notify_all()


def play(case: Case, peer: Peer) -> Verdict:
    line = peer.start()
    try:
        return _play(case, peer, line)
    finally:
        line.kill()


def _play(case: Case, peer: Peer, line: Line) -> Verdict:
    verdict, client = Verdict(), Client(line)
    if case.hello:
        client.send([hello(initializationOptions={"stats": False}).replace(b'"id": "hello"', b'"id": "start"')])
        client.wait("start", limit_s=START_S)
        client.send([say("initialized", {})])
        client.responses.pop("start", None)
    before = line.resident()[0]
    if not client.send(case.sends):
        verdict.survival.append("it does not read")
    if case.ends is None:
        _go_on(case, peer, client, verdict, before)
    if verdict.survival:  # nothing it says can mend that
        return verdict
    code = line.ended(2 * ANSWER_S)
    if code is None:
        verdict.survival.append("it has not ended")
    elif code != (case.ends or 0):
        verdict.conduct.append(f"exit code {code}")
    client.reader.join(ANSWER_S if code is not None else 0)
    _compare(case, client, verdict)
    if MARK in line.logged():
        verdict.conduct.append("text of a document in the log")
    return verdict


def _go_on(case: Case, peer: Peer, client: Client, verdict: Verdict, before: float) -> None:
    """The server shall be as well as before: answer, know the document's text, and say goodbye."""
    start = {"position": {"line": 0, "character": 0}, "context": {"triggerKind": 1}}
    asked = [
        say(peer.method, {"textDocument": {"uri": uri}, **start}, id=id)
        for uri, id in ((PROBE, "probe"), (URI, "text"))
    ]
    client.wait(*case.wants, limit_s=SETTLE_S)
    client.send([opened("probe", PROBE), asked[0]])
    if not client.wait("probe"):
        verdict.survival.append("a valid request is not answered")
        return
    if peer.ours and (case.text is not None or case.lost):
        client.send([asked[1]])
        client.wait("text")
        from .served import seal

        [(_, found)] = client.responses.pop("text", [(False, None)])
        items = [item["insertText"] for item in (found or {"items": [None]})["items"]]
        wanted = [] if case.text is None else [seal(case.text)]
        if items != wanted:
            verdict.conduct.append(f"of another text: {items}, not {wanted}")
    grown = client.line.resident()[1] - before
    if grown > case.memory:
        verdict.survival.append(f"it has grown by {grown:.0f} MiB")
    client.send([say("shutdown", id="end")])
    client.wait("end")
    client.send([say("exit")])
    client.responses.pop("probe", None)
    client.responses.pop("end", None)


def _compare(case: Case, client: Client, verdict: Verdict) -> None:
    """One response for each request, and no other."""
    said = dict(client.responses)
    nameless = [code for _, code in said.pop(None, [])]
    if nameless != list(case.nameless):
        verdict.conduct.append(f"without an id: {nameless}, not {list(case.nameless)}")
    for id, want in case.wants.items():
        codes = [code if failed else None for failed, code in said.pop(id, [])]
        if want == TWICE:
            fits = len(codes) == 2 and INVALID in codes
        else:
            fits = (len(codes) == 1 and want in (ANY, MAYBE, codes[0])) or (want == MAYBE and not codes)
        if not fits:
            verdict.conduct.append(f"{id!r}: {codes}, not {want!r}")
    if said:
        verdict.conduct.append(f"responses to nobody: {sorted(map(str, said))[:5]}")
    if client.broken:
        verdict.conduct.append(f"{len(client.broken)} bytes that are no message")
