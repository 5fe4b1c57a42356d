"""Infilling by a model of uniform noise (DiffusionGemma's kind, random weights): what is pinned stays, the same job has
the same answer however its context came into the cache, and every length is tried.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import denoise, length, models, renoise
from caesura.engine.canvas import Canvas, Slot, Vocabulary, lay
from caesura.engine.models import ModelError, Run
from caesura.engine.models.diffusion_gemma import DiffusionGemma
from caesura.engine.noise import Uniform
from caesura.engine.samplers import entropy_bound
from caesura.engine.scheduler import Scheduler
from caesura.wire import Hole, Text

from . import gemma
from .tiny import CODE, alone, done, infill, run

BEFORE, AFTER = CODE[:400] + "def total(count, item):\n    retu", "\n\nprint(total(1, 2))\n" + CODE[400:600]


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
    inner = model.denoise

    def watched(asked: list[Run]) -> Tensor:
        runs.extend(asked)
        return inner(asked)

    monkeypatch.setattr(model, "denoise", watched)
    return runs


def denoising(model: DiffusionGemma, *segments: Text | Hole, slots: int = 8, of: int = 12) -> denoise.Denoising:
    layout = lay(model, Vocabulary(model), BEFORE, AFTER, segments, slots=slots)
    kv = model.cache().lease(layout.context)
    model.prefill(layout.context, kv)
    return denoise.Denoising(layout.canvas, kv, entropy_bound.select, of, torch.Generator().manual_seed(1))


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
    monkeypatch.setattr(model, "chunk", 512)
    monkeypatch.setattr(model, "prefill", lambda ids, kv: pytest.fail("a forward of its own"))
    scheduler = Scheduler(model)
    run(scheduler, [infill("a", "x = ", "\n", Hole(4, "line"))])
    assert shown[0].fresh
    first = [one for one in shown if one.fresh]
    assert first == [shown[0]]
    length_before = len(shown[0].kv.ids)
    shown.clear()
    run(scheduler, [infill("b", "x = 12", "\n", Hole(4, "line"))])
    assert 0 < len(shown[0].fresh) < length_before / 2, "typing appends"


# What stays


def test_what_is_pinned_never_changes(model: DiffusionGemma, shown: list[Run]) -> None:
    w = denoising(model, Hole(8, "line"), Text("(item, "), Hole(8, "line"))
    slots = set(w.canvas.slot_rows())
    while not w.finished:
        denoise.step(model, [w])
    rows = [[token for row, token in enumerate(one.ids) if row not in slots] for one in shown]
    assert rows == [rows[0]] * len(rows)
    assert len(rows) >= 2


def test_a_locked_slot_is_pinned_from_then_on(model: DiffusionGemma, shown: list[Run]) -> None:
    w = denoising(model, Hole(8, "line"))
    denoise.step(model, [w])
    slot, row = w.canvas.slots[3], w.canvas.slot_rows()[3]
    slot.token, slot.locked = slot.draft, True
    while not w.finished:
        denoise.step(model, [w])
        assert w.canvas.slots[3].draft == slot.token
    assert {list(one.ids)[row] for one in shown[1:]} == {slot.token}
    assert w.state is not None
    assert w.state.best[3] == slot.token


def test_a_pinned_slot_takes_nothing_from_the_budget_and_is_sure_of_itself(model: DiffusionGemma) -> None:
    """Three sure slots and one that is not: alone the third waits, and does not when the unsure one is pinned."""
    schedule = model.noise.schedule if isinstance(model.noise, Uniform) else pytest.fail("no schedule")
    schedule = replace(schedule, t_min=1.0, t_max=1.0)
    logits = torch.full((3, model.width), -20.0)
    logits[0, 7] = logits[1, 8] = 20.0
    logits[2] = 0.0
    for pinned, accepted in ((None, 3), (2, 2)):
        generator = torch.Generator().manual_seed(0)
        state = renoise.start(model, [None] * 3, generator)
        state.best = torch.tensor([7, 8, 9])
        movable = torch.tensor([i != pinned for i in range(3)])
        sampler = entropy_bound.select
        scores, taken = renoise.advance(model, state, logits, sampler, schedule, 0, 1, generator, movable)
        assert int(taken.sum()) == accepted
        assert (float(scores.entropy[0, 2]) == 0.0) == (pinned == 2)
        assert state.conditioning is not None
        certain = model.condition(renoise.certainly(torch.tensor([9]), model.width))[0]
        assert torch.allclose(state.conditioning[2], certain) == (pinned == 2)


def test_no_slot_ends_the_text_while_a_suffix_follows_and_any_may_where_none_does(model: DiffusionGemma) -> None:
    ends = sorted(model.ends)
    assert len(ends) == 3
    vocabulary = Vocabulary(model)
    for suffix, may in ((AFTER, False), ("", True)):
        canvas = lay(model, vocabulary, BEFORE + "rn\n", suffix, [Hole(8, "block")], slots=8).canvas
        canvas.holes[0].forced = b""
        allowed = canvas.constrain(torch.zeros(8, model.width)).isfinite()
        assert bool(allowed[:, ends].any()) == bool(allowed[:, ends].all()) == may
        assert not allowed[:, model.tokenizer.special("<|turn>")].any()
        assert not allowed[:, model.tokenizer.size :].any(), "the embedding has rows for no token"


def test_what_stands_behind_an_end_token_is_no_text(model: DiffusionGemma) -> None:
    vocabulary = Vocabulary(model)
    canvas = lay(model, vocabulary, "x = 1\n", "", [Hole(8, "block")], slots=3).canvas
    canvas.holes[0].forced = b""
    words = model.tokenizer.encode("count")
    for slot, token in zip(canvas.slots, [words[0], min(model.ends), words[0]], strict=True):
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_finds_what_the_cpu_finds(model: DiffusionGemma, random: Path) -> None:
    there = models.load(str(random), "cuda")
    assert there.device.startswith("cuda")
    canvas = list(range(20, 40))
    prompt = model.tokenizer.encode(BEFORE)
    at = range(len(prompt), len(prompt) + len(canvas))
    here, its = (m.denoise([Run(m.cache().lease([]), canvas, at, fresh=prompt)]) for m in (model, there))
    assert torch.allclose(here, its.cpu(), atol=5e-3)
    assert alone(there, infill("a", BEFORE, AFTER, Hole(12, "line"))).holes[0].text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_in_a_sentence(random: Path) -> None:
    with pytest.raises(ModelError, match="no CUDA device"):
        models.load(str(random), "cuda")


# Streams, lengths, warm starts


def test_drafts_come_from_the_first_step_and_locked_text_only_grows(model: DiffusionGemma) -> None:
    events = run(Scheduler(model), [infill("a", BEFORE, AFTER, Hole(32, "block"))])["a"]
    steps = [event for event in events if isinstance(event, wire.Locked)]
    assert steps[0].step == 1
    assert steps[0].holes[0].text
    locked = ""
    for event in [*steps, done(events)]:
        fill = event.holes[0]
        text = fill.text[: fill.locked[0][1]] if fill.locked and fill.locked[0][0] == 0 else ""
        assert text.startswith(locked)
        locked = text
    assert locked == done(events).holes[0].text


def test_a_forced_start_is_reproduced_at_every_length_that_can_spell_it(model: DiffusionGemma) -> None:
    for prefix in (BEFORE, "x = self._", "a\n\nimp", "x = f'da"):
        answer = alone(model, infill("a", prefix, AFTER, Hole(8, "line")))
        assert answer.holes[0].text, prefix
        assert "\n" not in answer.holes[0].text


def test_a_draft_that_the_model_keeps_needs_few_steps(model: DiffusionGemma) -> None:
    """The conditioning is warm too: the first forward sees the draft's own embedding."""
    canvas = lay(model, Vocabulary(model), "x = 1\ny", "\n", [Hole(4, "line")], slots=4).canvas
    canvas.holes[0].forced = b""
    tokens = model.tokenizer.encode("count")[:2]
    for slot, token in zip(canvas.slots, tokens, strict=False):
        slot.shown = token
    generator = torch.Generator().manual_seed(0)
    state = renoise.start(model, [slot.shown for slot in canvas.slots], generator)
    assert state.ids[: len(tokens)].tolist() == state.best[: len(tokens)].tolist() == tokens
    assert state.conditioning is not None
    expected = model.weights.embed[torch.tensor(tokens)] * model.scale
    assert torch.allclose(state.conditioning[: len(tokens)], expected, atol=1e-5)
    assert not state.conditioning[len(tokens) :].any()


