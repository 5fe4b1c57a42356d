"""Next edits as an editor asks for them: the server in this process, with an engine that judges as the test says."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from caesura import wire
from caesura.client.backend import Condition, EngineBusy
from caesura.server.lsp.next_edit import NextEditRequests
from caesura.server.options import parse
from caesura.server.session import EditorInfo, Session

from ..support.clients import until

URI = "file:///project/shop.py"
CALLS = "total = price(first)\nlog(total)\nrest = price(second)\nlast = price(third)\n"
RENAMED = "def area(width, high):\n    if width > high:\n        return high\n    return width\n"


class Judge:
    """Finds edits as likely as `chance` says of their new lines, once `free` is set."""

    def __init__(self) -> None:
        self.condition = Condition("ready", "judge", "cpu")
        self.jobs: list[wire.Infill] = []
        self.chances: dict[str, float] = {}
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        wire.decode_client(wire.encode(job))
        self.jobs.append(job)
        await self.free.wait()
        if self.error:
            raise self.error
        holes = tuple(wire.Fill(text, confidence=self.chances.get(text, 0.99)) for text in job.draft or ())
        more: dict[str, Any] = {"tokens": wire.Tokens(), "timings": wire.Timings(), "stop": "complete"}
        yield wire.Done(job=job.job, seq=0, holes=holes, steps=1, **more)


class Editor:
    """One document; the server's answers are applied as an editor does it."""

    def __init__(self, text: str, *, language: str = "python", engine: Any = None, **settings: object) -> None:
        self.engine, self.uri, self.version, self.text = engine or Judge(), URI, 0, text
        info = EditorInfo("test", "utf-16", (), (), {"warm": False, "trusted": False} | settings)
        self.session = Session(info, lambda *_: self.engine)  # type: ignore[arg-type]
        self.requests = NextEditRequests(self.session)
        self.session.open(URI, language, 0, text)

    def change(self, old: str, new: str, at: int = 0) -> None:
        """Type over the first place of `old` after the offset `at`, a letter at a time."""
        start = self.text.index(old, at)
        self._edit(start, start + len(old), "")
        for number, letter in enumerate(new):
            self._edit(start + number, start + number, letter)

    def _edit(self, start: int, end: int, text: str) -> None:
        self.version += 1
        change = (self._position(start), self._position(end), text)
        self.session.change(self.uri, self.version, [change])
        self.text = self.text[:start] + text + self.text[end:]

    def _position(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        return before.count("\n"), len(before.rpartition("\n")[2].encode("utf-16-le")) // 2

    async def next(self, version: int | None = None, **context: object) -> list[dict[str, Any]]:
        document = SimpleNamespace(uri=self.uri, version=self.version if version is None else version)
        answer = self.requests.inline_edit(SimpleNamespace(textDocument=document, context=SimpleNamespace(**context)))
        return (answer if isinstance(answer, dict) else await answer)["edits"]

    def take(self, edit: dict[str, Any]) -> None:
        document = self.session.workspace.get(self.uri)
        assert document
        sides = (edit["range"]["start"], edit["range"]["end"])
        start, end = (document.document.offset((side["line"], side["character"])) for side in sides)
        self._edit(start, end, edit["text"])


def item(edit: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(item=SimpleNamespace(command=SimpleNamespace(**edit["command"])))


async def test_an_edit_goes_on_place_after_place_until_there_is_none() -> None:
    editor = Editor(CALLS)
    editor.change("(first)", "(first, tax)")
    (edit,) = await editor.next()
    assert edit["why"] == "Like your edit in line 1."
    assert edit["textDocument"] == {"uri": URI, "version": editor.version}
    editor.take(edit)
    (edit,) = await editor.next()
    editor.take(edit)
    assert editor.text == CALLS.replace("first)", "first, tax)").replace("ond)", "ond, tax)").replace("rd)", "rd, tax)")
    assert await editor.next() == []


async def test_a_new_name_at_a_declaration_is_one_edit_of_all_uses_without_the_engine() -> None:
    editor = Editor(RENAMED)
    editor.change("high", "height")
    (edit,) = await editor.next()
    editor.take(edit)
    assert editor.text == RENAMED.replace("high", "height")
    assert editor.engine.jobs == []


async def test_the_likeliest_place_comes_first_and_unlikely_ones_not_at_all() -> None:
    editor = Editor(CALLS)
    editor.engine.chances = {"rest = price(second, tax)": 0.96, "last = price(third, tax)": 0.98}
    editor.change("(first)", "(first, tax)")
    (edit,) = await editor.next()
    assert edit["range"]["start"]["line"] == 3
    editor.engine.chances = dict.fromkeys(editor.engine.chances, 0.9)
    assert await editor.next() == []
    editor.session.settings.options = parse({"nextEdit": "eager"})[0]
    assert await editor.next()


async def test_the_engine_gets_the_edits_and_their_places_without_secrets_and_file_names() -> None:
    text = CALLS.replace("second", "'hunter2-Xy9', password='hunter2-Xy9'")
    editor = Editor(text)
    editor.change("(first)", "(first, tax)")
    await editor.next()
    [job] = editor.engine.jobs
    assert (job.method, job.prompt, job.prefix, job.suffix) == ("judge", "edits", "", "")
    [past] = job.neighbours
    assert past.name == "main.py.diff"
    assert past.text == "original:\ntotal = price(first)\nupdated:\ntotal = price(first, tax)"
    assert b"hunter2" not in wire.encode(job)
    assert b"shop" not in wire.encode(job)


@pytest.mark.parametrize("level", ["off", "manual"])
async def test_nothing_comes_of_itself_unless_the_setting_says_so(level: str) -> None:
    editor = Editor(CALLS, nextEdit=level)
    editor.change("(first)", "(first, tax)")
    assert await editor.next() == []
    assert len(await editor.next(triggerKind=1)) == (level == "manual")


async def test_what_was_dismissed_does_not_come_back_in_its_place() -> None:
    editor = Editor(CALLS)
    editor.change("(first)", "(first, tax)")
    (edit,) = await editor.next()
    editor.requests.did_dismiss(item(edit))
    (other,) = await editor.next()
    assert other["range"]["start"]["line"] != edit["range"]["start"]["line"]
    editor.requests.did_dismiss(item(other))
    editor.change("log(total)", "\nlog(total)")  # the places move down
    assert await editor.next() == []


async def test_an_answer_to_a_text_that_has_changed_is_empty() -> None:
    editor = Editor(CALLS)
    editor.change("(first)", "(first, tax)")
    assert await editor.next(version=editor.version - 1) == []
    editor.engine.free.clear()
    request = asyncio.ensure_future(editor.next())
    await until(lambda: bool(editor.engine.jobs))
    editor.change("log", "print")
    assert await request == [], "the engine is free, too"


async def test_an_engine_that_fails_or_cannot_judge_shows_nothing_and_says_nothing() -> None:
    editor = Editor(CALLS)
    editor.change("(first)", "(first, tax)")
    editor.engine.error = EngineBusy("The engine has too much to do.")
    assert await editor.next() == []
    editor.engine.error = None
    editor.engine.condition = Condition("ready", "service", "", lacks=frozenset({"judge"}))
    assert await editor.next() == [], "an engine would be started for it"
    assert await editor.next(triggerKind=1)


async def test_the_user_is_never_undone() -> None:
    editor = Editor("a = price(one, tax)\nb = price(two, tax)\nc = price(three, tax)\n")
    editor.change(", tax)", ")")
    editor.change(")", ", tax)", editor.text.index("(one"))
    assert await editor.next() == []


@pytest.mark.parametrize("ended", ["closed", "replaced", "lost"])
async def test_no_edit_outlives_its_text(ended: str) -> None:
    editor = Editor(CALLS)
    editor.change("(first)", "(first, tax)")
    if ended == "closed":
        editor.session.close(URI)
    elif ended == "replaced":
        editor.version += 1
        editor.session.change(URI, editor.version, [CALLS])
    else:
        editor.session.lose(URI)
    assert await editor.next() == []


async def test_line_breaks_and_wide_letters_are_those_of_the_editor() -> None:
    editor = Editor("x = f(a)  # 🎈\r\ny = f(b)  # 🎈\r\nz = f(c)\r\n")
    editor.change("(a)", "(a, tax)")
    (edit,) = await editor.next()
    editor.take(edit)
    assert editor.text == "x = f(a, tax)  # 🎈\r\ny = f(b, tax)  # 🎈\r\nz = f(c)\r\n"


async def test_edits_with_several_cursors_go_on_elsewhere() -> None:
    editor = Editor(CALLS)
    for letter, at in zip(", tax", range(5), strict=True):  # the editor sends the changes of all cursors together
        for name in ("third", "first"):
            place = editor.text.index(name) + len(name) + at
            editor._edit(place, place, letter)
    (edit,) = await editor.next()
    editor.take(edit)
    assert editor.text.count(", tax)") == 3
