"""Ghost text where a grammar holds: JSON and Markdown."""

import asyncio

import pytest

from caesura import wire
from caesura.schema.reader import read_schema

from ..support.editor import Editor, proposed, written


@pytest.mark.parametrize(("text", "language"), [("x = |", "python"), ('{"a": |}\n', "json")], ids=["text", "grammar"])
async def test_no_text_is_followed_that_is_far_less_likely_than_what_is_shown(text: str, language: str) -> None:
    editor = Editor(text, language=language, mode="balanced")
    await editor.type("1")
    assert editor.engine.jobs[-1].min_probability == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("marked", "key", "language", "text", "sure", "shown"),
    [
        ('{\n|\n  "b": 2\n}\n', "  ", "json", '"home": "a/b"', ((1, 0.9), (7, 0.9), (8, 0.9), (13, 0.1)), '"home": '),
        ('{\n|\n  "b": 2\n}\n', "  ", "json", '"home": "a/b"', ((1, 0.9), (7, 0.1), (8, 0.9), (13, 0.9)), ""),
        ('{"a": "x|"}\n', "y", "json", "yz and more of it", ((3, 0.9), (9, 0.9), (17, 0.1)), "yz and"),
        ('{"a": |}\n', " ", "json", '"x y z"', ((4, 0.9), (7, 0.1)), ""),  # nothing ends the string
        ("- one\n-|\n", " ", "markdown", "a long item", ((6, 0.9), (11, 0.2)), "a long"),
    ],
    ids=[
        "the key of a member",
        "no key that is unsure",
        "words of a string",
        "no half of a string",
        "words of an item",
    ],
)
async def test_where_a_grammar_holds_what_is_sure_is_shown_if_it_may_stand_alone_and_all_of_it_on_request(
    marked: str, key: str, language: str, text: str, sure: tuple[tuple[int, float], ...], shown: str
) -> None:
    editor = written(marked, language, min_confidence=0.5)
    await editor.type(key)
    await editor.engine.say(text, sure=sure)
    assert await editor.shown() == shown
    request = await editor.ask(invoked=True)
    assert editor.engine.jobs[-1].min_probability == 0.0
    await editor.engine.say(text, sure=sure)
    assert (await proposed(request)).insert.rstrip(",") == text


async def test_in_markdown_the_hole_of_an_item_has_a_grammar_and_typing_on_keeps_its_canvas() -> None:
    editor = written("- one\n-|\n", "markdown")
    await editor.type(" ")
    [job] = editor.engine.jobs
    [hole] = job.segments
    assert isinstance(hole, wire.Hole)
    assert isinstance(hole.grammar, wire.Pattern)
    await editor.engine.say("two three")
    assert await editor.shown() == "two three"
    await editor.type("tw")
    assert await editor.shown() == "o three"
    assert len(editor.engine.jobs) == 1


async def test_without_the_setting_the_hole_has_none() -> None:
    editor = written("- one\n-|\n", "markdown", structured=False)
    await editor.type(" ")
    assert editor.engine.jobs[-1].segments == (wire.Hole(32, "line"),)


@pytest.mark.parametrize(
    ("marked", "key", "jobs"),
    [
        ("Some words|\n", " ", 0),
        ("Some w|\n", "o", 0),
        ("Some wo|\n", "r", 1),  # the rest of the word
        ("- one of|\n", " ", 0),
        ("# One of|\n", " ", 1),
        ("Run `npm|`\n", " ", 1),
        ("See [this](|)\n", "/", 1),
        ("```sh\nnpm|\n```\n", " ", 1),
        ("```sh\nnpm i\n```\nIt is|\n", " ", 0),
        ("```sh\r\nnpm|\r\n```\r\n", " ", 1),
        ("It is:\n\n    npm|\n", " ", 1),
        ("- It is:\n\n      npm|\n", " ", 1),
        ("---\ntitle:|\n---\n", " ", 1),
        ("---\r\ntitle:|\r\n---\r\n", " ", 1),
        ("---\ntitle: x\n---\nIt is|\n", " ", 0),
    ],
)
async def test_prose_of_markdown_costs_nothing_until_somebody_asks(marked: str, key: str, jobs: int) -> None:
    editor = written(marked, "markdown")
    editor.opened.tree.parse(editor.opened.document.text)  # as it is soon after the document was opened
    editor.typing.rested(editor.opened, editor.cursor)
    await editor.type(key)
    if jobs == 0:
        assert await editor.shown() == ""
    assert len([job for job in editor.engine.jobs if job.priority == "automatic"]) == jobs
    request = await editor.ask(invoked=True)
    await editor.engine.say("words")
    assert (await proposed(request)).insert == "words"


