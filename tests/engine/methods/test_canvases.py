"""The loop on canvases of the tiny model and of one that says what it is told: forced starts, locks, length, noise."""

import pytest
import torch

from caesura.engine.canvas.canvas import Canvas
from caesura.engine.methods import _forward, absorbing
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform.renoise import on_host
from caesura.engine.model import Model
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.noise import Uniform
from caesura.engine.samplers import begin, load, names
from caesura.engine.scheduler import Scheduler
from caesura.wire import Failed, Hole, Pattern, Text

from ...support.checkpoints.tiny import Scripted, infill, laid_out, run
from ..canvas.test_canvas import cursors

Canvases = absorbing.Denoising | uniform.Renoising

samplers = pytest.mark.parametrize("name", names())
of_uniform = pytest.mark.parametrize("name", ["entropy_bound", "factor", "threshold", "top_k"])


def denoising(
    model: Model,
    name: str,
    prefix: str,
    suffix: str,
    *segments: Text | Hole,
    slots: int = 8,
    of: int = 48,
    seed: int = 0,
) -> Canvases:
    layout = laid_out(model, prefix, suffix, *(segments or (Hole(32),)), slots=slots)
    kv = model.cache().lease(layout.context)
    if layout.context:
        model.prefill(layout.context, kv)
    if isinstance(model.spec.noise, Uniform):
        return uniform.Renoising(layout.canvas, kv, on_host(load(name)), of, seed)
    return absorbing.Denoising(layout.canvas, kv, begin(name), of, seed)


def step(model: Model, *work: Canvases) -> None:
    if isinstance(model.spec.noise, Uniform):
        uniform.step(model, work)
    else:
        _forward.advance(model, work)


def finish(model: Model, *work: Canvases) -> None:
    for _ in range(80):
        left = [w for w in work if not w.finished]
        if not left:
            return
        step(model, *left)
    pytest.fail("the canvas does not come to an end")


def written(canvas: Canvas, hole: int = 0) -> bytes:
    return b"".join(canvas.piece(s.token) for s in canvas.of_hole(hole) if s.token is not None)


@pytest.mark.parametrize("name", ["threshold", "p2", "wino", "joint_edit"])
@cursors
def test_what_is_forced_is_reproduced(tiny: NativeLlama, name: str, prefix: str, suffix: str) -> None:
    w = denoising(tiny, name, prefix, suffix, Hole(56), slots=56, of=60)
    forced = w.canvas.holes[0].forced
    finish(tiny, w)
    assert written(w.canvas).startswith(forced)
    fill = w.canvas.fills()[0]
    assert fill.text == written(w.canvas)[len(forced) :].decode("utf-8", errors="ignore")
    assert fill.open == 0


@samplers
def test_several_holes_reproduce_what_each_is_forced_to(tiny: NativeLlama, name: str) -> None:
    w = denoising(tiny, name, "f(cou", ")\n", Hole(16), Text(", retu"), Hole(16), Text(") + _"), Hole(16))
    forced = [h.forced for h in w.canvas.holes]
    assert all(forced)
    finish(tiny, w)
    for number, start in enumerate(forced):
        assert written(w.canvas, number).startswith(start)


@of_uniform
def test_a_uniform_model_reproduces_what_is_forced(tiny: NativeLlama, name: str) -> None:
    model = Scripted(tiny.tokenizer, tiny.tokenizer.encode("x(left)"), Uniform(tiny.tokenizer.size))
    w = denoising(model, name, "    retu", "\n", slots=6)
    finish(model, w)
    assert written(w.canvas).startswith(w.canvas.holes[0].forced)


@samplers
def test_the_models_answer_is_found_and_ends_where_it_says(tiny: NativeLlama, name: str) -> None:
    answer = tiny.tokenizer.encode("(left)")
    model = Scripted(tiny.tokenizer, answer)
    w = denoising(model, name, "x = 1\nprint", "\n", slots=12)
    w.canvas.holes[0].forced = b""
    finish(model, w)
    fill = w.canvas.fills()[0]
    assert (fill.text, fill.locked, fill.open) == ("(left)", ((0, 6),), 0)
    assert fill.confidence > 0.99
    assert len(w.canvas.slots) == len(answer), "null slots are gone"


@of_uniform
def test_a_uniform_model_settles_on_its_answer(tiny: NativeLlama, name: str) -> None:
    answer = tiny.tokenizer.encode("(left)")
    model = Scripted(tiny.tokenizer, answer, Uniform(tiny.tokenizer.size))
    w = denoising(model, name, "x = 1\n", "\n", slots=len(answer))
    w.canvas.holes[0].forced = b""
    finish(model, w)
    assert w.canvas.fills()[0].text == "(left)"
    assert w.step < w.of


def test_a_uniform_model_locks_only_what_has_not_moved_for_two_steps(tiny: NativeLlama) -> None:
    answer = tiny.tokenizer.encode("(left)")
    model = Scripted(tiny.tokenizer, answer, Uniform(tiny.tokenizer.size))
    w = denoising(model, "entropy_bound", "x = 1\n", "\n", slots=len(answer))
    w.canvas.holes[0].forced = b""
    for _ in range(2):
        step(model, w)
        assert not any(s.locked for s in w.canvas.slots)
    step(model, w)
    assert all(s.locked for s in w.canvas.slots)
    model.answer = tiny.tokenizer.encode("[right]")
    step(model, w)
    assert w.canvas.fills()[0].text == "(left)", "what is locked stays"


