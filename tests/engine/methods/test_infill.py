"""Infilling by a model of uniform noise (DiffusionGemma's kind, random weights): what is pinned stays, the same job has
the same answer however its context came into the cache, and every length is tried.
"""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from caesura import wire
from caesura.engine import length, models
from caesura.engine.cache import Cache
from caesura.engine.cache.tensors import TensorStore
from caesura.engine.canvas.canvas import Canvas, Slot
from caesura.engine.canvas.healing import heal
from caesura.engine.draws import Draws
from caesura.engine.methods import _race as race
from caesura.engine.methods._race import Race
from caesura.engine.methods.uniform import TRIAL, renoise
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.model import MAX_ROWS, ModelError, Run
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma, kept
from caesura.engine.noise import Uniform
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores import told
from caesura.engine.scores.host import HostScores
from caesura.kernels.head import Rows, Seen
from caesura.wire import Hole, Text

from ...support.checkpoints import gemma
from ...support.checkpoints.tiny import CODE, Clock, alone, done, infill, laid_out, run

BEFORE, AFTER = CODE[:400] + "def total(count, item):\n    retu", "\n\nprint(total(1, 2))\n" + CODE[400:600]


BITS = ["x = ", "def f(a):\n    ", "\n", "self.", "漢字", "🐍", "count", "  ", "'", "<|turn>", "\t", "retu", CODE[:300]]


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder. Read only."""
    return gemma.published(tmp_path_factory.mktemp("random") / "tiny")


@pytest.fixture(scope="module")
def model(random: Path) -> DiffusionGemma:
    found = models.load(str(random))
    assert isinstance(found, DiffusionGemma)
    return found


@pytest.fixture
def shown(model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Every run that the model is asked for."""
    runs = list[Run]()
    inner = model.hidden

    def watched(asked: list[Run]) -> Tensor:
        runs.extend(asked)
        return inner(asked)

    monkeypatch.setattr(model, "hidden", watched)
    return runs


def denoising(model: DiffusionGemma, *segments: Text | Hole, slots: int = 8, of: int = 12) -> uniform.Renoising:
    layout = laid_out(model, BEFORE, AFTER, *segments, slots=slots)
    kv = model.cache().lease(layout.context)
    model.prefill(layout.context, kv)
    return uniform.Renoising(layout.canvas, kv, by_entropy, of, 1)


def said(answer: wire.Done) -> list[tuple[str, object]]:
    """The answer but for the last digits of its probabilities."""
    return [(fill.text, fill.locked) for fill in answer.holes]


# What is shown


def test_the_suffix_head_is_pinned_on_the_canvas_and_all_of_it_stands_before_the_prefix(
    model: DiffusionGemma, shown: list[Run]
) -> None:
    scheduler = Scheduler(model)
    run(scheduler, [infill("a", BEFORE, AFTER, Hole(8, "line"))])
    head = model.tokenizer.encode(AFTER)[:12]
    assert len(shown) > 3
    for one in shown:
        assert list(one.ids)[-12:] == head
    context = model.tokenizer.decode(shown[0].kv.ids)
    assert context.index("print(total(1, 2))") < context.index("def total(count, item)")
    for control in ("<bos>", "<|turn>", "<turn|>"):
        assert model.tokenizer.special(control) in shown[0].kv.ids


def test_several_lengths_are_rows_of_one_forward_and_the_canvas_is_no_longer_than_they(
    model: DiffusionGemma, shown: list[Run]
) -> None:
    scheduler = Scheduler(model)
    scheduler.take(b"p", infill("a", "x = 1\ny =", "\n", Hole(8, "line")), 0.0)
    while not shown:
        scheduler.step(lambda: 0.0)
    head = len(model.tokenizer.encode("\n"))
    assert [len(one.ids) - head for one in shown] == [n for n in length.LINE if n <= len(shown[-1].ids) - head]
    assert len(shown) > 4


def test_context_and_first_step_are_one_forward(
    model: DiffusionGemma, shown: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "spec", replace(model.spec, chunk=512))
    monkeypatch.setattr(model, "prefill", lambda ids, kv: pytest.fail("a forward of its own"))
    scheduler = Scheduler(model)
    run(scheduler, [infill("a", "x = ", "\n", Hole(4, "line"))])
    assert shown[0].fresh
    first = [one for one in shown if one.fresh]
    assert first == [shown[0]]
    length_before = len(shown[0].kv.ids)
    shown.clear()
    run(scheduler, [infill("b", "x = 12 + y", "\n", Hole(4, "line"))])
    assert 0 < len(shown[0].fresh) < length_before / 2, "typing appends"


