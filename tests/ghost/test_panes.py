"""The canvases of a document: what begins, keeps and ends a job, and what needs none."""

from typing import Any

import msgspec
import pytest

from caesura.client.backend import Condition, EngineBusy, EngineError, EngineFailed
from caesura.server.ghost import panes
from caesura.server.ghost.canvas import EXPLORED_BELOW, MIN_EXPLORED
from caesura.server.ghost.requests import NothingNew

from ..support.editor import Editor, answered, proposed, turns


async def test_typing_begins_a_job_and_the_request_joins_it() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    assert not request.done()
    await editor.engine.say("compute()")
    assert (await proposed(request)).insert == "compute()"
    [job] = editor.engine.jobs
    assert (job.prefix, job.suffix, job.kind) == ("x = ", "", "complete")
    assert "file" not in job.document


async def test_typed_through_until_nothing_is_left() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc")
    for key, left in (("a", "bc"), ("b", "c")):
        await editor.type(key)
        assert await editor.shown() == left
    await editor.type("", erase=1)
    assert await editor.shown() == "bc"
    assert len(editor.engine.jobs) == 1
    await editor.type("bc")
    assert len(editor.engine.jobs) == 2


async def test_a_mismatch_begins_a_job_from_what_is_left() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc + 1")
    await editor.type("z")
    assert editor.engine.jobs[-1].draft == ("bc + 1",)
    assert len(editor.engine.live) == 1


async def test_a_running_job_is_kept_while_its_draft_agrees() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc + 1", locked=2)
    await editor.type("abc")
    assert len(editor.engine.jobs) == 1
    request = await editor.ask()
    await editor.engine.say("abd + 1", locked=7)  # the draft has changed its mind
    await turns()
    assert len(editor.engine.jobs) == 2
    await editor.engine.say("(1)")
    assert (await proposed(request)).insert == "(1)"


async def test_a_draft_that_changes_its_mind_while_nobody_asks_begins_a_job() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc + 1", locked=2)
    await editor.type("abc")
    await editor.engine.say("abd + 1", locked=2)
    assert [job.prefix for job in editor.engine.jobs] == ["x = ", "x = abc"]
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]
    await editor.engine.say("(1)")
    assert await editor.shown() == "(1)"
    assert len(editor.engine.jobs) == 2


async def test_an_answer_that_was_typed_already_begins_a_job() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    await editor.type("abc")
    await editor.engine.say("abc")
    assert [job.prefix for job in editor.engine.jobs] == ["x = ", "x = abc"]


async def test_nothing_begins_where_the_cursor_is_unknown() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("abc", locked=2)
    await editor.change(((0, 4), (0, 4), "a"), ((0, 4), (0, 4), "z"))
    await editor.engine.say("abd", locked=2)
    assert len(editor.engine.jobs) == 1


@pytest.mark.parametrize(("draft", "jobs"), [("yes", ["x = "]), ("no", ["x = ", "x = y"])])
async def test_a_job_that_has_said_nothing_yet_goes_on_until_it_says_something_else(
    draft: str, jobs: list[str]
) -> None:
    """A cancel would free the engine no sooner."""
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.type("y")
    assert [job.prefix for job in editor.engine.jobs] == ["x = "]
    await editor.engine.say(draft, locked=0)
    assert [job.prefix for job in editor.engine.jobs] == jobs
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]


@pytest.mark.parametrize(
    ("trouble", "prefixes"), [(EngineFailed("engine_lost"), ["x = ", "x = y"]), (EngineBusy("full"), ["x = "])]
)
async def test_a_job_that_outlives_its_key_and_is_lost_is_begun_once_more_unless_the_engine_has_too_much_to_do(
    trouble: EngineError, prefixes: list[str]
) -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.type("y")
    request = await editor.ask()
    for _ in prefixes:
        assert not request.done()
        await editor.engine.tell(trouble)
    assert [job.prefix for job in editor.engine.jobs] == prefixes
    assert (await proposed(request)).insert == ""


async def test_many_edits_at_once_begin_nothing() -> None:
    editor = Editor("a\nb|")
    await editor.change(((0, 1), (0, 1), "x"), ((1, 1), (1, 1), "x"))
    assert editor.engine.jobs == []


