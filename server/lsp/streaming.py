"""The values of a streamed request: each replaces the one before, and keeps its locked text. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from caesura.server.ghost.typed import Draft, Proposal
from caesura.server.text.document import Encoding

_UNITS: Mapping[Encoding, Callable[[str], int]] = {
    "utf-8": lambda text: len(text.encode()),
    "utf-16": lambda text: len(text.encode("utf-16-le")) // 2,
    "utf-32": len,
}

LIKELIER = 1.25  # factor: a draft with this many times the confidence replaces the drawn one at once
STEADY_S = 0.3  # time after which any other draft may replace it


class PartialResults:
    """`version` and `encoding` are those of the document; offsets within a text are in units of `encoding`."""

    def __init__(self, version: int, encoding: Encoding) -> None:
        self._version = version
        self._units = _UNITS[encoding]
        self._seq = 0
        self._locked = ""
        self._last: Draft | None = None
        self._drawn_at = 0.0  # time of the last draft that did not continue the one before it

    def __repr__(self) -> str:
        return f"<PartialResults {self._seq} values, {len(self._locked)} locked>"

    def draft(self, draft: Draft, now: float) -> dict[str, Any] | None:
        """The value for a state of the canvas at `now`, in seconds; None if it is not new, or contradicts locked text.
        Its items have no range yet."""
        locked = draft.text[: draft.locked]
        if draft == self._last or not draft.text or not draft.text.startswith(self._locked):
            return None
        if not self._continues(draft):
            if self._steady(draft, now):
                return None
            self._drawn_at = now
        if len(locked) > len(self._locked):
            self._locked = locked
        self._last = draft
        return self._value(draft.text, self._locked, draft.text[: draft.ready], draft.confidence, done=False)

    def done(self, proposal: Proposal) -> dict[str, Any]:
        """The last value, which equals the response. It may be shorter than the drafts, or empty."""
        text = proposal.insert
        return self._value(text, text, text, proposal.confidence, done=True)

    def _continues(self, draft: Draft) -> bool:
        return self._last is not None and draft.text.startswith(self._last.text) and draft.eat == self._last.eat

    def _steady(self, draft: Draft, now: float) -> bool:
        """True if the last draft must stay, so that the text does not flicker. Locked text that differs, or ready text,
        ends that."""
        last = self._last
        return (
            last is not None
            and not draft.ready
            and last.text.startswith(draft.text[: draft.locked])
            and draft.confidence < LIKELIER * last.confidence
            and now < self._drawn_at + STEADY_S
        )

    def _value(self, text: str, locked: str, ready: str, confidence: float, *, done: bool) -> dict[str, Any]:
        value = {
            "seq": self._seq,
            "version": self._version,
            "items": [{"insertText": text}] if text else [],
            "locked": [[0, self._units(locked)]] if locked else [],
            "ready": self._units(ready),
            "confidence": round(confidence, 4),
            "done": done,
        }
        self._seq += 1
        return value
