"""Access to `caesura serve`: only programs that send the token may use it. It stays the same in a private file, because
the settings of editors repeat it."""

import hmac
import re
import secrets
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from caesura import paths
from caesura.serve.errors import failure
from caesura.serve.hosting import ADDRESS


def token_file() -> Path:
    return paths.keys() / "serve"


def token() -> str:
    """The user's token, created at the first call. Raises paths.UnsafeFolder or paths.DamagedFile."""
    file = token_file()
    if paths.read(file) is None:
        paths.write(file, secrets.token_urlsafe(32).encode(), replace=False)
    found = paths.read(file)
    assert found is not None, "it was written just now"
    text = found.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[\w-]{43}", text, re.ASCII):  # an empty one would admit every local process
        raise paths.DamagedFile(f"{file} is damaged; delete it and start again.")
    return text


def same(one: str, other: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


class TokenGuard:
    """Wraps an application. The check of Host stops DNS rebinding; Origin and Sec-Fetch-Site, which only browsers send,
    stop web pages; the token stops other users. Clients send it as a Bearer token or as the first part of the path,
    which is removed."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}" for name in (ADDRESS, "localhost")}

    def __repr__(self) -> str:
        return f"<TokenGuard {min(self._hosts)}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        secret, path = self._shown(scope)
        refused = self._refused(Headers(scope=scope), secret)
        await (refused or self._app)({**scope, "path": path}, receive, send)

    def knows(self, scope: Scope) -> bool:
        return same(self._shown(scope)[0], self._token)

    def _shown(self, scope: Scope) -> tuple[str, str]:
        """The secret of a request, and its path without it."""
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        if same(first, self._token):
            return first, f"/{rest}"
        scheme, _, secret = Headers(scope=scope).get("authorization", "").partition(" ")
        return secret if scheme.lower() == "bearer" else "", scope["path"]

    def _refused(self, headers: Headers, secret: str) -> Response | None:
        if headers.get("host") not in self._hosts:
            return failure(HTTPStatus.FORBIDDEN, f"This is {min(self._hosts)}, not the host of the request.")
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            return failure(HTTPStatus.FORBIDDEN, "Web pages may not use caesura serve.")
        if not same(secret, self._token):
            where = f"Send the token in {token_file()}: as `Authorization: Bearer TOKEN`, or before the path."
            return failure(HTTPStatus.UNAUTHORIZED, where)
        return None
