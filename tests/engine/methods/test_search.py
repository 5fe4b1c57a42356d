"""Draft and verify, driven by distributions that are written down, drawn at random, or a tiny model's."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import HoleState
from caesura.engine.canvas.layout import lay, rule
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods._forward import Pass
from caesura.engine.methods.verify import begin
from caesura.engine.methods.verify.lines import Rules, ending, never
from caesura.engine.methods.verify.lookup import Repeats
from caesura.engine.methods.verify.search import (
    FULL,
    GHOST,
    PASSES,
    WIDTH,
    Effort,
    Search,
)
from caesura.engine.model import Run
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores import Below, Floats, told
from caesura.engine.scores.host import HostScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.tokenizer_file import QWEN
from caesura.server.infill.choose import likely

from ...support.checkpoints.tiny import Scripted, infill, run, train_tokenizer

Predict = Callable[[tuple[int, ...]], Floats]  # what came before, from the tail on -> log-probabilities of what follows


class Table:
    """Probabilities by what came before; elsewhere nearly uniform."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.known: dict[tuple[int, ...], dict[int, float]] = {}

    def chain(self, tokens: Sequence[int], probs: float | Sequence[float], behind: int) -> None:
        """Each token behind the first `behind` has its probability given those before it."""
        for i in range(behind, len(tokens)):
            p = probs if isinstance(probs, float) else probs[min(i - behind, len(probs) - 1)]
            self.known.setdefault(tuple(tokens[:i]), {})[tokens[i]] = p

    def __call__(self, path: tuple[int, ...]) -> Floats:
        known = self.known.get(path, {})
        rest = (1 - sum(known.values())) / (self.size - len(known))
        probs = np.full(self.size, max(rest, 1e-12), np.float32)
        for token, p in known.items():
            probs[token] = p
        with np.errstate(divide="ignore"):  # some are impossible
            logp: Floats = np.log(probs)
        return logp


class Drawn:
    """A distribution per path, drawn from a seed."""

    def __init__(self, size: int, seed: int, sharp: float) -> None:
        self.size, self.seed, self.sharp = size, seed, sharp

    def __call__(self, path: tuple[int, ...]) -> Floats:
        draw = np.random.default_rng(hash((self.seed, *path)) % 2**62)
        return draw.standard_normal(self.size, np.float32) * np.float32(self.sharp)


def hear(search: Search, logits: Sequence[Floats]) -> None:
    """A pass that gives these rows."""
    search.receive(told(*search.read(HostScores(np.stack(logits)))))


def pathed(ids: Sequence[int], rows: Pass) -> list[tuple[int, ...]]:
    """The tokens that each row sees, its own last."""
    return [tuple(ids[column] for column in np.flatnonzero(row)) for row in rows.mask]


def answer(
    search: Search, predict: Predict, seen: Callable[[Pass], None] = lambda rows: None, draft: Sequence[int] = ()
) -> list[tuple[str, int]]:
    """Run to the end as a step does, with the draft of a canvas that was denoised beside the first pass; what was
    shown after each pass, and how much of it was locked."""
    ids: list[int] = []
    shown = []
    while not search.finished():
        rows = search.plan()
        ids += rows.ids
        seen(rows)
        hear(search, [predict(path) for path in pathed(ids, rows)])
        if search.passes == 1:
            search.propose(draft, "canvas")
        search.prune()
        shown.append(search.text())
        assert len(shown) <= PASSES
    return shown


@pytest.fixture(scope="module")
def vocabulary(tiny: NativeLlama) -> Vocabulary:
    return Vocabulary(tiny)


def searching(
    tiny: NativeLlama,
    vocabulary: Vocabulary,
    after: str = "\n",
    forced: str = "",
    *,
    line: bool = True,
    most: int = 16,
    seed: int = 0,
    effort: Effort = FULL,
) -> tuple[Search, list[int], list[int]]:
    """A search behind `return`, its tail and the suffix's tokens; with a seed, for another answer."""
    tail, head = tiny.tokenizer.encode("return"), tiny.tokenizer.encode(after)
    draws = Draws(seed) if seed else None
    hole = HoleState(line, most, forced.encode())
    long = hole.block and effort is FULL
    return Search(vocabulary, hole, tail, head, 0, draws, long=long, effort=effort), tail, head


def test_the_greedy_path_is_found(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, head = searching(tiny, vocabulary)
    fill = tiny.tokenizer.encode(" left + 1")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.9, len(tail))
    answer(search, table)
    assert search.text()[0] == " left + 1"
    assert search.tree.tokens(search.leader()) == fill
    assert search.confidence(search.leader()) == pytest.approx(0.9, rel=0.01)


def test_a_draft_from_beside_the_first_pass_is_scored_by_the_next(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, head = searching(tiny, vocabulary)
    fill = tiny.tokenizer.encode(" left + 1")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.5, len(tail))
    passes: list[list[int]] = []
    shown = answer(search, table, lambda rows: passes.append(rows.ids), fill)
    assert shown[-1][0] == " left + 1"
    assert set(fill) <= set(passes[1])
    assert len(passes) <= 4
    assert [n.source for n in search.leader().path()] == ["canvas"] * len(fill)