# What stays


def test_what_is_pinned_never_changes(model: DiffusionGemma, shown: list[Run]) -> None:
    w = denoising(model, Hole(8, "line"), Text("(item, "), Hole(8, "line"))
    slots = set(w.canvas.slot_rows())
    while not w.finished:
        uniform.step(model, [w])
    rows = [[token for row, token in enumerate(one.ids) if row not in slots] for one in shown]
    assert rows == [rows[0]] * len(rows)
    assert len(rows) >= 2


def test_a_locked_slot_is_pinned_from_then_on(model: DiffusionGemma, shown: list[Run]) -> None:
    w = denoising(model, Hole(8, "line"))
    uniform.step(model, [w])
    slot, row = w.canvas.slots[3], w.canvas.slot_rows()[3]
    slot.token, slot.locked = slot.draft, True
    while not w.finished:
        uniform.step(model, [w])
        assert w.canvas.slots[3].draft == slot.token
    assert {list(one.ids)[row] for one in shown[1:]} == {slot.token}
    assert w.state is not None
    assert w.state.best[3] == slot.token


def test_a_pinned_slot_takes_nothing_from_the_budget_and_is_sure_of_itself(model: DiffusionGemma) -> None:
    """Three sure slots and one that is not: alone the third waits, and does not when the unsure one is pinned."""
    schedule = model.spec.noise.schedule if isinstance(model.spec.noise, Uniform) else pytest.fail("no schedule")
    schedule = replace(schedule, t_min=1.0, t_max=1.0)
    logits = torch.full((3, model.width), -20.0)
    logits[0, 7] = logits[1, 8] = 20.0
    logits[2] = 0.0
    for pinned, accepted in ((None, 3), (2, 2)):
        state = renoise.start(model, [None] * 3, renoise.first_noise(model, 3, Draws(0)))
        state = replace(state, best=torch.tensor([7, 8, 9]))
        open = torch.tensor([i != pinned for i in range(3)])
        outlook = renoise.of_logits(model, logits, torch.tensor(schedule.temperature(0, 1)))
        uniform, noise = renoise.chances(model, 3, Draws(0))
        pick = partial(outlook.pick, uniform)
        state, scores, taken = renoise.advance(model, state, outlook, by_entropy, 0, 1, open, pick, noise)
        assert int(taken.sum()) == accepted
        assert (float(scores.entropy[0, 2]) == 0.0) == (pinned == 2)
        assert state.conditioning is not None
        certain = model.embedded(torch.tensor([9]))[0]
        assert torch.allclose(state.conditioning[2], certain) == (pinned == 2)


def test_no_slot_ends_the_text_while_a_suffix_follows_and_any_may_where_none_does(model: DiffusionGemma) -> None:
    ends = sorted(model.spec.ends)
    assert len(ends) == 3
    for suffix, may in ((AFTER, False), ("", True)):
        canvas = laid_out(model, BEFORE + "rn\n", suffix, Hole(8, "block"), slots=8).canvas
        canvas.holes[0].forced = b""
        (logp,) = told(canvas.constrain(HostScores(np.zeros((8, model.width), np.float32))).dense())
        allowed = np.isfinite(logp)
        assert bool(allowed[:, ends].any()) == bool(allowed[:, ends].all()) == may
        assert not allowed[:, model.tokenizer.special("<|turn>")].any()
        assert not allowed[:, model.tokenizer.size :].any(), "the embedding has rows for no token"


def test_what_stands_behind_an_end_token_is_no_text(model: DiffusionGemma) -> None:
    canvas = laid_out(model, "x = 1\n", "", Hole(8, "block"), slots=3).canvas
    canvas.holes[0].forced = b""
    words = model.tokenizer.encode("count")
    for slot, token in zip(canvas.slots, [words[0], min(model.spec.ends), words[0]], strict=True):
        slot.draft, slot.prob = token, 0.5
    assert canvas.fills()[0].text == model.tokenizer.decode(words[:1])


# The same answer


