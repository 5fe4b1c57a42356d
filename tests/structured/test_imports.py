"""The import of a name that a file uses and nothing in it brings. A case has `¦` where the cursor is."""

import re

import pytest

from caesura import wire
from caesura.server.context.context import Snapshot
from caesura.server.languages import language
from caesura.server.structured.imports import completion
from caesura.server.text.trees import SyntaxTree

from ..support.editor import written

GO = "package a\n\nimport (\n\t{}\n)\n\nfunc f() error {{\n\tfmt.Println()\n\treturn errors.New(`a`)\n}}\n"
JAVA = "package a.b;\n\nimport java.util.Map;\n¦\n\nclass C {{ Map<String, {}> m; }}\n"
JS = "var path = require('path');\n¦\nfs.read(path.join())\n"
CPP = "#include <string>\n¦\nstd::vector<std::string> v;\n"
C = "#include <stdio.h>\n¦\nint f(void) { puts(strdup(0)); own(); }\n"
ONE = """import numpy as np
from .two import Two
import real as alias
import twice; twice()
import noted  # type: ignore
from io import open
\"\"\"
import doc
\"\"\"
"""
OTHERS = [
    Snapshot("src/one.py", "python", ONE),
    Snapshot(
        "src/b.js", "javascript", "const { foo: bar } = require('foo');\nimport hooks from 'hooks'\nimport noted\n"
    ),
    Snapshot("src/b.tsx", "typescriptreact", "import { bar as b } from 'bar'\nimport type Own from 'own'\n"),
    Snapshot("src/b.go", "go", 'package a\n\nimport log "own/log"\n\nvar sort = log.New()\n'),
    Snapshot("src/Path.java", "java", "package a.b;\nclass Path {}\n"),
    Snapshot("src/b.rs", "rust", "use own::Result;\nuse own::{One, Two as Three};\n"),
]