def test_a_token_is_the_first_ones_that_proposed_it(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, head = searching(tiny, vocabulary)
    fill = tiny.tokenizer.encode(" left + 1")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.9, len(tail))
    for source in ("canvas", "lookup"):
        search.propose(fill, source)
    answer(search, table)
    assert [n.source for n in search.leader().path()] == ["canvas"] * len(fill)


def test_nothing_is_locked_that_a_draft_still_to_be_scored_disagrees_with(
    tiny: NativeLlama, vocabulary: Vocabulary
) -> None:
    encode = tiny.tokenizer.encode
    for draft, agrees in ((" left", True), ("(right)", False), ("", True)):
        search, tail, head = searching(tiny, vocabulary, effort=GHOST)
        table = Table(tiny.tokenizer.size)
        table.chain([*tail, *encode(" left"), *head], 0.97, len(tail))
        _, locked = answer(search, table, draft=encode(draft))[0]
        assert (locked > 0) == agrees


def test_what_follows_the_same_tokens_elsewhere_saves_passes(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    encode = tiny.tokenizer.encode
    tail, head, fill = encode("return"), encode("\n"), encode(" value + left + right")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.8, len(tail))
    taken = []
    for ids in ([], encode("return value + left + right\n")):
        search = Search(vocabulary, HoleState(True, 16), tail, head, 0, repeats=Repeats([*ids, *tail]))
        assert answer(search, table)[-1][0] == " value + left + right"
        taken.append(search.passes)
    assert taken[1] <= taken[0] - 3
    assert "lookup" in [n.source for n in search.leader().path()]


@pytest.mark.parametrize(("chances", "taken"), [([0.9, 0.8, 0.1], 2), ([0.1, 0.9, 0.9], 0), ([0.9, 0.9, 0.9], 3)])
def test_a_draft_is_followed_as_far_as_it_is_likely(
    tiny: NativeLlama, vocabulary: Vocabulary, chances: list[float], taken: int
) -> None:
    search, tail, head = searching(tiny, vocabulary)
    fill = tiny.tokenizer.encode(" left + right.total")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.9, len(tail))
    assert search.to_draft() is None, "nothing is known before the first pass"
    rows = search.plan()
    hear(search, [table(tuple(tail[: n + 1])) for n in range(len(rows.ids))])
    search.prune()
    asked = search.to_draft()
    assert asked is not None
    assert (asked.ids, asked.positions) == (fill[:1], [len(tail)])
    assert asked.mask.tolist() == [[True] * (len(tail) + 1)]
    search.take_draft(fill[1:4], chances)
    assert search.plan().ids[: WIDTH + taken].count(fill[1]) == (taken > 0)
    chain = [node for node, *_ in search._plan if node is not None and node.source == "canvas"]
    assert [node.token for node in chain] == fill[1 : 1 + taken]


def test_the_buffer_is_asked_before_a_drafter(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    encode = tiny.tokenizer.encode
    tail, head, fill = encode("return"), encode("\n"), encode(" value + left")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.9, len(tail))
    search = Search(vocabulary, HoleState(True, 16), tail, head, 0, repeats=Repeats([*tail, *fill, *head, *tail]))
    rows = search.plan()
    hear(search, [table(tuple(tail[: n + 1])) for n in range(len(rows.ids))])
    assert search.to_draft() is None
    assert "lookup" in {node.source for node in search.open[0].children.values()}


def test_no_draft_is_longer_than_its_hole(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, _ = searching(tiny, vocabulary, most=2)
    rows = search.plan()
    hear(search, [Drawn(tiny.tokenizer.size, 1, 3.0)(tuple(tail))] * len(rows.ids))
    assert search.to_draft() is not None
    words = tiny.tokenizer.encode(" left right total")[:3]
    search.take_draft(words, [1.0, 1.0, 1.0])
    search.plan()
    assert max(node.depth for node, *_ in search._plan if node is not None) == 2


def test_what_is_less_likely_than_asked_for_is_not_followed(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    encode = tiny.tokenizer.encode
    tail, head, fill = encode("return"), encode("\n"), encode(" value + left + right")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.9, len(tail))
    found = []
    for least in (0.0, 0.7):
        search = Search(vocabulary, HoleState(True, 16), tail, head, 0, min_probability=least)
        answer(search, table)
        found.append((search.text()[0], search.passes))
    (whole, passes), (part, fewer) = found
    assert whole == " value + left + right"
    assert part
    assert whole.startswith(part)
    assert len(part) < len(whole)
    assert fewer < passes / 2


@pytest.mark.parametrize(("end", "found"), [(0.8, True), (0.3, False)], ids=["likely", "unlikely"])
def test_a_text_as_likely_as_asked_for_is_an_answer_if_its_end_is_expected(
    tiny: NativeLlama, vocabulary: Vocabulary, end: float, found: bool
) -> None:
    """The end is not part of the answer's probability: an item of 0.103 was withheld for its end of 0.9."""
    encode = tiny.tokenizer.encode
    tail, head, fill = encode("return"), encode("\n"), encode(" value")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], [0.11 ** (1 / len(fill))] * len(fill) + [end], len(tail))
    search = Search(vocabulary, HoleState(True, 16), tail, head, 0, min_probability=0.1)
    answer(search, table)
    assert (search.best() is not None and search.text()[0] == " value") == found


