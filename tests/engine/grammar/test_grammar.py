"""Grammars over tokens: what the automaton accepts is what a JSON reader accepts, the best fill is the best of all that
are whole, and whatever a model says comes out valid."""

import itertools
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.automata.dfa import TooLarge
from caesura.engine.grammar.automaton import Automaton
from caesura.engine.grammar.constraint import Grammar, load
from caesura.engine.grammar.expressions import EMPTY, Rule, RuleSet, chain, choice, literal, many, one_of, repeat
from caesura.engine.grammar.json import distinct_keys, language
from caesura.engine.grammar.solve import Gains, Trellis
from caesura.engine.grammar.tokens import Tree
from caesura.engine.scores import Floats, told
from caesura.engine.scores.host import HostScores

BYTES = [bytes([b]) for b in range(256)]
WORDS = [b'"', b'": ', b'", "', b"true", b"false", b"null", b"},", b"[[", b"]]", b", ", b"name", b"\n  ", b'"}']
PIECES = [*BYTES, *WORDS[1:], "é".encode(), "🐍".encode(), b'{"a": 1}', b"12", b"0.5", b'\\"', b"\xf0\x9f"]
NULL = len(PIECES)
TREE = Tree(PIECES)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def reads(spec: wire.Json, text: str) -> bool:
    automaton = Automaton(language(spec))
    return any(map(automaton.ends, automaton.read([automaton.start], text.encode())))


def solved(grammar: Grammar, logits: Floats, null: int | None = NULL, held: Sequence[int | None] = ()) -> str | None:
    open = list(held) or [None] * len(logits)
    tokens = grammar.best(grammar.start(b""), HostScores(logits), open, [], 0, null)
    return None if tokens is None else b"".join(PIECES[t] for t in tokens if t != null).decode()


def noise(slots: int, seed: int, width: int = NULL + 1) -> Floats:
    return 4 * np.random.default_rng(seed).standard_normal((slots, width), np.float32)


def parses(text: str) -> bool:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=once, parse_constant=float.fromhex)
    except ValueError:
        return False
    return True


# The automaton beside a reader of JSON


@given(values, st.sampled_from([None, 1, "\t"]))
def test_every_json_text_is_read(value: object, indent: int | str | None) -> None:
    text = json.dumps(value, indent=indent)
    assert reads(wire.Json(loose=True), text)
    assert reads(wire.Json(loose=True), json.dumps(value, ensure_ascii=False, indent=indent))


@settings(max_examples=300)
@given(values, st.data())
def test_a_damaged_text_is_read_exactly_where_a_reader_of_json_takes_it(
    value: object, data: st.DataObject | None
) -> None:
    text = json.dumps(value)
    if data is not None:
        at = data.draw(st.integers(0, len(text)))
        text = (
            text[:at]
            + data.draw(st.sampled_from('{}[]",:01-.eE\\ntu a\x00'))
            + text[at + data.draw(st.integers(0, 1)) :]
        )
    expected = reads_as_unicode(text)
    if not text[:1].isspace() and not text[-1:].isspace():
        assert reads(wire.Json(loose=True), text) == expected


