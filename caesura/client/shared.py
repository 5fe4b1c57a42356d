"""The client of the shared engine: finds or starts it, sends jobs and receives their events. No torch, no pygls.

One task reads the connection and passes each event to its job. A broken connection is replaced; its jobs fail at once,
and the caller may ask again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq.asyncio

from caesura import model_store, paths, wire
from caesura.client import launch
from caesura.client.backend import Condition, EngineBusy, EngineFailed, EngineUnavailable, FinishedJob, State
from caesura.client.connection import Connection, Lost
from caesura.client.paired import reach
from caesura.ipc import endpoints, rendezvous
from caesura.ipc.endpoints import Endpoint
from caesura.ipc.pairing import Remote

HELLO_S = 1.0
GRACE_S = 5.0  # time after a job's deadline until its engine counts as lost
RETRY_S = 0.02
SETTLE_S = 0.25  # jobs that were made this long before the policy changed, or less, may break it
PAUSE_S = 10.0  # after giving up, so that not every key starts processes in vain

JobEvent = wire.Locked | wire.Done | wire.Failed | wire.Busy


class Engine:
    """A Backend. `command` replaces the command line that starts the engine; `place` is where to look for it; `remote`
    is a paired engine to use instead of this machine's, with the model that runs there.
    """

    def __init__(
        self,
        *,
        client: str,
        model: str = model_store.DEFAULT,
        device: str = "auto",
        spawn: bool = True,
        command: Sequence[str] | None = None,
        place: rendezvous.EnginePlace | None = None,
        remote: Remote | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._device = device
        self._command = command
        self._spawn = spawn
        self._place = place
        self._remote = remote
        self._context = zmq.asyncio.Context()
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._welcome: wire.Welcome | None = None
        self._policy = wire.Policy()
        self._ruled = float("-inf")  # when the policy last changed
        self._trouble = ""  # why there is no engine; empty while one may still come
        self._changed = asyncio.Event()  # replaced at every change of the fields above
        self._asked = asyncio.Event()
        self._jobs: dict[str, _Mailbox] = {}
        self._status: asyncio.Future[wire.Status] | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.on_job: Callable[[FinishedJob], None] = lambda job: None

    def __repr__(self) -> str:
        return f"<Engine {self.state} {self._model} {len(self._jobs)} jobs {self._trouble!r}>"

    @property
    def state(self) -> State:
        if self._trouble:
            return "unavailable"
        if self._connection is None or self._welcome is None:
            return "connecting"
        return "ready" if self._welcome.state == "ready" else "loading"

    @property
    def condition(self) -> Condition:
        model, device = (self._welcome.model, self._welcome.device) if self._welcome else ("", "")
        device = f"{device} of {self._remote.name}" if device and self._remote else device
        progress = self._welcome.message if self._welcome and self._welcome.state == "loading" else ""
        busy = bool(self._jobs)
        return Condition(self.state, model, device, self._trouble, busy, policy=self._policy, progress=progress)

    async def start(self) -> None:
        """Connect in the background, and start the engine if necessary."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def ready(self, timeout_s: float) -> wire.Welcome:
        """Wait until the model is loaded."""
        self._asked.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self.state != "ready":
                    await self._change()
        except TimeoutError:
            raise EngineUnavailable(f"The engine was not ready in {timeout_s:g} seconds.") from None
        assert self._welcome is not None
        return self._welcome

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        """The events of a job, ending with a Done. Raises EngineFailed, EngineBusy or EngineUnavailable.

        Leaving early cancels the job, at once inside `contextlib.aclosing`. A slow reader gets only the newest event.
        """
        asked = time.monotonic()
        deadline = asked + job.deadline_ms / 1000
        connection = await self._connected(deadline)
        if self._ruled > asked - SETTLE_S:
            raise EngineUnavailable("The engine's administrator has new rules, which hold from now on; ask again.")
        left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
        frame = _checked(msgspec.structs.replace(job, deadline_ms=left_ms))
        mailbox = self._jobs[job.job] = _Mailbox()
        began = time.monotonic()
        self.on_change()
        try:
            if not connection.send(frame):
                raise EngineBusy("The engine does not read its messages.")
            while True:
                event = await mailbox.get(deadline + GRACE_S)
                match event:
                    case wire.Locked():
                        yield event
                    case wire.Done():
                        yield event
                        return
                    case wire.Busy():
                        raise EngineBusy("The engine has too much to do.")
                    case wire.Failed(_, "unavailable", message):
                        raise EngineUnavailable(message)
                    case wire.Failed(_, code, message):
                        raise EngineFailed(code, message)
        finally:
            del self._jobs[job.job]
            if not mailbox.final:
                connection.send(wire.encode(wire.Cancel(job.job)))
            self.on_job(_record(job, mailbox, (time.monotonic() - began) * 1000))
            self.on_change()

    async def status(self) -> wire.Status:
        connection = await self._connected(time.monotonic() + HELLO_S * launch.HELLOS)
        if self._status is None:
            self._status = asyncio.get_running_loop().create_future()
            connection.send(wire.encode(wire.Query()))
        try:
            async with asyncio.timeout(HELLO_S):
                return await asyncio.shield(self._status)
        except TimeoutError:
            self._status = None
            raise EngineUnavailable("The engine did not answer.") from None

    async def stop(self) -> None:
        """Ask the engine, also if others use it, to finish and exit, and wait for it."""
        connection = await self._connected(time.monotonic() + HELLO_S * launch.HELLOS)
        connection.send(wire.encode(wire.Stop()))
        while self._connection is connection:
            await self._changed.wait()

    async def close(self) -> None:
        self.on_change = lambda: None  # our own end is not reported
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._set(None, "This client was closed.")
        self._context.destroy(linger=100)

    # The task that keeps a connection

    async def _run(self) -> None:
        while True:
            try:
                connection = await self._connect()
            except (launch.GaveUp, rendezvous.NoPlace, model_store.NoModel, paths.UnsafeFolder, OSError) as error:
                self._set(None, paths.reason(error))
                await asyncio.sleep(PAUSE_S)
            else:
                await self._converse(connection)
            if self._trouble:
                self._asked.clear()
                await self._asked.wait()
                self._set(None, "")

    async def _connect(self) -> Connection:
        if self._remote:
            return await reach(self._context, self._remote, self._client)
        # Resolved at each connection: `default` may mean another model by now.
        model = self._model if self._place else model_store.resolve(self._model)
        place = self._place or rendezvous.place(model, self._device)
        command = self._command or launch.command(model, self._device)
        launcher = launch.Launcher(place, command if self._spawn else None)
        while True:
            holder = await launcher.find()
            try:
                async with asyncio.timeout(HELLO_S):
                    endpoint = await _opened(place.socket)
                return await Connection.open(self._context, endpoint, self._client, HELLO_S, pid=holder.pid)
            except TimeoutError:
                await launcher.unanswered(holder, HELLO_S)
            except zmq.ZMQError as error:
                raise launch.GaveUp(f"The engine cannot be reached: {error}.") from error

    async def _converse(self, connection: Connection) -> None:
        self._hear(connection.welcome)
        self._set(connection, self._trouble)
        try:
            async for message in connection.messages():
                self._hear(message)
        except Lost:
            pass
        finally:
            connection.close()
            for job, mailbox in self._jobs.items():
                mailbox.put(wire.Failed(job, "engine_lost", "The connection to the engine was lost."))
            # An engine that gave a reason for its end is started again only at the next job.
            self._set(None, self._trouble)

    def _hear(self, message: wire.EngineMessage) -> None:
        match message:
            case wire.Welcome():
                self._welcome = message
                if message.policy != self._policy:
                    self._policy, self._ruled = message.policy, time.monotonic()
                self._set(self._connection, message.message if message.state == "failed" else "")
            case wire.Status():
                if self._status and not self._status.done():
                    self._status.set_result(message)
                self._status = None
            case wire.Locked() | wire.Done() | wire.Failed() | wire.Busy():
                if mailbox := self._jobs.get(message.job):
                    mailbox.put(message)

    def _set(self, connection: Connection | None, trouble: str) -> None:
        self._connection, self._trouble = connection, trouble
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()

    async def _change(self) -> None:
        """Wait for a change. Raises EngineUnavailable if there is no engine to wait for."""
        if self._trouble:
            raise EngineUnavailable(self._trouble)
        await self._changed.wait()

    async def _connected(self, deadline: float) -> Connection:
        """The connection. An engine that cannot use its model has one too, and refuses each job itself."""
        self._asked.set()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                while (found := self._connection) is None or found.stale:
                    await self._change()
        except TimeoutError:
            raise EngineUnavailable("The engine is still starting.") from None
        return found


