"""A language is one row: with it alone, a made-up language has imports, comments and indentation."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from caesura.server import languages
from caesura.server.context.context import context
from caesura.server.context.files import Files
from caesura.server.infill.insert import finish
from caesura.server.languages import Import, Language
from caesura.server.structured.edits import offers

STOCK = ";; what is there\nrecipe syrup begin\n   sugar 3\n   water 2\n"
MAIN = "needs stock\n\nrecipe tea begin\n   syrup"


def needed(text: str, name: str) -> Iterator[Import]:
    for found in re.findall(r"^needs (\w+)", text, re.MULTILINE):
        yield Import((found,))


@pytest.fixture(autouse=True)
def brew(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Language(
        "brew",
        comment=";;",
        openers=("begin",),
        offside=True,
        prefixes="q",
        formats="q",
        imports=needed,
        endings=(".brew",),
        extensions=(".brew",),
    )
    monkeypatch.setitem(languages.LANGUAGES, row.id, row)
    monkeypatch.setitem(languages._EXTENSIONS, ".brew", row)


async def test_what_a_file_imports_is_found(tmp_path: Path) -> None:
    (tmp_path / "stock.brew").write_text(STOCK)
    imported = await Files([str(tmp_path)]).imported((tmp_path / "main.brew").as_uri(), MAIN, "brew")
    assert [(snapshot.name, snapshot.language) for snapshot in imported] == [("stock.brew", "brew")]


@pytest.mark.parametrize(
    ("before", "scope"),
    [
        ("   sugar 3 ;; as ", "comment"),
        ('   say q"hot {', "code"),
        ('   say "hot {', "string"),
        ("   say q'hot ", "string"),
        ("   don't ", "code"),
    ],
)
def test_its_comments_and_strings_are_known(before: str, scope: str) -> None:
    assert context(before, len(before), len(before), language="brew").scope == scope


def test_a_format_of_its_own_name_has_the_structured_edits_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(languages.LANGUAGES, "menu", Language("menu", edits="yaml", comment="#"))
    [offer, *_] = offers("tea: hot\n", 5, 8, language="menu")
    assert offer.text(["cold"]) == "cold"


def test_a_body_is_indented_as_the_file_does_it() -> None:
    text = STOCK + "\nrecipe tea begin\n"
    hole = context(text, len(text), len(text), language="brew")
    assert hole.kind == "block"
    assert finish("syrup 1\nwater 9\nrecipe more begin", hole) == "   syrup 1\n   water 9"


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".babelrc",
            ".swcrc",
            ".eslintrc",
            ".jshintrc",
            ".eslintrc.json",
            "babel.config.json",
            "turbo.json",
            "nx.json",
        ),
        *("api-extractor.json", "deno.json", "keybindings.json", ".luarc.json", "pyrightconfig.json", "tslint.json"),
        *("rush.json", "py.code-snippets", "tsconfig.build.json", "jsconfig.json", ".vscode/settings.json"),
        *("devcontainer.json", "Code/User/settings.json", "a.code-workspace", "a.jsonc"),
    ],
)
def test_a_json_file_that_is_known_for_comments_may_have_them(path: str) -> None:
    assert languages.language("", f"file:///w/{path}").id == "jsonc"


@pytest.mark.parametrize("path", ["package.json", "settings.json", "deno_x.json", "my.babelrc.txt"])
def test_other_json_files_are_not(path: str) -> None:
    assert languages.language("", path).id != "jsonc"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Makefile", "makefile"),
        ("file:///project/GNUmakefile", "makefile"),
        ("Dockerfile", "dockerfile"),
        ("CMakeLists.txt", "cmake"),
        ("Gemfile", "ruby"),
        ("/home/me/.bashrc", "shellscript"),
        ("a.PY", "python"),
        ("notes.txt", "plaintext"),
    ],
)
def test_a_file_is_known_by_its_name_too(path: str, name: str) -> None:
    assert languages.language("plaintext", path).id == name
