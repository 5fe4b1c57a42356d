"""What a schema lets stand in a hole: everything that is generated is valid, and said to be so only if it is."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.automata.dfa import Dfa
from caesura.engine.grammar.automaton import Automaton
from caesura.engine.grammar.expressions import Byte, Chain, Choice, Expression, Regular, Repeat, Rule, RuleSet, Shared
from caesura.engine.grammar.schema import language
from caesura.schema.dialects import SchemaError
from caesura.schema.reader import read_schema

DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


def made(document: object, **spec: Any) -> RuleSet:
    return language(wire.Json(schema=0, **spec), read_schema(json.dumps(document)))


def takes(grammar: RuleSet, *texts: str) -> list[bool]:
    automaton = Automaton(grammar)
    return [any(map(automaton.ends, automaton.read([automaton.start], text.encode()))) for text in texts]


def check(document: object, fitting: list[str], refused: list[str], **spec: Any) -> RuleSet:
    grammar = made(document, **spec)
    assert [text for text, ok in zip(fitting, takes(grammar, *fitting), strict=True) if not ok] == []
    assert [text for text, ok in zip(refused, takes(grammar, *refused), strict=True) if ok] == []
    return grammar


# Keyword by keyword: texts that are taken, texts that are refused

OPEN = {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
TREE = {"type": "object", "properties": {"in": {"$ref": "#"}, "n": {"type": "integer"}}, "additionalProperties": False}
ANIMALS = {
    "oneOf": [
        {"properties": {"is": {"const": "dog"}, "barks": {"type": "boolean"}}, "required": ["is", "barks"]},
        {"properties": {"is": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["is", "lives"]},
    ],
    "type": "object",
}

EXACT: dict[str, tuple[object, list[str], list[str]]] = {
    "true": (True, ["1", "[{}]", '{"a": [null]}'], ["", "tru", "[1,2]"]),
    "false": (False, [], ["1", "null", "{}"]),
    "type": ({"type": ["integer", "null"]}, ["1", "-20", "null"], ["1.5", '"1"', "true", "01"]),
    "number": ({"type": "number"}, ["1.5", "1e9", "0"], ['"1"', "1."]),
    "enum": (
        {"enum": ["é", 1, None, {"b": 1, "a": [2]}]},
        ['"é"', "1", "null", '{"b": 1, "a": [2]}'],
        ["2", '"e"', "{}"],
    ),
    "enum with others": ({"enum": ["a", "bb", 3], "type": "string", "minLength": 2}, ['"bb"'], ['"a"', "3"]),
    "enum of objects": ({"enum": [{"a": 1}, {"b": 1}], "required": ["b"]}, ['{"b": 1}'], ['{"a": 1}']),
    "const": ({"const": [1, "x"]}, ['[1, "x"]'], ["[1]", '[1, "y"]']),
    "minimum": ({"type": "integer", "minimum": 3, "exclusiveMaximum": 12}, ["3", "11"], ["2", "12", "-5"]),
    "open bounds": ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "0.51", "-1"]),
    "draft 4 bounds": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "integer",
            "minimum": 3,
            "exclusiveMinimum": True,
        },
        ["4"],
        ["3"],
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, ["0", "-3", "12"], ["1", "10"]),
    "multipleOf a fraction": ({"type": "number", "multipleOf": 0.25}, ["0.25", "1", "-2.50"], ["0.3", "0.255"]),
    "length": ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"éé"', '"\\n\\n"'], ['"a"', '"abcd"']),
    "long": ({"type": "string", "maxLength": 9999}, [f'"{"a" * 100}"'], ["1"]),
    "pattern": ({"type": "string", "pattern": "^a+$"}, ['"a"', '"aaa"'], ['""', '"b"']),
    "pattern and length": ({"type": "string", "pattern": "^a+$", "maxLength": 2}, ['"aa"'], ['"aaa"']),
    "format": ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"x"']),
    "a format not known": ({"type": "string", "format": "colour"}, ['"red"'], ["1"]),
    "keywords of one kind": ({"minLength": 2, "minimum": 5}, ['"ab"', "5", "null", "[]"], ['"a"', "4"]),
    "properties": (
        OPEN,
        ["{}", '{"a": null}', '{"a": null, "b": null, "c": 1}'],
        ['{"a": 1}', '{"b": null, "a": null}'],
    ),
    "required": ({**OPEN, "type": "object", "required": ["b", "z"]}, ['{"b": null, "z": 1}'], ['{"b": null}', "{}"]),
    "closed": ({**OPEN, "type": "object", "additionalProperties": False}, ["{}", '{"b": null}'], ['{"c": 1}', "[]"]),
    "additionalProperties": (
        {**OPEN, "type": "object", "additionalProperties": {"type": "integer"}},
        ['{"a": null, "c": 1}'],
        ['{"c": null}', '{"a": 1}'],
    ),
    "patternProperties": (
        {
            "type": "object",
            "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 3}},
            "additionalProperties": False,
        },
        ['{"x": 1}', '{"xy": 3, "y": 4.5}'],
        ['{"x": null}', '{"xy": 1}', '{"z": 1}'],
    ),
    "a property that matches a pattern": (
        {"type": "object", "properties": {"xa": {"minimum": 2}}, "patternProperties": {"^x": {"type": "integer"}}},
        ['{"xa": 2}'],
        ['{"xa": 2.5}', '{"xa": 1}'],
    ),
    "propertyNames": (
        {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "properties": {"a": True, "d": True}},
        ['{"a": 1, "b": 2}'],
        ['{"d": 1}', '{"ab": 1}'],
    ),
    "minProperties": (
        {**OPEN, "type": "object", "minProperties": 2},
        ['{"a": null, "b": null}', '{"b": null, "c": 1}'],
        ['{"a": null}'],
    ),
    "maxProperties": (
        {**OPEN, "type": "object", "maxProperties": 1},
        ["{}", '{"b": null}'],
        ['{"a": null, "b": null}'],
    ),
    "dependentRequired": (
        {**OPEN, "type": "object", "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b": null}', '{"a": null, "b": null}'],
        ['{"a": null}'],
    ),
    "dependentSchemas": (
        {**OPEN, "type": "object", "dependentSchemas": {"a": {"maxProperties": 1}}},
        ['{"a": null}', '{"b": null, "c": 1}'],
        ['{"a": null, "b": null}'],
    ),
    "dependencies": (
        {**DRAFT_7, **OPEN, "type": "object", "dependencies": {"a": ["b"]}},
        ['{"a": null, "b": null}'],
        ['{"a": null}'],
    ),
    "items": ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1]", "[1, 2]"], ['["a"]', "[1, null]", "[1,]"]),
    "minItems": (
        {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3},
        ["[1, 1]", "[1, 1, 1]"],
        ["[1]", "[1, 1, 1, 1]"],
    ),
    "prefixItems": (
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}},
        ["[]", "[1]", "[1, 2, 3, 3]"],
        ["[2]", "[1, 2, 2]"],
    ),
    "a tuple of draft 7": (
        {**DRAFT_7, "type": "array", "items": [{"const": 1}], "additionalItems": False},
        ["[]", "[1]"],
        ["[2]", "[1, 1]"],
    ),
    "contains": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxContains": 1},
        ["[5]", "[1, 7, 2]"],
        ["[]", "[1, 2]", "[5, 6]"],
    ),
    "uniqueItems of one": ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1, 1]"]),
    "$ref": ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}, ["3"], ["4", "1.5"]),
    "recursion": (TREE, ["{}", '{"in": {"in": {"n": 1}}, "n": 2}'], ['{"in": 1}', '{"in": {"x": 1}}']),
    "allOf": (
        {"allOf": [{"type": ["string", "integer"]}, {"minimum": 3}], "type": ["integer", "null"]},
        ["3"],
        ["2", '"a"', "null"],
    ),
    "properties of allOf": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}],
            "properties": {"a": {"maximum": 3}},
        },
        ['{"a": 3}'],
        ["{}", '{"a": 4}', '{"a": "x"}'],
    ),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3}]}, ["null", "3"], ["2", '"a"']),
    "oneOf": (
        {"oneOf": [{"multipleOf": 1, "maximum": 5}, {"const": 3}, {"type": "null"}], "type": ["integer", "null"]},
        ["5"],
        ["3"],
    ),
    "oneOf of objects": (
        ANIMALS,
        ['{"is": "dog", "barks": true}', '{"is": "cat", "lives": 9}'],
        ['{"is": "dog", "lives": 9}', '{"is": "cat", "barks": true}'],
    ),
    "oneOf of objects inside themselves": (
        {
            "type": "object",
            "required": ["is"],
            "properties": {"is": {"enum": [1, 2]}},
            "oneOf": [
                {"properties": {"is": {"const": 1}, "in": {"$ref": "#"}}, "required": ["in"]},
                {"properties": {"is": {"const": 2}, "in": False}},
            ],
        },
        ['{"is": 2}', '{"is": 1, "in": {"is": 2}}'],
        ['{"is": 1}', '{"is": 2, "in": {"is": 2}}', '{"is": 1, "in": 2}'],
    ),
    "oneOf of keys": (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], **OPEN},
        ['{"a": null}', '{"b": null}'],
        ["{}", '{"a": null, "b": null}'],
    ),
    "not": ({"not": {"type": ["string", "integer"]}}, ["null", "1.5", "[]"], ['"a"', "1", "2.0"]),
    "not enum": ({"not": {"enum": ["a", 1, True]}}, ['"b"', "2", "1.5", "false"], ['"a"', "1", "1.0", "true"]),
    "not pattern": ({"type": "string", "not": {"pattern": "^a"}}, ['"ba"', '""'], ['"ab"']),
    "not required": ({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    "not properties": (
        {"type": "object", "not": {"properties": {"a": {"type": "integer"}}}},
        ['{"a": "x"}'],
        ["{}", '{"a": 1}', '{"b": 1}'],
    ),
    "not allOf": ({"type": "integer", "not": {"allOf": [{"minimum": 3}, {"maximum": 5}]}}, ["2", "6"], ["3", "5"]),
    "if": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["n"]},
            "else": {"properties": {"n": False}},
        },
        ['{"kind": "a", "n": 1}', '{"kind": "b"}'],
        ['{"kind": "a"}', '{"kind": "b", "n": 1}'],
    ),
    "unevaluatedProperties": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": True}}],
            "properties": {"b": True},
            "unevaluatedProperties": False,
        },
        ['{"b": 1, "a": 1}'],
        ['{"c": 1}'],
    ),
    "unevaluatedItems": (
        {"type": "array", "allOf": [{"prefixItems": [True]}], "unevaluatedItems": {"type": "null"}},
        ["[1]", "[1, null]"],
        ["[1, 1]"],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_keyword_is_held(name: str) -> None:
    grammar = check(*EXACT[name])
    assert grammar.exact


INEXACT: dict[str, tuple[object, list[str], list[str]]] = {
    "uniqueItems": (
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        ["[1, 2]", "[1, 1]"],
        ['["a"]'],
    ),
    "multipleOf much": ({"type": "number", "multipleOf": 1234.567, "maximum": 1}, ["0.5"], ["2"]),
    "not items": ({"type": "array", "not": {"items": {"type": "integer"}}}, ['["a"]', "[1]"], ["1"]),
    "$dynamicRef": (
        {
            "$dynamicAnchor": "a",
            "type": "array",
            "items": {"$ref": "b"},
            "$defs": {"b": {"$id": "b", "$dynamicAnchor": "a", "prefixItems": [{"$dynamicRef": "#a"}]}},
        },
        ["[]", "[[1]]"],
        ["1"],
    ),
}


@pytest.mark.parametrize("name", INEXACT)
def test_a_keyword_that_cannot_be_held_is_left_to_a_validator(name: str) -> None:
    grammar = check(*INEXACT[name])
    assert not grammar.exact


@pytest.mark.parametrize(
    "document",
    [
        False,
        {"type": "string", "enum": [1]},
        {"type": "integer", "minimum": 4, "maximum": 3},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}},
        {"type": "object", "required": ["a", "b"], "maxProperties": 1},
        {"type": "array", "minItems": 1, "items": False},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": ["a"], "propertyNames": {"maxLength": 0}},
        {"allOf": [{"type": "string"}, {"type": "null"}]},
        {"not": {}},
    ],
)
def test_a_schema_that_contradicts_itself_has_no_text(document: object) -> None:
    automaton = Automaton(made(document))
    assert automaton.shortest(automaton.start) is None


# Parts of containers


def test_new_members_are_those_that_the_object_lacks() -> None:
    document = {"properties": {"a": {"type": "null"}, "b": {"const": 1}, "c": {"const": 2}}, "required": ["a", "c"]}
    grammar = check(
        document,
        ['"c": 2', '"b": 1, "c": 2', '"c": 2, "d": []'],
        ['"b": 1', '"a": null, "c": 2', '"c": 2, "x": 1', ""],
        start="members",
        taken=("a", "x"),
    )
    assert grammar.exact


def test_members_that_are_there_count() -> None:
    document = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "maxProperties": 3}
    check(document, ['"a": 1', '"b": 2'], ['"a": 1, "b": 2'], start="members", taken=("x", "y"))
    check(document, ['"a": 1'], ['"a": 1, "b": 2'], start="members", most=1)


def test_members_are_not_sure_where_it_depends_on_the_others_which_they_may_be() -> None:
    assert not check(ANIMALS, ['"barks": true', '"lives": 1'], ['"barks": 1'], start="members", taken=("is",)).exact


def test_a_key_is_one_that_the_object_may_have() -> None:
    document = {
        "properties": {"a": True, "b": True, "no": False},
        "patternProperties": {"^x": True},
        "additionalProperties": False,
    }
    check(document, ['"b"', '"xy"'], ['"a"', '"no"', '"c"', '"x"', '""'], start="key", taken=("a", "x"))


def test_elements_are_those_behind_the_first() -> None:
    document = {"items": {"type": "integer"}, "type": "array"}
    assert check(document, ["1", "1, 2"], ["", "1, 2, 3", '"a"'], start="elements", most=2).exact
    assert not check({**document, "maxItems": 3}, ["1"], ['"a"'], start="elements").exact


def test_a_subschema_is_named_by_its_pointer() -> None:
    check({"$defs": {"a/b": {"type": "null"}}}, ["null"], ["1"], at="/$defs/a~1b")


def test_a_pointer_to_something_else_is_refused() -> None:
    with pytest.raises(SchemaError, match="no subschema"):
        made({"properties": {"type": {"type": "null"}}}, at="/properties")


def test_containers_are_laid_out_as_the_file_is() -> None:
    document = {"type": "object", "properties": {"a": {"items": {"type": "integer"}}, "b": {"const": {"c": [1]}}}}
    spread = '{\n    "a": [\n      1,\n      2\n    ],\n    "b": {"c": [1]}\n  }'
    taken = ['{"a": [1, 2]}', spread, '{\n    "b": {\n      "c": [\n        1\n      ]\n    }\n  }']
    check(document, taken, [spread.replace("\n  }", "\n}"), '{"a":[1]}'], indent="  ", level=1)
    check(document, ['{ "a" :[1 ,2]\n}'], ['{"a": ["x"]}'], loose=True)


# Whatever the schema is

NAMES = st.sampled_from(["a", "b", "ab", "é"])
SCALARS = st.sampled_from([None, True, False, 0, 1, -3, 2.5, 1.0, "", "a", "ab", "é", "10"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=3
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SMALL = st.integers(0, 3)
BOUNDS = st.sampled_from([-2, 0, 1, 2.5, 10])
PATTERNS = st.sampled_from(["a", "^a", "b$", "^[ab]{1,2}$", "^$"])
FLAT: dict[str, st.SearchStrategy[Any]] = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=4),
    "const": VALUES,
    "minimum": BOUNDS,
    "exclusiveMinimum": BOUNDS,
    "maximum": BOUNDS,
    "exclusiveMaximum": BOUNDS,
    "multipleOf": st.sampled_from([1, 2, 0.5, 0.1]),
    "minLength": SMALL,
    "maxLength": SMALL,
    "pattern": PATTERNS,
    "required": st.lists(NAMES, max_size=2, unique=True),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=1),
    "minProperties": SMALL,
    "maxProperties": SMALL,
    "minItems": SMALL,
    "maxItems": SMALL,
    "uniqueItems": st.booleans(),
}


def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    nested = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        **dict.fromkeys(("not", "items", "contains", "additionalProperties", "if", "then", "else"), inner),
        **dict.fromkeys(("propertyNames", "unevaluatedProperties", "unevaluatedItems"), inner),
        "$ref": st.sampled_from(["#/$defs/a", "#"]),
    }
    keywords = {**FLAT, **nested}
    chosen = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return chosen.flatmap(lambda words: st.fixed_dictionaries({word: keywords[word] for word in words}))


FLAT_SCHEMAS = st.booleans() | st.lists(st.sampled_from(sorted(FLAT)), max_size=3, unique=True).flatmap(
    lambda words: st.fixed_dictionaries({word: FLAT[word] for word in words})
)
SCHEMAS = st.recursive(FLAT_SCHEMAS, deeper, max_leaves=5).filter(lambda schema: isinstance(schema, dict))


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, FLAT_SCHEMAS, st.randoms(use_true_random=False))
def test_everything_that_an_exact_grammar_generates_is_valid(
    schema: dict[str, Any], part: Any, draw: random.Random
) -> None:
    document = {**schema, "$defs": {"a": part}}
    try:
        checked = read_schema(json.dumps(document)).validator()
    except SchemaError:
        reject()  # it asks for itself without end
    grammar = made(document)
    for text in walks(grammar, draw, 5):
        if grammar.exact and not twice(text):
            assert checked.is_valid(json.loads(text)), text


def walks(grammar: RuleSet, draw: random.Random, count: int) -> Iterator[str]:
    """Some random texts of a grammar."""
    for _ in range(count):
        raw = write(grammar, grammar.start, draw, 60, [2000])
        if raw is not None:
            yield raw.decode()


def twice(text: str) -> bool:
    """A key stands twice in an object: the engine refuses that, a grammar alone does not."""
    found: list[bool] = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) < len(pairs)))
    return any(found)


def write(grammar: RuleSet, part: Expression, draw: random.Random, depth: int, fuel: list[int]) -> bytes | None:
    """A random text of an expression; None where none was found."""
    fuel[0] -= 1
    if depth < 0 or fuel[0] < 0:
        return None
    match part:
        case Byte(mask):
            return bytes([draw.choice([byte for byte in range(256) if mask >> byte & 1])])
        case Regular(dfa):
            return walk(dfa, draw)
        case Rule(name):
            body = name.body if isinstance(name, Shared) else grammar.rule(name)
            return write(grammar, body, draw, depth - 1, fuel)
        case Choice(parts):
            tried = (write(grammar, one, draw, depth, fuel) for one in draw.sample(parts, len(parts)))
            return next((raw for raw in tried if raw is not None), None)
        case Repeat(one, least, most):
            parts = (one,) * draw.randint(least, least + 2 if most is None else min(most, least + 2))
        case Chain(chained):
            parts = chained
    found = [write(grammar, one, draw, depth, fuel) for one in parts]
    return None if None in found else b"".join(raw for raw in found if raw is not None)


def walk(dfa: Dfa, draw: random.Random) -> bytes | None:
    """A random text of an automaton: for a while any way, then the shortest to an end."""
    ends = dict.fromkeys(dfa.accepting, 0)
    for _ in dfa.rows:
        for state, row in enumerate(dfa.rows):
            if state not in ends and any(target in ends for _, target in row):
                ends[state] = 1 + min(ends[target] for _, target in row if target in ends)
    state, raw, wanted = 0, bytearray(), draw.randint(0, 6)
    while ends and (state not in dfa.accepting or (len(raw) < wanted and dfa.rows[state])):
        rows = [row for row in dfa.rows[state] if len(raw) < wanted or ends[row[1]] < ends[state]]
        mask, state = draw.choice(rows)
        raw.append(draw.choice([byte for byte in range(256) if mask >> byte & 1]))
    return bytes(raw) if ends else None


# What nobody has written for a purpose: minutes, or for ever, if nothing bounds it

BRANCHES = [{"type": "object", "properties": {"x": {"$ref": "#"}, f"k{i}": {"type": "string"}}} for i in range(6)]
OVERLAPPING = {f"^.*a{i}.*b": {"type": "integer", "minimum": i} for i in range(12)}


def test_branches_that_overlap_too_often_are_refused() -> None:
    with pytest.raises(ValueError, match="too many combinations"):
        made({"oneOf": BRANCHES})


def test_what_would_be_repeated_too_often_has_no_text() -> None:
    automaton = Automaton(made({"type": "array", "minItems": 600_000}))
    assert automaton.shortest(automaton.start) is None
    automaton = Automaton(made({"type": "object", "properties": {"a": {"type": "array", "minItems": 600_000}}}))
    assert automaton.shortest(automaton.start) == b"{}"


def test_patterns_that_overlap_leave_the_keys_that_are_named() -> None:
    document = {"patternProperties": OVERLAPPING, "properties": {"n": {"type": "null"}}, "type": "object"}
    assert takes(made(document), '{"n": null}', "{}", '{"a0b": -1}') == [True, True, False]


def test_a_pattern_that_backtracks_takes_no_time() -> None:
    document = {"enum": ["a" * 40 + "!", "b"], "pattern": "^(a+)+$|b"}
    assert takes(made(document), '"b"', f'"{"a" * 40}!"') == [True, False]
