"""A denoise step of one canvas, recorded once and replayed: a CUDA graph in the place of some 330 launches, which take
as long one by one as the GPU needs for them. On a CPU, where only tests come here, a replay calls the step again.

A recording holds addresses: of its own buffers, which a canvas is written into, and of the keys and values of one KV;
when those have moved it is made anew. It has a number of rows of BUCKETS. Rows of the canvas that are fixed are slots
that were locked from the start; rows that are none of the canvas's are copies of its first, so that they choose no
expert of their own, and no row sees them.

Only steps that need nothing from the host are replayed; all others are those of canvases.py, which a canvas may go back
to at any step. Both draw the same random numbers and take the same decisions.

A step needs nothing from the one before but what lies in the buffers, so it is launched before the host has heard of
that: the GPU always has the next one to do. What comes of a step (`Launched`) lies in memory of its own, and counts
when it is received. So the step behind a canvas's last one changes nothing, nor does one that is under way when the
canvas is given up: it is never received. It has drawn from a generator that no other canvas has, and has written keys
and values behind a context, where whoever gets that KV next, or memory that it had, writes later in the same stream.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from caesura.engine import faults
from caesura.engine.cache import KV
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods.uniform import canvases, renoise
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.engine.models import Fixed, Replayable
from caesura.engine.noise import Schedule
from caesura.engine.samplers import Sampler
from caesura.kernels.head import NEVER, Rows

log = logging.getLogger("caesura.engine")

BUCKETS = (16, 32, 64, 128, 256)  # rows
ANYTHING, ANY, ANY_OF_LINE, MAY_END = range(4)  # biases, by number


@dataclass(frozen=True)
class Common:
    """What all recordings of a model share. The sampler must not heed the step; `bans` are float32 [4, V]."""

    model: Replayable
    schedule: Schedule
    sampler: Sampler
    bans: Tensor
    stops: Tensor


class Graphs:
    """Recordings for the canvases of one model that are denoised with one sampler.

    A recording costs more than a step, so there is none for the first canvas behind a KV, which may be the only one."""

    def __init__(self, model: Replayable, schedule: Schedule, sampler: Sampler, vocabulary: Vocabulary) -> None:
        lines = (vocabulary.allowed(b"", of_line) for of_line in (False, True))
        bans = torch.stack((vocabulary.anything, *lines, vocabulary.may_end)).clamp_(min=NEVER)
        self._common = Common(model, schedule, sampler, bans, vocabulary.stops)
        self._recordings = WeakKeyDictionary[KV, tuple[int, dict[int, Recording]]]()
        self._firsts = WeakSet[Renoising]()  # canvases, each its KV's first
        self._under_way = WeakKeyDictionary[Renoising, Launched]()
        self._largest: Recording | None = None  # keeps the memory that all recordings share
        self._failed = False

    def __repr__(self) -> str:
        return f"<Graphs of {[list(of_kv) for _, of_kv in self._recordings.values()]} rows>"

    def rehearse(self) -> None:
        """Record a step of every size once, behind a KV that nobody else has: what they need is compiled and has its
        memory before anybody waits for it. Where that fails nothing is recorded later either."""
        kv = self._common.model.cache().lease([])
        for rows in reversed(BUCKETS):
            kv.reserve(rows)
            recording = self._record(kv, rows)
            self._largest = self._largest or recording
        if self._failed:
            self._largest = None  # the steps need its memory

    def step(self, work: Sequence[Renoising]) -> list[Renoising]:
        """Take the next step of the canvases, where it is under way, or where there is but one and it can be replayed;
        those that are left. To them nothing has happened."""
        return [w for w in work if not self._take(w, alone=len(work) == 1)]

    def _take(self, w: Renoising, *, alone: bool) -> bool:
        """The next step of a canvas, and if it is `alone` the one behind it is launched before the host waits; false
        where it cannot be taken."""
        recording = self._recording(w) if alone and self._suits(w) else None
        launched = self._under_way.pop(w, None)
        if launched is None:
            if recording is None:
                return False
            launched = recording.launch(w, w.step)
        w.state = launched.state
        if recording is not None and recording.holds(w) and w.step + 1 < w.of:
            self._under_way[w] = recording.launch(w, w.step + 1)
        canvases.heed(w, launched.receive())
        return True

    def _suits(self, w: Renoising) -> bool:
        """Whether the step needs nothing from the host; then no later one does."""
        known = w.state is not None and w.state.conditioning is not None
        alone = not (w.fresh or w.judged or w.canvas.ruled or w.canvas.unhealed())
        return known and alone and w.sampler is self._common.sampler and w.canvas.rows <= BUCKETS[-1]

    def _recording(self, w: Renoising) -> "Recording | None":
        """For the canvas's number of rows, and its KV as it lies now, if there is to be one."""
        if w.kv not in self._recordings:
            self._recordings[w.kv] = -1, {}
            self._firsts.add(w)
        if w in self._firsts:
            return None
        w.kv.reserve(w.canvas.rows)
        moved, of_kv = self._recordings[w.kv]
        if moved != w.kv.moved:
            of_kv = {}
            self._recordings[w.kv] = w.kv.moved, of_kv
        rows = next(rows for rows in BUCKETS if rows >= w.canvas.rows)
        if rows not in of_kv and (recording := self._record(w.kv, rows)):
            of_kv[rows] = recording
        return of_kv.get(rows)

    def _record(self, kv: KV, rows: int) -> "Recording | None":
        """None where that fails, and from then on."""
        if self._failed:
            return None
        try:
            recording = Recording(self._common, kv, rows)
            recording.capture(self._largest.pool if self._largest else None)
        except Exception as error:  # no fill may be lost by what only makes it faster
            self._failed = True
            log.warning("A step could not be recorded: each is launched anew. %s", faults.sentence(error))
            return None
        return recording


