"""The process that editors talk to: it owns the lock, the socket, the leases and the worker, and never imports torch.

One thread, one loop: *hear the clients, hear the worker, look at the clock*. Whatever happens to the worker, every job
gets its answer from here.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import zmq

from caesura import model_store, wire
from caesura.engine.supervisor import link
from caesura.engine.supervisor.clients import Front
from caesura.engine.supervisor.clock import Clock
from caesura.engine.supervisor.ledger import PAIRED, Job, Ledger, Places
from caesura.engine.supervisor.observer import LEFT, REFUSED, JobEnd, Observer
from caesura.engine.supervisor.process import UNDEAD_S, WORKER, Child, Patience
from caesura.ipc.keys import own_keys
from caesura.ipc.rendezvous import BUILD, EnginePlace, Holder, place

log = logging.getLogger("caesura.engine")

BURST = 64  # messages read from one side before the other has its turn
TURN_MS = 100  # the longest wait: how late a lease, a deadline or a hang may be noticed
FAILED_EXIT_S = 5.0  # how long an engine that cannot work stays up without clients
TEAM_TROUBLE = "The team's engine cannot be used now; ask its administrator if this lasts."
WINDOW = 512  # latest jobs that the percentiles of Status cover


@dataclass(frozen=True)
class SupervisorSettings:
    """Seconds. `idle_exit_s` counts from the end of the last lease; 0 means never. `listen`: the address for paired
    machines; since they cannot start an engine, one that listens never exits by itself. `policy` is told to all
    clients. `team`: it is a team's door, for its users instead of paired machines."""

    idle_exit_s: float = 600.0
    unload_s: float = 300.0
    lease_s: float = 3.0
    drain_s: float = 2.0
    listen: str = ""
    paired: Places = PAIRED
    policy: wire.Policy = field(default_factory=wire.Policy)
    team: bool = False
    patience: Patience = field(default_factory=Patience)
    observers: Sequence[Observer] = ()

    @staticmethod
    def from_environment() -> "SupervisorSettings":
        """CAESURA_IDLE_EXIT: seconds."""
        text = os.environ.get("CAESURA_IDLE_EXIT", "")
        try:
            return SupervisorSettings(idle_exit_s=max(0.0, float(text))) if text else SupervisorSettings()
        except ValueError:
            log.warning("CAESURA_IDLE_EXIT is not a number of seconds: %r", text)
            return SupervisorSettings()