def reads_as_unicode(text: str) -> bool:
    """Half a surrogate pair is JSON, and no text."""
    try:
        json.dumps(json.loads(text, parse_constant=float.fromhex), ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def test_deep_nesting_is_read() -> None:
    assert reads(wire.Json(loose=True), "[" * 500 + "]" * 500)
    assert not reads(wire.Json(loose=True), "[" * 500 + "]" * 499)


def test_a_layout_is_kept_to_the_byte() -> None:
    spec = wire.Json(indent="  ", level=1)
    assert reads(spec, '{\n    "a": 1,\n    "b": [1, 2]\n  }')
    assert reads(spec, '{"a": 1, "b": []}')
    assert not reads(spec, '{\n  "a": 1\n}')
    assert not reads(spec, '{"a":1}')
    assert not reads(spec, '{"a": [\n1]}')
    compact = wire.Json(colon=":", comma=",")
    assert reads(compact, '{"a":1,"b":[1,2]}')
    assert not reads(compact, '{"a": 1}')
    windows = wire.Json(start="members", indent="\t", newline="\r\n")
    assert reads(windows, '"a": 1,\r\n\t"b": 2')


@pytest.mark.parametrize(
    ("spec", "yes", "no"),
    [
        (
            wire.Json(start="members", least=2, most=2),
            ['"a": 1, "b": {}'],
            ['"a": 1', '"a": 1, "b": 2, "c": 3', "1, 2"],
        ),
        (wire.Json(start="elements", most=2), ["1", '1, "b"'], ["", "1, 2, 3", "1,"]),
        (wire.Json(start="key", taken=("a", "ä")), ['"b"', '"aa"'], ['"a"', '"ä"', '""', "b", '"a": 1']),
        (wire.Json(start="members", taken=("a",)), ['"b": {"a": 1}'], ['"a": 1', '"b": 1, "a": 1']),
        (wire.Json(start="value"), ["-0.5e+3", '"\\u00e9\\n"', "[]"], ["01", ".5", "'a'", "NaN", '"\n"', '"\\x"']),
    ],
    ids=["members", "elements", "key", "taken", "value"],
)
def test_what_may_start(spec: wire.Json, yes: list[str], no: list[str]) -> None:
    assert all(reads(spec, text) for text in yes)
    assert not any(reads(spec, text) for text in no)


def test_a_hole_inside_of_a_string_or_a_number_ends_before_what_follows() -> None:
    grammar = load(wire.Json(typed='"ab', then='cd"'), (), TREE)
    for seed in range(5):
        assert json.loads('"ab' + (solved(grammar, noise(4, seed)) or "?") + 'cd"')
    number = load(wire.Json(typed="1", then="5"), (), TREE)
    assert {type(json.loads(f"1{solved(number, noise(3, seed))}5")) for seed in range(9)} <= {int, float}


def test_rules_may_call_themselves_at_their_end_without_growing() -> None:
    items = RuleSet(Rule("list"), lambda name: choice(EMPTY, chain(literal("a"), Rule("list"))))
    automaton = Automaton(items)
    behind = automaton.read([automaton.start], b"a" * 5000)
    assert any(map(automaton.ends, behind))
    assert all(len(stack) <= 1 for _, stack in behind)


def test_a_rule_that_never_gets_on_is_refused() -> None:
    endless = RuleSet(Rule("x"), lambda name: chain(Rule("x"), literal("a")))
    with pytest.raises(ValueError, match="Nothing can stand"):
        Grammar(endless, TREE)
    left = Automaton(RuleSet(Rule("x"), lambda name: choice(literal("a"), chain(Rule("x"), literal("b")))))
    with pytest.raises(TooLarge):
        left.read([left.start], b"a")


def test_the_shortest_text_is_whole() -> None:
    for spec in (
        wire.Json(),
        wire.Json(start="members", least=3, indent="  "),
        wire.Json(start="elements", least=2),
        wire.Json(typed='{"a": [1, "b', then="}", loose=True),
        wire.Pattern("[a-c]{3,}x|yyyyyy"),
    ):
        grammar = load(spec, (), TREE)
        start = grammar.start(b"")
        text = grammar.shortest(start)
        assert text is not None
        state = start
        for byte in text:
            state = grammar.after(state, byte)
        assert grammar.ends(state)
    assert len(text) == 4


# The best whole fill


SMALL = Tree([b"a", b"b", b"ab", b",", b"a,", b"x"])
LISTS = RuleSet(
    chain(Rule("item"), many(chain(literal(","), Rule("item")))),
    lambda name: chain(one_of("a"), repeat(one_of("ab"), 0, 2)),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10_000), st.booleans(), st.data())
def test_the_best_fill_is_the_best_of_all_that_are_whole(
    slots: int, seed: int, nulls: bool, data: st.DataObject
) -> None:
    pieces, null = [b"a", b"b", b"ab", b",", b"a,", b"x", b""], 6 if nulls else None
    scores = HostScores(noise(slots, seed, 7))
    (logp,) = told(scores.dense())
    grammar = Grammar(LISTS, SMALL)
    held: list[int | None] = [None] * slots
    for slot in data.draw(st.sets(st.integers(0, slots - 1), max_size=2)):
        held[slot] = data.draw(st.sampled_from([0, 2, 3, *([6] if nulls else [])]))

    def whole(tokens: tuple[int, ...]) -> bool:
        text = b"".join(pieces[t] for t in tokens).decode()
        items = text.split(",")
        return all(1 <= len(i) <= 3 and i[0] == "a" and set(i) <= set("ab") for i in items)

    fits = [t for t in itertools.product(range(7 if nulls else 6), repeat=slots) if whole(t)]
    fits = [t for t in fits if all(h is None or h == x for h, x in zip(held, t, strict=True))]

    def worth(tokens: Sequence[int]) -> float:
        return sum(float(logp[i, t]) for i, t in enumerate(tokens) if held[i] is None)

    best = grammar.best(grammar.start(b""), scores, held, [], 0, null)
    assert (best is None) == (not fits)
    if best is not None:
        assert tuple(best) in fits
        assert math.isclose(worth(best), max(map(worth, fits)), abs_tol=1e-4)


