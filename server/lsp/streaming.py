"""The values of a streamed request: each replaces the one before, and keeps what that one called locked. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from caesura.server.ghost.canvas import Draft, Proposal
from caesura.server.text.document import Encoding

_UNITS: Mapping[Encoding, Callable[[str], int]] = {
    "utf-8": lambda text: len(text.encode()),
    "utf-16": lambda text: len(text.encode("utf-16-le")) // 2,
    "utf-32": len,
}


LIKELIER = 1.25  # times the confidence of the draft that is drawn: one that may take its place at once
STEADY_S = 0.3  # after which any other may


class Stream:
    """`send` takes a value; `version` is the document's; `where` gives the range of a text that brings so many code
    points behind the cursor along. Offsets within a text are in units of `encoding`. `clock` counts seconds."""

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        version: int,
        where: Callable[[int], Any],
        encoding: Encoding,
        clock: Callable[[], float],
    ) -> None:
        self._send = send
        self._version = version
        self._where = where
        self._units = _UNITS[encoding]
        self._clock = clock
        self._seq = 0
        self._locked = ""
        self._last: Draft | None = None
        self._drawn_at = 0.0  # when a draft came that did not go on from the one before it

    def __repr__(self) -> str:
        return f"<Stream {self._seq} values, {len(self._locked)} locked>"

    def draft(self, draft: Draft) -> None:
        """A state of the canvas. One that says nothing new, or breaks what was locked, is not sent."""
        locked, now = draft.text[: draft.locked], self._clock()
        if draft == self._last or not draft.text or not draft.text.startswith(self._locked):
            return
        if not self._goes_on(draft):
            if self._steady(draft, now):
                return
            self._drawn_at = now
        if len(locked) > len(self._locked):
            self._locked = locked
        self._last = draft
        self._value(draft.text, draft.eat, self._locked, draft.text[: draft.ready], draft.confidence, done=False)

    def _goes_on(self, draft: Draft) -> bool:
        return self._last is not None and draft.text.startswith(self._last.text) and draft.eat == self._last.eat

    def _steady(self, draft: Draft, now: float) -> bool:
        """True if the last draft stays, so that the text does not flicker. What is locked or ready ends that."""
        last = self._last
        return (
            last is not None
            and not draft.ready
            and last.text.startswith(draft.text[: draft.locked])
            and draft.confidence < LIKELIER * last.confidence
            and now < self._drawn_at + STEADY_S
        )

    def done(self, proposal: Proposal) -> None:
        """The answer, which is also the response: it may be shorter than the drafts, and empty."""
        text = proposal.insert
        self._value(text, proposal.eat, text, text, proposal.confidence, done=True)

    def _value(self, text: str, eat: int, locked: str, ready: str, confidence: float, *, done: bool) -> None:
        items = [{"insertText": text, "range": self._where(eat)}] if text else []
        spans = [[0, self._units(locked)]] if locked else []
        self._send(
            {
                "seq": self._seq,
                "version": self._version,
                "items": items,
                "locked": spans,
                "ready": self._units(ready),
                "confidence": round(confidence, 4),
                "done": done,
            }
        )
        self._seq += 1
