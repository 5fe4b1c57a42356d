"""Which files a document imports, and that nothing else of the disk is ever read."""

import os
from pathlib import Path

import pytest

from caesura.server.context.files import MAX_BYTES, MOST, Files, TextFiles


def lay(folder: Path, files: dict[str, str]) -> None:
    """Write files: the text by the path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


async def names(files: Files, document: Path, text: str, language: str = "python") -> list[str]:
    return [snapshot.name for snapshot in await files.imported(document.as_uri(), text, language)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import app.models", ["app/models.py"]),
        ("import app.models as m, os", ["app/models.py"]),
        ("from app import models", ["app/models.py", "app/__init__.py"]),
        ("from app.models import User, Group", ["app/models.py"]),
        ("from . import models", ["app/models.py"]),
        ("from .models import (\n    User,  # one\n    Group,\n)", ["app/models.py"]),
        ("from .. import tools", ["tools.py"]),
        ("from ..tools import x", ["tools.py"]),
        ("import lib2", ["src/lib2/__init__.py"]),
        ("if True:\n    from .models import User", ["app/models.py"]),
        ("import numpy, sys", []),
        ("from . import absent", []),
        ("import views", []),
        ("from ...... import tools", []),
        ("# from .models import User", []),
    ],
)
async def test_python_imports(tmp_path: Path, line: str, found: list[str]) -> None:
    lay(tmp_path, dict.fromkeys(("app/__init__.py", "app/models.py", "tools.py", "src/lib2/__init__.py"), "x = 1"))
    assert await names(Files([str(tmp_path)]), tmp_path / "app" / "views.py", line + "\n") == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import { a } from './a'", ["web/a.ts"]),
        ("import a, { b } from './a.js';", ["web/a.ts"]),
        ('import {\n  a,\n} from "./a"', ["web/a.ts"]),
        ("export * from '../shared'", ["shared/index.tsx"]),
        ("const s = require('../shared')", ["shared/index.tsx"]),
        ("import './style'", []),
        ("import x from '@/web/a'", ["web/a.ts"]),
        ("import React from 'react'", []),
        ("export const title = './a'", []),
    ],
)
async def test_script_imports(tmp_path: Path, line: str, found: list[str]) -> None:
    lay(tmp_path, {"web/a.ts": "export const a = 1", "shared/index.tsx": "export const s = 1"})
    assert await names(Files([str(tmp_path)]), tmp_path / "web" / "main.ts", line, "typescript") == found


@pytest.mark.parametrize(
    ("language", "name", "line", "found"),
    [
        ("c", "src/a.c", '#include "b.h"\n#include <stdio.h>', ["src/b.h", "src/a.h"]),
        ("c", "src/a.c", '#include "api.h"', ["include/api.h", "src/a.h"]),
        ("rust", "src/main.rs", "mod net;\nuse crate::net::io::Reader;", ["src/net/mod.rs", "src/net/io.rs"]),
        ("rust", "src/net/io.rs", "use super::Client;", []),
    ],
)
async def test_other_languages(tmp_path: Path, language: str, name: str, line: str, found: list[str]) -> None:
    lay(tmp_path, {"src/a.h": "", "src/b.h": "", "include/api.h": "", "src/net/mod.rs": "", "src/net/io.rs": ""})
    assert await names(Files([str(tmp_path)]), tmp_path / name, line, language) == found


async def test_nothing_is_read_outside_the_folders(tmp_path: Path) -> None:
    lay(tmp_path, {"inside/main.py": "", "outside/secret.py": "x = 1"})
    inside, document = tmp_path / "inside", tmp_path / "inside" / "main.py"
    (inside / "link.py").symlink_to(tmp_path / "outside" / "secret.py")
    (inside / "package").symlink_to(tmp_path / "outside")
    (inside / "loop.py").symlink_to("loop.py")
    files = Files([str(inside)])
    text = "import link\nimport package.secret\nimport loop\nfrom ..outside import secret\n"
    assert await names(files, document, text) == []
    assert await names(files, tmp_path / "outside" / "other.py", "import secret\n") == []
    assert await names(Files(), document, "import main\n") == []


async def test_of_a_workspace_that_is_not_trusted_only_the_ignore_rules_are_read(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": "x = 1"})
    (tmp_path / ".caesuraignore").write_text("b.py\n")
    files = Files([str(tmp_path)], trusted=False)
    assert await names(files, tmp_path / "main.py", "import a\n") == []
    assert files.hides((tmp_path / "b.py").as_uri())


def test_of_a_workspace_that_is_not_trusted_no_setting_reveals_what_is_hidden(tmp_path: Path) -> None:
    """An editor may have it from the workspace."""
    uri = (tmp_path / ".env").as_uri()
    assert Files([str(tmp_path)], ["!.env*"], trusted=False).hides(uri)
    assert not Files([str(tmp_path)], ["!.env*"]).hides(uri)


@pytest.mark.parametrize("rules", [b"#" * 70_000, b"caf\xe9.py\n"])
def test_rules_that_cannot_be_read_hide_all_files_of_their_folder(tmp_path: Path, rules: bytes) -> None:
    (tmp_path / ".caesuraignore").write_bytes(rules)
    files = Files([str(tmp_path)])
    assert files.hides((tmp_path / "main.py").as_uri())
    assert not files.hides("file:///elsewhere/main.py")
    [problem] = files.problems
    assert problem.startswith(f"{tmp_path / '.caesuraignore'} hides all files")


async def test_a_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    lay(tmp_path, {"real/tools.py": "x = 1", "real/hidden.py": "x = 2"})
    (tmp_path / "real" / ".caesuraignore").write_text("hidden.py\n")
    (tmp_path / "real" / "seen.py").symlink_to("hidden.py")
    (tmp_path / "link").symlink_to("real")
    files = Files([str(tmp_path / "link")])
    assert await names(files, tmp_path / "link" / "main.py", "import tools, hidden, seen\n") == ["tools.py"]


@pytest.mark.parametrize(
    "uri",
    [
        "{folder}/private/a.py",
        "{folder}/open/a.py",
        "{folder}/notes.txt",
        "{folder}/x/../private/a.py",
        "{folder}/open/../private/a.py",
        "{folder}/%70rivate/a.py",
        "/{folder}/private/a.py",
        "///{folder}//private/a.py",
        "{folder}/seen/../../secret/a.py",
    ],
)
@pytest.mark.parametrize("scheme", ["file://", "vscode-notebook-cell://", "git:"])
def test_a_file_is_hidden_by_each_of_its_paths(tmp_path: Path, scheme: str, uri: str) -> None:
    lay(tmp_path, {"private/a.py": "", "secret/a.py": "", "x/b.py": "", ".env": ""})
    for name, target in {"open": "private", "notes.txt": ".env", "seen": "x/c"}.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "x" / "c").mkdir()
    (tmp_path / ".caesuraignore").write_text("private/\nsecret/\n")
    files = Files([str(tmp_path)])
    assert files.hides(scheme + uri.format(folder=tmp_path))
    assert not files.hides(f"{scheme}{tmp_path}/x/b.py")
    assert not files.hides(f"{scheme}{tmp_path}/x/\0.py")


async def test_what_is_ignored_is_not_read(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": "", "b.py": "", "private/c.py": "", "d.py": ""})
    (tmp_path / ".caesuraignore").write_text("private/\nb.py\n")
    files = Files([str(tmp_path)], ["d.py", "!"])
    assert await names(files, tmp_path / "main.py", "import a, b, private.c, d\n") == ["a.py"]
    assert len(files.problems) == 1
    assert "'!'" in files.problems[0]


async def test_what_is_long_or_no_text_or_no_file_is_not_read(tmp_path: Path) -> None:
    lay(tmp_path, {"long.py": "#" * (MAX_BYTES + 1), "good.py": "x = 1"})
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    text = "import long, binary, pipe, folder, good\n"
    assert await names(Files([str(tmp_path)]), tmp_path / "main.py", text) == ["good.py"]


def test_what_has_become_no_file_since_it_was_found_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    for path in (tmp_path / "pipe.py", Path("/dev/null")):
        assert TextFiles(1, MAX_BYTES).read(path) is None


async def test_a_document_with_many_imports_reads_a_few(tmp_path: Path) -> None:
    lay(tmp_path, {f"m{i}.py": "x = 1" for i in range(3 * MOST)})
    text = "".join(f"import m{i}\n" for i in range(3 * MOST))
    assert len(await names(Files([str(tmp_path)]), tmp_path / "main.py", text)) == MOST


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": "x = 1"})
    files, uri = Files([str(tmp_path)]), (tmp_path / "main.py").as_uri()
    (before,) = await files.imported(uri, "import a", "python")
    (again,) = await files.imported(uri, "import a", "python")
    assert again.text is before.text
    lay(tmp_path, {"a.py": "x = 12"})
    (after,) = await files.imported(uri, "import a", "python")
    assert after.text == "x = 12"


@pytest.mark.parametrize(
    ("uri", "hidden"),
    [
        ("/.env", True),
        ("/sub/deploy.pem", True),
        ("/main.py", False),
        ("/notes/plan.md", True),
        ("/notes/keep.md", False),
    ],
)
def test_hidden_documents(tmp_path: Path, uri: str, hidden: bool) -> None:
    (tmp_path / ".caesuraignore").write_text("notes/*\n!notes/keep.md\n!.env\n")
    assert Files([str(tmp_path)]).hides(tmp_path.as_uri() + uri) is hidden


def test_a_document_without_a_file_can_be_hidden_too() -> None:
    files = Files()
    assert files.hides("git:/home/me/project/.env?ref=HEAD")
    assert files.hides("file:///home/me/.aws/credentials")
    assert not files.hides("untitled:Untitled-1")