@pytest.mark.parametrize("holes", [1, 3])
def test_a_job_ends_once_its_fills_are_less_likely_than_asked_for(tiny: NativeLlama, holes: int) -> None:
    """The fills of a random model are; the holes after the first are not looked at."""
    segments = [wire.Hole(16), *[each for _ in range(holes - 1) for each in (wire.Text(", "), wire.Hole(16))]]
    steps = {}
    for least in (0.0, 0.9):
        *_, done = run(Scheduler(tiny), [infill("j", "x = ", "\n", *segments, min_probability=least, method="verify")])[
            "j"
        ]
        assert isinstance(done, wire.Done)
        assert len(done.holes) == holes
        assert (done.stop == "unlikely") == (least > 0)
        steps[least] = done.steps
    assert steps[0.9] <= 2 < steps[0.0]


def test_without_a_suffix_a_fill_ends_at_a_line_break(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, _ = searching(tiny, vocabulary, after="")
    fill, end = tiny.tokenizer.encode(" left"), tiny.tokenizer.encode("\n")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *end], 0.9, len(tail))
    answer(search, table)
    assert search.text()[0] == " left"


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("fill", "after"),
    [(' "left"', ": 1,\n"), (" left(0)", "):\n"), (" 1, ", "self)\n"), (' "', '""\n')],
)
def test_a_fill_may_end_inside_a_token_that_goes_on_into_the_suffix(
    tiny: NativeLlama, vocabulary: Vocabulary, fill: str, after: str, width: int
) -> None:
    """`":` is one token: what the model never saw is a `"` alone before `: 1`."""
    tail, head = tiny.tokenizer.encode("return"), tiny.tokenizer.encode(after)
    search = Search(vocabulary, HoleState(True, 16, b""), tail, head, 0, width=width)
    whole = tiny.tokenizer.encode(fill + after)
    assert whole[: len(tiny.tokenizer.encode(fill))] != tiny.tokenizer.encode(fill)
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *whole], 0.9, len(tail))
    answer(search, table)
    node = search.leader()
    assert search.text()[0] == search.tree.text_of(node) == fill
    assert b"".join(vocabulary.pieces[token] for token in search.tree.tokens(node)) == fill.encode()
    assert search.confidence(node) == pytest.approx(0.9, rel=0.01)
    assert search.tree.probabilities(node)[-1] == (len(fill), pytest.approx(0.9, rel=0.01))


@pytest.fixture(scope="module")
def joining(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    """A model whose tokenizer, as Qwen's, joins a sign and the line break after it."""
    path = tmp_path_factory.mktemp("joining") / "tokenizer.json"
    model = Scripted(Tokenizer(train_tokenizer(path, QWEN)), [])
    model.spec = replace(model.spec, ends=frozenset({model.tokenizer.special("<|endoftext|>")}))
    return model


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("fill", "after"), [(" left(0)", "\n    return 1\n"), (" left:", "\n\tprint(right)\n"), (" left)", "\n")]
)
def test_a_fill_may_end_inside_a_token_that_takes_the_line_break_along(
    joining: Scripted, fill: str, after: str, width: int
) -> None:
    vocabulary, encode = Vocabulary(joining), joining.tokenizer.encode
    tail, whole = encode("return"), encode(fill + after)
    search = Search(vocabulary, HoleState(True, 16, b""), tail, encode(after), 0, width=width)
    pieces = [vocabulary.pieces[token] for token in whole]
    assert any(piece[:1].strip() and piece.endswith(b"\n") for piece in pieces), "the tokenizer joins them"
    table = Table(joining.tokenizer.size)
    table.chain([*tail, *whole], 0.9, len(tail))
    answer(search, table)
    assert search.tree.text_of(search.leader()) == fill


def test_a_fill_may_end_inside_a_token_that_is_not_the_likeliest_of_them(joining: Scripted) -> None:
    """`:` and the line break is likelier than `)` and the line break, but what follows is not what the suffix has."""
    vocabulary, encode = Vocabulary(joining), joining.tokenizer.encode
    after = "\n    return 1\n"
    tail, begun, right, wrong = (encode(text) for text in ("return", " left(0", " left(0)" + after, " left(0:" + after))
    assert right[: len(begun)] == wrong[: len(begun)] == begun
    table = Table(joining.tokenizer.size)
    table.chain([*tail, *wrong], [0.9] * len(begun) + [0.5, 0.001], len(tail))
    table.chain([*tail, *right], [0.9] * len(begun) + [0.4, 0.9], len(tail))
    search = Search(vocabulary, HoleState(True, 16, b""), tail, encode(after), 0)
    answer(search, table)
    assert search.text()[0] == " left(0)"


def test_no_fill_ends_inside_a_run_of_blanks(joining: Scripted) -> None:
    vocabulary = Vocabulary(joining)
    for behind in (b"\n    return 1", b"    left", b" + 1"):
        crossing = vocabulary.crossing(behind, True)
        assert all(vocabulary.pieces[n][:at].strip() for n, cuts in crossing.items() for at in cuts), behind