class AlreadyRunning(Exception):
    """Another process is the engine of this place."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__(f"This engine runs already (process {holder.pid if holder else 'unknown'}).")


def serve(
    model: str, device: str, *, settings: SupervisorSettings | None = None, worker: Sequence[str] = WORKER
) -> None:
    """Be the shared engine until idle or asked to stop. Raises AlreadyRunning, NoPlace, CannotListen,
    paths.DamagedFile or paths.UnsafeFolder."""
    os.umask(0o077)
    model = model_store.resolve(model)
    here = place(model, device)
    lock = here.acquire()
    if lock is None:
        raise AlreadyRunning(here.holder())
    with lock:
        Supervisor(here, model, device, settings or SupervisorSettings.from_environment(), worker).run()


class Supervisor:
    def __init__(
        self, here: EnginePlace, model: str, device: str, settings: SupervisorSettings, worker: Sequence[str]
    ) -> None:
        self._place = here
        self._model = model
        self._settings = settings
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = Front(self._context, here.socket, team=settings.team)
        self._child = Child(self._context, here, model, device, worker, settings.patience)
        self._ledger = Ledger(settings.paired)
        self._timings: deque[wire.Timings] = deque(maxlen=WINDOW)
        self._clock = Clock()
        self._started = self._last_lease = self._last_job = self._clock.now()
        self._done = 0
        self._dropped = 0  # invalid messages
        self._announced = ("loading", "")
        self._stop_asked = False
        self._stop_at: float | None = None  # when a drain ends, whatever is still running
        self._wakeup, self._signals = socket.socketpair()
        self._signals.setblocking(False)

    def __repr__(self) -> str:
        return f"<Supervisor {self._place.stem.name} {self._ledger!r} {self._child!r}>"

    def run(self) -> None:
        self._catch_signals()
        self._child.demand(self._clock.now())
        log.info("engine %s listens at %s", BUILD, self._place.socket)
        try:
            if self._settings.listen:
                self._listen(self._settings.listen)
            while not self._finished(self._clock.now()):
                self._turn()
        finally:
            self._child.stop(UNDEAD_S)  # the next holder of the lock should find the memory free
            self._front.close()
            self._context.term()
            log.info("engine ended: %d jobs done", self._done)

    def _listen(self, address: str) -> None:
        keys, guests = own_keys(), self._front.guests
        self._front.listen(address, keys)
        log.info("%s connect with: caesura pair with %s %s", guests.name, address, keys.public.hex())
        if not guests.now:
            log.info("%s", guests.nobody)

    def _turn(self) -> None:
        self._child.start_if_due(self._clock.now())
        self._wait()
        now = self._clock.now()
        self._hear_clients(now)
        self._hear_worker(now)
        self._bury_worker(now)
        self._look_at_the_clock(now)
        self._forward(now)
        self._announce()
        state = self._child.state if self._stop_at is None else "stopping"
        for observer in self._settings.observers:
            observer.looked(state, self._child.device, self._ledger)
        for peer in self._front.flush(now):
            log.warning("%r does not read its answers and is dropped", peer)
            self._leave(peer)

    def _wait(self) -> None:
        poller = zmq.Poller()
        for source in (*self._front.sockets, self._signals, self._child.socket, self._child.pidfd):
            if source is not None:
                poller.register(source, zmq.POLLIN)
        # Without a pidfd (macOS) the end of the worker wakes nobody: look more often.
        blind = self._child.pid is not None and self._child.pidfd is None
        poller.poll(TURN_MS // 4 if blind else TURN_MS)
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(BURST)  # unread, it would wake the loop for ever

    # Clients

    def _hear_clients(self, now: float) -> None:
        for _ in range(BURST):
            match self._front.receive():
                case None:
                    return
                case (peer, wire.Hello() as hello, _):
                    self._greet(peer, hello, now)
                case (peer, message, frame) if message and self._ledger.hear(peer, now):
                    self._answer(peer, message, frame, now)
                case _:
                    self._dropped += 1

    def _greet(self, peer: bytes, hello: wire.Hello, now: float) -> None:
        if hello.protocol != wire.PROTOCOL:
            sentence = (
                f"The engine speaks protocol {wire.PROTOCOL}, the client {hello.protocol}: restart the older one."
            )
            self._front.send(peer, self._welcome(self._front.user, "failed", sentence))
        elif self._stop_at is not None:
            self._front.send(peer, self._welcome(self._front.user, "failed", "The engine is shutting down."))
        elif not self._ledger.greet(peer, hello.client, now, user=self._front.user):
            sentence = "Too many clients are connected to this engine."
            self._front.send(peer, self._welcome(self._front.user, "failed", sentence))
        else:
            self._child.demand(now)
            self._front.send(peer, self._welcome(self._front.user))

    def _answer(self, peer: bytes, message: wire.ClientMessage, frame: bytes, now: float) -> None:
        match message:
            case wire.Infill():
                self._admit(peer, message, frame, now)
            case wire.Cancel(job):
                self._cancel(peer, job)
            case wire.Ping():
                self._front.send(peer, wire.Pong(len(self._ledger.live())))
            case wire.Query():
                self._front.send(peer, self._status(self._front.user, now))
            case wire.Stop():
                self._drain(now)
            case wire.Bye():
                self._leave(peer)

    def _admit(self, peer: bytes, request: wire.Infill, frame: bytes, now: float) -> None:
        if self._ledger.find(peer, request.job):
            self._dropped += 1  # its first copy will be answered
            return
        self._last_job = now
        self._child.demand(now)
        job = Job(peer, request, frame, now)
        if self._stop_at is not None or self._child.state == "failed":
            self._fail(job, "unavailable", self._trouble(self._front.user) or "The engine is shutting down.")
        elif refusal := self._ledger.admit(peer, request, frame, now):
            self._front.send(peer, refusal)
            self._ended(job, REFUSED, "busy" if isinstance(refusal, wire.Busy) else "suspect")
        else:
            for old in self._ledger.supersede(peer, request):
                self._fail(old, "superseded")

    def _cancel(self, peer: bytes, key: str) -> None:
        job = self._ledger.find(peer, key)
        if job is None:
            return
        if job.forwarded:
            self._child.send(link.CancelJob(peer, key))
        else:
            self._fail(job, "cancelled")

    def _leave(self, peer: bytes) -> None:
        self._front.forget(peer)
        left = [job for job in self._ledger.jobs() if job.peer == peer]
        if self._ledger.leave(peer):
            for job in left:
                self._ended(job, LEFT)
            self._child.send(link.Gone(peer))

    # Worker

    def _forward(self, now: float) -> None:
        if self._child.state != "ready":
            return
        for job in self._ledger.waiting():
            assert job.frame is not None
            user = self._ledger.peers[job.peer].user
            new = link.NewJob(job.peer, max(0.0, job.remaining_ms(now)), job.frame, user, self._model_of(user))
            if not self._child.send(new):
                return  # it waits on, until the worker reads again or its deadline
            job.frame = None

    def _hear_worker(self, now: float) -> None:
        for _ in range(BURST):
            message = self._child.receive()
            match message:
                case None:
                    return
                case link.Answer(peer, frame, refusal):
                    self._relay(peer, frame, refusal)
                case link.Loading():
                    self._child.loads(message, now)
                case link.Ready():
                    self._child.loaded(message, now)
                    self._last_job = now
                case link.LoadFailed():
                    self._child.refused(message, now)
                case link.Upstream():
                    for observer in self._settings.observers:
                        observer.told(message)

    def _relay(self, peer: bytes, frame: bytes, refusal: link.Refusal = "") -> None:
        try:
            head = wire.decode_head(frame)
        except msgspec.DecodeError as error:
            log.error("the worker broke the wire's contract: %s", error)
            self._give_up(peer, frame)
            return
        job = self._ledger.find(peer, head.job)
        if job is None:
            return  # the client has left, or has had its answer
        job.steps = max(job.steps, head.taken)
        if head.type == "busy":
            refusal = "busy"
        if head.type != "locked":
            self._ledger.settle(peer, head.job)
            self._ended(job, REFUSED if refusal else head.code or head.type, refusal, head)
        if head.timings:
            self._done += 1
            self._timings.append(head.timings)
        self._front.relay(peer, head.job, frame)

    def _give_up(self, peer: bytes, frame: bytes) -> None:
        """Fail the job that an unreadable frame was about, or all jobs of this client if that is unknown."""
        job, why = wire.job_of(frame), "The engine's answer could not be read; see its log."
        for found in self._ledger.live():
            if found.peer == peer and job in (found.request.job, None):
                self._child.send(link.CancelJob(peer, found.request.job))
                self._fail(found, "engine_lost", why)

    def _bury_worker(self, now: float) -> None:
        if self._child.death(now, live=bool(self._ledger.live()), overdue=self._ledger.overdue(now)):
            for job in self._ledger.crash(now):
                self._fail(job, "engine_lost", "The engine stopped in the middle of the job.")

    def _fail(self, job: Job, code: wire.FailureCode, why: str = "") -> None:
        self._ledger.settle(job.peer, job.request.job)
        self._front.send(job.peer, wire.Failed(job.request.job, code, why[:256]))
        self._ended(job, code)

    def _ended(self, job: Job, outcome: str, refusal: link.Refusal = "", head: wire.EventHead | None = None) -> None:
        for observer in self._settings.observers:
            observer.ended(JobEnd(job, self._clock.now(), outcome, refusal, head))

    # The clock

    def _look_at_the_clock(self, now: float) -> None:
        if self._stop_asked:
            self._drain(now)
        for peer in self._ledger.silent(now, self._settings.lease_s):
            log.info("%s has gone silent", self._ledger.peers[peer].client)
            self._leave(peer)
        if self._ledger.peers:
            self._last_lease = now
        for job in self._ledger.waiting():
            if self._child.state == "failed":
                self._fail(job, "unavailable", self._trouble(self._ledger.peers[job.peer].user))
            elif job.remaining_ms(now) <= 0:
                self._fail(job, "expired", "The model was not ready in time.")
        if self._ledger.live():
            self._last_job = now
        elif self._child.state == "ready" and now - self._last_job > self._settings.unload_s:
            log.info("no job for a while: the model is unloaded")
            self._child.stop()

    def _drain(self, now: float) -> None:
        """Take no more jobs, let the running ones finish, then exit."""
        if self._stop_at is None:
            self._stop_at = now + self._settings.drain_s
            for name, peer in self._ledger.peers.items():
                self._front.send(name, self._welcome(peer.user, "failed", "The engine was stopped."))

    def _finished(self, now: float) -> bool:
        if self._stop_at is None:
            if self._settings.listen:
                return False
            unused = now - self._last_lease
            useless = self._child.state == "failed" and not self._child.undead and unused > FAILED_EXIT_S
            return useless or 0 < self._settings.idle_exit_s < unused
        left = list(self._ledger.jobs())
        if left and now < self._stop_at:
            return False
        for job in left:
            self._fail(job, "unavailable", "The engine was stopped.")
        return True

    def _catch_signals(self) -> None:
        """Drain at SIGTERM or Ctrl-C; exit at once at a second one, and take the worker along."""
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)

        def asked(number: int, frame: object) -> None:
            if self._stop_asked:
                os._exit(128 + number)
            self._stop_asked = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, asked)

    # News for clients

    def _announce(self) -> None:
        """Tell every client when the engine becomes ready or fails."""
        welcome = self._welcome("")
        news = (welcome.state, welcome.message)
        if news != self._announced and self._stop_at is None:
            self._announced = news
            for name, peer in self._ledger.peers.items():
                self._front.send(name, self._welcome(peer.user))

    def _model_of(self, user: str) -> str:
        return self._front.guests.model(user) or self._model

    def _welcome(
        self, user: str, state: Literal["loading", "ready", "failed"] | None = None, message: str = ""
    ) -> wire.Welcome:
        child = self._child
        return wire.Welcome(
            protocol=wire.PROTOCOL,
            build=BUILD,
            model=self._named(user)[-256:],
            device=child.device,
            state=state or ("ready" if child.state == "idle" else child.state),  # idle: the next job wakes it
            message=(message or self._news(user))[:256],
            policy=self._settings.policy,
        )

    def _status(self, user: str, now: float) -> wire.Status:
        child, model = self._child, self._named(user)
        status = wire.Status(
            state=child.state,
            build=BUILD,
            model=(f"{model} with drafts of {drafting}" if (drafting := model_store.drafting()) else model)[-256:],
            device=child.device,
            pid=os.getpid(),
            worker_pid=child.pid,
            uptime_s=now - self._started,
            peers=len(self._ledger.peers),
            clients=tuple(sorted(peer.client for peer in self._ledger.peers.values()))[:256],
            live=len(self._ledger.live()),
            queued=len(self._ledger.waiting()),
            done=self._done,
            dropped=self._dropped,
            restarts=child.restarts,
            memory_mb=_memory_mb(os.getpid()) or 0.0,
            worker_memory_mb=_memory_mb(child.pid) if child.pid else None,
            p50_ms=_percentile(self._timings, 0.50),
            p95_ms=_percentile(self._timings, 0.95),
            message=self._news(user)[:256],
        )
        return self._of_a_user(status, user) if self._is_of_a_team(user) else status

    def _of_a_user(self, status: wire.Status, user: str) -> wire.Status:
        """The part of the status that a team's user may see: the figures of all, the clients of their own."""
        own = tuple(sorted(peer.client for peer in self._ledger.peers.values() if peer.user == user))
        return msgspec.structs.replace(
            status, clients=own, pid=0, worker_pid=None, memory_mb=0.0, worker_memory_mb=None
        )

    def _is_of_a_team(self, user: str) -> bool:
        return bool(user) and self._settings.team

    def _named(self, user: str) -> str:
        """The model as `user` sees it: a team's users see no path of another machine."""
        model = self._model_of(user)
        return Path(model).name if self._is_of_a_team(user) else model

    def _news(self, user: str) -> str:
        return self._child.progress if self._child.state == "loading" else self._trouble(user)

    def _trouble(self, user: str) -> str:
        """The reason why the worker cannot work; empty if it can. It may name processes and paths."""
        return TEAM_TROUBLE if self._child.message and self._is_of_a_team(user) else self._child.message


def _percentile(timings: Iterable[wire.Timings], share: float) -> dict[str, float]:
    found = {}
    for stage in wire.Timings.__struct_fields__:
        values = sorted(value for t in timings if (value := getattr(t, stage)) is not None)
        if values:
            found[stage.removesuffix("_ms")] = values[int(share * (len(values) - 1))]
    return found


def _memory_mb(pid: int) -> float | None:
    """The proportional set on Linux: what is resident, each page divided by the processes that share it, so that the
    sum of processes is what they take together. Elsewhere the resident set."""
    if sys.platform != "linux":
        import psutil

        try:
            return float(psutil.Process(pid).memory_info().rss / 2**20)
        except psutil.Error:
            return None
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), None)
