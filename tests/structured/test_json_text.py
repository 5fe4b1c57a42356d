"""JSON read with positions agrees with json.loads about what is JSON, and says where things stand and how they look."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura.server.structured.json.layout import style
from caesura.server.text.json import JsonTree, NotJson, line_column, read, scan

GOOD = [
    *("0", "-0", "1e5", "-1.5E-3", "1E+2", "true", "false", "null", '""', " [] ", "{}\n", "[[[]]]", '"\\u00e9\\/"'),
    *('{"a":{"b":[1,2,{"c":null}]}}', '["\\ud800"]', '["\x7f\u2028\U0001f40d"]', '{"a":1,"a":2}', "\t[\r\n1 ,2\n]"),
    *('{"":0}', "[1.0e-10]", "[123456789012345678901234567890]", '"\\"\\\\\\b\\f\\n\\r\\t"', '{"a" : 1 , "b":[ ] }'),
]
BAD = [
    *(
        "",
        " ",
        "[",
        "]",
        "{",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1,,2]",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        "{,}",
        '{"a":1 "b":2}',
    ),
    *("01", "+1", ".5", "1.", "1e", "-", "0x1", "1_0", "NaN", "Infinity", "-Infinity", "tru", "True", "nulll", "1 2"),
    *(
        '"',
        '"\t"',
        '"\n"',
        '"\\x"',
        '"\\u12g4"',
        '"\\u12"',
        "'a'",
        "{a:1}",
        "{1:1}",
        '["a":1]',
        "[1}",
        '{"a":1]',
        "[]]",
    ),
    *("// x\n1", "/* x */1", "1//", "[1]x", "\ufeff1", "\xa01", "[1\x0b]", '{"a"::1}', '{"a":1:2}', "[\u0661]", "١"),
]


def loaded(text: str) -> Any:
    """What json.loads makes of it, without the constants that JSON does not have."""

    def refuse(word: str) -> None:
        raise json.JSONDecodeError("no constant of JSON", word, 0)

    return json.loads(text, parse_constant=refuse)


def known(text: str) -> bool:
    try:
        read(text, relaxed=False)
    except NotJson:
        return False
    return True


@pytest.mark.parametrize("text", GOOD)
def test_what_is_json_is_read(text: str) -> None:
    assert read(text, relaxed=False).value() == loaded(text)
    assert read(text, relaxed=True).value() == loaded(text)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        loaded(text)
    with pytest.raises(NotJson) as caught:
        read(text, relaxed=False)
    assert 0 <= caught.value.offset <= len(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(values, st.sampled_from([None, 0, 1, 2, "\t"]), st.booleans())
def test_every_value_is_where_it_stands(value: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    document = read(text, relaxed=False)
    for one in range(len(document.kinds)):
        inner = value
        for step in document.path(one):
            inner = inner[step]
        assert loaded(document.source(one)) == inner == document.value(one)
        assert [document.parents[child] for child in document.children(one)] == [one] * len(
            list(document.children(one))
        )


@settings(deadline=None, max_examples=250)
@given(values, st.data())
def test_a_damaged_document_is_json_for_us_where_it_is_for_json_loads(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 3))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", *'{}[],:"\\/-+.eE01 \n\tntu', '"a"', "//", "é"]))
            + text[at + cut :]
        )
    try:
        loaded(text)
    except ValueError:
        assert not known(text)
    else:
        assert known(text)


def test_comments_and_trailing_commas_are_read_where_the_file_may_have_them() -> None:
    text = '// one\n{ /* two */ "a": [1, 2,], // "three"\n  "b": "// no",\n}\n/* four */'
    document = read(text, relaxed=True)
    assert document.value() == {"a": [1, 2], "b": "// no"}
    assert [text[slice(*span)] for span in document.comments] == ["// one", "/* two */", '// "three"', "/* four */"]
    assert not known(text)


@pytest.mark.parametrize(
    ("text", "opened", "pending", "wants"),
    [
        ("", [], None, "value"),
        ("{}", [], None, ""),
        ('[1, {"a": [2], ', [0, 2], None, "key"),
        ('{"a"', [0], (1, 4), ""),
        ('{"a": ', [0], (1, 4), "value"),
        ("[1", [0], None, ""),
        ("[[1,", [0, 1], None, "value"),
    ],
)
def test_an_unfinished_text_says_what_is_open_and_what_comes_next(
    text: str, opened: list[int], pending: tuple[int, int] | None, wants: str
) -> None:
    tree = scan(text, relaxed=False)
    assert (tree.open, tree.pending, tree.wants, tree.fault) == (opened, pending, wants, None)


def test_a_broken_text_is_read_up_to_its_fault() -> None:
    tree = scan('{"a": [1, 2 3], "b": 4}', relaxed=False)
    assert tree.fault is not None
    assert (tree.fault.offset, tree.path(3), tree.source(3)) == (12, ("a", 1), "2")


@pytest.mark.parametrize("text", ["[1,,]", "[,]", "{,}", "/* open", "/ one", "[1 /* x]", "{'a': 1}", "// only"])
def test_relaxed_is_not_careless(text: str) -> None:
    with pytest.raises(NotJson):
        read(text, relaxed=True)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('{\n  "a": ,\n}', "2:8", "value is missing"),
        ('{"a": 1 "b": 2}', "1:9", "comma"),
        ('{"a": 1,\n}', "2:1", "comma too many"),
        ('{"a": "x\n}', "1:7", "not closed"),
        ('{"a": 1', "1:8", "bracket of 1:1"),
        ("[1] 2", "1:5", "after the end"),
        ('{"é": 1, // no\n"b": 2}', "1:10", "no comments"),
        ("{\r\n1: 2}", "2:1", "key in double quotes"),
    ],
)
def test_a_broken_document_is_named_by_its_place(text: str, where: str, what: str) -> None:
    with pytest.raises(NotJson, match=what) as caught:
        read(text, relaxed=False)
    assert line_column(text, caught.value.offset) == where


def test_a_deep_or_a_long_document_is_read_without_recursion() -> None:
    deep = read("[" * 20_000 + "]" * 20_000, relaxed=False)
    assert deep.depth == 20_000
    long = read(json.dumps([{"id": i, "tags": ["a", "b"]} for i in range(20_000)]), relaxed=False)
    assert len(list(long.children(0))) == 20_000
    assert long.path(len(long.kinds) - 1) == (19_999, "tags", 1)


def test_a_key_that_stands_twice_is_found() -> None:
    text = '{"a": {"a": 1}, "\\u0061": 2}'
    document = read(text, relaxed=False)
    span = document.repeated(0)
    assert span is not None
    assert text[slice(*span)] == '"\\u0061"'
    assert document.repeated(1) is None


def at(document: JsonTree, key: str) -> int:
    return next(one for one in range(len(document.kinds)) if document.key(one) == key)


@pytest.mark.parametrize(
    ("text", "key", "indent", "level", "item"),
    [
        ('{\n  "a": {\n    "b": 1\n  }\n}', "a", "  ", 1, "    "),
        ('{\n\t"a": {\n\t\t"b": 1\n\t}\n}', "a", "\t", 1, "\t\t"),
        ('{\n    "a": {"b": 1}\n}', "a", None, 0, None),
        ('{\n  "a": {},\n  "b": {\n    "c": 1\n  }\n}', "a", "  ", 1, "    "),
        ('{\n  "a": []\n}', "a", None, 0, None),
        ('{\n "x": {\n   "a": {\n     "b": 1\n   }\n }\n}', "a", None, 0, "     "),
        ('{"a": {}}', "a", None, 0, None),
    ],
)
def test_what_is_written_into_a_container_is_laid_out_as_it_is(
    text: str, key: str, indent: str | None, level: int, item: str | None
) -> None:
    document = read(text, relaxed=False)
    found = style(document, at(document, key))
    assert (found.indent, found.level, found.item) == (indent, level, item)


@pytest.mark.parametrize(
    ("text", "colon", "comma", "newline", "pad"),
    [
        ('{"a":1,"b":[1,2]}', ":", ",", "\n", ""),
        ('{ "a" : 1, "b" : 2 }', " : ", ", ", "\n", " "),
        ('{\r\n  "a": [1,2,3]\r\n}', ": ", ",", "\r\n", ""),
        ("[]", ": ", ", ", "\n", ""),
    ],
)
def test_colons_commas_and_line_ends_are_those_of_the_document(
    text: str, colon: str, comma: str, newline: str, pad: str
) -> None:
    found = style(read(text, relaxed=False), 0)
    assert (found.colon, found.comma, found.newline, found.pad) == (colon, comma, newline, pad)
