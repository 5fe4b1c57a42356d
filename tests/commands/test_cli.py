"""The command line as a shell sees it: exit codes, stdout, stderr, the bytes of files. The engine's model is fake."""

import asyncio
import contextlib
import errno
import hashlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from caesura import cli, model_store, paths, speeds, wire
from caesura.client.backend import EngineFailed, FinishedJob
from caesura.client.shared import Engine
from caesura.commands import CommandFailed, common, doctor, fill
from caesura.ipc import rendezvous
from caesura.server.records import stats, trace
from caesura.source_file import SourceFile

SURE = "caesura: sure (0.90).\n"
FAKE = Path(__file__).parents[1] / "support" / "processes" / "fake_engine.py"
DEFAULT = model_store.resolve(model_store.DEFAULT)


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[Path]:
    with running_engine() as folder:
        yield folder


@contextlib.contextmanager
def running_engine() -> Iterator[Path]:
    """The place of the default model, held by a fake engine: every command finds it running."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAESURA_RUNTIME", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.setenv("CAESURA_IDLE_EXIT", "300")
        patch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
        patch.setattr(doctor, "START_S", 20.0)  # the suite may share its two cores with a training run
        start_engine()
        yield folder
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


def start_engine() -> None:
    subprocess.Popen([sys.executable, str(FAKE), DEFAULT])
    deadline = time.monotonic() + 20
    while not rendezvous.running():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "main.py"
    path.write_bytes(b"def f():\n    return \n")
    return path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`caesura ARGUMENTS` in this process: what the console script calls, without 150 ms of start each time."""
    monkeypatch.setattr("caesura.logs.begin", lambda *_: None)  # which is for a process of its own
    return partial(call, capfd)


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    return Ran(code, *capfd.readouterr())


