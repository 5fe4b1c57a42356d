"""`rpc Session(stream Frame) returns (stream Frame)`, the only call between door and replica. A frame is the bytes of
one message of the wire: gRPC carries it as it is, without a schema of its own."""

from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from caesura import wire

SERVICE, METHOD = "caesura.Engine", "Session"
AFFINITY = "x-session-id"  # the header by which the ingress chooses a replica
MODEL = "multiplexed_model_id"  # the header that names the stream's model, as Ray calls it
OPTIONS = (
    ("grpc.max_send_message_length", wire.MAX_FRAME),
    ("grpc.max_receive_message_length", wire.MAX_FRAME),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True)
class Frame:
    """A message of a replica. Ray Serve asks each answer for its bytes by protobuf's name for it."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.data


def add(servicer: Any, server: Any) -> None:
    """Have `servicer.Session` answer; Ray Serve calls this by its name."""
    handler = grpc.stream_stream_rpc_method_handler(servicer.Session, response_serializer=Frame.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))


def channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, OPTIONS)


def dial(found: grpc.aio.Channel, affinity: str, model: str) -> Any:
    """A new stream to the replica of a key."""
    return found.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=((AFFINITY, affinity), (MODEL, model)))
