"""Schema documents: what is refused and how that is said, where references lead, which subschemas hold at a place."""

import json

import pytest

from caesura.schema.dialects import SchemaError
from caesura.schema.document import MAX_SUBSCHEMAS, Schema
from caesura.schema.instances import Field, child, skeleton
from caesura.schema.reader import read_schema


def schema(document: object) -> Schema:
    return read_schema(json.dumps(document))


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


# What is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"type": ', "is not JSON"),
        ('{"minimum": NaN}', "is not JSON"),
        ("[]", "neither an object nor true or false"),
        ('{"$schema": "https://example.org/mine"}', "is not known"),
        ('{"type": "text"}', "invalid at /type"),
        ('{"properties": {"a": {"minLength": -1}}}', "invalid at /properties/a/minLength"),
        ('{"properties": {"a": 3}}', "/properties/a"),
        ('{"$ref": "#/$defs/none"}', "leads nowhere"),
        ('{"$ref": "#none"}', "leads nowhere"),
        ('{"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}', "without end"),
        ('{"$ref": "https://example.org/other.json"}', "nothing is fetched"),
        ('{"$ref": "other.json"}', "nothing is fetched"),
        ('{"$ref": "#/parts/a", "parts": {"a": {"type": "text"}}}', "invalid at /parts/a/type"),
        ('{"description": "' + "a" * (1 << 20) + '"}', "larger than 1 MiB"),
        (json.dumps({"allOf": [{}] * MAX_SUBSCHEMAS}), "more than 20,000 subschemas"),
        (
            json.dumps({"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(150)} | {"150": {}}}),
            "more than 100",
        ),
        ('{"not": ' * 2000 + "{}" + "}" * 2000, "nested too deeply"),
        (
            f'{{"$schema": "{DRAFT_7}", "$defs": {{"a": {{"$id": "b", "$schema": "http://json-schema.org/schema"}}}}}}',
            "set",
        ),
    ],
)
def test_a_bad_schema_is_refused_with_one_sentence_that_says_what_to_do(text: str, said: str) -> None:
    with pytest.raises(SchemaError) as error:
        read_schema(text)
    assert said in str(error.value)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


# Dialects and references


def test_each_dialect_reads_its_own_keywords() -> None:
    tuple_7 = schema({"$schema": DRAFT_7, "items": [{"type": "null"}], "additionalItems": False})
    tuple_2020 = schema({"prefixItems": [{"type": "null"}], "items": False, "additionalItems": True})
    assert tuple_7.at("") == {"$schema": DRAFT_7, "prefixItems": ("/items/0",), "items": "/additionalItems"}
    assert tuple_2020.at("") == {"prefixItems": ("/prefixItems/0",), "items": "/items"}
    bounds = schema({"$schema": "http://json-schema.org/draft-04/schema", "minimum": 1, "exclusiveMinimum": True})
    assert isinstance(node := bounds.at(""), dict)
    assert node["exclusiveMinimum"] == 1
    needs = schema({"$schema": DRAFT_7, "dependencies": {"a": ["b"], "b": {"type": "object"}}})
    assert isinstance(node := needs.at(""), dict)
    assert (node["dependentRequired"], node["dependentSchemas"]) == ({"a": ["b"]}, {"b": "/dependencies/b"})


def test_a_reference_stands_alone_up_to_draft_7() -> None:
    parts = {"$ref": "#/definitions/a", "type": "null", "definitions": {"a": {}}}
    assert schema({"$schema": DRAFT_7, **parts}).at("") == {"$ref": "/definitions/a"}
    assert isinstance(node := schema(parts).at(""), dict)
    assert (node["$ref"], node["type"]) == ("/definitions/a", "null")


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", ""),
        ("#/$defs/a~1b", "/$defs/a~1b"),
        ("#/$defs/50%25", "/$defs/50%"),
        ("#here", "/$defs/named"),
        ("part.json", "/$defs/part"),
        ("https://example.org/dir/part.json#/items", "/$defs/part/items"),
        ("part.json#inner", "/$defs/part/items"),
        ("/dir/root.json#/$defs/named", "/$defs/named"),
    ],
)
def test_a_reference_leads_to_pointers_anchors_and_ids_of_the_document(reference: str, target: str) -> None:
    found = schema(
        {
            "$id": "https://example.org/dir/root.json",
            "not": {"items": {"$ref": reference}},
            "$defs": {
                "a/b": {},
                "50%": {},
                "named": {"$anchor": "here"},
                "part": {"$id": "part.json", "items": {"$anchor": "inner"}},
            },
        }
    )
    assert found.at("/not/items") == {"$ref": target}


