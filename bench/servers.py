"""Two language servers side by side, each with a backend that answers at once: what the server itself costs.

    python bench/servers.py [--tabby FOLDER] [--keys 200] [--json] [--out bench/results/servers.json]

`caesura lsp` with peers/instant.py behind the real wire; tabby-agent with a stub of Tabby's HTTP interface on loopback.
A key is a didChange of one character and the request behind it, by a blocking client; the next key comes PAUSE_S after
the answer. FOLDER is where `npm i tabby-agent@1.5.0` was run; without it only ours is measured.
"""

import argparse
import ast
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from latency import CAESURA, conditions, own_engine, save, spread, table

from caesura import model_store
from caesura.ipc import rendezvous

HERE = Path(__file__).resolve().parent
INSTANT = [sys.executable, "-P", str(HERE / "peers" / "instant.py")]

LINES = 400  # of the document: the head of argparse.py
BEGUN = "total = "  # what stands on the lines that are typed at
LINE_KEYS = 40  # typed on each of them: letters that no backend foresees
LINES_APART = 10
PAUSE_S = 0.12  # between an answer and the next key
WARM_UP = 10  # keys that are not counted
STARTS = 10
ANSWER_S = 30.0

Report = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A server: how it is started, what its completion is called and which settings it gets."""

    name: str
    command: Sequence[str]
    method: str
    context: Report
    settings: Report
    environment: dict[str, str]
    keys: int


class Pipe:
    """A blocking client of one server process."""

    def __init__(self, peer: Peer) -> None:
        pipe, environment = subprocess.PIPE, {**os.environ, **peer.environment}
        self.process = subprocess.Popen(
            peer.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0, env=environment
        )
        assert self.process.stdin
        assert self.process.stdout
        self._stdin, self._stdout = self.process.stdin, self.process.stdout.fileno()
        self._arrived = b""
        self._requests = 0

    def tell(self, method: str, params: object) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: object) -> Any:
        """The result. Raises RuntimeError for an error, and for a server that does not answer."""
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        while True:
            message = self._message()
            if "method" in message:
                if "id" in message:  # a request of the server's: nothing to say
                    items = (message["params"] or {}).get("items")
                    self._send({"id": message["id"], "result": [None] * len(items) if items else None})
            elif message["id"] == self._requests:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def end(self) -> None:
        try:
            self.ask("shutdown", None)
            self.tell("exit", None)
            self.process.wait(5)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def _send(self, message: Report) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def _message(self) -> Report:
        while (end := self._arrived.find(b"\r\n\r\n") + 4) < 4:
            self._receive()
        found = re.search(rb"(?i)content-length: *(\d+)", self._arrived[:end])
        assert found, "every message has its length"
        size = end + int(found[1])
        while len(self._arrived) < size:
            self._receive()
        body, self._arrived = self._arrived[end:size], self._arrived[size:]
        message: Report = json.loads(body)
        return message

    def _receive(self) -> None:
        if not select.select([self._stdout], [], [], ANSWER_S)[0]:
            raise RuntimeError(f"no answer in {ANSWER_S:g} s")
        arrived = os.read(self._stdout, 1 << 16)
        if not arrived:
            raise RuntimeError("the server has ended")
        self._arrived += arrived


# The backends


@contextlib.contextmanager
def instant_engine() -> Iterator[None]:
    """The engine of ours that answers at once, in a runtime folder of its own."""
    with own_engine():
        subprocess.Popen(INSTANT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + ANSWER_S
        while not rendezvous.running():
            assert time.monotonic() < limit, "the engine did not start"
            time.sleep(0.02)
        yield


TABBY_SAYS: Report = {
    "/v1/health": {
        "model": "stub",
        "device": "cpu",
        "arch": "",
        "cpu_info": "",
        "cpu_count": 1,
        "version": {"build_date": "", "build_timestamp": "", "git_sha": "", "git_describe": "v0.11.0"},
    },
    "/v1/completions": {"id": "stub", "choices": [{"index": 0, "text": "value"}]},
}


class Tabby(BaseHTTPRequestHandler):
    """The part of Tabby's HTTP interface that tabby-agent asks for; every completion is the same."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = json.dumps(TABBY_SAYS.get(self.path.partition("?")[0], {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Backend(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that ends while it is connected is none of ours."""


@contextlib.contextmanager
def tabby_backend() -> Iterator[str]:
    """Its address."""
    server = Backend(("127.0.0.1", 0), Tabby)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def tabby(folder: Path, name: str, debounce: str, keys: int) -> Iterator[Peer]:
    """tabby-agent with a home of its own, which names the stub and the debounce, and with no usage reports."""
    with tabby_backend() as address, tempfile.TemporaryDirectory(prefix="tabby-") as home:
        config = Path(home, ".tabby-client", "agent", "config.toml")
        config.parent.mkdir(parents=True)
        config.write_text(
            f'[server]\nendpoint = "{address}"\ntoken = "stub"\n'
            f"[anonymousUsageTracking]\ndisable = true\n[completion.debounce]\n{debounce}\n"
        )
        command = ["node", str(folder / "node_modules" / "tabby-agent" / "dist" / "cli.js"), "--lsp", "--stdio"]
        yield Peer(name, command, "textDocument/completion", {"triggerKind": 1}, {}, {"HOME": home}, keys)


