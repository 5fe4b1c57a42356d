"""What training/heldout.py cuts out of files, and what it leaves out. No network, no benchmark data."""

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
import corpus
import heldout
import packages

PYTHON = '''import os


def total(values, *, scale=1):
    """Sum of `values`."""
    result = 0
    for value in values:
        result += value * scale
        log(value)
    return round(result, 2)
'''
JAVASCRIPT = "function f(x) {\n  // a comment that is long;\n  const y = x + 1;\n  return y;\n}\n"
JSON = '{\n  "name": "box",\n  "size": 12,\n  "nested": {"a": 1, "b": [true], "c": "x,y"}\n}\n'
MARKDOWN = """\
- first item
- second item

```
- no item
- none either
```

| name | size |
|------|------|
| box | 12 |
| crate | 40 |
"""


@pytest.mark.parametrize(
    ("group", "text", "wanted"),
    [
        (
            "python-line",
            "\f\n" + PYTHON,
            ["result = 0", "result += value * scale", "log(value)", "return round(result, 2)"],
        ),
        ("python-line", PYTHON, ["result = 0", "result += value * scale", "log(value)", "return round(result, 2)"]),
        (
            "python-block",
            PYTHON,
            ["result += value * scale\n        log(value)", PYTHON[PYTHON.index("result =") : -1]],
        ),
        ("python-span", PYTHON, []),
        ("python-span", "def f(a):\n    return g(a.b, 1)[0] + 2\n", ["g(a.b, 1)", "g(a.b, 1)[0]"]),
        ("js-line", JAVASCRIPT, ["const y = x + 1;", "return y;"]),
        ("json-value", JSON, ["12", '"x,y"']),
        ("json-key", JSON, ['"size"', '"c"']),
        ("markdown-row", MARKDOWN, ["crate | 40 |"]),
        ("markdown-item", MARKDOWN, ["second item"]),
    ],
)
def test_what_is_cut_out_of_a_file(group, text, wanted):
    spans = sorted(set(heldout.GROUPS[group][2](text)))
    assert sorted(text[start:end] for start, end in spans) == sorted(wanted)


def test_offsets_are_characters_where_columns_are_bytes():
    text = "def f(größe):\n    wähle('ü'); größe = [größe.länge, 1]\n    return größe + größe\n"
    assert [text[a:b] for a, b in heldout.python_lines(text)] == ["return größe + größe"]
    assert "größe.länge" in {text[a:b] for a, b in heldout.python_spans(text)}


def test_a_corpus_never_names_a_package_that_is_held_out():
    names = {registry: {name for of, name, _ in heldout.releases() if of == registry} for registry in ("pypi", "npm")}
    assert not set(corpus.PYPI) & names["pypi"]
    assert not set(corpus.NPM) & names["npm"]


def test_every_package_has_a_release_before_2025():
    """In the words of pip and of npm, whose scoped names begin with the sign that a version follows."""
    named = set(heldout.releases())
    assert ("pypi", "mcp", "mcp==1.1.2") in named
    assert ("npm", "@eslint/json", "@eslint/json@0.8.0") in named
    assert all(name and release[len(name) :].lstrip("=@")[:1].isdigit() for _, name, release in named)


def function(word):
    """A file that shares no long line with another word's."""
    lines = (f"    {word}_{n} = compute_{word}({word}_{n - 1}, {n})" for n in range(1, 9))
    return f"def {word}({word}_0):\n" + "\n".join(lines) + f"\n    return {word}_8, {word}_0\n"


@pytest.fixture
def held_out(tmp_path):
    with gzip.open(tmp_path / "shard-000.jsonl.gz", "wt") as shard:
        shard.write(json.dumps({"text": function("known")}) + "\n")
    return heldout.HeldOut(tmp_path, corpus.Exclusions(set(), set(), set(), {"benchmarked"}))


def package(name, licence="MIT", **files):
    raw = [(f"{path}.py", text.encode()) for path, text in files.items()]
    return packages.Package("pypi", name, "1", licence, "", raw)


BEFORE = package("one")


def test_what_an_old_release_has_is_left_out(held_out):
    """A file that is old for the most part; in the others each line that stands beside the same one there."""
    old = function("old")
    changed = old.replace("    return", "    log(old_8)\n\n    return")
    grown = function("fresh") + "\n\n" + old[: old.index("    old_4")]
    held_out.take(package("one", a=changed, b=grown), package("one", "", a=old))
    assert [path for _, path, _ in held_out.files] == ["b.py"]
    assert held_out.rows[0]["dropped"] == {"old": 1}
    cut = {case.middle for n in range(9) for case in held_out.cases("python-line", 30, random.Random(n))}
    assert cut == {line.strip() for line in function("fresh").splitlines()[1:]}
    new = held_out.old.spares(changed)
    assert [line.strip() for line in changed.splitlines() if new((changed.index(line), changed.index(line) + 1))] == [
        "log(old_8)"
    ]


def test_what_a_corpus_has_and_what_leaks_is_left_out(held_out):
    held_out.take(package("one", a=function("fresh"), b=function("known"), c=function("benchmarked")), BEFORE)
    held_out.take(package("two", licence="", a=function("refused")), BEFORE)
    assert [path for _, path, _ in held_out.files] == ["a.py"]
    assert [row["dropped"] for row in held_out.rows] == [{"duplicate": 1, "leak": 1}, {"package licence": 1}]


def test_cases_make_up_the_file_and_come_from_many_packages(held_out):
    for name in ("one", "two", "three"):
        held_out.take(package(name, **{f"f{i}": function(f"{name}{i}") for i in range(5)}), BEFORE)
    cases = held_out.cases("python-line", 30, random.Random(1))
    assert cases == held_out.cases("python-line", 30, random.Random(1))
    texts = {(package.label, path): text for package, path, text in held_out.files}
    assert all(case.prefix + case.middle + case.suffix == texts[case.package, case.path] for case in cases)
    assert {case.package for case in cases} == {"pypi:one", "pypi:two", "pypi:three"}
    assert len(cases) == 3 * 4  # a share of a package: twelve of a hundred
