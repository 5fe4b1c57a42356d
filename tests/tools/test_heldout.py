"""What training/heldout.py cuts out of files, and what it leaves out. No network, no benchmark data."""

import gzip
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))
import corpus
import gap_places
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
    assert [text[a:b] for a, b in gap_places.python_lines(text)] == ["return größe + größe"]
    assert "größe.länge" in {text[a:b] for a, b in gap_places.python_spans(text)}


def test_a_corpus_never_names_a_package_that_is_held_out():
    held_out = {one.label for one in heldout.releases()}
    assert held_out.isdisjoint({f"pypi:{name}" for name in corpus.PYPI} | {f"npm:{name}" for name in corpus.NPM})


def test_every_package_has_a_release_before_2025():
    """In the words of pip and of npm, whose scoped names begin with the sign that a version follows."""
    asked = {one.asked(one.before): one.name for one in heldout.releases()}
    assert {"mcp==1.1.2", "@eslint/json@0.8.0"} < asked.keys()
    assert all(packages.bare(release) == name for release, name in asked.items())
    assert all(one.before[:1].isdigit() for one in heldout.releases())


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


# ---- the fresh set

METHOD = '''class Log:
    def add(self, grün):
        """Of it."""
        for x in grün:
            y = self.g(x) + 1
            self.log(y)
            self.log(z)  # noted
        if grün:
            """Or text of a block."""
            del x
            return 1
        s = """
        text of a string
        """
        return s
'''
COMPONENT = """\
const limit: number = 3;
export const View = ({ grün }: Props) => {
  if (grün > limit) {
    const s = `
      text`;
    log(s.length - 1);
  }
  return <p>{grün}</p>
};
"""
FUNCTION = """\
func add(grün []int) (int, error) {
\tfor _, x := range grün {
\t\ty, err := g(x+1, 0)
\t\tif err != nil {
\t\t\treturn 0, err
\t\t}
\t\ttotal += y // noted
\t}
\treturn total + y, nil
}
"""


@pytest.mark.parametrize(
    ("path", "text", "lines", "blocks", "expressions"),
    [
        (
            "a.py",
            METHOD,
            [
                "for x in grün:",
                "y = self.g(x) + 1",
                "self.log(y)",
                "if grün:",
                "del x",
                "return 1",
                's = """',
                "return s",
            ],
            ["del x\n            return 1"],
            ["self.g", "self.g(x)"],
        ),
        (
            "a.tsx",
            COMPONENT,
            ["if (grün > limit) {", "const s = `", "log(s.length - 1);", "return <p>{grün}</p>"],
            [COMPONENT[COMPONENT.index("if") : -4], "const s = `\n      text`;\n    log(s.length - 1);"],
            ["grün > limit", "s.length", "s.length - 1"],
        ),
        (
            "a.go",
            FUNCTION,
            [
                "for _, x := range grün {",
                "y, err := g(x+1, 0)",
                "if err != nil {",
                "return 0, err",
                "return total + y, nil",
            ],
            [],
            ["total + y"],
        ),
    ],
)
def test_where_a_cursor_may_stand_in_code(path, text, lines, blocks, expressions):
    code = gap_places.Code(text, path)
    for kind, wanted in {"line": lines, "block": blocks, "span": expressions}.items():
        assert [text[start:end] for start, end in code.spans(kind)] == wanted, kind


def test_fresh_cases_come_of_new_lines_and_of_many_packages(held_out):
    some = [heldout.Release("pypi", f"p{n}", "1", "0" if n % 2 else "", "small") for n in range(12)]
    for one in some:
        old = function(f"{one.name}old")
        changed = old.replace("    return", "    log(old_8)\n    return")
        before = package(one.name, a=old) if one.before else package(one.name)
        newest = package(one.name, a=changed, b=function(f"{one.name}new"), test_c=function("tested"))
        heldout.only_code(newest, before)
        held_out.take(newest, before)
    cases = list(heldout.fresh_cases(held_out, some, random.Random(1)))
    lines = [case for case in cases if case.kind == "line"]
    assert {case.package for case in lines} == {one.label for one in some}
    assert max(Counter(case.package for case in lines).values()) == heldout.FRESH["line"][1]
    aged = {one.label for one in some if one.before}
    assert not [case for case in lines if "old" in case.middle and case.package in aged]
    assert "test_c.py" not in {case.path for case in cases}
    assert len({case.id for case in cases}) == len(cases)
    halves = {half: {case.package for case in cases if case.half == half} for half in ("tune", "report")}
    assert all(halves.values())
    assert halves["tune"].isdisjoint(halves["report"])


def test_languages_of_a_package_share_its_cases(held_out):
    script = "function f(a) {\n" + "".join(f"  call_{n}(argument_number_{n});\n" for n in range(20)) + "}\n"
    newest = package("one", a=function("fresh"), b=function("other"))
    newest.files += [("c.js", script.encode()), ("d.js", script.replace("call", "ask").encode())]
    held_out.take(newest, package("one"))
    cases = list(heldout.fresh_cases(held_out, [heldout.Release("pypi", "one", "1", "", "small")], random.Random(1)))
    assert sum(case.kind == "line" for case in cases) == heldout.FRESH["line"][1]


def test_a_fresh_case_has_whole_lines_around_it_and_no_copy_of_itself(held_out):
    text = "".join(f"    {word} = {word}(1)\n" for word in (f"name_{n:04}" for n in range(700)))
    text = f"def f():\n{text}    twice()\n    twice()\n"
    held_out.take(package("one", a=text), package("one"))
    release = heldout.Release("pypi", "one", "1", "", "small")
    for seed in range(9):
        for case in held_out.fresh(release, "python", "line", 8, random.Random(seed)):
            around = case.prefix + case.middle + case.suffix
            assert around in text
            assert case.middle != "twice()"
            assert text.split("\n")[case.line - 1].strip() == case.middle
            assert max(len(case.prefix), len(case.suffix)) <= heldout.SIDE + len("    ")
            assert case.prefix.startswith(("def", "    name"))
            assert case.suffix.endswith(")\n")


def test_a_release_is_asked_for_in_the_words_of_its_registry():
    row = {"package": "npm:@a/b", "version": "1.3.2", "before": "", "size": "large"}
    release = heldout.Release.of(row)
    assert release.asked(release.version) == "@a/b@1.3.2"
    assert release.asked(release.before) == packages.bare("@a/b@1.3.2") == "@a/b"