@pytest.mark.parametrize(
    ("fill", "expected"),
    [("(a, b)", ("a, b", 0)), ("(a, b) + 1", ("a, b) + 1", 1))],
)
async def test_an_auto_closed_bracket(fill: str, expected: tuple[str, int]) -> None:
    editor = Editor("|")
    await editor.type("f")
    await editor.engine.say(fill)
    await editor.type("()", cursor=2)
    answer = await editor.answer()
    assert (answer.insert, answer.eat) == expected
    assert len(editor.engine.jobs) == 1


async def test_an_auto_closed_bracket_within_a_pair_that_the_fill_leaves_open() -> None:
    editor = Editor("g(|)")
    await editor.type("f")
    await editor.engine.say("(a)")
    await editor.type("()", cursor=editor.cursor + 1)
    assert len(editor.engine.jobs) == 1
    assert await editor.shown() == "a"


async def test_closing_frees_everything() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    request = await editor.ask()
    editor.typing.close(editor.uri)
    assert isinstance(await request, NothingNew)
    await turns()
    assert editor.engine.live == {}
    assert editor.typing._panes == {}


async def test_new_rules_clear_what_is_shown() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("1")
    assert await editor.shown() == "1"
    await editor.type("1")
    request = await editor.ask()
    editor.typing.close_all()
    assert await request == NothingNew(shown_fits=False)


async def test_canvases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "MAX_DOCUMENTS", 2)
    editor = Editor("x =|")
    for name in "abc":
        editor.uri = f"file:///{name}.py"
        editor.workspace.open(editor.uri, "python", 0, "x =")
        await editor.type(" ", at=3)
    assert list(editor.typing._panes) == ["file:///b.py", "file:///c.py"]
    assert len(editor.engine.live) == 2


async def test_an_edit_elsewhere_keeps_what_was_computed_as_a_draft() -> None:
    editor = Editor("a = 1\nx = |")
    await editor.type("y")
    await editor.engine.say(" + 1")
    await editor.type("b", at=0, cursor=editor.cursor + 1)
    request = await editor.ask()
    assert (editor.engine.jobs[-1].prefix, editor.engine.jobs[-1].draft) == ("ba = 1\nx = y", (" + 1",))
    await editor.engine.say(" + 2")
    assert (await proposed(request)).insert == " + 2"


async def test_an_edit_behind_that_the_model_does_not_see_costs_nothing() -> None:
    editor = Editor("x = |\n" + "y = 1\n" * 1000)
    await editor.type("a")
    await editor.engine.say(" + 1")
    end = len(editor.opened.document.text)
    await editor.type("z", at=end, cursor=editor.cursor)
    await editor.engine.say("nothing")
    assert await editor.shown() == " + 1"
    assert len(editor.engine.jobs) == 2  # one for each place typed at, none for the request


async def test_a_typo_taken_back_finds_its_canvas_again() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute(1)")
    await editor.type("d")
    assert len(editor.engine.jobs) == 2
    await editor.type("", erase=1)
    assert await editor.shown() == "compute(1)"
    assert len(editor.engine.jobs) == 2
    assert editor.engine.live == {}


async def test_in_idle_time_what_comes_after_the_suggestion_is_computed() -> None:
    editor = Editor("def f(a):\n   |\n", speculate=True)
    await editor.type(" ")
    await editor.engine.say("if a:")
    assert len(editor.engine.jobs) == 1  # nobody has seen it yet
    assert await editor.shown() == "if a:"
    ahead = editor.engine.jobs[-1]
    assert (ahead.priority, ahead.prefix) == ("speculative", "def f(a):\n    if a:\n        ")
    await editor.engine.say("return a")
    assert await editor.shown() == "if a:"  # not before its time
    await editor.type("if a:")
    assert await editor.shown() == "\n        return a"
    await editor.type("\n        ")
    assert await editor.shown() == "return a"
    assert [job.priority for job in editor.engine.jobs].count("automatic") == 1
    assert "speculated" in editor.counted.answers


