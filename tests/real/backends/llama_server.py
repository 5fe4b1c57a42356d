"""A real llama-server of one's own, as `llama_server.sh` builds it, with the weights of `coder`."""

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
FOLDER = Path(os.environ.get("CAESURA_LLAMA_SERVER") or CACHE / "caesura-tests" / "llama-server")
PROGRAM, WEIGHTS = "llama-server", "coder-q8_0.gguf"
MISSING = (
    "A llama-server is needed: `make llama-server` builds one in about 15 minutes; else name the folder that has"
    f" {PROGRAM} and {WEIGHTS} in CAESURA_LLAMA_SERVER."
)
THREADS, CONTEXT = 1, 4096  # two threads wait for each other on a busy machine; tokens of each slot
START_S, ANSWER_S = 120.0, 120.0  # limits are reached only where something is wrong
LOG_CHARS = 2000

Body = Mapping[str, Any] | bytes


class Exchange(NamedTuple):
    """A response as it came over the wire, and when its first and last byte did, in seconds after the request."""

    raw: bytes
    first_s: float
    last_s: float

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    @property
    def body(self) -> bytes:
        head, _, rest = self.raw.partition(b"\r\n\r\n")
        return _dechunked(rest) if b"chunked" in head.lower() else rest

    @property
    def events(self) -> list[dict[str, Any]]:
        """What a stream said."""
        lines = self.body.decode().split("\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


class LlamaServer:
    """Its port, and what may be asked of it without any code of ours."""

    def __init__(self, port: int, check: Callable[[], None]) -> None:
        """`check` raises AssertionError, with the end of its log, if the program has ended."""
        self.port, self.check = port, check
        self.url = f"http://127.0.0.1:{port}"

    def __repr__(self) -> str:
        return f"<LlamaServer {self.url}>"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), ANSWER_S)

    def is_listening(self) -> bool:
        self.check()
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def is_ready(self) -> bool:
        """True as soon as its model is loaded."""
        self.check()
        try:
            return self.ask("GET", "/health").status == 200
        except ConnectionError:
            return False  # if it has just ended, the next check says so

    def ask(self, method: str, path: str, body: Body | None = None) -> Exchange:
        with self.connect() as connection:
            return exchange(connection, request(method, path, body))

    def infill(self, **body: Any) -> dict[str, Any]:
        found = self.ask("POST", "/infill", body)
        assert found.status == 200, found.raw
        return json.loads(found.body)  # type: ignore[no-any-return]

    @property
    def slots(self) -> list[dict[str, Any]]:
        return json.loads(self.ask("GET", "/slots").body)  # type: ignore[no-any-return]

    @property
    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.slots)


def request(method: str, path: str, body: Body | None = None) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def exchange(connection: socket.socket, asked: bytes) -> Exchange:
    """Ask on a connection and read one whole answer, or what there is until the other side closes."""
    began = time.perf_counter()
    connection.sendall(asked)
    raw, first = b"", 0.0
    while not _whole(raw) and (part := connection.recv(1 << 16)):
        first = first or time.perf_counter() - began
        raw += part
    return Exchange(raw, first, time.perf_counter() - began)


def _whole(raw: bytes) -> bool:
    head, end, body = raw.partition(b"\r\n\r\n")
    if not end:
        return False
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"content-length" in fields:
        return len(body) >= int(fields[b"content-length"])
    return body.endswith(b"0\r\n\r\n")


def _dechunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


def missing() -> str:
    """What to do where there is no llama-server, or ""."""
    return "" if (FOLDER / PROGRAM).is_file() and (FOLDER / WEIGHTS).is_file() else MISSING


@contextmanager
def running(*options: str, weights: str = WEIGHTS, folder: Path = FOLDER) -> Iterator[LlamaServer]:
    """A server that answers. It runs in the folder of the weights, so that no answer holds a path of this machine."""
    with starting(*options, weights=weights, folder=folder) as server:
        wait(server.is_ready, START_S)
        yield server


@contextmanager
def starting(*options: str, weights: str = WEIGHTS, folder: Path = FOLDER) -> Iterator[LlamaServer]:
    """The same as soon as it listens, which is before its model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(FOLDER / PROGRAM), "--model", weights, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--threads", str(THREADS), "--parallel", "1", "--ctx-size", str(CONTEXT), "--slots", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

        def check() -> None:
            if (code := process.poll()) is not None:
                log.seek(0)
                raise AssertionError(
                    f"llama-server has ended with {code}: {' '.join(command)}\n{log.read()[-LOG_CHARS:]}"
                )

        server = LlamaServer(port, check)
        try:
            wait(server.is_listening, START_S)
            yield server
        finally:
            process.kill()
            process.wait()


def wait(condition: Callable[[], bool], limit_s: float) -> float:
    """Until a condition holds; how many seconds that took."""
    began = time.perf_counter()
    while not condition():
        assert time.perf_counter() - began < limit_s, "waited in vain for llama-server"
        time.sleep(0.002)
    return time.perf_counter() - began


if __name__ == "__main__":
    with running() as trial:
        print(trial.infill(input_prefix="def add(a, b):\n    return ", input_suffix="\n", n_predict=4)["content"])
