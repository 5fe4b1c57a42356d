"""A request for ghost text: how long it waits, what ends its waiting, and what a streaming editor hears before."""

import asyncio

import pytest

from caesura.client.backend import EngineFailed, EngineUnavailable
from caesura.server.ghost.pane import Selected
from caesura.server.ghost.requests import NothingNew
from caesura.server.ghost.typed import Proposal

from ..support.editor import Editor, proposed, written


@pytest.mark.parametrize(("text", "language"), [("x =|", "python"), ('{"a": |}\n', "json")])
async def test_who_asks_gets_no_empty_answer_of_a_canvas_that_had_nothing(text: str, language: str) -> None:
    editor = written(text, language)
    await editor.type(" ")
    await editor.engine.say(" ")
    assert await editor.shown() == ""
    for said in (" ", '"b"'):  # the first request finds nothing again
        request = await editor.ask(invoked=True)
        await editor.engine.say(said)
        assert (await proposed(request)).insert == said.strip()
    assert editor.engine.jobs[-1].seed > editor.engine.jobs[-2].seed  # the same draw would find the same


async def test_a_request_that_comes_with_such_an_answer_waits_for_the_next_job() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    await editor.type("abc")
    said = asyncio.create_task(editor.engine.say("abc"))
    await asyncio.sleep(0)  # the answer is on its way
    request = await editor.ask()
    await said
    assert not request.done()
    await editor.engine.say("(1)")
    assert (await proposed(request)).insert == "(1)"


async def test_the_first_locked_line_answers_and_the_rest_follows() -> None:
    editor = Editor("def f():\n   |\n")
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say("a = 1\n    b = 2", locked=5)
    assert not request.done()
    await editor.engine.say("a = 1\n    b = 2", locked=6)
    assert (await proposed(request)).insert == "a = 1"
    assert len(editor.engine.live) == 1
    await editor.engine.say("a = 1\n    b = 2")
    assert await editor.shown() == "a = 1\n    b = 2"


@pytest.mark.parametrize(
    ("text", "locked", "shown"),
    [
        ("alpha + beta(c)", 0, None),
        ("alpha + beta(c)", 5, None),
        ("alpha + beta(c)", 10, None),
        ("alpha + beta(c)", 12, "alpha + beta"),
        ("alphabeta(c)", 9, "alphabeta"),
    ],
)
async def test_from_the_deadline_on_whole_locked_words_that_are_worth_showing(
    text: str, locked: int, shown: str | None
) -> None:
    editor = Editor("x =|", deadline_ms=1)
    await editor.type(" ")
    await editor.engine.say(text, locked=locked)
    request = await editor.ask()
    await asyncio.sleep(0.01)  # past the deadline
    assert request.done() is (shown is not None)
    await editor.engine.say(text)
    assert (await proposed(request)).insert == (shown or text)


async def test_a_newer_request_supersedes_the_older() -> None:
    editor = Editor("x = |")
    older, newer = await editor.ask(), await editor.ask()
    assert await older == NothingNew(shown_fits=True)
    await editor.engine.say("1")
    assert (await proposed(newer)).insert == "1"
    assert len(editor.engine.jobs) == 1


async def test_an_edit_supersedes_what_waits() -> None:
    editor = Editor("def f():\n   |\n")
    await editor.type(" ")
    await editor.engine.say("a = 1\n    b = 2", locked=7)
    assert await editor.shown() == "a = 1"
    await editor.type("a = 1")
    waiting = await editor.ask()
    await editor.type("0")
    assert await waiting == NothingNew(shown_fits=False)
    waiting = await editor.ask()
    await editor.type("0")
    assert await waiting == NothingNew(shown_fits=True)  # the empty answer has cleared it


async def test_no_engine_is_nothing_to_propose_and_the_reason_is_said() -> None:
    editor = Editor("x =|")
    for _ in range(3):
        await editor.type(" ")
        await editor.engine.tell(EngineUnavailable("There is no engine here."))
    request = await editor.ask()
    await editor.engine.tell(EngineUnavailable("There is no engine here."))
    assert (await proposed(request)).insert == ""
    assert editor.troubles == ["There is no engine here."] * 4


async def test_a_lost_engine_leaves_no_draft_on_the_screen() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("alpha + beta", locked=5)
    await editor.engine.tell(EngineUnavailable("gone"))
    assert await editor.shown() == ""


