"""Code actions: the fills and structured edits that make sense at a place. Choosing one computes its edit."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from lsprotocol import types

from caesura.client.backend import EngineError
from caesura.server.fills.fills import MAX_SELECTION, gaps_in
from caesura.server.fills.result import Events
from caesura.server.fills.structured import TOLD
from caesura.server.fills.task import NoFill, trimmed
from caesura.server.lsp import filling
from caesura.server.lsp.filling import EDIT, FILL_HOLES, FILL_SELECTION, REPAIR, TITLES, FillRequest
from caesura.server.lsp.transport import Server
from caesura.server.session import Session
from caesura.server.structured import edits
from caesura.server.structured.offer import NoOffer
from caesura.server.text import repair
from caesura.server.text.document import Document, Span
from caesura.server.text.workspace import OpenDocument

MOST_OFFERS = 3  # most structured edits offered at a place
MAX_OFFERED = 1_000_000  # most code points of a document with structured edits, if the user asks for actions
MAX_UNASKED = 100_000  # the same if the editor asks by itself, at each move of the cursor
REWRITE, QUICK_FIX = types.CodeActionKind.RefactorRewrite, types.CodeActionKind.QuickFix

Actioned = list[types.CodeAction | types.Command]


class Actions:
    """Handles requests for code actions."""

    def __init__(self, server: Server, session: Session) -> None:
        self._server = server
        self._session = session

    def register(self, on: Callable[..., None]) -> None:
        kinds = types.CodeActionOptions(code_action_kinds=[REWRITE, QUICK_FIX], resolve_provider=True)
        on(types.TEXT_DOCUMENT_CODE_ACTION, self.actions, kinds)
        on(types.CODE_ACTION_RESOLVE, self.resolve)

    def actions(self, params: types.CodeActionParams) -> Actioned | Awaitable[Actioned]:
        """The actions that make sense at the range."""
        opened = self._session.fillable(params.text_document.uri)
        if opened is None:
            return []
        document, context = opened.document, params.context
        span = filling.span_of(document, params.range)
        found = []
        if _wanted(REWRITE, context.only):
            found += _rewrites(document, span)
        if _wanted(QUICK_FIX, context.only) and _damaged(opened, span, context.diagnostics):
            found.append((QUICK_FIX, REPAIR, TITLES[REPAIR], [span]))
        actions = [
            self._action(kind, command, title, filling.request_for(document, spans), context.diagnostics)
            for kind, command, title, spans in found
        ]
        unasked = context.trigger_kind == types.CodeActionTriggerKind.Automatic
        small = len(document.text) <= (MAX_UNASKED if unasked else MAX_OFFERED)
        structured = self._session.settings.options.structured and document.language in edits.LANGUAGES
        if structured and small and _wanted(REWRITE, context.only):
            return self._edits(document, span, actions)
        return actions

    async def _edits(self, document: Document, span: Span, others: Actioned) -> Actioned:
        """The structured edits of a place, before the other actions."""
        request, find = filling.request_for(document, [span]), filling.find(self._session, document)
        try:
            offers, _ = await asyncio.to_thread(find, document.text, *span)
        except NoOffer:
            return others
        wanted = [msgspec.structs.replace(request, offer=offer.title) for offer in offers[:MOST_OFFERS]]
        return [*(self._action(REWRITE, EDIT, str(each.offer), each, ()) for each in wanted), *others]

    def resolve(self, action: types.CodeAction) -> types.CodeAction | Awaitable[types.CodeAction]:
        """The action with its edit; without one if there is none, and the reason goes to the log."""
        data = action.data if isinstance(action.data, Mapping) else {}
        try:
            request = msgspec.convert(data.get("order"), FillRequest)
            opened, events = filling.begin(self._session, str(data.get("command")), request)
        except (msgspec.ValidationError, NoFill) as error:
            filling.log(self._server, str(error))
            return action
        return self._resolved(action, opened, events)

    async def _resolved(self, action: types.CodeAction, opened: OpenDocument, events: Events) -> types.CodeAction:
        try:
            result = await filling.result_of(self._session, opened, events)
            action.edit = filling.workspace_edit(self._server.client_capabilities, opened.document, result)
            level = f"{action.title}: {TOLD[result.level]}." if result.level else ""
            if told := " ".join(filter(None, (level, result.note))):
                filling.log(self._server, told)
        except (EngineError, NoFill) as error:
            filling.log(self._server, str(error))
        return action

    def _action(
        self,
        kind: types.CodeActionKind,
        command: str,
        title: str,
        request: FillRequest,
        diagnostics: Sequence[types.Diagnostic],
    ) -> types.CodeAction | types.Command:
        argument = msgspec.to_builtins(request)
        call = types.Command(title, command, arguments=[argument])
        document = self._server.client_capabilities.text_document
        able = document.code_action if document else None
        if able is None or able.code_action_literal_support is None:
            return call
        action = types.CodeAction(title, kind)
        if kind == QUICK_FIX and diagnostics:
            action.diagnostics = diagnostics
        if able.tag_support and types.CodeActionTag.LlmGenerated in able.tag_support.value_set:
            action.tags = [types.CodeActionTag.LlmGenerated]
        if able.data_support and able.resolve_support and "edit" in able.resolve_support.properties:
            action.data = {"command": command, "order": argument}
        else:
            action.command = call
        return action


def _wanted(kind: types.CodeActionKind, only: Sequence[types.CodeActionKind | str] | None) -> bool:
    """True if the client wants this kind, or a kind that includes it."""
    return only is None or any(f"{kind.value}.".startswith(f"{_name(wanted)}.") for wanted in only)


def _name(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind


def _rewrites(document: Document, span: Span) -> list[tuple[types.CodeActionKind, str, str, list[Span]]]:
    """A fill of the holes in the selection, or in the document if nothing is selected; and one of the selection."""
    start, end = trimmed(document.text, *span)
    where = [span] if start < end else []
    offered = []
    if holes := sum(gap.like is None for gap in gaps_in(document, where)[0]):
        offered = [(REWRITE, FILL_HOLES, f"Infill {holes} holes" if holes > 1 else "Infill the hole", where)]
    least = 2 if document.language in edits.LANGUAGES else 1  # a block cursor on a bracket
    if document.text[start:end].strip() and least <= end - start <= MAX_SELECTION:
        offered.append((REWRITE, FILL_SELECTION, TITLES[FILL_SELECTION], [span]))
    return offered


def _damaged(opened: OpenDocument, span: Span, diagnostics: Sequence[types.Diagnostic]) -> bool:
    """True if the syntax is broken in the range, or in the ranges of its diagnostics."""
    tree, document = opened.tree.tree, opened.document
    spans = [span, *(filling.span_of(document, diagnostic.range) for diagnostic in diagnostics)]
    return tree is not None and any(repair.is_broken(tree, document.text, *span) for span in spans)
