"""The real server with an engine that answers at once, for the battery: on stdio, or with `--tcp` on loopback."""

import asyncio
import logging
import sys
import zlib
from collections.abc import AsyncGenerator

from caesura import wire
from caesura.client.backend import Condition
from caesura.server.app import App
from caesura.server.lsp import loopback

SLOW, SLOW_S = "SLOW", 0.1  # a text with this word takes a while


def seal(text: str) -> str:
    """What the engine says of a text: whoever reads it knows what text the server has."""
    return f"x{zlib.crc32(text.encode()):08x};"  # it may stand in front of a word


class Instant:
    """Fills every hole with the seal of the text around it."""

    condition = Condition("ready", "instant", "cpu")

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        wire.decode_client(wire.encode(job))
        around = job.prefix + job.suffix
        await asyncio.sleep(SLOW_S if SLOW in around else 0)
        text = seal(around)
        yield wire.Done(
            **{"job": job.job, "seq": 0, "holes": (wire.Fill(text, ((0, len(text)),), 0.9),), "steps": 1},
            **{"tokens": wire.Tokens(), "timings": wire.Timings(), "stop": "complete"},
        )


def make() -> App:
    return App(lambda options, client, remote: Instant())  # type: ignore[arg-type, return-value]


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    server = make().server
    sys.exit(loopback.serve(server, 0) if "--tcp" in sys.argv else server.serve())
