"""The answer to a request: at the first locked boundary, or after the deadline, with whatever is locked. What a
streaming editor may show on the way is judged as the answer is."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from caesura import wire
from caesura.server.context.context import Context
from caesura.server.ghost.canvas import WarmCanvas
from caesura.server.ghost.pane import Pane
from caesura.server.ghost.typed import Proposal
from caesura.server.records.trace import AnswerKind, RequestRecord, Trace

NOTHING = Proposal("")


@dataclass(frozen=True)
class NothingNew:
    """The answer if there is nothing new to show: a newer edit or request came first, or the engine was lost.
    `shown_fits`: the text that the editor shows still agrees with the document, and may stay."""

    shown_fits: bool


@dataclass(frozen=True)
class Request:
    """One request, for the text at its arrival. `began` is in seconds of perf_counter. From `late` on, in seconds of
    the loop's clock, a part is enough. With `on_part`, the answer waits for the whole canvas, and what may be shown of
    it on the way is reported. `anew`: the user asked for another text than the one that is shown."""

    pane: Pane
    ticket: int
    at: int
    replacing: bool
    late: float
    trace: Trace
    on_part: Callable[[Proposal], None] | None
    anew: bool = False
    began: float = field(default_factory=perf_counter)
    ms: dict[str, float] = field(default_factory=dict)  # by stage, for the trace

    @property
    def current(self) -> bool:
        return self.pane.ticket == self.ticket

    async def refuse(self) -> Proposal:
        self.pane.suggestion = None
        self._record(None, "off", NOTHING)
        return NOTHING

    async def answer(self, canvas: WarmCanvas, how: AnswerKind) -> Proposal | NothingNew:
        """The answer from `canvas`, or from the one that replaces it; the canvas continues afterwards."""
        try:
            canvas, proposal = await self._found(canvas)
            if self.current and canvas.broken and self.pane.regenerate_tail(canvas, proposal):
                canvas, proposal = await self._found(canvas)
        except asyncio.CancelledError:  # by the editor, or by the popup's deadline
            self._record(canvas, "cancelled", NOTHING)
            raise
        if not self.current:
            self._record(canvas, "superseded", NOTHING)
            return self._superseded()
        self._record(canvas, how if proposal.insert else "nothing", proposal)
        suggestion = self.pane.suggestion
        if canvas.lost and not proposal.insert and suggestion and suggestion.stands(self.at):
            return NothingNew(shown_fits=True)
        return self.pane.show(canvas, self.at, proposal)

    async def _found(self, canvas: WarmCanvas) -> tuple[WarmCanvas, Proposal]:
        """Wait for a sound proposal, or for the end of the canvas. Returns the canvas and its proposal."""
        while True:
            canvas = await self._ready(canvas)
            proposal = self._choose(canvas) if self.current else NOTHING
            if proposal.insert or canvas.over or not self.current:
                return canvas, proposal
            await self.pane.changed.wait()  # no part of it is sound yet

    async def _ready(self, canvas: WarmCanvas) -> WarmCanvas:
        """Wait until there is something to show, or nothing to wait for. Returns the canvas at that time."""
        canvases, clock = self.pane.canvases, asyncio.get_running_loop().time
        while self.current:
            canvas = canvases.current or canvas  # another one has begun if this one disagreed with the text
            part = clock() >= self.late
            ready = self._shown(canvas) is not None or canvas.ready(self.at, part=part, replacing=self.replacing)
            mending = canvases.ahead is not None and canvas.broken and not canvases.ahead.over
            if (canvas.over if self.on_part else ready) and (part or not mending):
                break
            if ready and self.on_part:
                self._report(canvas, self.on_part)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if part else self.late):
                    await self.pane.changed.wait()
        return canvas

    def _report(self, canvas: WarmCanvas, on_part: Callable[[Proposal], None]) -> None:
        """Report what the answer would be by now. The editor shows it at once, so the answer will begin with it."""
        proposal, shown = self._choose(canvas), self.pane.suggestion
        if proposal.insert:
            if not (shown and shown.fits and (shown.typed.origin, shown.insert) == (self.at, proposal.insert)):
                self.pane.show(canvas, self.at, proposal)
            on_part(proposal)

    def _choose(self, canvas: WarmCanvas) -> Proposal:
        began = perf_counter()
        place = self.pane.place(canvas)
        proposal = canvas.propose(self.at, place, self._shown(canvas), part=True, replacing=self.replacing)
        self.ms["gate"] = self.ms.get("gate", 0.0) + (perf_counter() - began) * 1000
        return proposal

    def _shown(self, canvas: WarmCanvas) -> Proposal | None:
        """What the editor goes on to show, for the item of a popup if one is selected."""
        if self.replacing:
            return self.pane.continued(self.at)
        return canvas.rest(self.at) if self.anew else self.pane.shown_at(self.at, canvas)

    def _superseded(self) -> NothingNew:
        suggestion = self.pane.suggestion
        if not self.pane.withdrawn and (suggestion is None or suggestion.fits):
            return NothingNew(shown_fits=True)
        self.pane.suggestion = None  # the empty answer clears it
        return NothingNew(shown_fits=False)

    def _record(self, canvas: WarmCanvas | None, how: AnswerKind, proposal: Proposal) -> None:
        ms = self.ms | {"wait": (perf_counter() - self.began) * 1000}
        if canvas is not None and not canvas.shown:
            ms["context"] = canvas.context_ms
            ms |= _stages(canvas.answer.timings) if canvas.answer else {}
        self.trace.record(
            RequestRecord(
                language=self.pane.opened.document.language,
                kind=_kind(canvas.context) if canvas else "",
                answer=how,
                ms=ms,
                steps=canvas.steps if canvas else 0,
                shown=len(proposal.insert),
                confidence=proposal.confidence,
                job=canvas.job.job if canvas and canvas.job else "",
            )
        )


def _kind(around: Context) -> str:
    """The kind of a hole for the trace: its scope, or its extent in plain code."""
    return around.kind if around.scope == "code" else around.scope


def _stages(times: wire.Timings) -> dict[str, float]:
    """The engine's milliseconds by stage."""
    found = {"queue": times.queue_ms, "prefill": times.prefill_ms, "denoise": times.denoise_ms}
    return found if times.first_lock_ms is None else found | {"first_lock": times.first_lock_ms}
