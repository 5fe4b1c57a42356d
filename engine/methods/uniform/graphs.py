"""A denoise step of one canvas, recorded once and replayed: a CUDA graph instead of 450 launches (gpu/README.md), which
would take the host some 18 ms (estimated from 40 us each). On a CPU, used only by tests, a replay calls the step again.

A recording holds the addresses of its own buffers, into which a canvas is written. Those of the keys and values of a KV
are in one of them, a table on the device, so that one recording a size serves every KV, also after its buffers have
moved; all are made before anybody waits. Its rows are one of BUCKETS. Fixed rows of the canvas count as slots locked
from the start. The rows beyond the canvas are copies of its first row, so that they need no other experts; no row sees
them.

Only steps that need nothing from the host are replayed: also a canvas's first, unless it reads fresh context. All
others run in canvases.py, to which a canvas may return at any step. Both draw the same random numbers and take the same
decisions.

A step reads only the buffers, so it is launched before the host has received the one before: the GPU is never idle. The
result of a step (`Launched`) lies in memory of its own and counts once it is received. So a step launched after a
canvas's last one, or under way when the canvas is dropped, changes nothing. It draws from a generator that no other
canvas uses, and writes keys and values after a context, where the next user of that KV or memory overwrites them later
in the same stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from caesura.engine import recordings
from caesura.engine.cache import KV
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods.uniform import canvases, renoise
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.engine.models import Fixed, Replayable
from caesura.engine.noise import Schedule
from caesura.engine.recordings import Recordings
from caesura.engine.samplers import Sampler
from caesura.kernels import decision
from caesura.kernels.head import NEVER, Rows

BUCKETS = (16, 32, 64, 128, 256)  # rows
ANYTHING, ANY, ANY_OF_LINE, MAY_END = range(4)  # biases, by number


def of_recorded(width: int, itemsize: int) -> int:
    """Bytes that all recorded steps together keep on a GPU: the head's scores [rows, width] for the largest canvas, and
    as much again for the rest."""
    return 2 * BUCKETS[-1] * width * itemsize


@dataclass(frozen=True)
class Common:
    """Shared by all recordings of a model. The sampler must not depend on the step; `bans` are float32 [4, V]."""

    model: Replayable
    schedule: Schedule
    sampler: Sampler
    bans: Tensor
    stops: Tensor


class Graphs:
    """Recordings for the canvases of one model and one sampler, one for each size."""

    def __init__(self, model: Replayable, schedule: Schedule, sampler: Sampler, vocabulary: Vocabulary) -> None:
        lines = (vocabulary.allowed(b"", of_line) for of_line in (False, True))
        bans = torch.stack((vocabulary.anything, *lines, vocabulary.may_end)).clamp_(min=NEVER)
        self._common = Common(model, schedule, sampler, bans, vocabulary.stops)
        self._recordings = Recordings[Recording]()  # by rows
        self._under_way = WeakKeyDictionary[Renoising, Launched]()

    def __repr__(self) -> str:
        return f"<Graphs of {list(self._recordings)} rows>"

    def rehearse(self) -> None:
        """Record a step of every size, so that kernels are compiled, memory is allocated, and nothing is recorded while
        somebody waits. If that fails, nothing is recorded later either."""
        kv = self._common.model.cache().lease([])
        for rows in reversed(BUCKETS):
            kv.reserve(rows)
            self._record(kv, rows)

    def step(self, work: Sequence[Renoising]) -> list[Renoising]:
        """Take the next step of canvases whose step is under way, or of a single one that can be replayed. Returns
        the others unchanged."""
        return [w for w in work if not self._take(w, alone=len(work) == 1)]

    def _take(self, w: Renoising, *, alone: bool) -> bool:
        """Take the next step of a canvas. If it is `alone`, launch the one after before the host waits. False if that
        is impossible."""
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
        """True if the step needs nothing from the host; then later ones do not either."""
        alone = not (w.fresh or w.judged or w.canvas.ruled or w.canvas.unhealed())
        return alone and w.sampler is self._common.sampler and w.canvas.rows <= BUCKETS[-1]

    def _recording(self, w: Renoising) -> "Recording | None":
        """The recording for the canvas's number of rows, for which its KV has room then."""
        rows = next(rows for rows in BUCKETS if rows >= w.canvas.rows)
        w.kv.reserve(w.canvas.rows)
        if rows not in self._recordings:
            self._record(w.kv, rows)
        return self._recordings.get(rows)

    def _record(self, kv: KV, rows: int) -> None:
        """Make a recording, if none has failed yet."""
        kv.reserve(rows)  # a recording is run once when it is made
        self._recordings.record(rows, lambda: Recording(self._common, kv, rows))


@dataclass(frozen=True, eq=False)
class Launched:
    """A step of a canvas that may still be under way: the state after it, and float64 [4, slots] for the host, there
    once the event has happened."""

    state: renoise.CanvasState
    told: Tensor
    event: torch.cuda.Event | None

    def receive(self) -> list[list[float]]:
        """Wait for the numbers for the host (renoise.py)."""
        if self.event is not None:
            self.event.synchronize()
        told: list[list[float]] = self.told.tolist()
        return told


