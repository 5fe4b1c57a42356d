"""Scores on a CPU: float32 logits in numpy, and answers at once. A row keeps its logits as they were computed, the set
of tokens that it is conditioned on, and the sums from which its log-probabilities follow. Sums are in float64, so each
log-probability is rounded once."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from caesura.engine.draws import Draws
from caesura.engine.scores import Below, Best, Bools, Floats, Given, Ids, Known, Statistics, TokenList
from caesura.kernels.cpu import scores as in_c

Doubles = NDArray[np.float64]

LARGE = 32_768  # tokens of a set above which it is not searched if it has one of the `LIKELY` best
LIKELY = 64


class _Seen(NamedTuple):
    """The two best tokens of each row, both [rows, 2]; the sums of `in_c.weighed`, [rows, 2]."""

    values: Floats
    ids: Ids
    sums: Doubles


class HostScores:
    """float32 [rows, width], in one piece; `given` are the sets of tokens that rows are conditioned on."""

    def __init__(self, logits: Floats, given: Given | None = None) -> None:
        self._logits = logits
        self._given = given if given is not None and any(given) else None
        self.rows, self.width = logits.shape

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [{self.rows}, {self.width}]>"

    # Questions

    def best(self, count: int, allowed: Given | None = None, among: TokenList | None = None) -> Known[Best]:
        if among is None:
            values, ids = _best(self._logits, count, _both(self._given, allowed))
        else:
            values, ids = _best(self._of(among), count, None, among)
        logp = (values - self._total[:, None]).astype(np.float32)
        return Known(Best(ids, logp, logp))

    def logp(self, rows: Sequence[int], tokens: Sequence[int]) -> Known[Floats]:
        at = np.asarray(rows, np.int64)
        return Known((self._at(at, tokens) - self._total[at]).astype(np.float32))

    def _at(self, rows: NDArray[np.int64], tokens: Sequence[int]) -> Floats:
        """The logit of a token in a row, [n]; -inf for one that the row's set lacks."""
        found = self._logits[rows, np.asarray(tokens, np.int64)]
        if self._given is not None:
            sets = [self._given[row] for row in rows]
            found[[one is not None and token not in one for one, token in zip(sets, tokens, strict=True)]] = -np.inf
        return found

    def mass(self, tokens: TokenList) -> Known[Floats]:
        some = HostScores(self._of(tokens))
        total = np.where(some._seen.values[:, 0] == -np.inf, -np.inf, some._total)  # of impossible tokens
        return Known((total - self._total).astype(np.float32))

    def _of(self, tokens: TokenList) -> Floats:
        """The logits of some tokens, [rows, n]; -inf for those that a row's set lacks."""
        at = np.asarray(tokens, np.int64)
        found = np.take(self._logits, at, 1)
        for row, one in enumerate(self._given or ()):
            if one is not None:
                found[row, ~one.has()[at]] = -np.inf
        return found

    def total(self) -> Known[Floats]:
        return Known(self._total.astype(np.float32))

    def statistics(self) -> Known[Statistics]:
        (best, second), (sums, leans) = self._seen.values.astype(np.float64).T, self._seen.sums.T
        with np.errstate(invalid="ignore"):  # of a row that is not finite
            parts = 1 / sums, (1 - np.exp(second - best)) / sums, np.log(sums) - leans / sums
        token = np.maximum(self._seen.ids[:, 0], 0)
        return Known(Statistics(token, *(part.astype(np.float32) for part in parts)))

    def draw(self, rows: Sequence[int], uniform: Doubles) -> Known[Ids]:
        drawn = [_drawn(self._row(row), at) for row, at in zip(rows, uniform.tolist(), strict=True)]
        return Known(np.array(drawn, np.int32))

    def greatest(self, sets: Sequence[NDArray[np.int64]]) -> Known[Floats]:
        found = np.array([self._greatest(tokens) for tokens in sets], np.float32).reshape(-1, self.rows)
        return Known((found - self._total).astype(np.float32))

    def _greatest(self, tokens: NDArray[np.int64]) -> Floats:
        """The greatest logit of a set, [rows]."""
        if len(tokens) <= LARGE:
            greatest: Floats = self._columns[tokens].max(0, initial=-np.inf)
            return greatest
        values, ids = self._likely
        among = np.zeros(self.width, np.bool_)
        among[tokens] = True
        found = among[ids]
        best: Floats = np.take_along_axis(values, found.argmax(1)[:, None], 1)[:, 0]
        none = ~found.any(1)
        if none.any():
            best[none] = self._columns[tokens][:, none].max(0)
        return best

    @cached_property
    def _likely(self) -> tuple[Floats, Ids]:
        """The likeliest tokens of each row; a large set usually has one of them as its best."""
        return in_c.best(self._logits, min(LIKELY, self.width), _bits(self._given))

    @cached_property
    def _columns(self) -> Floats:
        """[width, rows]: the numbers of a token lie together."""
        return np.ascontiguousarray(self.logits.T)

    def finite(self) -> Known[Bools]:
        top = self._seen.values if self._given is None else in_c.best(self._logits, 1)[0]
        return Known(np.isfinite(top[:, 0]))

    def dense(self) -> Known[Floats]:
        return Known((self.logits - self._total[:, None]).astype(np.float32))

    @cached_property
    def _seen(self) -> _Seen:
        sets = _bits(self._given)
        values, ids = in_c.best(self._logits, 2, sets)
        return _Seen(values, ids, in_c.weighed(self._logits, values[:, 0], sets))

    @cached_property
    def _total(self) -> Doubles:
        """The logarithm of the sum of exp(logits), [rows]; NaN for a row that is not finite."""
        return self._seen.values[:, 0].astype(np.float64) + np.log(self._seen.sums[:, 0])

    @property
    def logits(self) -> Floats:
        """[rows, width]; -inf for tokens that a row's set lacks."""
        if self._given is None:
            return self._logits
        return np.array([self._row(row) for row in range(self.rows)]).reshape(self.rows, self.width)

    def _row(self, row: int) -> Floats:
        one = self._given[row] if self._given is not None else None
        logits: Floats = self._logits[row]
        return logits if one is None else np.where(one.has()[: self.width], logits, np.float32(-np.inf))

    # Other rows

    def part(self, first: int, end: int) -> "HostScores":
        part = HostScores(self._logits[first:end], self._given and self._given[first:end])
        if "_seen" in self.__dict__:
            values, ids, sums = self._seen
            part._seen = _Seen(values[first:end], ids[first:end], sums[first:end])
        return part

    def taken(self, rows: Sequence[int]) -> "HostScores":
        logits = np.zeros((len(rows), self.width), np.float32)
        for at, row in enumerate(rows):
            if row >= 0:
                logits[at] = self._logits[row]
        return HostScores(logits, self._given and [self._given[row] if row >= 0 else None for row in rows])

    def only(self, allowed: Given) -> "HostScores":
        return HostScores(self._logits, _both(self._given, allowed)) if any(allowed) else self

    def over(self, first: int, other: "HostScores") -> "HostScores":
        end, given = first + other.rows, list(self._given or [None] * self.rows)
        given[first:end] = other._given or [None] * other.rows
        return HostScores(np.concatenate((self._logits[:first], other._logits, self._logits[end:])), given)

    def merged(self, pairs: Sequence[tuple[int, int]]) -> "HostScores":
        source, target = np.asarray(pairs, np.int64).reshape(-1, 2).T
        changed, place = np.unique(target, return_inverse=True)
        logits = self.dense().value
        columns = logits.T[changed]
        with np.errstate(invalid="ignore"):  # of a row that is not finite
            np.logaddexp.at(columns, place, logits.T[source])
        logits[:, changed] = columns.T
        return HostScores(logits)

    def bounded(self, tokens: Sequence[int], near: float) -> "HostScores":
        at, logits = np.arange(self.rows), self.logits
        level = logits[at, np.asarray(tokens, np.int64)]
        kept = np.where(logits >= (level - np.float32(near))[:, None], np.float32(-np.inf), logits)
        kept[at, np.asarray(tokens, np.int64)] = level
        return HostScores(kept)

    def perturbed(self, tree: Sequence[Below], draws: Draws, first: int, temperature: float) -> "HostRanks":
        noise = np.asarray(draws.gumbel(self.rows, self.width, first), np.float32)
        steps = self.logp([max(0, below.above) for below in tree], [below.token for below in tree]).value.tolist()
        paths = list[float]()
        for below, step in zip(tree, steps, strict=True):
            paths.append(below.path if below.above < 0 else paths[below.above] + step)
        noisy = self.logits + (np.array(paths) - self._total).astype(np.float32)[:, None]
        noisy /= np.float32(temperature)
        noisy += noise
        return HostRanks(self, noisy, tree, temperature)