@pytest.mark.parametrize("slots", [1, 2, 5, 24])
@pytest.mark.parametrize("null", [NULL, None])
def test_noise_becomes_json(slots: int, null: int | None) -> None:
    for spec in (wire.Json(), wire.Json(indent="  ", level=1), wire.Json(loose=True)):
        grammar = load(spec, (), TREE)
        for seed in range(4):
            text = solved(grammar, noise(slots, seed), null)
            assert text is not None
            assert parses(text)


def test_a_grammar_without_a_fill_of_that_many_tokens_says_so() -> None:
    assert solved(load(wire.Pattern("abc"), (), TREE), noise(4, 0), None) is None
    assert solved(load(wire.Pattern("abc"), (), TREE), noise(2, 0)) is None


def test_decided_slots_stay() -> None:
    grammar = load(wire.Json(), (), TREE)
    opened, closed = PIECES.index(b"{"), PIECES.index(b"}")
    for seed in range(6):
        text = solved(grammar, noise(12, seed), held=[opened, *[None] * 10, closed])
        assert text is not None
        assert isinstance(json.loads(text), dict)


def test_a_known_fill_stands_where_the_beam_has_lost_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.engine.grammar.solve.BEAM", 1)
    grammar = load(wire.Pattern("(x{20}|[a-w]*q)"), (), TREE)
    logits = np.full((3, NULL + 1), -20.0, np.float32)
    logits[:, ord("x")] = 0.0
    known = [ord("a"), ord("q"), NULL]
    assert grammar.best(grammar.start(b""), HostScores(logits), [None] * 3, known, 0, NULL) is not None


def test_a_change_costs_only_the_layers_behind_it() -> None:
    grammar = load(wire.Json(), (), TREE)
    gains = Gains(HostScores(noise(8, 3)), grammar.graph.walker.sets)
    fill = Trellis(grammar.graph, grammar.start(b""), gains, [None] * 8, [], NULL)
    first = fill.solve()
    assert first is not None
    before = fill.layers[:6]
    fill.ban(5, first[5])
    second = fill.solve()
    assert second is not None
    assert second[5] != first[5]
    assert all(a is b for a, b in zip(before, fill.layers, strict=False))


def test_the_start_of_a_healed_hole_is_written_first() -> None:
    grammar = load(wire.Json(), (), TREE)
    tokens = grammar.best(grammar.start(b'": '), HostScores(noise(6, 1)), [None] * 6, [], 3, NULL)
    assert tokens is not None
    text = b"".join(PIECES[t] for t in tokens if t != NULL).decode()
    assert text.startswith('": ')
    assert parses(text[3:])


# Keys


@given(values)
def test_keys_are_distinct_where_they_are(value: object) -> None:
    assert distinct_keys(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "members", "distinct"),
    [
        ('{"a": 1, "a": 2', False, False),
        ('{"a": 1, "\\u0061": 2}', False, False),
        ('{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}', False, True),
        ('"a": 1, "b": {"a": "a"}', True, True),
        ('"a": [], "a": 1', True, False),
        ('["a", "a"]', False, True),
        ('{"a": "a", "b": "a, ', False, True),
    ],
)
def test_a_key_said_twice_is_found_in_a_text_that_may_end_anywhere(text: str, members: bool, distinct: bool) -> None:
    assert distinct_keys(text, members=members) == distinct


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('"', ["ab"]),
        ('"a', ["b"]),
        ('"b": 1, "ab', [""]),
        ('"b": {"c": [1, "x"]}, "a', ["b"]),
        ('"abc', []),
        ('"b": "a', []),
        ('"b": {"a', []),
        ('"b": ["a', []),
        ('"b": "\\", \\"a', []),
    ],
)
def test_a_key_that_may_become_a_taken_one_is_told_from_all_else(text: str, left: list[str]) -> None:
    assert load(wire.Json(start="members", taken=("ab",)), (), TREE).to_taken(text.encode()) == left


