"""Structured edits of JSON: what is offered at a place, that it fits what stands there byte for byte, and what is
refused. `|` marks a cursor, two of them a selection."""

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.engine.grammar import json as free
from caesura.engine.grammar import schema as restricted
from caesura.engine.grammar.automaton import Automaton
from caesura.schema.document import Schema
from caesura.schema.reader import read_schema
from caesura.server.structured.json.completion import MAX_AFTER, MAX_BEFORE, completion
from caesura.server.structured.json.edits import MAX_TEXT, offers
from caesura.server.structured.offer import NoOffer, Offer
from caesura.server.text.json import read

PERSON = read_schema(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "kind": {"const": "person"},
                "home": {
                    "type": "object",
                    "properties": {"zip": {"type": "integer"}, "city": {"enum": ["Rome", "Oslo"]}},
                    "required": ["zip", "city"],
                },
                "tags": {"type": "array", "items": {"type": "boolean"}},
            },
            "required": ["name", "kind", "home"],
        }
    )
)


def asked(marked: str) -> tuple[str, int, int]:
    pieces = marked.split("|")
    start = len(pieces[0])
    return "".join(pieces), start, start + (len(pieces[1]) if len(pieces) == 3 else 0)


def offered(marked: str, language: str = "json", schema: Schema | None = None) -> tuple[str, list[Offer]]:
    text, start, end = asked(marked)
    return text, offers(text, start, end, language=language, schema=schema)


def titles(marked: str, language: str = "json", schema: Schema | None = None) -> list[str]:
    return [offer.title for offer in offered(marked, language, schema)[1]]


def grammar(hole: wire.Hole) -> wire.Json:
    assert isinstance(hole.grammar, wire.Json)
    return hole.grammar


def automaton(offer: Offer, spec: wire.Json) -> Automaton:
    if spec.schema is None:
        return Automaton(free.language(spec))
    return Automaton(restricted.language(spec, read_schema(offer.schemas[spec.schema])))


def fits(offer: Offer, fills: Sequence[str]) -> bool:
    """Whether the grammars of the holes take these fills."""
    for hole, fill in zip(offer.holes, fills, strict=True):
        spec = grammar(hole)
        machine = automaton(offer, spec)
        whole = (spec.typed + fill + spec.then).encode()
        if not any(map(machine.ends, machine.read([machine.start], whole))):
            return False
    return True


def written(text: str, offer: Offer, *fills: str) -> str:
    """The document with an offer's holes filled as its grammars allow."""
    assert fits(offer, fills)
    return text[: offer.start] + offer.text(fills) + text[offer.end :]


def chosen(marked: str, title: str, *fills: str, language: str = "json", schema: Schema | None = None) -> str:
    text, found = offered(marked, language, schema)
    new = written(text, next(offer for offer in found if offer.title == title), *fills)
    assert next(offer for offer in found if offer.title == title).check(new) is None
    return new