class HostRanks:
    """What each token adds to a rank, computed from `noisy` [rows, width]: perturbed log-probabilities divided by the
    temperature. They order the tokens as ranks do, so only those ranks are computed that are asked for."""

    def __init__(self, own: HostScores, noisy: Floats, tree: Sequence[Below], temperature: float) -> None:
        self._own, self._noisy, self._temperature = own, noisy, temperature
        self.rows, self.width = noisy.shape
        self._top = in_c.best(noisy, 1)[0][:, 0]
        self._ranks = np.zeros(self.rows)
        for row, below in enumerate(tree):
            self._ranks[row] = below.rank
            if below.above >= 0:
                self._ranks[row] = self._ranks[below.above] + self.logp([below.above], [below.token]).value[0]

    def __repr__(self) -> str:
        return f"<HostRanks [{self.rows}, {self.width}]>"

    def best(self, count: int, allowed: Given | None = None, among: TokenList | None = None) -> Known[Best]:
        some = self._noisy if among is None else self._of(among)
        noisy, ids = _best(some, count, allowed if among is None else None, among)
        rows = np.arange(self.rows)
        logp = self._own.logp(rows.repeat(count).tolist(), np.maximum(ids, 0).ravel().tolist()).value
        logp = np.where(ids < 0, np.float32(-np.inf), logp.reshape(ids.shape))
        return Known(Best(ids, self._gains(noisy, rows[:, None]), logp))

    def logp(self, rows: Sequence[int], tokens: Sequence[int]) -> Known[Floats]:
        at = np.asarray(rows, np.int64)
        return Known(self._gains(self._noisy[at, np.asarray(tokens, np.int64)], at))

    def mass(self, tokens: TokenList) -> Known[Floats]:
        return Known(self._gains(self._of(tokens).max(1, initial=-np.inf), np.arange(self.rows)))

    def _of(self, tokens: TokenList) -> Floats:
        return np.take(self._noisy, np.asarray(tokens, np.int64), 1)

    def _gains(self, noisy: Floats, rows: NDArray[np.int64]) -> Floats:
        """What tokens of these rows add, so that the greatest adds nothing (Kool et al. 2019, appendix B.3)."""
        ranks, high = self._ranks[rows], self._top[rows].astype(np.float64)
        top = ranks / self._temperature
        with np.errstate(invalid="ignore", divide="ignore"):  # of the greatest, and of a row without any
            below = top - noisy + np.log1p(-np.exp(noisy - high))
            perturbed = self._temperature * (top - np.maximum(below, 0) - np.log1p(np.exp(-np.abs(below))))
        return (perturbed - ranks).astype(np.float32)