@pytest.fixture
def other_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models other than the default one get a fake engine of their own."""
    monkeypatch.setattr("caesura.client.launch.command", lambda model, device: [sys.executable, str(FAKE), model])
    for name in ("empty", "slow"):
        paths.private(paths.private(paths.models()) / name)
    yield
    kept = rendezvous.place(DEFAULT, "auto")
    for place in rendezvous.running():
        if place != kept and (holder := place.holder()):
            rendezvous.kill(holder)


# fill


def test_fill_prints_the_text(run: Run, source: Path) -> None:
    before = source.read_bytes()
    assert run("fill", source, "--at", "2:12") == Ran(0, "answer\n", SURE)
    assert source.read_bytes() == before


def test_fill_as_json(run: Run, source: Path) -> None:
    ran = run("fill", source, "--at", "2:12", "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["text"] == "answer"
    assert found["holes"] == [{"text": "answer", "confidence": 0.9, "word": "sure"}]
    assert found["tokens"] == {"canvas": 1, "lookup": 0, "left_to_right": 0}
    assert (found["steps"], found["confidence"], found["word"]) == (6, 0.9, "sure")
    assert (found["stop"], found["model"]) == ("complete", DEFAULT)
    assert found["timings"]["total_ms"] == 12.1


@pytest.mark.parametrize(
    ("before", "at", "after"),
    [
        (b"def f():\r\n    return \r\n# end", "2:12", b"def f():\r\n    return answer\r\n# end"),
        ("# 🐍é\n🐍 = \n".encode(), "2:5", "# 🐍é\n🐍 = answer\n".encode()),
        (b"x = 1\x0c\ny = \x0c\n\tz\n", "2:5", b"x = 1\x0c\ny = answer\x0c\n\tz\n"),
        (b"\xef\xbb\xbfx = \n", "1:5", b"\xef\xbb\xbfx = answer\n"),
        ("a\u2028b\rx = \r".encode(), "2:5", "a\u2028b\rx = answer\r".encode()),
        (b"x = ", "1:5", b"x = answer"),
        (b"", "1:1", b"answer"),
    ],
    ids=["crlf", "emoji", "form feed", "byte order mark", "bare cr", "end of file", "empty"],
)
def test_write_changes_nothing_but_the_gap(run: Run, tmp_path: Path, before: bytes, at: str, after: bytes) -> None:
    path = tmp_path / "main.py"
    path.write_bytes(before)
    assert run("fill", path, "--at", at, "--write") == Ran(0, "", SURE)
    assert path.read_bytes() == after


def test_an_empty_fill_writes_nothing_and_fails(run: Run, source: Path) -> None:
    source.write_bytes(b"nothing = old\n")
    nothing = "caesura: The model proposes nothing here"
    assert run("fill", source, "--at", "1:11") == Ran(1, "", f"{nothing}.\n")
    ran = run("fill", source, "--at", "1:11", "--to", "1:14", "--write")
    assert ran == Ran(1, "", f"{nothing}; nothing was written.\n")
    ran = run("fill", source, "--at", "1:11", "--to", "1:14", "--write", "--json")
    assert (ran.code, json.loads(ran.out)["text"]) == (1, "")
    assert source.read_bytes() == b"nothing = old\n"


@pytest.mark.parametrize(
    ("before", "options", "code", "out", "err"),
    [
        ("again = 1\n\nanswer\n", (), 0, "another\n", "unsure (0.30); check it before you use it."),
        ("doubt = \n", (), 0, "answer\n", "unsure (0.01); this is a guess, check it before you use it."),
        (
            "doubt = \n",
            ("--least", "0.01"),
            0,
            "answer\n",
            "unsure (0.01); this is a guess, check it before you use it.",
        ),
        (
            "doubt = \n",
            ("--least", "0.02"),
            1,
            "",
            "The fill is unsure (0.01), below 0.02, and withheld; --least 0",
        ),
        (
            "doubt = \n",
            ("--strict",),
            3,
            "",
            "The fill is unsure (0.01), below 0.7, and withheld; --least 0 shows all.",
        ),
        (
            "doubt = \n",
            ("--strict", "--least", "0"),
            0,
            "answer\n",
            "unsure (0.01); this is a guess, check it before you use it.",
        ),
        ("sound = \n", ("--strict",), 0, "answer\n", "sure (0.90)."),
        ("nothing = \n", ("--strict",), 1, "", "The model proposes nothing here."),
    ],
)
def test_what_is_unsure_is_said_or_withheld(
    run: Run, source: Path, before: str, options: tuple[str, ...], code: int, out: str, err: str
) -> None:
    """The engine of these tests gives 0.9 to its answer, a sixth power of 0.5 where the text begins with `doubt`."""
    source.write_text(before)
    at = "2:1" if before.count("\n") > 1 else f"1:{len(before)}"
    ran = run("fill", source, "--at", at, *options)
    assert (ran.code, ran.out) == (code, out)
    assert ran.err.startswith(f"caesura: {err}")
    found = json.loads(run("fill", source, "--at", at, *options, "--json").out)
    assert found["text"] == found["holes"][0]["text"] == out.rstrip()
    assert run("fill", source, "--at", at, *options, "--write").code == code
    assert (source.read_text() == before) == (code != 0)


def test_a_body_that_is_only_begun_is_said(run: Run, source: Path) -> None:
    source.write_text("def f() -> int:\n    \n")
    ran = run("fill", source, "--at", "2:5")
    assert ran == Ran(0, "answer\n", "caesura: sure (0.90); the body is begun, not finished.\n")
    assert json.loads(run("fill", source, "--at", "2:5", "--json").out)["holes"][0]["begun"]
    source.write_text("def f() -> int:\n    <FILL>\n")
    assert "begun, not finished" in run("holes", source).err


@pytest.mark.parametrize("name", ["a.md", "a.rst"])
def test_in_prose_an_unlikely_fill_is_withheld(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("doubt it, but the \n")
    ran = run("fill", path, "--at", "1:19", "--write")
    assert ran == Ran(1, "", "caesura: The fill is unsure (0.01), below 0.1, and withheld; --least 0 shows all.\n")
    assert path.read_text() == "doubt it, but the \n"
    assert run("fill", path, "--at", "1:19", "--least", "0").out == "answer\n"
    path.write_text("doubt it, but the <FILL>\n")
    assert run("holes", path).code == 1
    assert run("holes", path, "--least", "0").code == 0


def test_a_member_that_every_text_invents_is_named(run: Run, source: Path) -> None:
    source.write_text("class A:\n    def f(self):\n        return self.\n")
    why = "The model's text reads `answer`, which its class does not have"
    assert run("fill", source, "--at", "3:21") == Ran(1, "", f"caesura: {why}.\n")
    source.write_text("class A:\n    def f(self):\n        return self.<FILL>\n")
    assert run("holes", source) == Ran(1, "", f"caesura: {why}; all markers are kept.\n")


def test_a_deadline_that_passes_is_said(run: Run, source: Path) -> None:
    source.write_text("late = \nhurry = \n")
    allow = "allow more time with --deadline-ms"
    ran = run("fill", source, "--at", "1:8", "--deadline-ms", "1")
    assert ran == Ran(1, "", f"caesura: The deadline of 1 ms passed before there was a fill; {allow}.\n")
    source.write_text("hurry = \n")
    assert run("fill", source, "--at", "1:9").err == "caesura: sure (0.90); the deadline cut it short.\n"
    source.write_text("some_hurry = <FILL>\nb = <FILL>\n")
    late = "caesura: the deadline passed before there was a fill at 1:14; kept as it is.\n"
    assert run("holes", source).err == f"caesura: 2:5 sure (0.90); the deadline cut it short.\n{late}"


def test_no_key_is_written_that_its_object_has_already(run: Run, tmp_path: Path) -> None:
    """The engine of these tests says `answer`."""
    path = tmp_path / "data.json"
    path.write_text('{"answer": 1, "b": 2}\n')
    ran = run("fill", path, "--at", "1:16", "--to", "1:17")
    assert ran == Ran(1, "", "caesura: Nothing that the model proposes here fits the text around it.\n")
    path.write_text('{"answer": 1, "<FILL>": 2, "c": "<FILL>"}\n')
    assert run("holes", path).out == "1:34: answer\n"


def test_a_device_that_the_model_does_not_run_on_is_said(run: Run, source: Path) -> None:
    ran = run("fill", source, "--at", "2:12", "--device", "cuda")
    assert ran == Ran(0, "answer\n", f"caesura: {DEFAULT} runs on fake only; --device cuda is ignored.\n{SURE}")


def test_write_replaces_what_lies_between_at_and_to(run: Run, source: Path) -> None:
    source.write_bytes(b"x = old + 1\n")
    assert run("fill", source, "--at", "1:5", "--to", "1:8", "--write").code == 0
    assert source.read_bytes() == b"x = answer + 1\n"


def test_a_fill_that_is_the_text_between_at_and_to_is_said(run: Run, source: Path) -> None:
    source.write_text("x = answer\n")
    ran = run("fill", source, "--at", "1:5", "--to", "1:11")
    assert ran == Ran(1, "", "caesura: The model proposes the text that is there already.\n")


def test_write_keeps_mode_and_link_and_leaves_nothing_behind(run: Run, source: Path) -> None:
    source.chmod(0o754)
    link = source.with_name("link.py")
    link.symlink_to(source.name)
    assert run("fill", link, "--at", "2:12", "--write").code == 0
    assert link.is_symlink()
    assert source.read_bytes() == b"def f():\n    return answer\n"
    assert source.stat().st_mode & 0o777 == 0o754
    assert sorted(path.name for path in source.parent.iterdir()) == ["link.py", "main.py"]


def test_write_refuses_a_file_that_has_changed(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Meddling(common.AskedEngine):
        async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
            source.write_text("somebody else's work\n")
            async for event in super().infill(job):
                yield event

    monkeypatch.setattr(fill, "AskedEngine", Meddling)
    ran = run("fill", source, "--at", "2:12", "--write")
    assert (ran.code, ran.out) == (1, "")
    assert "changed meanwhile" in ran.err
    assert source.read_text() == "somebody else's work\n"
    assert [path.name for path in source.parent.iterdir()] == ["main.py"]


def two_names(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(path, path.with_name("other.py"))


def another_owner(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(path, 12345, 12345)


def an_attribute(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.setxattr(path, "user.note", b"kept")


def a_folder_that_may_not_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**where: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refused)


@pytest.mark.parametrize("case", [two_names, another_owner, an_attribute, a_folder_that_may_not_be_written])
def test_write_keeps_what_a_new_file_would_not_have(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch, case: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    try:
        case(source, monkeypatch)
    except (OSError, AttributeError) as error:
        pytest.skip(f"not on this system: {error}")
    before = source.stat().st_ino
    assert run("fill", source, "--at", "2:12", "--write").code == 0
    assert {path.read_bytes() for path in source.parent.iterdir()} == {b"def f():\n    return answer\n"}
    assert source.stat().st_ino == before


def test_a_write_protected_file_is_not_written_even_by_root(run: Run, source: Path) -> None:
    source.chmod(0o444)
    ran = run("fill", source, "--at", "2:12", "--write")
    sentence = f"caesura: {source} is write-protected; change its permissions, or leave out --write.\n"
    assert ran == Ran(1, "", sentence)
    assert run("fill", source, "--at", "2:12") == Ran(0, "answer\n", SURE)


@pytest.mark.parametrize("names", [1, 2])
def test_a_write_that_fails_in_the_middle_leaves_the_file_as_it_was(
    source: Path, monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    def full(descriptor: int) -> None:
        monkeypatch.undo()
        raise OSError(errno.ENOSPC, "No space left on device")

    before, read = source.read_bytes(), SourceFile.read(str(source))
    if names == 2:
        os.link(source, source.with_name("other.py"))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        read.write([(0, 3, "class")])
    assert [path.read_bytes() for path in source.parent.iterdir()] == [before] * names


def somebody_else_writes(path: Path) -> None:
    path.write_text("somebody else's work\n")


def somebody_else_links(path: Path) -> None:
    path.rename(path.with_name("moved.py"))
    path.symlink_to("moved.py")


@pytest.mark.parametrize("names", [1, 2])
@pytest.mark.parametrize("meddle", [somebody_else_writes, somebody_else_links])
def test_a_file_that_has_changed_since_it_was_read_is_not_written(
    source: Path, names: int, meddle: Callable[[Path], None]
) -> None:
    if names == 2:
        os.link(source, source.with_name("other.py"))
    read = SourceFile.read(str(source))
    meddle(source)
    before = source.read_text()
    with pytest.raises(CommandFailed, match="changed meanwhile"):
        read.write([(0, 3, "class")])
    assert source.read_text() == before


@pytest.mark.parametrize(
    ("command", "name", "rule"),
    [
        ("fill --at 1:5", ".env", "the built-in rule '*.env'"),
        ("edit --at 1:5", "notes.txt", "the built-in rule '*.env'"),
        ("holes --marker 1", "private/a.py", "the rule 'private/' of {folder}/.caesuraignore"),
        ("fill --at 1:5", "open/a.py", "the rule 'private/' of {folder}/.caesuraignore"),
        ("fill --at 1:5", "sub/../private/a.py", "the rule 'private/' of {folder}/.caesuraignore"),
        ("fill --at 1:5", "sub/deep/a.py", "{folder}/sub/.caesuraignore, which cannot be used"),
    ],
)
def test_the_command_line_says_which_rule_hides_a_file(
    run: Run, tmp_path: Path, command: str, name: str, rule: str
) -> None:
    for folder in ("private", "sub/deep"):
        (tmp_path / folder).mkdir(parents=True)
    for file in (".env", "private/a.py", "sub/deep/a.py"):
        (tmp_path / file).write_text("A = 1\n")
    (tmp_path / "open").symlink_to("private")
    (tmp_path / "notes.txt").symlink_to(".env")
    (tmp_path / ".caesuraignore").write_text("# ours\nprivate/\n")
    (tmp_path / "sub" / ".caesuraignore").write_bytes(b"caf\xe9")
    asked = *command.split(), tmp_path / name
    hidden = f"is hidden by {rule.format(folder=tmp_path)}; add --anyway to use it all the same."
    assert run(*asked) == Ran(1, "", f"caesura: {tmp_path / name} {hidden}\n")
    assert "is hidden" not in run(*asked, "--anyway").err


@pytest.mark.parametrize(
    ("data", "at", "sentence"),
    [
        (b"a\nb\n", "4:1", "has no line 4; its last is 3."),
        (b"a\nbc\n", "2:4", "has no column 4; its last is 3."),
        (b"a\r\nb", "1:3", "has no column 3; its last is 2."),
        (b"", "1:2", "has no column 2; its last is 1."),
        (b"a\0b", "1:1", "is a binary file."),
        (b"\xff\xfe", "1:1", "is not UTF-8 text."),
        (b"a" * 5_000_001, "1:1", "is larger than 5 MB."),
    ],
)
def test_what_cannot_be_filled_is_refused_in_one_sentence(
    run: Run, source: Path, data: bytes, at: str, sentence: str
) -> None:
    source.write_bytes(data)
    ran = run("fill", source, "--at", at, "--write")
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(r"caesura: .*\n", ran.err)
    assert sentence in ran.err
    assert source.read_bytes() == data


def test_a_missing_file_and_a_directory_are_refused(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing.py"
    assert run("fill", missing, "--at", "1:1") == Ran(1, "", f"caesura: {missing} does not exist.\n")
    assert run("fill", tmp_path, "--at", "1:1") == Ran(1, "", f"caesura: {tmp_path} is a directory.\n")


def test_to_before_at_is_refused(run: Run, source: Path) -> None:
    assert run("fill", source, "--at", "2:1", "--to", "1:1").code == 1


@pytest.mark.parametrize("command", ["fill {} --at 2:12", "demo {} --no-browser", "serve"])
def test_an_unknown_model_starts_no_engine(run: Run, source: Path, command: str) -> None:
    running = rendezvous.running()
    ran = run(*command.format(source).split(), "--model", "unknown")
    assert ran == Ran(1, "", "caesura: There is no model 'unknown'; `caesura models` lists those there are.\n")
    assert rendezvous.running() == running


def test_watch_writes_lines_where_there_is_no_terminal(run: Run, source: Path) -> None:
    ran = run("fill", source, "--at", "2:12", "--watch")
    *events, text = ran.out.splitlines()
    assert text == "answer"
    assert re.fullmatch(r"done in 6 steps, 12 ms  'answer'", events[-1])


def test_watch_draws_the_canvas_on_a_terminal(source: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "caesura", "fill", str(source), "--at", "2:12", "--watch"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
    with subprocess.Popen(command, stdout=terminal, stdin=terminal, env=environment) as process:
        os.close(terminal)
        screen = b"".join(_all(controller)).decode()
    assert process.returncode == 0
    assert "def f():" in screen
    assert "done in 6 steps" in screen
    assert "\x1b[" in screen


def _all(terminal: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as file:  # Linux ends a terminal with EIO
        while piece := file.read(1 << 16):
            yield piece


@pytest.mark.parametrize(
    "arguments",
    [
        ["unknown"],
        ["stats", "--res"],
        ["fill", "x", "--at", "1:1", "--least", "2"],
        ["fill"],
        ["fill", "x"],
        ["fill", "x", "--at", "1"],
        ["fill", "x", "--at", "0:1"],
        ["fill", "x", "--at", "a:b"],
        ["fill", "x", "--at", "1:1", "--deadline-ms", "0"],
        ["fill", "x", "--at", "1:1", "--device", "tpu"],
        ["holes", "x", "--marker", ""],
        ["models", "show"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("usage: ")


def test_a_mistyped_option_shows_those_of_its_command(run: Run) -> None:
    told = run("stats", "--rest").err
    assert "[--reset]" in told
    assert told.endswith("caesura stats: error: unrecognized arguments: --rest\n")


def test_without_a_command_the_commands_are_listed(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert "\n    fill " in ran.out


# holes


def test_holes_fills_every_marker(run: Run, source: Path) -> None:
    source.write_bytes(b"a = <FILL>\r\nb = (<FILL>)\r\n")
    sure = "caesura: 1:5 sure (0.90), 2:6 sure (0.90).\n"
    assert run("holes", source) == Ran(0, "1:5: answer\n2:6: answer\n", sure)
    assert json.loads(run("holes", source, "--json").out)["texts"] == ["answer", "answer"]
    assert run("holes", source, "--write") == Ran(0, "", sure)
    assert source.read_bytes() == b"a = answer\r\nb = (answer)\r\n"


def test_fill_in_json_has_the_grammar_of_the_schema_that_the_file_names(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, jobs = '{"properties": {"a": {"enum": ["one"]}}}', list[wire.Infill]()

    class Seen(common.AskedEngine):
        def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
            jobs.append(job)
            return super().infill(job)

    monkeypatch.setattr(fill, "AskedEngine", Seen)
    (tmp_path / "schema.json").write_text(schema)
    path = tmp_path / "a.json"
    path.write_text('{"$schema": "./schema.json", "a": }')
    assert run("fill", path, "--at", "1:35").out == "12\n"
    assert [job.schemas for job in jobs] == [(schema,)]


def test_holes_keeps_the_markers_that_it_cannot_fill(run: Run, source: Path) -> None:
    before = b"some = <FILL>\nb = <FILL>\n"
    source.write_bytes(before)
    kept = "caesura: 2:5 sure (0.90).\ncaesura: the model proposes nothing that fits at 1:8; kept as it is.\n"
    assert run("holes", source) == Ran(0, "2:5: answer\n", kept)
    assert run("holes", source, "--write") == Ran(0, "", kept)
    assert source.read_bytes() == b"some = <FILL>\nb = answer\n"
    source.write_bytes(b"nothing" + before)
    ran = run("holes", source, "--write")
    assert ran == Ran(1, "", "caesura: The model proposes nothing here; all markers are kept.\n")
    assert source.read_bytes() == b"nothing" + before


def test_holes_far_apart_are_filled_by_several_jobs(run: Run, source: Path) -> None:
    source.write_text("a = <FILL>\n" + "".join(f"line_{n} = {n}\n" for n in range(60)) + "b = <FILL>\n")
    found = json.loads(run("holes", source, "--json").out)
    assert found["texts"] == ["answer", "answer"]
    assert (found["steps"], found["tokens"]["canvas"], found["timings"]["total_ms"]) == (12, 2, 24.2)


def test_holes_that_the_engine_cannot_begin_in_time_are_kept(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Engine):
        async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
            if "line_59" in job.prefix:
                raise EngineFailed("expired")
            async for event in super().infill(job):
                yield event

    monkeypatch.setattr(common, "Engine", Slow)
    source.write_text("a = <FILL>\n" + "".join(f"line_{n} = {n}\n" for n in range(60)) + "b = <FILL>\n")
    late = "caesura: the deadline passed before there was a fill at 62:5; kept as it is.\n"
    assert run("holes", source).err == f"caesura: 1:5 sure (0.90); the deadline cut it short.\n{late}"


def test_holes_needs_markers_and_not_too_many(run: Run, source: Path) -> None:
    assert "has no marker ___" in run("holes", source, "--marker", "___").err
    source.write_text("x = ___\n" * 65)
    ran = run("holes", source, "--marker", "___")
    assert ran.code == 1
    assert "65 markers; 64 can be filled together" in ran.err


# eval


def test_eval_completes_every_case_and_goes_on_where_it_stopped(run: Run, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"id": str(n), "prefix": "x = ", "suffix": "\n", "lang": "python"}) for n in range(3)]
    cases.write_text("\n".join(lines[:2]) + "\n")
    assert run("eval", cases, "--as", "fill", "--out", out).code == 0
    cases.write_text("\n".join(lines) + "\n")
    ran = run("eval", cases, "--as", "fill", "--out", out)
    assert (ran.code, ran.out) == (0, "")
    assert "2 of 3 cases are done already" in ran.err
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["id"] for one in found] == ["0", "1", "2"]
    assert {one["completion"] for one in found} == {"answer"}
    assert found[0]["tokens_by_source"] == {"canvas": 1, "lookup": 0, "left_to_right": 0}
    assert found[0]["ms"] > 0
    assert "chance" not in found[0]  # the engine has not said how likely its tokens are


def test_eval_says_how_likely_the_whole_of_a_text_is(run: Run, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(case("0", "doubt = "))
    assert run("eval", cases, "--as", "fill", "--out", out).code == 0
    found = json.loads(out.read_text())
    assert (found["confidence"], found["chance"]) == (0.5, 0.5 ** len("answer"))


def test_a_fill_that_repeats_the_line_behind_it_gives_way_to_the_next_candidate(run: Run, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(json.dumps({"id": "0", "prefix": "again = 1\n", "suffix": "\nanswer\n", "lang": "python"}) + "\n")
    assert run("eval", cases, "--as", "fill", "--out", out).code == 0
    found = json.loads(out.read_text())
    assert (found["completion"], found["confidence"]) == ("another", 0.3)


def test_eval_asks_in_json_for_what_is_valid_as_an_editor_does(run: Run, tmp_path: Path) -> None:
    """The engine of these tests has `12` for whatever has a grammar, and plain text else."""
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    gaps = {"value": ('{"a": ', ', "b": 1}\n'), "key": ("{", ': 1, "b": 1}\n'), "code": ("x = [", "]\n")}
    told = [{"id": n, "prefix": p, "suffix": s, "lang": "json" if n != "code" else ""} for n, (p, s) in gaps.items()]
    cases.write_text("".join(json.dumps(one) + "\n" for one in told))
    assert run("eval", cases, "--as", "fill", "--out", out).code == 0
    found = {one["id"]: one["completion"] for one in map(json.loads, out.read_text().splitlines())}
    assert found == {"value": "12", "key": "", "code": "answer"}, "12 is no key: what is not valid is not inserted"


def case(name: str, prefix: str = "x = ") -> str:
    return json.dumps({"id": name, "prefix": prefix, "suffix": "\n", "lang": "python"}) + "\n"


def test_eval_tries_errors_again_and_drops_a_line_that_a_kill_has_cut(run: Run, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(case("0") + case("1", "refuse") + case("2"))
    assert run("eval", cases, "--as", "fill", "--out", out).code == 0
    first, failed, third = out.read_text().splitlines(keepends=True)
    assert json.loads(failed)["error"]
    out.write_text(first + failed + third[:20])
    cases.write_text(case("0") + case("1") + case("2"))
    ran = run("eval", cases, "--as", "fill", "--out", out)
    assert ran.code == 0, ran.err
    assert "1 of 3 cases are done already" in ran.err
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["id"], one["completion"]) for one in found] == [("0", "answer"), ("1", "answer"), ("2", "answer")]
    assert not any("error" in one for one in found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cases.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    "option",
    [
        ("--as", "ghost"),
        ("--deadline-ms", "500"),
        ("--method", "verify"),
        ("--sampler", "threshold"),
        ("--prompt-format", "chat"),
    ],
)
def test_eval_refuses_to_go_on_with_other_options(run: Run, tmp_path: Path, option: tuple[str, str]) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(case("0"))
    assert run("eval", cases, "--as", "fill", "--out", out).code == 0
    before = out.read_bytes()
    ran = run("eval", cases, "--as", "fill", "--out", out, *option)
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(
        rf"caesura: .* was made with --as fill, --model {DEFAULT}, .* use the same or another --out.\n", ran.err
    )
    assert out.read_bytes() == before


def test_a_method_that_was_a_sampler_is_still_taken_and_said(run: Run, source: Path) -> None:
    said = "caesura: verify is a method now: use --method verify.\n"
    assert run("fill", source, "--at", "2:12", "--sampler", "verify") == Ran(0, "answer\n", said + SURE)
    assert run("fill", source, "--at", "2:12", "--method", "verify") == Ran(0, "answer\n", SURE)


def test_a_prompt_format_goes_to_the_engine_which_says_if_there_is_none(run: Run, source: Path, tmp_path: Path) -> None:
    assert run("fill", source, "--at", "2:12", "--prompt-format", "nope") == Ran(
        1, "", "caesura: No prompt format nope.\n"
    )
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(case("0"))
    assert run("eval", cases, "--as", "fill", "--out", out, "--prompt-format", "nope").code == 0
    found = json.loads(out.read_text())
    assert (found["error"], found["prompt"]) == ("No prompt format nope.", "nope")


def test_eval_says_what_ghost_text_would_show(run: Run, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    cases.write_text(case("sure") + case("unsure", "doubt = ") + case("refused", "refuse"))
    assert run("eval", cases, "--out", out).code == 0
    found = {one["id"]: one for one in map(json.loads, out.read_text().splitlines())}
    assert (found["sure"]["as"], found["sure"]["completion"], found["sure"]["shown"]) == ("ghost", "answer", "answer")
    assert (found["unsure"]["completion"], "shown" in found["unsure"]) == ("answer", False)
    assert found["refused"]["error"]


def test_eval_tells_ghost_text_that_is_unlikely_from_a_place_where_there_is_none(run: Run, tmp_path: Path) -> None:
    """A bracket that stands after the gap is not shown twice, and the benchmark's kind does not cut a candidate."""
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    gaps = {"closed": ("again(", ")\n"), "unlikely": ("doubt(", ")\n"), "word": ("x = ", "word\n")}
    told = [{"id": n, "prefix": p, "suffix": s, "lang": "python", "kind": "span"} for n, (p, s) in gaps.items()]
    cases.write_text("".join(json.dumps(one) + "\n" for one in told))
    assert run("eval", cases, "--out", out).code == 0
    found = {one["id"]: one for one in map(json.loads, out.read_text().splitlines())}
    told = {name: (one["completion"], one.get("shown"), one.get("stop")) for name, one in found.items()}
    assert told == {
        "closed": ("answer", "answer", "complete"),
        "unlikely": ("answer", None, "complete"),
        "word": ("", None, None),
    }


