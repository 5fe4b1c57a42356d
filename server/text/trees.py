"""The incremental syntax tree of one document. Edits move the tree at once; parsing is deferred and coalesced.

`parse` holds the GIL and can take tens of milliseconds after a key that opens a string, so no request waits for it.
Readers get the moved tree, which is correct except near the newest edits.
"""

import asyncio
from collections.abc import Callable

import tree_sitter

from caesura.server.languages import Language, grammar
from caesura.server.text.document import Edit

DELAY = 0.03  # seconds of edits that share one parse
MAX_CHARACTERS = 400_000  # a longer document gets no tree: one parse would block the loop for over 50 ms


class SyntaxTree:
    """`tree` is None before the first parse, without a grammar, and for a very long document."""

    def __init__(self, language: Language) -> None:
        self.tree: tree_sitter.Tree | None = None
        self._language = language
        self._parser: tree_sitter.Parser | None = None
        self._pending: asyncio.TimerHandle | None = None

    def edit(self, edit: Edit) -> None:
        """Move the tree's nodes by one edit."""
        if self.tree is not None:
            self.tree.edit(
                edit.start_byte,
                edit.old_end_byte,
                edit.new_end_byte,
                edit.start_point,
                edit.old_end_point,
                edit.new_end_point,
            )

    def parse(self, text: str) -> None:
        """Update the tree to `text`, reusing its unchanged parts."""
        known = grammar(self._language)
        if known is None or len(text) > MAX_CHARACTERS:
            self.tree = None
            return
        if self._parser is None:
            self._parser = tree_sitter.Parser(known)
        source = text.encode()
        self.tree = self._parser.parse(source, self.tree) if self.tree else self._parser.parse(source)

    def schedule(self, text: Callable[[], str]) -> None:
        """Parse soon, once for all edits until then. `text` is called at that time."""
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_later(DELAY, self._run, text)

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()

    def _run(self, text: Callable[[], str]) -> None:
        self._pending = None
        self.parse(text())
