"""Live canvases and who runs in the next step: pure state. Time is an argument, I/O is worker.py's.

`take` and `step` return events as (peer, message). One live job per (peer, document, kind): the newest wins.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

import msgspec
import torch

from caesura import wire
from caesura.engine import denoise
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import MAX_ROWS, Canvas
from caesura.engine.canvas.layout import Layout, lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.faults import Faults, short_of_memory
from caesura.engine.methods.uniform import race
from caesura.engine.methods.uniform.graphs import Graphs
from caesura.engine.methods.verify.lookup import Repeats, lookup, names
from caesura.engine.methods.verify.search import LEFT_TO_RIGHT, VERIFY, WIDTH, Node, Search, Source, passes
from caesura.engine.models import Model, Replayable
from caesura.engine.noise import Uniform
from caesura.engine.samplers import Sampler, entropy_bound
from caesura.engine.samplers import load as load_sampler
from caesura.engine.samplers import names as samplers

Event = tuple[bytes, wire.EngineMessage]

LIVE = 8  # canvases of one step
SLOTS = 16  # open slots of a hole at the start; a canvas that does not end grows
LEAST_SLOTS = 1  # where no canvas is denoised: a place for the hole, or its grammar's shortest fill
STEPS = 48
LEAST_STEPS = 8  # of a canvas of uniform noise; a larger one gets one for every two slots

SEARCHES = (VERIFY, LEFT_TO_RIGHT)

PRIORITY = {"invoked": 0, "automatic": 1, "speculative": 2}


@dataclass(eq=False)
class Live:
    """A job on its way through the engine. Times are in seconds of the caller's clock."""

    peer: bytes
    job: wire.Infill
    order: int
    arrived: float
    layout: Layout | None = None
    kv: KV | None = None
    works: list[denoise.Denoising] = field(default_factory=list)  # the canvas, or one of each length, best first
    of: int = 0  # steps at most
    hole: int = 0  # the one being searched
    done: list[wire.Fill] = field(default_factory=list)  # finished holes of a search
    alternatives: list[list[wire.Fill]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    steps: int = 0
    seq: int = 0
    sent: tuple[wire.Fill, ...] | None = None
    started: float | None = None
    prefill_s: float = 0.0
    denoise_s: float = 0.0
    first_lock: float | None = None

    @property
    def work(self) -> denoise.Denoising | None:
        """The canvas that is shown."""
        return self.works[0] if self.works else None

    @property
    def deadline(self) -> float:
        return self.arrived + self.job.deadline_ms / 1000

    def __repr__(self) -> str:
        return f"#{self.job.job} step {self.steps}"


@dataclass
class Room:
    """What a step may read of context, so that it stays short whoever waits: one chunk of a context that takes several,
    and `fresh` rows of those that take no more than one forward."""

    fresh: int
    prefill: bool = True


class Scheduler:
    """Canvases of all peers over one model."""

    def __init__(
        self, model: Model, on_fault: Callable[[Exception], None] = lambda error: None, *, live: int = LIVE
    ) -> None:
        self.model = model
        self._on_fault = on_fault  # told of our own bugs, which cost only the job that met them
        self.vocabulary = Vocabulary(model)
        self.cache = model.cache()
        self.jobs: list[Live] = []  # by arrival
        self.faults = Faults(live)
        self._peers: set[bytes] = set()  # that have asked and are still there
        self._orders = itertools.count()
        self._sampler: Sampler = entropy_bound.select
        self._replay: denoise.Replay | None = None
        if isinstance(model.noise, Uniform):
            schedule = model.noise.schedule
            self._sampler = partial(entropy_bound.select, bound=schedule.entropy_bound)
            if model.device.startswith("cuda"):
                graphs = Graphs(cast(Replayable, model), schedule, self._sampler, self.vocabulary)
                graphs.rehearse()
                self._replay = graphs.step

    def __repr__(self) -> str:
        return f"<Scheduler {len(self.jobs)} live {self.jobs}>"

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def take(self, peer: bytes, message: wire.Infill | wire.Cancel, now: float) -> list[Event]:
        """A new job, superseding the peer's older one of the same document and kind; or a cancel."""
        if isinstance(message, wire.Cancel):
            found = [live for live in self.jobs if live.peer == peer and live.job.job == message.job]
            return self._end(found, "cancelled", "The job was cancelled.")
        key = (peer, message.document, message.kind)
        older = [live for live in self.jobs if (live.peer, live.job.document, live.job.kind) == key]
        events = self._end(older, "superseded", "A newer job took its place.")
        problem = self._problem(message)
        if problem:
            return [*events, (peer, wire.Failed(job=message.job, code="invalid", message=problem[:256]))]
        self._peers.add(peer)
        self.cache.serve(len(self._peers))
        # It keeps the place of the job it supersedes: else whoever types falls behind everybody at each key.
        order = min((live.order for live in older), default=next(self._orders))
        self.jobs.append(Live(peer, message, order, now))
        return events

    def _problem(self, job: wire.Infill) -> str:
        """Why the job cannot be taken, in one sentence, or nothing."""
        holes = [s for s in job.segments if isinstance(s, wire.Hole)]
        if not holes or len(holes) > wire.MAX_HOLES:
            return f"A job has 1 to {wire.MAX_HOLES} holes; this one has {len(holes)}."
        if job.draft is not None and len(job.draft) != len(holes):
            return f"The job has {len(holes)} holes and {len(job.draft)} drafts; there must be one for each."
        if job.sampler in SEARCHES and isinstance(self.model.noise, Uniform):
            return f"The model {self.model.name} cannot verify drafts; name another sampler."
        if job.sampler in samplers() and self.model.noise is None:
            return f"The model {self.model.name} has no canvas; name {' or '.join(SEARCHES)}, or no sampler."
        if job.sampler not in (None, *SEARCHES, *samplers()):
            return f"There is no sampler named {job.sampler!r}; there are {', '.join((*SEARCHES, *samplers()))}."
        return ""

    def drop(self, peer: bytes) -> None:
        """The peer is gone: free its canvases, tell nobody."""
        self._peers.discard(peer)
        self.cache.serve(len(self._peers))
        self._end([live for live in self.jobs if live.peer == peer], "cancelled", "")

    def expire(self, now: float) -> list[Event]:
        """Answer the jobs whose deadline has passed: the best canvas so far, or Failed for one never started."""
        late = [live for live in self.jobs if now >= live.deadline]
        unstarted = [live for live in late if live.work is None]
        events = self._end(unstarted, "expired", "The deadline passed before the job could start.")
        return events + [self._finish(live, now, "deadline") for live in late if live.work is not None]

    def step(self, clock: Callable[[], float]) -> list[Event]:
        """One step: prefill what is new, one denoise step over all live canvases, and what became known by it. Raises
        faults.Broken.

        Speculation waits while anything else is live: the step's forwards are the others' alone."""
        events = self.expire(clock())
        wanted = [live for live in self.jobs if live.job.priority != "speculative"] or self.jobs
        chosen, room, short = in_turn(wanted)[: self.faults.live], Room(self.model.chunk), False
        for live in chosen:
            if live.kv is None and self.cache.full:
                events += self._give_way(live)
            if live not in self.jobs or (live.kv is None and self.cache.full):
                continue  # it waits for another job's memory
            try:
                self._prepare(live, clock, room)
            except wire.Impossible as error:
                events += self._end([live], "invalid", str(error)[:256])
            except torch.AcceleratorError:
                raise  # whatever is asked of that device from now on fails too
            except Exception as error:  # whatever one job's text does must not take the others' canvases down
                self._on_fault(error)
                short = short_of_memory(error)
                if not short:
                    events += self._end([live], "invalid", "The engine could not read this job; see its log.")
            if short:  # behind the handler, whose error holds what the step had in memory
                return events + self._make_room([live], len(chosen), clock())
        ready = within([live for live in chosen if live.work is not None and live in self.jobs])
        if ready:
            began = clock()
            works = [work for live in ready for work in live.works if not work.finished]
            try:
                denoise.step(self.model, works, self._replay)
            except Exception as error:
                if not short_of_memory(error):
                    raise
                self._on_fault(error)
                short = True
            if short:
                return events + self._make_room(ready, len(chosen), clock())
            spoilt = [live for live in ready if not all(work.sound for work in live.works)]
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
                if len(live.works) > 1:
                    live.works = race.choose(live.works, live.steps, live.job.candidates)
        now = clock()
        for live in ready:
            events += self._report(live, now)
        return events

    def _give_way(self, live: Live) -> list[Event]:
        """End a job of lower priority that holds the memory of a context."""
        least = PRIORITY[live.job.priority]
        lower = [other for other in self.jobs if other.kv is not None and PRIORITY[other.job.priority] > least]
        return self._end(lower[-1:], "cancelled", "The job gave way to one that somebody waits for.")

    # Faults

    def _make_room(self, lives: Sequence[Live], ran: int, now: float) -> list[Event]:
        """The memory for a step of `ran` jobs was not there: give up those that needed it and all contexts that are
        kept. Raises Broken."""
        self.cache.clear()
        self.faults.out_of_memory(ran, now)
        events = self._spoil(lives, "The engine ran out of memory.")
        if self.model.device.startswith("cuda"):
            torch.cuda.empty_cache()
        return events

    def _spoil(self, lives: Sequence[Live], message: str) -> list[Event]:
        """End jobs whose contexts cannot be trusted any more."""
        for live in lives:
            if live.kv is not None:
                self.cache.discard(live.kv)
                live.kv = None
        return self._end(lives, "engine_lost", message)

    # A job's way

    def _prepare(self, live: Live, clock: Callable[[], float], room: Room) -> None:
        """Lay out the canvas and lease a KV; then prefill a chunk, or set `work` when the first forward can take along
        what is missing. Where the step has no `room` for that, the job waits."""
        if live.work is not None:
            return
        began = clock()
        if live.layout is None or live.kv is None:
            job = live.job
            live.layout = lay(
                self.model,
                self.vocabulary,
                job.prefix,
                job.suffix,
                job.segments,
                job.neighbours,
                slots=SLOTS if self.model.noise is not None else LEAST_SLOTS,
                name=job.prompt,
                language=job.language,
                schemas=job.schemas,
            )
            live.kv = self.cache.lease(live.layout.context)
        missing, chunk = live.layout.context[live.kv.length :], self.model.chunk
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

    def _begin(self, live: Live, fresh: Sequence[int]) -> None:
        """Make the canvases; `fresh` is context that the first forward takes along."""
        assert live.layout is not None
        name = live.job.sampler or self.model.sampler
        sampler = load_sampler("threshold" if name in SEARCHES else name)
        canvas, encode = live.layout.canvas, self.model.tokenizer.encode
        forced = [encode(hole.forced.decode()) for hole in canvas.holes]
        texts = zip(canvas.holes, live.job.draft or (), strict=False)
        drafts = [encode(hole.forced.decode() + text) if text else [] for hole, text in texts]
        noise = self.model.noise
        if isinstance(noise, Uniform):
            if live.job.sampler is None:
                sampler = self._sampler
            for one in race.starters(canvas, [len(tokens) for tokens in forced], drafts):
                of = min(noise.schedule.steps, max(LEAST_STEPS, -(-len(one.slots) // 2)))
                live.works.append(self._denoising(live, one, sampler, of))
            for work in live.works:
                work.judged = len(live.works) > 1
        else:
            canvas.begin()
            for number, tokens in enumerate(drafts):
                for slot, token in zip(canvas.of_hole(number), tokens, strict=False):
                    slot.shown = token
            live.works = [self._denoising(live, canvas, sampler, STEPS)]
        live.works[0].fresh = fresh
        if name in SEARCHES:
            repeated = self._search(live, list(canvas.tail))
            # A draft that is there already saves the canvas's, which takes as long as two passes.
            [hole, *others] = canvas.holes
            drafted = repeated and hole.one_line and hole.grammar is None and not others
            live.works[0].drafts = name != LEFT_TO_RIGHT and not drafted and noise is not None
            live.works[0].of = sum(passes(hole, width(live.job)) for hole in canvas.holes)
        live.of = max(work.of for work in live.works)

    def _denoising(self, live: Live, canvas: Canvas, sampler: Sampler, of: int) -> denoise.Denoising:
        assert live.kv is not None
        generator = torch.Generator(self.vocabulary.device).manual_seed(live.job.seed % 2**63)
        return denoise.Denoising(canvas, live.kv, sampler, of, generator)

    def _search(self, live: Live, tail: list[int]) -> bool:
        """Start the token tree of the current hole behind `tail`, with what is proposed for it. Whether text that
        stands elsewhere is."""
        assert live.layout is not None
        assert live.kv is not None
        assert live.work is not None
        canvas, number = live.layout.canvas, live.hole
        hole = canvas.holes[number]
        live.kv.truncate(len(live.kv.ids))
        behind = canvas.behind(number)
        if number + 1 < len(canvas.holes):
            behind = behind + self.model.tokenizer.encode(canvas.holes[number + 1].forced.decode())
        generator = live.work.generator if live.job.seed else None
        start, wide = len(live.layout.context), width(live.job)
        repeats = None if live.job.sampler == LEFT_TO_RIGHT else Repeats([*live.layout.context, *tail])
        least = live.job.least
        live.work.search = search = Search(self.vocabulary, hole, tail, behind, start, generator, wide, repeats, least)
        if live.job.sampler == LEFT_TO_RIGHT:
            return False
        encode, forced = self.model.tokenizer.encode, hole.forced.decode()
        if self.model.noise is not None:  # of later holes: the first one's draft is still to come
            search.propose(canvas.guess(number), "canvas")
        if live.job.draft:  # the rest of an earlier answer
            source: Source = "canvas" if self.model.noise is not None else "left_to_right"
            search.propose(encode(forced + live.job.draft[number]), source)
        repeated = lookup(*around(live), [neighbour.text for neighbour in live.job.neighbours])
        for text in (*repeated, *names([fill.text for fill in live.done])):
            search.propose(encode(forced + text), "lookup")
        return bool(repeated)

    def _report(self, live: Live, now: float) -> list[Event]:
        """What to send after a step."""
        assert live.work is not None
        if live.work.finished and self._next_hole(live):
            live.work.finished = False
        if all(work.finished for work in live.works):
            return [self._finish(live, now, "complete" if live.steps < live.work.of else "steps")]
        fills = self._fills(live)
        if fills == live.sent:
            return []
        if live.first_lock is None and any(f.locked for f in fills):
            live.first_lock = now - live.arrived
        live.sent, live.seq = fills, live.seq + 1
        return [(live.peer, wire.Locked(job=live.job.job, seq=live.seq - 1, holes=fills, step=live.steps, of=live.of))]

    def _next_hole(self, live: Live) -> bool:
        """Keep the finished hole of a search and go on with the next one; false when there is none."""
        assert live.work is not None
        search = live.work.search
        if search is None:
            return False
        node = search.leader()
        live.done.append(shown(search, final=True))
        live.alternatives.append([candidate(search, end.node) for end in search.candidates()[1 : live.job.candidates]])
        live.sources += search.sources(node)
        live.hole += 1
        canvas = live.work.canvas
        if live.hole >= len(canvas.holes):
            return False
        tail = search.tail + search.tokens(node) + canvas.behind(live.hole - 1)
        live.work.search = None
        self._search(live, tail)
        return True

    def _fills(self, live: Live, *, final: bool = False) -> tuple[wire.Fill, ...]:
        """The holes as they stand: of a search the finished ones, the current one, drafts of the rest."""
        assert live.work is not None
        drafts = live.work.canvas.fills()
        search = live.work.search
        if search is None:
            return tuple(settled(f) for f in drafts) if final else drafts
        current = [] if live.hole >= len(drafts) else [shown(search, final=final)]
        if current and not search.passes:
            current = [settled(drafts[live.hole]) if final else drafts[live.hole]]
        elif current and search.drafted and not final:
            current = [drafted(search, drafts[live.hole]) or current[0]]
        rest = drafts[len(live.done) + len(current) :]
        return (*live.done, *current, *(map(settled, rest) if final else rest))

    def _finish(self, live: Live, now: float, stop: str) -> Event:
        assert live.work is not None
        fills = self._fills(live, final=True)
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
            alternatives=self._alternatives(live, fills),
            steps=live.steps,
            tokens=self._tokens(live),
            timings=timings,
            stop="deadline" if stop == "deadline" else "steps" if stop == "steps" else "complete",
            level=level(live),
        )
        self._free([live])
        return live.peer, done

    def _alternatives(self, live: Live, fills: tuple[wire.Fill, ...]) -> tuple[tuple[wire.Fill, ...], ...]:
        """Further answers, best first: of a search's first hole, or of other lengths."""
        if live.alternatives:
            return tuple((fill,) for fill in live.alternatives[0]) if len(fills) == 1 else ()
        found = {tuple(f.text for f in fills): fills}
        for work in live.works[1:]:
            others = tuple(map(settled, work.canvas.fills()))
            if all(fill.text for fill in others):
                found.setdefault(tuple(f.text for f in others), others)
        return tuple(found.values())[1 : live.job.candidates]

    def _tokens(self, live: Live) -> wire.Tokens:
        """Where the tokens of the answer came from."""
        assert live.work is not None
        search = live.work.search
        if search is None:
            return wire.Tokens(canvas=live.work.canvas.written())
        sources = list(live.sources)
        if live.hole < len(live.work.canvas.holes):
            sources += search.sources(search.leader())
        return wire.Tokens(
            canvas=sources.count("canvas"),
            lookup=sources.count("lookup"),
            left_to_right=sources.count("left_to_right"),
        )

    def _end(self, lives: Iterable[Live], code: str, message: str) -> list[Event]:
        """Free jobs without an answer."""
        lives = list(lives)
        self._free(lives)
        return [
            (live.peer, wire.Failed(job=live.job.job, code=code, message=message))  # type: ignore[arg-type]
            for live in lives
        ]

    def _free(self, lives: Iterable[Live]) -> None:
        for live in lives:
            self.jobs.remove(live)
            if live.kv is not None:
                self.cache.give(live.kv)


def in_turn(lives: Sequence[Live]) -> list[Live]:
    """By priority; then the first job of each peer, before anybody's second; then by arrival."""
    ahead = Counter[bytes]()
    turns = []
    for live in sorted(lives, key=lambda live: (PRIORITY[live.job.priority], live.order)):
        turns.append((PRIORITY[live.job.priority], ahead[live.peer], live.order, live))
        ahead[live.peer] += 1
    return [live for *_, live in sorted(turns)]


def within(lives: Sequence[Live]) -> list[Live]:
    """The jobs whose canvases have at most MAX_ROWS rows together; the first one always."""
    chosen, rows = list[Live](), 0
    for live in lives:
        more = sum(work.canvas.rows for work in live.works if not work.finished)
        if not chosen or rows + more <= MAX_ROWS:
            chosen.append(live)
            rows += more
    return chosen


def width(job: wire.Infill) -> int:
    """Of a job's searches."""
    return 1 if job.sampler == LEFT_TO_RIGHT else WIDTH


def around(live: Live) -> tuple[str, str]:
    """The text before the current hole, with the fills of those before it, and the text behind it, where a NUL stands
    for each hole."""
    segments = live.job.segments
    place = [i for i, segment in enumerate(segments) if isinstance(segment, wire.Hole)][live.hole]
    fills = iter(live.done)
    before = "".join(s.text if isinstance(s, wire.Text) else next(fills).text for s in segments[:place])
    after = "".join(s.text if isinstance(s, wire.Text) else "\0" for s in segments[place + 1 :])
    return live.job.prefix + before, after + live.job.suffix


def level(live: Live) -> Literal["", "valid", "checked"]:
    """What is sure of the holes that have a grammar."""
    assert live.layout is not None
    grammars = [hole.grammar for hole in live.layout.canvas.holes if hole.grammar is not None]
    if not grammars:
        return ""
    return "valid" if all(grammar.exact for grammar in grammars) else "checked"


def shown(search: Search, *, final: bool) -> wire.Fill:
    """The leading hypothesis; all of it counts as locked in a final answer."""
    node = search.leader()
    if final:
        return candidate(search, node)
    text, locked = search.text()
    spans = ((0, locked),) if locked else ()
    return wire.Fill(text, spans, search.confidence(node), 1, search.probabilities(node))


def drafted(search: Search, draft: wire.Fill) -> wire.Fill | None:
    """The canvas's draft that is still to be verified, if it agrees with what is locked."""
    text, locked = search.text()
    if not draft.text.startswith(text[:locked]):
        return None
    return msgspec.structs.replace(draft, locked=((0, locked),) if locked else ())


def candidate(search: Search, node: Node) -> wire.Fill:
    text = search.text_of(node)
    spans = ((0, len(text)),) if text else ()
    return wire.Fill(text, spans, search.confidence(node), 0, search.probabilities(node, search.answer(node)))


def settled(fill: wire.Fill) -> wire.Fill:
    """A fill as answered: its drafts count as decided."""
    return msgspec.structs.replace(fill, locked=((0, len(fill.text)),) if fill.text else (), open=0)


def milliseconds(seconds: float) -> float:
    return round(max(0.0, min(seconds * 1000, 600_000.0)), 3)