def test_eval_says_which_line_is_wrong(run: Run, tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"id": "1", "prefix": "", "suffix": ""}\n{"id": 2}\n')
    ran = run("eval", cases, "--out", tmp_path / "out.jsonl")
    assert ran.code == 1
    assert "cases.jsonl, line 2: " in ran.err


# Engines, models, doctor


def test_status(run: Run) -> None:
    run("engine")
    found = json.loads(run("status", "--json").out)["engines"]
    assert [(one["state"], one["model"], one["device"]) for one in found] == [("ready", DEFAULT, "fake")]
    assert run("status").out.startswith(f"ready: {DEFAULT} on fake, process {found[0]['pid']}, up ")


async def test_status_names_the_editors_and_counts_the_others(run: Run) -> None:
    names = ("Neovim 0.12.4", "Neovim 0.12.4", "Visual Studio Code 1.139.0", "an editor", "demo", "bench all")
    found = [Engine(client=name) for name in names]
    try:
        for one in found:
            await one.start()
            await one.ready(30)
        out = (await asyncio.to_thread(run, "status")).out
        assert "\n  2 Neovim 0.12.4, Visual Studio Code 1.139.0, an editor, 2 other clients, 0 jobs running" in out
    finally:
        for one in found:
            await one.close()


OTHER_BUILD = """
import json, pathlib, sys, msgspec, zmq
from caesura import wire
from caesura.ipc import rendezvous
place = rendezvous.EnginePlace(pathlib.Path(sys.argv[1]))
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(f"ipc://{place.socket}")
held = place.acquire()
about = {"build": "0.0+other", "model": "other", "device": "cpu", "state": "ready"}
status = {"type": "status", "pid": 1, "uptime_s": 1.0, "peers": 3} | about | json.loads(sys.argv[2])
while True:
    peer, frame = socket.recv_multipart()
    match wire.decode_client(frame):
        case wire.Hello():
            socket.send_multipart([peer, wire.encode(wire.Welcome(protocol=wire.PROTOCOL, **about))])
        case wire.Query():
            socket.send_multipart([peer, msgspec.msgpack.encode(status)])
"""