async def test_a_lost_engine_takes_nothing_away_that_is_shown() -> None:
    """Asked for anew by hand, since what was refused before made it want more than is asked for now."""
    editor = Editor("x =|", mode="eager", min_confidence=0.0)
    editor.typing._feedback._backoff.rejected(asyncio.get_running_loop().time())
    await editor.type(" ")
    await editor.engine.say("abc")
    assert await editor.shown() == "abc"
    request = await editor.ask(invoked=True)
    assert len(editor.engine.jobs) == 2
    await editor.engine.tell(EngineUnavailable("gone"))
    assert await request == NothingNew(shown_fits=True)


async def test_the_item_of_a_popup_is_part_of_the_canvas() -> None:
    editor = Editor("os.pa|")
    selected = Selected(3, "path")
    request = await editor.ask(selected=selected)
    assert editor.engine.jobs[-1].prefix == "os.path"
    await editor.engine.say(".join(a)")
    answer = await proposed(request)
    assert (answer.insert, answer.back) == ("path.join(a)", 2)
    await editor.type("t")  # the popup is still open
    assert len(editor.engine.jobs) == 1
    answer = await editor.answer(selected=selected)
    assert (answer.insert, answer.back) == ("path.join(a)", 3)
    assert await editor.shown() == "h.join(a)"  # it was closed


async def test_the_item_of_a_popup_when_the_cursor_moves_in_its_word() -> None:
    editor = Editor("os.pa|")
    request = await editor.ask(selected=Selected(3, "path"))
    await editor.engine.say(".join(a)")
    await proposed(request)
    editor.cursor -= 1
    assert (await proposed(await editor.ask(selected=Selected(3, "path")))).insert == ""
    assert len(editor.engine.jobs) == 1, "in front of a letter"


async def test_what_continues_the_item_of_a_popup_stays_while_the_item_does() -> None:
    """Also with an engine that breaks its locks."""
    editor = Editor("os.pa|")
    selected = Selected(3, "path")
    request = await editor.ask(selected=selected)
    await editor.engine.say(".join(a)\n", locked=9)
    assert (await proposed(request)).insert == "path.join(a)"
    await editor.engine.say("")
    assert (await editor.answer(selected=selected)).insert == "path.join(a)"
    await editor.type("t")
    assert (await editor.answer(selected=selected)).insert == "path.join(a)"
    request = await editor.ask(selected=Selected(3, "pathlib"))
    await editor.engine.say("")
    assert (await proposed(request)).insert == ""


async def test_the_rest_of_a_popups_item_stays_when_the_popup_closes() -> None:
    editor = Editor("os.pa|")
    request = await editor.ask(selected=Selected(3, "path"))
    await editor.engine.say(".join(a)\n")
    await proposed(request)
    await editor.type("th.")
    request = await editor.ask()
    await editor.engine.say("")
    assert (await proposed(request)).insert == "join(a)"
    await editor.type("i")
    request = await editor.ask()
    await editor.engine.say("")
    assert (await proposed(request)).insert == ""


async def test_an_item_with_which_the_syntax_breaks_is_not_continued_nor_cut() -> None:
    editor = written("  g()|\n", "typescript")
    request = await editor.ask(selected=Selected(2, "g()x"))
    await editor.engine.say("ab")
    assert (await proposed(request)).insert == ""


async def test_a_suggestion_that_begins_with_the_selected_item_stays_when_a_popup_opens() -> None:
    editor = Editor("os.p|")
    await editor.type("a")
    await editor.engine.say("th.join(a)\n")
    assert await editor.shown() == "th.join(a)"
    request = await editor.ask(selected=Selected(3, "path"))
    assert (await proposed(request)).insert == "path.join(a)"
    await editor.engine.say(".exists(b)\n")
    assert (await editor.answer(selected=Selected(3, "path"))).insert == "path.join(a)"
    request = await editor.ask(selected=Selected(3, "pardir"))
    await editor.engine.say(" + b\n")
    assert (await proposed(request)).insert == "pardir + b"


async def test_an_item_that_replaces_what_is_typed() -> None:
    editor = Editor("os.ptj|")
    request = await editor.ask(selected=Selected(3, "path.join"))
    await editor.engine.say("(a)", locked=1)
    await editor.engine.say("(a)")
    answer = await proposed(request)
    assert (answer.insert, answer.back) == ("path.join(a)", 3)
    assert len(editor.engine.jobs) == 1