def test_the_models_own_end_counts_with_the_suffix(joining: Scripted) -> None:
    """It says that the text ends here, which the first token of the suffix alone would not tell."""
    vocabulary, encode = Vocabulary(joining), joining.tokenizer.encode
    tail, fill, head = encode("return"), encode(" left"), encode("\n    print")
    [end] = joining.spec.ends
    confidence = []
    for ends in (0.0, 0.8):
        table = Table(joining.tokenizer.size)
        table.chain([*tail, *fill, *head], [0.9] * len(fill) + [0.1, 0.9], len(tail))
        table.known[*tail, *fill][end] = ends
        search = Search(vocabulary, HoleState(True, 16, b""), tail, head, 0)
        answer(search, table)
        assert search.text()[0] == " left"
        confidence.append(search.confidence(search.leader()))
    assert confidence[1] == pytest.approx(0.9, rel=0.01)
    assert confidence[0] < 0.7


def test_a_block_at_the_end_of_a_text_goes_on_while_the_model_does(joining: Scripted) -> None:
    """After each of its lines stands the line break that is left of the suffix; the text ends after the last one."""
    encode, [end] = joining.tokenizer.encode, joining.spec.ends
    job = infill("j", "return", "\n", wire.Hole(32, kind="block"))
    layout = lay(joining, vocabulary := Vocabulary(joining), job, 8)
    search = begin(joining, vocabulary, job, layout, KV([]), ()).search
    path, table = [*search.tail, *encode("return left")], Table(joining.tokenizer.size)
    [line_break], more = encode("\n"), encode("\nright")
    table.chain([*path, *more, line_break, end], 0.9, len(search.tail))
    table.known[*path, line_break][end] = 0.05
    answer(search, table)
    assert search.text()[0] == " left\nright"


def test_ghost_text_of_several_lines_earns_nothing(joining: Scripted) -> None:
    job = infill("j", "return", "\n", wire.Hole(64, kind="block"), effort="ghost")
    layout = lay(joining, vocabulary := Vocabulary(joining), job, 8)
    made = begin(joining, vocabulary, job, layout, KV([]), ())
    search = made.search
    assert made.of == PASSES
    assert search.head == joining.tokenizer.encode("\n"), "the end of the text does not judge it"
    search.plan()
    hear(search, [Table(joining.tokenizer.size)(())] * len(search.tail))
    assert search.open
    assert all(node.rank == node.logp for node in search.open), "no token earns anything"


def test_a_likely_block_outlasts_an_unlikely_line(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    """Many passes lie between one end of a line and the next."""
    search, tail, head = searching(tiny, vocabulary, after="\n)", line=False, most=64)
    line, more = tiny.tokenizer.encode(" left"), tiny.tokenizer.encode("\n" + " right, left" * 4)
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *line, *more, *head], 0.99, len(tail))
    table.chain([*tail, *line, *head], [1e-4], len(tail) + len(line) + 1)
    answer(search, table)
    assert search.text()[0] == tiny.tokenizer.decode([*line, *more])


@pytest.mark.parametrize("followed", [True, False])
def test_the_likeliest_path_of_a_block_is_scored_where_the_block_ends(
    tiny: NativeLlama, vocabulary: Vocabulary, followed: bool
) -> None:
    """Its second word promises too little to be looked at, next to a line that is likelier until there."""
    encode, table = tiny.tokenizer.encode, Table(tiny.tokenizer.size)
    tail, head = encode("return"), encode("\n")
    block, beyond = " left + right\n    left(right)", "\nright"
    table.chain([*tail, *encode(block + beyond)], [0.9, 0.5, 0.3, 0.97], len(tail))
    table.chain([*tail, *encode(" 1"), *head], [0.9, 0.4, 0.95], len(tail))
    rules = Rules(block_end=ending("    ", never) if followed else None)
    search = Search(vocabulary, HoleState(False, 32), tail, head, 0, long=True, rules=rules)
    answer(search, table)
    assert (block in {search.tree.text_of(found.node) for found in search.candidates()}) is followed


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("start", "fill", "after", "likelier"),
    [("key", '"left"', ": 1}\n", b""), ("value", '"left"', ', "b": 2}\n', b""), ("value", "[0]", ", 1\n", b'",')],
)
def test_what_a_grammar_allows_may_end_inside_such_a_token_too(
    tiny: NativeLlama,
    vocabulary: Vocabulary,
    start: Literal["key", "value"],
    fill: str,
    after: str,
    likelier: bytes,
    width: int,
) -> None:
    """A likelier token that goes on into the suffix would end the fill with what is no JSON."""
    encode, pieces = tiny.tokenizer.encode, vocabulary.pieces
    tail, whole = encode("{"), encode(fill + after)
    inside = sum(end < len(fill) for end in itertools.accumulate(len(pieces[token]) for token in whole))
    hole = HoleState(False, 16)
    rule(vocabulary, hole, wire.Json(start=start), ())
    search = Search(vocabulary, hole, tail, encode(after), 0, width=width)
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *whole], [*[0.9] * inside, 0.4, 0.9], len(tail))
    if likelier:
        table.known[*tail, *whole[:inside]][pieces.index(likelier)] = 0.5
    answer(search, table)
    assert search.text()[0] == search.tree.text_of(search.leader()) == fill