@contextlib.contextmanager
def engine_of_another_build(**more: object) -> Iterator[None]:
    """Its status has `more`, and nothing that was added to it later."""
    before = len(rendezvous.running())
    command = [sys.executable, "-c", OTHER_BUILD, str(paths.runtime() / "e-other"), json.dumps(more)]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 20
            while len(rendezvous.running()) == before:
                assert time.monotonic() < deadline
            yield
            assert process.poll() is None, "asking ends nobody's engine"
        finally:
            process.kill()


def test_status_of_an_older_build_counts_its_clients(run: Run) -> None:
    with engine_of_another_build():
        ran = run("status")
    assert "\n  3 clients, 0 jobs running, 0 waiting, 0 done\n  0 MiB, 0 restarts, build 0.0+other\n" in ran.out
    assert (ran.code, ran.err) == (0, "")


def test_no_engine_and_none_of_its_clients_forges_a_line_of_the_status(run: Run) -> None:
    odd = "vim\x1b]0;pwn\x07\x9b31m\u202e\nready: FAKE on cpu"
    with engine_of_another_build(
        model=odd, device=odd, clients=[odd, odd], message=odd, p50_ms={"x": 1}, p95_ms={"x": 1}
    ):
        ran, listed = run("status"), run("status", "--json")
    for text in (ran.out, listed.out):
        assert all(line.isprintable() for line in text.split("\n"))
    assert [line for line in ran.out.split("\n") if line.startswith("ready: FAKE")] == []
    assert r"2 vim\x1b]0;pwn\x07\x9b31m\u202e\nready: FAKE on cpu, 0 jobs running" in ran.out