# Where new items go


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{|}", '{"n": 0}'),
        ('{"a": 1|}', '{"a": 1, "n": 0}'),
        ('{ "a": 1| }', '{ "a": 1, "n": 0 }'),
        ('{"a": 1,| "b": 2}', '{"a": 1, "n": 0, "b": 2}'),
        ('{"a": 1|, "b": 2}', '{"a": 1, "n": 0, "b": 2}'),
        ('{|"a": 1}', '{"n": 0, "a": 1}'),
        ('{"a":1,|"b":2}', '{"a":1,"n":0,"b":2}'),
        ("{\n|}\n", '{\n  "n": 0\n}\n'),
        ('{\n  "a": {},\n  "b": {|}\n}', '{\n  "a": {},\n  "b": {\n    "n": 0\n  }\n}'),
        ('{\n  "a": 1|\n}', '{\n  "a": 1,\n  "n": 0\n}'),
        ('{\n  "a": 1\n|}', '{\n  "a": 1,\n  "n": 0\n}'),
        ('{|\n  "a": 1\n}', '{\n  "n": 0,\n  "a": 1\n}'),
        ('{\n  "a": 1,|\n  "b": 2\n}', '{\n  "a": 1,\n  "n": 0,\n  "b": 2\n}'),
        ('{\n  "a": 1|,\n  "b": 2\n}', '{\n  "a": 1,\n  "n": 0,\n  "b": 2\n}'),
        ('{\n  "a": 1,\n  |\n  "b": 2\n}', '{\n  "a": 1,\n  "n": 0,\n  "b": 2\n}'),
        ('{\n  "a": 1\n\t|\n}', '{\n  "a": 1,\n  "n": 0\n}'),
        ('{\n  "a": 1,\n  |"b": 2\n}', '{\n  "a": 1,\n  "n": 0,\n  "b": 2\n}'),
        ('{\n\t"x": {\n\t\t"a": 1|\n\t}\n}', '{\n\t"x": {\n\t\t"a": 1,\n\t\t"n": 0\n\t}\n}'),
        ('{\r\n  "a": 1|\r\n}\r\n', '{\r\n  "a": 1,\r\n  "n": 0\r\n}\r\n'),
        ('{"a": 1, |}', '{"a": 1, "n": 0}'),
        ('{\n  "a": 1,\n  |\n}', '{\n  "a": 1,\n  "n": 0\n}'),
    ],
)
def test_a_member_is_added_as_if_it_had_always_been_there(before: str, after: str) -> None:
    assert chosen(before, titles(before)[0], '"n":0' if ":0" in after else '"n": 0') == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n  "a": 1, // one|\n  "b": 2\n}', '{\n  "a": 1, // one\n  "n": 0,\n  "b": 2\n}'),
        ('{\n  "a": 1 // one|\n}', '{\n  "a": 1, // one\n  "n": 0\n}'),
        ('{\n  "a": 1\n  // one\n|}', '{\n  "a": 1,\n  // one\n  "n": 0\n}'),
        ('{ // c\n  |// own\n  "a": 1\n}', '{ // c\n  "n": 0,\n  // own\n  "a": 1\n}'),
        ('{\n  "a": 1,\n|}', '{\n  "a": 1,\n  "n": 0,\n}'),
        ('{\n  "a": 1|,\n}', '{\n  "a": 1,\n  "n": 0,\n}'),
        ('{"a": 1 /* x */| /* y */, "b": 2}', '{"a": 1, /* x */ "n": 0 /* y */, "b": 2}'),
        ("{\n  // none yet|\n}", '{\n  // none yet\n  "n": 0\n}'),
    ],
)
def test_comments_stay_and_trailing_commas_are_kept(before: str, after: str) -> None:
    assert chosen(before, titles(before, "jsonc")[0], '"n": 0', language="jsonc") == after


@pytest.mark.parametrize(
    ("marked", "after"),
    [
        ('{\n  // note\n  "a": 1,\n  "b": |\n}', '{\n  // note\n  "a": 1,\n  "b": 0\n}'),
        ('{"a": | /* note */}', '{"a": 0 /* note */}'),
        ('{"a": |\n // note\n}', '{"a": 0\n // note\n}'),
        ("[1, // note\n |]", "[1, // note\n 0]"),
    ],
)
def test_a_json_file_that_has_comments_keeps_them(marked: str, after: str) -> None:
    text, at, _ = asked(marked)
    assert chosen(marked, titles(marked)[-1], "0") == after
    offer = completion(text, at, language="json")
    assert offer is not None
    assert written(text, offer, "0") == after


@pytest.mark.parametrize("new", ['{"a": 1 // note\n}', '{"a": 1,}'])
def test_strict_json_stays_strict_also_in_a_file_that_may_have_comments(new: str) -> None:
    [first, *_] = offers('{"a": 0}', 6, 6, language="jsonc")
    assert first.check(new) is not None
    [first, *_] = offers('{"a": 0 /* note */}', 6, 6, language="jsonc")
    assert first.check(new) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[|]", "[0]"),
        ("[1, |]", "[1, 0]"),
        ("[[1, 2],| [3]]", "[[1, 2], 0, [3]]"),
        ("[\n  1, 2,|\n  3, 4\n]", "[\n  1, 2, 0,\n  3, 4\n]"),
        ("[\n  1,\n  2\n|]", "[\n  1,\n  2,\n  0\n]"),
    ],
)
def test_an_element_is_added_as_if_it_had_always_been_there(before: str, after: str) -> None:
    title = "Add elements" if before == "[|]" else "Add an element"
    assert chosen(before, title, "0") == after