class Recording:
    """A step over a number of rows, and the buffers that it reads and writes."""

    def __init__(self, common: Common, kv: KV, rows: int) -> None:
        model = common.model

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        self._common, self._replay = common, self._step
        self._slots = zeros(0)  # rows of the canvas's slots
        self._held: renoise.CanvasState | None = None  # state of the canvas in the buffers
        self._moved = 0  # of its KV, when the addresses were written
        soft = torch.zeros_like(model.embedded(zeros(rows)))
        self._state = renoise.CanvasState(zeros(rows), zeros(rows), zeros(rows), soft)
        self._chances = renoise.Chances(zeros(rows, dtype=torch.float32), zeros(rows))
        self._told = zeros(4, rows, dtype=torch.float64)
        self._temperature, self._enough = zeros(rows, dtype=torch.float32) + 1, zeros(1, dtype=torch.float32)
        self._source, self._bias = zeros(2, rows)  # the row that each one is or copies, and its bias's number
        self._is_slot, self._may_end, self._locked, self._never = zeros(4, rows, dtype=torch.bool)
        place = model.place(kv, rows).to(model.device)
        turns = {shape: torch.zeros_like(turn) for shape, turn in model.turns(zeros(rows)).items()}
        tables = torch.tensor(kv.addresses, device=model.device)
        self._fixed = Fixed(self._state.ids, soft, turns, zeros(rows) + 1, place, tables, kv.buffers)

    def __repr__(self) -> str:
        return f"<Recording of {len(self._source)} rows>"

    def holds(self, w: Renoising) -> bool:
        """True if the buffers hold the canvas as it is now."""
        return w.state is self._held and w.kv.moved == self._moved

    def launch(self, w: Renoising, step: int) -> Launched:
        """Launch a step of the canvas without waiting."""
        state = canvases.begin(self._common.model, w)
        if not self.holds(w):
            self._hold(w, state)
        drawn = renoise.chances(self._common.model, len(self._slots), w.generator)
        for buffer, values in zip(self._chances, drawn, strict=True):
            buffer[self._slots] = values
        self._temperature.fill_(float(self._common.schedule.temperature(step, w.of)))
        self._replay()
        self._held = renoise.CanvasState(*(buffer[self._slots] for buffer in self._state.tensors))
        told = self._told[:, self._slots].to("cpu", non_blocking=True)  # from a GPU into pinned memory
        return Launched(self._held, told, torch.cuda.current_stream().record_event() if self._told.is_cuda else None)

    def capture(self, pool: Any) -> Any:
        """Capture a CUDA graph, with memory from the pool if there is one. Returns its pool. On a CPU there is nothing
        to capture."""
        if not self._told.is_cuda:
            return None
        self._replay, pool = recordings.capture(self._step, pool)
        self._fixed = replace(self._fixed, buffers=())  # must not keep the buffers of a KV alive
        return pool

    def _hold(self, w: Renoising, state: renoise.CanvasState) -> None:
        """Write the canvas into the buffers."""
        canvas, model = w.canvas, self._common.model
        slots = dict(zip(canvas.slot_rows(), canvas.slots, strict=True))
        ids = canvas.ids(state.ids.tolist())
        rows = [*range(len(ids)), *[0] * (len(self._source) - len(ids))]
        found = [slots.get(row) if at == row else None for at, row in enumerate(rows)]  # a copy is not a slot
        holes = [None if slot is None else canvas.holes[slot.hole] for slot in found]
        kinds = [ANYTHING if hole is None else ANY_OF_LINE if hole.one_line else ANY for hole in holes]
        for buffer, values in (
            (self._source, rows),
            (self._bias, kinds),
            (self._is_slot, [slot is not None for slot in found]),
            (self._may_end, [hole is not None and hole.last for hole in holes]),
            (self._locked, [slot is None or slot.locked for slot in found]),
            (self._enough, [canvases.enough(self._common.schedule, w)]),
            (self._state.ids, [ids[row] for row in rows]),
        ):
            buffer.copy_(torch.tensor(values))
        self._fixed.place.copy_(model.place(w.kv, len(ids)))
        self._fixed.tables.copy_(torch.tensor(w.kv.addresses))
        self._moved = w.kv.moved
        if not self._told.is_cuda:
            self._fixed = replace(self._fixed, buffers=w.kv.buffers)
        positions = torch.tensor([w.kv.length + row for row in rows], device=model.device)
        for shape, turn in model.turns(positions).items():
            self._fixed.turns[shape].copy_(turn)
        self._slots = torch.tensor(list(slots), device=model.device)
        tokens, stable, soft = self._state.ids, torch.zeros_like(self._state.stable), self._state.tensors[3]
        of_slots = (self._state.ids, tokens, state.ids), (self._state.best, tokens, state.best)
        for buffer, of_rows, known in (*of_slots, (self._state.stable, stable, state.stable)):
            buffer.copy_(of_rows.index_copy(0, self._slots, known))
        if state.conditioning is None:
            soft.zero_()  # the model makes 0 of it, which it adds to every row
        else:
            soft.copy_(model.embedded(tokens).index_copy(0, self._slots, state.conditioning))
        self._held = state

    @torch.inference_mode()
    def _step(self) -> None:
        """The recorded step: reads and writes buffers, and needs nothing from the host."""
        common, state = self._common, self._state
        ids, soft = state.ids[self._source], state.tensors[3][self._source]
        hidden = common.model.fixed(replace(self._fixed, ids=ids, conditioning=soft))
        # An end before a locked slot would cut it off.
        bias, open = decision.biases(self._bias, self._may_end, self._locked, self._is_slot, MAY_END), ~self._locked
        rows = Rows(hidden, self._temperature, common.bans, bias, open)
        outlook = renoise.of_seen(common.model, rows, common.model.observe(rows))
        terms = renoise.Constraints(open, self._is_slot, self._never, common.stops, self._enough)
        after, told = renoise.decide(
            common.model, common.schedule, state, outlook, common.sampler, 0, 1, terms, self._chances
        )
        self._locked.copy_(told[2])
        self._told.copy_(told)
        for buffer, values in zip(state.tensors, after.tensors, strict=True):
            buffer.copy_(values)