async def _opened(path: Path) -> Endpoint:
    """The engine's endpoint, once it exists."""
    while True:
        with suppress(FileNotFoundError, msgspec.DecodeError):
            return endpoints.at(path)
        await asyncio.sleep(RETRY_S)


class _Mailbox:
    """The newest event of a job, since each replaces the one before."""

    def __init__(self) -> None:
        self.final = False
        self.newest: JobEvent | None = None
        self.steps = 0
        self._arrived = asyncio.Event()

    def put(self, event: JobEvent) -> None:
        if not self.final:
            self.final = not isinstance(event, wire.Locked)
            self.newest = event
            self.steps = event.step if isinstance(event, wire.Locked) else self.steps
            self._arrived.set()

    async def get(self, deadline: float) -> JobEvent:
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._arrived.wait()
        except TimeoutError:
            raise EngineFailed("engine_lost", "The engine did not answer in time.") from None
        assert self.newest is not None
        self._arrived.clear()
        return self.newest


def _record(job: wire.Infill, mailbox: _Mailbox, total_ms: float) -> FinishedJob:
    end, steps, ms = "cancelled", mailbox.steps, {"total": total_ms}
    match mailbox.newest:
        case wire.Done(steps=steps, timings=timings):
            stages = msgspec.structs.asdict(timings)
            end, ms = "done", {name.removesuffix("_ms"): stages[name] for name in stages if stages[name]} | ms
        case wire.Failed(code=code):
            end = code
        case wire.Busy():
            end = "busy"
    return FinishedJob(job.job, end, job.priority, steps, ms)


def _checked(job: wire.Infill) -> bytes:
    """The frame of a job. Raises EngineFailed, with the reason, if the engine would refuse it."""
    try:
        frame = wire.encode(job)
        wire.decode_client(frame)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise EngineFailed("invalid", f"This job breaks the engine's limits: {error}.") from error
    if len(frame) > wire.MAX_FRAME:
        raise EngineFailed("invalid", f"This job is larger than {wire.MAX_FRAME >> 20} MiB; shorten its context.")
    return frame