async def test_where_a_grammar_holds_nothing_is_shown_before_the_canvas_is_done() -> None:
    text = "a long item of some words"
    editor = written("- one\n-|\n", "markdown", deadline_ms=1.0, min_confidence=0.85)
    await editor.type(" ")
    request = await editor.ask()
    await editor.engine.say(text, locked=17)
    await asyncio.sleep(0.01)  # past the deadline, when locked words of other text would be shown
    assert not request.done()
    await editor.engine.say(text)
    assert (await proposed(request)).insert == text


async def test_the_rest_of_a_table_row_is_several_holes_and_one_proposal() -> None:
    editor = written("|", "markdown")
    await editor.type("| a | b |\n|---|---|\n| 1 | 2 |\n|")
    await editor.type(" ")
    job = editor.engine.jobs[-1]
    holes = [segment for segment in job.segments if isinstance(segment, wire.Hole)]
    assert len(holes) == 2
    fills = tuple(wire.Fill(text, ((0, 1),), 0.9) for text in "34")
    done = {"job": job.job, "seq": 0, "steps": 1, "stop": "complete"}
    await editor.engine.tell(wire.Done(**done, holes=fills, tokens=wire.Tokens(), timings=wire.Timings()))
    assert await editor.shown() == "3 | 4 |"
    await editor.type("3 ")
    assert await editor.shown() == "| 4 |"
    assert editor.engine.jobs[-1] is job


async def test_in_json_the_hole_goes_on_with_what_is_typed_by_the_documents_schema() -> None:
    editor = written('{"level": "lo|"}\n', "json")
    editor.around.rules = read_schema('{"properties": {"level": {"enum": ["low", "lower", "high"]}}}')
    await editor.type("w")
    [job] = editor.engine.jobs
    [hole] = job.segments
    assert isinstance(hole, wire.Hole)
    assert isinstance(hole.grammar, wire.Json)
    assert (hole.grammar.typed, hole.grammar.then, hole.grammar.schema) == ('"low', '"', 0)
    assert len(job.schemas) == 1
    await editor.engine.say("er")
    assert await editor.shown() == "er"


async def test_secrets_of_a_schema_stay_here() -> None:
    editor = written('{"level": |}\n', "json")
    editor.around.rules = read_schema('{"properties": {"level": {"default": {"password": "hunter2-Xy9"}}}}')
    await editor.type('"')
    [job] = editor.engine.jobs
    assert "password" in job.schemas[0]
    assert "hunter2" not in job.schemas[0]


async def test_a_key_typed_otherwise_begins_a_hole_with_a_grammar_again() -> None:
    editor = written('{"a": 1, |}\n', "json")
    await editor.type('"b')
    await editor.engine.say('ar": 2')
    assert await editor.shown() == 'ar": 2'
    await editor.type("o")
    first, second = (job.segments[0] for job in editor.engine.jobs)
    assert isinstance(first, wire.Hole)
    assert isinstance(second, wire.Hole)
    assert isinstance(first.grammar, wire.Json)
    assert isinstance(second.grammar, wire.Json)
    assert (first.grammar.typed, second.grammar.typed) == ('"b', '"bo')
    assert second.grammar.taken == ("a",)


async def test_a_part_that_is_taken_leaves_the_rest_as_it_is() -> None:
    editor = written('{"a": |}\n', "json")
    await editor.type("[")
    await editor.engine.say("1, 2, 3]")
    assert await editor.shown() == "1, 2, 3]"
    await editor.type("1, ")
    assert await editor.shown() == "2, 3]"
    assert len(editor.engine.jobs) == 1


async def test_invisible_characters_are_not_shown_where_leaving_them_out_may_break_the_grammar() -> None:
    editor = written('{"a": |}\n', "json")
    await editor.type('"')
    await editor.engine.say('x\u200by"', None, 'z"')
    assert await editor.shown() == 'z"'


@pytest.mark.parametrize("typed", ["`na", "na (m", 'say "m'])
async def test_in_a_row_the_mark_that_the_editor_closed_is_a_part_of_the_suggestion(typed: str) -> None:
    """An editor that closes marks has written the last one after the cursor."""
    close = {"`": "`", "(": ")", '"': '"'}[next(mark for mark in typed if mark in '`("')]
    editor = written("|", "markdown")
    await editor.type(f"| a | b |\n|---|---|\n| `one` | 2 |\n| {typed[:-1]}{close}\n")
    await editor.type(typed[-1], at=editor.cursor - 2)
    job = editor.engine.jobs[-1]
    assert not job.suffix.strip()
    assert sum(isinstance(segment, wire.Hole) for segment in job.segments) == 2
    fills = tuple(wire.Fill(text, ((0, len(text)),), 0.9) for text in (f"me{close}", "4"))
    done = {"job": job.job, "seq": 0, "steps": 1, "stop": "complete"}
    await editor.engine.tell(wire.Done(**done, holes=fills, tokens=wire.Tokens(), timings=wire.Timings()))
    answer = await editor.answer()
    assert (answer.insert, answer.eat) == (f"me{close} | 4 |", 1)
    await editor.type("me")
    assert await editor.shown() == f"{close} | 4 |"
