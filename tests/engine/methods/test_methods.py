"""The contract that every method of engine/methods keeps, on a model that it can fill with."""

import itertools
from collections.abc import Iterator

import pytest

from caesura import wire
from caesura.engine import methods, models
from caesura.engine.model import Model
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler

from ...support.checkpoints import gemma, masked
from ...support.checkpoints.tiny import CODE, done, infill, run

PLACES = [(CODE[:300] + "x = ", "\n"), ("def total(a, b):\n    retu", "\n\n"), ("print(", ")\n"), ("", "")]
TWO = (wire.Hole(6), wire.Text(", "), wire.Hole(6, "span"))


@pytest.fixture(scope="module")
def loaded(tiny: NativeLlama, tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """A model of each noise, visibility and way to find a length."""
    place = tmp_path_factory.mktemp("models")
    folders = [gemma.published(place / "gemma")]
    folders += [masked.published(place / "dreamon", "dreamon", masked.stretching())]
    folders += [masked.published(place / family, family) for family in ("dream", "sdar", "fast_dllm")]
    return [tiny, *(models.load(str(folder)) for folder in folders)]


@pytest.fixture(params=methods.names())
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def served(method: str, loaded: list[Model]) -> list[Model]:
    """The models that the method can fill with."""
    found = [model for model in loaded if not methods.refusal(method, model)]
    assert found
    return found


def jobs(method: str) -> Iterator[wire.Infill]:
    for number, (prefix, suffix) in enumerate(PLACES):
        for name, segments in (("one", (wire.Hole(8),)), ("two", TWO)):
            yield infill(f"{name} {number}", prefix, suffix, *segments, method=method, candidates=2)


def test_a_method_that_a_model_lacks_is_refused_in_a_sentence(method: str, loaded: list[Model]) -> None:
    refusals = [methods.refusal(method, model) for model in loaded]
    assert "" in refusals
    assert all(sentence.endswith(".") for sentence in refusals if sentence)
    for model, sentence in zip(loaded, refusals, strict=True):
        (said,) = run(Scheduler(model), [infill("j", "x = ", "\n", wire.Hole(4), method=method)])["j"][-1:]
        assert not sentence or said == wire.Failed("j", "invalid", sentence)


@pytest.mark.parametrize("method", ["absorbing", "freedave"])
def test_text_locks_before_the_answer_also_where_further_answers_are_wanted(method: str, loaded: list[Model]) -> None:
    model = next(model for model in loaded if model.spec.lengths == "race" and not methods.refusal(method, model))

    def events(candidates: int) -> list[wire.EngineMessage]:
        job = infill("j", *PLACES[0], wire.Hole(16), method=method, candidates=candidates)
        return run(Scheduler(model), [job])["j"]

    several = events(3)
    assert any(fill.locked for event in several if isinstance(event, wire.Locked) for fill in event.holes)
    assert done(several).holes == done(events(1)).holes


def test_every_job_ends_within_its_steps_and_what_is_locked_stays(method: str, served: list[Model]) -> None:
    answers = (run(Scheduler(model), jobs(method)).items() for model in served)
    for name, events in itertools.chain.from_iterable(answers):
        answer, locked = done(events), [""] * len(done(events).holes)
        for event in events[:-1]:
            assert isinstance(event, wire.Locked)
            assert event.step <= event.of
            for hole, fill in enumerate(event.holes):
                now = fill.text[: fill.locked[0][1]] if fill.locked and not fill.locked[0][0] else ""
                assert now.startswith(locked[hole]), name
                locked[hole] = now
        assert all(fill.text.startswith(start) for fill, start in zip(answer.holes, locked, strict=True))
        assert all(len(other) == len(answer.holes) for other in answer.alternatives)


def test_a_batch_gives_each_job_what_it_gets_alone(method: str, served: list[Model]) -> None:
    batches = [(model, run(Scheduler(model), jobs(method))) for model in served]
    for (model, together), job in itertools.product(batches, jobs(method)):
        alone = done(run(Scheduler(model), [job])[job.job])
        found = done(together[job.job])
        assert [fill.text for fill in found.holes] == [fill.text for fill in alone.holes], job.job
        assert (found.steps, found.tokens) == (alone.steps, alone.tokens)


@pytest.mark.parametrize("method", [name for name in methods.names() if name != "judge"])  # which takes one step here
def test_at_a_deadline_the_best_so_far_is_the_answer(method: str, served: list[Model]) -> None:
    for scheduler in map(Scheduler, served):
        scheduler.take(b"p", infill("j", *PLACES[0], *TWO, method=method, deadline_ms=1000.0), 0.0)
        while not scheduler.jobs[0].steps:
            scheduler.step(lambda: 0.0)
        events = [event for _, event in scheduler.expire(2.0)]
        assert [event.stop for event in events if isinstance(event, wire.Done)] == ["deadline"]
        assert not scheduler.busy
