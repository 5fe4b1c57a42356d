"""How many people one team carries: recorded typing, replayed through the scheduler on a clock of its own.

    python bench/capacity.py [--models small coder ...] [--seconds 60] [--seed 1] [--json]
                             [--out bench/results/capacity.json]

Users type the stretches of typing_stretches/ one after another, each in documents of their own and from a place of
their own in a stretch. Their jobs are those that the real language server gave (job_traces.py). The scheduler and its
cache are the real ones; a step takes as long as the median of the recorded steps with so many rows (`measured`), or
the least time that a GPU needs for its bytes and FLOP (`bound`), and the time of our Python on this machine. Nothing
depends on the load of the machine that runs this.
"""

import argparse
import hashlib
import itertools
import json
import random
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import crowd
from crowd import Key, Virtual
from latency import HERE, Report, conditions, save, table
from roofline import Work, bound_ms, parameters, work

sys.path.insert(0, str(HERE.parent))
from caesura import wire
from caesura.cluster.router import LIFE_S
from caesura.engine import memory
from caesura.engine.cache import KV, Cache, Kept
from caesura.engine.canvas.layout import Layout
from caesura.engine.methods import Begin
from caesura.engine.model import ModelSpec
from caesura.engine.models.diffusion_gemma import model as diffusion_gemma
from caesura.engine.models.diffusion_gemma.model import Config
from caesura.engine.models.llama.config import Config as LlamaConfig
from caesura.engine.models.llama.config import kept
from caesura.engine.scheduler import Scheduler
from caesura.model_store import locate
from tests.support.checkpoints.tiny import Still

NEVER = float("inf")
LIMIT_MS = 150.0  # until first locked text, for 95 of 100 jobs
# The next three: a trial of Ray Serve 2.60 with HAProxy on two cores; docs/log.md (dn) has the times of the door.
HOP_S = 0.0011  # through HAProxy to a replica and back, p50
UNREACHABLE_S = 1.0  # until the sessions of a dead replica reach another one
AGAIN_S = 2.7  # until a dead replica is replaced
POINTS = 16  # of a server of weight 1 on HAProxy's ring
WARM_S = 20.0  # from the start, not counted: nobody has typed before
LAST_S = 3.0  # at the end, not counted: its answers would come later
NEW = 64  # tokens: a context with fewer new ones is warm, as where one goes on typing
PAUSE_S = 3.0  # between two stretches, as in crowd.py
BANDWIDTH, PEAK = 4.3e12, 790e12  # bytes and FLOP a second of one H200, as in gpu/measuring.py
FREE = 139 << 30  # bytes of an H200 before a model is loaded
FREE_HERE = 20 << 30  # bytes that were free next to a model on the machine of the recordings, which has 24 GiB
MOST = 256  # users: no more are tried
CONTEXT = 768  # tokens of a context that the bounds read at each step

# The time of a replica's step


class StepTable:
    """Milliseconds of a step by its rows and the context rows that it reads; linear in between."""

    def __init__(self, entries: Sequence[tuple[float, float]], fresh_ms: float) -> None:
        self.entries, self.fresh_ms = list(entries), fresh_ms

    def __repr__(self) -> str:
        return f"<StepTable {self.entries}>"

    def __call__(self, rows: int, fresh: int, jobs: int) -> float:
        return (self._rows(rows) if rows else 0.0) + fresh * self.fresh_ms

    def _rows(self, rows: int) -> float:
        (first, ms), *_ = self.entries
        if rows <= first:
            return ms
        for (low, before), (high, after) in itertools.pairwise(self.entries):
            if rows <= high:
                return before + (after - before) * (rows - low) / (high - low)
        return self.entries[-1][1] * rows / self.entries[-1][0]


EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 48, 64, 128)  # rows of a bin of the table, at most


def tabled(found: Report) -> StepTable:
    """The table of a recording."""
    return measured([step for stretch in found["stretches"].values() for step in stretch["steps"]])


