"""An editor types, and a process of its engine is killed or stuck at a point: when its requests are answered, what it
is shown, and what is left behind. For test_kills.py and bench/kills.py.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from caesura.client.shared import Engine

from ...lsp.test_lsp import Client, items
from . import points
from .fake_engine import said

SERVER = Path(__file__).with_name("lsp_fake.py")
FAKE = Path(__file__).with_name("fake_engine.py")
LIMIT_S = 60.0  # reached only where something is wrong
KEY_S = (0.03, 0.03, 0.5)  # between two keys: the third waits for its fill, of 0.12 s, or so long
LINE = 60  # code points
KEYS = "abc de "  # no answer begins with one of them: none is typed through

STARTING = ("starting", "loading", "loaded", "ready")  # of the worker, before anybody is served
RESTING = ("idle", "drop")
TYPING = (
    *("take", "taken", "expire", *(f"step {n}" for n in range(6)), "stepped 0", "stepped 2", "stepped 5"),
    *("send locked", "cancel"),
)
WORKER = (*STARTING, *RESTING, *TYPING)
DEADLY = ("kill", "exit", "raise")  # acts that end the process at once
SUPERVISOR_STARTING = ("before the lock", "before the first turn", "greet")
SUPERVISOR = (*SUPERVISOR_STARTING, "turn", "admit", "relay locked", "relay done")


@dataclass
class Seen:
    """Milliseconds from the fault to the answer of what was asked before it, `lost` where the worker had it,
    `waited` where it had not reached the worker and was for the next one; and `back` to
    the next fill that was shown."""

    lost: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    back: float = 0.0
    stale: int = 0
    orphans: int = 0


class Typist:
    """An editor with one document of one growing line. Every answer is checked against the text it was asked for."""

    def __init__(self, client: Client) -> None:
        self.client, self.line, self.keys, self.stale, self.crossed = client, "the ", 0, 0, 0

    async def start(self) -> None:
        await self.client.start(initializationOptions={"deadlineMs": 10_000, "stats": False})
        self.client.open(self.line + "\n", "plaintext")

    def key(self) -> "asyncio.Task[str]":
        """Type one and ask; a line that is long becomes a new one."""
        self.keys += 1
        start, key = len(self.line), KEYS[self.keys % len(KEYS)]
        if start > LINE:
            start, key = 0, f"the {self.keys} "
        self.client.type(0, start, key, end=(0, len(self.line)))
        self.line = self.line[:start] + key
        return asyncio.create_task(self._answer(self.line, self.client.complete(0, len(self.line))))

    async def fill(self) -> None:
        """Keys until one is answered with a fill."""
        async with asyncio.timeout(LIMIT_S):
            while not await self.key():
                await asyncio.sleep(KEY_S[0])

    async def _answer(self, text: str, request: "asyncio.Future[dict[str, object]]") -> str:
        found = items(await asyncio.wait_for(request, LIMIT_S)) or []
        shown = found[0][0] if found else ""
        self.stale += not said(text).startswith(shown)
        self.crossed += bool(shown) and text != self.line  # a key was under way: an editor drops it by its version
        return shown


@asynccontextmanager
async def editor() -> AsyncIterator[Typist]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(SERVER), stdin=pipe, stdout=pipe, limit=1 << 24
    )
    typist = Typist(Client(process))
    try:
        yield typist
    finally:
        assert process.stdin
        process.stdin.close()
        async with asyncio.timeout(LIMIT_S):
            await process.wait()


async def trial(runtime: Path, point: str, act: str = "kill") -> Seen:
    """One fault while somebody types, in a runtime folder of its own."""
    seen = Seen()
    if point in STARTING + SUPERVISOR_STARTING:
        points.plan(runtime, point, act)
    async with editor() as typist:
        await typist.start()
        if point not in STARTING + SUPERVISOR_STARTING:
            await typist.fill()
            points.plan(runtime, point, act)
        if point == "drop":
            await _visit()
        asked: list[Request] = []
        async with asyncio.timeout(LIMIT_S):
            while points.happened(runtime) is None:
                if point in RESTING:
                    await asyncio.sleep(KEY_S[0])
                    continue
                asked.append(Request(typist.key(), typist.line))
                await asyncio.wait([asked[-1].task], timeout=KEY_S[len(asked) % len(KEY_S)])
        at = points.happened(runtime)
        assert at is not None
        await asyncio.gather(*(request.task for request in asked))
        had = points.taken(runtime, at)
        for request in asked:
            if request.answered > at:
                (seen.lost if request.text in had else seen.waited).append(1000 * (request.answered - at))
        await typist.fill()
        seen.back = 1000 * (time.monotonic() - at)
        seen.stale = typist.stale
    seen.orphans = await orphans(runtime)
    return seen


class Request:
    def __init__(self, task: "asyncio.Task[str]", text: str) -> None:
        self.task, self.text, self.answered = task, text, 0.0
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[str]") -> None:
        self.answered = time.monotonic()


async def _visit() -> None:
    """Another client comes and goes."""
    other = Engine(client="other", model="typed", command=[sys.executable, "-P", str(FAKE), "typed"])
    await other.start()
    await other.ready(LIMIT_S)
    await other.close()


async def orphans(runtime: Path) -> int:
    """Processes of this runtime folder that are left when the engine has been idle for long enough."""
    deadline = time.monotonic() + LIMIT_S
    while (left := family(runtime)) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return len(left)


def family(runtime: Path) -> list[int]:
    """The processes that were started with it in their environment, but for those that are dead and not yet buried."""
    mark = f"CAESURA_RUNTIME={runtime}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found
