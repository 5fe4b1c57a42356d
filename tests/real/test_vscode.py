"""VS Code with our extension, as its users see it: code-server in Chromium. First with an engine whose answers are
known, then with the default model.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from caesura import model_store
from caesura.ipc import rendezvous

from .browser import chromium
from .next_edit.known import REPORTS
from .scripted import BETWEEN_S, JOBS, LINE, LINES, SLOW_S
from .vscode import START_S, Code, Frame, Server, build, code_server, wait

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.real

SCRIPTED = Path(__file__).with_name("scripted.py")
NEXT_EDITS = Path(__file__).with_name("next_edit") / "known.py"
TRIES = 8  # of what depends on the model's taste, or on a machine that is busy
PICTURE = (52, 36, 940, 360)  # what of the window is kept
WITH_TITLE = (52, 0, 948, 396)
FUNCTION = "def f(alpha, beta):\n    # {}\n    \n\n\nx = 1\n"
BODY = (3, 5)  # where its body is to be written
BOXES = """\
{
  "boxes": [
    {
      "width": 120,
      "height": 80,
      "visible": true
    },
    {
      "width": 64,
      "height": 48,
      "visible": false
    }
  ]
}
"""
STACK = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        HERE

    def peek(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items[-1]
""".replace("HERE", "")
AREAS = """\
def area(width, height):
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth


def perimeter(width, height):
    return 2 * (width + height)


def diagonal(width, height):
    return (width**2 + height**2) ** 0.5
"""


# What runs


