"""Jobs, and which of them run in the next step (`in_turn`, then `batch`): pure state. Time is an argument, and
worker.py does the I/O.

`take` and `step` return events as (peer, message). One live job per (peer, document, kind): the newest wins.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from caesura import wire
from caesura.engine import methods
from caesura.engine.cache import KV
from caesura.engine.canvas.layout import SLOTS, Layout, lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.faults import Faults, short_of_memory
from caesura.engine.methods import Begin, Filling
from caesura.engine.model import Model
from caesura.engine.samplers import names as samplers

Event = tuple[bytes, wire.EngineMessage]

LIVE = 8  # jobs that may run together in one step
SHARE = 128  # rows of a step that each of several users has: more than a job takes while somebody types
LEAST_SLOTS = 1  # the same for a model without a canvas: a place for the hole; a grammar's shortest fill may take more

PRIORITY = {"invoked": 0, "automatic": 1, "speculative": 2}


@dataclass(eq=False)
class Running:
    """A job in the engine, waiting or running. Times are in seconds of the caller's clock."""

    peer: bytes
    user: str  # who may have several peers; empty for this machine's own
    job: wire.Infill
    order: int
    arrived: float
    layout: Layout | None = None
    kv: KV | None = None
    filling: Filling | None = None
    steps: int = 0
    before: int = 0  # of them, those of the job that this one continues, which has reported them
    seq: int = 0
    sent: tuple[wire.Fill, ...] | None = None
    saved: int = 0  # rows of its user's share since its last step
    started: float | None = None
    prefill_s: float = 0.0
    denoise_s: float = 0.0
    first_lock: float | None = None

    @property
    def deadline(self) -> float:
        return self.arrived + self.job.deadline_ms / 1000

    @property
    def taken(self) -> int:
        """Steps of this job, without those of the jobs that it continues."""
        return self.steps - self.before

    @property
    def rows(self) -> int:
        """Rows that it takes in a step. A context that is being read takes a share."""
        return SHARE if self.filling is None else self.filling.rows

    def __repr__(self) -> str:
        return f"#{self.job.job} step {self.steps}"


@dataclass
class Room:
    """The context that one step may prefill, so that it stays short: one chunk of a long context, and `fresh` rows of
    contexts that fit into one forward."""

    fresh: int
    prefill: bool = True