@pytest.mark.parametrize("wanted", ['"value"', '"left value"'], ids=["another key", "one that begins like a taken one"])
def test_a_key_that_is_taken_leads_nowhere_and_hides_no_other(
    tiny: NativeLlama, vocabulary: Vocabulary, wanted: str
) -> None:
    """A model that likes the keys that stand there already is not led into `"leftx"`."""
    encode = tiny.tokenizer.encode
    tail, head, hole = encode("{"), encode(" : 1}\n"), HoleState(False, 16)
    rule(vocabulary, hole, wire.Json(start="key", taken=("left", "right", "total", "self")), ())
    table = Table(tiny.tokenizer.size)
    for key, chance in (('"left"', 0.4), ('"right"', 0.2), ('"total"', 0.2), ('"self"', 0.1)):
        table.chain([*tail, *encode(key), *head], [0.98, chance, 0.9], len(tail))
    table.chain([*tail, *encode(wanted), *head], [0.98, 0.4 if "left" in wanted else 0.05, 0.08, 0.98], len(tail))
    search = Search(vocabulary, hole, tail, head, 0)
    answer(search, table)
    assert search.text()[0] == wanted


def test_a_token_ends_a_fill_where_its_rest_begins_the_suffix(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    assert not vocabulary.crossing(b"\n    return x", True)
    assert not vocabulary.crossing(b"", True)
    crossing = vocabulary.crossing(b': "x"', True)
    found = {(vocabulary.pieces[number], at) for number, cuts in crossing.items() for at in cuts}
    assert (b'":', 1) in found
    assert all(0 < at < len(piece) and b': "x"'.startswith(piece[at:]) for piece, at in found)
    (quotes,) = (number for number, piece in enumerate(vocabulary.pieces) if piece == b'"""')
    assert vocabulary.crossing(b'""\n', True)[quotes] == [1, 2], "each place where the rest fits"


@pytest.mark.parametrize("source", ["lookup", "canvas"])
def test_a_good_proposal_is_accepted_in_one_pass(tiny: NativeLlama, vocabulary: Vocabulary, source: str) -> None:
    text = " self._count[0] + 1"
    fill = tiny.tokenizer.encode(text)
    passes = {}
    for proposed in (True, False):
        search, tail, head = searching(tiny, vocabulary, most=32)
        if proposed:
            search.propose(fill, source)  # type: ignore[arg-type]
        table = Table(tiny.tokenizer.size)
        table.chain([*tail, *fill, *head], 0.9, len(tail))
        shown = answer(search, table)
        assert search.text()[0] == text
        assert {n.source for n in search.leader().path()} == {source if proposed else "left_to_right"}
        passes[proposed] = next(i for i, (s, _) in enumerate(shown) if s == text) + 1
    assert passes[True] == 1
    assert passes[False] > len(fill) / 2


@pytest.mark.parametrize("after", ["\n", "\n    x = right\n"])
def test_a_bad_proposal_does_no_harm(tiny: NativeLlama, vocabulary: Vocabulary, after: str) -> None:
    encode = tiny.tokenizer.encode
    search, tail, head = searching(tiny, vocabulary, after=after)
    for proposal in ([], encode(" right"), encode(" a\n b"), [tiny.spec.separator[0]], [10**6], encode(" x" * 40)):
        search.propose(proposal, "lookup")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *encode(" left"), *head], 0.95, len(tail))
    answer(search, table)
    assert search.text()[0] == " left"


def test_below_what_is_asked_for_a_bad_proposal_is_no_answer(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    """The start of what is likely is better, and its unlikely end shows where to cut it."""
    encode = tiny.tokenizer.encode
    tail, head, start = encode("return"), encode("\n    x = right\n"), encode(" self.")
    search = Search(vocabulary, HoleState(True, 16), tail, head, 0, min_probability=0.01)
    search.propose(encode(" right"), "lookup")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *start], 0.95, len(tail))
    names = [number for number, piece in enumerate(vocabulary.pieces) if piece.isalpha() and piece.isascii()]
    table.known[*tail, *start] = dict.fromkeys(names[:100], 0.009)
    answer(search, table)
    text, probabilities = search.text()[0], search.tree.probabilities(search.leader())
    assert text.startswith(" self.")
    assert len(text) > len(" self.")
    assert probabilities[-1][1] == pytest.approx(0.009)
    assert text[: likely(probabilities, 0.25)] == " self."


def test_the_suffix_overrules_a_fill_that_looks_better(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    encode = tiny.tokenizer.encode
    search, tail, head = searching(tiny, vocabulary, after=")\n")
    better, fitting = encode("(x")[:2], encode("[x")[:2]
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *better, *head], [0.6, 0.9, 0.2, 0.01], len(tail))
    table.chain([*tail, *fitting, *head], [0.3, 0.9, 0.9], len(tail))
    answer(search, table)
    assert search.text()[0] == tiny.tokenizer.decode(fitting)
    assert search.candidates()[0].score == pytest.approx(math.log(0.3 * 0.9 * 0.9 ** len(head)), rel=1e-3)


