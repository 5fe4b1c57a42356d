"""A replica on plain gRPC instead of Ray Serve, whose models are those of fake_engine.py: what a door's tests kill.

python grpc_replica.py PORT PROTOCOL MOST NAME=MODEL ..., where MOST models are kept
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # fake_engine.py

import fake_engine
import grpc.aio

from caesura import wire
from caesura.cluster import rpc
from caesura.cluster.replica import Replica


class Servicer:
    """gRPC passes a context by its place, Ray Serve by its name."""

    def __init__(self, models: dict[str, str], most: int) -> None:
        self._replica = Replica(models, "auto", most, fake_engine.load)

    async def Session(self, frames: AsyncIterator[bytes], context: Any) -> AsyncIterator[rpc.Frame]:  # noqa: N802
        async for frame in self._replica.Session(frames, grpc_context=context):
            yield frame


async def main(port: str, protocol: str, most: str, *models: str) -> None:
    wire.PROTOCOL = int(protocol)
    server = grpc.aio.server(options=rpc.OPTIONS)
    rpc.add(Servicer(dict(model.split("=") for model in models), int(most)), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(main(*sys.argv[1:]))
