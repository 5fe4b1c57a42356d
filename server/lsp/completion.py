"""Ghost text: inline completion, plain and streamed, and the editor's feedback on its items."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lsprotocol import types

from caesura.server.ghost.pane import Selected
from caesura.server.ghost.requests import NothingNew
from caesura.server.ghost.typed import Proposal
from caesura.server.lsp.popup import ACCEPTED, Popup
from caesura.server.lsp.transport import Server
from caesura.server.session import Session
from caesura.server.text.workspace import OpenDocument

STREAM, CURSOR = "caesura/inlineCompletionStream", "caesura/cursor"  # see docs/protocol.md
NOTHING = types.InlineCompletionList(items=[])


class GhostText:
    """Handles requests for ghost text. After the first one, an automatic `popup` is off."""

    def __init__(self, server: Server, session: Session, popup: Popup) -> None:
        self._server = server
        self._session = session
        self._popup = popup

    def register(self, on: Callable[..., None]) -> None:
        on(types.TEXT_DOCUMENT_INLINE_COMPLETION, self.inline_completion, types.InlineCompletionOptions())
        on(STREAM, self.stream)
        on(CURSOR, self.cursor)
        on("textDocument/didShowCompletion", self.did_show)
        on("textDocument/didPartiallyAcceptCompletion", self.did_accept_a_part)

    def inline_completion(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList | Awaitable[types.InlineCompletionList | None]:
        """Items, an empty list if there is nothing to propose, or None to keep the shown text; never an error.

        A request names no version: its position refers to the text at its arrival."""
        self._popup.ghost = True
        opened = self._session.workspace.get(params.text_document.uri)
        if opened is None:
            return NOTHING
        cursor = opened.document.offset((params.position.line, params.position.character))
        invoked = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
        selected = _selected(opened, params.context.selected_completion_info)
        answer = self._session.panes.propose(opened, cursor, invoked=invoked, selected=selected)
        return _completion(opened, cursor, answer)

    def stream(self, params: Any) -> types.InlineCompletionList | Awaitable[types.InlineCompletionList | None]:
        """Inline completion that sends what may be shown already as `$/progress` for the request's
        `partialResultToken`."""
        self._popup.ghost = True
        try:
            uri, token = str(params.textDocument.uri), params.partialResultToken
            position = int(params.position.line), int(params.position.character)
            invoked = params.context.triggerKind == types.InlineCompletionTriggerKind.Invoked.value
        except (AttributeError, OverflowError, TypeError, ValueError):
            return NOTHING
        opened = self._session.workspace.get(uri)
        if opened is None:
            return NOTHING
        cursor = opened.document.offset(position)
        sender = _Sender(self._server, token, opened, cursor, PartialResults(opened.document.version))
        answer = self._session.panes.propose(opened, cursor, invoked=invoked, on_part=sender.part)
        return _completion(opened, cursor, answer, sender.done)

    def cursor(self, params: Any) -> None:
        """The cursor has come to rest, before any request."""
        try:
            uri, position = str(params.textDocument.uri), (int(params.position.line), int(params.position.character))
        except (AttributeError, OverflowError, TypeError, ValueError):
            return
        if opened := self._session.workspace.get(uri):
            self._session.panes.rested(opened, opened.document.offset(position))

    # Feedback on an item, in the messages of Copilot's clients

    def did_show(self, params: Any) -> None:
        if id := item_id(params):
            self._session.panes.seen(id)

    def did_accept_a_part(self, params: Any) -> None:
        length = getattr(params, "acceptedLength", None)
        if (id := item_id(params)) and isinstance(length, int):
            self._session.panes.accepted(id, units=max(0, length))


class PartialResults:
    """The values of a streamed request: each replaces the one before, and its text begins with that one's. `version` is
    that of the document. The items have no range yet."""

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


@dataclass(frozen=True)
class _Sender:
    """Sends the values of one streamed request."""

    server: Server
    token: Any
    opened: OpenDocument
    cursor: int
    results: PartialResults

    def part(self, proposal: Proposal) -> None:
        if value := self.results.part(proposal):
            self._send(value, proposal)

    def done(self, proposal: Proposal) -> None:
        self._send(self.results.done(proposal), proposal)

    def _send(self, value: dict[str, Any], proposal: Proposal) -> None:
        """Send a value, and add to each item the range that its text replaces."""
        for item in value["items"]:
            item["range"] = _range(self.opened, self.cursor, proposal)
        self.server.progress(types.ProgressParams(self.token, value))


async def _completion(
    opened: OpenDocument,
    cursor: int,
    answering: Callable[[], Awaitable[Proposal | NothingNew]],
    on_done: Callable[[Proposal], None] = lambda proposal: None,
) -> types.InlineCompletionList | None:
    answer = await answering()
    if isinstance(answer, NothingNew):
        return None if answer.shown_fits else NOTHING
    on_done(answer)
    where = _range(opened, cursor, answer)
    command = types.Command("Accepted", ACCEPTED, arguments=[answer.id])
    texts = (answer.insert, *answer.others) if answer.insert else ()
    return types.InlineCompletionList(
        [types.InlineCompletionItem(text, range=where, command=command) for text in texts]
    )


def _range(opened: OpenDocument, cursor: int, proposal: Proposal) -> types.Range:
    """The range that a proposal replaces in the current document."""
    start, end = map(opened.document.position, (cursor - proposal.back, cursor + proposal.eat))
    return types.Range(types.Position(*start), types.Position(*end))


def _selected(opened: OpenDocument, item: types.SelectedCompletionInfo | None) -> Selected | None:
    if item is None:
        return None
    start = item.range.start
    return Selected(opened.document.offset((start.line, start.character)), item.text)


def item_id(params: Any) -> str:
    """The id in the command of an item; empty if there is none."""
    arguments = getattr(getattr(getattr(params, "item", None), "command", None), "arguments", None)
    return str(arguments[0]) if arguments else ""
