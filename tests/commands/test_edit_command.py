"""`caesura edit` as a shell sees it. The engine's model is fake: it says 12 for whatever has a grammar."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from .test_cli import DEFAULT, Ran, Run, call, running_engine

TEXT = b'\xef\xbb\xbf{\r\n  "a": 1,\r\n  "\xc3\xa9": [true],\r\n  "z": {}\r\n}'
PARSES = "caesura: The edit parses. Its values are the model's guess: sure (0.90).\n"
MATCHES = PARSES.replace("parses.", "parses and matches the schema.")


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    with running_engine():
        yield


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return partial(call, capfd, "edit")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.json"
    path.write_bytes(TEXT)
    return path


def test_the_new_text_is_printed_and_the_file_stays(run: Run, source: Path) -> None:
    assert run(source, "--at", "2:8") == Ran(0, "12\n", PARSES)
    assert source.read_bytes() == TEXT


@pytest.mark.parametrize(
    ("where", "before", "after"),
    [
        (("--at", "2:8"), b": 1,", b": 12,"),
        (("--at", "3:8", "--to", "3:14"), b"[true]", b"12"),
        (("--at", "3:9", "--to", "3:13"), b"true", b"12"),
    ],
)
def test_write_changes_nothing_but_the_span(
    run: Run, source: Path, where: tuple[str, ...], before: bytes, after: bytes
) -> None:
    assert run(source, *where, "--write") == Ran(0, "", PARSES)
    assert source.read_bytes() == TEXT.replace(before, after)


def test_json_has_the_place_in_characters_and_what_is_sure(run: Run, source: Path) -> None:
    ran = run("--json", source, "--at", "3:8")
    found = json.loads(ran.out)
    start = TEXT.decode("utf-8-sig").index("[true]")
    assert (found["text"], found["start"], found["end"], found["level"]) == ("12", start, start + 6, "valid")
    assert found["offer"].startswith("Replace")
    assert found["holes"] == [{"text": "12", "confidence": 0.9, "word": "sure"}]
    assert (found["model"], found["stop"], found["timings"]["total_ms"]) == (DEFAULT, "complete", 12.1)
    assert (ran.code, ran.err) == (0, "")


def test_the_edits_of_a_place_are_listed_and_one_is_chosen_by_number_or_title(run: Run, source: Path) -> None:
    listed = run(source, "--at", "3:13", "--list")
    assert listed.code == 0
    titles = [line.partition("  ")[2] for line in listed.out.splitlines()]
    assert len(titles) > 1
    assert [one["offer"] for one in json.loads(run(source, "--at", "3:13", "--list", "--json").out)] == titles
    for number, title in enumerate(titles, 1):
        by_number = json.loads(run(source, "--at", "3:13", "--offer", number, "--json").out)
        assert by_number["offer"] == title
        assert json.loads(run(source, "--at", "3:13", "--offer", title, "--json").out)["text"] == by_number["text"]


def test_with_a_schema_what_does_not_pass_is_not_written(run: Run, source: Path) -> None:
    schema = source.with_name("schema.json")
    schema.write_text('{"properties": {"a": {"maximum": 5}}}')
    for option in (("--schema", schema), ("--schema", "schema.json")):
        ran = run(source, "--at", "2:8", "--write", *option)
        assert (ran.code, ran.out) == (1, "")
        assert "the text stays as it is" in ran.err
        assert ran.err.count("\n") == 1
    assert source.read_bytes() == TEXT
    schema.write_text('{"properties": {"a": {"type": "integer"}}}')
    assert run(source, "--at", "2:8", "--schema", schema) == Ran(0, "12\n", MATCHES)


def test_the_schema_that_a_file_names_counts(run: Run, source: Path) -> None:
    source.with_name("schema.json").write_text('{"properties": {"a": {"maximum": 5}}}')
    source.write_text('{"$schema": "./schema.json", "a": 1}')
    assert "the text stays as it is" in run(source, "--at", "1:35").err
    source.write_text('{"$schema": "https://example.org/s", "a": 1}')
    ran = run(source, "--at", "1:43")
    assert (ran.code, ran.out) == (0, "12\n")
    assert ran.err.startswith(PARSES[:-1])
    assert "is not fetched" in ran.err


def test_an_edit_that_is_not_as_sure_as_asked_for_is_not_written(run: Run, source: Path) -> None:
    for more, code in (((), 1), (("--strict",), 3)):
        ran = run(source, "--at", "2:8", "--write", "--least", "0.95", *more)
        assert ran == Ran(
            code, "", "caesura: The edit is sure (0.90), below 0.95, and withheld; --least 0 shows all.\n"
        )
    assert source.read_bytes() == TEXT


def test_an_edit_of_yaml_that_a_deadline_cut_says_both(run: Run, source: Path) -> None:
    path = source.with_name("data.yaml")
    path.write_text("hurry: 1  # which the engine of these tests hears\n")
    told = "The edit adds no syntax error. Its values are the model's guess: sure (0.90); the deadline cut it short."
    assert run(path, "--at", "1:8", "--to", "1:9") == Ran(0, "12\n", f"caesura: {told}\n")


def test_a_deadline_that_passes_before_there_is_an_edit_is_said(run: Run, source: Path) -> None:
    path = source.with_name("data.yaml")
    path.write_text("late: 1\n")
    allow = "allow more time with --deadline-ms"
    ran = run(path, "--at", "1:7", "--to", "1:8", "--deadline-ms", "1")
    assert ran == Ran(1, "", f"caesura: The deadline of 1 ms passed before there was a fill; {allow}.\n")


@pytest.mark.parametrize(
    ("text", "arguments", "reason"),
    [
        ('{"a" 1}', (), "broken at 1:6"),
        ('{"a": "bc"}', ("--at", "1:9"), "select"),
        ('{"a": 1}', ("--offer", "9"), "no such edit"),
        ('{"a": 1}', ("--offer", "0"), "no such edit"),
        ('{"a": 1}', ("--schema", "none.json"), "does not exist"),
        ('{"a": 1}', ("--at", "1:7", "--to", "1:2"), "--to lies before --at"),
        ('{"a": 1}', ("--at", "4:1"), "no line 4"),
    ],
)
def test_what_cannot_be_edited_is_refused_in_one_sentence(
    run: Run, source: Path, text: str, arguments: tuple[str, ...], reason: str
) -> None:
    source.write_text(text)
    ran = run(source, "--at", "1:7", *arguments, "--write")
    assert (ran.code, ran.out) == (1, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1
    assert source.read_text() == text


def test_a_language_without_structured_edits_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text("x = 1\n")
    ran = run(path, "--at", "1:5")
    assert ran == Ran(1, "", "caesura: Structured edits work in JSON, Markdown, YAML and TOML only.\n")


@pytest.mark.parametrize("arguments", [(), ("--at", "0:1"), ("--at", "1:1", "--list", "--write")])
def test_wrong_usage_is_exit_code_2(run: Run, source: Path, arguments: tuple[str, ...]) -> None:
    ran = run(source, *arguments)
    assert ran.code == 2
    assert "usage: caesura edit" in ran.err


@pytest.mark.parametrize("name", ["tsconfig.json", "tsconfig.build.json", ".vscode/settings.json"])
def test_json_files_that_usually_have_comments_may_have_them(run: Run, source: Path, name: str) -> None:
    path = source.with_name("project") / name
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // why\n  "a": 1,\n}\n')
    assert run(path, "--at", "3:8") == Ran(0, "12\n", PARSES)