@pytest.mark.parametrize(
    ("language", "text", "step"),
    [
        ("typescript", "class A {\n  b() {\n    c();\n  }\n\n  |\n}\n", "  "),
        ("typescript", "function f() {\n    c();\n}\n|", "    "),
        ("javascript", "|", "  "),
        ("java", "|", "    "),
        ("go", "|", "\t"),
        ("go", "func f() {\n\tg()\n}\n\n|", "\t"),
        ("python", "def f():\n  return 1\n\n\n|", "  "),
    ],
)
async def test_what_follows_a_suggestion_that_opens_a_block_has_the_step_of_the_file_or_of_its_language(
    language: str, text: str, step: str
) -> None:
    opens = "for x in y:" if language == "python" else "for (;;) {"
    editor = Editor(text, language=language, uri="file:///a", speculate=True, syntax_gate=False)
    await editor.type("f")
    await editor.engine.say(opens[1:])
    assert await editor.shown() == opens[1:]
    indent = text[: text.index("|")].rpartition("\n")[2]
    assert editor.engine.jobs[-1].prefix.endswith(f"{opens}\n{indent}{step}")


async def test_a_speculation_that_is_waited_for_and_fails_is_said() -> None:
    editor = Editor("def f(a):\n   |\n", speculate=True)
    await editor.type(" ")
    await editor.engine.say("if a:")
    await editor.shown()
    await editor.type("if a:")
    request = await editor.ask()
    await editor.engine.tell(EngineBusy("The engine has too much to do."))
    await request
    assert editor.troubles == ["", "The engine has too much to do."]


async def test_a_speculation_that_is_waited_for_has_the_priority_of_its_request() -> None:
    editor = Editor("def f(a):\n   |\n", speculate=True)
    await editor.type(" ")
    await editor.engine.say("if a:")
    await editor.shown()
    await editor.engine.say("return", locked=3)
    before: list[str] = []
    editor.engine.on_job = lambda job: before.extend(editor.engine.live)
    await editor.type("if a:")
    await editor.type("\n        ")
    guess, hurried = editor.engine.jobs[1:]
    assert before == [guess.job], "it was cancelled before the engine could continue it"
    assert (guess.priority, hurried.priority) == ("speculative", "automatic")
    assert msgspec.structs.replace(guess, job=hurried.job, priority="automatic") == hurried  # the engine continues it
    request = await editor.ask()
    await editor.engine.say("return a", job=hurried)
    assert (await proposed(request)).insert == "return a"
    ahead = editor.engine.jobs[-1]
    assert [job.priority for job in editor.engine.jobs].count("automatic") == 2
    assert list(editor.engine.live) == [ahead.job]  # what comes after that


async def test_a_service_that_has_begun_a_speculation_is_not_asked_for_it_again() -> None:
    editor = Editor("def f(a):\n   |\n", speculate=True)
    editor.engine.condition = Condition("ready", lacks=frozenset({"priorities"}))
    await editor.type(" ")
    await editor.engine.say("if a:")
    await editor.shown()
    await editor.type("if a:")
    await editor.type("\n        ")
    request = await editor.ask()
    assert [job.priority for job in editor.engine.jobs] == ["automatic", "speculative"]
    await editor.engine.say("return a")
    assert (await proposed(request)).insert == "return a"


@pytest.mark.parametrize("late", ["answer", "failure"])
async def test_what_a_job_says_after_it_was_sent_again_is_ignored(late: str) -> None:
    editor = Editor("def f(a):\n   |\n", speculate=True)
    await editor.type(" ")
    await editor.engine.say("if a:")
    await editor.shown()
    [guess] = editor.engine.jobs[1:]
    event = answered(guess, "return a") if late == "answer" else EngineFailed("engine_lost")
    editor.engine.live[guess.job].put_nowait(event)  # its caller has not heard it yet
    await editor.type("if a:")
    hurried = editor.engine.jobs[-1]
    await editor.engine.say("return b", locked=0)
    request = await editor.ask()
    assert list(editor.engine.live) == [hurried.job]
    assert not request.done()
    await editor.engine.say("return b")
    assert (await proposed(request)).insert == "\n        return b"


async def test_typing_something_else_ends_the_speculation() -> None:
    editor = Editor("x =|", speculate=True)
    await editor.type(" ")
    await editor.engine.say("compute()")
    await editor.shown()
    assert [job.priority for job in editor.engine.jobs] == ["automatic", "speculative"]
    await editor.type("y")
    assert list(editor.engine.live) == [editor.engine.jobs[-1].job]


async def test_a_manual_mode_waits_to_be_asked() -> None:
    editor = Editor("x =|", mode="manual")
    await editor.type(" ")
    assert await editor.shown() == ""
    assert editor.engine.jobs == []
    request = await editor.ask(invoked=True)
    await editor.engine.say("1")
    assert (await proposed(request)).insert == "1"
    assert editor.engine.jobs[0].priority == "invoked"