def test_status_of_a_newer_build_is_a_sentence_beside_the_others(run: Run) -> None:
    with engine_of_another_build(added_later=1):
        ran = run("status")
    assert ran.out.startswith(f"ready: {DEFAULT} on fake, ")
    assert (ran.code, ran.err) == (0, "caesura: e-other: The engine did not answer.\n")


def test_an_engine_whose_status_cannot_be_read_is_running_for_all_that(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CAESURA_RUNTIME", str(tmp_path))
    tmp_path.chmod(0o700)
    with engine_of_another_build(added_later=1):
        assert run("status") == Ran(0, "", "caesura: e-other: The engine did not answer.\n")


@pytest.mark.usefixtures("other_engines")
def test_a_command_that_waits_for_the_engine_says_how_far_it_is(
    run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caesura.commands.common.PATIENCE_S", 0.0)
    stages = run("fill", source, "--at", "2:12", "--model", "slow").err.splitlines()[:-1]
    assert stages[0] == "caesura: starting the engine ..."
    assert stages[1:] in ([], ["caesura: reading ..."])  # a line a stage, of those that were seen in time


def test_engine_says_that_it_is_ready(run: Run) -> None:
    assert run("engine").out.startswith(f"The engine is ready: {DEFAULT} on fake, process ")


def test_a_second_engine_is_refused(run: Run) -> None:
    ran = run("engine", "--foreground")
    assert ran.code == 1
    assert "This engine runs already (process " in ran.err


@pytest.mark.parametrize("command", [["models"], ["stats"], ["status"], ["fill", "SOURCE", "--at", "2:12"]])
def test_a_command_that_only_reads_needs_no_home(
    run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (tmp_path / "file").touch()
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "file"))
    ran = run(*(source if word == "SOURCE" else word for word in command))
    assert ran.code == 0, ran.err


def test_stop_and_nothing_to_stop(run: Run) -> None:
    assert re.fullmatch(r"Stopped process \d+\.\n", run("stop").out)
    assert run("stop") == Ran(0, "No engine is running.\n", "")
    assert json.loads(run("status", "--json").out) == {"engines": [], "remote": [], "backends": []}
    assert run("status").out.startswith("No engine is running")
    start_engine()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(b"weights")
    sha256 = hashlib.sha256(b"weights").hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"license": "Apache-2.0", "files": {"weights": sha256}}))
    return folder