@pytest.mark.parametrize(
    ("rules", "best"),
    [
        (Rules(), " left"),
        (Rules(binds=lambda text: "right" in text), " right + 1"),
        (Rules(copies=lambda text: text == " left"), " right + 1"),
    ],
)
def test_what_binds_the_missing_name_wins_and_a_copy_does_not(
    tiny: NativeLlama, vocabulary: Vocabulary, rules: Rules, best: str
) -> None:
    encode, table = tiny.tokenizer.encode, Table(tiny.tokenizer.size)
    tail, head = encode("return"), encode("\n")
    table.chain([*tail, *encode(" left"), *head], [0.6, 0.9], len(tail))
    table.chain([*tail, *encode(" right + 1"), *head], [0.3, 0.9], len(tail))
    search = Search(vocabulary, HoleState(True, 16), tail, head, 0, rules=rules)
    answer(search, table)
    assert search.text()[0] == best
    assert search.confidence(search.leader()) < 1, "the reward is no probability"


@pytest.mark.parametrize(("after", "fill"), [("\nleft\n", ""), ("\nright\n", "left")])
def test_where_a_copy_of_what_follows_is_best_nothing_is_inserted(
    tiny: NativeLlama, vocabulary: Vocabulary, after: str, fill: str
) -> None:
    job = infill("j", "total = 1\n", after, wire.Hole(16, kind="line"), candidates=3)
    filling = begin(tiny, vocabulary, job, lay(tiny, vocabulary, job, 8), KV([]), ())
    encode, table = tiny.tokenizer.encode, Table(tiny.tokenizer.size)
    tail, forced = filling.search.tail, filling.search.hole.forced.decode()
    begun = len(tail) + len(encode(forced)) if forced else len(tail)
    table.chain([*tail, *encode(forced + "right" + after)], [0.9] * (begun - len(tail)) + [0.05, 0.9], len(tail))
    table.chain([*tail, *encode(forced + "left" + after)], 0.9, len(tail))
    answer(filling.search, table)
    filling.close()
    assert [found.text for found in filling.fills(final=True)] == [fill]
    assert filling.alternatives(filling.fills(final=True)) == ()


@pytest.mark.parametrize("is_needed", [False, True])
def test_a_block_without_a_body_gets_one_although_a_copy_is_likelier(
    tiny: NativeLlama, vocabulary: Vocabulary, is_needed: bool
) -> None:
    encode, table = tiny.tokenizer.encode, Table(tiny.tokenizer.size)
    tail, head = encode("if a:"), encode("\n")
    table.chain([*tail, *encode("right"), *head], [0.05, 0.9], len(tail))
    table.chain([*tail, *encode("left"), *head], 0.9, len(tail))
    rules = Rules(copies=lambda text: text == "left", is_needed=is_needed)
    search = Search(vocabulary, HoleState(True, 16), tail, head, 0, rules=rules)
    answer(search, table)
    assert search.text()[0] == "right"
    assert search.is_over is not is_needed


