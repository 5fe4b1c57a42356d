"""The canvases of one document: the one at the cursor, and those that are kept. State only."""

from collections import deque

from caesura.server.ghost.canvas import WarmCanvas
from caesura.server.text.document import Edit

RESTING = 3  # most finished canvases kept for a cursor that comes back


class Canvases:
    """`current` is the canvas at the cursor. `ahead` is computed in advance: it goes on after what `current` proposes,
    or gives it another end. `resting` are finished canvases that the cursor has left."""

    def __init__(self) -> None:
        self.current: WarmCanvas | None = None
        self.ahead: WarmCanvas | None = None
        self.resting: deque[WarmCanvas] = deque(maxlen=RESTING)

    def __repr__(self) -> str:
        return f"<Canvases {self.current} ahead {self.ahead} resting {len(self.resting)}>"

    def follow(self, edit: Edit) -> None:
        """Apply an edit; drop the canvases that it makes invalid."""
        if self.current is not None and not self.current.follow(edit):
            self.current.stop()
            self.current = None
        if self.ahead is not None and (not self.ahead.follow(edit) or self.ahead.stale):
            self.run_ahead(None)
        for canvas in [canvas for canvas in self.resting if not canvas.follow(edit)]:
            self.resting.remove(canvas)

    def agreeing(self, at: int) -> list[WarmCanvas]:
        """The canvases that may answer for the cursor at `at`, those with a draft first."""
        known = (self.current, self.ahead, *self.resting)
        return sorted((one for one in known if one and one.agrees(at)), key=lambda one: not one.fills)

    def remainder_at(self, at: int) -> tuple[str] | None:
        """The rest of a canvas whose typed text ends at `at`, as a draft for a new one."""
        here = [c for c in (self.current, *self.resting) if c and at == c.typed.origin + len(c.typed.written)]
        return next((left for canvas in here if (left := canvas.remainder())), None)

    def put(self, canvas: WarmCanvas) -> None:
        """Make `canvas` the current one. The one before it is kept if it is done, else stopped."""
        old = self.current
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
        self.current = canvas

    def run_ahead(self, canvas: WarmCanvas | None) -> None:
        if self.ahead is not None:
            self.ahead.stop()
        self.ahead = canvas

    def drop(self) -> None:
        """Stop and forget all canvases."""
        if self.current is not None:
            self.current.stop()
        self.current = None
        self.run_ahead(None)
        self.resting.clear()
