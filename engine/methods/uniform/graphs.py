"""A denoise step of a job's canvases, recorded once and replayed: a CUDA graph instead of 388 to 418 launches
(gpu/README.md), which would take the host some 16 to 17 ms (estimated from 40 us each). On a CPU, used only by tests, a
replay calls the step again.

A recording holds the addresses of its own buffers, into which the canvases are written. One buffer is a table with the
addresses of a KV's keys and values. So one recording a size serves every KV, also after its buffers have moved, and all
are made before anybody waits. A recording has as many rows as one of BUCKETS says: first the rows of the canvases,
which are several while lengths compete, then the context that the step reads first. Fixed rows of a canvas count as
slots locked from the start. Rows that are left are copies of the first one, so that they need no other experts; no row
sees them.

A step with a grammar and a step of several jobs run in canvases.py, to which a canvas may return at any step. Both ways
draw the same random numbers and take the same decisions. A healed start of several tokens is known only after its first
token: a replayed step that did not expect it counts for nothing, and canvases.py takes it again.

A step reads only the buffers. So the step of a single canvas is launched before the host has received the one before:
the GPU is never idle. The result of a step (`Launched`) lies in memory of its own and counts once it is received. So a
step launched after a canvas's last one, or under way when the canvas is dropped, changes nothing. It writes keys
and values after a context, where the next user of that KV or memory overwrites them later in the same stream. Later
replays read that context again and write the same keys and values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from caesura.engine import recordings
from caesura.engine.cache import KV
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods.uniform import canvases, renoise
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.engine.methods.uniform.rows import HEALING, MAY_END, fresh_of, healing, laid
from caesura.engine.model import MAX_ROWS, Fixed, Replayable
from caesura.engine.noise import Schedule
from caesura.engine.recordings import Recordings
from caesura.engine.scores.tensors import bias
from caesura.kernels import decision
from caesura.kernels.head import NEVER, Rows

BUCKETS = (16, 32, 64, 128, 256, 320, MAX_ROWS)  # rows; 320 for all lengths of a line and what was typed
CANVASES = 16  # of a step at most
HEALED = 8  # biases of healed starts in a step at most
NOWHERE = 1 << 30  # a place after the end of any buffer


@dataclass(frozen=True)
class Common:
    """Shared by all recordings of a model. The sampler must not depend on the step; `bans` are float32 [n, V], with the
    biases of healed starts last."""

    model: Replayable
    schedule: Schedule
    sampler: renoise.TensorSampler
    bans: Tensor
    stops: Tensor


class Graphs:
    """Recordings for the jobs of one model and one sampler, one for each size."""

    def __init__(
        self, model: Replayable, schedule: Schedule, sampler: renoise.TensorSampler, vocabulary: Vocabulary
    ) -> None:
        lines = (vocabulary.allowed(b"", of_line) for of_line in (False, True))
        sets = vocabulary.anything, *lines, vocabulary.may_end, *[vocabulary.anything] * HEALED
        bans = torch.stack([bias(some, torch.device(model.device)) for some in sets]).clamp_(min=NEVER)
        stops = torch.tensor(vocabulary.stops, dtype=torch.int64, device=model.device)
        self._common = Common(model, schedule, sampler, bans, stops)
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
        """Take the next step of canvases whose step is under way, and of the others if they are of one job and can be
        replayed. Returns those that are left."""
        left = [w for w in work if w not in self._under_way]
        for w in work:
            if (launched := self._under_way.pop(w, None)) is not None:
                self._take([w], launched, alone=len(work) == 1)
        recording = self._recording(left)
        if recording is None:
            return left
        before = [w.state for w in left]
        if self._take(left, recording.launch(left), alone=len(work) == 1):
            return []
        for w, state in zip(left, before, strict=True):
            w.state = state
        return left

    def _take(self, works: Sequence[Renoising], launched: "Launched", *, alone: bool) -> bool:
        """Take a step of canvases. If there is one `alone`, launch the step after before the host waits. False if the
        step did not expect what a healed start needs."""
        for w, state in zip(works, launched.states, strict=True):
            w.state = state
        if alone and not (works[0].judged or works[0].canvas.unhealed()):
            self._launch_ahead(works)
        launched.wait()
        counts = [w.canvas.rows for w in works]
        of_rows = launched.told[:, : sum(counts)].split(counts, 1)
        of_slots = [numbers[:, w.canvas.slot_rows()] for w, numbers in zip(works, of_rows, strict=True)]
        if not all(canvases.asked_right(w, numbers[0]) for w, numbers in zip(works, of_slots, strict=True)):
            return False
        for w, numbers, logp in zip(works, of_slots, launched.logp[: sum(counts)].split(counts), strict=True):
            canvases.heed(w, numbers.tolist())
            if w.judged:
                canvases.rate(w, logp[w.canvas.slot_rows()], logp[[row for row, _ in w.canvas.pins()]])
        return True

    def _launch_ahead(self, works: Sequence[Renoising]) -> None:
        recording = self._recording(works)
        if recording is not None and recording.holds(works) and works[0].step + 1 < works[0].of:
            self._under_way[works[0]] = recording.launch(works, ahead=1)

    def _recording(self, works: Sequence[Renoising]) -> "Recording | None":
        """The recording for the next step of canvases, for which their KV has room then; None if it cannot be
        replayed."""
        if not works or len(works) > CANVASES or not all(w.kv is works[0].kv and self._suits(w) for w in works):
            return None
        wanted = sum(w.canvas.rows for w in works) + len(fresh_of(works))
        rows = next((rows for rows in BUCKETS if rows >= wanted), 0)
        if not rows or len(healing(works)) > HEALED:
            return None
        works[0].kv.reserve(wanted)
        if rows not in self._recordings:
            self._record(works[0].kv, rows)
        return self._recordings.get(rows)

    def _suits(self, w: Renoising) -> bool:
        """True if no step needs anything from the host."""
        return w.sampler is self._common.sampler and not w.canvas.ruled

    def _record(self, kv: KV, rows: int) -> None:
        """Make a recording, if none has failed yet."""
        kv.reserve(rows)  # a recording is run once when it is made
        self._recordings.record(rows, lambda: Recording(self._common, kv, rows))


@dataclass(frozen=True, eq=False)
class Launched:
    """A step that may still be under way: the states of its canvases after it; and for the host what `renoise.decide`
    tells, float64 [4, rows], and the log-probability of each row's token, or of a slot's most probable one, without
    bans and before cooling, float32 [rows]. Both are there once the event has happened."""

    states: Sequence[renoise.CanvasState]
    told: Tensor
    logp: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> None:
        if self.event is not None:
            self.event.synchronize()


class Recording:
    """A step over a number of rows, and the buffers that it reads and writes."""

    def __init__(self, common: Common, kv: KV, rows: int) -> None:
        model = common.model

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=model.device)

        self._common, self._replay = common, self._step
        self._slots = zeros(0)  # rows of the slots
        self._held = list[tuple[renoise.CanvasState | None, bool]]()  # of the canvases in the buffers; if one is judged
        self._moved = 0  # of their KV, when the addresses were written
        soft = torch.zeros_like(model.embedded(zeros(rows)))
        self._state = renoise.CanvasState(zeros(rows), zeros(rows), zeros(rows), soft)
        self._chances = renoise.Chances(zeros(rows, dtype=torch.float32), zeros(rows))
        self._told, self._logp = zeros(4, rows, dtype=torch.float64), zeros(rows, dtype=torch.float32)
        self._temperature, self._enough = zeros(rows, dtype=torch.float32) + 1, zeros(CANVASES, dtype=torch.float32)
        # The row that each one is or copies, its bias's number and its mode.
        self._source, self._bias, mode = self._numbers = zeros(3, rows)
        self._canvases = zeros(CANVASES, rows, dtype=torch.bool)  # which rows belong to each
        self._flags = zeros(5, rows, dtype=torch.bool)
        self._is_slot, self._may_lock, self._must_lock, self._may_end, self._locked = self._flags
        turns = {shape: torch.zeros_like(turn) for shape, turn in model.turns(zeros(rows)).items()}
        # Until there is a canvas, each row sees the first column, and none is kept.
        seen, places = zeros(rows, 3, dtype=torch.int32), zeros(rows, dtype=torch.int32) + NOWHERE
        seen[:, 2] = 1
        tables = torch.tensor(kv.addresses, device=model.device)
        spans, ids = model.spans(seen), self._state.ids
        self._fixed = Fixed(ids, soft, self._source, turns, mode, spans, places, tables, kv.buffers)

    def __repr__(self) -> str:
        return f"<Recording of {len(self._source)} rows>"

    def holds(self, works: Sequence[Renoising]) -> bool:
        """True if the buffers hold these canvases as they are now."""
        return [(w.state, w.judged) for w in works] == self._held and works[0].kv.moved == self._moved

    def launch(self, works: Sequence[Renoising], ahead: int = 0) -> Launched:
        """Launch the next step of canvases, or the one that comes so many `ahead` of it, without waiting."""
        states = [canvases.begin(self._common.model, w) for w in works]
        if not self.holds(works):
            self._hold(works, states)
        model, schedule, counts, start = self._common.model, self._common.schedule, [len(s.ids) for s in states], 0
        draws = [Draws(w.seed, w.step + ahead) for w in works]
        drawn = [renoise.chances(model, count, one) for one, count in zip(draws, counts, strict=True)]
        for buffer, values in zip(self._chances, zip(*drawn, strict=True), strict=True):
            buffer[self._slots] = torch.cat(values)
        for w in works:  # a copy from the host would wait for the step under way
            self._temperature[start : start + w.canvas.rows] = float(schedule.temperature(w.step + ahead, w.of))
            start += w.canvas.rows
        self._replay()
        for w in works:
            w.kv.length += len(w.fresh)
            w.kv.ids.extend(w.fresh)
            w.fresh = ()
        parts = zip(*(buffer[self._slots].split(counts) for buffer in self._state.tensors), strict=True)
        states = [renoise.CanvasState(*part) for part in parts]
        self._held = [(state, w.judged) for state, w in zip(states, works, strict=True)]
        if any(w.canvas.unhealed() for w in works):
            self._held.clear()  # which slots may lock depends on what the host hears
        told, logp = (numbers.to("cpu", non_blocking=True) for numbers in (self._told, self._logp))  # pinned memory
        event = torch.cuda.current_stream().record_event() if self._told.is_cuda else None
        return Launched(states, told, logp, event)

    def capture(self, pool: Any) -> Any:
        """Capture a CUDA graph, with memory from the pool if there is one. Returns its pool. On a CPU there is nothing
        to capture."""
        if not self._told.is_cuda:
            return None
        self._replay, pool = recordings.capture(self._step, pool)
        self._fixed = replace(self._fixed, buffers=())  # must not keep the buffers of a KV alive
        return pool

    def _hold(self, works: Sequence[Renoising], states: Sequence[renoise.CanvasState]) -> None:
        """Write the canvases into the buffers."""
        model, kv, rows = self._common.model, works[0].kv, laid(works)
        slots = [number for number, row in enumerate(rows) if row.is_slot]
        shut = {"is_slot": False, "may_lock": False, "must_lock": False, "may_end": False, "locked": True}
        copy = rows[0]._replace(place=NOWHERE, **shut)
        sources = [*range(len(rows)), *[0] * (len(self._source) - len(rows))]
        rows += [copy] * (len(self._source) - len(rows))

        def fields(*names: str) -> Tensor:
            return torch.tensor([[getattr(row, name) for row in rows] for name in names])

        self._numbers.copy_(torch.cat((torch.tensor([sources]), fields("bias", "mode"))))
        self._canvases.copy_(fields("canvas") == torch.arange(CANVASES)[:, None])
        self._flags.copy_(fields("is_slot", "may_lock", "must_lock", "may_end", "locked"))
        for number, some in enumerate(healing(works), HEALING):
            torch.clamp(bias(some, self._common.bans.device), min=NEVER, out=self._common.bans[number])
        enough = [canvases.enough(self._common.schedule, w) for w in works]
        self._enough[: len(works)] = torch.tensor(enough, device=model.device)
        self._write_places(kv, fields)
        self._write_states(fields("token")[0].to(model.device), works, states, slots)

    def _write_places(self, kv: KV, fields: Callable[..., Tensor]) -> None:
        """Write the place of each row, and the columns that it sees."""
        model, fixed = self._common.model, self._fixed
        fixed.places.copy_(fields("place")[0])
        positions = fields("position")[0].to(model.device)
        spans = model.spans(fields("context", "own", "end").T.int().contiguous().to(model.device))
        for buffers, values in ((fixed.turns, model.turns(positions)), (fixed.spans, spans)):
            for shape, value in values.items():
                buffers[shape].copy_(value)
        fixed.tables.copy_(torch.tensor(kv.addresses))
        self._moved = kv.moved
        if not self._told.is_cuda:
            self._fixed = replace(fixed, buffers=kv.buffers)

    def _write_states(
        self, tokens: Tensor, works: Sequence[Renoising], states: Sequence[renoise.CanvasState], slots: Sequence[int]
    ) -> None:
        """The slots between two forwards; other rows have their `tokens`."""
        model = self._common.model
        self._slots = torch.tensor(slots, device=model.device)
        known = [torch.cat([getattr(state, name) for state in states]) for name in ("ids", "best", "stable")]
        for buffer, of_rows, of_slots in zip(
            self._state.tensors, (tokens, tokens, torch.zeros_like(tokens)), known, strict=False
        ):
            buffer.copy_(of_rows.index_copy(0, self._slots, of_slots))
        # A canvas without conditioning gets rows of 0: the model makes 0 of them, and adds it.
        soft, start = self._state.tensors[3].zero_(), 0
        for w, state in zip(works, states, strict=True):
            if state.conditioning is not None:
                end = start + w.canvas.rows
                soft[start:end] = model.embedded(tokens[start:end])
                soft[[start + row for row in w.canvas.slot_rows()]] = state.conditioning
            start += w.canvas.rows

    @torch.inference_mode()
    def _step(self) -> None:
        """The recorded step: reads and writes buffers, and needs nothing from the host."""
        common, state = self._common, self._state
        hidden = common.model.fixed(self._fixed)
        # An end before a locked slot would cut it off.
        given = self._bias, self._may_end, self._locked, self._is_slot, self._canvases
        which, open = decision.biases(*given, MAY_END)
        rows = Rows(hidden, self._temperature, common.bans, which, open)
        outlook = renoise.of_seen(common.model, rows, common.model.observe(rows))
        terms = renoise.Constraints(open, self._may_lock, self._must_lock, common.stops, self._enough, self._canvases)
        after, told = renoise.decide(
            common.model, common.schedule, state, outlook, common.sampler, 0, 1, terms, self._chances
        )
        self._locked.copy_(told[2])
        of_token = torch.where(self._is_slot, outlook.logit, common.model.score(hidden, after.best))
        self._told, self._logp = told, of_token - outlook.total  # at the same addresses in every replay
        *numbers, soft = state.tensors
        *now, conditioning = after.tensors
        torch._foreach_copy_(numbers, now)  # in one launch
        soft.copy_(conditioning)