def test_a_job_of_several_holes_names_nothing_that_is_missing(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    missing, holes = wire.Missing(name="x", pattern="x ="), (wire.Hole(8), wire.Text("y"), wire.Hole(8))
    job = infill("j", "return", "\n", *holes, missing=missing)
    with pytest.raises(wire.Impossible, match="one hole"):
        begin(tiny, vocabulary, job, lay(tiny, vocabulary, job, 8), KV([]), ())


def test_a_pattern_that_is_none_is_refused(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    missing = wire.Missing(name="x", pattern="(x")
    job = infill("j", "return", "\n", wire.Hole(16, kind="line"), missing=missing)
    with pytest.raises(wire.Impossible, match="binds x"):
        begin(tiny, vocabulary, job, lay(tiny, vocabulary, job, 8), KV([]), ())


def test_the_beginning_that_binds_the_missing_name_is_proposed(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    missing = wire.Missing(name="left", starts=("left =",), pattern=r"\bleft\s*=")
    job = infill("j", "count = 1\n", "\nreturn left\n", wire.Hole(16, kind="line"), missing=missing)
    search = begin(tiny, vocabulary, job, lay(tiny, vocabulary, job, 8), KV([]), ()).search
    asked = search.plan().ids
    start = tiny.tokenizer.encode("left =")
    assert any(asked[at : at + len(start)] == start for at in range(len(asked)))


def test_candidates_are_different_texts_best_first(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, head = searching(tiny, vocabulary)
    encode = tiny.tokenizer.encode
    table = Table(tiny.tokenizer.size)
    assert encode(" left")[0] == encode(" right")[0]
    for fill, first, second in ((" left", 0.75, 0.53), (" right", 0.75, 0.47), (" item", 0.2, 0.95)):
        table.chain([*tail, *encode(fill), *head], [first, second, 0.95], len(tail))
    answer(search, table)
    texts = [search.tree.text_of(end.node) for end in search.candidates()]
    assert texts[0] == search.text()[0] == " left"
    assert len(set(texts)) == len(texts)
    scores = [end.score for end in search.candidates()]
    assert scores == sorted(scores, key=lambda s: s or 0.0, reverse=True)


@pytest.mark.parametrize("forced", [" retu", "\n    ", "é", "😀", "_", " "])
def test_forced_text_is_spelled_and_not_shown(tiny: NativeLlama, vocabulary: Vocabulary, forced: str) -> None:
    search, _, _ = searching(tiny, vocabulary, forced=forced)
    answer(search, Drawn(tiny.tokenizer.size, 3, 2.0))
    for end in search.candidates():
        assert tiny.tokenizer.bytes(search.tree.tokens(end.node)).startswith(forced.encode())
        assert tiny.tokenizer.decode(search.tree.tokens(end.node)) == forced + search.tree.text_of(end.node)
    assert search.text()[0]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sharp=st.sampled_from([0.3, 1.5, 3.0, 6.0]),
    line=st.booleans(),
    most=st.integers(1, 12),
    after=st.sampled_from(["", "\n", ")\n    x", "😀"]),
    forced=st.sampled_from(["", " re", "\n    ", "é"]),
    proposals=st.lists(st.text(st.sampled_from("ab _(é\n"), min_size=1, max_size=6), max_size=3),
    another=st.integers(0, 3),
    effort=st.sampled_from([GHOST, FULL]),
)
def test_promises_hold_whatever_the_model_says(
    tiny: NativeLlama,
    vocabulary: Vocabulary,
    seed: int,
    sharp: float,
    line: bool,
    most: int,
    after: str,
    forced: str,
    proposals: list[str],
    another: int,
    effort: Effort,
) -> None:
    search, _, _ = searching(tiny, vocabulary, after, forced, line=line, most=most, seed=another, effort=effort)
    for proposal in proposals:
        search.propose(tiny.tokenizer.encode(forced + proposal), "lookup")

    shown = answer(search, Drawn(tiny.tokenizer.size, seed, sharp))

    promised = ""
    for text, locked in shown:
        assert effort is GHOST or not locked, "a full answer is decided at its end"
        assert text[:locked].startswith(promised), "locked text was taken back"
        promised = text[:locked]
        assert not line or not {"\n", "\r"} & set(text)
    final = search.text()[0]
    assert final.startswith(promised), "the answer does not begin with what was locked"
    tokens = search.tree.tokens(search.leader())
    assert len(tokens) <= most
    assert tiny.tokenizer.bytes(tokens).startswith(forced.encode()) or not final
    for end in search.candidates():
        assert search.tree.text_of(end.node).strip(), "an empty fill was proposed"
        assert len(search.tree.tokens(end.node)) <= most
    assert 0 <= search.confidence(search.leader()) <= 1
    probabilities = search.tree.probabilities(search.leader())
    assert (probabilities[-1][0] if probabilities else 0) == len(final)
    assert all(0 <= p <= 1 for _, p in probabilities)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), sharp=st.sampled_from([1.0, 3.0]), after=st.sampled_from(["\n", ") x"]))
def test_what_could_still_win_a_full_answer_is_kept(
    tiny: NativeLlama, vocabulary: Vocabulary, seed: int, sharp: float, after: str
) -> None:
    search, _, _ = searching(tiny, vocabulary, after)
    ids, predict = list[int](), Drawn(tiny.tokenizer.size, seed, sharp)
    while not search.finished():
        rows = search.plan()
        ids += rows.ids
        hear(search, [predict(path) for path in pathed(ids, rows)])
        waiting = [*search.open]
        search.prune()
        best = search.best()
        could_win = [n for n in waiting if best is None or best.score is None or n.rank > best.score]
        assert set(could_win) <= {*search.open, *search._dormant}


def test_a_row_sees_its_ancestors_and_stands_behind_them(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, _, _ = searching(tiny, vocabulary, after=") x")
    search.start = 7
    for text in ("(left, 1", "(left, 2", "[0"):
        search.propose(tiny.tokenizer.encode(text), "lookup")
    sees: list[set[int]] = []

    def check(rows: Pass) -> None:
        first = len(sees)
        assert rows.mask.shape == (len(rows.ids), first + len(rows.ids))
        for row, (seen, position) in enumerate(zip(rows.mask, rows.positions, strict=True)):
            columns = set(np.flatnonzero(seen).tolist())
            assert max(columns) == first + row
            sees.append(columns)
            parent = columns - {first + row}
            assert position == 7 + len(parent)
            assert not parent or sees[max(parent)] == parent

    answer(search, Drawn(tiny.tokenizer.size, 5, 3.0), check)
    assert len(sees) > 20


@pytest.mark.parametrize("after", ["\n", ")\n    print(value)\n", ""])
def test_a_tree_pass_gives_what_a_plain_pass_gives(tiny: NativeLlama, vocabulary: Vocabulary, after: str) -> None:
    encode = tiny.tokenizer.encode
    context = encode("def left(right):\n    value = 1\n")
    tail, head = encode("    return self"), encode(after)
    kv = tiny.cache().lease(context)
    tiny.prefill(context, kv)
    search = Search(vocabulary, HoleState(True, 8), tail, head, len(context))
    for text in ("._count", "(left", "[0] + 1"):
        search.propose(encode(text), "lookup")
    while not search.finished():
        rows = search.plan()
        scores, _ = tiny.forward([Run(kv, rows.ids, rows.positions, rows.mask)])
        search.receive(told(*search.read(scores)))
        search.prune()

    for end in search.candidates()[:5]:
        fill = search.tree.tokens(end.node)
        plain = tiny.cache().lease(context)
        tiny.prefill(context, plain)
        ids = [*tail, *fill, *search.head]
        causal = np.tri(len(ids), dtype=np.bool_)
        positions = range(len(context), len(context) + len(ids))
        (logp,) = told(tiny.forward([Run(plain, ids, positions, causal)])[0].dense())
        of = [float(logp[i - 1, ids[i]]) for i in range(len(tail), len(ids))]
        assert end.node.logp == pytest.approx(sum(of[: len(fill)]), abs=2e-3)
        if head:
            assert end.score == pytest.approx(sum(of), abs=2e-3)


# Probabilities of tokens


def test_each_token_is_as_likely_as_the_model_found_it_behind_those_before(
    tiny: NativeLlama, vocabulary: Vocabulary
) -> None:
    search, tail, head = searching(tiny, vocabulary)
    fill = tiny.tokenizer.encode(" left + 1")
    table = Table(tiny.tokenizer.size)
    expected = [0.9, 0.6, 0.95, 0.7, 0.8, 0.9][: len(fill)]
    table.chain([*tail, *fill, *head], [*expected, 0.9], len(tail))
    answer(search, table)
    ends, probabilities = zip(*search.tree.probabilities(search.leader()), strict=True)
    assert list(ends) == [len(tiny.tokenizer.decode(fill[: i + 1])) for i in range(len(fill))]
    assert probabilities == pytest.approx(expected, rel=1e-3)


def test_what_is_forced_is_given(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    """Only tokens that begin with the forced text can stand first, so theirs is all the probability there is."""
    search, tail, head = searching(tiny, vocabulary, forced="le")
    fill = tiny.tokenizer.encode("left")
    assert len(fill) == 1
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], [0.5, 0.9], len(tail))
    answer(search, table)
    ((end, probability),) = search.tree.probabilities(search.leader())
    assert end == len("ft")
    assert probability > 0.95


# Another answer


def test_a_seed_finds_another_plausible_answer_and_the_same_one_again(
    tiny: NativeLlama, vocabulary: Vocabulary
) -> None:
    encode = tiny.tokenizer.encode
    likely = {"left": 0.4, "right": 0.3, "item": 0.2}

    def found(seed: int) -> tuple[str, float]:
        search, tail, head = searching(tiny, vocabulary, seed=seed)
        table = Table(tiny.tokenizer.size)
        for fill, p in likely.items():
            table.chain([*tail, *encode(fill), *head], [p, 0.95], len(tail))
        answer(search, table)
        return search.text()[0], search.confidence(search.leader())

    assert found(0)[0] == "left"
    answers = Counter(found(seed) for seed in range(1, 41))
    assert {text for text, _ in answers} >= {"left", "right"}
    assert sum(n for (text, _), n in answers.items() if text in likely) >= 36
    for text, confidence in answers:
        if text in likely:
            count = len(encode(text))
            own = (likely[text] * 0.95**count) ** (1 / (count + 1))
            assert confidence == pytest.approx(own, rel=1e-2), "not the model's own"
    assert [found(seed) for seed in range(1, 9)] == [found(seed) for seed in range(1, 9)]


def test_perturbed_paths_are_drawn_as_the_model_has_it(tiny: NativeLlama) -> None:
    """Over two levels of a tree: the greatest rank is handed down, and the best leaf is drawn by its probability."""
    logits = np.log(np.array([[0.6, 0.4], [0.5, 0.5], [0.9, 0.1]], np.float32))
    tree, drawn = [Below(-1, 0), Below(0, 0), Below(0, 1)], Counter[tuple[int, int]]()
    for number in range(2000):
        ranks = HostScores(logits).perturbed(tree, Draws(1), 3 * number, 1.0)
        greatest, gains = told(ranks.best(1), ranks.logp([0, 0, 1, 1, 2, 2], [0, 1] * 3))
        assert greatest.values == pytest.approx(0.0, abs=1e-6)
        leaves = {(branch, leaf): gains[branch] + gains[2 + 2 * branch + leaf] for branch in (0, 1) for leaf in (0, 1)}
        drawn[max(leaves, key=leaves.__getitem__)] += 1
    for leaf, p in {(0, 0): 0.3, (0, 1): 0.3, (1, 0): 0.36, (1, 1): 0.04}.items():
        assert drawn[leaf] / 2000 == pytest.approx(p, abs=0.04)


def test_a_token_that_is_not_allowed_stays_out_of_the_draw() -> None:
    logits = np.array([[0.0, -np.inf, -2.0]], np.float32)
    (gains,) = told(HostScores(logits).perturbed([Below(-1, 0, 0.0, -1.5)], Draws(3), 0, 0.8).logp([0] * 3, range(3)))
    assert np.isfinite(gains).tolist() == [True, False, True]
