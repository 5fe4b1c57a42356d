"""Requests to a hub: answers of bounded length and time, redirects that are checked, failures as sentences. No words of
a hub are quoted, its answers are not unpacked, and its cookies are not kept.
"""

import functools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Protocol
from urllib.parse import quote

import httpx2
from huggingface_hub import constants, errors, get_token

from caesura import __version__
from caesura.characters import shown
from caesura.ipc import networks

MAX_LIST = 8 << 20  # bytes
LIST_S = 60.0  # for a whole list
TIMEOUT_S = 10.0  # without a byte
REDIRECTS = 5  # followed for one request
ATTEMPTS = 5  # at a file, one after another, that bring nothing
PAUSE_S = 1.0  # between attempts
AGAIN = "run the same command again; it resumes"

_TOKEN = re.compile(r"[!-~]{1,4096}")


class HubError(Exception):
    """A model cannot be downloaded; the message is a sentence for the user, with the next step."""


class _Broken(HubError):
    """No connection, or one that broke: another attempt may fare better."""


class GrowingFile(Protocol):
    """A file on disk that grows; `size` is in bytes."""

    @property
    def size(self) -> int: ...
    def append(self, chunk: bytes) -> None: ...
    def clear(self) -> None: ...


def address() -> str:
    """The address of the hub, for a person: without a password."""
    return str(_hub().copy_with(userinfo=b"")).rstrip("/")


def offline() -> bool:
    return constants.is_offline_mode()


def listing(model: str, revision: str | None) -> bytes:
    """The list of a model's files at a revision, JSON of at most MAX_LIST bytes. Raises HubError."""
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    body, deadline = bytearray(), time.monotonic() + LIST_S
    with _answer(f"api/models/{model}{at}?blobs=true", elsewhere=False) as answer:
        _check(answer, model, revision)
        for chunk in answer.iter_raw():
            body += chunk
            if len(body) > MAX_LIST:
                raise HubError(f"{address()} sends a list of more than {MAX_LIST >> 20} MiB; check HF_ENDPOINT.")
            if time.monotonic() > deadline:
                raise HubError(f"{address()} needs more than {LIST_S:.0f} s for a list; {AGAIN}.")
    return bytes(body)


def body(model: str, commit: str, file: str, size: int, into: GrowingFile, seen: Callable[[int], None]) -> None:
    """Append to a file what it lacks of `size` bytes; where a connection breaks, go on from there. `seen` gets the
    number of bytes so far. Raises HubError."""
    in_vain, most = 0, into.size
    while into.size < size:
        broken = _attempt(model, commit, file, size, into, seen)
        in_vain = 0 if into.size > most else in_vain + 1
        most = max(most, into.size)
        if in_vain == ATTEMPTS:
            raise broken or HubError(f"{address()} sends less of {file} of {model} than it has stated; {AGAIN}.")
        if into.size < size:
            time.sleep(PAUSE_S)


def _attempt(
    model: str, commit: str, file: str, size: int, into: GrowingFile, seen: Callable[[int], None]
) -> HubError | None:
    """One request for what is left of a file. Returns the error if the connection broke. Raises HubError."""
    start = into.size
    try:
        with _answer(f"{model}/resolve/{commit}/{file}", start, elsewhere=True) as answer:
            if start and answer.status_code == 416:  # it has less than is here
                into.clear()
            _check(answer, model, commit, known=True)
            if start and not _goes_on(answer, start):
                if answer.headers.get("content-length", str(size)) != str(size):
                    raise HubError(f"{address()} sends another file instead of {file} of {model}; check HF_ENDPOINT.")
                into.clear()  # it sends all again
            _receive(answer, model, file, size, into, seen)
    except _Broken as error:
        return error
    return None


def _goes_on(answer: httpx2.Response, start: int) -> bool:
    """True if an answer has the rest of a file from byte `start` on."""
    return answer.status_code == 206 and answer.headers.get("content-range", "").startswith(f"bytes {start}-")


def _receive(
    answer: httpx2.Response, model: str, file: str, size: int, into: GrowingFile, seen: Callable[[int], None]
) -> None:
    for chunk in answer.iter_raw():
        if into.size + len(chunk) > size:
            into.clear()
            raise HubError(
                f"{address()} sends more of {file} of {model} than the {size:,} bytes that it has stated; nothing of "
                "it is kept. Choose another hub by HF_ENDPOINT."
            )
        into.append(chunk)
        seen(into.size)


@contextmanager
def _answer(path: str, start: int = 0, *, elsewhere: bool) -> Iterator[httpx2.Response]:
    """The answer to a GET from byte `start` on. Redirects are followed, to other hosts only if `elsewhere`. Raises
    HubError."""
    url = httpx2.URL(f"{str(_hub()).rstrip('/')}/{path}")
    try:
        for _ in range(REDIRECTS + 1):
            request = _client().build_request("GET", url, headers=_headers(url, start))
            with closing(_client().send(request, stream=True)) as answer:
                if not answer.has_redirect_location:
                    yield answer
                    return
                url = _next(url, answer.headers["location"], elsewhere)
    except httpx2.TransportError as error:
        raise _Broken(_unreached(url, error)) from error
    raise HubError(f"{address()} redirects more than {REDIRECTS} times; check HF_ENDPOINT.")


