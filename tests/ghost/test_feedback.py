"""What becomes of a suggestion: taken, partly taken or refused, and what is shown next."""

import pytest

from caesura.server.ghost.backoff import Backoff

from ..support.editor import Editor


async def test_accepting_a_word_fixes_it_and_denoises_the_rest_again() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute(first)")
    assert await editor.shown() == "compute(first)"
    await editor.type("compute")
    refined = editor.engine.jobs[-1]
    assert (refined.prefix, refined.draft) == ("x = compute", ("(first)",))
    assert await editor.shown() == "(first)"  # at once
    await editor.engine.say("(first, second)")
    assert await editor.shown() == "(first)"  # what is shown never jumps
    assert editor.counted.counts == [("shown", 14), ("partly", 7)]


async def test_the_rest_of_an_accepted_part_may_grow() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute(first)")
    assert await editor.shown() == "compute(first)"
    await editor.type("compute")
    await editor.engine.say("(first) + 1")
    assert await editor.shown() == "(first) + 1"
    assert editor.counted.counts == [("shown", 14), ("partly", 7), ("grown", 4)]


async def test_what_becomes_of_suggestions_is_counted() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    answer = await editor.answer()
    await editor.type("compute()")
    editor.typing.accepted(answer.id)  # told twice, counted once
    assert editor.counted.counts == [("shown", 9), ("accepted", 9)]


async def test_an_editor_may_tell_what_it_took() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    answer = await editor.answer()
    editor.typing.accepted(answer.id, 3)
    editor.typing.accepted(answer.id)
    editor.typing.accepted("another")
    assert editor.counted.counts == [("shown", 9), ("partly", 3), ("accepted", 6)]


async def test_refused_suggestions_make_the_next_ones_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.server.ghost.feedback.SEEN_S", 0.0)
    editor = Editor("x =|", mode="balanced")
    for _ in range(5):
        await editor.type(" ")
        await editor.engine.say("compute()", sure=((9, 0.6),))
        assert await editor.shown() in ("compute()", "")
        await editor.type("?")
        await editor.engine.say("")
    await editor.type(" ")
    await editor.engine.say("compute()", sure=((9, 0.6),))
    assert await editor.shown() == ""
    assert (await editor.answer(invoked=True)).insert == "compute()"  # who asks is answered


def test_restraint_fades() -> None:
    restraint = Backoff()
    for _ in range(9):
        restraint.rejected(0.0)
    assert restraint.chance(0.2, 0.0) == 0.6
    restraint.accepted(0.0)
    assert restraint.chance(0.2, 0.0) == pytest.approx(1 - 0.8 / 1.4)
    assert restraint.chance(0.2, 1e6) == pytest.approx(0.2)


async def test_what_goes_on_is_counted_as_shown() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("alpha\n", locked=6)
    assert await editor.shown() == "alpha"
    await editor.type("alpha")  # taken, undone and taken again
    await editor.type("", erase=5)
    assert await editor.shown() == "alpha"
    await editor.type("alpha")
    assert editor.counted.counts == [("shown", 5), ("accepted", 5)] * 2
