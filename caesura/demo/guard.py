"""Access to the demo: the page's files are public; all else is for pages that were opened with a token."""

import secrets
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from caesura.serve.guard import same
from caesura.serve.hosting import ADDRESS, RequestRefused

KEY_PATH = "/key"  # here the page exchanges its token for the key
USED = (
    "This address works once and has been used: open the one that `caesura demo` printed. If you did not use it, end"
    " the demo with Ctrl-C."
)

# Monaco writes style elements and attributes; scripts come only from files.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Connection": "close",
}


class PageGuard:
    """The check of Host stops DNS rebinding; Origin and Sec-Fetch-Site stop other pages; the key stops other users. The
    key is in a header instead of a cookie, since browsers send the cookies of a host to all of its ports."""

    def __init__(self, port: int) -> None:
        self.host = f"{ADDRESS}:{port}"
        self._key, self._token, self._once = (secrets.token_urlsafe(32) for _ in range(3))
        self._used = False  # the token that opens the page once

    def __repr__(self) -> str:
        return f"<PageGuard {self.host}{' used' * self._used}>"

    @property
    def address(self) -> str:
        """Opens the page any number of times."""
        return f"{self.origin}/#{self._token}"

    @property
    def address_once(self) -> str:
        """Opens the page once: other users can see the command line of a browser."""
        return f"{self.origin}/#{self._once}"

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    def knows(self, scope: Scope) -> bool:
        return same(_bearer(Headers(scope=scope)), self._key)

    def check(self, request: Request) -> str | None:
        """The key, if the request exchanges a token for it; None for other allowed ones. Raises RequestRefused."""
        headers, public, path = request.headers, request.method in ("GET", "HEAD"), request.scope["path"]
        if headers.get("host") != self.host:
            raise RequestRefused(HTTPStatus.FORBIDDEN, f"This is {self.host}, not the host of the request.")
        if headers.get("origin", self.origin if public else "") != self.origin:
            raise RequestRefused(HTTPStatus.FORBIDDEN, "Other pages may not use the demo.")
        linked = public and path == "/"  # a web-based terminal may link to the address
        if not linked and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "Other pages may not use the demo.")
        if public:
            return None
        secret, asks_key = _bearer(headers), path == KEY_PATH
        if not (self._takes(secret) if asks_key else same(secret, self._key)):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, "Open the address that `caesura demo` printed; it holds a token."
            )
        return self._key if asks_key else None

    def _takes(self, token: str) -> bool:
        """True if the token opens the page. Raises RequestRefused for a used one."""
        if not same(token, self._once):
            return same(token, self._token)
        if self._used:
            raise RequestRefused(HTTPStatus.FORBIDDEN, USED)
        self._used = True
        return True


def _bearer(headers: Headers) -> str:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret if scheme == "Bearer" else ""