def test_several_members_go_on_lines_of_their_own_where_the_others_do() -> None:
    new = chosen('{\n  "a": 1|\n}', "Add members", '"b": 2,\n  "c": {\n    "d": 3\n  }')
    assert new == '{\n  "a": 1,\n  "b": 2,\n  "c": {\n    "d": 3\n  }\n}'
    assert not fits(offered('{\n  "a": 1|\n}')[1][0], ['"b": 2, "c": 3'])


def test_a_key_that_the_object_has_is_refused() -> None:
    _, found = offered('{"a": 1, "\\u0062": 2|}')
    assert not fits(found[0], ['"a": 3'])
    assert not fits(found[0], ['"b": 3'])
    problem = found[0].check('{"a": 1, "\\u0062": 2, "b": 3}')
    assert problem is not None
    assert '"b" would appear twice' in problem


# What is replaced


@pytest.mark.parametrize(
    ("before", "title", "fill", "after"),
    [
        ('{"a": |}', 'Fill the value of "a"', "[1]", '{"a": [1]}'),
        ('{"a":|}', 'Fill the value of "a"', "1", '{"a": 1}'),
        ('{"b":1,"a":|}', 'Fill the value of "a"', "1", '{"b":1,"a":1}'),
        ('{\n "a": |,\n "b": 1\n}', 'Fill the value of "a"', "[\n  1\n ]", '{\n "a": [\n  1\n ],\n "b": 1\n}'),
        ('{"a": |TODO|, "b": 1}', 'Fill the value of "a"', "1", '{"a": 1, "b": 1}'),
        ('{"a": |[1, 2]}', 'Replace the value of "a"', "1", '{"a": 1}'),
        ('{"a": 1, |"b"|: 2}', 'Replace the key "b"', '"c"', '{"a": 1, "c": 2}'),
        ('{|"a": 1, |"b": 2}', "Replace the members", '"c": 1', '{"c": 1, "b": 2}'),
        ("[1, |2, 3|, 4]", "Replace the elements", "7, 8", "[1, 7, 8, 4]"),
        ("[1, |2|]", "Replace the element", '"x"', '[1, "x"]'),
        ("|[1]|", "Replace the document", "{}", "{}"),
        ("|", "Write the document", '{\n  "a": 1\n}', '{\n  "a": 1\n}'),
        ("\n|\n", "Write the document", "1", "\n1\n"),
    ],
)  # fmt: skip
def test_a_selection_or_a_missing_value_is_written(before: str, title: str, fill: str, after: str) -> None:
    assert chosen(before, title, fill) == after


# Siblings


def test_an_element_like_its_siblings_has_their_keys_and_layout() -> None:
    first = '{"id": 1, "at": { "x": 0.5, "y": 2 }, "on": true, "extra": 0}'
    second = '{"id": 2,  "at": { "x": 1, "y": 3 }, "on": false}'
    text, found = offered(f"[\n  {first},\n  {second}|\n]")
    assert found[0].title == "Add an element like its siblings"
    assert [hole.max_tokens for hole in found[0].holes] == [8, 8, 8, 8]
    new = written(text, found[0], "3", "0.25", "4", "true")
    assert new[len(text) - 2 :] == ',\n  {"id": 3,  "at": { "x": 0.25, "y": 4 }, "on": true}\n]'
    assert found[0].check(new) is None
    assert not fits(found[0], ['"3"', "0.25", "4", "true"])
    assert not fits(found[0], ["3", "0.25", "4.5", "true"])