def test_half_of_the_lengths_go_on_and_the_best_is_first() -> None:
    assert length.survivors([-3.0, -1.0, -2.0, -9.0, -4.0]) == [1, 2, 0]
    left, rounds = [float(-i) for i in range(13)], 0
    while len(left) > 1:
        left, rounds = [left[i] for i in length.survivors(left)], rounds + 1
    assert (left, rounds) == ([0.0], 4)


@pytest.mark.parametrize(("most", "one_line"), itertools.product((1, 2, 7, 32, 256), (True, False)))
def test_lengths_are_within_the_budget_and_there_is_always_one(most: int, one_line: bool) -> None:
    found = length.tried(most, one_line=one_line)
    assert found
    assert all(1 <= n <= most for n in found)
    assert found == sorted(set(found))


def test_what_fits_the_suffix_scores_above_what_does_not() -> None:
    hole, fits, spoils = torch.tensor([-0.1, -0.2]), torch.tensor([-0.1] * 4), torch.tensor([-2.0] * 4)
    assert length.score(hole, fits) > length.score(hole, spoils)
    assert length.score(hole, fits[:0]) == pytest.approx(-0.15)


def test_a_canvas_is_resized_within_each_holes_budget(model: DiffusionGemma) -> None:
    canvas: Canvas = lay(model, Vocabulary(model), "f(", ")\n", [Hole(2), Text(", "), Hole(9)], slots=1).canvas
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
