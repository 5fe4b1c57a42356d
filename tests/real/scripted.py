"""The real language server with an engine whose answers are known: what an editor shows does not depend on a model.

Not a test: test_vscode.py has VS Code start it. What the engine says stands in the last comment before the cursor; what
it was asked stands in JOBS.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator

from caesura import paths, wire
from caesura.client.backend import Condition
from caesura.server.app import App

LINE = "total = alpha + beta"
LINES = ("first = 1", "    second = 2", "    third = 3")  # as many as a block may have
BETWEEN_S = 1.0  # two lines: a screen shows each for a while, on a busy machine too
SLOW_S = 3.0  # before an answer to `slow`
JOBS = "scripted-jobs"  # a file of the runtime folder: priority and prefix of a job in Python's notation, a line each


class ScriptedEngine:
    """Proposes LINE; after `# grow` the LINES, one by one, after `# lines` all at once; after `# slow` LINE, late;
    after `# two` two choices."""

    condition = Condition("ready", "scripted", "cpu")

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        with (paths.runtime() / JOBS).open("a", encoding="utf-8") as jobs:
            jobs.write(f"{job.priority} {job.prefix!r}\n")
        asked = job.prefix.rpartition("# ")[2]
        texts = [LINE]
        if asked.startswith("grow"):
            whole = _left("\n".join(LINES), job.prefix)
            for count in range(1, len(LINES)):
                locked = len(whole) - len("\n".join(LINES[count:]))
                fill = wire.Fill(whole, ((0, locked),), 0.9, open=len(whole) - locked)
                yield wire.Locked(job=job.job, seq=count - 1, holes=(fill,), step=count, of=len(LINES))
                await asyncio.sleep(BETWEEN_S)
            texts = ["\n".join(LINES)]
        elif asked.startswith("slow"):
            await asyncio.sleep(SLOW_S)
        elif asked.startswith("lines"):
            texts = ["\n".join(LINES)]
        elif asked.startswith("two"):
            texts = [LINE, "other = gamma"]
        fills = [wire.Fill(_left(text, job.prefix), (), 0.9) for text in texts]
        yield wire.Done(
            job=job.job,
            seq=len(LINES),
            holes=(fills[0],),
            alternatives=tuple((fill,) for fill in fills[1:]),
            steps=1,
            tokens=wire.Tokens(),
            timings=wire.Timings(),
            stop="complete",
        )


def _left(text: str, prefix: str) -> str:
    """What is left of it behind what the last line before the cursor has of it already."""
    typed = prefix.rpartition("\n")[2].lstrip()
    return text.removeprefix(typed)


if __name__ == "__main__":
    engine = ScriptedEngine()
    app = App(lambda options, client, remote: engine)  # type: ignore[arg-type, return-value]
    sys.exit(app.server.serve())