@pytest.mark.parametrize("key", ["c\x01", "\n", "\x7f", "a\x9f"])
@pytest.mark.parametrize("taken", [(), ("b",)])
def test_a_new_key_has_no_control_character(key: str, taken: tuple[str, ...]) -> None:
    members = wire.Json("members", taken=taken)
    for text in (json.dumps(key), json.dumps(key, ensure_ascii=False)):
        assert not reads(members, f"{text}: 1")
        assert not reads(members, f'"a": {{{text}: 1}}')
    assert reads(members, f'"a": {json.dumps(key)}')


def test_a_key_is_not_said_twice_however_likely_it_is() -> None:
    grammar = load(wire.Json(), (), TREE)
    wanted = ["{", '"', "a", '": ', "1", ", ", '"', "a", '": ', "2", "}"]
    logits = np.full((len(wanted), NULL + 1), -8.0, np.float32)
    for slot, piece in enumerate(wanted):
        logits[slot, PIECES.index(piece.encode())] = 0.0
    logits[:, NULL] = -50.0
    text = solved(grammar, logits)
    assert text is not None
    assert parses(text)
    assert len(text) > 8, "not the shortest text, on which we fall back"


def test_the_simplest_text_has_distinct_keys() -> None:
    text = load(wire.Json(start="members", least=3), (), TREE).simplest(b": ").decode()
    assert text.startswith(": ")
    assert len(json.loads("{" + text[2:] + "}")) == 3
    assert parses("{" + text[2:] + "}")


def test_a_contradiction_is_told() -> None:
    with pytest.raises(ValueError, match="Nothing can stand here"):
        load(wire.Json(typed="x"), (), TREE)
    with pytest.raises(ValueError, match="Nothing can stand here"):
        load(wire.Pattern("[^\\s\\S]"), (), TREE)


def test_what_a_set_is_worth_without_what_is_banned() -> None:
    sets = [np.array(one) for one in ([0, 1, 2], [1], [2, 5, 9], list(range(40)))]
    scores = HostScores(noise(3, 2))
    gains, (logp,) = Gains(scores, sets), told(scores.dense())
    numbers = np.array([0, 1, 2, 3, 0, 3])
    banned = set[int]()
    for token in (int(logp[1].argmax()), 1, 2, 5, 9, 0):
        gains.banned.setdefault(1, set()).add(token)
        banned.add(token)
        left = [[t for t in sets[number].tolist() if t not in banned] for number in numbers]
        expected = [max((float(logp[1, t]) for t in tokens), default=-np.inf) for tokens in left]
        assert gains.of(1, numbers).tolist() == expected
        assert gains.of(0, numbers).tolist() == Gains(scores, sets).of(0, numbers).tolist()


def test_a_rule_that_is_too_large_after_all_is_not_gone_into() -> None:
    huge = repeat(one_of("x"), 10_000, None)
    grammar = Grammar(RuleSet(choice(literal("a"), Rule("huge")), lambda name: huge), TREE)
    assert solved(grammar, noise(3, 0)) == "a"
    with pytest.raises(TooLarge, match="too often"):
        Grammar(RuleSet(huge, lambda name: huge), TREE)
    with pytest.raises(ValueError, match="Nothing can stand"):
        Grammar(RuleSet(Rule("huge"), lambda name: huge), TREE)


def test_a_fill_of_a_number_of_tokens_has_distinct_keys() -> None:
    grammar = load(wire.Json(start="members", least=2, taken=("a",)), (), TREE)
    for slots in range(4, 16):
        fill = grammar.any(b"", slots, NULL)
        assert fill is None or parses("{" + b"".join(PIECES[t] for t in fill).decode() + "}")


def test_what_closes_a_text_repeats_no_key_of_it() -> None:
    for loose, own in ((False, b'"0": 1, '), (True, b'"":0,'), (True, b'"":0, "')):
        grammar = load(wire.Json(start="members", least=4, loose=loose), (), TREE)
        state = grammar.start(b"")
        for byte in own:
            state = grammar.after(state, byte)
        text = "{" + (own + grammar.closing(state, own)).decode() + "}"
        assert parses(text)
        assert len(json.loads(text)) == 4


def test_no_token_may_come_behind_which_nothing_leads_to_what_follows() -> None:
    grammar = load(wire.Json(typed='"ab', then='cd"'), (), TREE)
    start = grammar.start(b"")
    may = grammar.allowed(start, NULL)
    assert ord("x") in may
    assert ord('"') not in may
    assert grammar.after(start, ord('"')) == ()
    assert grammar.closing(grammar.after(start, ord("\\")), b"\\")
