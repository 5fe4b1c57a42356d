"""Work of a backend that no job waits for."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks that run until they end, or until this is closed. `closed`: nothing more should begin."""

    def __init__(self) -> None:
        self.closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Background {len(self._tasks)} tasks{', closed' if self.closed else ''}>"

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel all tasks, and those that they or a job began meanwhile."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
