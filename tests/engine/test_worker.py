"""What the worker does before it says that it is ready, and how it shows that it is there."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import zmq

from caesura import wire
from caesura.engine import models, scheduler, worker
from caesura.engine.methods.uniform.graphs import Graphs
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.supervisor import link

from ..support.checkpoints import qwen


def test_a_model_on_a_gpu_has_filled_holes_of_every_size_before_it_is_ready(tiny: NativeLlama) -> None:
    engine, sizes = Scheduler(tiny), set[int]()
    step = engine.step

    def watched(clock: Callable[[], float]) -> worker.Answers:
        sizes.update(
            hole.max_tokens for live in engine.jobs for hole in live.job.segments if isinstance(hole, wire.Hole)
        )
        return step(clock)

    engine.step = watched  # type: ignore[method-assign]
    worker.rehearse(engine, compiles=True, whole=False)
    assert sizes == set(worker.REHEARSED)
    assert not engine.busy


def test_on_a_cpu_one_step_shows_how_slow_the_machine_is(
    tiny: NativeLlama, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(worker.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(models, "load", lambda *_, **choices: tiny)
    loaded = worker.load(str(tiny_folder), "cpu")
    assert loaded.device == f"cpu:{tiny.kernels}"
    assert 1 <= loaded.step_s < 10  # looks at the clock
    assert not loaded.scheduler.busy


def test_a_load_tells_how_far_it_is(tmp_path: Path) -> None:
    told = list[str]()
    worker.load(str(qwen.published(tmp_path / "qwen")), "cpu", told.append)
    stages = [news.partition(",")[0] for news in told]
    shares = [int(news.partition(", ")[2].removesuffix(" %")) for news in told[:-1]]
    assert list(dict.fromkeys(stages)) == ["reading and packing the weights", "taking the first steps"]
    assert shares == sorted(set(shares))
    assert len(shares) > 5


def test_a_model_that_answers_nothing_is_not_ready(tiny: NativeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scheduler(tiny)
    monkeypatch.setattr(engine, "take", lambda *_: [(b"", wire.Failed("rehearsal", "invalid"))])
    with pytest.raises(worker.CannotLoad, match="does not answer"):
        worker.rehearse(engine, compiles=True, whole=False)


def no_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.\nSee the documentation.")


def no_device(*_: object, **__: object) -> None:
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might ...")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (no_memory, "There is not enough memory."),
        (no_device, "AcceleratorError: CUDA error: an illegal memory access was encountered."),
    ],
)
@pytest.mark.parametrize("where", [(models, "load"), (Graphs, "rehearse"), (worker, "rehearse")])
def test_what_the_machine_cannot_do_is_said_in_a_sentence(
    tiny: NativeLlama,
    tiny_folder: Path,
    fault: Callable[..., None],
    sentence: str,
    where: tuple[object, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGpu(Scheduler):
        def __init__(self, *arguments: object) -> None:
            Graphs.rehearse(None)  # type: ignore[arg-type]

    monkeypatch.setattr(models, "load", lambda *_, **choices: tiny)
    monkeypatch.setattr(Graphs, "rehearse", lambda self: None)
    monkeypatch.setattr(scheduler, "Scheduler", OnGpu)
    monkeypatch.setattr(tiny, "device", "cuda")
    monkeypatch.setattr(*where, fault)
    with pytest.raises(worker.CannotLoad) as refused:
        worker.load(str(tiny_folder), "cuda")
    assert str(refused.value) == f"The model cannot be used on this machine; see the engine's log. {sentence}"


def test_a_model_that_runs_out_of_memory_in_its_first_fill_says_so(tiny: NativeLlama) -> None:
    engine = Scheduler(tiny)
    engine.model = Starved(tiny)  # type: ignore[assignment]
    with pytest.raises(worker.CannotLoad, match=r"does not answer.* The engine ran out of memory\."):
        worker.rehearse(engine, compiles=True, whole=False)


class Ended(Exception):
    """Of a loop that has no other end."""


class Starved:
    def __init__(self, model: NativeLlama) -> None:
        self._model = model

    def __getattr__(self, name: str) -> object:
        return no_memory if name in ("prefill", "forward", "denoise") else getattr(self._model, name)


def test_a_job_has_the_time_that_is_left_of_it(tiny: NativeLlama) -> None:
    engine = Scheduler(tiny)
    job = wire.Infill(job="j", document="d", prefix="", suffix="", segments=(wire.Hole(),), deadline_ms=1000)
    assert worker._take(engine, link.NewJob(b"p", 250.0, wire.encode(job)), 5.0) == []
    assert [live.deadline for live in engine.jobs] == [5.25]
    cancelled = wire.Failed("j", "cancelled", "The job was cancelled.")
    assert worker._take(engine, link.CancelJob(b"p", "j"), 6.0) == [(b"p", cancelled)]
    assert not engine.busy


def test_the_time_of_a_first_step_begins_when_the_worker_wakes(tiny: NativeLlama, tmp_path: Path) -> None:
    """Not with its last sign of idleness: the step has all of the supervisor's patience."""
    progress, seen = link.Heartbeat(tmp_path / "progress"), list[int]()

    class OneStep(Scheduler):
        def step(self, clock: Callable[[], float]) -> worker.Answers:
            seen.append(progress.read())
            raise Ended

    with served() as (_, theirs), pytest.raises(Ended):
        worker.serve(theirs, progress, OneStep(tiny))
    assert seen == [1]