def test_models(run: Run, model: Path) -> None:
    assert run("models").code == 0
    assert "models" in json.loads(run("models", "list", "--json").out)
    assert json.loads(run("models", "show", model, "--json").out)["license"] == "Apache-2.0"
    assert "license: Apache-2.0\n" in run("models", "show", model).out
    assert run("models", "verify", model).out == f"{model}: 1 files, all whole.\n"
    (model / "weights").write_bytes(b"weightz")
    ran = run("models", "verify", model, "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["damaged"] == ["weights"]
    assert "weights" in ran.err
    assert run("models", "verify", "nothing").code == 1


@pytest.fixture
def server_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The language server's start is the subject of other tests, and is most of the time that `doctor` takes."""

    async def server() -> doctor.Check:
        return doctor.Check("language server", True, "answers after 0.1 s")

    monkeypatch.setattr(doctor, "_server", server)


@pytest.mark.usefixtures("other_engines")
def test_doctor(run: Run, model: Path) -> None:
    ran = run("doctor", "--json", "--model", model)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["ok"]
    names = {check["name"] for check in found["checks"]}
    assert {"python", "torch", "grammars", "model files", "language server", "engine", "fill", "editor"} <= names


@pytest.mark.usefixtures("other_engines", "server_started")
def test_doctor_sees_a_damaged_model(run: Run, model: Path) -> None:
    (model / "weights").write_bytes(b"weightz")
    ran = run("doctor", "--model", model)
    assert ran.code == 1
    assert "BAD  model files: damaged: weights\n     Bring" in ran.out
    assert "1 of " in ran.err


@pytest.mark.usefixtures("other_engines", "server_started")
def test_doctor_records_how_fast_the_model_was(run: Run, model: Path) -> None:
    run("doctor", "--model", model)
    speed = speeds.of(model_store.identity(str(model)))
    assert (speed.device, speed.token_ms, speed.fill_ms) == ("fake", 12.0, 12.1)
    assert speed.memory_mb > 1


@pytest.mark.usefixtures("other_engines", "server_started")
@pytest.mark.parametrize(("model", "name"), [("empty", "fill"), ("slow", "speed of fills")])
def test_doctor_sees_a_model_that_is_of_no_use(run: Run, model: str, name: str) -> None:
    ran = run("doctor", "--json", "--model", model)
    assert ran.code == 1
    bad = {check["name"]: check["next"] for check in json.loads(ran.out)["checks"] if not check["ok"]}
    assert set(bad) == {"model files", name}
    assert all(bad.values())


@pytest.mark.usefixtures("other_engines", "own_records", "server_started")
def test_doctor_looks_back_at_the_last_sessions(run: Run, model: Path) -> None:
    session = trace.SessionRecord("Neovim 0.12", "0.1.0", "utf-8", ("inlineCompletion",), "small", "cpu")
    requests = [
        trace.RequestRecord("python", "line", "warm", {"wait": float(wait), "gate": 1.0}) for wait in range(100)
    ]
    began = time.time()
    asyncio.run(_recorded(session, requests, []))
    since = [f"since {doctor._date(at)}\n" for at in (began, time.time())]
    ran = run("doctor", "--model", model)
    assert ran.code == 0, ran.err
    assert "ok   editor: Neovim 0.12, utf-8, small on cpu; announces inlineCompletion\n" in ran.out
    told = f"ok   speed of answers: 100 begun before the editor asked 50/95 {doctor.HALF}, "
    assert any(told + one in ran.out for one in since)
    assert f"ok   stages of answers: in all 50/95, checking 1/1 {doctor.HALF}\n" in ran.out
    [one] = json.loads(run("doctor", "--json", "--model", model).out)["sessions"]
    assert (one["client"], one["stages"]["wait"], one["answers"]) == ("Neovim 0.12", [50, 95], {"warm": [100, 50, 95]})


@pytest.mark.usefixtures("other_engines", "own_records")
def test_doctor_says_what_to_do_about_what_is_slow_or_failed(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "START_S", 0)
    session = trace.SessionRecord("VS Code", problems=("Unknown setting 'debounce' was ignored.",))
    slow = trace.RequestRecord("python", "line", "cold", {"wait": 900.0})
    asyncio.run(_recorded(session, [slow] * doctor.ENOUGH, [FinishedJob("j", "engine_lost", "automatic")]))
    ran = run("doctor", "--json", "--model", model)
    assert ran.code == 1
    bad = {check["name"]: check["next"] for check in json.loads(ran.out)["checks"] if not check["ok"]}
    assert set(bad) == {"language server", "settings", "speed of answers", "jobs lost"}
    assert all(bad.values())

    async def server() -> doctor.Check:
        return doctor.Check("language server", False, "answers after 9.0 s", doctor.SLOW_START, slow=True)

    monkeypatch.setattr(doctor, "_server", server)
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    found = {check["name"]: check for check in json.loads(run("doctor", "--json", "--model", model).out)["checks"]}
    assert {name for name, check in found.items() if not check["ok"]} == set(bad) - {"language server"}  # of now
    assert "the load was 99.0 on" in found["language server"]["found"]


def test_doctor_judges_fills_by_half_of_them() -> None:
    """A job of many holes may take long on a fast machine."""
    for half, ok in ((500.0, True), (2500.0, False)):
        status = wire.Status(
            state="ready",
            build="b",
            model="small",
            device="cpu",
            pid=1,
            uptime_s=1.0,
            peers=1,
            p50_ms={"total": half},
            p95_ms={"total": 9000.0},
        )
        assert doctor._speed(status, "small").ok == ok


@pytest.mark.parametrize(
    ("pass_ms", "found"),
    [
        (10, "Qwen2.5-Coder-1.5B for suggestions and fills: a line would take about 0.5 s"),
        (30, "Qwen2.5-Coder-1.5B for fills that you ask for, not for suggestions: a line would take about 1.5 s"),
        (60, "none: a line of Qwen2.5-Coder-1.5B would take about 3.0 s"),
    ],
)
def test_doctor_says_what_a_larger_model_would_be_good_for(pass_ms: float, found: str) -> None:
    times = wire.Timings(denoise_ms=5 * pass_ms)
    done = wire.Done(job="j", seq=1, holes=(), steps=5, tokens=wire.Tokens(), timings=times, stop="complete")
    [check] = doctor._larger("coder", done, "cpu:avx512")
    assert check.ok
    assert check.found == found
    assert check.next == ("" if found.startswith("none") else doctor.HOW)
    assert not list(doctor._larger("small", done, "cpu:avx512"))
    assert not list(doctor._larger("coder", done, "cuda"))


@pytest.mark.usefixtures("other_engines", "own_records", "server_started")
def test_doctor_does_not_judge_a_few_answers(run: Run, model: Path) -> None:
    """In two sessions, none of which has enough of them."""
    slow = trace.RequestRecord("python", "line", "cold", {"wait": 900.0})
    for _ in range(2):
        asyncio.run(_recorded(trace.SessionRecord("VS Code"), [slow] * (doctor.ENOUGH - 1), []))
    ran = run("doctor", "--model", model)
    assert ran.code == 0, ran.err
    assert f"ok   speed of answers: 48 begun when it asked 900/900 {doctor.HALF}, since 20" in ran.out
    assert "; not judged: no session has 25 answers yet\n" in ran.out


@pytest.mark.usefixtures("other_engines", "own_records", "server_started")
def test_doctor_says_that_an_editor_has_never_asked(run: Run, model: Path) -> None:
    asyncio.run(_recorded(trace.SessionRecord("Emacs", encoding="utf-32"), [], []))
    ran = run("doctor", "--model", model)
    assert ran.code == 1
    assert "BAD  editor: Emacs, utf-32, no engine yet; announces nothing" in ran.out
    assert "     Turn inline completion on in your editor" in ran.out


async def _recorded(session: trace.SessionRecord, requests: list[trace.RequestRecord], jobs: list[FinishedJob]) -> None:
    found = trace.Trace()
    found.session(session)
    for request in requests:
        found.record(request)
    for job in jobs:
        found.job(job)
    await found.close()


@pytest.fixture
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder for logs and counts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths.private(paths.logs())


@pytest.mark.usefixtures("other_engines", "own_records")
def test_doctor_sees_a_language_server_that_does_not_start(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\ncase "$*" in *" lsp") exit 3;; esac\nexec {sys.executable} "$@"\n')
    broken.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(broken))
    ran = run("doctor", "--json", "--model", model)
    [bad] = [check for check in json.loads(ran.out)["checks"] if not check["ok"]]
    assert (ran.code, bad["name"]) == (1, "language server")
    assert "caesura lsp" in bad["next"]


