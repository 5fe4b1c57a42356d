"""A replica behind plain gRPC instead of Ray Serve, whose model is that of fake_engine.py: what a door's tests kill."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support" / "processes"))  # fake_engine.py

import fake_engine
import grpc.aio

from caesura.cluster import rpc
from caesura.cluster.replica import Replica


class Servicer:
    """gRPC brings a context along, Ray Serve does not."""

    def __init__(self) -> None:
        self._replica = Replica("fake", "auto", fake_engine.load)

    async def Session(self, frames: AsyncIterator[bytes], context: object) -> AsyncIterator[rpc.Frame]:  # noqa: N802
        async for frame in self._replica.Session(frames):
            yield frame


async def main(port: str) -> None:
    server = grpc.aio.server(options=rpc.OPTIONS)
    rpc.add(Servicer(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main(sys.argv[1]))