def measured(steps: Sequence[tuple[int, int, float]]) -> StepTable:
    """The table of recorded steps (rows, rows of context, ms)."""
    bins = defaultdict[int, list[tuple[int, float]]](list)
    fresh_ms = statistics.median([ms / fresh for rows, fresh, ms in steps if not rows])
    for rows, fresh, ms in steps:
        if rows and fresh <= 2:
            bins[bisect_left(EDGES, rows)].append((rows, ms))
    entries = [tuple(map(statistics.median, zip(*found, strict=True))) for _, found in sorted(bins.items())]
    return StepTable(entries, fresh_ms)  # type: ignore[arg-type]


SHAPES = {  # of Qwen2.5-Coder as in gpu/causal.py: hidden, MLP, layers, heads, key heads, vocabulary
    "0.5B": (896, 4864, 24, 14, 2, 151_936),
    "7B": (3584, 18_944, 28, 28, 4, 152_064),
}
GEMMA = HERE.parent / "gpu" / "diffusiongemma-26b.json"
CANVAS, STEPS, FIRST = 64, 12, 3  # assumed of DiffusionGemma: rows and steps of a job, steps until text is locked
FP8, BF16 = 1, 2  # bytes a parameter


def decoder(shape: Sequence[int], rows: int, jobs: int) -> dict[str, Work]:
    """Bytes and FLOP of a decoder's step: it reads each matrix once, and the context of each job once."""
    hidden, mlp, layers, heads, key_heads, vocabulary = shape
    head_dim = hidden // heads
    matrices = layers * (2 * hidden * hidden + 2 * hidden * key_heads * head_dim + 3 * hidden * mlp)
    keys = 2 * layers * CONTEXT * key_heads * head_dim
    return {
        "matrices": Work(BF16 * matrices, 2 * rows * matrices),
        "head": Work(BF16 * hidden * vocabulary, 2 * rows * hidden * vocabulary),
        "attention": Work(jobs * BF16 * keys, 4 * layers * rows * CONTEXT * hidden),
    }


def shipped_contexts(model: str) -> int:
    """How many contexts the engine keeps of a shipped model on this CPU."""
    shape = LlamaConfig.read(json.loads((locate(model) / "config.json").read_text()))
    return memory.contexts(FREE_HERE, memory.of_context(kept(shape, "cpu"), CONTEXT, BF16), "cpu")