class Scheduler:
    """The jobs of all peers on one model."""

    def __init__(
        self, model: Model, on_fault: Callable[[Exception], None] = lambda error: None, *, live: int = LIVE
    ) -> None:
        self.model = model
        self._on_fault = on_fault  # reports our own bugs; each costs only the job that met it
        self.vocabulary = Vocabulary(model)
        self.cache = model.cache()
        self.jobs: list[Running] = []  # by arrival
        self.faults = Faults(live)
        self._peers: set[bytes] = set()  # connected peers that have sent a job
        self._orders = itertools.count()
        self._methods: dict[str, Begin] = {}  # prepared methods by name
        self._method(model.spec.method)  # prepare it before a job waits for it

    def __repr__(self) -> str:
        return f"<Scheduler {len(self.jobs)} live {self.jobs}>"

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float, user: str = "") -> list[Event]:
        """A new job, superseding the peer's older one of the same document and kind; or a cancel."""
        if isinstance(message, wire.Cancel):
            found = [live for live in self.jobs if live.peer == peer and live.job.job == message.job]
            return self._end(found, "cancelled", "The job was cancelled.")
        key = (peer, message.document, message.kind)
        older = [live for live in self.jobs if (live.peer, live.job.document, live.job.kind) == key]
        for live in older:
            if _same_work(live.job, message):
                return self._renew(live, message, now)
        events = self._end(older, "superseded", "A newer job took its place.")
        problem = self._problem(message)
        if problem:
            return [*events, (peer, wire.Failed(job=message.job, code="invalid", message=problem[:256]))]
        self._peers.add(peer)
        self.cache.serve(len(self._peers))
        # A key goes to the end of the queue. So under overload users who pause are answered, whose jobs nothing
        # replaces. A context that is being read keeps its place: otherwise others' contexts would be read first.
        reading = [live.order for live in older if live.kv is not None and live.filling is None]
        order = min(reading, default=next(self._orders))
        self.jobs.append(Running(peer, user, message, order, now))
        return events

    def _renew(self, live: Running, job: wire.Infill, now: float) -> list[Event]:
        """Continue a job as `job`, which asks for the same work with another priority or deadline."""
        ended = wire.Failed(live.job.job, "superseded", "A newer job continues it.", live.taken)
        live.job, live.arrived = job, now
        live.before, live.seq, live.sent = live.steps, 0, None
        live.started = None if live.started is None else now
        live.prefill_s, live.denoise_s, live.first_lock = 0.0, 0.0, None
        return [(live.peer, ended)]

    def _problem(self, job: wire.Infill) -> str:
        """Why the job cannot be taken, in one sentence, or an empty text."""
        holes = [s for s in job.segments if isinstance(s, wire.Hole)]
        if not holes or len(holes) > wire.MAX_HOLES:
            return f"A job has 1 to {wire.MAX_HOLES} holes; this one has {len(holes)}."
        if job.draft is not None and len(job.draft) != len(holes):
            return f"The job has {len(holes)} holes and {len(job.draft)} drafts; there must be one for each."
        if job.method is None and job.sampler in samplers() and self.model.spec.noise is None:
            known = [name for name in methods.names() if not methods.refusal(name, self.model)]
            return f"The model {self.model.name} has no canvas; name {' or '.join(known)}, or no sampler."
        if job.sampler not in (None, *methods.names(), *samplers()):
            known = [*methods.names(), *samplers()]
            return f"There is no sampler named {job.sampler!r}; there are {', '.join(known)}."
        return methods.refusal(methods.chosen(job, self.model)[0], self.model)

    def drop(self, peer: bytes) -> None:
        """Free the canvases of a peer that is gone; there is nobody to tell."""
        self._peers.discard(peer)
        self.cache.serve(len(self._peers))
        self._end([live for live in self.jobs if live.peer == peer], "cancelled", "")

    def expire(self, now: float) -> list[Event]:
        """Answer the jobs whose deadline has passed: with the best canvas so far, or Failed if none was started."""
        late = [live for live in self.jobs if now >= live.deadline]
        unstarted = [live for live in late if live.filling is None]
        events = self._end(unstarted, "expired", "The deadline passed before the job could start.")
        return events + [self._finish(live, now, "deadline") for live in late if live.filling is not None]

    def step(self, clock: Callable[[], float]) -> list[Event]:
        """Prefill new contexts, advance the jobs whose turn it is by one step, and return what became known. Raises
        faults.Broken.

        Speculative jobs wait while there is any other job."""
        events = self.expire(clock())
        wanted = [live for live in self.jobs if live.job.priority != "speculative"] or self.jobs
        chosen, room, short = in_shares(in_turn(wanted))[: self.faults.live], Room(self.model.spec.chunk), False
        for live in chosen:
            if live.kv is None and self.cache.full:
                events += self._give_way(live)
            if live not in self.jobs or (live.kv is None and self.cache.full):
                continue  # it waits for another job's memory
            try:
                self._prepare(live, clock, room)
            except wire.Impossible as error:
                events += self._end([live], "invalid", str(error)[:256])
            except Exception as error:  # one job's text must not bring down the others' canvases
                if self.model.machine.lost(error):
                    raise
                self._on_fault(error)
                short = short_of_memory(error)
                if not short:
                    events += self._end([live], "invalid", "The engine could not read this job; see its log.")
            if short:  # outside the handler: its error keeps the memory of the step alive
                return events + self._make_room([live], len(chosen), clock())
        ready = batch([live for live in chosen if live.filling is not None and live in self.jobs], self.model.spec.rows)
        if ready:
            began = clock()
            try:
                methods.advance(self.model, [live.filling for live in ready if live.filling is not None])
            except Exception as error:
                if not short_of_memory(error):
                    raise
                self._on_fault(error)
                short = True
            if short:
                return events + self._make_room(ready, len(chosen), clock())
            spoilt = [live for live in ready if live.filling is not None and not live.filling.finite]
            if spoilt:
                message = "The model's answer was no numbers."
                self.faults.count(message, clock())
                events += self._spoil(spoilt, message)
                ready = [live for live in ready if live not in spoilt]
            self.faults.stepped(len(chosen))
            spent = clock() - began
            for live in ready:
                live.denoise_s += spent
                live.steps += 1
                live.saved = 0
        now = clock()
        for live in ready:
            events += self._report(live, now)
        return events

    def _give_way(self, live: Running) -> list[Event]:
        """Cancel a job of lower priority to free the memory of its context."""
        least = PRIORITY[live.job.priority]
        lower = [other for other in self.jobs if other.kv is not None and PRIORITY[other.job.priority] > least]
        return self._end(lower[-1:], "cancelled", "The job gave way to one that somebody waits for.")

    # Faults

    def _make_room(self, lives: Sequence[Running], ran: int, now: float) -> list[Event]:
        """After a step of `ran` jobs has run out of memory: end the jobs that needed it, drop all kept contexts. Raises
        Broken."""
        self.cache.clear()
        self.faults.out_of_memory(ran, now)
        events = self._spoil(lives, "The engine ran out of memory.")
        self.model.machine.give_back()
        return events

    def _spoil(self, lives: Sequence[Running], message: str) -> list[Event]:
        """End jobs whose contexts can no longer be trusted."""
        for live in lives:
            if live.kv is not None:
                self.cache.discard(live.kv)
                live.kv = None
        return self._end(lives, "engine_lost", message)

    # A job's way

    def _prepare(self, live: Running, clock: Callable[[], float], room: Room) -> None:
        """Lay out the canvas and lease a KV; then prefill a chunk, or begin to fill if the first forward can read the
        rest of the context too. If the step has no `room` for that, the job waits."""
        if live.filling is not None:
            return
        began = clock()
        if live.layout is None or live.kv is None:
            slots = SLOTS if self.model.spec.noise is not None else LEAST_SLOTS
            live.layout = lay(self.model, self.vocabulary, live.job, slots)
            live.kv = self.cache.lease(live.layout.context)
        missing, chunk = live.layout.context[live.kv.length :], self.model.spec.chunk
        if len(missing) <= room.fresh:
            room.fresh -= len(missing)
            self._begin(live, missing)
        elif len(missing) > chunk and room.prefill:
            room.prefill = False
            self.model.prefill(missing[:chunk], live.kv)
        else:
            return
        if live.started is None:
            live.started = began
        live.prefill_s += clock() - began

    def _begin(self, live: Running, fresh: Sequence[int]) -> None:
        """Begin to fill; `fresh` is context that the first forward takes along."""
        assert live.layout is not None
        assert live.kv is not None
        name, sampler = methods.chosen(live.job, self.model)
        live.filling = self._method(name)(live.job, live.layout, live.kv, fresh, sampler)

    def _method(self, name: str) -> Begin:
        if name not in self._methods:
            self._methods[name] = methods.prepare(name, self.model, self.vocabulary)
        return self._methods[name]

    def _report(self, live: Running, now: float) -> list[Event]:
        """The events to send after a step."""
        filling = live.filling
        assert filling is not None
        if filling.finished:
            return [self._finish(live, now, filling.stop(live.steps))]
        fills = filling.fills()
        if fills == live.sent:
            return []
        if live.first_lock is None and any(f.locked for f in fills):
            live.first_lock = now - live.arrived
        live.sent, live.seq = fills, live.seq + 1
        event = wire.Locked(job=live.job.job, seq=live.seq - 1, holes=fills, step=live.taken, of=filling.of)
        return [(live.peer, event)]

    def _finish(self, live: Running, now: float, stop: wire.StopReason) -> Event:
        assert live.filling is not None
        fills = live.filling.fills(final=True)
        if live.first_lock is None:
            live.first_lock = now - live.arrived
        timings = wire.Timings(
            queue_ms=milliseconds((live.started or now) - live.arrived),
            prefill_ms=milliseconds(live.prefill_s),
            denoise_ms=milliseconds(live.denoise_s),
            first_lock_ms=milliseconds(live.first_lock),
            total_ms=milliseconds(now - live.arrived),
        )
        done = wire.Done(
            job=live.job.job,
            seq=live.seq,
            holes=fills,
            alternatives=live.filling.alternatives(fills),
            steps=live.taken,
            tokens=live.filling.tokens(),
            timings=timings,
            stop=stop,
            level=level(live),
            approximate=live.filling.approximate,
        )
        self._free([live])
        return live.peer, done

    def _end(self, lives: Iterable[Running], code: str, message: str) -> list[Event]:
        """Free jobs without an answer."""
        lives = list(lives)
        self._free(lives)
        return [
            (live.peer, wire.Failed(live.job.job, code, message, live.taken))  # type: ignore[arg-type]
            for live in lives
        ]

    def _free(self, lives: Iterable[Running]) -> None:
        for live in lives:
            self.jobs.remove(live)
            if live.kv is not None:
                self.cache.give(live.kv)