@samplers
def test_of_is_kept(tiny: NativeLlama, name: str) -> None:
    w = denoising(tiny, name, "x = ", "\n", slots=16, of=3)
    finish(tiny, w)
    assert w.step <= 3


def test_a_canvas_that_does_not_end_gets_longer_within_its_budget(tiny: NativeLlama) -> None:
    letter = tiny.tokenizer.encode("a")[0]
    model = Scripted(tiny.tokenizer, [letter] * 400)
    w = denoising(model, "threshold", "x = (", ")\n", Hole(12), slots=6)
    w.canvas.holes[0].forced = b""
    finish(model, w)
    assert w.canvas.fills()[0].text == "a" * 12


def test_no_hole_grows_past_its_own_budget(tiny: NativeLlama) -> None:
    letter = tiny.tokenizer.encode("a")[0]
    model = Scripted(tiny.tokenizer, [letter] * 400)
    w = denoising(model, "threshold", "x = (", ")\n", Hole(32), Text(")"), Hole(6), slots=8)
    for hole in w.canvas.holes:
        hole.forced = b""
    finish(model, w)
    first, second = w.canvas.fills()
    assert len(first.text) <= 33  # one more than asked: the healed bracket has a token of its own
    assert len(second.text) <= 7


@samplers
def test_a_batch_gives_each_canvas_what_it_gets_alone(tiny: NativeLlama, name: str) -> None:
    places = [("", ""), ("x = f(", ")\n"), ("def f(a):\n    retu", "\n" * 3), ("imp", "x\n"), ("a = 1\n" * 30, "")]
    alone = [denoising(tiny, name, *place, seed=i) for i, place in enumerate(places)]
    together = [denoising(tiny, name, *place, seed=i) for i, place in enumerate(places)]
    for w in alone:
        finish(tiny, w)
    finish(tiny, *reversed(together))
    assert [w.canvas.fills() for w in together] == [w.canvas.fills() for w in alone]


# Samplers that take tokens back


def test_a_token_that_may_be_taken_back_is_not_locked_and_is_taken_back_once(tiny: NativeLlama) -> None:
    right, wrong = tiny.tokenizer.encode("(left)"), tiny.tokenizer.encode("[right]")
    assert len(right) == len(wrong)
    model = Scripted(tiny.tokenizer, wrong)
    w = denoising(model, "joint_edit", "x = 1\n", "\n", slots=len(wrong) + 1)
    w.canvas.holes[0].forced = b""
    step(model, w)
    assert [slot.token for slot in w.canvas.slots] == wrong
    assert not any(slot.locked for slot in w.canvas.slots)
    assert not w.finished
    model.answer = right
    step(model, w)
    assert w.canvas.fills()[0].text == "(left)"
    model.answer = wrong
    step(model, w)
    assert w.canvas.fills()[0].text == "(left)"
    assert all(slot.locked for slot in w.canvas.slots)
    assert w.finished


def test_what_a_healed_start_or_a_grammar_needs_is_not_taken_back(tiny: NativeLlama) -> None:
    digits = Hole(8, grammar=Pattern("[0-9]{3}"))
    w = denoising(tiny, "wino", "    retu", "\n", Hole(8), Text("; "), digits, Text("; "), Hole(4), slots=8)
    w.canvas.holes[0].forced, w.canvas.holes[2].forced = b"retu", b""
    healed, ruled, free = w.canvas.of_hole(0), w.canvas.of_hole(1), w.canvas.of_hole(2)
    for slot, token in zip(healed, tiny.tokenizer.encode("return left"), strict=False):
        slot.token = token
    for slot in (*ruled, free[0], free[1]):
        slot.token = tiny.tokenizer.encode("1")[0]
    free[1].take_back()
    free[1].token = free[1].draft
    may = dict(zip(w.canvas.slots, w.canvas.revisable(), strict=True))
    spelled = len(tiny.tokenizer.encode("return"))
    assert not any(may[slot] for slot in (*healed[:spelled], *ruled, *free[1:]))
    assert may[healed[spelled]]
    assert may[free[0]]


def test_shadows_add_rows_that_the_others_do_not_see(tiny: NativeLlama) -> None:
    w = denoising(tiny, "wino", "x = f(", ")\n", slots=6)
    w.canvas.holes[0].forced = b""
    (bare,) = _forward.forward(tiny, [w])
    rows = w.rows
    w.canvas.slots[2].token = 60
    (with_token,) = _forward.forward(tiny, [w])
    assert w.rows == rows + 6
    w.sampler = begin("p2")
    (without,) = _forward.forward(tiny, [w])
    assert (with_token.rows, with_token.width) == (12, tiny.width)
    torch.testing.assert_close(with_token.logits[:6], without.logits, atol=1e-4, rtol=1e-4)
    assert bare.rows == without.rows


def test_a_sampler_of_absorbing_noise_is_refused_by_another_canvas(tiny: NativeLlama) -> None:
    model = Scripted(tiny.tokenizer, [], Uniform(tiny.tokenizer.size))
    (said,) = run(Scheduler(model), [infill("j", "x = ", "\n", sampler="klass")])["j"]
    assert isinstance(said, Failed)
    assert said.code == "invalid"
    assert "'klass' is for canvases of absorbing noise" in said.message
