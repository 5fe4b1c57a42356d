"""Which schema a document gets: by its own word inside the workspace, by the user's settings, never from elsewhere."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from caesura.schema.dialects import SchemaError
from caesura.server.context.schema_files import HEAD, Found, SchemaFiles
from caesura.server.options import Options, SchemaFor, parse

NAMED = {"type": "object", "title": "by its own word"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "schemas").mkdir(parents=True)
    (folder / "schemas" / "a b.json").write_text(json.dumps(NAMED))
    (tmp_path / "outside.json").write_text("{}")
    return folder


def files(project: Path, *settings: Any, trusted: bool = True) -> SchemaFiles:
    options, problems = parse({"schemas": settings})
    assert problems == []
    return SchemaFiles([str(project)], options.schemas, trusted=trusted)


def find(project: Path, text: str, *settings: Any, name: str = "data/x.json", given: str | None = None) -> Found:
    return files(project, *settings).find(f"{project.as_uri()}/{name}", text, given)


def document(found: Found) -> Any:
    return found.schema.document if found.schema else None


@pytest.mark.parametrize("name", ["../schemas/a b.json", "../schemas/a%20b.json", "file://{}/schemas/a%20b.json"])
@pytest.mark.parametrize(
    "text", ['{{"$schema": "{}"}}', '// x\n{{"a": {{"$schema": 1}}, "$schema" : "{}", "b": [', '{{\n"$schema":"{}"']
)
def test_a_document_names_its_schema_even_when_it_is_not_finished(project: Path, name: str, text: str) -> None:
    found = find(project, text.format(name.format(project.as_posix())))
    assert (document(found), found.note) == (NAMED, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '[{"$schema": "../schemas/a b.json"}]',
        '{"a": {"$schema": "../schemas/a b.json"}}',
        '{} {"$schema": "x"}',
        '{"$schema": 3}',
    ],
)
def test_only_the_root_of_a_document_names_one(project: Path, text: str) -> None:
    assert find(project, text) == Found()


@pytest.mark.parametrize("text", ['"' + '\\"' * HEAD, "/*/ " * HEAD, "[" * HEAD, '{"a": ' * HEAD])
def test_a_hostile_document_is_looked_through_once(project: Path, text: str) -> None:
    began = time.process_time()
    assert find(project, text) == Found()
    assert time.process_time() - began < 2  # a string that is read again from each of its quotes takes 9 s


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("https://example.org/s.json", "is not fetched"),
        ("../../outside.json", "outside of the workspace"),
        ("../schemas/out.json", "outside of the workspace"),
        ("../schemas/none.json", "does not exist"),
        ("../schemas/\\u0000", "does not exist"),
    ],
)
def test_a_name_that_leads_nowhere_is_told_and_the_rest_goes_on(project: Path, name: str, note: str) -> None:
    (project / "schemas" / "out.json").symlink_to(project.parent / "outside.json")
    found = find(project, f'{{"$schema": "{name}"}}')
    assert found.schema is None
    assert note in found.note
    other = find(project, f'{{"$schema": "{name}"}}', {"fileMatch": ["*.json"], "schema": {"title": "by setting"}})
    assert (document(other), other.note) == ({"title": "by setting"}, "")


def test_a_schema_document_has_the_schema_of_its_dialect(project: Path) -> None:
    for name in ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"):
        schema = find(project, f'{{"$schema": "{name}"}}').schema
        assert schema is not None
        assert schema.validator().is_valid({"type": "object"})
        assert not schema.validator().is_valid({"type": "thing"})


def test_settings_are_for_files_by_glob_or_for_a_name(project: Path) -> None:
    (project / "package.schema.json").write_text('{"title": "package"}')
    setting = {
        "fileMatch": ["package.json", "!old/**"],
        "url": "https://example.org/p",
        "schema": "package.schema.json",
    }
    assert document(find(project, "{}", setting, name="deep/package.json")) == {"title": "package"}
    assert find(project, "{}", setting, name="old/package.json") == Found()
    assert find(project, "{}", setting) == Found()
    assert document(find(project, '{"$schema": "https://example.org/p#"}', setting)) == {"title": "package"}
    by_url = {"fileMatch": ["/data/*.json"], "url": "./package.schema.json"}
    assert document(find(project, "{}", by_url)) == {"title": "package"}


def test_a_schema_that_the_user_names_and_that_is_of_no_use_is_refused(project: Path) -> None:
    (project / "large.json").write_text(" " * (1 << 20) + "{}")
    (project / "list.json").write_text("[]")
    os.mkfifo(project / "pipe.json")
    (project / "latin.json").write_bytes(b'{"title": "\xe9"}')
    for name, reason in [
        ("none.json", "does not exist"),
        ("large.json", "1 MiB"),
        ("list.json", "neither an object"),
        ("latin.json", "not UTF-8"),
        ("schemas", "schemas"),
        ("pipe.json", "or no file"),
        ("https://example.org/x", "not fetched"),
    ]:
        with pytest.raises(SchemaError, match=reason):
            find(project, "{}", given=name)
        with pytest.raises(SchemaError, match=reason):
            find(project, "{}", {"fileMatch": ["*"], "schema": name})
    assert document(find(project, '{"$schema": "x"}', given="schemas/a b.json")) == NAMED
    assert document(find(project, "{}", given=str(project.parent / "outside.json"))) == {}


def test_a_file_that_has_changed_is_read_again(project: Path) -> None:
    found = files(project)
    uri, path = f"{project.as_uri()}/x.json", project / "s.json"
    for title in ("a", "b"):
        path.write_text(json.dumps({"title": title}))
        os.utime(path, ns=(0, ord(title)))
        assert document(found.find(uri, '{"$schema": "./s.json"}')) == {"title": title}


def test_nothing_is_read_where_the_workspace_is_not_trusted(project: Path) -> None:
    found = files(project, {"fileMatch": ["y.json"], "schema": {"title": "inline"}}, trusted=False)
    named = found.find(f"{project.as_uri()}/x.json", '{"$schema": "schemas/a b.json"}')
    assert named.schema is None
    assert "not trusted" in named.note
    assert document(found.find(f"{project.as_uri()}/y.json", "{}")) == {"title": "inline"}
    with pytest.raises(SchemaError, match="not trusted"):
        found.find(f"{project.as_uri()}/x.json", "{}", "schemas/a b.json")


def test_globs_that_cannot_be_read_are_said(project: Path) -> None:
    [problem] = files(project, {"fileMatch": ["!"], "schema": {}}).problems
    assert "gitignore syntax" in problem


def test_settings_that_are_wrong_keep_the_default() -> None:
    for wrong in ({"fileMatch": "*"}, [{"schema": 3}], [3]):
        options, [problem] = parse({"schemas": wrong})
        assert options == Options()
        assert "'schemas' keeps its default" in problem
    assert parse({"schemas": [{"fileMatch": ["*"], "schema": True}]})[0].schemas == (SchemaFor(("*",), schema=True),)
