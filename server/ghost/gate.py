"""The check that a text is sound in the current document: by the grammar of an offer, or by the document's syntax."""

from dataclasses import replace

import tree_sitter

from caesura.server.context.context import Context
from caesura.server.infill.check import SyntaxGate
from caesura.server.structured.offer import Offer


class DocumentGate:
    """Checks texts for the hole at `origin` of `text`. `around` is the context there without a lead. Without `syntax`,
    only an offer rejects anything."""

    def __init__(
        self,
        text: str,
        tree: tree_sitter.Tree | None,
        origin: int,
        around: Context,
        offer: Offer | None,
        *,
        syntax: bool,
    ) -> None:
        self._text = text
        self._tree = tree
        self._origin = origin
        self._around = around
        self._offer = offer
        self._syntax = syntax
        self._gates: dict[tuple[int, int], SyntaxGate] = {}  # by span, for all its candidates
        self._sound: dict[tuple[int, int, str], str] = {}  # the results of the offer's check

    def __call__(self, start: int, end: int, insert: str) -> str:
        """The longest sound start of `insert` in place of `start:end`."""
        if self._offer:
            return self._offered(self._offer, start, end, insert)
        if not self._syntax:
            return insert
        if (start, end) not in self._gates:
            around = replace(self._around, prefix=self._around.prefix + self._text[self._origin : start])
            self._gates[start, end] = SyntaxGate(self._text, start, end, around, self._tree)
        return self._gates[start, end].shortened(insert)

    def _offered(self, offer: Offer, start: int, end: int, insert: str) -> str:
        """`insert` if the offer accepts it, else the empty string."""
        asked = start, end, insert
        if asked not in self._sound:
            new = self._text[:start] + insert + self._text[end:]
            self._sound[asked] = "" if offer.check(new) else insert
        return self._sound[asked]