def test_siblings_on_several_lines_are_matched_line_by_line() -> None:
    one = '  {\n    "k": "a",\n    "p": {\n      "q": [1]\n    }\n  }'
    new = chosen(f"[\n{one}|\n]", "Add an element like its siblings", '"b"', "[2]")
    assert new == f"[\n{one},\n{one.replace('a', 'b').replace('1', '2')}\n]"


def test_few_values_that_repeat_are_all_that_there_are() -> None:
    _, found = offered('[{"k": "a"}, {"k": "b"}, {"k": "a"}, {"k": "b"}, {"k": |}]')
    assert fits(found[0], ['"b"'])
    assert not fits(found[0], ['"c"'])
    assert fits(found[1], ['"c"'])  # freely
    _, found = offered('[{"k": "a"}, {"k": "b"}, {"k": |}]')
    assert fits(found[0], ['"c"'])
    assert not fits(found[0], ["1"])


def test_a_value_is_like_those_of_the_same_key_and_of_a_map() -> None:
    title = 'Fill the value of "z" like its siblings'
    assert chosen('{"m": {"x": {"t": 1}, "y": {"t": 2}, "z": |}}', title, "3").endswith('"z": {"t": 3}}}')
    assert chosen('[{"z": {"t": 1}}, {"z": |}]', title, "3") == '[{"z": {"t": 1}}, {"z": {"t": 3}}]'
    assert titles('{"a": "x", "b": "y", "c": |}') == ['Fill the value of "c"']


def test_objects_that_share_little_are_no_pattern() -> None:
    _, found = offered('[{"a": 1, "b": 2}, {"b": 3, "a": 4}|]')
    assert len(found[0].holes) == 2
    _, found = offered('[{"a": 1}, {"b": 1}|]')
    assert len(found[0].holes) == 1
    assert fits(found[0], ['{"c": 1}'])
    assert not fits(found[0], ["1"])


def test_siblings_out_of_sight_are_shown_without_their_secrets() -> None:
    filler = ", ".join(f'"k{i}": {i}' for i in range(300))
    secret = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
    _, found = offered(f'[{{"login": {{"token": "{secret}"}}, {filler}}}, {{"login": |}}]')
    [neighbour] = found[0].evidence
    assert neighbour.name == "// 0/login"
    assert neighbour.text.startswith('{"token": ')
    assert secret not in neighbour.text
    assert offered('[{"name": "a"}, {"name": |}]')[1][0].evidence == ()


# JSON Lines


@pytest.mark.parametrize(
    ("before", "title", "fills", "after"),
    [
        ('{"a": 1}\n|\n', "Add a line like its siblings", ["2"], '{"a": 1}\n{"a": 2}\n'),
        ('{"a": 1}|\n{"a": 3}\n', "Add a line like its siblings", ["2"], '{"a": 1}\n{"a": 2}\n{"a": 3}\n'),
        ('{"a": 1}|\r\n', "Add a line", ["[1, 2]"], '{"a": 1}\r\n[1, 2]\r\n'),
        ('{"a": |}\nbroken\n{"a": 3}', 'Fill the value of "a" like its siblings', ["2"], '{"a": 2}\nbroken\n{"a": 3}'),
        ('{"a": 1}\n{"a": 2|}', "Add a member", ['"b": 1'], '{"a": 1}\n{"a": 2, "b": 1}'),
        ('{"a": 1}\n|{"a": 2}|\n', "Replace the line", ["0"], '{"a": 1}\n0\n'),
        ("|", "Add a line", ['{"a": 1}'], '{"a": 1}'),
    ],
)  # fmt: skip
def test_a_line_of_json_lines_is_a_document(before: str, title: str, fills: list[str], after: str) -> None:
    assert chosen(before, title, *fills, language="jsonl") == after


def test_a_line_of_json_lines_has_no_line_break() -> None:
    for offer in offered('{"a": 1}\n|\n', "jsonl")[1]:
        assert not any(fits(offer, [fill] * len(offer.holes)) for fill in ("[\n  1\n]", '{\n  "a": 1\n}'))


# Schemas


