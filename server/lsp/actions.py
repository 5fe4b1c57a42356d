"""Code actions and commands that fill: what is offered, how it is carried out, and what the editor is told of it.

A command has one argument, an Order, and is answered with `{applied, message?, id?, holes?, unfilled?, level?, edit?}`:
never with an error, never by a dialog.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from lsprotocol import types

from caesura import wire
from caesura.client.backend import EngineError, Infiller, job_id
from caesura.server.context.context import Budget, Context
from caesura.server.fills.fills import MAX_SELECTION, Fills
from caesura.server.fills.gaps import STALE, NoFill, Span, markers, trimmed
from caesura.server.fills.result import Events, Progress, Result
from caesura.server.fills.structured import TOLD, Find, Structured, finder
from caesura.server.ghost.canvases import Around
from caesura.server.lsp.orders import Order, Position, Range
from caesura.server.options import Options
from caesura.server.structured import edits
from caesura.server.structured.offer import NoOffer
from caesura.server.text import repair
from caesura.server.text.document import Document
from caesura.server.text.workspace import Open, Workspace

FILL_SELECTION = "caesura.fillSelection"
FILL_HOLES = "caesura.fillHoles"
REPAIR = "caesura.repair"
ANOTHER = "caesura.another"
KEEP = "caesura.keep"
EDIT = "caesura.edit"
TITLES = {
    FILL_SELECTION: "Infill selection",
    FILL_HOLES: "Infill holes",
    REPAIR: "Repair this region",
    ANOTHER: "Another fill",
    KEEP: "Keep a part, fill the rest",
    EDIT: "Structured edit",
}
MOST_OFFERS = 3  # structured edits that are offered at a place
MAX_OFFERED = 1_000_000  # code points of a document in which they are looked for when a person asks for actions
MAX_UNASKED = 100_000  # the same when the editor asks by itself, at each move of the cursor
REWRITE, QUICK_FIX = types.CodeActionKind.RefactorRewrite, types.CodeActionKind.QuickFix

Token = int | str
Actioned = list[types.CodeAction | types.Command]
Answer = dict[str, Any]


class Client(Protocol):
    """What we need of transport.Server."""

    @property
    def client_capabilities(self) -> types.ClientCapabilities: ...
    def progress(self, params: types.ProgressParams) -> None: ...
    def window_log_message(self, params: types.LogMessageParams) -> None: ...
    async def window_work_done_progress_create_async(self, params: types.WorkDoneProgressCreateParams) -> None: ...
    async def workspace_apply_edit_async(
        self, params: types.ApplyWorkspaceEditParams
    ) -> types.ApplyWorkspaceEditResult: ...


class Actions:
    """The handlers. `commands` may get others' handlers before `register`: there is one executeCommand for all."""

    def __init__(
        self,
        client: Client,
        workspace: Workspace,
        engine: Infiller,
        options: Callable[[], Options],
        around: Around,
    ) -> None:
        self.fills = Fills(engine, options, self._surround)
        self._structured = Structured(engine, options, self._surround, self.fills.newest)
        self.commands: dict[str, Callable[[types.ExecuteCommandParams], Any]] = dict.fromkeys(TITLES, self._fill)
        self._client = client
        self._workspace = workspace
        self._options = options
        self._around = around
        self._running: dict[Token, asyncio.Task[Answer]] = {}

    def __repr__(self) -> str:
        return f"<Actions {len(self._running)} running {self.fills!r}>"

    def register(self, on: Callable[..., None]) -> None:
        kinds = types.CodeActionOptions(code_action_kinds=[REWRITE, QUICK_FIX], resolve_provider=True)
        on(types.TEXT_DOCUMENT_CODE_ACTION, self.offer, kinds)
        on(types.CODE_ACTION_RESOLVE, self.resolve)
        commands = types.ExecuteCommandOptions(commands=list(self.commands), work_done_progress=True)
        on(types.WORKSPACE_EXECUTE_COMMAND, self.execute, commands)
        on(types.WINDOW_WORK_DONE_PROGRESS_CANCEL, self.cancel)

    def _opened(self, uri: str) -> Open | None:
        """A document that may be filled. The languages that are off are so for what comes without being asked for."""
        opened = self._workspace.get(uri)
        return opened if opened and self._options().enable and not self._around.hidden(opened) else None

    def _surround(
        self, document: Document, place: Context, budget: Budget
    ) -> tuple[Context, tuple[wire.Neighbour, ...]]:
        opened = self._workspace.get(document.uri)
        if opened is None:
            return place, ()
        return self._around.frame(opened, place, budget), self._around.neighbours(opened, place, ())

    # Code actions

    def offer(self, params: types.CodeActionParams) -> Actioned | Awaitable[Actioned]:
        """The actions that make sense at the range; their edits are computed when one is chosen."""
        opened = self._opened(params.text_document.uri)
        if opened is None:
            return []
        document, span = opened.document, _span(opened.document, params.range)
        found = []
        if _wanted(REWRITE, params.context.only):
            found += _rewrites(document, span)
        if _wanted(QUICK_FIX, params.context.only) and _damaged(opened, span, params.context.diagnostics):
            found.append((QUICK_FIX, REPAIR, TITLES[REPAIR], [span]))
        actions = [
            self._action(kind, command, title, _order(document, spans), params.context.diagnostics)
            for kind, command, title, spans in found
        ]
        unasked = params.context.trigger_kind == types.CodeActionTriggerKind.Automatic
        small = len(document.text) <= (MAX_UNASKED if unasked else MAX_OFFERED)
        structured = self._options().structured and document.language in edits.LANGUAGES
        if structured and small and _wanted(REWRITE, params.context.only):
            return self._edits(document, span, actions)
        return actions

    async def _edits(self, document: Document, span: Span, others: Actioned) -> Actioned:
        """The structured edits of a place, in front of what else there is."""
        order, find = _order(document, [span]), self._find(document)
        try:
            offers, _ = await asyncio.to_thread(find, document.text, *span)
        except NoOffer:
            return others
        wanted = [msgspec.structs.replace(order, offer=offer.title) for offer in offers[:MOST_OFFERS]]
        return [*(self._action(REWRITE, EDIT, str(each.offer), each, ()) for each in wanted), *others]

    def _find(self, document: Document, schema: str | None = None) -> Find:
        return finder(document.uri, document.language, self._around.schema_files, schema)

    def resolve(self, action: types.CodeAction) -> types.CodeAction | Awaitable[types.CodeAction]:
        """The action with its edit; as it was where there is none, with the reason in the log."""
        data = action.data if isinstance(action.data, Mapping) else {}
        try:
            order = msgspec.convert(data.get("order"), Order)
            opened, events = self._start(str(data.get("command")), order)
        except (msgspec.ValidationError, NoFill) as error:
            self._log(str(error))
            return action
        return self._resolved(action, opened, events)

    async def _resolved(self, action: types.CodeAction, opened: Open, events: Events) -> types.CodeAction:
        try:
            result = await self._result(opened, events)
            action.edit = self._edit(opened.document, result)
            if result.level:
                self._log(" ".join([f"{action.title}: {TOLD[result.level]}.", result.note]).strip())
        except (EngineError, NoFill) as error:
            self._log(str(error))
        return action

    def _action(
        self,
        kind: types.CodeActionKind,
        command: str,
        title: str,
        order: Order,
        diagnostics: Sequence[types.Diagnostic],
    ) -> types.CodeAction | types.Command:
        argument = msgspec.to_builtins(order)
        call = types.Command(title, command, arguments=[argument])
        document = self._client.client_capabilities.text_document
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

    # Commands

    def execute(self, params: types.ExecuteCommandParams) -> Any:
        handler = self.commands.get(params.command)
        return handler(params) if handler else self._failure(f"There is no command {params.command}.")

    def cancel(self, params: types.WorkDoneProgressCancelParams) -> None:
        """The user has pressed the button beside the progress bar."""
        if task := self._running.get(params.token):
            task.cancel()

    def _fill(self, params: types.ExecuteCommandParams) -> Answer | Awaitable[Answer]:
        """Read the text as it is now; the rest can wait."""
        try:
            order = msgspec.convert((params.arguments or [None])[0], Order)
            opened, events = self._start(params.command, order)
        except (msgspec.ValidationError, NoFill) as error:
            return self._failure(str(error))
        return self._run(params, opened, events, order)

    def _start(self, command: str, order: Order) -> tuple[Open, Events]:
        """The fill that is asked for, not begun. Raises NoFill."""
        opened = self._opened(order.uri)
        if opened is None:
            raise NoFill("This document gets no fills: it is not open here, or the settings exclude it.")
        document, fills = opened.document, self.fills
        if order.version not in (None, document.version):
            raise NoFill(STALE)
        spans = [_span(document, range) for range in order.ranges]
        if command == FILL_HOLES:
            return opened, fills.holes(document, spans, order.marker)
        if command == ANOTHER:
            return opened, fills.another(document, order.id)
        if not spans:
            raise NoFill("No ranges were given; say in `ranges` what is meant.")
        if command == KEEP:
            filled = fills.filled(document, order.id)
            return opened, fills.keep(document, [_span(filled, range) for range in order.ranges], order.id)
        if command == REPAIR:
            return opened, fills.repair(document, min(spans)[0], max(end for _, end in spans))
        if command == EDIT:
            if not self._options().structured:
                raise NoFill("Structured edits are off; the setting 'structured' allows them.")
            return opened, self._structured.edit(document, spans, self._find(document, order.schema), order.offer)
        return opened, fills.selection(document, spans)

    async def _run(self, params: types.ExecuteCommandParams, opened: Open, events: Events, order: Order) -> Answer:
        """Show progress, and let it or the request be cancelled."""
        bar = _Bar(self._client, TITLES[params.command], params.work_done_token)
        work = self._running[bar.token] = asyncio.create_task(
            self._carry_out(params.command, opened, events, order, bar)
        )
        try:
            return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # by $/cancelRequest, which transport.py answers
                raise
            return self._failure("The fill was cancelled.")
        except (EngineError, NoFill) as error:
            return self._failure(str(error))
        finally:
            self._running.pop(bar.token, None)
            bar.end()

    async def _carry_out(self, command: str, opened: Open, events: Events, order: Order, bar: "_Bar") -> Answer:
        result = await self._result(opened, events, bar)
        document = opened.document
        edit = self._edit(document, result)
        unfilled = [msgspec.to_builtins(_range(document, span)) for span in result.unfilled]
        answer: Answer = {"applied": False, "id": result.id, "holes": result.holes, "unfilled": unfilled}
        if unfilled:
            lines = ", ".join(str(where["start"]["line"] + 1) for where in unfilled)
            answer["message"] = f"The model proposes nothing for the hole in line {lines}; it stays as it is."
        if result.level:
            answer |= {"level": result.level} | ({"message": result.note} if result.note else {})
        if order.preview:
            return answer | {"edit": edit}
        # Shielded: pygls fails on an answer to a request whose task was cancelled.
        refusal = await asyncio.shield(asyncio.ensure_future(self._apply(TITLES[command], edit)))
        return answer | ({"applied": True} if refusal is None else self._failure(refusal))

    async def _result(self, opened: Open, events: Events, bar: "_Bar | None" = None) -> Result:
        """The result, for the text that the editor has at this moment. Raises NoFill or EngineError."""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Result):
                    if self._workspace.get(opened.document.uri) is not opened:
                        raise NoFill(STALE)
                    return event
                if bar:
                    bar.report(event)
        raise AssertionError("a fill ends in a result, or raises")

    async def _apply(self, title: str, edit: types.WorkspaceEdit) -> str | None:
        """Why the editor did not apply the edit, or None."""
        workspace = self._client.client_capabilities.workspace
        able = workspace.workspace_edit if workspace else None
        metadata = types.WorkspaceEditMetadata(is_refactoring=True) if able and able.metadata_support else None
        try:
            done = await self._client.workspace_apply_edit_async(
                types.ApplyWorkspaceEditParams(edit, label=f"Caesura: {title}", metadata=metadata)
            )
        except Exception:  # whatever kind of error the editor answers with
            return "The editor could not apply the edit; try again."
        return None if done.applied else "The editor did not apply the edit: the text may have changed; try again."

    def _edit(self, document: Document, result: Result) -> types.WorkspaceEdit:
        """All places in one edit, which is one step to undo."""
        edits = [types.TextEdit(_lsp_range(document, (start, end)), text) for start, end, text in result.edits]
        workspace = self._client.client_capabilities.workspace
        able = workspace.workspace_edit if workspace else None
        if able and able.document_changes:
            target = types.OptionalVersionedTextDocumentIdentifier(document.uri, result.version)
            return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(target, edits)])
        return types.WorkspaceEdit(changes={document.uri: edits})

    def _failure(self, message: str) -> Answer:
        self._log(message)
        return {"applied": False, "message": message}

    def _log(self, message: str) -> None:
        self._client.window_log_message(types.LogMessageParams(types.MessageType.Info, f"Caesura: {message}"))