def test_the_same_job_has_the_same_answer_cold_appended_or_forked(model: DiffusionGemma) -> None:
    job = infill("a", BEFORE, AFTER, Hole(12, "line"))
    cold = said(alone(model, job))
    assert cold[0][0]
    appended = Scheduler(model)
    for key in range(6, 0, -1):  # as it is typed
        run(appended, [infill("a", BEFORE[:-key], AFTER, Hole(4, "line"))])
    reused = appended.cache.reused
    assert said(done(run(appended, [job])["a"])) == cold
    assert appended.cache.reused > reused
    forked = Scheduler(model)
    run(forked, [infill("b", BEFORE + CODE * 3, AFTER, Hole(4, "line"))])
    assert said(done(run(forked, [job])["a"])) == cold
    assert len(forked.cache._free) == 2, "the longer context is still there"


def test_a_batch_gives_each_canvas_what_it_gets_alone(model: DiffusionGemma) -> None:
    places = [("x = ", "\n"), (BEFORE, AFTER), ("def f(a):\n    ", "\n\n"), ("", "x\n")]
    jobs = [infill(f"j{i}", *place, Hole(6, "line"), seed=i) for i, place in enumerate(places)]
    together = run(Scheduler(model), jobs)
    for job in jobs:
        assert said(done(together[job.job])) == said(alone(model, job))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_in_a_sentence(random: Path) -> None:
    with pytest.raises(ModelError, match="no CUDA device"):
        models.load(str(random), "cuda")


def test_a_draft_of_the_models_own_answer_is_confirmed_in_fewer_steps(model: DiffusionGemma) -> None:
    job = infill("a", "x = 1\ny", "\n", Hole(6, "line"))
    answer = alone(model, job)
    again = alone(model, msgspec.structs.replace(job, draft=(answer.holes[0].text,)))
    assert again.steps <= answer.steps


# Streams, lengths, warm starts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.lists(st.sampled_from(BITS), max_size=4).map("".join),
    suffix=st.lists(st.sampled_from(BITS), max_size=3).map("".join),
    hole=st.builds(Hole, st.sampled_from([1, 4, 8, 32]), st.sampled_from(["line", "block", "span"])),
    seed=st.integers(0, 3),
)
def test_drafts_come_from_the_first_step_and_locked_text_only_grows(
    model: DiffusionGemma, prefix: str, suffix: str, hole: Hole, seed: int
) -> None:
    events = run(Scheduler(model), [infill("a", prefix, suffix, hole, seed=seed)])["a"]
    steps = [event for event in events if isinstance(event, wire.Locked)]
    assert steps[0].step == 1
    locked = ""
    for event in [*steps, done(events)]:
        fill = event.holes[0]
        text = fill.text[: fill.locked[0][1]] if fill.locked and fill.locked[0][0] == 0 else ""
        assert text.startswith(locked)
        locked = text
    assert locked == done(events).holes[0].text


def test_at_a_deadline_in_mid_race_the_answer_is_the_best_length_so_far(model: DiffusionGemma) -> None:
    scheduler, clock = Scheduler(model), Clock()
    scheduler.take(b"p", infill("a", "x = 1\ny", "\n", Hole(8, "line"), deadline_ms=1000.0), 0.0)
    (live,) = scheduler.jobs
    while not live.steps:
        scheduler.step(clock)
    assert isinstance(live.filling, Race)
    scores = [work.score for work in live.filling.works]
    assert len(scores) > 4
    assert scores == sorted(scores, reverse=True)
    clock.now = 2.0
    (_, event) = scheduler.expire(clock())[0]
    assert isinstance(event, wire.Done)
    assert (event.stop, bool(event.holes[0].text)) == ("deadline", True)


def test_a_cancel_in_mid_race_frees_every_length(model: DiffusionGemma) -> None:
    scheduler = Scheduler(model)
    run(scheduler, [])
    scheduler.take(b"p", infill("a", "x = 1\ny", "\n", Hole(8, "line")), 0.0)
    for _ in range(3):
        scheduler.step(lambda: 0.0)
    ((_, event),) = scheduler.take(b"p", wire.Cancel("a"), 0.0)
    assert isinstance(event, wire.Failed)
    assert not scheduler.busy
    assert not scheduler.cache.full


def test_further_candidates_are_other_answers(model: DiffusionGemma) -> None:
    answer = alone(model, infill("a", BEFORE, AFTER, Hole(12, "line"), candidates=3))
    texts = [fill.text for fills in (answer.holes, *answer.alternatives) for fill in fills]
    assert len(texts) == len(set(texts)) > 1
    assert all(texts)


