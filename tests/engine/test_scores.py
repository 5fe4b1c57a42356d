"""The implementations of scores, next to float64: in C, in numpy without the library, in torch, and in torch as on a
device, where answers wait until they are told."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from caesura.engine.draws import Draws
from caesura.engine.scores import Allowed, Below, Best, Known, Ranked, Scores, tensors, told
from caesura.engine.scores.host import HostScores
from caesura.engine.scores.tensors import TensorScores
from caesura.kernels.cpu import scores as in_c

Doubles = NDArray[np.float64]
Make = Callable[[NDArray[np.float32]], Scores]

WIDTHS = 5, 37, 128, 1043
ROWS = 7
CLOSE = 3e-6  # of log-probabilities in float32


@pytest.fixture(params=["in C", "numpy", "torch", "device"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    if request.param == "numpy":
        monkeypatch.setattr(in_c, "chosen", lambda: "none")
    if request.param == "device":
        monkeypatch.setattr(tensors, "answered", tensors.Pending)
    if request.param in ("in C", "numpy"):
        return lambda logits: HostScores(logits.copy())
    return lambda logits: TensorScores(torch.from_numpy(logits.copy()))


def logits_of(width: int, rows: int = ROWS) -> NDArray[np.float32]:
    """Logits with equal ones, and with -inf."""
    draw = np.random.default_rng(width)
    logits = (draw.standard_normal((rows, width)) * 3 + 7).astype(np.float32)
    logits[1] = np.round(logits[1])
    logits[2, draw.random(width) < 0.3] = -np.inf
    logits[3] = 0
    return logits


def sets_of(width: int, rows: int = ROWS) -> list[Allowed | None]:
    """No set, one token alone (a forced one), and others."""
    draw = np.random.default_rng(width + 1)
    sets: list[Allowed | None] = [Allowed(draw.random(width) < share) for share in draw.choice([0.3, 0.6, 1], rows)]
    sets[0], sets[4] = None, Allowed.of(width, [width // 2])
    return sets


def masked(logits: NDArray[np.floating], sets: Sequence[Allowed | None]) -> Doubles:
    has = [np.ones(logits.shape[1], bool) if one is None else one.has() for one in sets]
    return np.where(has, logits.astype(np.float64), -np.inf)


def logp_of(logits: NDArray[np.floating]) -> Doubles:
    top = logits.max(1, keepdims=True).astype(np.float64)
    return logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))


def check_best(found: Best, values: Doubles, logp: Doubles, count: int) -> None:
    """`values` [rows, width] order the tokens, -inf for those that are not allowed."""
    order = np.argsort(-values, 1, kind="stable")[:, :count]
    order = np.pad(order, ((0, 0), (0, count - order.shape[1])))
    best = np.take_along_axis(values, order, 1)
    best[:, values.shape[1] :] = -np.inf
    none = best == -np.inf
    np.testing.assert_array_equal(found.ids, np.where(none, -1, order))
    np.testing.assert_allclose(found.values, best, atol=CLOSE)
    np.testing.assert_allclose(found.logp, np.where(none, -np.inf, np.take_along_axis(logp, order, 1)), atol=CLOSE)
    assert (found.ids.dtype, found.values.dtype, found.logp.dtype) == (np.int32, np.float32, np.float32)


def check(scores: Scores, logits: Doubles, total: bool = True) -> None:
    """Ask rows with these logits every question."""
    width, logp = logits.shape[1], logp_of(logits)
    sets, among = sets_of(width), [0, width // 3, width - 1]
    for count in (1, 3, 8):
        check_best(scores.best(count).value, logp, logp, count)
        check_best(scores.best(count, sets).value, masked(logp, sets), logp, count)
        alike = [sets[1]] * ROWS
        check_best(scores.best(count, alike).value, masked(logp, alike), logp, count)
        found = scores.best(count, among=among).value
        some = Allowed.of(width, among)
        check_best(found, masked(logp, [some] * ROWS), logp, count)
        same = scores.best(count, among=np.array(among)).value
        assert all(np.array_equal(one, other) for one, other in zip(found, same, strict=True))
    rows, tokens = [0, 0, 2, 6, 4], [0, width - 1, 1, width // 2, width // 2]
    np.testing.assert_allclose(scores.logp(rows, tokens).value, logp[rows, tokens], atol=CLOSE)
    with np.errstate(divide="ignore"):
        mass = np.log(np.exp(logp[:, among]).sum(1))
    np.testing.assert_allclose(scores.mass(among).value, mass, atol=CLOSE)
    if total:
        expected = np.log(np.exp(logits).sum(1))
        np.testing.assert_allclose(scores.total().value, expected, atol=CLOSE)
    np.testing.assert_allclose(scores.dense().value, logp, atol=CLOSE)
    assert scores.finite().value.all()
    check_statistics(scores, logp)
    check_draws(scores, logp)
    draw = np.random.default_rng(width)
    some_sets = [np.flatnonzero(draw.random(width) < share) for share in (0.02, 0.5, 1.0)]
    greatest = [logp[:, ids].max(1, initial=-np.inf) for ids in some_sets]
    np.testing.assert_allclose(scores.greatest(some_sets).value, greatest, atol=CLOSE)
    assert scores.greatest([]).value.shape == (0, ROWS)


def check_statistics(scores: Scores, logp: Doubles) -> None:
    token, prob, margin, entropy = scores.statistics().value
    probs = np.exp(logp)
    best = np.sort(probs, 1)[:, ::-1]
    np.testing.assert_array_equal(token, logp.argmax(1))
    assert token.dtype == np.int32
    np.testing.assert_allclose(prob, best[:, 0], rtol=CLOSE)
    np.testing.assert_allclose(margin, best[:, 0] - best[:, 1], atol=1e-6)
    np.testing.assert_allclose(entropy, -(probs * np.where(probs > 0, logp, 0)).sum(1), atol=2e-5)


def check_draws(scores: Scores, logp: Doubles) -> None:
    ends = np.exp(logp).cumsum(1)
    rows = [row for row in range(ROWS) for _ in range(5)]
    uniform = np.concatenate([np.random.default_rng(3).random(len(rows) - 2), [0.0, np.nextafter(1.0, 0)]])
    drawn = scores.draw(rows, uniform).value
    assert drawn.dtype == np.int32
    for row, at, token in zip(rows, uniform.tolist(), drawn.tolist(), strict=True):
        assert logp[row, token] > -np.inf
        below = ends[row, token - 1] if token else 0
        assert below - 1e-9 <= at * ends[row, -1] <= ends[row, token] + 1e-9


@pytest.mark.parametrize("width", WIDTHS)
def test_every_question_of_every_kind_of_rows(make: Make, width: int) -> None:
    logits, sets = logits_of(width), sets_of(width)
    scores, exact = make(logits), logits.astype(np.float64)
    assert (scores.rows, scores.width) == logits.shape
    check(scores, exact)
    check(scores.only(sets), masked(logits, sets))
    check(scores.only(sets[:1] * ROWS), exact)
    twice = [None, None, *sets_of(width + 1)[2:4], *sets[4:]]
    twice = [None if one is None else Allowed(one.has()[:width]) for one in twice]
    check(scores.only(sets).only(twice), masked(masked(logits, sets), twice))
    rows = [5, -1, 3, 3, 0, 6, 2]
    check(scores.taken(rows), np.where(np.array(rows)[:, None] < 0, 0, exact[rows]))
    check(scores.only(sets).taken(rows), np.where(np.array(rows)[:, None] < 0, 0, masked(logits, sets)[rows]))
    check(scores.taken(rows[2:] + rows[4:6]), exact[rows[2:] + rows[4:6]])
    over = exact.copy()
    over[2:4] = masked(logits, sets)[5:7]
    check(scores.over(2, scores.only(sets).part(5, 7)), over)
    over = masked(logits, sets)
    over[2:4] = exact[2:4]
    check(scores.only(sets).over(2, scores.part(2, 4)), over)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_probability_of_a_token_goes_to_another(make: Make, width: int) -> None:
    logits, last = logits_of(width), width - 1
    probs = np.exp(logp_of(logits))
    expected = probs.copy()
    for source, target in ((0, last), (1, last), (last, 2)):
        expected[:, target] += probs[:, source]
    with np.errstate(divide="ignore"):
        check(make(logits).merged([(0, last), (1, last), (last, 2)]), np.log(expected))
    check(make(logits).merged([]), logits.astype(np.float64), total=False)


@pytest.mark.parametrize("width", WIDTHS)
def test_tokens_likelier_than_some_are_left_out(make: Make, width: int) -> None:
    logits = logits_of(width)
    logits[2] = 1  # the tokens have probabilities
    tokens = [width // 2] * ROWS
    expected = logits.astype(np.float64)
    level = logits[range(ROWS), tokens]
    expected[logits >= level[:, None] - np.float32(1e-3)] = -np.inf
    expected[range(ROWS), tokens] = level
    check(make(logits).bounded(tokens, 1e-3), expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_ranks_of_another_answer_are_those_of_float64(make: Make, width: int) -> None:
    logits, draws, temperature = logits_of(width), Draws(11, 2), 0.8
    logp = logp_of(logits)
    tree = [Below(-1, 0, -1.5, -2.0), Below(0, 2), Below(1, 3), Below(0, 4), Below(-1, 0, -7.0, -9.5), Below(4, 0)]
    tree.append(Below(5, 1))
    noise = np.asarray(draws.gumbel(ROWS, width, 3)).astype(np.float64)
    gain, paths, ranks = np.empty_like(logp), np.zeros(ROWS), np.zeros(ROWS)
    for row, (above, token, path, rank) in enumerate(tree):
        paths[row] = path if above < 0 else paths[above] + logp[above, token]
        ranks[row] = rank if above < 0 else ranks[above] + gain[above, token]
        noisy = (paths[row] + logp[row]) / temperature + noise[row]
        with np.errstate(divide="ignore"):  # exp(-rank) is that of the greatest, and adds up as Gumbel numbers do
            least = np.exp(-ranks[row] / temperature) - np.exp(-noisy.max()) + np.exp(-noisy)
            gain[row] = -temperature * np.log(least) - ranks[row]
    found: Ranked = make(logits).perturbed(tree, draws, 3, temperature)
    assert (found.rows, found.width) == logits.shape
    assert np.abs(gain.max(1)).max() < 1e-9
    sets, among = sets_of(width), [0, width // 3, width - 1]
    for best, allowed in (
        (found.best(4).value, [None] * ROWS),
        (found.best(4, sets).value, sets),
        (found.best(4, among=among).value, [Allowed.of(width, among)] * ROWS),
    ):
        expected = masked(gain, allowed)  # type: ignore[arg-type]
        order = np.argsort(-expected, 1, kind="stable")[:, :4]
        values = np.take_along_axis(expected, order, 1)
        np.testing.assert_array_equal(best.ids, np.where(values == -np.inf, -1, order))
        np.testing.assert_allclose(best.values, values, atol=2e-5)
        expected_logp = np.where(values == -np.inf, -np.inf, np.take_along_axis(logp, order, 1))
        np.testing.assert_allclose(best.logp, expected_logp, atol=CLOSE)
    np.testing.assert_allclose(found.logp([0, 3, 6], [1, 2, 4]).value, gain[[0, 3, 6], [1, 2, 4]], atol=2e-5)
    np.testing.assert_allclose(found.mass(among).value, gain[:, among].max(1), atol=2e-5)


def answers(scores: Scores, row: int | None = None) -> list[bytes]:
    """What rows answer to all questions, bit by bit; or one row of them."""
    width, rows = scores.width, list(range(scores.rows))
    uniform = np.linspace(0, 0.9, ROWS)[rows if scores.rows > 1 or row is None else [0]]
    found = [
        *scores.best(3).value,
        *scores.best(3, among=[1, 2, 4]).value,
        scores.logp(rows, [2] * len(rows)).value,
        scores.mass([0, 2, 4]).value,
        scores.total().value,
        *scores.statistics().value,
        scores.draw(rows, uniform).value if row is None else np.zeros(len(rows)),
        scores.greatest([np.arange(0, width, 2)]).value[0],
        scores.finite().value,
        scores.dense().value,
    ]
    return [numbers[slice(None) if row is None else slice(row, row + 1)].tobytes() for numbers in found]


@pytest.mark.parametrize("width", [*WIDTHS, 37_888])
def test_a_row_alone_answers_as_in_a_batch(width: int) -> None:
    logits, sets = logits_of(width), sets_of(width)
    logits[5, 3] = np.nan
    batch, limited = HostScores(logits), HostScores(logits).only(sets)
    for row in range(ROWS):
        alone = HostScores(logits[row : row + 1].copy())
        assert answers(alone, 0) == answers(batch, row)
        assert answers(alone.only(sets[row : row + 1]), 0) == answers(limited, row)
        assert alone.draw([0], np.array([0.4])).value == batch.draw([row], np.array([0.4])).value


def test_parts_answer_after_the_whole_is_gone(make: Make) -> None:
    logits = logits_of(128, 20)
    whole = make(logits)
    early = whole.part(3, 3 + ROWS)
    whole.best(1)
    late = whole.part(3, 3 + ROWS)
    del whole
    check(early, logits[3 : 3 + ROWS].astype(np.float64))
    check(late, logits[3 : 3 + ROWS].astype(np.float64))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_row_that_is_not_finite_says_so_and_harms_no_other(make: Make, wrong: float) -> None:
    logits = logits_of(1043)
    expected = logp_of(logits)
    logits[2, 77], logits[5] = wrong, -np.inf
    good = [row for row in range(ROWS) if row not in (2, 5)]
    scores = make(logits)
    assert scores.finite().value.tolist() == [row in good for row in range(ROWS)]
    for rows in (scores, scores.only(sets_of(1043)), scores.merged([(1, 2)]), scores.bounded([3] * ROWS, 0.1)):
        told(rows.statistics(), rows.best(3), rows.mass([1, 5]), rows.total(), rows.greatest([np.arange(9)]))
        told(rows.draw(range(ROWS), np.full(ROWS, 0.5)), rows.logp([2, 5], [77, 77]))
    told(scores.perturbed([Below(-1, 0)] * ROWS, Draws(1), 0, 0.8).best(3))
    np.testing.assert_allclose(scores.dense().value[good], expected[good], atol=CLOSE)
    np.testing.assert_allclose(scores.best(1).value.logp[good, 0], expected[good].max(1), atol=CLOSE)


def test_log_probabilities_are_rounded_once() -> None:
    logits = logits_of(37_888)
    np.testing.assert_allclose(HostScores(logits).dense().value, logp_of(logits), atol=2e-6)


def test_a_large_set_is_looked_for_among_the_likeliest(make: Make) -> None:
    logits = np.random.default_rng(1).standard_normal((4, 50_000)).astype(np.float32)
    logits[3, :1000] += 20  # none of its likeliest is in the set
    tokens = np.arange(1000, 50_000)
    expected = logp_of(logits)[:, tokens].max(1)
    np.testing.assert_allclose(make(logits).greatest([tokens]).value[0], expected, atol=CLOSE)


def test_sets_that_are_wider_than_the_rows(make: Make) -> None:
    logits = logits_of(37)
    wide = Allowed.of(64, [3, 36, 37, 63])
    assert make(logits).best(4, [wide] * ROWS).value.ids[0, 2:].tolist() == [-1, -1]
    assert make(logits).only([wide] * ROWS).total().value.shape == (ROWS,)


def test_all_answers_of_a_step_are_told_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "answered", tensors.Pending)
    copied = list[torch.Tensor]()
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copied.append(self) or self)
    logits = logits_of(128)
    one, other = TensorScores(torch.from_numpy(logits)), TensorScores(torch.from_numpy(logits[:2]))
    asked = one.best(3), other.statistics(), one.logp([1], [2]), other.finite(), Known("known")
    assert copied == []
    best, statistics, logp, finite, known = told(*asked)
    assert len(copied) == 1
    assert copied[0].dtype == torch.float32
    host = HostScores(logits)
    np.testing.assert_array_equal(best.ids, host.best(3).value.ids)
    np.testing.assert_array_equal(statistics.token, host.statistics().value.token[:2])
    np.testing.assert_allclose(logp, host.logp([1], [2]).value, atol=CLOSE)
    assert finite.tolist() == [True, True]
    assert known == "known"
    assert asked[2].value is logp
    assert len(copied) == 1


def test_the_logits_of_tokens_that_are_not_allowed(make: Make) -> None:
    logits, sets = logits_of(128), sets_of(128)
    scores = make(logits)
    np.testing.assert_array_equal(np.asarray(scores.logits), logits)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.asarray(scores.only(sets).logits), masked(logits, sets))  # type: ignore[attr-defined]


def test_no_rows(make: Make) -> None:
    none = make(logits_of(37)).part(2, 2)
    assert none.best(3).value.ids.shape == (0, 3)
    assert none.statistics().value.prob.shape == none.total().value.shape == none.finite().value.shape == (0,)
    assert none.only([]).perturbed([], Draws(1), 0, 0.8).best(2).value.ids.shape == (0, 2)


def test_a_set_of_tokens() -> None:
    one, other = Allowed.of(70, [0, 5, 69]), Allowed.of(70, np.array([5, 6, 69]))
    assert [token for token in range(70) if token in one] == [0, 5, 69]
    assert (one & other).has().nonzero()[0].tolist() == [5, 69]
    assert one & other == Allowed.of(70, [69, 5])
    assert one != other
    assert one.nbytes == 9


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("columns", [9, 300, tensors.BLOCK**2 + 77])
def test_of_equal_numbers_the_first_is_the_highest(columns: int, in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(tensors, "chosen", lambda: "none")
    draw = torch.Generator().manual_seed(columns)
    for values in ([-torch.inf, -1.5, -0.0, 0.0, 2.0], [0.0], [*torch.randn(columns, generator=draw).tolist()]):
        rows = torch.tensor(values)[torch.randint(len(values), (40, columns), generator=draw)]
        rows[3, 4:] = rows[4, :-2] = -torch.inf
        for count in (1, 2, 8):
            expected = rows.sort(descending=True, stable=True)
            found, places = tensors.highest(rows, count)
            assert torch.equal(places, expected.indices[:, :count])
            assert torch.equal(found, expected.values[:, :count])
    rows[7, 5] = torch.nan
    assert tensors.highest(rows, 2)[1][7, 0] == 5