class _Bar:
    """The progress bar of one fill. A bar of ours is shown once the editor has agreed to it."""

    def __init__(self, client: Client, title: str, token: Token | None) -> None:
        self.token: Token = token if token is not None else job_id()
        self._client = client
        self._title = title
        self._shown = self._over = False
        self._filled = 0
        window = client.client_capabilities.window
        if token is not None:
            self._begin()
        elif window and window.work_done_progress:
            self._creating = asyncio.create_task(self._create())

    def report(self, progress: Progress) -> None:
        if self._shown and progress.filled != self._filled:
            self._filled = progress.filled
            percentage = 100 * progress.filled // progress.of
            self._send(types.WorkDoneProgressReport(cancellable=True, percentage=percentage))

    def end(self) -> None:
        self._over = True
        if self._shown:
            self._send(types.WorkDoneProgressEnd())

    async def _create(self) -> None:
        try:
            await self._client.window_work_done_progress_create_async(types.WorkDoneProgressCreateParams(self.token))
        except Exception:  # the editor shows no bar, which is no reason not to fill
            return
        if not self._over:
            self._begin()

    def _begin(self) -> None:
        self._shown = True
        self._send(types.WorkDoneProgressBegin(f"Caesura: {self._title}", cancellable=True, percentage=0))

    def _send(self, value: Any) -> None:
        self._client.progress(types.ProgressParams(self.token, value))