CASES = [
    ("go", GO.format('"fmt"\n\t¦'), ['"errors"']),
    ("go", GO.format('"fmt"\n\t"errors"\n\t¦'), []),
    ("go", GO.format('¦\n\t"fmt"'), ['"errors"']),
    ("go", GO.format("¦"), ['"fmt"', '"errors"']),
    ("go", GO.format('"fmt"\n\t"err¦'), ['ors"']),
    ("go", "package a\n¦\n\nfunc f() { fmt.Println() }\n", ['import "fmt"']),
    ("go", GO.format('"fmt"\n\t"errors"\n\t¦').replace("fmt.", "log.Print(sort.By); fmt."), ['"log"', 'log "own/log"']),
    ("go", "package a\n\n¦\n" + GO.format('"fmt"').removeprefix("package a\n\n"), []),  # not above the list
    ("go", 'package a\n\nvar s = `\nimport "fmt"\n¦\n`\n\nfunc f() { os.Exit(1) }\n', []),
    ("go", 'package a\n\nvar s = []string{\n\t"fmt"\n\t¦\n}\n\nfunc f() { os.Exit(1) }\n', []),
    ("rust", "use std::io;\n#[cfg(unix)]\n¦\nuse std::cell;\n\nimpl fmt::Debug for A {}\n", []),
    ("rust", "use std::io;\n¦\n\nfn f(a: Result<Two, Three>) {}\n", ["use own::{One, Two as Three};"]),
    ("rust", "use std::io;\n¦\n\nimpl fmt::Debug for A {}\n", ["use std::fmt;"]),
    ("rust", "use std::io::*;\n¦\n\nimpl fmt::Debug for A {}\n", []),  # which may bring it
    ("rust", "use std::io;\n¦\n\nfn f(a: Option<Vec<u8>>) -> Own {}\nstruct Own;\n", []),
    ("java", JAVA.format("List<Own>"), ["import java.util.List;"]),
    ("java", JAVA.format("Path"), []),  # of another file of the package
    ("java", JAVA.format("Own"), []),  # a class of the package, or of one that is not known
    ("python", "import sys\n¦\n\nprint(os.sep, sys.path)\n", ["import os"]),
    ("python", "import sys\n¦\n\ndef f(os):\n    return os.sep\n", []),
    ("python", "import sys\n\n\ndef f():\n    ¦\n    return os.sep\n", []),  # not among the imports
    ("python", "import sys\n¦\nnp.zeros(Two(), hooks.any())\n", ["import numpy as np", "from .two import Two"]),
    ("python", "import sys\n¦\ndoc(real(twice(noted(foo(open(np.a)))))\n", ["import numpy as np"]),
    ("python", "import sys\n¦\nthis.a(antigravity.a(test.a(_thread.a)))\n", []),
    ("python", 'a = """\nimport sys\n¦\n"""\nprint(os.sep)\n', []),
    ("python", "import sys\n¦\nfrom __future__ import annotations\nprint(os.sep)\n", []),
    ("python", "def f():\n    import json\n    ¦\n    return os.sep\n", []),
    ("python", "import sys\n    ¦\nprint(os.sep)\n", []),
    ("python", "import sys\n\n¦\nprint(os.sep)\n", ["import os"]),
    ("python", "import sys\n\n\n\n\n\n\n¦\nprint(os.sep)\n", []),
    ("python", "from sys import (\n    ¦\n    path,\n)\nprint(os.sep, path)\n", []),
    ("typescript", "import {\n  ¦\n  a,\n} from 'a'\nnp.read(a)\n", []),
    ("javascript", JS, ["var fs = require('fs');"]),
    ("javascript", JS.replace("'path'", "'node:path'"), ["var fs = require('node:fs');"]),
    ("typescript", 'import path from "path"\n¦\nfs.read(path)\n', ['import fs from "fs"']),
    ("typescript", 'import path from "path"\n¦\nbar.read(b.read(new Own()))\n', ["import { bar as b } from 'bar'"]),
    ("javascript", JS.replace("fs", "foo.read(bar.a)"), ["const { foo: bar } = require('foo');"]),
    ("javascript", "import path from 'path';\n¦\nbar.read(path)\n", []),  # another form of import
    ("javascript", JS.replace("fs", "crypto"), []),  # a global
    ("javascript", f"/*\n{JS.replace('fs', '*/ fs')}", []),
    ("c", C, ["#include <string.h>"]),
    ("c", f"#ifndef A\n#define A\n{C}#endif\n", ["#include <string.h>"]),
    ("c", f'#include "own.h"\n{C}', []),  # which may declare it
    ("cpp", CPP, ["#include <vector>"]),
    ("cpp", f'#include "all.h"\n{CPP}', []),  # which may include it
    ("cpp", CPP.replace("std::vector", "own::vector"), []),
]


@pytest.mark.parametrize(("name", "case", "expected"), CASES)
def test_an_empty_line_among_imports_gets_a_known_line_for_each_name_that_nothing_brings(
    name: str, case: str, expected: list[str]
) -> None:
    before, _, after = case.partition("¦")
    tree, row = SyntaxTree(language(name)), language(name)
    tree.parse(before + after)
    offer = completion(before + after, len(before), row, tree.tree, lambda: ("src/a.py", OTHERS))
    if offer is None:
        assert expected == []
        return
    [hole] = offer.segments
    assert isinstance(hole, wire.Hole)
    assert isinstance(hole.grammar, wire.Pattern)
    assert all(re.fullmatch(hole.grammar.regex, line) for line in expected)
    assert hole.grammar.regex.count("|") == len(expected) - 1


def test_a_line_for_files_of_one_folder_is_not_offered_in_another() -> None:
    tree, text = SyntaxTree(language("python")), "import sys\n\nTwo()\n"
    tree.parse(text)
    assert completion(text, text.index("\n") + 1, language("python"), tree.tree, lambda: ("other/a.py", OTHERS)) is None


async def test_the_line_that_the_model_chooses_is_shown_however_unlikely_it_is() -> None:
    editor = written("import sys|\n\nprint(os.sep, sys.path)\n", "python", mode="balanced")
    editor.opened.tree.parse(editor.opened.document.text)
    await editor.type("\n")
    assert editor.engine.jobs[-1].min_probability == 0.0
    await editor.engine.say("import os", sure=((6, 0.001), (9, 0.1)))
    assert await editor.shown() == "import os"
