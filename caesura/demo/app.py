"""`caesura demo`: its routes, its start and its end. It serves the page's files, documents, a language server for each
page, and fills."""

import asyncio
import contextlib
import os
import re
import secrets
import sys
import threading
import webbrowser
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePath
from types import MappingProxyType

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from caesura.client.shared import Engine
from caesura.demo import fills
from caesura.demo.guard import HEADERS, PageGuard
from caesura.demo.session import COMMAND, EditorProcess, NotPassed
from caesura.serve import hosting
from caesura.serve.hosting import RequestRefused, Stream, json_response
from caesura.server.languages import language

PAGE = Path(__file__).parent / "page"
EXAMPLES = [Path(__file__).parent / "examples" / f"{name}.txt" for name in ("stack.js", "words.go", "shapes.py")]
MARKER = "<FILL>"  # where a document's gaps are
MAX_PAGES = 4  # each has a language server
SETTINGS = {"stats": False}  # trials in the demo do not count as the user's suggestions
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
}


@dataclass(frozen=True)
class DemoDocument:
    """A text to fill; `gaps` are offsets in code points."""

    name: str
    language: str
    text: str
    gaps: tuple[int, ...]

    @staticmethod
    def marked(name: str, text: str) -> "DemoDocument":
        """A text with MARKER at each gap, if it has any."""
        gaps = tuple(found.start() - n * len(MARKER) for n, found in enumerate(re.finditer(MARKER, text)))
        return DemoDocument(name, language("", name).id, text.replace(MARKER, ""), gaps)


def examples(own: Sequence[DemoDocument] = ()) -> list[DemoDocument]:
    """The user's own documents, then the examples, except those with the same name."""
    named = {document.name for document in own}
    found = [DemoDocument.marked(path.stem, path.read_text("utf-8")) for path in EXAMPLES]
    return [*own, *(document for document in found if document.name not in named)]


class DemoApp:
    """`lsp` is the command of the language server, which gets `settings` together with ours."""

    def __init__(
        self,
        engine: Engine,
        documents: Sequence[DemoDocument],
        settings: Mapping[str, str] = MappingProxyType({}),
        lsp: Sequence[str] = COMMAND,
    ) -> None:
        self.sessions: dict[str, EditorProcess] = {}
        self._engine, self._settings, self._lsp = engine, {**SETTINGS, **settings}, lsp
        self._pages = asyncio.Semaphore(MAX_PAGES)
        self._files = files()
        self._documents = json_response(list(documents))

    def __repr__(self) -> str:
        return f"<DemoApp {len(self.sessions)} pages>"

    @contextlib.asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[PageGuard]:
        """Answer requests inside of the context. `port` 0 chooses a free one."""
        with hosting.bound(port) as listener:
            guard = PageGuard(listener.getsockname()[1])

            async def answered(request: Request) -> Response:
                return json_response(key) if (key := guard.check(request)) else await self._answer(request)

            routes = [Route("/{path:path}", answered, methods=["GET", "POST"])]
            asgi = Starlette(routes=routes, exception_handlers={RequestRefused: _refusal})
            async with hosting.serving(listener, asgi, "the demo", guard.knows, HEADERS):
                yield guard

    async def _answer(self, request: Request) -> Response:
        path, body = request.scope["path"], await request.body()
        match request.method, path.split("/")[1:]:
            case "GET" | "HEAD", _ if path in self._files:
                return self._files[path]
            case "POST", ["documents"]:
                return self._documents
            case "POST", ["sessions"]:
                return _stream(self._session())
            case "POST", ["sessions", name] if name in self.sessions:
                return self._pass_on(self.sessions[name], body)
            case "POST", ["fill"]:
                return self._fill(body)
        raise RequestRefused(HTTPStatus.NOT_FOUND, "The demo has no such path.")

    async def _session(self) -> AsyncGenerator[object, None]:
        """The name of a new session, then the messages of its language server."""
        if self._pages.locked():
            yield fills.DemoFailed(f"The demo is already open in {MAX_PAGES} pages; close one of them and reload.")
            return
        async with self._pages, EditorProcess.started(self._lsp, self._settings) as session:
            name = secrets.token_hex(16)
            self.sessions[name] = session
            try:
                yield {"session": name}
                async for message in session.messages():
                    yield message
            finally:
                del self.sessions[name]

    def _pass_on(self, session: EditorProcess, body: bytes) -> Response:
        try:
            session.pass_on(body)
        except NotPassed as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, str(error)) from error
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _fill(self, body: bytes) -> Response:
        try:
            wanted = msgspec.json.decode(body, type=fills.Wanted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestRefused(HTTPStatus.BAD_REQUEST, f"The demo cannot fill this: {error}.") from error
        if len(wanted.text) > fills.MAX_TEXT:
            sentence = f"The text is longer than the {fills.MAX_TEXT:,} characters that the demo accepts."
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
        return _stream(fills.fill(self._engine, wanted))


def _stream(values: AsyncGenerator[object, None]) -> Stream:
    """A line of JSON for each value."""

    async def lines() -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(values):
            async for value in values:
                yield msgspec.json.encode(value) + b"\n"

    return Stream(lines(), "application/x-ndjson")


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return PlainTextResponse(f"{error}\n", error.status)


def files() -> dict[str, Response]:
    """The only public answers, by path: the page's files, as they were at the start."""
    found = {}
    for path in (p for p in PAGE.rglob("*") if p.is_file()):
        name = path.relative_to(PAGE)
        packed = name.suffix == ".gz"
        name = name.with_suffix("") if packed else name
        type = TYPES.get(name.suffix, "text/plain; charset=utf-8")
        headers = {"Content-Encoding": "gzip"} if packed else {}
        found[f"/{PurePath(name).as_posix()}"] = Response(path.read_bytes(), headers=headers, media_type=type)
    return found | {"/": found["/index.html"]}


async def serve(documents: Sequence[DemoDocument], port: int, model: str, device: str, *, browser: bool) -> None:
    """Serve the page until the process is interrupted. Its ghost text and its fills come from one engine."""
    ended = hosting.interruption()
    engine = Engine(client="demo", model=model, device=device)
    app = DemoApp(engine, documents, {"model": model, "device": device})
    try:
        async with app.listening(port) as guard:
            print(f"The demo is at {guard.address}\nCtrl-C ends it.", flush=True)
            if browser and _has_screen():  # a daemon thread: some browsers are slow to start
                threading.Thread(target=webbrowser.open, args=(guard.address_once,), daemon=True).start()
            await ended.wait()
    finally:
        await engine.close()


def _has_screen() -> bool:
    """True if there is a screen; without one, a browser would open in the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
