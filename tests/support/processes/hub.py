"""A hub on loopback with one model: the list of its files, and each of them whole or from a byte on. A connection can
be cut, a hash be wrong, the repository be gated; and a hostile hub changes its list or answers whatever it likes.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "c0ffee" * 6 + "beef"
NAME = "org/tiny"
TOKEN = "hf_of_the_test"
Run = Callable[..., tuple[int, str, str]]  # of `caesura models`: the exit code, stdout and stderr


@dataclass
class Reply:
    """What a hostile hub answers, `chunks` until the client has enough."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = ()


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.licence: dict[str, str] = {"license": "apache-2.0"}
        self.gated = False
        self.cut: int | None = None  # the next body of weights ends after so many bytes
        self.requests: list[tuple[str, str, str]] = []  # method, path, range
        self.tokens = set[str]()  # what was sent as authorization
        self.change: Callable[[dict[str, Any]], Any] = lambda listing: listing
        self.replies = dict[str, Reply]()  # by the last part of a path
        self.address = f"http://127.0.0.1:{self.server_port}"

    def hash(self, file: Path) -> str:
        """Weights are kept by LFS, under their sha256."""
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def got(self) -> list[str]:
        """The files that somebody has downloaded."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def about(self) -> dict[str, Any]:
        def one(file: Path) -> dict[str, Any]:
            size = file.stat().st_size
            lfs = {"size": size, "sha256": self.hash(file), "pointerSize": 130}
            large = {"lfs": lfs} if file.suffix == ".safetensors" else {}
            git = hashlib.sha1(b"blob %d\0" % size + file.read_bytes()).hexdigest()
            return {"rfilename": file.name, "size": size, "blobId": git, **large}

        files = [one(file) for file in sorted(self.folder.iterdir())]
        return {
            "id": NAME,
            "sha": COMMIT,
            "cardData": self.licence,
            "siblings": files,
            "safetensors": {"parameters": {"F32": 87_616}, "total": 87_616},
        }


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append((self.command, path, self.headers.get("Range", "")))
        self.server.tokens.add(self.headers.get("Authorization", ""))
        if reply := self.server.replies.get(path.rpartition("/")[2]):
            return self._reply(reply)
        if NAME not in path:
            return self._send(404, {"X-Error-Code": "RepoNotFound"})
        if path in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/{COMMIT}", f"/api/models/{NAME}/revision/v1"):
            return self._send(200, {}, json.dumps(self.server.change(self.server.about())).encode())
        if "/revision/" in path:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"})
        if self.server.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(403, {"X-Error-Code": "GatedRepo"})
        return self._file(self.server.folder / path.rpartition("/")[2])

    def _file(self, file: Path) -> None:
        data, headers = file.read_bytes(), {"X-Repo-Commit": COMMIT, "ETag": f'"{self.server.hash(file)}"'}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, headers, data[start:], weights=file.suffix == ".safetensors")

    def _reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # the client has enough
            for chunk in reply.chunks:
                self.wfile.write(chunk)

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"", weights: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: self.server.cut] if weights else body)
            if weights:
                self.server.cut = None

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[Hub]:
    with Hub(folder) as hub:
        Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        hub.shutdown()
