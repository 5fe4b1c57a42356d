"""HTTP to one service: a warm connection, JSON and server-sent events in bounded memory, a sentence for each failure.
It follows no redirect, reads neither proxies nor `.netrc` from the environment, and refuses compressed answers, since a
small one may unpack to gigabytes.

No sentence quotes the service: its words may be text of a document.
"""

import asyncio
import codecs
import concurrent.futures
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import httpx2
import msgspec

from caesura import __version__
from caesura.client.backends.named import NoKey

CONNECT_S = 2.0
WRITE_S = 5.0
KEPT_S = 120.0  # that a connection is kept open without a job
CONNECTIONS = 32  # at once; a job may need several
MAX_EVENT = 1 << 20  # bytes of one event or JSON answer
PAUSE_S = 1.0  # after the first failure; doubled with each further one
HOPELESS_S = 30.0  # after a failure that only the user can mend
MAX_PAUSE_S = 600.0

_Form = TypeVar("_Form")

for _name in ("httpx2", "httpcore2"):  # at DEBUG they log headers, and the key with them
    logging.getLogger(_name).setLevel(logging.WARNING)


class RequestFailed(Exception):
    """No answer; the message is a sentence for the user. `pause_s`: how long to leave the service alone. `loading`: it
    will be ready soon. `job`: another job may fare better."""

    def __init__(self, sentence: str, pause_s: float = PAUSE_S, *, loading: bool = False, job: bool = False) -> None:
        super().__init__(sentence)
        self.pause_s = pause_s
        self.loading = loading
        self.job = job


