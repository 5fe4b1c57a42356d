"""The commands of `workspace/executeCommand`, and the progress bar of a fill.

A command that fills has one argument, a FillRequest. Its answer is `{applied, message?, id?, holes?, unfilled?, level?,
edit?}`, never an error, and never a dialog. `caesura.why` has a WhyRequest, and answers `{message, text?}`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from lsprotocol import types

from caesura.client.backend import EngineError, job_id
from caesura.server.fills.result import Events, Progress
from caesura.server.fills.task import NoFill
from caesura.server.lsp import filling
from caesura.server.lsp.filling import TITLES, FillRequest, RequestPosition
from caesura.server.lsp.next_edit import TAKEN
from caesura.server.lsp.popup import ACCEPTED
from caesura.server.lsp.transport import Server
from caesura.server.session import Session
from caesura.server.text.workspace import MAX_DOCUMENT, OpenDocument

ProgressToken = int | str
CommandResult = dict[str, Any]

WHY = "caesura.why"
UNKNOWN_DOCUMENT = (
    f"Caesura has no text of this document: it is not open here, or longer than {MAX_DOCUMENT:,} characters."
)


class WhyRequest(msgspec.Struct, frozen=True):
    """The argument of `caesura.why`."""

    uri: str
    position: RequestPosition


class Commands:
    """Handles the commands, and knows the fills that run."""

    def __init__(self, server: Server, session: Session) -> None:
        self._server = server
        self._session = session
        self._running: dict[ProgressToken, asyncio.Task[CommandResult]] = {}

    def __repr__(self) -> str:
        return f"<Commands {len(self._running)} running>"

    def register(self, on: Callable[..., None]) -> None:
        options = types.ExecuteCommandOptions(commands=[*TITLES, ACCEPTED, WHY, TAKEN], work_done_progress=True)
        on(types.WORKSPACE_EXECUTE_COMMAND, self.execute, options)
        on(types.WINDOW_WORK_DONE_PROGRESS_CANCEL, self.cancel)

    def execute(self, params: types.ExecuteCommandParams) -> CommandResult | Awaitable[CommandResult] | None:
        if params.command in TITLES:
            return self._fill(params)
        if params.command == WHY:
            return self._why(params)
        if params.command == TAKEN:  # the edit itself comes as any other change
            return None
        if params.command != ACCEPTED:
            return self._failure(f"There is no command {params.command}.")
        for id in params.arguments or ():  # the editor has inserted a completion item
            self._session.panes.accepted(str(id))
        return None

    def cancel(self, params: types.WorkDoneProgressCancelParams) -> None:
        """Cancel the fill whose progress bar the user has cancelled."""
        if task := self._running.get(params.token):
            task.cancel()

    def _why(self, params: types.ExecuteCommandParams) -> CommandResult | Awaitable[CommandResult]:
        """Why there is no suggestion at a place."""
        try:
            place = msgspec.convert((params.arguments or [None])[0], WhyRequest)
        except msgspec.ValidationError as error:
            return {"message": str(error)}
        opened = self._session.workspace.get(place.uri)
        if opened is None:
            return {"message": UNKNOWN_DOCUMENT}
        at = opened.document.offset((place.position.line, place.position.character))
        return self._reason(opened, at)

    async def _reason(self, opened: OpenDocument, at: int) -> CommandResult:
        reason = await self._session.panes.why(opened, at)
        return {"message": reason.sentence} | ({"text": reason.text} if reason.text else {})

    def _fill(self, params: types.ExecuteCommandParams) -> CommandResult | Awaitable[CommandResult]:
        """Read the text now, before later edits, and run the fill."""
        try:
            request = msgspec.convert((params.arguments or [None])[0], FillRequest)
            opened, events = filling.begin(self._session, params.command, request)
        except (msgspec.ValidationError, NoFill) as error:
            return self._failure(str(error))
        return self._run(params, opened, events, preview=request.preview)

    async def _run(
        self, params: types.ExecuteCommandParams, opened: OpenDocument, events: Events, *, preview: bool
    ) -> CommandResult:
        """Run a fill with a progress bar; the user can cancel the bar or the request."""
        bar = ProgressBar(self._server, TITLES[params.command], params.work_done_token)
        work = self._carry_out(TITLES[params.command], opened, events, bar, preview=preview)
        task = self._running[bar.token] = asyncio.create_task(work)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():  # cancelled by $/cancelRequest, which transport.py answers
                raise
            return self._failure("The fill was cancelled.")
        except (EngineError, NoFill) as error:
            return self._failure(str(error))
        finally:
            if self._running.get(bar.token) is task:  # else the editor has used its token again
                del self._running[bar.token]
            bar.end()

    async def _carry_out(
        self, title: str, opened: OpenDocument, events: Events, bar: "ProgressBar", *, preview: bool
    ) -> CommandResult:
        result = await filling.result_of(self._session, opened, events, bar.report)
        document = opened.document
        edit = filling.workspace_edit(self._server.client_capabilities, document, result)
        unfilled = [msgspec.to_builtins(filling.range_of(document, span)) for span in result.unfilled]
        answer: CommandResult = {"applied": False, "id": result.id, "holes": result.holes, "unfilled": unfilled}
        told = result.note
        if unfilled:
            lines = ", ".join(str(where["start"]["line"] + 1) for where in unfilled)
            told = f"The model proposes nothing for the hole in line {lines}; it stays as it is. {told}".rstrip()
        answer |= {"message": told} if told else {}
        answer |= {"level": result.level} if result.level else {}
        if preview:
            return answer | {"edit": edit}
        # Shielded: pygls fails if it gets the answer to a request whose task was cancelled.
        refusal = await asyncio.shield(asyncio.ensure_future(self._apply(title, edit)))
        return answer | ({"applied": True} if refusal is None else self._failure(refusal))

    async def _apply(self, title: str, edit: types.WorkspaceEdit) -> str | None:
        """Apply the edit. Returns a sentence if the editor refused it, else None."""
        workspace = self._server.client_capabilities.workspace
        able = workspace.workspace_edit if workspace else None
        metadata = types.WorkspaceEditMetadata(is_refactoring=True) if able and able.metadata_support else None
        try:
            done = await self._server.workspace_apply_edit_async(
                types.ApplyWorkspaceEditParams(edit, label=f"Caesura: {title}", metadata=metadata)
            )
        except Exception:  # the editor may answer with any error
            return "The editor could not apply the edit; try again."
        return None if done.applied else "The editor did not apply the edit: the text may have changed; try again."

    def _failure(self, message: str) -> CommandResult:
        filling.log(self._server, message)
        return {"applied": False, "message": message}


class ProgressBar:
    """The progress bar of one fill. Without a token of the request, the server creates one, which the editor must
    accept first."""

    def __init__(self, server: Server, title: str, token: ProgressToken | None) -> None:
        self.token: ProgressToken = token if token is not None else job_id()
        self._server = server
        self._title = title
        self._shown = self._over = False
        self._filled = 0
        window = server.client_capabilities.window
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
            await self._server.window_work_done_progress_create_async(types.WorkDoneProgressCreateParams(self.token))
        except Exception:  # the editor refuses the bar; the fill continues without it
            return
        if not self._over:
            self._begin()

    def _begin(self) -> None:
        self._shown = True
        self._send(types.WorkDoneProgressBegin(f"Caesura: {self._title}", cancellable=True, percentage=0))

    def _send(self, value: Any) -> None:
        self._server.progress(types.ProgressParams(self.token, value))