@pytest.mark.usefixtures("own_records")
def test_stats_of_the_last_days(run: Run) -> None:
    assert run("stats").out.startswith("Nothing was shown in the last 30 days")
    path, today = stats.file(), date.today()
    python = stats.Counts(shown=4, accepted=1, partly=1, rejected=2, shown_characters=200, accepted_characters=50)
    days = {(today - timedelta(days=ago)).isoformat(): {"python": python} for ago in (0, 6, 7, 40)}
    path.write_bytes(msgspec.json.encode(days))
    assert json.loads(run("stats", "--json").out)["days"]["7"]["python"]["shown"] == 8
    found = json.loads(run("stats", "--json").out)["days"]["30"]["all"]
    assert (found["shown"], found["accepted"], found["share"]) == (12, 3, 0.25)
    ran = run("stats")
    assert re.search(r"^python +12 +3 +3 +6 +150 of 600,  25%$", ran.out, re.MULTILINE)
    assert f"in {path}." in ran.out


@pytest.mark.usefixtures("own_records")
def test_stats_can_be_forgotten_also_when_the_file_is_damaged(run: Run) -> None:
    stats.file().write_text("?")
    ran = run("stats")
    assert (ran.code, ran.out) == (1, "")
    assert "`caesura stats --reset`" in ran.err
    assert run("stats", "--reset") == Ran(0, "All counts are deleted.\n", "")
    assert run("stats").code == 0


