"""The values of a streamed request: each replaces the one before, and its text begins with that one's. Pure."""

from typing import Any

from caesura.server.ghost.typed import Proposal


class PartialResults:
    """`version` is that of the document. The items have no range yet."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._seq = 0
        self._last = Proposal("")

    def __repr__(self) -> str:
        return f"<PartialResults {self._seq} values, {len(self._last.insert)} shown>"

    def part(self, proposal: Proposal) -> dict[str, Any] | None:
        """The value for what the editor may show by now; None if it shows that already."""
        if (proposal.insert, proposal.eat) == (self._last.insert, self._last.eat):
            return None
        return self._value(proposal, done=False)

    def done(self, proposal: Proposal) -> dict[str, Any]:
        """The last value, which equals the response."""
        return self._value(proposal, done=True)

    def _value(self, proposal: Proposal, *, done: bool) -> dict[str, Any]:
        value = {
            "seq": self._seq,
            "version": self._version,
            "items": [{"insertText": proposal.insert}] if proposal.insert else [],
            "done": done,
        }
        self._seq, self._last = self._seq + 1, proposal
        return value
