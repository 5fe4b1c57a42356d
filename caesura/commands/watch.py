"""`fill --watch`: the canvas in the terminal while it resolves; where there is no terminal, a line for each event."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from caesura import wire
from caesura.commands.file import Source

AROUND = 6  # lines above and below the gap
LOCKED, DRAFT, OPEN, REST = "bold green", "yellow", "bright_black", "dim"
OPEN_SLOT = "\u2591"


@contextmanager
def watching(
    source: Source, start: int, end: int, *, stderr: bool
) -> Iterator[Callable[[wire.Locked | wire.Done], None]]:
    """Give a function that shows an event."""
    console = Console(stderr=stderr)
    began = time.monotonic()

    if not console.is_terminal:

        def write(event: wire.Locked | wire.Done) -> None:
            console.out(f"{_corner(event, began)}  {canvas(event.holes[0]).plain!r}", highlight=False)

        yield write
        return

    before = "".join(source.text[:start].splitlines(keepends=True)[-AROUND:])
    after = "".join(source.text[end:].splitlines(keepends=True)[:AROUND])

    def picture(middle: Text, corner: str) -> Panel:
        body = Text().append(before, REST).append_text(middle).append(after, REST)
        return Panel(body, title=str(source.path), title_align="left", subtitle=corner, subtitle_align="right")

    with Live(picture(Text(), "waiting for the engine"), console=console, auto_refresh=False) as live:
        yield lambda event: live.update(picture(canvas(event.holes[0]), _corner(event, began)), refresh=True)


def canvas(fill: wire.Fill) -> Text:
    """The hole: what is locked, the draft of the rest, and a block for each slot that is still open."""
    shown = Text().append(fill.text, DRAFT)
    for start, end in fill.locked:
        shown.stylize(LOCKED, start, end)
    return shown.append(OPEN_SLOT * fill.open, OPEN)


def _corner(event: wire.Locked | wire.Done, began: float) -> str:
    if isinstance(event, wire.Done):
        return f"done in {event.steps} steps, {event.timings.total_ms:.0f} ms"
    return f"step {event.step} of {event.of}, {(time.monotonic() - began) * 1000:.0f} ms"
