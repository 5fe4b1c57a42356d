"""How a service is: its model, its last failure, and how long it is left alone after one."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from caesura.characters import shown
from caesura.client.backend import EngineError, EngineFailed, EngineUnavailable, State
from caesura.client.backends.api import Api
from caesura.client.backends.background import Background
from caesura.client.backends.http import MAX_PAUSE_S, Http, RequestFailed

DESCRIBE_S = 5.0  # for the model's name
MAX_NAME = 64  # characters of a model's name


class ServiceHealth:
    """`model` is its name as the service said last, `trouble` the sentence of its last failure. `on_change` is called
    when either changes."""

    def __init__(self, api: Api, http: Http, background: Background) -> None:
        self._api = api
        self._http = http
        self._background = background
        self.model = ""
        self.trouble = ""
        self._described = False  # since its last failure, after which it may be another one
        self._loading = False
        self._failures = 0  # in a row
        self._rested = 0.0  # the monotonic time before which nothing is asked
        self._describing = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<ServiceHealth {self._http.name} {self.state} {self.trouble!r}>"

    @property
    def state(self) -> State:
        if self.trouble:
            return "loading" if self._loading else "unavailable"
        return "ready" if self.model else "connecting"

    @property
    def rests(self) -> bool:
        """True if the service has failed so recently that it is not asked again."""
        return bool(self.trouble) and time.monotonic() < self._rested

    async def greet(self) -> None:
        """Learn the model; again and again while it is loaded."""
        with suppress(EngineError):
            await self.described()
        while self._loading:
            await asyncio.sleep(max(0.0, self._rested - time.monotonic()))
            with suppress(EngineError):
                await self.described()

    async def described(self) -> None:
        """Ask for the model. Raises EngineUnavailable."""
        try:
            await self.describe()
        except RequestFailed as error:
            raise self.failed(error) from error

    async def describe(self) -> None:
        """Ask for the model, unless it is known since the last failure. Raises RequestFailed."""
        async with self._describing:
            if not self._described:
                try:
                    async with asyncio.timeout(DESCRIBE_S):
                        said = await self._api.describe(self._http)
                except TimeoutError:
                    raise RequestFailed(
                        f"{self._http.name} takes connections but does not answer; see its log."
                    ) from None
                self.model, self._described = shown(said, MAX_NAME) or "a model", True
                self.recover()
                self.on_change()

    def recover(self) -> None:
        """The service has answered."""
        self._failures, self._rested = 0, 0.0
        self._set("", loading=False)

    def failed(self, error: RequestFailed) -> EngineError:
        """The error for a job. Marks the service as failed, unless the job is at fault."""
        if error.job:
            return EngineFailed("invalid", str(error))
        pause_s = min(error.pause_s * 2.0 ** min(self._failures, 10), MAX_PAUSE_S)
        self._failures += 1
        self._described = False
        self._rested = time.monotonic() + pause_s
        began = error.loading and not self._loading
        self._set(str(error), loading=error.loading)
        if began:
            self._background.run(self.greet())
        return EngineUnavailable(str(error))

    def _set(self, trouble: str, *, loading: bool) -> None:
        changed = (trouble, loading) != (self.trouble, self._loading)
        self.trouble, self._loading = trouble, loading
        if changed:
            self.on_change()