def program(path: Path, *command: str) -> Path:
    """An executable file that runs `command` with what it is given."""
    words = " ".join(f"'{word}'" for word in command)
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("npm"):
        pytest.fail("npm is needed to build the extension: install Node 20 or later.", pytrace=False)
    return build(tmp_path_factory.mktemp("vsix"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program to run, and in the file beside it which server that is: `scripted`, `next_edits` or `real`."""
    folder = tmp_path_factory.mktemp("programs")
    program(folder / "scripted", sys.executable, str(SCRIPTED))
    program(folder / "next_edits", sys.executable, str(NEXT_EDITS))
    program(folder / "real", sys.executable, "-P", "-m", "caesura")
    (folder / "chosen").write_text("scripted")
    found = folder / "caesura"
    found.write_text(f"""#!/bin/sh\nexec "{folder}/$(cat '{folder}/chosen')" "$@"\n""")
    found.chmod(0o755)
    return found


@pytest.fixture(scope="module")
def server(
    editor: Callable[[str], str], extension: Path, engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("code")
    with code_server(editor("code-server"), extension, folder, engine) as found:
        yield found


@pytest.fixture(scope="module")
def browser(warm: None) -> Iterator[Browser]:
    """After `warm`, which runs a loop of its own in this thread: Playwright keeps one running."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def window(server: Server, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Code]:
    with server.window(browser, tmp_path_factory.mktemp("work")) as found:
        yield found


@pytest.fixture
def own(server: Server, browser: Browser, tmp_path: Path) -> Iterator[Code]:
    """A window for one test that splits it: VS Code may lay out a folder as it was some seconds before a reload."""
    with server.window(browser, tmp_path) as found:
        yield found


def running(code: Code, engine: Path, name: str, model: str) -> Code:
    """The window with that server, and nothing open or told."""
    code.press("Escape", "Escape")
    chosen = engine.with_name("chosen")
    if chosen.read_text() != name:
        chosen.write_text(name)
        code.command("Caesura: Restart Language Server")
    wait(lambda: code.status.startswith(f"Caesura: ready ({model} on "), f"the engine {model}", START_S)
    if code.notifications:
        code.command("Notifications: Clear All Notifications")
    return code


@pytest.fixture
def scripted(window: Code, engine: Path) -> Code:
    window.settings()
    return running(window, engine, "scripted", "scripted")


@pytest.fixture
def next_edits(window: Code, engine: Path) -> Code:
    window.settings()
    return running(window, engine, "next_edits", "next edits")


@pytest.fixture
def real(window: Code, engine: Path) -> Code:
    """However unsure the model is."""
    window.settings(minConfidence=0)
    return running(window, engine, "real", model_store.resolve(model_store.DEFAULT))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A file of the test's own."""
    return f"{re.sub('[^a-z]+', '_', request.node.name[5:])[:40]}.py"


# What is known of the answers


def test_what_is_typed_is_completed_and_tab_takes_it_as_one_step_to_undo(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("plain"), BODY)
    scripted.type("to")
    scripted.wait_for_ghost(LINE.removeprefix("to"))
    before = scripted.lines
    scripted.press("Tab")
    wait(lambda: scripted.lines[2] == f"    {LINE}", "the suggestion in the text")
    assert scripted.lines[:2] + scripted.lines[3:] == before[:2] + before[3:]
    scripted.press("Control+z")
    wait(lambda: scripted.lines == before, "the text as it was")


def test_a_word_is_taken(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("plain"), BODY)
    scripted.type("to")
    scripted.wait_for_ghost(LINE.removeprefix("to"))
    scripted.press("Control+ArrowRight")
    wait(lambda: scripted.lines[2] == "    total", "the word in the text")
    scripted.wait_for_ghost(LINE.removeprefix("total"))


def test_the_next_suggestion(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("two"), BODY)
    begin_block(scripted)
    scripted.wait_for_ghost(LINE)
    scripted.press("Alt+]")
    scripted.wait_for_ghost("other = gamma")


def test_a_suggestion_grows_by_lines_and_hardly_blinks(scripted: Code, name: str) -> None:
    """At most one frame without a suggestion for each line that comes; often there is none."""
    for attempt in range(TRIES):
        scripted.open(f"{attempt}_{name}", FUNCTION.format("grow"), BODY)
        scripted.record()
        begin_block(scripted)
        scripted.wait_for_ghost("\n".join(LINES))
        seen = states(scripted.frames())
        whole = ["\n".join(LINES[:count]) for count in (1, 2, 3)]
        blinks = [frames for ghost, frames in seen[1:] if not ghost]
        if [ghost for ghost in dict(seen) if ghost in whole] == whole and all(frames <= 1 for frames in blinks):
            break
    else:
        pytest.fail(f"what was seen, and for how many frames: {seen}")
    scripted.press("Tab")
    wait(lambda: scripted.lines[2:5] == ["    first = 1", *LINES[1:]], "all lines in the text")
    scripted.press("Control+z")
    wait(lambda: scripted.lines[2] == "    ", "one step to undo")


def begin_block(code: Code) -> None:
    """Make VS Code ask, in a line that stays empty: only there the answer has several lines."""
    code.page.keyboard.press("Space")
    code.page.keyboard.press("Backspace")


def states(frames: list[Frame]) -> list[tuple[str, int]]:
    """What stood there one after the other, from the first suggestion on, and for how many frames."""
    seen = [(ghost, len(list(group))) for ghost, group in itertools.groupby(frames, key=lambda frame: frame.ghost)]
    return list(itertools.dropwhile(lambda state: not state[0], seen))


def test_what_was_sent_away_does_not_come_back_when_it_grows(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("grow"), BODY)
    begin_block(scripted)
    scripted.wait_for_ghost(LINES[0])
    scripted.press("Escape")
    wait(lambda: not scripted.ghost, "the suggestion to go")
    scripted.record()
    time.sleep(BETWEEN_S * (len(LINES) + 1))
    assert {frame.ghost for frame in scripted.frames()} == {""}


def test_fast_typing_never_shows_what_does_not_fit(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("plain"), BODY)
    scripted.record()
    for typed in (LINE[:9], "x\b", LINE[9:12]):
        for key in typed:
            scripted.press("Backspace") if key == "\b" else scripted.type(key, 0.03)
    scripted.wait_for_ghost(LINE[12:])
    frames = [frame for frame in scripted.frames() if frame.ghost]
    assert frames
    for frame in frames:  # behind what is wrong the engine proposes all of it
        assert frame.ghost == LINE.removeprefix(frame.lines[2].lstrip())


def test_an_answer_that_comes_late_is_not_drawn_over_newer_text(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("slow"), BODY)
    scripted.type("to")
    time.sleep(0.5)  # it is on its way
    scripted.press("Backspace", "Backspace")
    scripted.type("x")
    scripted.record()
    time.sleep(SLOW_S + 0.5)
    assert all(frame.lines[2] == "    x" for frame in scripted.frames() if frame.ghost)


def test_suggestions_are_turned_off_and_on(scripted: Code, name: str) -> None:
    scripted.open(name, FUNCTION.format("plain"), BODY)
    for title, status in (("Toggle Suggestions for This Language", "off for python"), ("Toggle Suggestions", "off")):
        scripted.command(f"Caesura: {title}")
        wait(lambda status=status: scripted.status == f"Caesura: {status}", "the status to say so")
        scripted.page.mouse.click(800, 450)
        scripted.press("Control+Home", "ArrowDown", "ArrowDown", "End")
        scripted.type("t")
        time.sleep(1)
        assert not scripted.ghost
        scripted.press("Backspace")
        scripted.command(f"Caesura: {title}")
        wait(lambda: scripted.status.startswith("Caesura: ready"), "it to be on again")
    assert not scripted.notifications


def test_why_there_is_no_suggestion(scripted: Code, name: str) -> None:
    scripted.open(name, "x = word\n", (1, 5))
    scripted.command("Caesura: Why Is There No Suggestion?")
    wait(lambda: "The cursor stands in front of a word" in str(scripted.notifications), "the reason")
    scripted.command("Notifications: Clear All Notifications")


def test_where_the_cursor_rests_the_engine_reads_before_the_first_key(scripted: Code, name: str, runtime: Path) -> None:
    scripted.open(name, FUNCTION.format("rests"), BODY)
    before = "".join(FUNCTION.format("rests").splitlines(keepends=True)[:2]) + "    "
    wait(lambda: f"speculative {before!r}\n" in jobs(runtime), "the engine to be asked")
    scripted.type("to")
    scripted.wait_for_ghost(LINE.removeprefix("to"))
    time.sleep(0.5)
    assert f"speculative {before + 'to'!r}\n" not in jobs(runtime), "what is typed is asked for by its edit"


def jobs(runtime: Path) -> str:
    """What the scripted engine was asked, a line each."""
    return (runtime / JOBS).read_text()


def test_a_server_that_dies_comes_back_without_a_word(scripted: Code, name: str) -> None:
    killed = pids(str(SCRIPTED))
    kill(killed)
    wait(lambda: set(pids(str(SCRIPTED))) - set(killed), "the server to be back")
    scripted.open(name, FUNCTION.format("plain"), BODY)
    for _ in range(TRIES):  # it may still be starting
        scripted.type("to")
        if seen(scripted):
            break
        scripted.press("Backspace", "Backspace")
    scripted.wait_for_ghost(LINE.removeprefix("to"))
    assert scripted.status.startswith("Caesura: ready")
    assert not scripted.notifications


def test_a_server_that_keeps_dying_is_left_alone_without_a_word_until_it_is_asked_for(scripted: Code) -> None:
    deadline = time.monotonic() + START_S
    while "has stopped" not in scripted.status:
        assert time.monotonic() < deadline, "it is started for ever"
        kill(pids(str(SCRIPTED)))
        time.sleep(0.2)
    assert not scripted.notifications
    scripted.command("Caesura: Restart Language Server")
    wait(lambda: scripted.status.startswith("Caesura: ready"), "the server to be back")
    assert not scripted.notifications


def pids(text: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", text], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)


def test_a_suggestion_does_not_grow_where_that_is_not_wanted(window: Code, engine: Path, name: str) -> None:
    window.settings(streaming="off")
    scripted = running(window, engine, "scripted", "scripted")
    scripted.open(name, FUNCTION.format("grow"), BODY)
    begin_block(scripted)
    scripted.wait_for_ghost(LINES[0])
    scripted.record()
    time.sleep(BETWEEN_S * (len(LINES) + 1))
    assert {frame.ghost for frame in scripted.frames()} == {LINES[0]}


# Next edits


CALLS = "new = 1\n" + "x = 0\n" * 59 + "f(old, 1)\nx = 0\ng(old)  # more\nx = 0\nx = 0\n"  # in lines 61 and 63


def test_a_next_edit_is_announced_jumped_to_and_taken_as_one_step_to_undo(
    next_edits: Code, name: str, runtime: Path
) -> None:
    next_edits.open(name, CALLS, (1, 8))
    next_edits.type(" ")
    next_edits.wait_for_added("next edit in line 61 ↓")
    next_edits.press("Tab")
    next_edits.wait_for_added("new")
    assert "f(old, 1)" in next_edits.lines
    next_edits.press("Tab")
    wait(lambda: "f(new, 1)" in next_edits.lines, "the edit in the text")
    next_edits.wait_for_added("new", "⏎     one()", "⏎     two()")
    said = ["didShowInlineEdit 61", "caesura.nextEdit.accepted 61", "didShowInlineEdit 63"]
    wait(lambda: reports(runtime)[-3:] == said, "the reports of both")
    next_edits.press("Control+z")
    wait(lambda: "f(old, 1)" in next_edits.lines, "one step to undo")


def test_a_next_edit_that_was_dismissed_does_not_come_back_and_tab_indents_after_blanks(
    next_edits: Code, name: str, runtime: Path
) -> None:
    next_edits.open(name, "new\n    \nf(old)\n", (2, 5))
    next_edits.type(" ")
    next_edits.wait_for_added("new")
    next_edits.press("Tab")
    wait(lambda: next_edits.lines[1] == " " * 8, "the line to be indented")
    wait(lambda: reports(runtime)[-2:] == ["didShowInlineEdit 3"] * 2, "the edit to be drawn again")
    next_edits.wait_for_added("new")
    next_edits.press("Escape")
    next_edits.wait_for_added()
    wait(lambda: reports(runtime)[-1] == "didDismissInlineEdit 3", "the report")
    next_edits.type("x")
    time.sleep(2)
    assert not next_edits.added
    assert next_edits.lines == ["new", " " * 8 + "x", "f(old)", ""]


def reports(runtime: Path) -> list[str]:
    """What VS Code has reported of next edits."""
    return [line.rpartition("/")[2] for line in (runtime / REPORTS).read_text().splitlines()]


# The default model


def test_the_model_completes_a_body(real: Code, pictures: Path) -> None:
    real.open("stack.py", STACK, (9, 9))
    for _ in range(TRIES):
        begin_block(real)
        time.sleep(2)  # it may grow
        if shown := seen(real):
            break
    else:
        pytest.fail("the model has proposed nothing")
    real.picture(pictures / "vscode-ghost.png", PICTURE)
    assert same(real, STACK)
    real.press("Tab")
    wait(lambda: "\n".join(real.lines[8:]).startswith(f"        {shown}"), "the suggestion in the text")
    real.press("Control+z")
    wait(lambda: same(real, STACK), "one step to undo")


def seen(code: Code, timeout_s: float = 15) -> str:
    """The ghost text after a while at the latest, or nothing."""
    deadline = time.monotonic() + timeout_s
    while not code.ghost and time.monotonic() < deadline:
        time.sleep(0.05)
    return code.ghost


def test_a_selection_is_filled(real: Code) -> None:
    source = AREAS.replace("2 * (width + height)", "None")
    real.open("areas.py", source, (10, 12))
    for _ in range(TRIES):
        real.press("Shift+End")
        real.press("Control+k", "g")
        if changed(real, source):
            break
        real.command("Notifications: Clear All Notifications")
        real.press("ArrowLeft")
    before, after = source.splitlines(), real.lines
    assert after[:9] == before[:9]
    assert after[9].startswith("    return ")
    assert after[9] != before[9]
    real.press("Control+z")
    wait(lambda: same(real, source), "one step to undo")


def changed(code: Code, text: str, timeout_s: float = 60) -> bool:
    """Whether the text has changed before a notification says why not."""
    deadline = time.monotonic() + timeout_s
    while same(code, text) and not code.notifications and time.monotonic() < deadline:
        time.sleep(0.05)
    return not same(code, text)


def same(code: Code, text: str) -> bool:
    return code.text.rstrip("\n") == text.rstrip("\n")


def test_holes_are_filled_together_as_one_step_to_undo(real: Code, pictures: Path) -> None:
    source = AREAS.replace("width * height\n\n", "<FILL>\n\n").replace("(width + height)", "(<FILL>)")
    real.open("holes.py", source)
    real.picture(pictures / "vscode-holes.png", PICTURE)
    real.press("Control+k", "h")
    assert changed(real, source), real.notifications
    wait(lambda: "<FILL>" not in real.text or real.notifications, "the holes to be filled")
    assert real.lines[0] == "def area(width, height):"
    real.press("Control+z")
    wait(lambda: same(real, source), "one step to undo")


def test_json_is_edited_after_a_look_at_what_changes(real: Code, pictures: Path) -> None:
    file = proposed(real, "boxes.json")
    real.picture(pictures / "vscode-proposal.png", WITH_TITLE)
    assert (real.folder / file).read_text() == BOXES
    pressed(real, "Control+Enter", lambda: real.title == file)
    wait(lambda: not same(real, BOXES), "the proposal in the text")
    found = json.loads(real.text)
    assert len(found["boxes"]) == 3
    assert all(box.keys() == {"width", "height", "visible"} for box in found["boxes"])
    real.press("Control+z")
    wait(lambda: same(real, BOXES), "one step to undo")


def test_a_proposal_that_is_discarded_changes_nothing(real: Code) -> None:
    file = proposed(real, "others.json")
    pressed(real, "Escape", lambda: real.title == file)
    assert same(real, BOXES)


def test_a_proposal_is_not_applied_to_a_text_that_has_changed(real: Code) -> None:
    file = proposed(real, "changed.json")
    real.page.mouse.click(250, 300)  # the left side
    real.press("Control+Home")
    real.type(" ")
    real.press("Control+Enter")
    wait(lambda: real.title == file and real.notifications, "the proposal to be refused")
    assert "has changed" in real.notifications[0]
    assert same(real, " " + BOXES)


def test_ctrl_enter_elsewhere_applies_nothing(real: Code) -> None:
    file = proposed(real, "elsewhere.json")
    real.press("Control+Shift+f")
    real.page.get_by_role("textbox", name="Search").first.wait_for(state="visible")
    real.type("boxes")
    real.press("Control+Enter")
    time.sleep(1)
    assert "guessed values" in real.title
    real.command("View: Toggle Primary Side Bar Visibility")
    real.page.mouse.click(250, 300)
    real.press("Escape")
    wait(lambda: real.title == file, "the file in front")
    assert same(real, BOXES)


def pressed(code: Code, key: str, condition: Callable[[], object], timeout_s: float = 15) -> None:
    """A key of the comparison, again while that may not have the keys yet."""
    for _ in range(TRIES):
        code.press(key)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if condition():
                return
            time.sleep(0.05)
    raise AssertionError(f"{key} was pressed in vain: {code.title}")


def proposed(code: Code, file: str) -> str:
    """A JSON file with another element proposed for it, side by side; its name."""
    code.open(file, BOXES, (12, 6))
    for _ in range(TRIES):
        code.press("Control+k", "j")
        code.page.get_by_text("Add an element like its siblings", exact=True).wait_for(state="visible")
        code.press("Enter")
        wait(lambda: "guessed values" in code.title or code.notifications, "the comparison")
        if "guessed values" in code.title:
            time.sleep(1)  # the differences are computed
            return file
        code.command("Notifications: Clear All Notifications")
    raise AssertionError("no proposal")


def test_an_engine_that_is_killed_comes_back(real: Code) -> None:
    real.open("cubes.py", AREAS + "\n\ndef cube(width):\n    \n", (18, 5))
    for place in rendezvous.running():
        if holder := place.holder():
            rendezvous.kill(holder)
    for _ in range(TRIES):
        real.type("r")
        if seen(real):
            break
        real.press("Backspace")
    assert real.ghost
    assert not real.notifications


def test_the_menu_of_the_status(real: Code, pictures: Path) -> None:
    real.open("circles.py", AREAS)
    real.command("Caesura: Show Status")
    for text in (f"Caesura: ready ({model_store.resolve(model_store.DEFAULT)} on cpu", "Turn off for python"):
        real.page.locator(".quick-input-list").get_by_text(text).wait_for(state="visible")
    time.sleep(0.5)
    real.picture(pictures / "vscode-status.png", WITH_TITLE)
    real.press("Escape")


# Without a server


def test_nothing_is_run_or_fetched_that_a_workspace_names(
    editor: Callable[[str], str],
    extension: Path,
    browser: Browser,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A folder brings settings that name a program, and a program of our name. VS Code does not trust it, we say that
    there is no server, and neither is run."""
    work, folder = tmp_path_factory.mktemp("bad"), tmp_path_factory.mktemp("untrusted")
    ran = work / "ran"
    evil = program(work / "caesura", "touch", str(ran))
    (work / ".vscode").mkdir()
    (work / ".vscode" / "settings.json").write_text(json.dumps({"caesura.command": str(evil)}))
    monkeypatch.setenv("PATH", f".:{os.defpath}")
    with (
        code_server(editor("code-server"), extension, folder, trust=True) as found,
        found.window(browser, work) as code,
    ):
        code.page.get_by_text("Restricted Mode", exact=True).wait_for(state="visible")
        wait(lambda: "not set up" in code.status, "the status to say that there is no server")
        wait(lambda: code.notifications, "the sentence that says what to do")
        assert "carries no Python package to install. Set caesura.command" in code.notifications[0]
        assert code.page.get_by_role("button", name="Create Environment").count() == 0
        code.page.get_by_role("button", name="Not Now").click()
        wait(lambda: not code.notifications, "the sentence to go")
    assert not ran.exists()
    assert not list((folder / "user").rglob("pyvenv.cfg"))