def test_what_a_schema_requires_is_written_and_its_values_are_open() -> None:
    new = chosen("|", "Write the document with all that is required", '"Ann"', "1", '"Rome"', schema=PERSON)
    assert json.loads(new) == {"name": "Ann", "kind": "person", "home": {"zip": 1, "city": "Rome"}}
    new = chosen('{\n  "name": "Ann"|\n}', "Add the required members", "1", '"Oslo"', schema=PERSON)
    assert new == ('{\n  "name": "Ann",\n  "kind": "person",\n  "home": {\n    "zip": 1,\n    "city": "Oslo"\n  }\n}')


def test_values_are_those_that_the_schema_allows() -> None:
    text, found = offered('{"home": {"zip": 1, "city": |}}', schema=PERSON)
    assert fits(found[0], ['"Rome"'])
    assert not fits(found[0], ['"Bonn"'])
    assert found[0].check(text.replace(": }", ': "Rome"}')) is None
    problem = found[0].check(text.replace(": }", ': "Bonn"}'))
    assert problem is not None
    assert "home/city" in problem
    assert fits(offered('{"tags": [true|]}', schema=PERSON)[1][0], ["false"])
    assert not fits(offered('{"tags": [true|]}', schema=PERSON)[1][0], ["1"])


def test_what_was_against_the_schema_before_is_no_fault_of_the_edit() -> None:
    text, found = offered('{"name": 7, "tags": [|true|]}', schema=PERSON)
    assert found[-1].check(text.replace("true", "false")) is None
    assert found[-1].check(text.replace("true", "1")) is not None
    text, found = offered('{"tags": []}\n{"name": 7, "tags": [|true|]}\n', "jsonl", PERSON)
    assert found[-1].check(text.replace("true", "false")) is None
    assert found[-1].check(text.replace("true", "1")) is not None


def test_an_object_that_is_a_whole_one_of_another_branch_lacks_nothing() -> None:
    branches = [{"properties": {key: True}, "required": [key]} for key in ("a", "b")]
    schema = read_schema(json.dumps({"type": "object", "anyOf": branches}))
    assert titles('{"b": 1|}', schema=schema) == ["Add a member", "Add members"]
    assert titles("{|}", schema=schema)[0] == "Add the required members"


def test_an_object_that_has_all_that_its_schema_allows_gets_no_more() -> None:
    schema = read_schema('{"properties": {"a": true}, "additionalProperties": false}')
    assert titles("{|}", schema=schema) == ["Add members"]
    with pytest.raises(NoOffer, match="nothing more"):
        offered('{"a": 1|}', schema=schema)


# Refusals


@pytest.mark.parametrize(
    ("marked", "language", "sentence"),
    [
        ('{"a": "x|y"}', "json", "inside a string"),
        ('{"a": 1|2}', "json", "inside a number"),
        ('{"a": tr|ue}', "json", "inside `true`"),
        ('{"a|b": 1}', "json", "inside a key"),
        ('{"a": 1 // x|y\n}', "jsonc", "inside a comment"),
        ('{"a": |"x, "b|": 1}', "json", "broken at 1:12: a comma"),
        ('{"a": "x|y", "b|": 1}', "json", "cuts a value in two"),
        ('{"a": |1, /* c */ "b": 2|}', "jsonc", "holds a comment"),
        ('{"a": |[1, /* c */ 2]}', "jsonc", "comment in this value"),
        ('{"a": 1} |', "json", "outside"),
        ('{"a": 1,, "b": 2|}', "json", "broken at 1:9: a key"),
        ('{"a": |1, }', "json", "broken at 1:10: there is a comma too many"),
        ('{"a": |1 // x\n "b": 2}', "json", "broken at 2:2: a comma"),
        ("[" * 501 + "|" + "]" * 501, "json", "deeper than 500"),
        ("[" * 1000 + "|", "json", "broken"),
        ('{"a": 1}\n{"|a": 1|}\n{"a": 1}', "jsonl", "cuts"),
        ('|{"a": 1}\n{"a": 1}|', "jsonl", "several lines"),
        ('{"a": 1\n|\n{"a": 1', "jsonl", ""),
    ],
)
def test_where_nothing_can_be_edited_the_user_is_told_why(marked: str, language: str, sentence: str) -> None:
    if not sentence:
        assert titles(marked, language) == ["Add a line"]
        return
    with pytest.raises(NoOffer, match=sentence) as caught:
        offered(marked, language)
    assert str(caught.value).endswith(".")