def _same_work(one: wire.Infill, other: wire.Infill) -> bool:
    """True if the jobs differ at most in their names, priorities and deadlines."""
    return msgspec.structs.replace(one, job=other.job, priority=other.priority, deadline_ms=other.deadline_ms) == other


def in_turn(lives: Sequence[Running]) -> list[Running]:
    """Sort by priority; then the first job of each user before any user's second, and of this machine's own user the
    first of each peer; then by arrival."""
    ahead = Counter[bytes | str]()
    turns = []
    for live in sorted(lives, key=lambda live: (PRIORITY[live.job.priority], live.order)):
        owner = live.user or live.peer
        turns.append((PRIORITY[live.job.priority], ahead[owner], live.order, live))
        ahead[owner] += 1
    return [live for *_, live in sorted(turns)]


def in_shares(lives: Sequence[Running]) -> list[Running]:
    """Choose jobs, in their order, so that nobody's many or large ones delay another user: each user has a SHARE of a
    step, for which its jobs save in turn until they have their rows. All jobs of a lone user run."""
    left = dict.fromkeys((live.user for live in lives), SHARE)
    if len(left) < 2:
        return list(lives)
    for live in lives:
        given = max(0, min(live.rows - live.saved, left[live.user]))
        live.saved += given
        left[live.user] -= given
    return [live for live in lives if live.saved >= live.rows] or in_shares(lives)


def batch(lives: Sequence[Running], most: int) -> list[Running]:
    """Choose jobs whose canvases have at most that many rows together; always the first one."""
    chosen, rows = list[Running](), 0
    for live in lives:
        if not chosen or rows + live.rows <= most:
            chosen.append(live)
            rows += live.rows
    return chosen


def level(live: Running) -> Literal["", "valid", "checked"]:
    """How far the fills of holes with a grammar are known to be valid."""
    assert live.layout is not None
    grammars = [hole.grammar for hole in live.layout.canvas.holes if hole.grammar is not None]
    if not grammars:
        return ""
    return "valid" if all(grammar.exact for grammar in grammars) else "checked"


def milliseconds(seconds: float) -> float:
    return round(max(0.0, min(seconds * 1000, 600_000.0)), 3)
