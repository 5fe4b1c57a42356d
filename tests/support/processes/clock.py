"""Time for tests of what waits: it is what the timers say, so a minute takes no time and every run is the same."""

import asyncio
from collections.abc import Callable
from typing import Any


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer: what waits 200 ms is tested in none. Work for threads is done
    at once, as time would jump while they run."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, work: Callable[..., Any], *arguments: Any
    ) -> "asyncio.Future[Any]":
        done = self.create_future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
            self.now = max(self.now, min((one.when() for one in timers if not one.cancelled()), default=self.now))
        super()._run_once()  # type: ignore[misc]
