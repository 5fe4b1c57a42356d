"""Work recorded once and replayed: a CUDA graph instead of hundreds of launches. Denoise steps
(methods/uniform/graphs.py) and passes of a code model share it."""

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from caesura.engine import faults

log = logging.getLogger("caesura.engine")


class Capturable(Protocol):
    """Work that reads and writes only its own buffers and needs nothing from the host."""

    def capture(self, pool: Any) -> Any:
        """Capture it, with memory from the pool if there is one; returns its pool."""


R = TypeVar("R", bound=Capturable)


class Recordings(dict[int, R]):
    """Recordings by their size. They share the memory of their work, since only one runs at a time, and none keeps
    anything in it. One that fails takes the others along, and their memory; nothing is recorded after it."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self._pool: Any = None

    def record(self, size: int, make: Callable[[], R]) -> None:
        """Make a recording, if none has failed yet."""
        if self.failed:
            return
        try:
            recording = make()
            self._pool = recording.capture(self._pool)
            self[size] = recording
        except Exception as error:  # an optimisation must not cost a fill
            self.failed = True
            self.clear()
            log.warning("A step could not be recorded; steps run kernel by kernel. %s", faults.sentence(error))


def capture(work: Callable[[], None], pool: Any) -> tuple[Callable[[], None], Any]:
    """Capture work as a CUDA graph, with memory from the pool if there is one. Returns its replay and its pool. The
    work runs once before that, which compiles kernels and lets libraries set up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay, graph.pool()
