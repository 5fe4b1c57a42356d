"""A recorded step is the step: the same tokens, probabilities, locks and end, whatever a canvas goes through meanwhile,
and although each is launched before the host has heard of the last one.

On a CPU a replay calls the step again, on the same buffers; tests/kernels/test_gpu.py captures it.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from caesura.engine import models
from caesura.engine.cache import KV, common
from caesura.engine.canvas.layout import lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods._race import advance
from caesura.engine.methods.uniform import begin, graphs, renoise
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.engine.methods.uniform.graphs import Graphs, Launched, Recording
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.model import Fixed
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.engine.noise import Schedule, Uniform
from caesura.engine.samplers import threshold
from caesura.engine.scheduler import Scheduler
from caesura.kernels import attention, decision, experts, gated, head, jit, norms, rotary
from caesura.wire import Cancel, Done, EngineMessage, Hole, Locked, Pattern, Text

from ...support.checkpoints import gemma
from ...support.checkpoints.tiny import CODE, infill

SAMPLER = partial(by_entropy, bound=0.3)
STEPS_OF_JOB = 6  # after two or three of them its race of lengths is over
CLOSE = 1e-4  # of probabilities: more rows are added up in another order
PLACES: dict[str, tuple[str, str, list[Text | Hole], int]] = {
    "a line": (CODE[:400] + "x = ", "\nprint(x)\n", [Hole(8, "line")], 8),
    "no context": ("", "\n", [Hole(4, "line")], 3),
    "a healed start": (CODE[:400] + "    retu", "\n", [Hole(8, "line")], 8),
    "pins between holes": (CODE[:200] + "f(", ")\n", [Hole(4, "line"), Text(", item, "), Hole(6, "line")], 6),
    "nothing behind": (CODE[:300] + "\n", "", [Hole(12, "block")], 12),
    "two blocks": (CODE[:300] + "\n", "", [Hole(9, "line"), Text("\n    a = "), Hole(20, "block")], 20),
}
Step = list[tuple[int | None, float, bool]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DiffusionGemma:
    torch.set_num_threads(1)  # as the worker does
    found = models.load(str(gemma.published(tmp_path_factory.mktemp("graphs") / "tiny")), "cpu")
    assert isinstance(found, DiffusionGemma)
    return found


@pytest.fixture
def vocabulary(model: DiffusionGemma) -> Vocabulary:
    return Vocabulary(model)


@pytest.fixture
def recorded(model: DiffusionGemma, vocabulary: Vocabulary) -> Graphs:
    return Graphs(model, schedule_of(model), SAMPLER, vocabulary)


def schedule_of(model: DiffusionGemma) -> Schedule:
    assert isinstance(model.spec.noise, Uniform)
    return model.spec.noise.schedule


def denoising(model: DiffusionGemma, vocabulary: Vocabulary, place: str = "a line", seed: int = 0) -> Renoising:
    prefix, suffix, segments, slots = PLACES[place]
    layout = lay(model, vocabulary, infill("j", prefix, suffix, *segments), slots)
    kv = model.cache().lease(layout.context)
    if layout.context:
        model.prefill(layout.context, kv)
    return Renoising(layout.canvas, kv, SAMPLER, 24, seed)


def again(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, place: str = "a line", seed: int = 0
) -> Renoising:
    """Behind a KV that had a canvas before."""
    first, second = (denoising(model, vocabulary, place, seed) for _ in range(2))
    fill(model, first, recorded.step)
    second.kv = first.kv
    return second


def fill(
    model: DiffusionGemma,
    w: Renoising,
    replay: uniform.Replay | None = None,
    between: Callable[[Renoising], None] = lambda w: None,
) -> list[Step]:
    """To its end, and how it stood after each step."""
    steps = []
    while not w.finished:
        uniform.step(model, [w], replay)
        steps.append([(slot.draft, slot.prob, slot.locked) for slot in w.canvas.slots])
        between(w)
    return steps


def assert_same(ours: list[Step], plain: list[Step]) -> None:
    assert [[(token, locked) for token, _, locked in step] for step in ours] == [
        [(token, locked) for token, _, locked in step] for step in plain
    ]
    for one, other in zip(ours, plain, strict=True):
        assert [prob for _, prob, _ in one] == pytest.approx([prob for _, prob, _ in other], abs=CLOSE)


def counted(recorded: Graphs) -> tuple[uniform.Replay, list[int]]:
    """Its `step`, and of how many canvases that took the step each time."""
    taken = list[int]()

    def step(work: Sequence[Renoising]) -> Sequence[Renoising]:
        left = recorded.step(work)
        taken.append(len(work) - len(left))
        return left

    return step, taken


class Watched:
    """What is launched and received, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = list[str]()
        launch, wait = Recording.launch, Launched.wait

        def launching(recording: Recording, works: Sequence[Renoising], ahead: int = 0) -> Launched:
            self.seen.append(f"launch {works[0].step + ahead}")
            return launch(recording, works, ahead)

        def waiting(launched: Launched) -> None:
            self.seen.append("receive")
            wait(launched)

        monkeypatch.setattr(Recording, "launch", launching)
        monkeypatch.setattr(Launched, "wait", waiting)