@contextlib.contextmanager
def caesura(keys: int) -> Iterator[Peer]:
    with instant_engine(), tempfile.TemporaryDirectory(prefix="caesura-home-") as home:
        settings = {"deadlineMs": 10_000, "model": model_store.DEFAULT}
        places = {"XDG_DATA_HOME": home, "XDG_STATE_HOME": home}
        yield Peer(
            "caesura lsp",
            [*CAESURA, "lsp"],
            "textDocument/inlineCompletion",
            {"triggerKind": 2},
            settings,
            places,
            keys,
        )


# What is measured


def initialize(pipe: Pipe, peer: Peer) -> None:
    abilities: Report = {"completion": {"completionItem": {}}, "inlineCompletion": {}}
    asked = {
        "processId": os.getpid(),
        "clientInfo": {"name": "bench"},
        "rootUri": None,
        "capabilities": {"textDocument": abilities, "general": {"positionEncodings": ["utf-16"]}},
        "initializationOptions": peer.settings,
    }
    pipe.ask("initialize", asked)


def starts(peer: Peer) -> list[float]:
    """Milliseconds from starting the process to its answer to `initialize`."""
    spent = []
    for _ in range(STARTS):
        began = time.perf_counter()
        pipe = Pipe(peer)
        initialize(pipe, peer)
        spent.append((time.perf_counter() - began) * 1000)
        pipe.end()
    return spent


def keys(peer: Peer) -> tuple[list[float], int, float]:
    """Milliseconds from didChange to the answer, how many answers had text, and the server's MiB at the end."""
    source = Path(ast.__file__).with_name("argparse.py").read_text("utf-8").split("\n")[:LINES]
    source[LINES // 2 :: LINES_APART] = [BEGUN] * len(source[LINES // 2 :: LINES_APART])
    uri, spent, texts = "file:///bench/a.py", [], 0
    pipe = Pipe(peer)
    initialize(pipe, peer)
    pipe.tell("initialized", {})
    document = {"uri": uri, "languageId": "python", "version": 0, "text": "\n".join(source)}
    pipe.tell("textDocument/didOpen", {"textDocument": document})
    time.sleep(2)  # both connect to their backend and parse
    for number in range(WARM_UP + peer.keys):
        line, column = LINES // 2 + LINES_APART * (number // LINE_KEYS), len(BEGUN) + number % LINE_KEYS
        before, after = ({"line": line, "character": character} for character in (column, column + 1))
        change = {"range": {"start": before, "end": before}, "text": "xyz"[number % 3]}
        changed = {"textDocument": {"uri": uri, "version": number + 1}, "contentChanges": [change]}
        asked = {"textDocument": {"uri": uri}, "position": after, "context": peer.context}
        began = time.perf_counter()
        pipe.tell("textDocument/didChange", changed)
        answer = pipe.ask(peer.method, asked)
        if number >= WARM_UP:
            spent.append((time.perf_counter() - began) * 1000)
            texts += bool(answer and answer["items"])
        time.sleep(PAUSE_S)
    resident = Path(f"/proc/{pipe.process.pid}/status").read_text()
    pipe.end()
    return spent, texts, round(int(re.findall(r"VmRSS:\s+(\d+)", resident)[0]) / 1024, 1)


def measure(folder: Path | None, count: int) -> Report:
    report: Report = {"bench": "servers", **conditions(model_store.DEFAULT), "lines": LINES, "pause_ms": PAUSE_S * 1000}
    kinds: list[Callable[[], contextlib.AbstractContextManager[Peer]]] = [partial(caesura, count)]
    if folder:
        fixed = 'mode = "fixed"\ninterval = 0'
        kinds.append(partial(tabby, folder, "tabby-agent, debounce 0", fixed, count))
        kinds.append(partial(tabby, folder, "tabby-agent, as it comes", 'mode = "adaptive"', min(count, 60)))
    report["servers"] = {}
    for kind in kinds:
        with kind() as peer:
            print(f"{peer.name} ...", file=sys.stderr, flush=True)
            began, (spent, texts, resident) = starts(peer), keys(peer)
            report["servers"][peer.name] = {
                "method": peer.method,
                "ms": spread(spent),
                "with_text": texts,
                "start_ms": spread(began),
                "mib": resident,
            }
    return report


def picture(report: Report) -> str:
    head = ("didChange to answer", "n", "with text", "p50 ms", "p95 ms", "start p50 ms", "start p95 ms", "MiB")
    ranks = [(kind, rank) for kind in ("ms", "start_ms") for rank in ("p50", "p95")]
    rows = [
        (name, row["ms"]["n"], row["with_text"], *(row[kind][rank] for kind, rank in ranks), row["mib"])
        for name, row in report["servers"].items()
    ]
    about = f"{report['commit']}, {report['machine']}, load {report['load']}, document of {report['lines']} lines"
    return f"{about}\n\n{table(head, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Language servers side by side, with backends that answer at once.")
    parser.add_argument("--tabby", type=Path, metavar="FOLDER", help="where tabby-agent 1.5.0 was installed by npm")
    parser.add_argument("--keys", type=int, default=200, help="default 200, the most 700; 60 of the adaptive debounce")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "servers.json")
    options = parser.parse_args()
    report = measure(options.tabby, options.keys)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