def test_a_very_large_document_is_refused_before_it_is_read() -> None:
    with pytest.raises(NoOffer, match="5,000,000"):
        offers("[" * (MAX_TEXT + 1), 0, 0, language="json")


# Whatever the document, the place and the fill

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)
ALPHABET = b'"ab1,:{}[] \n-0truefalsn'


def walk(offer: Offer, hole: wire.Hole, rng: random.Random) -> str:
    """A text that the grammar of a hole takes: some random steps, then the shortest way to an end."""
    machine = automaton(offer, grammar(hole))
    configs, text = {machine.start}, bytearray()
    for _ in range(rng.randrange(20)):
        steps = [(byte, to) for byte in ALPHABET if (to := machine.step(configs, byte))]
        if not steps:
            break
        byte, configs = rng.choice(steps)
        text.append(byte)
    rest = [machine.shortest(config) for config in sorted(configs)]
    return (bytes(text) + min(one for one in rest if one is not None)).decode()


@settings(deadline=None, max_examples=100)
@given(values, st.sampled_from([None, 2, "\t"]), st.data())
def test_every_offer_leaves_a_valid_document_that_differs_only_there(
    value: Any, indent: Any, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.sampled_from([start, min(len(text), start + 3), len(text)]))
    rng = random.Random(data.draw(st.integers(0, 1000)))
    try:
        found = offers(text, start, end, language="json")
    except NoOffer:
        return
    for offer in found:
        new = text[: offer.start] + offer.text([walk(offer, hole, rng) for hole in offer.holes]) + text[offer.end :]
        json.loads(new)
        problem = offer.check(new)
        assert problem is None or "would appear twice" in problem
        job = wire.Infill(job="j", document="d", prefix="", suffix="", segments=offer.segments, schemas=offer.schemas)
        assert wire.decode_client(wire.encode(job)) == job
        assert len(offer.holes) <= wire.MAX_HOLES