def _next(url: httpx2.URL, location: str, elsewhere: bool) -> httpx2.URL:
    """The address that a redirect leads to. Raises HubError if Caesura does not follow it."""
    try:
        found = url.join(location)
    except httpx2.InvalidURL as error:
        raise HubError(f"{address()} redirects to what is no address; check HF_ENDPOINT.") from error
    where = shown(f"{found.scheme}://{found.netloc.decode('ascii')}", 100)
    if found.scheme not in ("https", url.scheme) or (found.userinfo and not _is_hub(found)):
        raise HubError(f"{address()} redirects to {where}, which Caesura does not follow; check HF_ENDPOINT.")
    if networks.private(found.host) and not networks.private(url.host):
        raise HubError(f"{address()} redirects to {where} in a private network; choose another hub by HF_ENDPOINT.")
    if not elsewhere and not _is_hub(found):
        raise HubError(
            f"{address()} sends its list from {where}, another host; if you trust that host, set HF_ENDPOINT to it and "
            "run the same command again."
        )
    return found


def _headers(url: httpx2.URL, start: int) -> dict[str, str]:
    """The user's token goes to the hub alone, and over a network only encrypted."""
    headers = {"accept-encoding": "identity", "user-agent": f"caesura/{__version__}"}
    if start:
        headers["range"] = f"bytes={start}-"
    if _is_hub(url) and (url.scheme == "https" or networks.near(url.host)) and (token := _token()):
        headers["authorization"] = f"Bearer {token}"
    return headers


def _token() -> str:
    """Empty where the user has none, or has switched it off. Raises HubError."""
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return ""
    try:
        token = get_token() or ""
    except (errors.HfHubHTTPError, httpx2.HTTPError, OSError, ValueError) as error:  # it may be refreshed, or exchanged
        raise HubError("Your token for the hub cannot be read or renewed; log in again, or set HF_TOKEN.") from error
    if token and not _TOKEN.fullmatch(token):
        raise HubError("HF_TOKEN has characters that no token has; set it again.")
    return token


@functools.cache
def _client() -> httpx2.Client:
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))  # keeps none
    try:
        return httpx2.Client(timeout=TIMEOUT_S, cookies=cookies)
    except (ImportError, ValueError) as error:
        raise HubError(
            "The proxy in ALL_PROXY or HTTPS_PROXY cannot be used; set an http:// one, or unset it."
        ) from error


def _hub() -> httpx2.URL:
    """Raises HubError."""
    try:
        url = httpx2.URL(constants.ENDPOINT)
    except httpx2.InvalidURL as error:
        raise HubError("HF_ENDPOINT is no address; set it to https://HOST, or unset it.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise HubError("HF_ENDPOINT is no address; set it to https://HOST, or unset it.")
    return url


def _is_hub(url: httpx2.URL) -> bool:
    hub = _hub()
    return (url.scheme, url.host, url.port) == (hub.scheme, hub.host, hub.port)


def _check(answer: httpx2.Response, model: str, revision: str | None, *, known: bool = False) -> None:
    """Raises HubError unless the answer is what was asked for. `known`: there is such a model."""
    hub, status, why = address(), answer.status_code, answer.headers.get("x-error-code", "")
    if status in (200, 206):
        if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise HubError(f"{hub} compresses answers though it was asked not to; choose another one by HF_ENDPOINT.")
        return
    if why == "GatedRepo":
        raise HubError(
            f"{model} is gated: accept its terms at {hub}/{model} with your account, then {_with_token()}, and run the "
            "same command again."
        )
    if why == "RevisionNotFound":
        raise HubError(f"{model} has no revision {revision!r}; leave out `@{revision}` for the newest.")
    rejected = answer.headers.get("x-error-message", "").startswith("Invalid credentials")
    if why == "RepoNotFound" or (status in (401, 404) and not (why or rejected or known)):
        raise HubError(f"{hub} has no model {model}; check the name, or {_with_token()} if it is private.")
    todo = "check HF_TOKEN" if status in (401, 403) else f"wait a moment, then {AGAIN}"
    raise HubError(f"{hub} answered {status} for {model}; {todo}.")


def _with_token() -> str:
    """How to be let in."""
    hub = _hub()
    if hub.scheme == "http" and not networks.near(hub.host):
        return "set HF_ENDPOINT to an address with https, since no token is sent over http,"
    return "set HF_TOKEN"


def _unreached(url: httpx2.URL, error: httpx2.TransportError) -> str:
    hub = address()
    if "CERTIFICATE" in str(error).upper():
        return f"The certificate of {shown(url.host, 100)} is not trusted by this machine; check HF_ENDPOINT."
    if _is_hub(url):
        return f"{hub} cannot be reached; check the network and HF_ENDPOINT, then {AGAIN}."
    where = shown(url.host, 100)
    return f"{hub} redirects to {where}, which cannot be reached; check the network and HF_ENDPOINT, then {AGAIN}."