def _best(numbers: Floats, count: int, sets: Given | None, tokens: TokenList | None = None) -> tuple[Floats, Ids]:
    """The greatest numbers of each row and their ids, of the tokens in its set; `tokens` are the columns' ids."""
    values, ids = in_c.best(numbers, count, _bits(sets))
    if tokens is not None:
        ids = np.append(np.asarray(tokens, np.int32), np.int32(-1))[ids]
    return values, np.where(values == -np.inf, np.int32(-1), ids)


def _drawn(logits: Floats, at: float) -> int:
    """The token of some logits [width] that a number in [0, 1) falls on."""
    exact = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of a row that is not finite
        ends = np.exp(exact - exact.max()).cumsum()
    last = ends.searchsorted(ends[-1])  # the last token with a probability, whatever the rounding
    return int(min(ends.searchsorted(at * ends[-1], "right"), last))


def _both(one: Given | None, other: Given | None) -> Given | None:
    """The tokens in two sets, row by row."""
    if one is None or other is None:
        return other if one is None else one
    return [b if a is None or a is b else a if b is None else a & b for a, b in zip(one, other, strict=True)]


def _bits(sets: Given | None) -> list[NDArray[np.uint8] | None] | None:
    return None if sets is None else [None if one is None else one.bits for one in sets]