def test_jobs_wait_for_memory_and_one_that_somebody_waits_for_takes_it(random: Path) -> None:
    model = models.load(str(random))
    scheduler = Scheduler(model)
    scheduler.cache = Cache(kept(model.config), TensorStore(), entries=1)  # type: ignore[attr-defined]
    jobs = [infill(f"j{i}", "x = 1\ny", "\n", Hole(4, "line")) for i in range(3)]
    events = run(scheduler, jobs)
    assert all(done(events[job.job]) for job in jobs)
    guess = infill("s", "a", "", Hole(4), priority="speculative")
    scheduler.take(b"p", guess, 0.0)
    scheduler.step(lambda: 0.0)
    waiting = infill("i", "b", "", Hole(4), priority="invoked")
    seen = scheduler.take(b"p", waiting, 0.0)
    while scheduler.busy:
        seen += scheduler.step(lambda: 0.0)
    ended = {event.job: event for _, event in seen if isinstance(event, wire.Done | wire.Failed)}
    assert isinstance(ended["i"], wire.Done)
    assert isinstance(ended["s"], wire.Failed)
    assert ended["s"].code == "cancelled"


def test_the_jobs_of_a_step_have_no_more_rows_than_fit(model: DiffusionGemma, shown: list[Run]) -> None:
    scheduler = Scheduler(model)
    for i in range(8):
        scheduler.take(b"p", infill(f"j{i}", "x = 1\ny", "\n", Hole(200, "block")), 0.0)
    before = 0
    while scheduler.busy:
        scheduler.step(lambda: 0.0)
        assert sum(len(one.ids) for one in shown[before:]) <= MAX_ROWS
        before = len(shown)


# Streams, lengths, warm starts


@pytest.mark.parametrize("prefix", [BEFORE, "x = self._", "a\n\nimp", "x = f'da", "# " + "漢" * 60, "=" * 60, "═" * 60])
def test_what_a_prefix_ends_with_is_the_start_of_the_answer(
    model: DiffusionGemma, shown: list[Run], prefix: str
) -> None:
    answer = alone(model, infill("a", prefix, AFTER, Hole(8, "line")))
    assert answer.holes[0].text
    assert "\n" not in answer.holes[0].text
    stable, forced = heal(model.tokenizer, prefix)
    assert forced
    assert model.tokenizer.decode(shown[0].kv.ids).endswith(stable[-40:])


