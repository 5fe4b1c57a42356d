"""What training/heldout.py cuts out of files, and what it leaves out. No network, no benchmark data."""

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
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
    assert not set(corpus.PYPI) & set(heldout.PYPI)
    assert not set(corpus.NPM) & set(heldout.NPM)


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


def test_what_a_corpus_has_and_what_leaks_is_left_out(held_out):
    held_out.take(package("one", a=function("fresh"), b=function("known"), c=function("benchmarked")))
    held_out.take(package("two", licence="", a=function("refused")))
    assert [path for _, path, _ in held_out.files] == ["a.py"]
    assert [row["dropped"] for row in held_out.rows] == [{"duplicate": 1, "leak": 1}, {"package licence": 1}]


def test_cases_make_up_the_file_and_come_from_many_packages(held_out):
    for name in ("one", "two", "three"):
        held_out.take(package(name, **{f"f{i}": function(f"{name}{i}") for i in range(5)}))
    cases = held_out.cases("python-line", 30, random.Random(1))
    assert cases == held_out.cases("python-line", 30, random.Random(1))
    texts = {(package.label, path): text for package, path, text in held_out.files}
    assert all(case.prefix + case.middle + case.suffix == texts[case.package, case.path] for case in cases)
    assert {case.package for case in cases} == {"pypi:one", "pypi:two", "pypi:three"}
    assert len(cases) == 3 * 4  # a share of a package: twelve of a hundred
