"""What the model is shown around a document: open files and imports of a trusted workspace, cells of a notebook."""

import asyncio
from pathlib import Path

import pytest

from caesura.server.context import project as module
from caesura.server.context.context import Budget, Context, Snapshot, context
from caesura.server.context.project import Project
from caesura.server.options import Options, Settings
from caesura.server.text.workspace import OpenDocument, Workspace

SHAPES = """class Square:
    def __init__(self, side):
        self.side = side

    def area(self):
        return 1
"""


class Folder:
    """A folder with files, some of them open."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.workspace = Workspace(folders=[str(folder)])
        self.settings = Settings(Options(**settings))  # type: ignore[arg-type]
        self.around = Project(self.workspace, self.settings)

    def open(self, name: str, text: str, language: str = "python") -> OpenDocument:
        uri = (self.folder / name).as_uri()
        self.workspace.open(uri, language, 0, text)
        opened = self.workspace.get(uri)
        assert opened
        self.around.opened(opened)
        return opened

    def place(self, opened: OpenDocument) -> Context:
        text = opened.document.text
        return context(text, len(text), len(text), language=opened.document.language)

    def others(self, opened: OpenDocument) -> list[str]:
        return [other.name for other in self.around.others(opened)[1]]


async def read(project: Folder) -> None:
    """Until what is imported has been read."""
    for task in list(project.around._tasks):
        await asyncio.wait_for(task, 10)


async def test_other_open_files_are_known_by_their_paths_in_the_folder(tmp_path: Path) -> None:
    project = Folder(tmp_path)
    project.open("shapes.py", SHAPES)
    assert project.around.others(project.open("main.py", "box = ")) == (
        "main.py",
        [Snapshot("shapes.py", "python", SHAPES)],
    )


async def test_an_imported_file_that_is_not_open_is_read(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(SHAPES)
    project = Folder(tmp_path)
    main = project.open("main.py", "from shapes import Square\n\nbox = Square(")
    await read(project)
    assert project.others(main) == ["shapes.py"]


@pytest.mark.parametrize("settings", [{"trusted": False}, {"enable": False}, {"ignore": ("shapes.py",)}])
async def test_nothing_is_known_of_what_is_not_to_be_looked_at(tmp_path: Path, settings: dict[str, object]) -> None:
    (tmp_path / "shapes.py").write_text(SHAPES)
    project = Folder(tmp_path, **settings)
    project.open("shapes.py", SHAPES)
    main = project.open("main.py", "from shapes import Square\n\nbox = Square(")
    await read(project)
    assert project.others(main) == []


async def test_nothing_is_known_of_files_outside_of_the_workspace(tmp_path: Path) -> None:
    project = Folder(tmp_path / "project")
    project.open("../shapes.py", SHAPES)
    project.open(str(tmp_path / "forms.py"), SHAPES)
    assert project.others(project.open("main.py", "from shapes import Square\n\nbox = Square(")) == []


async def test_a_project_hides_files_by_its_own_rules(tmp_path: Path) -> None:
    (tmp_path / ".caesuraignore").write_text("private/\n")
    project = Folder(tmp_path)
    assert project.around.hidden(project.open("private/a.py", "x = "))
    assert project.around.hidden(project.open(".env", "TOKEN=", "shellscript"))
    assert not project.around.hidden(project.open("config.json", "{", "json"))


async def test_new_rules_of_a_project_count_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    project = Folder(tmp_path)
    main = project.open("main.py", "x = ")
    assert not project.around.hidden(main)
    (tmp_path / ".caesuraignore").write_text("main.py\n")
    assert project.around.hidden(main)


async def test_new_rules_that_hide_all_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    project, told = Folder(tmp_path), list[str]()
    project.around.on_problems = lambda: told.extend(project.around.problems)
    (tmp_path / ".caesuraignore").write_text("a\n" * 1001)
    assert project.around.hidden(project.open("main.py", "x = "))
    assert ["hides all files" in problem for problem in told] == [True]


async def test_what_was_being_read_when_the_rules_changed_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(SHAPES)
    project = Folder(tmp_path)
    reads, begun, changed = project.around._files.imported, asyncio.Event(), asyncio.Event()

    async def slow(*asked: str) -> tuple[Snapshot, ...]:
        found = await reads(*asked)
        begun.set()
        await changed.wait()
        return found

    project.around._files.imported = slow  # type: ignore[method-assign]
    main = project.open("main.py", "from shapes import Square\n\nbox = Square(")
    await begun.wait()
    (tmp_path / ".caesuraignore").write_text("shapes.py\n")
    project.around.changed()
    changed.set()
    await read(project)
    assert project.others(main) == []


async def test_a_schema_that_was_being_read_when_the_settings_changed_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{}")
    project = Folder(tmp_path)
    opened = project.open("a.json", '{"$schema": "./s.json"}', "json")
    await asyncio.sleep(0)  # the reading has begun
    project.settings.options = Options(trusted=False)
    project.around.changed()
    await read(project)
    assert project.around.schema(opened) is None


async def test_the_cells_above_and_below_are_context(tmp_path: Path) -> None:
    project = Folder(tmp_path)
    cells = [project.open(f"n.ipynb#{number}", text) for number, text in enumerate(("import os", "x = ", "print(x)"))]
    project.workspace.notebooks.open("n", [cell.document.uri for cell in cells])
    place = project.around.frame(cells[1], project.place(cells[1]), Budget())
    assert (place.prefix, place.suffix) == ("import os\n\nx = ", "\n\nprint(x)")
    short = project.around.frame(cells[1], project.place(cells[1]), Budget(before=6, after=4))
    assert (short.prefix, short.suffix) == ("\nx = ", "\n\n")
    none = project.around.frame(cells[1], project.place(cells[1]), Budget(before=0, after=0))
    assert (none.prefix, none.suffix) == ("", "")


async def test_every_restored_tab_gets_its_imports_and_a_closed_one_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text(SHAPES)
    project = Folder(tmp_path)
    tabs = [project.open(f"tab{number}.py", "from shapes import Square\n\nbox = Square(") for number in range(4)]
    closed = tabs.pop().document.uri
    project.workspace.close(closed)
    project.around.closed(closed)
    await read(project)
    assert all("shapes.py" in project.others(tab) for tab in tabs)
    assert project.around._imported.get(closed) is None


async def test_imports_that_were_dropped_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMPORTED", 2 * len(SHAPES))
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    (tmp_path / "shapes.py").write_text(SHAPES)
    project = Folder(tmp_path)
    tabs = [project.open(f"tab{number}.py", "from shapes import Square\n\nbox = Square(") for number in range(3)]
    for tab in [*tabs, *tabs]:
        await read(project)
        project.around.others(tab)
        await read(project)
        assert "shapes.py" in project.others(tab)


async def test_the_schema_of_an_open_document_is_known_and_followed_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    (tmp_path / "s.json").write_text('{"title": "old"}')
    project = Folder(tmp_path)
    opened = project.open("a.json", '{"$schema": "./s.json", ', "json")
    assert await schema(project, opened, "old") == {"title": "old"}
    (tmp_path / "s.json").write_text('{"title": "newer"}')
    assert await schema(project, opened, "newer") == {"title": "newer"}
    (tmp_path / "s.json").write_text("no schema")
    assert await schema(project, opened, None) is None


async def schema(project: Folder, opened: OpenDocument, title: str | None) -> object:
    """What is known once that is the schema with this title."""
    for _ in range(500):
        found = project.around.schema(opened)
        document = found.document if found else None
        if (document["title"] if document else None) == title:
            break
        await asyncio.sleep(0.01)
    return document
