"""Text around and inside a hole: token healing at every kind of cursor, fills, holes, and the context's window."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.healing import heal
from caesura.engine.canvas.layout import fold, lay, rule, single_line
from caesura.engine.canvas.pieces import by_token, spans
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scores import Allowed, Floats, told
from caesura.engine.scores.host import HostScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.model_store import SMALL, locate
from caesura.wire import Hole, Json, Text

from ...support.checkpoints.tiny import Scripted, infill, laid_out

CURSORS = {
    "mid-token": ("def f(count):\n    retu", "rn count\n"),
    "partial identifier": ("self.item_co", " + 1\n"),
    "after a dot": ("self.", "\n"),
    "private name": ("self._", "\n"),
    "f-string": ("x = f'da", "'\n"),
    "before a closing bracket": ("print(len(a", "))\n"),
    "empty line": ("def f():\n    ", "\n\ndef g():\n"),
    "deep empty line": ("if a:\n" + " " * 60, "\n"),
    "end of file": ("x = 1\ny = ", ""),
    "empty file": ("", ""),
    "start of file": ("", "import os\n"),
    "first word": ("imp", "\n"),
    "after a line break": ("a = 1\n", "b = 2\n"),
    "CRLF": ("if a:\r\n    b\r\n    ", "\r\nc\r\n"),
    "emoji": ('print("😀', '🐍")\n'),
    "accents": ("naï", "ve = 1\n"),
    "tabs": ("def f():\n\t\t", "\n"),
    "form feed": ("a\n\f\n", "b\n"),
    "digits": ("x = 12", "\n"),
    "dunder": ("def __", "__(self):\n"),
    "long name": ("x" * 100, "\n"),
    "rule": ("# " + "=" * 100, "\n"),
    "control character": ("x\x04", "\n"),
}
cursors = pytest.mark.parametrize(("prefix", "suffix"), CURSORS.values(), ids=CURSORS)
SHIPPED = Scripted(Tokenizer(locate(SMALL) / "tokenizer.json"), [])
VOCABULARY = Vocabulary(SHIPPED)

# What code is made of, with everything that byte-level pre-tokens treat in a way of its own.
ATOMS = (
    *("x", "foo", "self", "is", "é", "ß", "日本", "Ω"),
    *("_", "__", ".", "(", ")", "[", "->", "=", "#", '"', "'", "`", ",", ":", "\\", "{"),
    *("'s", "'re", "'d", "'ll", "f'", "' "),
    *("0", "17", "²", "½", "٣"),
    *(" ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", "\f", "\v", "\u00a0", "\u2003", "\u2028"),
    *("😀", "👩‍💻", "\u0301", "\u200d", "\x00", "\x1c", "\x85", "\ufeff"),
)
code = st.lists(st.sampled_from(ATOMS), max_size=10).map("".join)


def laid(
    model: NativeLlama, prefix: str, suffix: str, *segments: Text | Hole, slots: int = 8
) -> tuple[list[int], Canvas]:
    layout = laid_out(model, prefix, suffix, *(segments or (Hole(32),)), slots=slots)
    return layout.context, layout.canvas


def hand(model: NativeLlama, tokens: list[Slot | int], hole: HoleState) -> Canvas:
    return Canvas([], tokens, [], [hole], Vocabulary(model))


# Healing


@settings(max_examples=300, deadline=None)
@given(prefix=code, following=code)
@example("self._", "x")  # `._` is one pre-token
@example("x = f'da", "ta'")  # GPT-2 cuts contractions: f 'd ata
@example("it'", "s")
@example("f(_", "_x")
@example("a  ", " b")
@example("a\t", "'d")
@example("a\n\nimp", "ort")  # blanks before a word are one pre-token less its last blank
@example("\t\tre", "turn")
@example("a\r\nb", "")
@example("x 三", "日")  # a number to Python, a letter to Unicode
def test_tokens_before_a_hole_stay_the_same_whatever_fills_it(tiny: NativeLlama, prefix: str, following: str) -> None:
    for model in (tiny, SHIPPED):
        layout = lay(model, VOCABULARY, infill("j", prefix, "", Hole(1)), 1)
        before = [t for t in [*layout.context, *layout.canvas.tail] if t not in model.spec.separator]
        forced = layout.canvas.holes[0].forced
        encode = model.tokenizer.encode
        assert model.tokenizer.bytes(before) + forced == prefix.encode()
        assert before + encode(forced.decode() + following) == encode(prefix + following)


@settings(max_examples=100, deadline=None)
@given(prefix=st.text(max_size=80))
def test_healing_any_text_loses_nothing(prefix: str) -> None:
    stable, forced = heal(SHIPPED.tokenizer, prefix)
    assert stable + forced == prefix
    assert len(forced) <= 48


def constrained(canvas: Canvas, logits: Floats | None = None) -> Floats:
    """Log-probabilities of the slots by these logits, or by equal ones."""
    if logits is None:
        logits = np.zeros((len(canvas.slots), canvas.vocabulary.size), np.float32)
    (logp,) = told(canvas.constrain(HostScores(logits)).dense())
    found: Floats = logp
    return found


@cursors
def test_the_context_is_suffix_then_prefix_up_to_the_healed_cut(tiny: NativeLlama, prefix: str, suffix: str) -> None:
    context, canvas = laid(tiny, prefix, suffix)
    rows = [*context, *canvas.tail]
    separator = tiny.spec.separator[0]
    assert rows.count(separator) == 1
    cut = rows.index(separator)
    decode = tiny.tokenizer.decode
    assert decode(rows[:cut]) == suffix
    assert decode(rows[cut + 1 :]) + canvas.holes[0].forced.decode() == prefix
    assert suffix.encode().startswith(tiny.tokenizer.bytes(canvas.head))


@cursors
def test_a_canvas_has_a_row_before_its_first_slot(tiny: NativeLlama, prefix: str, suffix: str) -> None:
    _, canvas = laid(tiny, prefix, suffix)
    assert canvas.slot_rows()[0] >= tiny.spec.shift, "a slot is predicted by the row before it"


@cursors
def test_forced_text_can_be_spelled(tiny: NativeLlama, prefix: str, suffix: str) -> None:
    """Greedy tokens out of the allowed ones reproduce what has to come first, and the fill does not contain it."""
    _, canvas = laid(tiny, prefix, suffix, Hole(64), slots=64)
    forced = canvas.holes[0].forced
    draw = np.random.default_rng(0)
    for _ in range(len(forced) + 3):
        slot = canvas.open()[0]
        row = canvas.slots.index(slot)
        slot.token = int((draw.standard_normal(canvas.vocabulary.size) + constrained(canvas)[row]).argmax())
        slot.locked = True
    written = b"".join(canvas.piece(s.token) for s in canvas.slots if s.token is not None)
    assert written.startswith(forced)
    assert canvas.fills()[0].text == written[len(forced) :].decode("utf-8", errors="ignore")


def test_a_healed_indentation_is_not_deepened(tiny: NativeLlama) -> None:
    _, canvas = laid(tiny, "def f():\n    ", "\n")
    assert canvas.holes[0].forced == b"\n    "
    for token in np.flatnonzero(np.isfinite(constrained(canvas)[0])):
        assert not canvas.piece(token).startswith(b"\n     ")


# What is allowed


@pytest.mark.parametrize(("kind", "several"), [("line", False), ("span", False), ("block", True)])
def test_line_breaks_are_for_blocks(tiny: NativeLlama, kind: str, several: bool) -> None:
    _, canvas = laid(tiny, "a = ", "", Hole(8, kind))  # type: ignore[arg-type]
    pieces = canvas.vocabulary.pieces
    for row in constrained(canvas)[1:]:
        broken = [t for t in np.flatnonzero(np.isfinite(row)) if t < len(pieces) and b"\n" in pieces[t]]
        assert bool(broken) == several


def test_no_special_token_is_ever_allowed_but_null(tiny: NativeLlama) -> None:
    _, canvas = laid(tiny, "a = ", "")
    allowed = np.isfinite(constrained(canvas))
    mask, null = tiny.config.vocab_size, tiny.spec.null_id
    assert allowed.shape == (len(canvas.slots), canvas.vocabulary.size)
    assert not allowed[:, mask].any()
    assert not allowed[:, tiny.spec.separator[0]].any()
    assert allowed[1:, null].all()


# Fills


def test_a_fill_is_what_is_accepted_and_drafted(tiny: NativeLlama) -> None:
    a, b, c = (tiny.tokenizer.encode(x)[0] for x in "abc")
    slots: list[Slot | int] = [Slot(0, token=a, locked=True, prob=1.0), Slot(0, draft=b, prob=0.25), Slot(0)]
    fill = hand(tiny, [*slots, Slot(0, token=c, locked=True, prob=1.0)], HoleState(True, 8)).fills()[0]
    assert (fill.text, fill.locked, fill.open) == ("abc", ((0, 1), (2, 3)), 2)
    assert fill.confidence == pytest.approx((1 * 0.25 * 1) ** (1 / 3), rel=1e-3)
    assert fill.probabilities == ((1, 1.0), (2, 0.25), (3, 1.0))


def test_a_fill_leaves_out_the_forced_text_and_is_empty_until_it_is_there(tiny: NativeLlama) -> None:
    tokens = tiny.tokenizer.encode("return")
    canvas = hand(tiny, [Slot(0, token=t, locked=True) for t in tokens], HoleState(True, 8, b"retu"))
    assert canvas.fills()[0].text == "rn"
    assert canvas.fills()[0].locked == ((0, 2),)
    canvas.holes[0].forced = b"reto"
    assert (canvas.fills()[0].text, canvas.fills()[0].probabilities) == ("", ())


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("aé😀日\n ")), data=st.data())
def test_spans_lock_whole_characters(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    flags = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(raw), max_size=len(raw))))
    shown, locked = spans(raw, flags)
    assert shown == text
    at, expected = 0, []
    for character in text:
        end = at + len(character.encode())
        expected.append(all(flags[at:end]))
        at = end
    assert [any(a <= i < b for a, b in locked) for i in range(len(text))] == expected
    assert all(a < b for a, b in locked)
    assert all(a[1] < b[0] for a, b in pairwise(locked))


def test_a_character_split_over_tokens_shows_when_it_is_whole(tiny: NativeLlama) -> None:
    tokens = tiny.tokenizer.encode("a😀b")
    assert len(tokens) > 3
    slots: list[Slot | int] = [Slot(0, token=t, locked=True) for t in tokens]
    assert hand(tiny, slots[:-2], HoleState(True, 8)).fills()[0].text == "a"
    whole = hand(tiny, slots, HoleState(True, 8)).fills()[0]
    assert (whole.text, whole.locked) == ("a😀b", ((0, 3),))
    slots[2] = Slot(0, draft=tokens[2])
    assert hand(tiny, slots, HoleState(True, 8)).fills()[0].locked == ((0, 1), (2, 3))
    slots.insert(3, Slot(0, draft=tiny.spec.null_id))  # in the middle of the character
    assert hand(tiny, slots, HoleState(True, 8)).fills()[0].text == "a😀b"


def test_an_open_null_before_a_healed_start_hides_no_fill(tiny: NativeLlama) -> None:
    slots: list[Slot | int] = [Slot(0, draft=tiny.spec.null_id)]
    slots += [Slot(0, draft=token) for token in tiny.tokenizer.encode("return")]
    assert hand(tiny, slots, HoleState(True, 9, b"retu")).fills()[0].text == "rn"


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=24))
def test_any_bytes_have_spans(raw: bytes) -> None:
    text, locked = spans(raw, b"\1" * len(raw))
    assert text == raw.decode("utf-8", errors="ignore")
    assert locked == (((0, len(text)),) if text else ())


@pytest.mark.parametrize(
    ("pieces", "skip", "expected"),
    [
        (["a", "bc", "d"], 0, [(1, 0.5), (3, 0.5), (4, 0.5)]),
        (["re", "turn", " x"], 4, [(2, 0.25), (4, 0.5)]),  # `retu` is forced: the text is `rn x`
        ([" ret", "u", "rn"], 5, [(2, 0.125)]),
        (["a", "\x9f", "b"], 0, [(1, 0.5), (2, 0.25)]),  # half a character counts with the other half
        (["a", "", "b"], 0, [(1, 0.5), (2, 0.5)]),  # null is no token of the text
        (["a", "é\xe2"], 0, [(1, 0.5), (2, 0.5)]),  # a character that is not whole is not shown
        (["a", "\xe2"], 0, [(1, 0.5)]),
        ([], 0, []),
        (["ab"], 4, []),
    ],
)
def test_each_token_of_a_text_has_its_probability(
    pieces: list[str], skip: int, expected: list[tuple[int, float]]
) -> None:
    halves = {"\x9f": b"\xf0\x9f", "b": b"\x98\x80" if "\x9f" in pieces else b"b"}
    raw = [halves.get(p, p.replace("\xe2", "").encode() + (b"\xe2" if "\xe2" in p else b"")) for p in pieces]
    assert by_token([(piece, 0.5) for piece in raw], skip) == tuple(expected)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.tuples(st.binary(max_size=5), st.floats(0, 1)), max_size=8), skip=st.integers(0, 4))
def test_ends_of_tokens_ascend_to_the_end_of_any_text(pieces: list[tuple[bytes, float]], skip: int) -> None:
    text = b"".join(piece for piece, _ in pieces)[skip:].decode("utf-8", errors="ignore")
    found = by_token(pieces, skip)
    ends = [0, *(end for end, _ in found)]
    assert all(a < b for a, b in pairwise(ends))
    assert ends[-1] == len(text)
    assert all(0 <= p <= 1 for _, p in found)


# Several holes


def test_fixed_text_at_the_ends_becomes_prefix_and_suffix() -> None:
    hole = Hole()
    assert fold("a", [Text("b"), hole, Text("c"), hole, Text("d")], "e") == ("ab", [hole, Text("c"), hole], "de")
    assert fold("a", [Text("b"), Text("c"), hole], "") == ("abc", [hole], "")
    with pytest.raises(ValueError, match="no hole"):
        fold("a", [Text("b")], "c")


@pytest.mark.parametrize("before_another_hole", [False, True])
def test_a_token_that_goes_on_into_what_stands_behind_is_an_end(before_another_hole: bool) -> None:
    """Models know `":` as one token; a grammar has no room for it before `: 1`."""
    encode, null = SHIPPED.tokenizer.encode, VOCABULARY.null_id
    holes, slots, behind = [HoleState(True, 4)], [Slot(0) for _ in range(4)], encode(": 1}")
    rule(VOCABULARY, holes[0], Json(start="key"), ())
    canvas = Canvas([], [*slots], behind, holes, VOCABULARY)
    if before_another_hole:
        canvas = Canvas([], [*slots, *behind, Slot(1)], [], [*holes, HoleState(True, 1)], VOCABULARY)
    canvas.draft_shortest()
    logits = np.full((len(canvas.slots), VOCABULARY.size), -20.0, np.float32)
    said = [*encode('"left":'), null]
    logits[range(4), said] = 0.0
    logits[range(4), encode('"left hand"')] = [0.0, 0.0, -5.0, -1.0]  # what would be left
    assert constrained(canvas, logits)[:4].argmax(-1).tolist() == [*said[:2], *encode('"'), null]


@pytest.mark.parametrize("between", [", ", ") + (", ")\n    retu", "\r\n", "😀", "_", ")"])
def test_text_between_holes_is_fixed_or_forced(tiny: NativeLlama, between: str) -> None:
    _, canvas = laid(tiny, "f(", ")\n", Hole(8), Text(between), Hole(8), slots=4)
    fixed = [row for row in canvas.layout if isinstance(row, int)]
    assert tiny.tokenizer.decode(fixed) + canvas.holes[1].forced.decode() == between
    order = [row.hole if isinstance(row, Slot) else -1 for row in canvas.layout]
    assert order == [0] * 4 + [-1] * len(fixed) + [1] * 4
    ids = canvas.ids([7] * 8)
    assert [ids[row] for row in canvas.slot_rows()] == [7] * 8


def test_growing_and_shrinking_keep_the_fixed_rows(tiny: NativeLlama) -> None:
    _, canvas = laid(tiny, "f(", ")\n", Hole(8), Text(", x = "), Hole(8), slots=2)
    fixed = [row for row in canvas.layout if isinstance(row, int)]
    canvas.grow(1)
    assert [len(canvas.of_hole(n)) for n in (0, 1)] == [2, 4]
    canvas.grow(0)
    canvas.grow(0)
    canvas.grow(0)
    assert [len(canvas.of_hole(n)) for n in (0, 1)] == [9, 4]  # the healed bracket has a slot of its own
    canvas.slots[1].token = canvas.slots[9].token = tiny.spec.null_id
    canvas.shrink()
    assert [len(canvas.of_hole(n)) for n in (0, 1)] == [8, 3]
    assert [row for row in canvas.layout if isinstance(row, int)] == fixed


# Kind of a hole


@pytest.mark.parametrize(
    ("before", "after", "one_line"),
    [
        ("def f():\n    ", "\n", False),
        ("def f():\r\n    ", "\r\n", False),
        ("if (a) {\n\t", "", False),
        ("x = ", "\n", True),
        ("def f():", "\n", True),
        ("def f():\n    ", "return 1\n", True),
        ("a = 1\n", "\n", True),
        ("", "", True),
    ],
)
def test_auto_is_a_block_in_an_empty_line_behind_an_opener(before: str, after: str, one_line: bool) -> None:
    assert single_line(Hole(), before, after) == one_line
    assert single_line(Hole(kind="line"), before, after)
    assert single_line(Hole(kind="span"), before, after)
    assert not single_line(Hole(kind="block"), before, after)


def test_what_is_kept_of_grammars_is_bounded_and_what_they_allow_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 8 << 20
    monkeypatch.setattr(VOCABULARY._grammars, "_room", room)
    allowed, value = list[Allowed](), VOCABULARY.pieces.index(b"true")
    for _ in range(2):
        for number in range(12):
            grammar = VOCABULARY.grammar(Json(start="members", taken=(f"key{number}",)), ())
            assert 0 < VOCABULARY._grammars.nbytes <= room
            state = grammar.start(b"")
            for token in VOCABULARY.spelled(b'"name": '):
                allowed.append(grammar.allowed(state, VOCABULARY.size))
                state = grammar.after(state, token)
            assert value in grammar.allowed(state, VOCABULARY.size)
            assert VOCABULARY.grammar(Json(start="members", taken=(f"key{number}",)), ()) is grammar
    first, again = allowed[: len(allowed) // 2], allowed[len(allowed) // 2 :]
    assert first == again
