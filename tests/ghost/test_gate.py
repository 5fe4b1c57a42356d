"""How much of a fill is shown: what is sure, fits and adds no syntax error."""

import pytest

from caesura import wire
from caesura.server.ghost.typed import Proposal

from ..support.editor import Editor, proposed, written


async def test_low_confidence_is_nothing_to_propose() -> None:
    editor = Editor("x =|", min_confidence=0.95)
    await editor.type(" ")
    await editor.engine.say("1")
    assert await editor.shown() == ""


async def test_an_unsure_suggestion_is_cut_where_it_becomes_unsure() -> None:
    editor = Editor("x =|", min_confidence=0.5)
    await editor.type(" ")
    await editor.engine.say("first(a) + second", sure=((5, 0.9), (8, 0.8), (11, 0.3), (17, 0.9)))
    assert await editor.shown() == "first(a)"
    await editor.type("first(a) + ")  # what was unsure is typed: now the rest is sure
    assert await editor.shown() == "second"
    assert len([job for job in editor.engine.jobs if job.prefix == "x = "]) == 1


async def test_a_line_brings_along_the_lines_that_follow_it_as_far_as_they_are_likely() -> None:
    """The first line is there as soon as it is locked; the rest only adds to it."""
    editor = Editor("def f(a, b, c):\n    self.a = a\n   |\n\nx = 1\n", mode="balanced")
    await editor.type(" ")
    text = "self.b = b\n    self.c = c\n    log()"
    likely = ((11, 0.9), (25, 0.9), (33, 0.1))  # a token that goes over the end of the line
    await editor.engine.say(text, locked=11, sure=likely)
    assert await editor.shown() == "self.b = b"
    await editor.engine.say(text, sure=likely)
    assert await editor.shown() == "self.b = b\n    self.c = c"


@pytest.mark.parametrize(
    ("insert", "keys", "shown"), [("abc", 4, ""), ("abcd", 4, "abcd"), ("ab", 0, "ab")], ids=["short", "long", "all"]
)
async def test_what_saves_too_few_keys_is_not_shown_unless_it_is_asked_for(insert: str, keys: int, shown: str) -> None:
    editor = Editor("x = f(|, 1)\n", least_keys=keys)
    await editor.type(" ")
    await editor.engine.say(insert)
    assert await editor.shown() == shown
    assert (await editor.answer(invoked=True)).insert == insert


async def test_what_is_shown_stays_while_it_is_typed_through_however_short_it_gets() -> None:
    editor = Editor("x = f(|, 1)\n", least_keys=4)
    await editor.type(" ")
    await editor.engine.say("abcde")
    for key, left in zip("abcd", ("bcde", "cde", "de", "e"), strict=True):
        await editor.shown()
        await editor.type(key)
        assert await editor.shown() == left
    await editor.type("x")
    request = await editor.ask()
    await editor.type("", erase=1)
    assert await editor.shown() == "e", "after a mistake it is there again"
    await request


async def test_of_several_candidates_all_that_are_sound_are_shown() -> None:
    editor = Editor("x = 1|")
    await editor.type(" ")
    await editor.engine.say("def first", None, "+ second", "+ third", "+ second")
    answer = await editor.answer()
    assert (answer.insert, answer.others) == ("+ second", ("+ third",))


@pytest.mark.parametrize(
    ("fill", "inserted", "eaten"),
    [
        ("value: int) -> None:", "value: int) -> None:", 1),  # it goes on after the bracket
        ("value)", "value", 0),
        ("value: dict[str, int])", "value: dict[str, int]", 0),
        ("value) -> g(int)", "value) -> g(int)", 1),  # its last bracket is another one
        ("value", "value", 0),
        ("v.g(a)", "v.g(a)", 0),  # only its own bracket
        ("v + '(' + g(a))", "v + '(' + g(a)", 0),
        ("v, 'a)'", "v, 'a)'", 0),  # a bracket in a string
    ],
)
async def test_a_fill_says_what_becomes_of_a_bracket_that_the_editor_closed(
    fill: str, inserted: str, eaten: int
) -> None:
    editor = Editor("def f|\n    pass\n")
    await editor.type("()", cursor=editor.cursor + 1)
    await editor.engine.say("x", job=editor.engine.jobs[-1])  # says nothing of the brackets
    await editor.type("v")
    assert [(job.prefix, job.suffix) for job in editor.engine.jobs[1:]] == [("def f(v", "\n    pass\n")]
    await editor.engine.say(fill.removeprefix("v"))
    found = await editor.answer()
    assert (found.insert, found.eat) == (inserted.removeprefix("v"), eaten)
    document = editor.opened.document
    await editor.change((document.position(editor.cursor), document.position(editor.cursor + eaten), found.insert))
    assert editor.counted.counts[-1] == ("accepted", len(found.insert))


@pytest.mark.parametrize(("marked", "inserted", "eaten"), [("foo|\n", "a, b);", 1), ("foo|;\n", "a, b", 0)])
async def test_a_semicolon_after_such_a_bracket_stands_there_once(marked: str, inserted: str, eaten: int) -> None:
    editor = written(marked, "typescript")
    await editor.type("()", cursor=editor.cursor + 1)
    await editor.engine.say("a, b);")
    found = await editor.answer()
    assert (found.insert, found.eat) == (inserted, eaten)