def raced(
    model: DiffusionGemma, vocabulary: Vocabulary, place: str, typed: int, replay: uniform.Replay | None = None
) -> tuple[list[Any], KV]:
    """How all lengths of a job stood after each step, whose first one also reads `typed` tokens, and its context."""
    prefix, suffix, segments, slots = PLACES[place]
    job = infill("j", prefix, suffix, *segments)
    layout = lay(model, vocabulary, job, slots)
    kv, known = model.cache().lease(layout.context), max(0, len(layout.context) - typed)
    if known:
        model.prefill(layout.context[:known], kv)
    stepped = partial(advance, partial(uniform.step, replay=replay))
    race, seen = begin(model, SAMPLER, stepped, job, layout, kv, layout.context[known:]), list[Any]()
    assert len(race.works) > 2
    while not race.finished:
        race.advance(model, [race])
        tokens = [[(slot.draft, slot.locked) for slot in w.canvas.slots] for w in race.works]
        seen.append((tokens, race.rivals, [w.score for w in race.works]))
    assert kv.ids == layout.context
    return seen, kv


def assert_same_race(ours: tuple[list[Any], KV], plain: tuple[list[Any], KV], close: float) -> None:
    assert [step[:2] for step in ours[0]] == [step[:2] for step in plain[0]]
    for (*_, one), (*_, other) in zip(ours[0], plain[0], strict=True):
        assert one == pytest.approx(other, abs=close)
    kept = ([kv.get(layer, 0, kv.length) for layer in range(len(kv.buffers))] for _, kv in (ours, plain))
    torch.testing.assert_close(*kept, atol=close, rtol=close)


@pytest.mark.parametrize("place", PLACES)
def test_a_fill_is_what_it_is_without(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, place: str
) -> None:
    locked, replayed = 0, 0
    for seed in range(4):
        step, taken = counted(recorded)
        w, other = again(model, vocabulary, recorded, place, seed), denoising(model, vocabulary, place, seed)
        ours, plain = fill(model, w, step), fill(model, other)
        assert_same(ours, plain)
        assert w.state is not None
        assert other.state is not None
        for one, right in zip(w.state.tensors, other.state.tensors, strict=True):
            torch.testing.assert_close(one, right, atol=CLOSE, rtol=CLOSE)  # and no step behind the last one
        assert taken[0] or place == "a healed start", "the first step too"
        replayed += sum(taken)
        locked += sum(slot[2] for step in ours[:-1] for slot in step)
    assert replayed >= 3
    assert locked, "slots were locked on the way"


@pytest.mark.parametrize("typed", [0, 3, 40])
@pytest.mark.parametrize("place", PLACES)
def test_so_is_a_job_that_tries_several_lengths_after_typed_context(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, place: str, typed: int
) -> None:
    """The canvases of all lengths are rows of one replay, and so is the context that is read first."""
    step, taken = counted(recorded)
    assert_same_race(raced(model, vocabulary, place, typed, step), raced(model, vocabulary, place, typed), CLOSE)
    assert taken[0] > 2 or place == "a healed start"
    assert not recorded._recordings.failed


