"""A replica behind plain gRPC instead of Ray Serve, whose models are those of fake_engine.py: what a door's tests kill.

Its arguments: a port, how many models are kept, and their names.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "support" / "processes"))  # fake_engine.py

import fake_engine
import grpc.aio

from caesura.cluster import rpc
from caesura.cluster.replica import Replica


class Servicer:
    """gRPC passes a context by its place, Ray Serve by its name."""

    def __init__(self, most: int, models: Sequence[str]) -> None:
        self._replica = Replica(dict(zip(models, models, strict=True)), "auto", most, fake_engine.load)

    async def Session(self, frames: AsyncIterator[bytes], context: Any) -> AsyncIterator[rpc.Frame]:  # noqa: N802
        async for frame in self._replica.Session(frames, grpc_context=context):
            yield frame


async def main(port: str, most: str, *models: str) -> None:
    server = grpc.aio.server(options=rpc.OPTIONS)
    rpc.add(Servicer(int(most), models), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main(*sys.argv[1:]))
