"""The typing simulator: emulated editors do what the real ones do, the typist takes only what they meant to write, and
the real server shows nothing stale in either editor."""

import asyncio
import importlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from caesura import model_store
from caesura.ipc import rendezvous

from ..support.processes.clock import Clock

BENCH = Path(__file__).parents[2] / "bench"
FAKE = Path(__file__).parents[1] / "support" / "processes" / "fake_engine.py"
URI = "file:///a.py"


@pytest.fixture(scope="module", autouse=True)
def beside() -> Iterator[None]:
    """The benchmarks are scripts that import what lies beside them."""
    folders = [str(BENCH), str(BENCH / "typing_stretches")]
    sys.path[:0] = folders
    yield
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def emulators(beside: None) -> ModuleType:
    return importlib.import_module("emulators")


@pytest.fixture(scope="module")
def typist(beside: None) -> ModuleType:
    return importlib.import_module("typist")


@pytest.fixture(scope="module")
def simulator(beside: None) -> ModuleType:
    return importlib.import_module("simulator")


def at_once(steps: Coroutine[Any, Any, None]) -> None:
    loop = Clock()
    try:
        loop.run_until_complete(steps)
    finally:
        loop.close()


class Script:
    """A server in memory: it keeps what it is told, and the test answers when it likes."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.asked: list[tuple[float, Any]] = []
        self._answers: list[Callable[[Any], None]] = []

    def notify(self, method: str, params: Any) -> None:
        self.told.append((method, params))

    def request(self, method: str, params: Any, answer: Callable[[Any], None]) -> int:
        self.asked.append((asyncio.get_running_loop().time(), params))
        self._answers.append(answer)
        return len(self.asked)

    def answer(self, number: int, result: Any) -> None:
        self._answers[number - 1]({"result": result})

    def item(self, number: int, text: str, eat: int = 0) -> None:
        """Answer with `text` at the position of the request."""
        where = self.asked[number - 1][1]["position"]
        end = {**where, "character": where["character"] + eat}
        self.answer(number, {"items": [{"insertText": text, "range": {"start": where, "end": end}}]})

    def fail(self, number: int, code: int) -> None:
        self._answers[number - 1]({"error": {"code": code, "message": ""}})

    @property
    def cancelled(self) -> list[int]:
        return [params["id"] for method, params in self.told if method == "$/cancelRequest"]


async def typed(editor: Any, keys: str, every_s: float = 0.1) -> None:
    for key in keys:
        editor.key(key)
        await asyncio.sleep(every_s)


# Neovim


def test_neovim_asks_once_the_keys_have_rested_and_cancels_nothing(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.Neovim(server, "utf-8", URI, "python", "")
        await typed(editor, "abc")
        assert server.asked == []
        await asyncio.sleep(0.15)
        assert [(round(at, 3), params["position"]) for at, params in server.asked] == [
            (0.4, {"line": 0, "character": 3})
        ]
        await typed(editor, "d", 0.3)
        assert len(server.asked) == 2
        assert server.cancelled == []

    at_once(steps())


def test_neovim_keeps_a_ghost_on_null_and_clears_it_on_an_empty_list(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.Neovim(server, "utf-8", URI, "python", "x = ")
        editor.to(0, 4)
        await asyncio.sleep(0.3)
        server.item(1, "first")
        assert editor.visible == "first"
        await typed(editor, "f", 0.3)
        server.answer(2, None)
        assert editor.visible == "irst"
        await typed(editor, "i", 0.3)
        server.answer(3, {"items": []})
        assert editor.visible == ""
        assert editor.seen.kept_stale == 0
        assert [asked.outcome for asked in editor.seen.asked] == ["items", "null", "empty"]

    at_once(steps())


def test_neovim_draws_a_late_answer_and_that_is_a_stale_show(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.Neovim(server, "utf-8", URI, "python", "")
        await typed(editor, "x", 0.3)
        await typed(editor, " +", 0.01)
        server.item(1, " = 1")
        assert [draw.stale for draw in editor.seen.drawn] == [True]
        server.answer(1, None)
        assert editor.seen.kept_stale == 1

    at_once(steps())


def test_a_late_answer_that_was_typed_through_is_not_stale(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.Neovim(server, "utf-8", URI, "python", "")
        await typed(editor, "x", 0.3)
        await typed(editor, " =", 0.01)
        server.item(1, " = 1")
        assert [(draw.stale, draw.text) for draw in editor.seen.drawn] == [(False, " 1")]

    at_once(steps())


def test_an_error_for_a_superseded_request_is_counted(
    emulators: ModuleType, simulator: ModuleType, typist: ModuleType
) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.Neovim(server, "utf-8", URI, "python", "")
        await typed(editor, "ab", 0.3)
        server.fail(1, -32800)
        server.fail(2, -32603)
        tally = simulator.Tally([(next(iter(typist.stretches())), editor)])
        counts = tally.report()["counts"]
        assert (counts["superseded errors"], counts["other errors"]) == (1, 1)

    at_once(steps())


# VS Code


def test_vs_code_asks_after_each_key_and_cancels_the_request_before(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.VSCode(server, "utf-16", URI, "python", "")
        await typed(editor, "abc")
        assert [round(at, 3) for at, _ in server.asked] == [0.05, 0.15, 0.25]
        assert server.cancelled == [1, 2]
        server.item(2, "late")
        assert editor.visible == ""
        server.item(3, "now")
        assert editor.visible == "now"
        assert [asked.outcome for asked in editor.seen.asked] == ["cancelled", "cancelled", "items"]

    at_once(steps())


def test_vs_code_keeps_a_ghost_that_is_typed_through_and_hides_any_other(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.VSCode(server, "utf-16", URI, "python", "")
        await typed(editor, "x")
        server.item(1, " = 1")
        editor.key(" ")
        assert editor.visible == "= 1"
        await asyncio.sleep(0.1)
        server.item(2, "= 1")
        assert [draw.new for draw in editor.seen.drawn] == [True, False]
        editor.key("+")
        assert editor.visible == ""
        assert editor.ghost is None
        editor.back(1)
        assert editor.visible == ""

    at_once(steps())


def test_positions_are_in_the_units_that_were_agreed_on(emulators: ModuleType) -> None:
    async def steps() -> None:
        for kind, encoding, character in ((emulators.Neovim, "utf-8", 7), (emulators.VSCode, "utf-16", 4)):
            server = Script()
            editor = kind(server, encoding, URI, "python", "ä\n😀 \n")
            editor.to(1, 2)
            await typed(editor, "é", 0.3)
            assert server.asked[-1][1]["position"] == {"line": 1, "character": character}
            server.item(len(server.asked), "ü")
            assert editor.accept() == 1
            assert editor.text == "ä\n😀 éü\n"
            editor.close()

    at_once(steps())


def test_a_bracket_closed_by_the_editor_is_part_of_what_is_replaced(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.VSCode(server, "utf-16", URI, "python", "")
        editor.key("f")
        await asyncio.sleep(0.1)
        server.item(1, "(a) + 1")
        editor.key("(", ")")
        assert editor.visible == "a) + 1"
        editor.accept()
        assert (editor.text, editor.cursor) == ("f(a) + 1", 8)
        editor.key("(", ")")
        await asyncio.sleep(0.1)
        server.item(len(server.asked), "b)", eat=1)
        editor.accept()
        assert editor.text == "f(a) + 1(b)"

    at_once(steps())


def test_an_item_may_begin_before_the_cursor(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.VSCode(server, "utf-16", URI, "python", "x\n")
        editor.to(0, 1)
        await typed(editor, " =")
        where = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 3}}
        server.answer(2, {"items": [{"insertText": "x = 1", "range": where}]})
        assert editor.visible == " 1"
        editor.key(" ")
        editor.accept()
        assert editor.text == "x = 1\n"

    at_once(steps())


def test_a_command_runs_when_its_item_was_taken(emulators: ModuleType) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.VSCode(server, "utf-16", URI, "python", "")
        await typed(editor, "x")
        where = server.asked[0][1]["position"]
        command = {"title": "", "command": "taken"}
        item = {"insertText": " = 1", "range": {"start": where, "end": where}, "command": command}
        server.answer(1, {"items": [item]})
        editor.accept(2)
        assert command not in [params for _, params in server.asked]
        editor.accept()
        assert command in [params for _, params in server.asked]
        assert editor.text == "x = 1"

    at_once(steps())


# The typist


@pytest.mark.parametrize(
    ("ghost", "keys", "words", "taken"),
    [
        ("value)", "value)\n", False, 6),
        ("value) + 1", "value)\n", False, 0),
        ("val", "value", False, 0),  # too little
        ("other", "value", False, 0),
        ("value) + 1", "value)\n", True, 6),
        ("values", "value)", True, 0),
        ("", "value", True, 0),
    ],
)
def test_a_ghost_is_taken_only_when_it_is_what_comes_next(
    typist: ModuleType, ghost: str, keys: str, words: bool, taken: int
) -> None:
    texts = typist.ahead([[0, "key", key] for key in keys])
    assert typist.wanted(ghost, texts, words=words) == taken


def test_typing_errors_are_not_what_the_typist_means_to_write(typist: ModuleType) -> None:
    events = [[0, "key", "v"], [0, "key", "s"], [0, "back", 1], [0, "key", "a"], [0, "to", 0, 0], [0, "key", "z"]]
    assert typist.ahead(events) == ["v", "vs", "v", "va"]
    assert typist.ahead(events[2:]) == []


def test_what_the_typist_means_to_write_goes_on_after_the_brackets_that_the_editor_closed(typist: ModuleType) -> None:
    events = [[0, "pair", "{", "}"], [0, "pair", "\n ", "\n"], [0, "key", "x"], [0, "to", 2, 1], [0, "key", ";"]]
    assert typist.ahead(events, "if a \n", 5)[-2:] == ["{\n x\n}", "{\n x\n};"]


def test_the_typist_takes_a_ghost_that_has_been_seen_and_goes_on_behind_it(
    emulators: ModuleType, typist: ModuleType
) -> None:
    async def steps() -> None:
        server = Script()
        keys = [[100, "key", key] for key in "ab = call(1)"]
        keys[2][0] = 1000  # a pause after "ab"
        stretch = typist.Stretch("s", "vscode", "a.py", "python", 60, False, "", "ab = call(1)", keys)
        editor = emulators.VSCode(server, "utf-16", URI, "python", "")
        person = typist.Typist(editor, stretch, 1.0)
        typing = asyncio.create_task(person.type())
        await asyncio.sleep(0.28)
        server.item(2, " = call(")
        await typing
        assert editor.text == stretch.end
        assert (editor.seen.keys, editor.seen.accepted) == (4, 8)
        assert sum(editor.marks) == 8
        assert (person.gain.keys, person.gain.spared, person.gain.tabs, person.gain.saved) == (4, 8, 1, 7)

    at_once(steps())


def test_a_wrong_ghost_costs_two_keys_once_it_was_read(
    emulators: ModuleType, simulator: ModuleType, typist: ModuleType
) -> None:
    async def steps() -> None:
        server = Script()
        keys = [[every, "key", key] for every, key in [(0, "a"), (500, "b"), (100, "c"), (60, "d"), (400, "e")]]
        stretch = typist.Stretch("s", "vscode", "a.py", "python", 60, False, "", "abcde", keys)
        person = typist.Typist(emulators.VSCode(server, "utf-16", URI, "python", ""), stretch, 1.0)
        typing = asyncio.create_task(person.type())
        await asyncio.sleep(0.06)
        server.item(1, "wrong")  # seen for 440 ms, until "b"
        await asyncio.sleep(0.5)
        server.item(2, "wrong")  # for 40 ms, until "c"
        await typing
        assert (person.gain.saved, person.gain.with_ghost) == (-2, 2)
        found = simulator.gain([person.gain])
        assert (found["ghosts at a key"], found["wrong ghosts that were read"], found["right ghosts, %"]) == (2, 1, 0)

    at_once(steps())


def test_a_ghost_that_breaks_the_syntax_is_counted(
    emulators: ModuleType, simulator: ModuleType, typist: ModuleType
) -> None:
    async def steps() -> None:
        server = Script()
        editor = emulators.Neovim(server, "utf-8", URI, "python", "")
        await typed(editor, "xy", 0.3)
        server.item(1, " = (1")
        server.item(2, " = 1")
        stretch = typist.Stretch("s", "neovim", "a.py", "python", 60, False, "", "", [])
        counts = simulator.Tally([(stretch, editor)]).report()["counts"]
        assert (counts["ghosts"], counts["ghosts that add a syntax error"]) == (2, 1)

    at_once(steps())


# The stretches


def test_every_stretch_ends_with_the_text_that_was_meant(emulators: ModuleType, typist: ModuleType) -> None:
    async def steps() -> None:
        for stretch in typist.stretches():
            editor = emulators.EDITORS[stretch.editor](Script(), "utf-16", URI, stretch.language, stretch.start)
            for event in stretch.events:
                typist.press(editor, event)
            assert editor.text == stretch.end, stretch.name
            editor.close()

    at_once(steps())


def test_there_are_thirty_stretches_at_all_speeds_in_six_languages(typist: ModuleType) -> None:
    found = typist.stretches()
    assert len(found) >= 30
    assert {stretch.language for stretch in found} == {"python", "javascript", "typescript", "json", "markdown", "go"}
    for editor in ("neovim", "vscode"):
        speeds = [stretch.wpm for stretch in found if stretch.editor == editor]
        assert len(speeds) >= 15
        assert 40 <= min(speeds) < 60
        assert 100 < max(speeds) <= 120
    paces = {s.name: len(s.events) / 5 / (sum(event[0] for event in s.events) / 60_000) / s.wpm for s in found}
    assert paces == pytest.approx(dict.fromkeys(paces, 1.0), abs=0.02)


def test_the_stretches_are_made_from_their_sources(typist: ModuleType, beside: None) -> None:
    make = importlib.import_module("make")
    made = {name: typist.Stretch(name, **stretch) for name, stretch in make.stretches()}
    assert made == {stretch.name: stretch for stretch in typist.stretches()}


# The real server


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fake engine that says "answer" at every place, in a runtime folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    for name in ("CAESURA_RUNTIME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(folder))
    process = subprocess.Popen([sys.executable, str(FAKE), model_store.resolve(model_store.DEFAULT)])
    limit = time.monotonic() + 20
    while not rendezvous.running():
        assert time.monotonic() < limit
        time.sleep(0.01)
    yield
    for place in rendezvous.running():
        if holder := place.holder():
            rendezvous.kill(holder)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kind", [pytest.param("neovim", marks=pytest.mark.slow), "vscode"])
async def test_nothing_stale_and_no_error_is_shown_by_the_real_server(
    simulator: ModuleType, typist: ModuleType, engine: None, kind: str
) -> None:
    await simulator.warm_up(model_store.DEFAULT)
    keys = [[60, "key", key] for key in "xy = answer"]
    keys[6][0] = 1500  # time to see the ghost behind "xy = a"
    keys += [[60, "key", "\nb"], [60, "back", 1], [400, "key", "answer\n"], [60, "to", 0, 3], [60, "key", "z"]]
    stretch = typist.Stretch("s", kind, "a.py", "python", 100, False, "", "xy z= answer\nanswer\n", keys)
    settings = {"minConfidence": 0, "deadlineMs": 10_000}
    tallies = await simulator.play([stretch, stretch], settings, None)
    [report] = [tally.report() for tally in tallies.values()]
    counts = report["counts"]
    assert counts["requests"] >= 4
    assert counts["ghosts"] >= 2
    assert not any(counts[bad] for bad in ("stale shows", "superseded errors", "other errors", "no answer"))
    assert counts["warnings in the server's log"] == counts["other texts at the end"] == 0
    assert report["engine"]["jobs"] >= 2


async def test_a_server_that_ends_stops_the_replay(simulator: ModuleType, typist: ModuleType) -> None:
    ends = "import sys; sys.stdin.readline()"
    stretch = typist.Stretch("s", "vscode", "a.py", "python", 100, False, "", "a", [[0, "key", "a"]] * 50)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ends, stdin=pipe, stdout=pipe, stderr=pipe)
    server = simulator.Server(process)
    with pytest.raises(EOFError):
        await simulator.replay(server, stretch, 1.0)
    await process.wait()