def test_a_start_that_takes_several_tokens_is_healed_as_without(model: DiffusionGemma, vocabulary: Vocabulary) -> None:
    """A step that was replayed for one token counts for nothing, whatever else it decided and drew."""
    steps = list[int]()
    for seed in range(14, 22):  # some draw a start that is healed
        step, taken = counted(Graphs(model, schedule_of(model), SAMPLER, vocabulary))
        w, other = (denoising(model, vocabulary, "a healed start", seed) for _ in range(2))
        for one in (w, other):
            one.canvas.holes[0].forced = b"    return total_"
        assert_same(fill(model, w, step), fill(model, other))
        steps += taken
    assert set(steps) == {0, 1}


def test_end_tokens_are_not_locked_nor_what_is_behind_them(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every third token is said to end a text."""
    monkeypatch.setattr(model, "spec", dataclasses.replace(model.spec, ends=frozenset(range(0, model.width, 3))))
    vocabulary = Vocabulary(model)
    recorded, ended = Graphs(model, schedule_of(model), SAMPLER, vocabulary), 0
    for seed in range(6):
        for place in ("nothing behind", "a line"):
            ours = fill(model, again(model, vocabulary, recorded, place, seed), recorded.step)
            assert_same(ours, fill(model, denoising(model, vocabulary, place, seed)))
            for before, after in itertools.pairwise(ours):
                tokens = [token for token, _, _ in after]
                end = next((i for i, token in enumerate(tokens) if token in model.spec.ends), len(tokens))
                fresh = [i for i in range(len(after)) if after[i][2] and not before[i][2]]
                assert all(i < end for i in fresh)
                ended += end < len(tokens)
    assert ended


def test_keys_and_values_may_move_in_the_middle_of_a_fill(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs
) -> None:
    def grow(w: Renoising) -> None:
        before = w.kv.buffers
        w.kv.reserve(before[0][0].shape[1] + 1)
        assert all(old[0] is not new[0] for old, new in zip(before, w.kv.buffers, strict=True))
        with torch.inference_mode():
            for k, v in before:  # as whoever gets that memory next would
                k.fill_(torch.nan)
                v.fill_(torch.nan)

    ours = fill(model, again(model, vocabulary, recorded), recorded.step, grow)
    assert_same(ours, fill(model, denoising(model, vocabulary)))


def test_after_the_rehearsal_nothing_is_recorded_whatever_the_context(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One recording a size serves every KV, and after its buffers have moved."""
    recorded.rehearse()
    assert sorted(recorded._recordings) == list(graphs.BUCKETS)

    def capture(self: Recording, pool: Any) -> None:
        raise AssertionError("somebody waits")

    def grow(w: Renoising) -> None:
        w.kv.reserve(w.kv.buffers[0][0].shape[1] + 1)

    monkeypatch.setattr(Recording, "capture", capture)
    for seed, place in enumerate(PLACES, 3):  # with these, steps of each place can be replayed
        for between in (grow, lambda w: None):
            step, taken = counted(recorded)
            ours = fill(model, denoising(model, vocabulary, place, seed), step, between)
            assert_same(ours, fill(model, denoising(model, vocabulary, place, seed)))
            assert any(taken)
    assert not recorded._recordings.failed


def test_a_rehearsal_records_every_size(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the step that is captured works, of a canvas that is not there."""
    captured = list[int]()

    def capture(self: Recording, pool: Any) -> str:
        captured.append(len(self._told[0]))
        assert pool == ("the first one's" if len(captured) > 1 else None), "all share the memory of the largest"
        self._step()
        assert all(tensor.isfinite().all() for tensor in (self._told, self._state.tensors[3]))
        return "the first one's"

    monkeypatch.setattr(Recording, "capture", capture)
    recorded.rehearse()
    assert captured == sorted(graphs.BUCKETS, reverse=True)
    w = again(model, vocabulary, recorded)
    assert_same(fill(model, w, recorded.step), fill(model, denoising(model, vocabulary)))


@pytest.mark.parametrize("sizes", [0, 2])
def test_where_memory_runs_out_in_the_rehearsal_the_log_says_so_and_steps_are_launched_anew(
    model: DiffusionGemma,
    vocabulary: Vocabulary,
    recorded: Graphs,
    sizes: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After so many sizes for which there was enough."""
    tried = list[int]()

    def capture(self: Recording, pool: Any) -> None:
        tried.append(len(self._told[0]))
        if len(tried) > sizes:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Recording, "capture", capture)
    recorded.rehearse()
    assert [record.getMessage() for record in caplog.records] == [
        "A step could not be recorded; steps run kernel by kernel. There is not enough memory."
    ]
    assert not recorded._recordings
    assert fill(model, again(model, vocabulary, recorded), recorded.step) == fill(model, denoising(model, vocabulary))
    assert len(tried) == sizes + 1


def test_on_a_gpu_a_scheduler_has_rehearsed_and_replays(model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here(str):
        """A device that says it is a GPU."""

        def startswith(self, *_: Any) -> bool:
            return True

    rehearsed = list[Graphs]()
    monkeypatch.setattr(model, "device", Here("cpu"))
    monkeypatch.setattr(Graphs, "rehearse", lambda self: rehearsed.append(self))
    assert replay(Scheduler(model)) == rehearsed[0].step
    monkeypatch.undo()
    assert replay(Scheduler(model)) is None


def replay(engine: Scheduler) -> Any:
    """What takes steps over, of those that the scheduler's jobs make."""
    begin = engine._methods["uniform"]
    assert isinstance(begin, partial)
    (step,) = begin.args[-1].args
    return step.keywords["replay"]


def test_a_recording_keeps_no_kv(model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs) -> None:
    w = denoising(model, vocabulary)
    fill(model, w, recorded.step)
    kv = ref(w.kv)
    del w
    assert recorded._recordings
    assert kv() is None


def test_another_canvas_may_join_and_leave(model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs) -> None:
    for seed in range(4):
        alone = [fill(model, denoising(model, vocabulary, place, seed)) for place in ("a line", "two blocks")]
        work = [again(model, vocabulary, recorded, place, seed) for place in ("a line", "two blocks")]
        found = [list[Step](), list[Step]()]
        step, taken = counted(recorded)
        for number in range(60):
            there = [i for i in (0, 1) if not work[i].finished and (i == 0 or number in (3, 4) or number > 6)]
            if not there:
                break
            uniform.step(model, [work[i] for i in there], step)
            for i in there:
                found[i].append([(slot.draft, slot.prob, slot.locked) for slot in work[i].canvas.slots])
        for ours, plain in zip(found, alone, strict=True):
            assert_same(ours, plain)
        assert taken[1:7] == [1, 1, 2, 0, 1, 1], "the step under way when the other one joins counts"


def test_two_canvases_in_turn_share_one_recording(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs
) -> None:
    work = [again(model, vocabulary, recorded, seed=seed) for seed in (1, 2)]
    work[1].kv = work[0].kv
    found = [list[Step](), list[Step]()]
    while any(not w.finished for w in work):
        for w, steps in zip(work, found, strict=True):
            if not w.finished:
                uniform.step(model, [w], recorded.step)
                steps.append([(slot.draft, slot.prob, slot.locked) for slot in w.canvas.slots])
    for seed, steps in zip((1, 2), found, strict=True):
        assert_same(steps, fill(model, denoising(model, vocabulary, seed=seed)))


def test_what_cannot_be_recorded_is_said_once_and_costs_nothing(
    model: DiffusionGemma,
    vocabulary: Vocabulary,
    recorded: Graphs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried = list[int]()

    def capture(self: Recording, pool: Any) -> None:
        tried.append(1)
        self._step()  # as far as it came
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Recording, "capture", capture)
    with caplog.at_level(logging.WARNING):
        for seed in (0, 1):
            ours = fill(model, again(model, vocabulary, recorded, seed=seed), recorded.step)
            assert ours == fill(model, denoising(model, vocabulary, seed=seed)), "to the last bit"
    assert len(tried) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "A step could not be recorded; steps run kernel by kernel. "
        "RuntimeError: operation not permitted when stream is capturing."
    ]


def test_a_step_that_needs_something_from_the_host_is_not_replayed(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs
) -> None:
    w, other = again(model, vocabulary, recorded), again(model, vocabulary, recorded)
    assert recorded.step([w, other]) == [w, other], "of two jobs"
    w.sampler = renoise.on_host(threshold.select)
    assert recorded.step([w]) == [w], "another sampler"
    w.sampler = SAMPLER
    hole = w.canvas.holes[0]
    hole.grammar = vocabulary.grammar(Pattern("[a-z]+"), ())
    assert recorded.step([w]) == [w], "a grammar"
    hole.grammar = None
    assert recorded.step([w]) == []


def test_rows_that_are_not_there_choose_no_experts_of_their_own(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Tensor]()
    inner = model.fixed

    def fixed(rows: Fixed) -> Tensor:
        seen.append(inner(rows))
        return seen[-1]

    monkeypatch.setattr(model, "fixed", fixed)
    w = again(model, vocabulary, recorded, "no context")
    fill(model, w, recorded.step)
    assert w.canvas.rows < graphs.BUCKETS[0]
    assert seen
    for hidden in seen:
        assert len(hidden) == graphs.BUCKETS[0]
        torch.testing.assert_close(hidden[w.canvas.rows :], hidden[:1].expand_as(hidden[w.canvas.rows :]))


# One step ahead


def test_the_next_step_is_launched_before_the_host_hears_of_the_last(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of in (24, 4):
        w = again(model, vocabulary, recorded)
        w.of = of
        with monkeypatch.context() as patch:
            watched = Watched(patch)
            fill(model, w, recorded.step)
        steps = [f"launch {step}" for step in range(min(w.step + 1, of))]
        # The host has to hear which token heals the start.
        expected = [steps[0], "receive", steps[1], *(seen for step in steps[2:] for seen in (step, "receive"))]
        # The canvas that ends before its last step leaves one that nobody receives.
        assert watched.seen == [*expected, *(["receive"] if w.step == of else [])]
        assert (w.step == of) == (of == 4)


def test_a_canvas_is_given_up_while_a_step_is_under_way_and_another_gets_its_keys_and_values(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs
) -> None:
    for place in ("a line", "pins between holes", "no context"):
        w = again(model, vocabulary, recorded)
        for _ in range(4):
            uniform.step(model, [w], recorded.step)
        assert w in recorded._under_way
        kv, before = w.kv, len(recorded._under_way)
        del w
        assert len(recorded._under_way) == before - 1, "its outcome is dropped"
        other, plain = denoising(model, vocabulary, place), denoising(model, vocabulary, place)
        shared = common(kv.ids, other.kv.ids)
        kv.truncate(shared)
        if missing := other.kv.ids[kv.length :]:
            model.prefill(missing, kv)
        other.kv = kv
        step, taken = counted(recorded)
        assert_same(fill(model, other, step), fill(model, plain))
        assert any(taken)


def plain(message: EngineMessage) -> Any:
    """Without times, and without what the order of additions changes."""
    if isinstance(message, Locked | Done):
        more = (message.steps, message.stop) if isinstance(message, Done) else message.step
        return message.job, [(fill.text, fill.locked, fill.open) for fill in message.holes], more
    return message


@pytest.mark.parametrize("ending", ["deadline", "cancel", "supersede", "gone"])
def test_a_job_ends_while_a_step_is_under_way(model: DiffusionGemma, vocabulary: Vocabulary, ending: str) -> None:
    """What it answers, and what the next job behind the same context gets, is what it is without."""
    found = list[list[Any]]()
    for replayed in (True, False):
        engine = Scheduler(model)
        recorded = Graphs(model, schedule_of(model), SAMPLER, engine.vocabulary)
        stepped = partial(uniform.step, replay=recorded.step if replayed else None)
        engine._methods["uniform"] = partial(begin, model, SAMPLER, partial(advance, stepped))
        now, told = 0.0, list[Any]()
        for number in range(3):
            job = infill(f"job {number}", CODE[:400] + "x = ", "\nprint(x)\n", Hole(8, "line"), document="it", seed=1)
            engine.take(b"a", job, now)
            while engine.jobs[0].steps < STEPS_OF_JOB:  # and it is not over yet
                told += engine.step(lambda: now)  # noqa: B023
            assert len(recorded._under_way) == replayed
            if ending == "deadline":
                now += 1000
                told += engine.expire(now)
            elif ending == "cancel":
                told += engine.take(b"a", Cancel(f"job {number}"), now)
            elif ending == "supersede":
                told += engine.take(b"a", replace(job, job=f"newer {number}", suffix="\n"), now)
                assert not recorded._under_way
                while engine.busy:
                    told += engine.step(lambda: now)  # noqa: B023
            else:
                engine.drop(b"a")
            assert not engine.busy
            assert not recorded._under_way or ending == "supersede"
        found.append([plain(event) for _, event in told])
    assert found[0] == found[1]


# What a CUDA graph cannot hold

ASKS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "_unique2", "item"}


class Unasked(TorchDispatchMode):
    """Raises where an operation's result has to be known to go on, or has a shape that depends on it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("index", "index_put", "index_put_"):
            assert all(at is None or at.dtype != torch.bool for at in args[1]), "the host is asked how many there are"
        assert name not in ASKS, f"the host is asked by {func}"
        return func(*args, **(kwargs or {}))


def through_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but that the interpreter may look into tensors."""
    for module in (attention, decision, experts, gated, head, norms, renoise, rotary):
        monkeypatch.setattr(module, "fused", lambda *_, **__: True)
    launcher = jit.triton.runtime.interpreter.GridExecutor
    run = launcher.__call__

    def unwatched(*given: Any, **more: Any) -> Any:
        with _disable_current_modes():
            return run(*given, **more)

    monkeypatch.setattr(launcher, "__call__", unwatched)


@pytest.mark.skipif(jit.triton is None, reason="Triton is not for this platform")
def test_a_recorded_step_asks_the_host_nothing(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = again(model, vocabulary, recorded, "no context")
    for _ in range(2):
        uniform.step(model, [w])
    assert not w.canvas.unhealed()
    recording = recorded._recording([w])
    assert recording is not None
    recording._hold([w], [uniform.begin(model, w)])
    through_kernels(monkeypatch)
    with Unasked():
        recording._step()
    with pytest.raises(AssertionError, match="the host is asked"), Unasked():
        float(recording._told[0, 0])


@pytest.mark.slow
@pytest.mark.skipif(jit.triton is None, reason="Triton is not for this platform")
def test_a_job_through_the_kernels_is_a_job_without_them(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With typed context and several lengths."""
    plain = raced(model, vocabulary, "no context", 3)
    through_kernels(monkeypatch)
    assert_same_race(raced(model, vocabulary, "no context", 3, recorded.step), plain, 2e-3)


@pytest.mark.slow
@pytest.mark.skipif(jit.triton is None, reason="Triton is not for this platform")
@pytest.mark.parametrize("place", ["no context", "pins between holes"])
def test_a_fill_through_the_kernels_is_a_fill_without_them(
    model: DiffusionGemma, vocabulary: Vocabulary, recorded: Graphs, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys and values move after each step."""
    plain = fill(model, denoising(model, vocabulary, place))
    w = denoising(model, vocabulary, place)
    through_kernels(monkeypatch)
    ours = fill(model, w, recorded.step, lambda w: w.kv.reserve(w.kv.buffers[0][0].shape[1] + 1))
    assert [[slot[::2] for slot in step] for step in ours] == [[slot[::2] for slot in step] for step in plain]
    for one, other in zip(ours, plain, strict=True):
        assert [prob for _, prob, _ in one] == pytest.approx([prob for _, prob, _ in other], abs=2e-3)