def test_settings_as_a_list_and_as_a_schema(run: Run) -> None:
    assert "\ndeadlineMs = 250   (1 to 10,000)\n    milliseconds after which" in run("settings").out
    assert json.loads(run("settings", "--schema").out)["properties"]["mode"]["default"] == "balanced"


def test_no_advice_fetches_somebody_elses_package() -> None:
    assert "pip install" not in doctor.INSTALL + doctor.RESTORE


def test_a_key_is_shown_with_what_it_is_for(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ran = run("pair")
    [key] = re.findall(r"^This machine's key: ([0-9a-f]{64})\n$", ran.out)
    assert ran.err.endswith(f" run there: caesura pair allow {key}\n")


def test_the_extension_without_vs_code_is_a_file_to_install(tmp_path: Path) -> None:
    (tmp_path / "npm").symlink_to("/bin/true")
    run = subprocess.run(
        ["make", "vscode"],
        cwd=FAKE.parents[3],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"code is not on PATH. The extension lies at editors/vscode/caesura.vsix; install it" in run.stdout


# The process


def test_lsp_starts_without_torch() -> None:
    code = "import sys; sys.argv = ['caesura', 'lsp']; import caesura.cli, caesura.commands.serve; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "pygls" in loaded
    assert not {"torch", "numpy", "rich", "huggingface_hub", "caesura.engine"} & set(loaded)


def test_lsp_ends_with_its_input() -> None:
    command = [sys.executable, "-P", "-m", "caesura", "lsp"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("models | true; exit ${PIPESTATUS[0]}", 1, b""),
        ("--help | true", 0, b""),
        ("models >&-", 0, b""),
        ("models 2>&- <&-", 0, b""),
        ("models >/dev/full", 1, b"No space left on device."),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(command: str, code: int, sentence: bytes) -> None:
    ran = subprocess.run(["bash", "-c", f"{sys.executable} -P -m caesura {command}"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr.count(b"\n")) == (code, int(bool(sentence)))
    assert sentence in ran.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_every_character_can_be_printed_in_any_encoding(
    model: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    folder = model.rename(model.with_name("é🎉\udcff"))

    def out(*options: str) -> str:
        """What is written into a pipe."""
        pipe = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, encoding))
        assert cli.main(["models", "show", str(folder), *options]) == 0
        return pipe.getvalue().decode(encoding)

    assert "license: Apache-2.0\n" in out()
    assert json.loads(out("--json"))["folder"] == str(folder)


def test_ctrl_c_is_one_line(source: Path) -> None:
    command = [sys.executable, "-P", "-m", "caesura", "fill", str(source), "--at", "2:12"]
    source.write_text("endless")
    command[-1] = "1:8"

    def heard() -> None:
        """Also where the suite runs in the background of a shell, which has Ctrl-C ignored."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heard) as process:
        deadline = time.monotonic() + 20
        while live() == 0:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (1, "", "caesura: interrupted.\n")


def live() -> int:
    """Jobs that run in the fake engine."""

    async def ask() -> int:
        if not (places := rendezvous.running()):
            return 0  # it is being started
        found = Engine(client="test", spawn=False, place=places[0])
        await found.start()
        try:
            return (await found.status()).live
        finally:
            await found.close()

    return asyncio.run(ask())