async def test_a_streaming_editor_is_told_what_it_may_show_already() -> None:
    editor = Editor("def f():\n    |")
    parts: list[Proposal] = []
    request = await editor.ask(on_part=parts.append)
    await editor.engine.say("a = 1\n    b", locked=3)
    await editor.engine.say("a = 1\n    b", locked=8)
    await editor.engine.say("a = 1\n    b = 2")
    assert (await proposed(request)).insert == "a = 1\n    b = 2"
    assert [part.insert for part in parts] == ["a = 1"]
    assert editor.counted.counts == [("shown", 5), ("grown", 10)]


async def test_no_draft_reaches_a_streaming_editor() -> None:
    """The right text is first guessed, then given up for a while."""
    editor = written("  return list.reduce(|)\n", "javascript")
    parts: list[Proposal] = []
    request = await editor.ask(on_part=parts.append)
    for guess in ("(acc, curr) => acc + curr, 0", "(a, b)", ""):
        await editor.engine.say(guess, locked=0)
    await editor.engine.say("(acc, curr) => acc + curr, 0")
    assert (await proposed(request)).insert == "(acc, curr) => acc + curr, 0"
    assert parts == []


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("alpha_beta + gamma", "alpha_beta + gamma"),
        ("alpha_beta * 2", "alpha_beta * 2"),
        ("alpha_beat", "alpha_beta"),
        ("other", "alpha_beta"),
        ("", "alpha_beta"),
        (EngineFailed("engine_lost"), "alpha_beta"),
    ],
)
async def test_the_answer_begins_with_what_was_shown_on_the_way(answer: str | Exception, shown: str) -> None:
    editor = Editor("x =|", deadline_ms=1)
    await editor.type(" ")
    parts: list[Proposal] = []
    request = await editor.ask(on_part=parts.append)
    await asyncio.sleep(0.01)  # until the deadline: words are enough
    await editor.engine.say("alpha_beta + gamma", locked=11)
    assert [part.insert for part in parts] == ["alpha_beta"]
    await (editor.engine.tell(answer) if isinstance(answer, Exception) else editor.engine.say(answer))
    assert (await proposed(request)).insert == shown


async def test_what_is_shown_stays_where_the_canvas_has_other_text_at_last() -> None:
    editor = Editor("def f():\n    |")
    request = await editor.ask(on_part=lambda part: None)
    await editor.engine.say("a = 1\n    b", locked=8)  # the first line is shown
    await editor.type("a = ")
    await editor.engine.say("c = 2")
    await request
    assert len(editor.engine.jobs) == 2, "for what is typed"
    await editor.engine.say("3")
    assert await editor.shown() == "1"


async def test_text_that_ends_at_a_bracket_which_the_editor_closed_stays_as_well() -> None:
    editor = Editor("x = f|")
    request = await editor.ask(on_part=lambda part: None)
    await editor.engine.say("(a)\n", locked=4)
    await editor.type("()", cursor=editor.cursor + 1)
    await editor.engine.say("(ab)")
    await request
    assert await editor.shown() == "a", "and not `ab`"


async def test_a_part_that_was_shown_in_a_stream_goes_when_what_is_before_it_is_erased() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("ab\n", locked=3)
    assert await editor.shown() == "ab"
    await editor.type("a")
    parts: list[Proposal] = []
    request = await editor.ask(on_part=parts.append)
    await editor.engine.say("ab\nc", locked=3)
    await editor.type("", erase=1)
    assert await request == NothingNew(shown_fits=False), "`b` alone is wrong here"
    assert {part.insert for part in parts} == {"b"}
    assert await editor.shown() == "ab"


async def test_the_other_candidates_are_there_when_the_shown_one_is_asked_for_again() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say("alpha", None, "beta")
    first = await proposed(request)
    assert (first.insert, first.others) == ("alpha", ("beta",))
    again = await editor.answer()
    assert (again.insert, again.others) == ("alpha", ("beta",))


async def test_every_request_leaves_a_trace() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("ab(1)")
    await editor.shown()
    await editor.type("a")
    await editor.shown()
    await editor.type("?")
    waiting = await editor.ask()
    await editor.type("?")
    await waiting
    request = await editor.ask()
    await editor.engine.say("no")  # not what was typed
    await editor.engine.say(" ")
    await request
    cancelled = await editor.ask(invoked=True)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert editor.counted.answers == ["warm", "typed_through", "superseded", "nothing", "cancelled"]