@dataclass(frozen=True, eq=False)
class Launched:
    """A step of a canvas that may still be under way: the state behind it, and float64 [4, slots] on their way to the
    host, there when the event has happened."""

    state: renoise.CanvasState
    told: Tensor
    event: torch.cuda.Event | None

    def receive(self) -> list[list[float]]:
        """Wait for what the host is told (renoise.py)."""
        if self.event is not None:
            self.event.synchronize()
        told: list[list[float]] = self.told.tolist()
        return told


class Recording:
    """A step over so many rows behind one KV, and the buffers that it reads and writes."""

    def __init__(self, common: Common, kv: KV, rows: int) -> None:
        model = common.model

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        self._common, self._replay = common, self._step
        self.pool: Any = None  # of memory: no two graphs run at once, and none leaves anything in it
        self._slots = zeros(0)  # rows of the canvas's slots
        self._held: renoise.CanvasState | None = None  # the canvas's that the buffers hold
        soft = torch.zeros_like(model.embedded(zeros(rows)))
        self._state = renoise.CanvasState(zeros(rows), zeros(rows), zeros(rows), soft)
        self._chances = renoise.Chances(zeros(rows, dtype=torch.float32), zeros(rows))
        self._told = zeros(4, rows, dtype=torch.float64)
        self._temperature, self._enough = zeros(rows, dtype=torch.float32) + 1, zeros(1, dtype=torch.float32)
        self._source, self._bias = zeros(2, rows)  # the row that each is or copies, and what may stand there
        self._is_slot, self._may_end, self._locked = zeros(3, rows, dtype=torch.bool)
        place = model.place(kv, rows).to(model.device)
        self._fixed = Fixed(self._state.ids, soft, zeros(rows), place, kv.buffers)

    def __repr__(self) -> str:
        return f"<Recording of {len(self._source)} rows>"

    def holds(self, w: Renoising) -> bool:
        """Whether the canvas lies in the buffers as it is now."""
        return w.state is self._held

    def launch(self, w: Renoising, step: int) -> Launched:
        """That step of the canvas, of which nothing is waited for."""
        if not self.holds(w):
            self._hold(w)
        drawn = renoise.chances(self._common.model, len(self._slots), w.generator)
        for buffer, values in zip(self._chances, drawn, strict=True):
            buffer[self._slots] = values
        self._temperature.fill_(float(self._common.schedule.temperature(step, w.of)))
        self._replay()
        self._held = renoise.CanvasState(*(buffer[self._slots] for buffer in self._state.tensors))
        told = self._told[:, self._slots].to("cpu", non_blocking=True)  # from a GPU into pinned memory
        return Launched(self._held, told, torch.cuda.current_stream().record_event() if self._told.is_cuda else None)

    def capture(self, pool: Any) -> None:
        """As a CUDA graph, with memory from the pool if there is one. A step before it compiles the kernels and lets
        libraries make what they need. On a CPU there is nothing to capture."""
        if not self._told.is_cuda:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._step()
        self._replay, self.pool = graph.replay, graph.pool()
        self._fixed = replace(self._fixed, buffers=())  # nothing of a KV is kept alive that has moved

    def _hold(self, w: Renoising) -> None:
        """Write the canvas into the buffers."""
        assert w.state is not None
        canvas, model = w.canvas, self._common.model
        slots = dict(zip(canvas.slot_rows(), canvas.slots, strict=True))
        ids = canvas.ids(w.state.ids.tolist())
        rows = [*range(len(ids)), *[0] * (len(self._source) - len(ids))]
        found = [slots.get(row) if at == row else None for at, row in enumerate(rows)]  # copies are no slots
        holes = [None if slot is None else canvas.holes[slot.hole] for slot in found]
        kinds = [ANYTHING if hole is None else ANY_OF_LINE if hole.one_line else ANY for hole in holes]
        for buffer, values in (
            (self._source, rows),
            (self._bias, kinds),
            (self._is_slot, [slot is not None for slot in found]),
            (self._may_end, [hole is not None and hole.last for hole in holes]),
            (self._locked, [slot is None or slot.locked for slot in found]),
            (self._fixed.positions, [w.kv.length + row for row in rows]),
            (self._enough, [canvases.enough(self._common.schedule, w)]),
            (self._state.ids, [ids[row] for row in rows]),
        ):
            buffer.copy_(torch.tensor(values))
        self._fixed.place.copy_(model.place(w.kv, len(ids)))
        self._slots = torch.tensor(list(slots), device=model.device)
        before = self._state.ids, self._state.ids, torch.zeros_like(self._state.stable), model.embedded(self._state.ids)
        for buffer, of_rows, of_slots in zip(self._state.tensors, before, w.state.tensors, strict=True):
            buffer.copy_(of_rows.index_copy(0, self._slots, of_slots))
        self._held = w.state

    @torch.inference_mode()
    def _step(self) -> None:
        """What is recorded: reads and writes buffers, and asks the host nothing."""
        common, state = self._common, self._state
        ids, soft = state.ids[self._source], state.tensors[3][self._source]
        hidden = common.model.fixed(replace(self._fixed, ids=ids, conditioning=soft))
        # Where the text may end, it may not behind a slot that is locked: that is not to be cut off.
        right = (self._locked & self._is_slot).flip(0).cumsum(0).flip(0) > 0
        bias = torch.where(self._may_end & ~right, MAY_END, self._bias)
        rows = Rows(hidden, self._temperature, common.bans, bias, ~self._locked)
        outlook = renoise.of_seen(common.model, rows, common.model.observe(rows))
        never = torch.zeros_like(self._locked)
        terms = renoise.Constraints(~self._locked, self._is_slot, never, common.stops, self._enough)
        after, told = renoise.decide(
            common.model, common.schedule, state, outlook, common.sampler, 0, 1, terms, self._chances
        )
        self._locked.copy_(told[2])
        self._told.copy_(told)
        for buffer, values in zip(state.tensors, after.tensors, strict=True):
            buffer.copy_(values)