def test_what_a_prefix_ends_with_costs_few_passes_however_many_lengths_are_tried(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, inner_hidden, inner_observe = list[int](), model.hidden, model.observe

    def hidden(runs: list[Run]) -> Tensor:
        steps.append(0)
        return inner_hidden(runs)

    def observe(rows: Rows) -> Seen:
        steps[-1] += 1
        return inner_observe(rows)

    monkeypatch.setattr(model, "hidden", hidden)
    monkeypatch.setattr(model, "observe", observe)
    prefix = "if a:\n        total"
    forced = len(heal(model.tokenizer, prefix)[1])  # a model of chance may take a token for each character
    alone(model, infill("a", prefix, AFTER, Hole(16, "line")))
    assert 1 < max(steps) <= 1 + forced


def test_a_step_ends_though_what_may_stand_in_a_slot_is_made_anew_each_time(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where more is asked for at once than is kept."""
    passes, inner = list[int](), model.observe

    def observe(rows: Rows) -> Seen:
        passes.append(len(rows.hidden))
        assert len(passes) < 500, "it asks for ever"
        return inner(rows)

    monkeypatch.setattr(model, "observe", observe)
    job = infill("a", "if a:\n        total", AFTER, Hole(16, "line"))
    kept = alone(model, job)
    scheduler = Scheduler(model)
    vocabulary = scheduler.vocabulary
    monkeypatch.setattr(vocabulary, "allowed", lambda *asked: vocabulary._allowed(*asked))
    assert said(done(run(scheduler, [job])["a"])) == said(kept)


def test_a_draft_is_shown_to_the_first_forward_and_its_conditioning(model: DiffusionGemma) -> None:
    canvas = laid_out(model, "x = 1\ny", "\n", Hole(4, "line"), slots=4).canvas
    canvas.holes[0].forced = b""
    tokens = model.tokenizer.encode("count")[:2]
    for slot, token in zip(canvas.slots, tokens, strict=False):
        slot.shown = token
    state = renoise.start(model, [slot.shown for slot in canvas.slots], renoise.first_noise(model, 4, Draws(0)))
    assert state.ids[: len(tokens)].tolist() == state.best[: len(tokens)].tolist() == tokens
    assert state.conditioning is not None
    expected = model.weights.embed[torch.tensor(tokens)] * model.scale
    assert torch.allclose(state.conditioning[: len(tokens)], expected, atol=1e-5)
    assert not state.conditioning[len(tokens) :].any()


def raced(scores: list[float], wanted: int) -> tuple[Race, list[int]]:
    """A race of canvases, of which nothing but the score matters here, and how many were left after each step."""
    made = [uniform.Renoising(None, None, by_entropy, 8, 0) for _ in scores]  # type: ignore[arg-type]
    for work, score in zip(made, scores, strict=True):
        work.score = score
    run, counts = Race([*made], wanted, lambda *_: None, TRIAL), list[int]()
    for _ in range(5):
        run.choose()
        counts.append(len(run.works))
    return run, counts


def test_a_third_of_the_lengths_goes_on_and_the_best_is_first() -> None:
    run, counts = raced([float(-abs(i - 5)) for i in range(12)], wanted=1)
    assert counts == [12, 4, 2, 1, 1]
    assert run.works[0].score == 0.0
    assert not run.works[0].judged, "it may lock text now"


def test_as_many_lengths_stay_as_answers_are_wanted_and_text_locks_no_later() -> None:
    run, counts = raced([float(-i) for i in range(12)], wanted=3)
    assert counts == [12, 4, 3, 3, 3]
    assert [work.score for work in run.works] == [0.0, -1.0, -2.0]
    assert not any(work.judged for work in run.works)


@pytest.mark.parametrize(("most", "one_line"), itertools.product((1, 2, 7, 32, 256), (True, False)))
def test_lengths_are_within_the_budget_and_there_is_always_one(most: int, one_line: bool) -> None:
    found = length.tried(most, one_line=one_line)
    assert found
    assert all(1 <= n <= most for n in found)
    assert found == sorted(set(found))


def test_no_canvases_of_a_job_take_more_rows_than_a_step_has(model: DiffusionGemma) -> None:
    for holes in ([Hole(256, "block")], [Hole(32, "line")] * 8, [Hole(24, "block"), Hole(1, "line")]):
        segments = [part for hole in holes for part in (hole, Text(", "))]
        canvas = laid_out(model, BEFORE, AFTER, *segments, slots=1).canvas
        made = race.starters(canvas, [3] * len(holes), [], MAX_ROWS)
        assert 0 < sum(one.rows for one in made) <= MAX_ROWS
    far = replace(canvas, layout=[*canvas.layout, *[7] * MAX_ROWS])
    with pytest.raises(ValueError, match="512 fit"):
        race.starters(far, [0, 0], [], MAX_ROWS)


def test_a_hole_beside_one_with_a_draft_is_not_starved(model: DiffusionGemma) -> None:
    canvas = laid_out(model, "f(", ")\n", Hole(16), Text(", "), Hole(16), slots=1).canvas
    warm = race.starters(canvas, [0, 0], [[7, 8, 9], []], MAX_ROWS)[0]
    assert [len(warm.of_hole(n)) for n in (0, 1)] == [3, race.UNKNOWN]
    assert [slot.shown for slot in warm.of_hole(0)] == [7, 8, 9]


def test_what_fits_the_suffix_scores_above_what_does_not() -> None:
    hole, fits, spoils = [-0.1, -0.2], [-0.1] * 4, [-2.0] * 4
    assert length.score(hole, fits) > length.score(hole, spoils)
    assert length.score(hole, fits[:0]) == pytest.approx(-0.15)


def test_a_canvas_is_resized_within_each_holes_budget(model: DiffusionGemma) -> None:
    canvas: Canvas = laid_out(model, "f(", ")\n", Hole(2), Text(", "), Hole(9), slots=1).canvas
    wide = canvas.resized([6, 6])
    fixed = [row for row in canvas.layout if not isinstance(row, Slot)]
    assert [row for row in wide.layout if not isinstance(row, Slot)] == fixed
    assert [len(wide.of_hole(n)) for n in (0, 1)] == [min(6, hole.max_tokens) for hole in canvas.holes]


def test_a_job_that_asks_for_what_the_family_cannot_do_is_refused(model: DiffusionGemma) -> None:
    for field, sentence in (("sampler", "cannot verify drafts"), ("prompt", "no separator")):
        job = infill("a", "x", "", **{field: {"sampler": "verify", "prompt": "suffix_first"}[field]})
        (event,) = run(Scheduler(model), [job])["a"]
        assert isinstance(event, wire.Failed)
        assert sentence in event.message