def decoder_contexts(shape: Sequence[int]) -> int:
    """The same for a decoder on an H200."""
    _, _, layers, heads, key_heads, vocabulary = shape
    parts = decoder(shape, 1, 1)
    weights = int(parts["matrices"].bytes + parts["head"].bytes)
    one = memory.of_context([Kept(key_heads, shape[0] // heads)] * layers, CONTEXT, BF16)
    return memory.contexts(FREE - weights - memory.of_step(vocabulary), one, "cuda")


def gemma_contexts(config: dict[str, Any]) -> int:
    """The same for DiffusionGemma."""
    shape, weights = Config.read(config), FP8 * parameters(config["text_config"])
    vocabulary = shape.vocab_size
    weights += BF16 * vocabulary * shape.hidden_size
    one = memory.of_context(diffusion_gemma.kept(shape), diffusion_gemma.CONTEXT, BF16)
    left = FREE - weights - memory.of_step(vocabulary) - memory.of_recorded(vocabulary, BF16)
    return memory.contexts(left, one, "cuda", diffusion_gemma.CONTEXTS)


def gemma(text: Mapping[str, Any], rows: int, jobs: int) -> dict[str, Work]:
    parts = work(text, rows, CONTEXT, FP8)
    return {**parts, "attention": Work(jobs * parts["attention"].bytes, parts["attention"].flops)}


@dataclass
class Bound:
    """The least milliseconds of a step on a GPU, and `host_ms` of our own code for each job in it."""

    parts: Callable[[int, int], dict[str, Work]]  # rows, jobs
    host_ms: float = 0.0

    def __call__(self, rows: int, fresh: int, jobs: int) -> float:
        return bound_ms(self.parts(rows + fresh, jobs), BANDWIDTH, PEAK) + (self.host_ms * jobs if rows else 0.0)


# A replica: the real scheduler over a model that only takes time


class Recorded(NamedTuple):
    """A job of a recording: seconds from the start of its stretch, and when the server left it. `document` numbers the
    keys under which the server sent the jobs of one file. Of the context, the last `new` tokens were in no job before;
    `text` has a code point for each token of it."""

    at: float
    left: float | None
    priority: str
    document: int
    new: int
    text: str
    rows: Sequence[int]
    first: int


class Characters:
    """A tokenizer for which each code point is a token."""

    pieces, sentencepiece = [b" "], True

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


class Costed(Still):
    """A model that only takes time. `known` are the recordings of its jobs, `step_ms` is the time of a step."""

    name, width, tokenizer = "costed", 1, Characters()

    def __init__(
        self, known: Mapping[str, Recorded], clock: Virtual, step_ms: Callable[[int, int, int], float], engine: Report
    ) -> None:
        self.known, self._clock, self._step_ms = known, clock, step_ms
        self.spec = ModelSpec(
            None,
            "left_to_right",
            max_context=1 << 16,
            chunk=engine["chunk"],
            tail=1,
            head=0,
            rows=engine["rows"],
            shift=1,
            separator=(0,),
        )
        self._contexts = engine["contexts"]
        self.read = self.stepped = 0  # tokens of context, and steps of jobs

    def cache(self) -> Cache:
        return Cache([], entries=self._contexts)

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._take(ids, kv)
        self._pay(0, len(ids), 1)

    def begin(self, job: wire.Infill, layout: Layout, kv: KV, fresh: Sequence[int], sampler: str | None) -> "Replayed":
        return Replayed(self.known[job.job], kv, fresh)

    def advance(self, fillings: Sequence["Replayed"]) -> None:
        self._pay(sum(f.rows for f in fillings), sum(len(f.fresh) for f in fillings), len(fillings))
        for filling in fillings:
            self._take(filling.fresh, filling.kv)
            filling.fresh, filling.steps = (), filling.steps + 1
        self.stepped += len(fillings)

    def _take(self, ids: Sequence[int], kv: KV) -> None:
        kv.ids += ids
        kv.length += len(ids)
        self.read += len(ids)

    def _pay(self, rows: int, fresh: int, jobs: int) -> None:
        self._clock.now += self._step_ms(rows, fresh, jobs) / 1000


@dataclass(eq=False)
class Replayed:
    """A job in progress, which takes the rows and steps of its recording."""

    recorded: Recorded
    kv: KV
    fresh: Sequence[int]
    steps: int = 0
    finite, approximate, advance = True, False, staticmethod(Costed.advance)

    @property
    def of(self) -> int:
        return len(self.recorded.rows)

    @property
    def finished(self) -> bool:
        return self.steps >= self.of

    @property
    def rows(self) -> int:
        return self.recorded.rows[min(self.steps, self.of - 1)]

    def stop(self, steps: int) -> wire.StopReason:
        return "complete"

    def fills(self, *, final: bool = False) -> tuple[wire.Fill, ...]:
        return (wire.Fill("fill", ((0, 4),) if final or self.steps >= self.recorded.first else ()),)

    def alternatives(self, fills: tuple[wire.Fill, ...]) -> tuple[tuple[wire.Fill, ...], ...]:
        return ()

    def tokens(self) -> wire.Tokens:
        return wire.Tokens()


class Replica(Scheduler):
    """The scheduler with one method, which replays."""

    model: Costed  # type: ignore[assignment]

    def _method(self, name: str) -> Begin:
        return self.model.begin


# Users

OWN, TOKENS = 0xF0000, 0x100000  # code points without a meaning: one that begins a user's context, and those after it


def recorded(found: Report) -> "Stretches":
    """The stretches of a recording: file, seconds, jobs. Tokens are numbered, and shared as the recording says."""
    numbers, stretches = itertools.count(TOKENS), {}
    for name, stretch in found["stretches"].items():
        texts, jobs = list[str](), list[Recorded]()
        for job in stretch["jobs"]:
            alike = texts[job["like"]][: job["same"]] if job["same"] else ""
            texts.append(alike + "".join(chr(next(numbers)) for _ in range(job["context"] - len(alike))))
            some = (job[name] for name in ("at", "left", "priority", "document"))
            jobs.append(Recorded(*some, job["context"] - job["same"], texts[-1], job["rows"], job["first"]))
        stretches[name] = stretch["file"], stretch["seconds"], jobs
    return stretches


@dataclass(eq=False)
class Asked(Key):
    """A job of a user: `session` is the user and the document. It `arrives` at its replica, and its server has `left`
    it then."""

    session: str = ""
    left: float | None = None
    warm: bool = False  # most of its context was in a job before
    arrives: float = 0.0

    @property
    def waited_for(self) -> bool:
        """True if it stayed open for the limit and was not speculative."""
        return self.job.priority == "automatic" and (self.left is None or self.left - self.at >= LIMIT_MS / 1000)

    def says(self) -> Iterator[tuple[float, bytes, wire.Infill | wire.Cancel]]:
        if self.left is None or self.left > self.arrives:
            yield self.arrives, self.peer, self.job
        if self.left is not None:
            yield self.left + HOP_S / 2, self.peer, wire.Cancel(self.job.job)


Stretches = Mapping[str, tuple[str, float, list[Recorded]]]


def crowd_of(users: int, found: Stretches, seconds: float, seed: int) -> tuple[list[Asked], dict[str, Recorded]]:
    """The jobs of all users, by time, and their recordings."""
    owns, known = itertools.count(OWN), dict[str, Recorded]()
    typed = [job for user in range(users) for job in _typist(user, found, seconds, f"{seed}/{user}", owns, known)]
    return sorted(typed, key=lambda asked: asked.at), known


def _typist(
    user: int, found: Stretches, seconds: float, seed: str, owns: Iterator[int], known: dict[str, Recorded]
) -> Iterator[Asked]:
    draw, number, at = random.Random(seed), itertools.count(), 0.0
    while at < seconds:
        for name in draw.sample(sorted(found), len(found)):
            file, long, jobs = found[name]
            at -= draw.uniform(0, long) if not at else 0.0  # in the middle of the first one
            own = chr(next(owns))
            for job in jobs:
                if not 0 <= at + job.at < seconds:
                    continue
                document = f"{user}/{file}" + "+" * job.document
                wanted = wire.Infill(
                    job=f"{user}-{next(number)}",
                    document=document,
                    priority=job.priority,
                    prefix=own + job.text[1:] + " ",  # the engine cuts what a later key may change
                    suffix="",
                    segments=(wire.Hole(16, "line"),),
                )
                left = None if job.left is None else at + job.left
                known[wanted.job] = job
                yield Asked(
                    at + job.at, document.encode(), wanted, False, session=document, left=left, warm=job.new < NEW
                )
            at += long + PAUSE_S
            if at >= seconds:
                return


# Replicas


class Ring:
    """HAProxy's consistent hash: each server has POINTS places, a session goes to the next one."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._places = sorted((_hash(f"{server}/{point}"), server) for server in servers for point in range(POINTS))

    def __repr__(self) -> str:
        return f"<Ring {len(self._places)} places>"

    def __call__(self, session: str) -> int:
        at = bisect_right(self._places, (_hash(session), -1))
        return self._places[at % len(self._places)][1]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


class Place(NamedTuple):
    server: int
    life: int  # how often it has been replaced


FIRST_LIFE = Place(0, 0)


@dataclass
class Team:
    """Replicas, one of which takes a new stream. `kill`: server 0 dies then; `grow`: one more is ready then."""

    replicas: int
    kill: float = NEVER
    grow: float = NEVER
    affinity: bool = True

    def __post_init__(self) -> None:
        self._turns, self._rings = itertools.count(), dict[tuple[int, ...], Ring]()

    def begin(self, session: str, now: float) -> tuple[Place, float]:
        """The replica that a new stream goes to, and the time, in seconds, at which it arrives."""
        servers = range(self.replicas + (now >= self.grow))
        dead = self.kill <= now < self.kill + AGAIN_S
        server = self._chosen(session, servers)
        if not dead or server:
            return Place(server, int(server == 0 and now > self.kill)), now
        return Place(self._chosen(session, servers[1:]), 0), max(now, self.kill + UNREACHABLE_S)

    def _chosen(self, session: str, servers: Sequence[int]) -> int:
        if not self.affinity:
            return servers[next(self._turns) % len(servers)]
        return self._rings.setdefault(tuple(servers), Ring(servers))(session)


def routed(asked: Sequence[Asked], team: Team) -> dict[Place, list[Asked]]:
    """The jobs of each replica. As the door's router has it, a stream stays where it is for LIFE_S."""
    streams, found = dict[str, tuple[Place, float]](), defaultdict[Place, list[Asked]](list)
    for job in asked:
        place, opened = streams.get(job.session, (Place(-1, 0), -NEVER))
        died = place == FIRST_LIFE and job.at >= team.kill
        job.arrives = job.at
        if died or job.at - opened > LIFE_S or not team.affinity:
            place, job.arrives = team.begin(job.session, job.at)
            opened = job.arrives
        job.arrives = max(job.arrives, opened) + HOP_S / 2
        streams[job.session] = place, opened
        found[place].append(job)
    return found


# A run


@dataclass(frozen=True)
class Served:
    """A model on a kind of machine."""

    model: str
    kind: str
    stretches: Stretches
    step_ms: Callable[[int, int, int], float]
    engine: Report


@dataclass
class Outcome:
    asked: list[Asked]
    failed: int  # jobs in flight on a replica that was killed
    busy: float  # the share of time in which a replica steps
    read: int  # tokens of context


def played(served: Served, team: Team, users: int, seconds: float, seed: int) -> Outcome:
    asked, known = crowd_of(users, served.stretches, seconds, seed)
    failed, busy, read = 0, 0.0, 0
    for place, jobs in routed(asked, team).items():
        until = min(seconds, team.kill) if place == FIRST_LIFE else seconds
        clock = Virtual()
        model = Costed(known, clock, served.step_ms, served.engine)
        replica = Replica(model)  # type: ignore[arg-type]
        steps = crowd.replay(replica, jobs, clock, until)
        failed += len(replica.jobs) if until < seconds else 0
        busy, read = busy + sum(steps), read + model.read
    return Outcome(asked, failed, busy / seconds / team.replicas, read)


def summary(runs: Sequence[Outcome], begin: float, end: float) -> Report:
    """The jobs that somebody waited for between two times: ms until the first locked text (with a warm context, and of
    all), the share that got any, and ms until the whole answer of those that their server did not leave."""
    waited = [one for run in runs for one in run.asked if one.waited_for and begin <= one.at < end]
    stayed = [one for one in waited if one.left is None]
    return {
        "jobs": len(waited),
        "warm_ms": ms([one.first for one in waited if one.warm]),
        "first_ms": ms([one.first for one in waited]),
        "answered": round(sum(one.first is not None for one in waited) / max(1, len(waited)), 4),
        "done_ms": ms([one.whole for one in stayed]),
        "busy": round(sum(run.busy for run in runs) / len(runs), 3),
        "read": round(sum(run.read for run in runs) / max(1, sum(len(run.asked) for run in runs)), 1),
    }


def ms(found: Sequence[float | None]) -> Report:
    return crowd.percentiles([None if one is None else one + HOP_S / 2 for one in found])


# The answers

REPLICAS = (1, 2, 4)
SHARE = 0.7  # of the users that a team carries, while a replica dies or is added
EVENT_S = 40.0  # when that happens
EVENT_LEAST = 64  # users in all, so that a window has enough jobs
WINDOW_S = 2.0  # of the percentiles before and after it


@dataclass(frozen=True)
class Trial:
    """How long users type, from `seed` on. `least`: repeat small crowds until this many users were seen."""

    seconds: float
    seed: int = 1
    least: int = 16

    def __call__(self, served: Served, team: Team, users: int) -> list[Outcome]:
        seeds = range(self.seed, self.seed + -(-self.least // users))
        return [played(served, replace(team), users, self.seconds, seed) for seed in seeds]

    def row(self, served: Served, team: Team, users: int) -> Report:
        found = summary(self(served, team, users), WARM_S, self.seconds - LAST_S)
        return {"replicas": team.replicas, "users": users, **found}

    def curve(self, served: Served, replicas: int) -> list[Report]:
        """Twice as many users until the limit has passed, then a closer look at where it did."""
        rows, users = list[Report](), 1
        while users <= MOST and (users == 1 or within(rows[-1], "p50")):
            rows.append(self.row(served, Team(replicas), users))
            users *= 2
        low = carried(rows)
        high = min((row["users"] for row in rows if row["users"] > low), default=low)
        while low and high - low > max(1, low // 8):
            middle = (low + high) // 2
            rows.append(self.row(served, Team(replicas), middle))
            low, high = (middle, high) if within(rows[-1]) else (low, middle)
        return sorted(rows, key=lambda row: row["users"])

    def event(self, served: Served, team: Team, users: int) -> Report:
        """Jobs that failed, p95 of each window, and for how long from the event on it is above the limit."""
        runs = replace(self, least=EVENT_LEAST)(served, team, users)
        begins = [WARM_S + WINDOW_S * n for n in range(int((self.seconds - WARM_S - LAST_S) / WINDOW_S))]
        found = [summary(runs, begin, begin + WINDOW_S) for begin in begins]
        since = itertools.takewhile(lambda row: not within(row), found[begins.index(EVENT_S) :])
        return {
            "event": "kill" if team.kill < NEVER else "grow",
            "replicas": team.replicas,
            "users": users,
            "failed": round(sum(run.failed for run in runs) / len(runs), 1),
            "above_s": WINDOW_S * len(list(since)),
            "windows": [[at - EVENT_S, row["warm_ms"]["p95"]] for at, row in zip(begins, found, strict=True)],
        }


def within(row: Report, rank: str = "p95") -> bool:
    found = row["warm_ms"][rank]
    return found is not None and found <= LIMIT_MS


def carried(rows: Sequence[Report], rank: str = "p95") -> int:
    """The most users before the percentile first passes the limit."""
    ordered = itertools.takewhile(lambda row: within(row, rank), sorted(rows, key=lambda row: row["users"]))
    return max((row["users"] for row in ordered), default=0)


ASSUMED = {
    "users": "type all the time, in stretches with pauses of 3 s between them",
    "counted": "automatic jobs that their server did not leave within the limit; one without text when it was left "
    "counts as one that took for ever; warm: fewer than 64 new tokens of context",
    "open loop": "jobs come when the server of one user with an idle engine gave them, however late answers are",
    "steps": "by rows alone, at the recorded contexts of up to some 500 tokens; several jobs cost as one of all rows",
    "bound": "weights once and the context of each job once a step, or FLOP, over 4.3 TB/s and 790 TFLOP/s, bf16, "
    "nothing else; jobs and passes are those of coder",
    "DiffusionGemma": "FP8; a job is a canvas of 64 rows and 12 steps, with locked text after the third",
    "our code": "the CPU time of a step of coder outside the model, for each job, while it runs alone on two CPU cores",
    "hop": "1.1 ms through the door and back",
    "kill": "its jobs fail, 1 s until its sessions reach another replica, 2.7 s until it is replaced, contexts cold",
    "ring": "16 places a replica; a stream stays where it is for 20 s",
}


def served_by(recordings: Mapping[str, Report]) -> list[Served]:
    """`small` and `coder` as measured; the bounds of one GPU, also with our code's time."""
    shipped = {
        n: Served(n, "measured", recorded(r), tabled(r), {**r["engine"], "contexts": shipped_contexts(n)})
        for n, r in recordings.items()
    }
    found = list(shipped.values())
    coder, host = shipped["coder"], host_ms(recordings["coder"])
    config = json.loads(GEMMA.read_text())

    def bound(name: str, parts: Callable[[int, int], dict[str, Work]], contexts: int) -> Served:
        return replace(coder, model=name, step_ms=Bound(parts), engine={**coder.engine, "contexts": contexts})

    bounds = [bound(name, partial(decoder, shape), decoder_contexts(shape)) for name, shape in SHAPES.items()]
    large = bound("DiffusionGemma", partial(gemma, config["text_config"]), gemma_contexts(config))
    for one in (*bounds, replace(large, stretches=canvases(coder.stretches))):
        found.append(replace(one, kind="bound"))
        found.append(replace(one, kind="bound and our code", step_ms=replace(one.step_ms, host_ms=host)))  # type: ignore[type-var]
    return found


def canvases(stretches: Stretches) -> Stretches:
    """The same jobs as DiffusionGemma is assumed to fill them."""
    return {
        name: (file, long, [job._replace(rows=(CANVAS,) * STEPS, first=FIRST) for job in jobs])
        for name, (file, long, jobs) in stretches.items()
    }


def host_ms(found: Report) -> float:
    """The CPU time of our own code for a job and a step, on the machine of the recording."""
    stretches = found["stretches"].values()
    steps = sum(rows > 0 for stretch in stretches for rows, *_ in stretch["steps"])
    return sum(sum(stretch["own"]) for stretch in stretches) / steps


def measure(served: Sequence[Served], trial: Trial) -> Report:
    rows, events = list[Report](), list[Report]()
    for one in served:
        about = {"model": one.model, "kind": one.kind, "contexts": one.engine["contexts"]}
        for replicas in REPLICAS if one.kind in ("measured", "bound") else REPLICAS[:1]:
            print(*about.values(), replicas, file=sys.stderr, flush=True)
            found = trial.curve(one, replicas)
            rows += [about | row for row in found]
            if replicas > 1 and (users := int(SHARE * carried(found))):
                teams = Team(replicas, kill=EVENT_S), Team(replicas, grow=EVENT_S)
                events += [about | trial.event(one, team, users) for team in teams]
    return {"limit_ms": LIMIT_MS, **vars(trial), "rows": rows, "events": events}


TIMES = ("warm p50", "p95", "first p50", "p95", "done p50", "p95")
HEAD = ("", "replicas", "users", "by p50", *TIMES, "answered %", "busy %")


def picture(report: Report) -> str:
    """The report as a person reads it: the most users within the limit, and what an event costs."""
    groups = defaultdict[tuple[Any, ...], list[Report]](list)
    for row in report["rows"]:
        groups[row["model"], row["kind"], row["replicas"]].append(row)
    lines = [(f"{model}, {kind}", count, *most(rows)) for (model, kind, count), rows in groups.items()]
    events = [
        (f"{e['model']}, {e['event']}", *(e[name] for name in ("replicas", "users", "failed", "above_s")))
        for e in report["events"]
    ]
    told = table(("", "replicas", "users", "jobs failed", "s above limit"), events)
    return f"{table(HEAD, lines)}\n\n{told}"


def most(rows: Sequence[Report]) -> Iterator[object]:
    """The most users that these rows carry, and what they see."""
    users = carried(rows)
    at = next(row for row in rows if row["users"] == users or not users)
    yield from (users, carried(rows, "p50"))
    yield from (at[name][rank] for name in ("warm_ms", "first_ms", "done_ms") for rank in ("p50", "p95"))
    yield from (100 * at["answered"], 100 * at["busy"])


def main() -> None:
    results = HERE / "results"
    parser = argparse.ArgumentParser(description="How many people one team carries.")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="some of them only")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the tables")
    parser.add_argument("--out", type=Path, default=results / "capacity.json")
    options = parser.parse_args()
    recordings = {name: json.loads((results / f"jobs-{name}.json").read_text()) for name in ("small", "coder")}
    served = served_by(recordings)
    chosen = [one for one in served if not options.models or one.model in options.models]
    report = {"bench": "capacity", **conditions("coder"), "assumed": ASSUMED}
    report["recorded"] = {n: {k: r[k] for k in ("at", "commit", "machine", "model")} for n, r in recordings.items()}
    report |= measure(chosen, Trial(options.seconds, options.seed))
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