@settings(deadline=None, max_examples=100)
@given(values, st.sampled_from([None, 2]), st.data())
def test_every_completion_leaves_what_was_valid_before_it_readable(
    value: Any, indent: Any, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    offset = data.draw(st.integers(0, len(text)))
    head = text[:offset]
    offer = completion(head, offset, language="json")
    if offer is None:
        return
    [hole] = offer.holes
    spec = grammar(hole)
    machine = automaton(offer, spec)
    rest = machine.read([machine.start], spec.typed.encode())
    if not rest:  # no key has a control character
        assert spec.start != "value"
        assert re.search(r"[\\\x7f-\x9f]", spec.typed)
        return
    fill = min(one for one in map(machine.shortest, sorted(rest)) if one is not None).decode()
    assert offer.check(head + offer.text([fill])) is None


# Completion while typing


@pytest.mark.parametrize(
    ("marked", "start", "typed", "then"),
    [
        ("|", "value", "", ""),
        ('{"a": |', "value", "", ""),
        ('{"a": "x|', "value", '"x', ""),
        ('{"a": "x|", "b": 1}', "value", '"x', '"'),
        ('{"a": "x|y", "b": 1}', "value", '"x', 'y"'),
        ('{"a": "x|, "b": 1}', "value", '"x', ""),
        ('{"a": tr|}', "value", "tr", ""),
        ('{"a": -1|', "value", "-1", ""),
        ("[1, [2, |", "value", "", ""),
        ('{"a": 1, |', "members", "", ""),
        ('{"a": 1, "b|', "members", '"b', ""),
        ('{"a": 1, "b|"', "key", '"b', '"'),
        ('{"a|": 1, "z": 1}', "key", '"a', '"'),
    ],
)
def test_what_may_follow_is_known_while_one_types(marked: str, start: str, typed: str, then: str) -> None:
    text, at, _ = asked(marked)
    offer = completion(text, at, language="json")
    assert offer is not None
    spec = grammar(offer.holes[0])
    assert (spec.start, spec.typed, spec.then) == (start, typed, then)
    assert (offer.start, offer.end) == (at, at)


@pytest.mark.parametrize(
    ("marked", "language"),
    [
        ('{"a": true|', "json"),
        ('{"a": 1 |', "json"),
        ('{"a": |1}', "json"),
        ('{"a": 1,|\n  "b": 2\n}', "json"),
        ("{ab|", "json"),
        ('{"a" |', "json"),
        ('{"a": "x\ny|', "json"),
        ("}|", "json"),
        ("[} |", "json"),
        ("// x|\n1", "jsonc"),
        ("/* x| */", "jsonc"),
        ('{"a": 1}|', "jsonl"),
    ],
)
def test_nothing_is_proposed_where_nothing_may_follow(marked: str, language: str) -> None:
    text, at, _ = asked(marked)
    assert completion(text, at, language=language) is None


def test_a_completion_knows_the_keys_on_both_sides_and_the_comma_that_is_missing() -> None:
    text, at, _ = asked('{\n  "a": {"x": 1},\n  |\n  "b": 2\n}')
    offer = completion(text, at, language="json")
    assert offer is not None
    assert grammar(offer.holes[0]).taken == ("a", "b")
    assert written(text, offer, '"n": 0') == '{\n  "a": {"x": 1},\n  "n": 0,\n  "b": 2\n}'
    assert completion(text[: at + 1] + ", " * MAX_AFTER + text[at:], at, language="json") is None  # "b" may be any key


def test_a_completion_has_the_layout_and_the_schema_of_its_place() -> None:
    text, at, _ = asked('{\n\t"name": "x",\n\t"home": {\n\t\t"city":|')
    offer = completion(text, at, language="json", schema=PERSON)
    assert offer is not None
    assert written(text, offer, '"Oslo"').endswith('"city": "Oslo"')
    assert not fits(offer, ['"Bonn"'])
    text, at, _ = asked('{\n\t"x":{\n\t\t"a":1,\n\t\t"b":|\n\t}\n}')
    offer = completion(text, at, language="json")
    assert offer is not None
    assert written(text, offer, "[\n\t\t\t1\n\t\t]").endswith('"b":[\n\t\t\t1\n\t\t]\n\t}\n}')


def test_a_completion_in_json_lines_sees_its_line_only() -> None:
    text, at, _ = asked('{\n{"a": |\n{"a": 2}')
    offer = completion(text, at, language="jsonl")
    assert offer is not None
    assert offer.start == at
    assert offer.check(written(text, offer, "1")) is None
    text, at, _ = asked('{"a": 1}\n|\n{"a": 2}')
    offer = completion(text, at, language="jsonl")
    assert offer is not None
    assert not fits(offer, ['{\n  "a": 1\n}'])


def test_far_into_a_large_document_there_is_no_completion() -> None:
    head = "[" + "1, " * (MAX_BEFORE // 3 + 1)
    assert completion(head, len(head), language="json") is None
    assert read(head + "1]", relaxed=False).depth == 1


def test_a_schema_that_binds_members_to_each_other_is_checked_not_vouched_for() -> None:
    both = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    tied = both | {"if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": {"const": 5}}}}
    for words, level in ((both, "valid"), (tied, "checked")):
        schema = read_schema(json.dumps({"properties": {"v": words}}))
        [first, *_] = offers('{"v": }', 6, 6, language="json", schema=schema)
        assert (first.title, first.level) == ('Fill the value of "v" with all that is required', level)
    many = read_schema(json.dumps({"properties": {"v": both | {"minProperties": 3}}}))
    titles = [offer.title for offer in offers('{"v": }', 6, 6, language="json", schema=many)]
    assert titles == ['Fill the value of "v"']


def test_a_secret_of_the_siblings_is_in_no_schema() -> None:
    one = '{"id": 1, "api_key": "sk-proj-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z"}'
    text = f"[\n  {one},\n  {one},\n  {one}\n]\n"
    at = text.rindex("\n]")
    for offer in offers(text, at, at, language="json"):
        assert "sk-proj" not in "".join(offer.schemas)


