"""The next edit, in the messages of Copilot's clients. An answer has at most one edit: some clients take the edits of
an answer for alternatives, others apply all of them.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from caesura.server.lsp.completion import item_id
from caesura.server.next_edit.asking import NextEdit
from caesura.server.session import Session
from caesura.server.text.workspace import OpenDocument

INLINE_EDIT = "textDocument/copilotInlineEdit"
DISMISSED, FOCUS = "caesura/didDismissInlineEdit", "textDocument/didFocus"
TAKEN = "caesura.nextEdit.accepted"  # the command that an editor sends when it has applied an edit
INVOKED = 1  # the trigger kind of a request that the user made

InlineEdits = dict[str, list[dict[str, Any]]]

NOTHING: InlineEdits = {"edits": []}


class NextEditRequests:
    """Handles requests for the next edit, and what the editor tells of it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def register(self, on: Callable[..., None]) -> None:
        on(INLINE_EDIT, self.inline_edit)
        on(DISMISSED, self.did_dismiss)
        on(FOCUS, self.did_focus)

    def inline_edit(self, params: Any) -> InlineEdits | Awaitable[InlineEdits]:
        """The edit for the document's version that the request names; none if that is not ours."""
        try:
            uri, version = str(params.textDocument.uri), params.textDocument.version
        except (AttributeError, OverflowError, TypeError, ValueError):
            return NOTHING
        opened = self._session.fillable(uri)
        if opened is None or version != opened.document.version:
            return NOTHING
        invoked = getattr(getattr(params, "context", None), "triggerKind", None) == INVOKED
        return self._answer(opened, invoked=invoked)

    async def _answer(self, opened: OpenDocument, *, invoked: bool) -> InlineEdits:
        found = await self._session.next_edits.next(opened, invoked=invoked)
        still = self._session.fillable(opened.document.uri) is opened  # neither hidden nor closed meanwhile
        return {"edits": [_edit(opened, found)]} if found and still else NOTHING

    def did_dismiss(self, params: Any) -> None:
        self._session.next_edits.dismissed(item_id(params))

    def did_focus(self, params: Any) -> None:
        """The user looks at another document: what he typed before is an edit of its own."""
        self._session.next_edits.pause()


def _edit(opened: OpenDocument, found: NextEdit) -> dict[str, Any]:
    document = opened.document
    start, end = map(document.position, found.span)
    return {
        "text": found.text,
        "textDocument": {"uri": document.uri, "version": document.version},
        "range": {
            "start": {"line": start[0], "character": start[1]},
            "end": {"line": end[0], "character": end[1]},
        },
        "command": {"title": "Accepted", "command": TAKEN, "arguments": [found.id]},
        "why": found.why,
    }
