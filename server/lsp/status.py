"""Report the engine's condition to the editor: progress while the model loads, a status if the editor knows our
notifications or Copilot's, and each failure once in the log. Never a dialog.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from lsprotocol import types

from caesura.characters import shown
from caesura.client.backend import Backend, Condition, State
from caesura.server.lsp.protocol import describe
from caesura.server.lsp.transport import Server

PATIENCE_S = 0.5  # a faster load shows no progress
TITLE = "Caesura"
LOADING = {"connecting": "starting the engine", "loading": "loading the model"}

log = logging.getLogger(__name__)


class StatusReporter:
    """`wanted`: the editor knows our status notifications. `progress`: it draws progress that the server begins. Assign
    `changed` to `Backend.on_change`, and `trouble` to `Panes.on_trouble`."""

    def __init__(self, server: Server, engine: Backend, *, wanted: bool, progress: bool) -> None:
        self._server = server
        self._engine = engine
        self._wanted = wanted
        self._draws_progress = progress
        self._enabled = True
        self._sent: dict[str, Mapping[str, object]] = {}
        self._state: State = "connecting"
        self._told = set[str]()  # sentences in the log since the engine answered or was ready
        self._due = False
        self._loads = 0
        self._loading: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<StatusReporter {self._engine.condition} sent {self._sent}>"

    def changed(self) -> None:
        """The engine's condition may have changed. Changes within one turn of the loop are reported together."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._tell)

    def enable(self, enabled: bool) -> None:
        """Set whether the user's settings turn completions on."""
        self._enabled = enabled
        self.changed()

    def trouble(self, sentence: str) -> None:
        """Log why there are no completions, once until the engine answers: then `sentence` is empty."""
        if not sentence:
            self._told.clear()
        elif sentence not in self._told:
            self._told.add(sentence)
            message = f"{TITLE} gives no completions: {shown(sentence)}"
            self._server.window_log_message(types.LogMessageParams(types.MessageType.Error, message))

    def _tell(self) -> None:
        self._due = False
        condition = self._engine.condition
        self._news.set()
        self._news = asyncio.Event()
        if self._wanted:
            self._notify("didChangeStatus", _copilot(condition, self._enabled))
            self._notify("caesura/status", _ours(condition, self._enabled))
        if condition.state == "ready" != self._state:
            self._told.clear()
        self._state = condition.state
        if condition.state != "ready" and condition.message:
            self.trouble(condition.message)
        if condition.state in LOADING and self._draws_progress and (self._loading is None or self._loading.done()):
            self._loading = asyncio.create_task(self._show_progress())

    def _notify(self, method: str, value: Mapping[str, object]) -> None:
        if self._sent.get(method) != value:
            self._sent[method] = value
            self._server.protocol.notify(method, value)

    async def _show_progress(self) -> None:
        """Show progress from `PATIENCE_S` after the load began until it has ended or failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                return await self._settled()
        self._loads += 1
        token = f"caesura-load-{self._loads}"
        try:
            await self._server.window_work_done_progress_create_async(types.WorkDoneProgressCreateParams(token))
        except Exception as error:  # after any error, show no progress
            log.info("no progress: %s", describe(error))
            return await self._settled()
        if shown := _stage(self._engine.condition):
            self._progress(token, types.WorkDoneProgressBegin(TITLE, message=shown))
            while stage := _stage(self._engine.condition):
                if stage != shown:
                    self._progress(token, types.WorkDoneProgressReport(message=stage))
                shown = stage
                await self._news.wait()
            found = self._engine.condition
            end = f"{found.model} on {found.device}" if found.state == "ready" else "no engine"
            self._progress(token, types.WorkDoneProgressEnd(message=end))

    async def _settled(self) -> None:
        while self._engine.condition.state in LOADING:
            await self._news.wait()

    def _progress(
        self,
        token: str,
        value: types.WorkDoneProgressBegin | types.WorkDoneProgressReport | types.WorkDoneProgressEnd,
    ) -> None:
        self._server.progress(types.ProgressParams(token, value))


def _stage(condition: Condition) -> str:
    """How far the load is; empty if nothing is being loaded."""
    return (condition.progress or LOADING[condition.state]) if condition.state in LOADING else ""


def _copilot(condition: Condition, enabled: bool) -> dict[str, object]:
    if not enabled:
        return {"busy": False, "message": "Completions are off.", "kind": "Inactive"}
    if condition.state == "unavailable":
        return {"busy": False, "message": condition.message, "kind": "Error"}
    loading = LOADING.get(condition.state, "")
    return {"busy": bool(loading) or condition.busy, "message": loading.capitalize(), "kind": "Normal"}


def _ours(condition: Condition, enabled: bool) -> dict[str, object]:
    """`state` is the engine's, or `off`. `busy` is only in Copilot's status: it changes at every key."""
    state = condition.state if enabled else "off"
    return {"state": state, "model": condition.model, "device": condition.device, "message": condition.message}