def test_what_else_is_in_an_object_tells_the_branches_of_its_schema_apart() -> None:
    branches = [
        {"properties": {"t": {"const": t}, "v": {"type": kind}}} for t, kind in (("x", "string"), ("y", "null"))
    ]
    schema = read_schema(json.dumps({"oneOf": branches}))
    text = '{"t": "y", "v": }'
    [offer] = offers(text, 16, 16, language="json", schema=schema)
    [hole] = offer.holes
    assert isinstance(hole.grammar, wire.Json)
    assert read_schema(offer.schemas[0]).at(hole.grammar.at) == {"type": "null"}


def test_no_sibling_shows_a_password_to_the_engine() -> None:
    rows = [f'{{"id": {i}, "password": "Xk9{i}qLw7{i}Zr2pV", "note": "{"n" * 80}"}}' for i in range(60)]
    text = "[" + ",\n".join(rows) + "]"
    at = text.rindex('"Xk9')
    end = text.index('"', at + 1) + 1
    for offer in offers(text, at, end, language="json"):
        assert not any("qLw7" in near.text for near in offer.evidence)
        assert "qLw7" not in "".join(offer.schemas)


def test_an_object_that_has_a_key_twice_already_can_be_edited_elsewhere() -> None:
    text = '{"a": 1, "a": 2, "b": 3}'
    at = text.index("3")
    [first, *_] = offers(text, at, at + 1, language="json")
    assert first.check(text.replace("3", "4")) is None
    assert first.check(text.replace("3", '{"c": 1, "c": 2}')) is not None


def test_what_a_check_says_holds_nothing_of_the_document() -> None:
    schema = read_schema(json.dumps({"maxProperties": 2}))
    text = '{"password": "hunter2-very-secret", "b": 1}'
    [first, *_] = offers(text, len(text) - 1, len(text) - 1, language="json", schema=schema)
    said = first.check(text[:-1] + ', "c": 1}')
    assert said is not None
    assert "maxProperties" in said
    assert "hunter2" not in said


def test_above_a_whole_document_nothing_is_completed() -> None:
    assert completion('\n{"a": 1}\n', 0, language="json") is None
    assert completion('// c\n\n{"a": 1}\n', 5, language="jsonc") is None
    assert completion("\n", 0, language="json") is not None


def test_the_lines_of_a_file_tell_their_branches_apart_each_by_itself() -> None:
    branches = [
        {"properties": {"t": {"const": t}, "v": {"type": kind}}} for t, kind in (("x", "string"), ("y", "null"))
    ]
    schema = read_schema(json.dumps({"oneOf": branches}))
    text = '{"t": "x", "v": "a"}\n{"t": "y", "v": }\n'
    at = text.rindex("}")
    offer = offers(text, at, at, language="jsonl", schema=schema)[-1]
    [hole] = offer.holes
    assert isinstance(hole.grammar, wire.Json)
    assert read_schema(offer.schemas[0]).at(hole.grammar.at) == {"type": "null"}


def test_a_key_may_be_one_that_most_siblings_have_and_its_object_has_not() -> None:
    text = '[{"id": 1, "name": "a"}, {"id": 2, "x": "b"}, {"id": 3, "name": "c", "size": 4}]'
    at = text.index('"x"')
    first, second = offers(text, at, at + 3, language="json")
    assert [first.title, second.title] == ['Replace the key "x" like its siblings', 'Replace the key "x"']
    assert json.loads(first.schemas[0])["$defs"]["0"]["properties"] == {"name": True}
    assert second.schemas == ()


def test_behind_a_line_comment_an_item_begins_a_line_of_its_own_with_an_indent() -> None:
    text = '{"a": 1 // x\n }'
    at = text.index("}")
    [first, *_] = offers(text, at, at, language="jsonc")
    new = text[: first.start] + first.text(['"n": 1']) + text[first.end :]
    assert new == '{"a": 1, // x\n  "n": 1\n }'
