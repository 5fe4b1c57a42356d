"""What the worker does before it says that it is ready."""

from collections.abc import Callable

import pytest

from caesura import wire
from caesura.engine import worker
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.scheduler import Scheduler


def test_a_model_on_a_gpu_has_filled_holes_of_every_size_before_it_is_ready(tiny: BlockLlama) -> None:
    engine, sizes = Scheduler(tiny), set[int]()
    step = engine.step

    def watched(clock: Callable[[], float]) -> worker.Answers:
        sizes.update(
            hole.max_tokens for live in engine.jobs for hole in live.job.segments if isinstance(hole, wire.Hole)
        )
        return step(clock)

    engine.step = watched  # type: ignore[method-assign]
    worker.rehearse(engine)
    assert sizes == set(worker.REHEARSED)
    assert not engine.busy


def test_a_model_that_answers_nothing_is_not_ready(tiny: BlockLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Scheduler(tiny)
    monkeypatch.setattr(engine, "take", lambda *_: [(b"", wire.Failed("rehearsal", "invalid"))])
    with pytest.raises(worker.CannotLoad, match="does not answer"):
        worker.rehearse(engine)