class _Utf8Stream(httpx2.AsyncByteStream):
    """The bytes of an answer, checked as they come: the library would replace what is not UTF-8."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Raises UnicodeDecodeError."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        async for chunk in self._stream:
            decoder.decode(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class Http:
    """`name` is the user's for the service; `url` ends before the paths of its API. `key` is called in a thread before
    the first request, and again when its key was refused; requests meanwhile wait for the same call."""

    def __init__(self, name: str, url: str, key: Callable[[], str]) -> None:
        self.name = name
        self._read_key = key
        self._key: asyncio.Future[str] | None = None
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers={"accept-encoding": "identity", "user-agent": f"caesura/{__version__}"},
            timeout=httpx2.Timeout(None, connect=CONNECT_S, write=WRITE_S),  # reading ends at the job's deadline
            limits=httpx2.Limits(max_connections=CONNECTIONS, keepalive_expiry=KEPT_S),
            verify=url.startswith("https:"),  # loading the certificates takes 100 ms
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"<Http {self.name}>"

    async def get(self, path: str, form: type[_Form]) -> _Form:
        """A JSON answer, read as `form`. Raises RequestFailed."""
        return await self._one(self._answers(self._client.build_request("GET", path), form))

    async def ask(self, path: str, body: Mapping[str, Any], form: type[_Form]) -> _Form:
        """The JSON answer to a post, read as `form`. Raises RequestFailed."""
        return await self._one(self.post(path, body, form))

    async def _one(self, answers: AsyncGenerator[_Form, None]) -> _Form:
        async with aclosing(answers):
            async for found in answers:
                return found
        raise RequestFailed(self._unreadable, HOPELESS_S)

    def post(self, path: str, body: Mapping[str, Any], form: type[_Form]) -> AsyncGenerator[_Form, None]:
        """Each event of a stream, or a plain answer, read as `form`. Leaving early closes the connection. Raises
        RequestFailed."""
        return self._answers(self._client.build_request("POST", path, json=dict(body)), form)

    async def close(self) -> None:
        if self._key:
            self._key.cancel()
        await self._client.aclose()

    async def _answers(self, request: httpx2.Request, form: type[_Form]) -> AsyncGenerator[_Form, None]:
        await self._authorize(request)
        try:
            response = await self._sent(request)
            response.encoding = "utf-8"  # whatever it says: `zlib` is a charset too, for Python
            try:
                self._check_encoding(response)
                if response.status_code != 200:
                    wait_s = _retry_after(response.headers.get("retry-after", ""))
                    raise self._failure(response.status_code, await self._body(response), wait_s)
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = _Utf8Stream(response.stream)
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == "text/event-stream":
                    async for event in httpx2.EventSource(response, MAX_EVENT):
                        if event.data.strip() == "[DONE]":
                            continue
                        yield self._read(event.data.encode(), form)
                elif kind == "application/json":
                    yield self._read(await self._body(response), form)
                else:
                    raise RequestFailed(
                        f"{self.name} answers with {_named(kind)}, not JSON; check its address.", HOPELESS_S
                    )
            finally:
                await response.aclose()
        except UnicodeDecodeError as error:
            raise RequestFailed(f"{self.name} sent text that is not UTF-8; nothing of it is kept.") from error
        except httpx2.SSEError as error:
            raise RequestFailed(
                f"{self.name} sent an event of more than {MAX_EVENT >> 20} MiB; nothing of it is kept."
            ) from error
        except httpx2.ConnectError as error:
            raise RequestFailed(_unreached(self.name, error)) from error
        except httpx2.TimeoutException as error:
            raise RequestFailed(f"{self.name} does not take the connection; see that it runs.") from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise RequestFailed(f"{self.name} broke the connection in the middle of an answer; see its log.") from error

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """The head of an answer. A service may have closed an idle connection just now, as llama-server does after each
        stream: then the next one is tried, until a new one is made."""
        new = False

        async def trace(event: str, about: Mapping[str, Any]) -> None:
            nonlocal new
            new = new or event == "connection.connect_tcp.started"

        request.extensions["trace"] = trace
        while True:
            try:
                return await self._client.send(request, stream=True)
            except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
                if new:
                    raise

    async def _authorize(self, request: httpx2.Request) -> None:
        asked = self._key = self._key or _on_daemon(self._read_key)
        try:
            key = await asyncio.shield(asked)
        except NoKey as error:
            if self._key is asked:
                self._key = None
            raise RequestFailed(str(error), HOPELESS_S) from error
        if key:
            request.headers["authorization"] = f"Bearer {key}"

    def _check_encoding(self, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise RequestFailed(
                f"{self.name} compresses answers though it was asked not to; switch that off.", HOPELESS_S
            )

    async def _body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_EVENT:
                raise RequestFailed(f"{self.name} sent more than {MAX_EVENT >> 20} MiB at once; nothing of it is kept.")
        return bytes(body)

    def _read(self, data: bytes, form: type[_Form]) -> _Form:
        try:
            return msgspec.json.decode(data, type=form)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._failure(500, data) if _is_error(data) else RequestFailed(self._unreadable) from error

    @property
    def _unreadable(self) -> str:
        return f"{self.name} sent an answer that cannot be read; check its kind, address and version."

    def _failure(self, status: int, body: bytes, wait_s: float = 0.0) -> RequestFailed:
        name = self.name
        if 300 <= status < 400:
            return RequestFailed(f"{name} redirects to another address; add it again with the final one.", HOPELESS_S)
        if status in (400, 413, 422, 500) and _too_long(body):
            shorter = "lower the settings contextBefore and contextAfter"
            return RequestFailed(f"The text around the gap is too long for {name}; {shorter}.", 0.0, job=True)
        match status:
            case 401 | 403:
                self._key = None
                todo = "correct the variable that `caesura backend list` shows, or add it again to store another key"
                return RequestFailed(f"{name} does not accept the key; {todo}.", HOPELESS_S)
            case 402:
                return RequestFailed(f"{name} asks for payment; check the account there.", HOPELESS_S)
            case 404:
                return RequestFailed(
                    f"{name} has no such model or address; check them with `caesura backend list`.", HOPELESS_S
                )
            case 429:
                return RequestFailed(
                    f"{name} has had too many requests; it is asked again after a pause.", wait_s or HOPELESS_S
                )
            case 501:
                return RequestFailed(f"The model of {name} cannot fill gaps; run one with tokens for that.", HOPELESS_S)
            case 503:
                return RequestFailed(
                    f"{name} is not ready yet: it loads its model or has too much to do.",
                    wait_s or PAUSE_S,
                    loading=True,
                )
            case _ if status >= 500:
                return RequestFailed(f"{name} failed with error {status}; see its log.", wait_s or PAUSE_S)
        return RequestFailed(f"{name} refuses the request with error {status}; check its kind and version.", HOPELESS_S)


def _on_daemon(work: Callable[[], _Form]) -> asyncio.Future[_Form]:
    """The result of `work` from a thread that no process waits for when it ends: a keyring may show a dialog."""
    found = concurrent.futures.Future[_Form]()
    found.set_running_or_notify_cancel()  # from here on it cannot be cancelled under the thread

    def run() -> None:
        try:
            found.set_result(work())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=run, name="key", daemon=True).start()
    return asyncio.wrap_future(found)


def _named(kind: str) -> str:
    return {"text/html": "a web page", "": "a nameless type"}.get(kind, "another type")


def _unreached(name: str, error: httpx2.ConnectError) -> str:
    if "CERTIFICATE" in str(error).upper():
        return f"The certificate of {name} is not trusted by this machine; check its address."
    return f"{name} cannot be reached; see that it runs, and check its address with `caesura backend list`."


def _retry_after(text: str) -> float:
    """Seconds, 0 where none are given as a number."""
    return min(float(text), MAX_PAUSE_S) if text.isascii() and text.isdecimal() else 0.0


class _Problem(msgspec.Struct):
    error: msgspec.Raw


def _is_error(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=_Problem)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _too_long(body: bytes) -> bool:
    """As llama-server (`exceed_context_size_error`), vLLM, OpenAI and Inception (`context_length_exceeded`) say it."""
    said = body[:65_536].lower()
    return any(words in said for words in (b"context_size", b"context_length", b"context length", b"too long"))
