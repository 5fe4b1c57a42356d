"""The state of one document: the canvas at its cursor, one that runs ahead of it, and what the editor shows. No I/O
but the wake-up of waiting requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from caesura import wire
from caesura.server.ghost.canvas import Gate, WarmCanvas
from caesura.server.ghost.shown import Shown
from caesura.server.text.document import Edit

RESTING = 3  # finished canvases that the cursor has left and may come back to


class Cursor:
    """`ahead` goes on from `canvas`: with what comes after it, in idle time, or with another end for it."""

    def __init__(self, key: str) -> None:
        self.key = key  # names the document to the engine without its path
        self.canvas: WarmCanvas | None = None
        self.ahead: WarmCanvas | None = None
        self.resting: deque[WarmCanvas] = deque(maxlen=RESTING)
        self.at = 0  # the offset at the newest edit or request
        self.restart: Callable[[], WarmCanvas] | None = None  # a new canvas for it; None where nobody knows it
        self.neighbours: tuple[wire.Neighbour, ...] = ()
        self.anchor = 0  # the line for which they were chosen
        self.generation = -1  # of what lies around, when they were
        self.shown: Shown | None = None
        self.gate: tuple[tuple[object, ...], Gate] | None = None  # the last one, and what it was made for
        self.ticket = 0  # of the newest request
        self.readings = 0  # how many had begun, of all documents, when the engine last had the context of the canvas
        self.changed = asyncio.Event()  # replaced whenever it is set

    def __repr__(self) -> str:
        return f"<Cursor at {self.at} {self.canvas} ahead {self.ahead} resting {len(self.resting)}>"

    def take_ticket(self) -> int:
        """Supersede all requests so far."""
        self.ticket += 1
        self.wake()
        return self.ticket

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def follow(self, edit: Edit) -> None:
        """Take an edit into account; what it makes void is dropped."""
        if self.canvas is not None and not self.canvas.follow(edit):
            self.canvas.stop()
            self.canvas = None
        if self.ahead is not None and (not self.ahead.follow(edit) or self.ahead.stale):
            self.run_ahead(None)
        for canvas in [canvas for canvas in self.resting if not canvas.follow(edit)]:
            self.resting.remove(canvas)

    def put(self, canvas: WarmCanvas) -> None:
        """Make `canvas` the one at the cursor. One that is done and is left rests; one that is not is stopped."""
        old = self.canvas
        if old is canvas:
            return
        if canvas in self.resting:
            self.resting.remove(canvas)
        if old is not None and old.answer is not None:
            self.resting.append(old)
        elif old is not None:
            old.stop()
        if canvas is self.ahead:
            self.ahead = None
        self.run_ahead(None)
        self.canvas = canvas

    def run_ahead(self, canvas: WarmCanvas | None) -> None:
        if self.ahead is not None:
            self.ahead.stop()
        self.ahead = canvas

    def drop(self) -> None:
        """Nothing that was computed for this document holds."""
        if self.canvas is not None:
            self.canvas.stop()
        self.canvas = self.gate = None
        self.run_ahead(None)
        self.resting.clear()