def test_an_idle_worker_gives_memory_back_once_a_rest(
    tiny: NativeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = list[bool]()

    def give_back() -> None:
        answered.append(bool(ours.poll(0)))

    class TwoRests(Scheduler):
        rests = 0

        def expire(self, now: float) -> worker.Answers:
            self.rests += not self.busy
            if self.rests > 3:
                raise Ended
            return super().expire(now)

    monkeypatch.setattr(worker, "give_back", give_back)
    monkeypatch.setattr(worker, "IDLE_MS", 1)
    with served() as (ours, theirs), pytest.raises(Ended):
        worker.serve(theirs, link.Heartbeat(tmp_path / "progress"), TwoRests(tiny))
    assert answered == [True]  # behind the job, not before its answer, and not again while nothing happens


@contextmanager
def served() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """The supervisor's end of a worker's link and the worker's, to which a job is on its way."""
    job = wire.Infill(job="j", document="d", prefix="", suffix="", segments=(wire.Hole(),), deadline_ms=1000)
    with zmq.Context() as context, link.pair(context) as ours, link.pair(context) as theirs:
        ours.bind("inproc://link")
        theirs.connect("inproc://link")
        ours.send(link.encode(link.NewJob(b"p", job.deadline_ms, wire.encode(job))))
        yield ours, theirs


def test_what_is_imported_and_loaded_is_never_looked_through_for_garbage() -> None:
    code = """if True:
        import gc
        from caesura.engine import worker
        with worker.kept():
            assert not gc.isenabled()
            held = [[] for _ in range(1000)]
        assert gc.isenabled() and gc.get_freeze_count() > 1000
        assert not any(one is held for one in gc.get_objects())
    """
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_a_model_that_is_let_go_is_freed_with_what_refers_to_itself() -> None:
    code = """if True:
        import gc, weakref
        from caesura.engine import worker
        class Part: pass
        with worker.kept():
            part = Part()
            part.whole = part
        found = weakref.ref(part)
        del part
        gc.collect()
        assert found() is not None
        worker.release()
        assert found() is None and gc.get_freeze_count() > 1000
    """
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_small_files_are_hashed_and_the_tokenizer_is_read_ahead(tiny_folder: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from caesura import model_store
        from caesura.engine.weights import ahead
        from caesura.engine.tokens.tokenizer import Tokenizer
        folder = Path(sys.argv[1])
        ahead.begin(str(folder))
        begun = set(ahead._begun)
        names = [name for name in model_store.manifest(folder).files if name.endswith(".json")]
        files = {(model_store.sha256, folder / name) for name in names}
        assert begun == files | {(Tokenizer, folder / "tokenizer.json")}
        assert "torch" not in sys.modules
        from caesura.engine.weights import stored
        stored.verify(folder)
        assert not ahead._begun.keys() & files
    """
    subprocess.run([sys.executable, "-P", "-c", code, str(tiny_folder)], check=True)