async def test_who_asks_gets_the_best_answer_and_who_types_a_quick_one() -> None:
    editor = Editor("x =|", mode="balanced")
    await editor.type(" ")
    await editor.engine.say("")
    assert await editor.shown() == ""
    await editor.ask(invoked=True)
    await editor.engine.say("")
    await editor.ask(invoked=True)
    jobs = [(job.effort, job.min_probability, job.seed) for job in editor.engine.jobs]
    assert jobs == [("ghost", 0.5 / EXPLORED_BELOW, 0), ("full", 0.0, 0), ("full", 0.0, 1)]


async def test_who_wants_to_see_all_pays_for_no_other_search() -> None:
    editor = Editor("x =|", min_confidence=0.0)
    await editor.type(" ")
    await editor.engine.say("compute()", sure=((9, 0.01),))
    assert await editor.shown() == "compute()"
    await editor.type("c")
    assert await editor.shown() == "ompute()"
    assert [(job.effort, job.min_probability) for job in editor.engine.jobs] == [("ghost", MIN_EXPLORED)]


async def test_a_job_names_what_the_hole_must_bind() -> None:
    editor = Editor("def f():\n    x = 1|\n    return rate\n")
    editor.opened.tree.parse(editor.opened.document.text)
    await editor.type("\n    ")
    assert editor.engine.jobs[-1].missing is not None
    assert editor.engine.jobs[-1].missing.name == "rate"


async def test_in_manual_mode_what_was_asked_for_stays_while_it_is_typed() -> None:
    editor = Editor("x =|", mode="manual")
    await editor.type(" ")
    request = await editor.ask(invoked=True)
    await editor.engine.say("compute()")
    assert (await proposed(request)).insert == "compute()"
    await editor.type("c")
    assert await editor.shown() == "ompute()"
    await editor.type("?")
    assert await editor.shown() == ""
    assert len(editor.engine.jobs) == 1


async def test_without_warmth_denoising_begins_at_the_request() -> None:
    editor = Editor("x =|", warm=False)
    await editor.type(" ")
    assert editor.engine.jobs == []
    await editor.ask()
    assert len(editor.engine.jobs) == 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x = 1  # a|", {"in_comments": False}),
        ("x = 'a|'", {"in_strings": False}),
        ("x =|", {"languages": {"python": False}}),
        ("x =|", {"languages": {"*": False}}),
        ("x =|", {"enable": False}),
        ("x =|", {"uri": "file:///secret.py"}),
    ],
)
async def test_places_that_are_off(text: str, options: dict[str, Any]) -> None:
    editor = Editor(text, **options)
    await editor.type(" ")
    assert await editor.shown() == ""
    assert editor.engine.jobs == []


@pytest.mark.parametrize("text", ["return|getsize(a)", "x =|1", "# a|b"])
async def test_in_front_of_a_word_only_who_asks_gets_a_suggestion(text: str) -> None:
    editor = Editor(text)
    await editor.type(" ")
    assert await editor.shown() == ""
    assert editor.engine.jobs == []
    request = await editor.ask(invoked=True)
    await editor.engine.say("y + ")
    assert (await proposed(request)).insert == "y + "


async def test_a_passage_far_above_is_shown_and_stays_while_one_types() -> None:
    case = "def test_of_the_door():\n    door = Door(height=2)\n    assert door.opens()\n"
    apart = "\n".join(f"number_{number} = {number}" for number in range(200))
    editor = Editor(f"{case}{apart}\n\ndef test_of_the_door():\n    door = Door(height=|")
    for key in "2)":
        await editor.type(key)
        await editor.engine.say("")
    [first], [second] = [job.neighbours for job in editor.engine.jobs]
    assert "assert door.opens()" in first.text
    assert second is first  # another one would cost the whole prefix


async def test_secrets_stay_here_and_are_not_proposed() -> None:
    editor = Editor('password = "hunter2-Xy9"\nx =|')
    await editor.type(" ")
    [job] = editor.engine.jobs
    assert "hunter2" not in job.prefix
    assert len(job.prefix) == len(editor.opened.document.text)
    await editor.engine.say('"' + job.prefix[12:23] + '"')
    assert await editor.shown() == ""
