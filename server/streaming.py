"""The values of a streamed request: each replaces the one before, and keeps what that one called locked. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from caesura.server.document import Encoding
from caesura.server.warm import Draft, Proposal

_UNITS: Mapping[Encoding, Callable[[str], int]] = {
    "utf-8": lambda text: len(text.encode()),
    "utf-16": lambda text: len(text.encode("utf-16-le")) // 2,
    "utf-32": len,
}


class Stream:
    """`send` takes a value; `version` is the document's; `where` gives the range of a text that brings so many code
    points behind the cursor along. Offsets within a text are in units of `encoding`."""

    def __init__(
        self, send: Callable[[dict[str, Any]], None], version: int, where: Callable[[int], Any], encoding: Encoding
    ) -> None:
        self._send = send
        self._version = version
        self._where = where
        self._units = _UNITS[encoding]
        self._seq = 0
        self._locked = ""
        self._last: Draft | None = None

    def __repr__(self) -> str:
        return f"<Stream {self._seq} values, {len(self._locked)} locked>"

    def draft(self, draft: Draft) -> None:
        """A state of the canvas. One that says nothing new, or breaks what was locked, is not sent."""
        locked = draft.text[: draft.locked]
        if draft == self._last or not draft.text or not draft.text.startswith(self._locked):
            return
        if len(locked) > len(self._locked):
            self._locked = locked
        self._last = draft
        self._value(draft.text, draft.eat, self._locked, draft.text[: draft.ready], draft.confidence, done=False)

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
