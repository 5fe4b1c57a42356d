"""Who may ask the demo: for the page's files, which are public, anyone; for all else, a page that was opened with a
token."""

import secrets
from http import HTTPStatus

from starlette.requests import Request

from caesura.serve.guard import same
from caesura.serve.hosting import ADDRESS, RequestRefused

KEY_PATH = "/key"  # where the page gets the key for its token
USED = (
    "This address works once and has been used: open the one that `caesura demo` printed, and if it was not you who"
    " used it, end the demo with Ctrl-C."
)

# Monaco writes style elements and attributes of its own; scripts come from files alone.
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
    """Host keeps out names that were rebound to us, Origin and Sec-Fetch-Site other pages, the key other users. It is
    in a header and in no cookie, since a browser sends cookies of a host to all of its ports.
    """

    def __init__(self, port: int) -> None:
        self.host = f"{ADDRESS}:{port}"
        self._key, self._token, self._once = (secrets.token_urlsafe(32) for _ in range(3))
        self._used = False  # the one that opens the page once

    def __repr__(self) -> str:
        return f"<PageGuard {self.host}{' used' * self._used}>"

    @property
    def address(self) -> str:
        """Opens the page as often as one likes."""
        return f"{self.origin}/#{self._token}"

    @property
    def address_once(self) -> str:
        """Opens the page once: other users see the command line of a browser."""
        return f"{self.origin}/#{self._once}"

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    def check(self, request: Request) -> str | None:
        """The key, for a token; None for what others answer. Raises RequestRefused."""
        headers, public, path = request.headers, request.method in ("GET", "HEAD"), request.scope["path"]
        if headers.get("host") != self.host:
            raise RequestRefused(HTTPStatus.FORBIDDEN, f"This is {self.host}, not the host that was asked for.")
        if headers.get("origin", self.origin if public else "") != self.origin:
            raise RequestRefused(HTTPStatus.FORBIDDEN, "Another page may not ask.")
        linked = public and path == "/"  # the address may be a link in a terminal that is a page
        if not linked and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "Another page may not ask.")
        if public:
            return None
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        asks_key = path == KEY_PATH
        if scheme != "Bearer" or not (self._takes(secret) if asks_key else same(secret, self._key)):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, "Open the address that `caesura demo` printed; it holds a token."
            )
        return self._key if asks_key else None

    def _takes(self, token: str) -> bool:
        """Whether the token opens the page. Raises RequestRefused for the one that has done so already."""
        if not same(token, self._once):
            return same(token, self._token)
        if self._used:
            raise RequestRefused(HTTPStatus.FORBIDDEN, USED)
        self._used = True
        return True