def _wanted(kind: types.CodeActionKind, only: Sequence[types.CodeActionKind | str] | None) -> bool:
    """Whether the client asks for this kind, or for one that includes it."""
    return only is None or any(f"{kind.value}.".startswith(f"{_name(wanted)}.") for wanted in only)


def _name(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind


def _rewrites(document: Document, span: Span) -> list[tuple[types.CodeActionKind, str, str, list[Span]]]:
    """Of the markers in the selection, or in the document where nothing is selected; else of the selection."""
    start, end = trimmed(document.text, *span)
    where = [span] if start < end else []
    if found := markers(document.text, where, document.language):
        title = f"Infill {len(found)} holes" if len(found) > 1 else "Infill the hole"
        return [(REWRITE, FILL_HOLES, title, where)]
    least = 2 if document.language in edits.LANGUAGES else 1  # one character may be a block cursor on a bracket
    if document.text[start:end].strip() and least <= end - start <= MAX_SELECTION:
        return [(REWRITE, FILL_SELECTION, TITLES[FILL_SELECTION], [span])]
    return []


def _damaged(opened: Open, span: Span, diagnostics: Sequence[types.Diagnostic]) -> bool:
    """Whether something is broken in the range, or where the diagnostics there point."""
    tree, document = opened.tree.tree, opened.document
    spans = [span, *(_span(document, diagnostic.range) for diagnostic in diagnostics)]
    return tree is not None and any(repair.is_broken(tree, document.text, *span) for span in spans)


def _order(document: Document, spans: Sequence[Span]) -> Order:
    return Order(document.uri, tuple(_range(document, span) for span in spans), document.version)


def _span(document: Document, range: Range | types.Range) -> Span:
    start = document.offset((range.start.line, range.start.character))
    end = document.offset((range.end.line, range.end.character))
    return min(start, end), max(start, end)


def _range(document: Document, span: Span) -> Range:
    start, end = (Position(*document.position(offset)) for offset in span)
    return Range(start, end)


def _lsp_range(document: Document, span: Span) -> types.Range:
    start, end = (types.Position(*document.position(offset)) for offset in span)
    return types.Range(start, end)