def test_the_meta_schema_of_the_dialect_can_be_referred_to() -> None:
    found = schema({"$schema": DRAFT_7, "properties": {"schema": {"$ref": DRAFT_7}}})
    found, at, _ = child(found, "", ["schema", "properties", "a", "minLength"])
    assert not found.validator(at).is_valid(-1)
    assert found.validator(at).is_valid(3)


def test_a_dynamic_reference_leads_somewhere_only_where_that_is_always_the_same() -> None:
    one = schema({"$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}})
    assert one.at("/items") == {"$ref": ""}
    two = schema(
        {"$dynamicAnchor": "node", "$defs": {"a": {"$id": "a", "$dynamicAnchor": "node", "$dynamicRef": "#node"}}}
    )
    assert isinstance(node := two.at("/$defs/a"), dict)
    assert "$ref" not in node
    assert node["$dynamicRef"] == "#node"


# Places in an instance


PERSON = {
    "properties": {"name": {"type": "string"}, "friends": {"items": {"$ref": "#"}}},
    "patternProperties": {"^x-": {"type": "number"}},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("path", "valid", "invalid"),
    [
        (["name"], "a", 1),
        (["x-1"], 1, "a"),
        (["friends", 3, "name"], "a", 1),
        (["friends", 3, "friends", 0], {"name": "a"}, {"other": 1}),
        ([], {"name": "a"}, {"name": 1}),
    ],
)
def test_the_subschema_at_a_path_is_that_of_the_value_there(
    path: list[str | int], valid: object, invalid: object
) -> None:
    found, at, sure = child(schema(PERSON), "", path)
    assert sure
    assert read_schema(found.text).validator(at).is_valid(valid)
    assert not read_schema(found.text).validator(at).is_valid(invalid)


def test_a_forbidden_key_has_a_subschema_that_nothing_fits() -> None:
    found, at, _ = child(schema(PERSON), "", ["other"])
    assert found.at(at) is False


def test_several_subschemas_of_one_value_become_one_that_asks_for_all() -> None:
    whole = schema({"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"a": {"minimum": 3}}})
    found, at, sure = child(whole, "", ["a"])
    checked = read_schema(found.text).validator(at)
    assert sure
    assert [checked.is_valid(value) for value in (2, 3, 3.5)] == [False, True, False]


def test_branches_are_a_choice_and_the_answer_is_then_not_sure() -> None:
    whole = schema({"anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}]})
    found, at, sure = child(whole, "", ["a"])
    checked = read_schema(found.text).validator(at)
    assert not sure
    assert [checked.is_valid(value) for value in (1, 2, 3)] == [True, True, False]


def test_the_branch_is_the_one_that_fits_with_the_rest_of_the_instance() -> None:
    animals = schema(
        {
            "oneOf": [
                {"type": "string"},
                {"properties": {"is": {"const": "dog"}, "age": {"type": "integer"}}},
                {"properties": {"is": {"const": "egg"}, "age": {"type": "null"}}},
            ]
        }
    )
    found, at, sure = child(animals, "", ["age"], {"is": "egg", "age": 1})
    assert (found.at(at), sure) == ({"type": "null"}, True)
    found, at, sure = child(animals, "", ["age"], {"name": "x"})
    checked = read_schema(found.text).validator(at)
    assert ([checked.is_valid(value) for value in (None, 1, "x")], sure) == ([True, True, False], False)


def test_a_value_of_which_nothing_is_said_may_be_anything() -> None:
    found, at, sure = child(schema({"properties": {"a": {}}}), "", ["b", 4, "c"])
    assert sure
    assert read_schema(found.text).at(at) is True


@pytest.mark.parametrize("word", ["uniqueItems", "contains", "not", "const"])
def test_a_keyword_by_which_values_depend_on_each_other_makes_the_answer_unsure(word: str) -> None:
    value: object = {"uniqueItems": True, "contains": {}, "not": {"maxItems": 0}, "const": [1]}[word]
    _, _, sure = child(schema({word: value, "items": {"type": "integer"}}), "", [0])
    assert not sure


def test_what_is_added_to_a_document_is_read_and_checked_like_the_rest() -> None:
    found, at, _ = child(schema({"allOf": [{"properties": {"a": {}}}], "properties": {"a": {}}}), "", ["a"])
    assert at in read_schema(found.text)
    with pytest.raises(SchemaError, match="leads nowhere"):
        read_schema(found.text.replace("#/allOf", "#/noneOf"))


# Skeletons


def test_a_skeleton_has_the_required_keys_in_the_order_of_the_schema_with_what_is_fixed_and_what_is_nested() -> None:
    whole = schema(
        {
            "required": ["extra", "place", "kind", "name"],
            "properties": {
                "name": {"type": "string"},
                "nick": {"type": "string"},
                "kind": {"const": "é"},
                "place": {"$ref": "#/$defs/place"},
            },
            "$defs": {
                "place": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                    "required": ["y", "x"],
                }
            },
        }
    )
    found, fields = skeleton(whole, "")
    x, y = "/$defs/place/properties/x", "/$defs/place/properties/y"
    extra = fields[3].at
    assert fields == (
        Field("name", "/properties/name"),
        Field("kind", "/properties/kind", '"é"'),
        Field("place", "/properties/place", None, (Field("x", x), Field("y", y))),
        Field("extra", extra),
    )
    assert read_schema(found.text).at(extra) is True


def test_a_skeleton_takes_the_first_branch_that_is_possible() -> None:
    whole = schema(
        {
            "type": "object",
            "oneOf": [{"type": "array"}, False, {"required": ["b"], "properties": {"b": {}}}, {"required": ["c"]}],
        }
    )
    _, fields = skeleton(whole, "")
    assert [field.key for field in fields] == ["b"]


def test_a_skeleton_of_an_object_that_requires_itself_ends() -> None:
    _, fields = skeleton(schema({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}), "")
    depth = 0
    while fields:
        depth, fields = depth + 1, fields[0].fields
    assert 1 < depth < 40


# Validation


def test_the_validator_counts_in_decimals_reads_patterns_as_written_and_takes_formats_for_remarks() -> None:
    checked = schema({"multipleOf": 0.1, "pattern": r"^(?<year>\d)$", "format": "date"}).validator()
    assert checked.is_valid(0.3)
    assert not checked.is_valid(0.35)
    assert checked.is_valid("3")
    assert not checked.is_valid("3\n")
    assert not checked.is_valid("٣")
    assert schema({"pattern": r"\p{Lu}"}).validator().is_valid("É")
    assert not schema({"pattern": r"\bx"}).validator().is_valid("x")  # nobody can say


def test_items_are_compared_all_at_once() -> None:
    checked = schema({"uniqueItems": True}).validator()
    assert checked.is_valid([1, True, "1", [1], {"a": 1}, None, 0, False])
    assert not any(map(checked.is_valid, ([1, 1.0], [{"a": [1, 2]}, {"a": [1.0, 2]}], [[], []])))
    assert checked.is_valid([{"i": i} for i in range(20_000)])


def test_a_pattern_that_takes_others_for_ever_is_read_in_one_go() -> None:
    slow = "a" * 60 + "!"
    for words in ({"pattern": "^(a+)+$"}, {"patternProperties": {"^(a|a)*$": True}, "additionalProperties": False}):
        checked = schema(words).validator()
        assert not checked.is_valid(slow if "pattern" in words else {slow: 1})
    with pytest.raises(SchemaError, match="too costly"):
        schema({"patternProperties": {"^(a+)+$": True}, "unevaluatedProperties": False})
    assert schema({"patternProperties": {"^x-[a-z]+$": True}, "unevaluatedProperties": False})
    assert not schema({"patternProperties": {r"^\s$": False}}).validator().is_valid({"\u00a0": 1})


def test_the_oldest_dialect_has_no_true_for_a_subschema() -> None:
    old = schema({"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "properties": {}})
    found, at, _ = child(old, "", ["x"])
    assert read_schema(found.text).at(at) in (True, {})