async def test_typing_over_a_closed_bracket_goes_on_with_the_fill() -> None:
    editor = Editor("x = f(|)\n")
    await editor.type("a")
    await editor.engine.say(") + g(b)")
    assert (await editor.answer()).insert == ") + g(b)"
    editor.cursor += 1  # the text stays as it is
    assert (await editor.answer()).insert == " + g(b)"
    assert len(editor.engine.jobs) == 1


async def test_a_fill_that_breaks_the_syntax_is_denoised_again_behind_its_sound_part() -> None:
    editor = Editor("x =|\ny = 2\n")
    await editor.type(" ")
    await editor.engine.say("first + second, def third")
    request = await editor.ask()
    again = editor.engine.jobs[-1]
    assert (again.prefix, again.seed) == ("x = first + second", 1)
    await editor.engine.say(" + third")
    assert (await proposed(request)).insert == "first + second + third"


async def test_where_that_does_not_help_the_sound_part_is_shown() -> None:
    editor = Editor("x =|\ny = 2\n")
    await editor.type(" ")
    await editor.engine.say("first + second, def third")
    request = await editor.ask()
    await editor.engine.say(" def")
    assert (await proposed(request)).insert == "first + second"
    assert await editor.shown() == "first + second"
    assert len(editor.engine.jobs) == 2


@pytest.mark.parametrize(("least", "shown"), [(4, ""), (0, "f")], ids=["four", "none"])
async def test_what_the_gate_leaves_must_save_enough_keys_too(least: int, shown: str) -> None:
    """As an answer and on the way to it."""
    editor = Editor("x =|\ny = 2\n", least_keys=least)
    await editor.type(" ")
    parts: list[Proposal] = []
    request = await editor.ask(on_part=parts.append)
    await editor.engine.say("f, def third")
    await editor.engine.say(" def", None)  # it is denoised again
    assert (await proposed(request)).insert == shown
    assert {part.insert for part in parts} <= {shown}


async def test_of_the_starts_that_the_gate_leaves_the_first_that_saves_enough_keys_is_shown() -> None:
    editor = Editor("x =|\ny = 2\n", least_keys=4)
    await editor.type(" ")
    await editor.engine.say("f, def third", None, "first + second, def third")
    request = await editor.ask()
    await editor.engine.say(" def")
    assert (await proposed(request)).insert == "first + second"


async def test_typing_past_the_sound_part_never_shows_it_again() -> None:
    editor = Editor("x =|\ny = 2\n", deadline_ms=1)
    await editor.type(" ")
    await editor.engine.say("first + second, def third")
    request = await editor.ask()
    await editor.engine.say("))")
    assert (await proposed(request)).insert == "first + second"
    await editor.type("first + second, ")
    assert await editor.shown() == ""


async def test_without_the_gate_it_is_shown_as_it_is() -> None:
    editor = Editor("x =|\ny = 2\n", syntax_gate=False)
    await editor.type(" ")
    await editor.engine.say("first + + +")
    assert await editor.shown() == "first + + +"


async def test_a_part_of_a_stream_is_sound() -> None:
    editor = Editor("x =|\ny = 2\n")
    await editor.type(" ")
    parts: list[Proposal] = []
    request = await editor.ask(on_part=parts.append)
    await editor.engine.say("first + second, def third")
    assert {part.insert for part in parts} == {"first + second"}
    await editor.engine.say(" + third")
    assert (await proposed(request)).insert == "first + second + third"


FAR = "# a line of a text\n" * 4


async def test_what_was_sound_is_checked_again_after_an_edit_beyond_its_context() -> None:
    editor = Editor(f'a = """\n{FAR}x =|\n\ny = 2\n{FAR}"""\n', context_before=12, context_after=12)
    await editor.type(" ")
    await editor.engine.say("first, def second")
    assert await editor.shown() == "first, def second"  # all of it is a string
    home, end = editor.cursor, len(editor.opened.document.text)
    await editor.type("", at=end - 4, erase=3)
    await editor.type("1", at=4, erase=3)
    editor.cursor = home - 2
    request = await editor.ask()
    assert editor.engine.jobs[-1].prefix == "x = first"  # it is kept as far as it is sound now
    await editor.engine.say("(a)")
    assert (await proposed(request)).insert == "first(a)"


async def test_a_key_is_not_proposed_again_where_it_was_written_meanwhile_beyond_the_context() -> None:
    editor = written('{\n  "k": [' + "1, " * 30 + "1],\n  |\n}\n", "json", context_before=12, context_after=12)
    await editor.type('"')
    await editor.engine.say('b": 1')
    assert await editor.shown() == 'b": 1'
    home = editor.cursor
    await editor.type("b", at=5, erase=1)
    editor.cursor = home
    request = await editor.ask()
    assert not request.done()
    [hole] = editor.engine.jobs[-1].segments
    assert isinstance(hole, wire.Hole)
    assert isinstance(hole.grammar, wire.Json)
    assert hole.grammar.taken == ("b",)
    await editor.engine.say('c": 1')
    assert (await proposed(request)).insert == 'c": 1'


async def test_what_is_shown_is_not_exchanged_for_a_better_candidate() -> None:
    editor = Editor("x = f(|)\n")
    request = await editor.ask()
    await editor.engine.say("a:\nb = 2", locked=3)
    shown = (await proposed(request)).insert
    assert shown == "a"
    await editor.engine.say("a:\nb = 2", None, "other")
    assert await editor.shown() == shown
