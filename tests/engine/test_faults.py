"""What a user gets when the model's numbers are none, memory runs out, or a device fails: an answer, and an engine."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from caesura import wire
from caesura.engine import faults, models, scheduler
from caesura.engine.faults import Broken, Faults
from caesura.engine.model import Run
from caesura.engine.models.devices import Gpu
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores.host import HostScores
from caesura.engine.scores.tensors import TensorScores

from ..support.checkpoints import gemma

JSON = wire.Hole(12, grammar=wire.Json())
LINE = wire.Hole(12, kind="line")


Fault = Callable[[Any, Sequence[Run]], Any]


class Faulty:
    """A model whose forwards fail, from the one with number `after` on, as `fault` says."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.mend()

    def mend(self) -> None:
        self.fail(lambda found, runs: found)

    def fail(self, fault: Fault, after: int = 0) -> None:
        self._fault, self._left = fault, after

    def _fails(self, found: Any, runs: Sequence[Run] = ()) -> Any:
        self._left -= 1
        return found if self._left >= 0 else self._fault(found, runs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> Any:
        return self._fails(self._model.forward(trees, canvases), [*trees, *canvases])

    def denoise(self, runs: Sequence[Run]) -> Any:
        return self._fails(self._model.denoise(runs), runs)

    def hidden(self, runs: Sequence[Run]) -> Any:
        return self._fails(self._model.hidden(runs), runs)

    def prefill(self, ids: Sequence[int], kv: Any) -> None:
        self._model.prefill(ids, kv)
        self._fails(None)


NAN = 0x7FC0  # in bfloat16, as a CPU keeps keys and values


def no_numbers(found: Any, runs: Sequence[Run]) -> Any:
    """In what is answered, and in what stays in the contexts."""
    for run in runs:
        with torch.inference_mode():
            for part in run.kv.get(0, 0, run.kv.length):
                part[:] = NAN if isinstance(part, np.ndarray) else torch.nan
    if isinstance(found, tuple):
        return tuple(no_numbers(part, ()) for part in found)
    if isinstance(found, TensorScores | HostScores):
        return type(found)(found.logits * np.float32(np.nan))  # type: ignore[arg-type]
    return None if found is None else found * torch.nan


def no_memory(found: Any, runs: Sequence[Run]) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def no_host_memory(found: Any, runs: Sequence[Run]) -> Any:
    return torch.empty(1 << 50)


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return models.load(str(gemma.published(tmp_path_factory.mktemp("faults") / "tiny")), "cpu")


@pytest.fixture(params=["threshold", "verify", "uniform"])
def faulty(request: pytest.FixtureRequest, tiny: NativeLlama, uniform: Any) -> tuple[Faulty, str | None]:
    """A model and the sampler that it is asked with."""
    return (Faulty(uniform), None) if request.param == "uniform" else (Faulty(tiny), request.param)


def job(name: str, hole: wire.Hole, sampler: str | None, prefix: str = "x = ") -> wire.Infill:
    return wire.Infill(
        job=name, document=name, prefix=prefix, suffix="\n", segments=(hole,), sampler=sampler, deadline_ms=60_000
    )


def answers(engine: Scheduler, *jobs: wire.Infill) -> dict[str, wire.EngineMessage]:
    """The last message of each job."""
    clock, last = iter(range(1 << 20)), dict[str, Any]()
    events = [event for one in jobs for event in engine.take(b"peer", one, 0.0)]
    while engine.busy:
        events += engine.step(lambda: next(clock) / 1e3)
    for _, event in events:
        last[event.job] = event
    return last


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("hole", [LINE, JSON], ids=["line", "json"])
def test_what_is_no_number_ends_its_job_and_is_never_shown(
    faulty: tuple[Faulty, str | None], hole: wire.Hole, after: int
) -> None:
    model, sampler = faulty
    engine = Scheduler(model)  # type: ignore[arg-type]
    whole = answers(engine, job("before", hole, sampler))["before"]
    model.fail(no_numbers, after)
    failed = answers(engine, job("during", hole, sampler))["during"]
    assert failed == wire.Failed("during", "engine_lost", "The model's answer was no numbers.", after)
    model.mend()
    again = answers(engine, job("before", hole, sampler))["before"]
    assert isinstance(whole, wire.Done)
    assert isinstance(again, wire.Done)
    assert again.holes == whole.holes  # nothing of it is left in a context that is used again


@pytest.mark.parametrize("fault", [no_memory, no_host_memory])
def test_where_memory_runs_out_jobs_are_answered_and_the_engine_does_less_at_once(
    faulty: tuple[Faulty, str | None], fault: Fault
) -> None:
    model, sampler = faulty
    engine = Scheduler(model)  # type: ignore[arg-type]
    answers(engine, job("before", LINE, sampler, "word " * 40))
    model.fail(fault)
    last = answers(engine, *(job(str(number), LINE, sampler) for number in range(2)))
    assert {getattr(event, "code", "") for event in last.values()} == {"engine_lost"}
    model.mend()
    kept = engine.cache.reused
    answers(engine, job("before", LINE, sampler, "word " * 40))
    assert engine.cache.reused == kept  # of what was read before
    last = answers(engine, *(job(str(number), LINE, sampler) for number in range(6)))
    assert all(isinstance(event, wire.Done) for event in last.values())
    assert engine.faults.live <= scheduler.LIVE // 2


def test_a_context_that_does_not_fit_into_memory_costs_its_job_alone(tiny: NativeLlama) -> None:
    model = Faulty(tiny)
    engine = Scheduler(model)  # type: ignore[arg-type]
    model.fail(no_memory)
    last = answers(engine, job("long", LINE, "threshold", "word " * 2000))
    assert last["long"] == wire.Failed("long", "engine_lost", "The engine ran out of memory.")
    model.mend()
    assert isinstance(answers(engine, job("long", LINE, "threshold", "word " * 2000))["long"], wire.Done)


def test_three_faults_in_a_minute_ask_for_another_process(tiny: NativeLlama) -> None:
    model = Faulty(tiny)
    engine = Scheduler(model)  # type: ignore[arg-type]
    model.fail(no_numbers)
    for number in range(faults.FAULTS - 1):
        answers(engine, job(str(number), LINE, "threshold"))
    with pytest.raises(Broken, match="3 faults in a minute"):
        answers(engine, job("last", LINE, "threshold"))


def test_where_memory_is_short_for_eight_all_are_answered_by_one_after_another(tiny: NativeLlama) -> None:
    """Nobody is told to try another process as long as fewer at once get on."""
    most = 0

    def short(found: Any, runs: Sequence[Run]) -> Any:
        nonlocal most
        most = max(most, len({id(run.kv) for run in runs}))
        return no_memory(found, runs) if len({id(run.kv) for run in runs}) > 1 else found

    model = Faulty(tiny)
    engine = Scheduler(model)  # type: ignore[arg-type]
    model.fail(short)
    for _ in range(3):
        answers(engine, *(job(str(number), LINE, "threshold") for number in range(8)))
    assert most > 4  # it was tried
    last = answers(engine, *(job(str(number), LINE, "threshold") for number in range(8)))
    assert {type(event) for event in last.values()} == {wire.Done}


def test_memory_that_one_job_alone_does_not_get_is_a_fault(tiny: NativeLlama) -> None:
    model = Faulty(tiny)
    engine = Scheduler(model)  # type: ignore[arg-type]
    model.fail(no_memory)
    for number in range(faults.FAULTS - 1):
        answers(engine, job(str(number), LINE, "threshold"))
    with pytest.raises(Broken, match="3 faults in a minute"):
        answers(engine, job("last", LINE, "threshold"))


def test_as_many_jobs_as_before_run_together_once_memory_has_been_there_for_a_while() -> None:
    policy = Faults(8)
    policy.out_of_memory(8, 0.0)
    assert policy.live == 4
    for _ in range(10 * faults.STEADY):
        policy.stepped(3)  # no proof that there would be room for more
    assert policy.live == 4
    for _ in range(4 * faults.STEADY):
        policy.stepped(8)
    assert policy.live == 8
    for _ in range(faults.STEADY):
        policy.stepped(8)
    assert policy.live == 8


def test_it_is_half_of_those_that_ran_together_that_run_on() -> None:
    policy = Faults(8)
    for ran, live in ((1, 8), (5, 2), (3, 1), (1, 1)):
        policy.out_of_memory(ran, 0.0)
        assert policy.live == live


def test_faults_that_lie_far_apart_are_forgiven(tiny: NativeLlama) -> None:
    model = Faulty(tiny)
    engine = Scheduler(model)  # type: ignore[arg-type]
    model.fail(no_numbers)
    for number in range(5):
        engine.take(b"peer", job(str(number), LINE, "threshold"), 40.0 * number)
        while engine.busy:
            engine.step(lambda number=number: 40.0 * number)  # type: ignore[misc]


def test_a_device_that_has_failed_takes_the_process_along(tiny: NativeLlama) -> None:
    def lost(found: Any, runs: Sequence[Run]) -> Any:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    for prefix in ("x = ", "word " * 2000):
        model = Faulty(tiny)
        engine = Scheduler(model)  # type: ignore[arg-type]
        model.machine = Gpu("cuda")
        model.fail(lost)
        with pytest.raises(torch.AcceleratorError):
            answers(engine, job("job", LINE, "threshold", prefix))
