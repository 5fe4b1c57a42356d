"""Where the cursor rests, the engine reads what lies around it, before a key is pressed."""

import pytest

from caesura.client.backend import EngineUnavailable
from caesura.server.ghost import panes

from ..support.editor import Editor, turns


async def test_where_the_cursor_rests_the_engine_reads_what_lies_around_and_no_more() -> None:
    editor = Editor("a = 1\nx =|\nb = 2\n")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    [job] = editor.engine.jobs
    assert (job.prefix, job.suffix, job.priority) == ("a = 1\nx =", "\nb = 2\n", "speculative")
    await editor.engine.say("compute()", locked=2)
    assert not editor.engine.live
    await editor.type(" ")
    assert [(job.prefix, job.priority) for job in editor.engine.jobs[1:]] == [("a = 1\nx = ", "automatic")]


@pytest.mark.parametrize("then", ["type", "ask", "rest"])
async def test_what_is_read_ends_before_another_job_begins(then: str) -> None:
    """So that the engine has what was read so far for it."""
    editor = Editor("x =|")
    editor.typing.rested(editor.opened, 0)
    await turns()
    [reading] = editor.engine.jobs
    lives: list[bool] = []
    editor.engine.on_job = lambda job: lives.append(reading.job in editor.engine.live)
    if then == "type":
        await editor.type(" ")
    elif then == "ask":
        await editor.ask()
    else:
        editor.typing.rested(editor.opened, editor.cursor)
        await turns()
    assert lives == [False]


@pytest.mark.parametrize("options", [{"warm": False}, {"enable": False}, {"mode": "manual"}, {"in_comments": False}])
async def test_nothing_is_read_where_nothing_would_be_suggested(options: dict[str, object]) -> None:
    editor = Editor("# x|", **options)
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    assert not editor.engine.jobs


async def test_nothing_is_read_where_a_canvas_is_known() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    assert len(editor.engine.jobs) == 1


async def test_a_known_place_is_read_again_when_something_else_was_read_meanwhile() -> None:
    """Which may have taken its place in the engine's cache."""
    editor = Editor("y = 1\nx =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    for at in (0, editor.cursor, editor.cursor):
        editor.typing.rested(editor.opened, at)
        await turns()
    assert [job.prefix for job in editor.engine.jobs[1:]] == ["", "y = 1\nx = "]
    assert await editor.shown() == "compute()"


@pytest.mark.parametrize("end", ["closed", "all closed", "replaced", "known"])
async def test_reading_ends_with_its_document_and_with_the_next_rest(end: str) -> None:
    editor = Editor("x = 1  # why|", in_comments=False)
    editor.typing.rested(editor.opened, 4)
    await turns()
    assert len(editor.engine.live) == 1
    if end == "known":
        editor.typing.rested(editor.opened, editor.cursor)  # where nothing is wanted
    else:
        {
            "closed": lambda: editor.typing.close(editor.uri),
            "all closed": editor.typing.close_all,
            "replaced": lambda: editor.typing.replaced(editor.uri),
        }[end]()
    await turns()
    assert not editor.engine.live


async def test_a_hidden_document_is_not_read() -> None:
    editor = Editor("x =|", uri="file:///secret.py")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    assert not editor.engine.jobs


async def test_documents_that_are_only_looked_at_take_nobodys_place() -> None:
    editor = Editor("x =|")
    await editor.type(" ")
    await editor.engine.say("compute()")
    for number in range(panes.MAX_DOCUMENTS + 1):
        uri = f"file:///{number}.py"
        editor.workspace.open(uri, "python", 0, "y = ")
        opened = editor.workspace.get(uri)
        assert opened
        editor.typing.rested(opened, 4)
        await turns()
    assert len(editor.engine.live) == 1
    assert await editor.shown() == "compute()"


async def test_an_engine_that_fails_while_it_reads_is_no_trouble() -> None:
    editor = Editor("x =|")
    editor.typing.rested(editor.opened, editor.cursor)
    await turns()
    await editor.engine.tell(EngineUnavailable("gone"))
    await editor.type(" ")
    await editor.engine.say("compute()")
    assert await editor.shown() == "compute()"
