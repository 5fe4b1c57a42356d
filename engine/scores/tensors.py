"""Scores in torch. On a GPU they stay there: an answer waits until `told` brings all of a step to the host in one copy.
On a CPU it is known at once."""

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caesura.engine.draws import Draws
from caesura.engine.scores import (
    Allowed,
    Below,
    Best,
    Bools,
    Floats,
    Given,
    Ids,
    Known,
    Reply,
    Statistics,
    T,
    TokenList,
)
from caesura.kernels.cpu import chosen, variants
from caesura.kernels.cpu.scores import best as best_in_c
from caesura.kernels.head import fall

LARGE = 32_768  # tokens of a set above which a CPU does not search it if it has one of the `LIKELY` best
LIKELY = 64
BLOCK = 128  # tokens of a block of the vocabulary; see `highest`
BIASES = 64  # sets of which a device keeps a bias, 0.6 MB each for a vocabulary of 152,000
LISTS = 256  # lists of ids of which a device keeps a copy, such as the crossing tokens of a search


class Pending(Generic[T]):
    """An answer on a device: small tensors, and what makes its value of them."""

    def __init__(self, parts: Sequence[Tensor], make: Callable[..., T]) -> None:
        self._parts, self._make = parts, make

    @cached_property
    def value(self) -> T:
        self.bring([self])
        return self.value

    @staticmethod
    def bring(waiting: Sequence["Pending[Any]"]) -> None:
        """Make the values, after one copy of all their parts: as float32, which holds every id."""
        parts = [part for answer in waiting for part in answer._parts]
        numbers = torch.cat([part.flatten() for part in parts]).float().cpu()
        split = zip(numbers.split([part.numel() for part in parts]), parts, strict=True)
        arrays = (found.view(part.shape).to(part.dtype).numpy() for found, part in split)
        for answer in waiting:
            answer.value = answer._make(*itertools.islice(arrays, len(answer._parts)))


def answered(parts: Sequence[Tensor], make: Callable[..., T]) -> Reply[T]:
    """The answer that `make` makes of these parts as arrays."""
    if parts[0].is_cuda:
        return Pending(parts, make)
    return Known(make(*(part.numpy() for part in parts)))


class TensorScores:
    """Logits, float32 [rows, width]. Log-probabilities are computed once, for all parts together."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self._whole: tuple[TensorScores, slice] | None = None  # the scores that these are a part of
        self.rows, self.width = logits.shape

    def __repr__(self) -> str:
        return f"<TensorScores [{self.rows}, {self.width}] on {self.logits.device}>"

    @cached_property
    def _logp(self) -> Tensor:
        if self._whole is not None:
            whole, rows = self._whole
            return whole._logp[rows]
        return self.logits.log_softmax(-1)

    # Questions

    def best(self, count: int, allowed: Given | None = None, among: TokenList | None = None) -> Reply[Best]:
        values, ids = _best(self._logp, count, allowed, among)
        return answered((values, ids, values), partial(_told, count))

    def logp(self, rows: Sequence[int], tokens: Sequence[int]) -> Reply[Floats]:
        return _values(self._logp, rows, tokens)

    def mass(self, tokens: TokenList) -> Reply[Floats]:
        return answered((self._logp[:, _listed(tokens, self._logp.device)].logsumexp(-1),), _same)

    def total(self) -> Reply[Floats]:
        return answered((self.logits.logsumexp(-1),), _same)

    def statistics(self) -> Reply[Statistics]:
        return answered(statistics(self._logp), _statistics)

    def draw(self, rows: Sequence[int], uniform: NDArray[np.float64]) -> Reply[Ids]:
        chances = self.logits[torch.tensor(rows, dtype=torch.int64)].double().softmax(-1)
        tokens, _ = fall(chances, torch.from_numpy(uniform)[:, None].to(chances.device, non_blocking=True))
        return answered((tokens[:, 0],), _as_ids)

    def greatest(self, sets: Sequence[NDArray[np.int64]]) -> Reply[Floats]:
        found = [self._greatest(torch.from_numpy(tokens).to(self._logp.device)) for tokens in sets]
        return answered((torch.stack(found) if found else self._logp.new_empty(0, self.rows),), _same)

    def _greatest(self, tokens: Tensor) -> Tensor:
        """The greatest log-probability of a set, [rows]."""
        if not len(tokens):
            return self._logp.new_full((self.rows,), -torch.inf)
        if len(tokens) <= LARGE or self._logp.is_cuda:  # which would have to wait for `none`
            return self._columns[tokens].amax(0)
        values, likely = self._likely
        found = torch.zeros(self.width, dtype=torch.bool).index_fill_(0, tokens, True)[likely]
        best = values.gather(1, found.int().argmax(1, keepdim=True))[:, 0]
        none = ~found.any(1)
        if none.any():
            best[none] = self._columns[:, none][tokens].amax(0)
        return best

    @cached_property
    def _likely(self) -> tuple[Tensor, Tensor]:
        """The likeliest tokens of each row, descending; a large set usually has one of them as its best."""
        return highest(self._logp, min(LIKELY, self.width))

    @cached_property
    def _columns(self) -> Tensor:
        """[width, rows]: the numbers of a token lie together."""
        return self._logp.T.contiguous()

    def finite(self) -> Reply[Bools]:
        first = self._logp[:, 0]  # one NaN logit makes its whole row NaN
        return answered((first,), lambda first: ~np.isnan(first))

    def dense(self) -> Reply[Floats]:
        return answered((self._logp,), _same)

    # Other rows

    def part(self, first: int, end: int) -> "TensorScores":
        part = TensorScores(self.logits[first:end])
        part._whole = self, slice(first, end)
        return part

    def taken(self, rows: Sequence[int]) -> "TensorScores":
        known = [at for at, row in enumerate(rows) if row >= 0]
        if len(known) == len(rows):
            return TensorScores(self.logits[list(rows)])
        logits = self.logits.new_zeros(len(rows), self.width)
        logits[known] = self.logits[[rows[at] for at in known]]
        return TensorScores(logits)

    def only(self, allowed: Given) -> "TensorScores":
        if not any(allowed):
            return self
        some = None in allowed
        logits, row = self.logits.clone() if some else torch.empty_like(self.logits), 0
        for _, alike in itertools.groupby(allowed, id):
            one, *others = alike
            end = row + 1 + len(others)
            if one is not None:
                torch.add(self.logits[row:end], _bias(one, self.logits), out=logits[row:end])
            row = end
        return TensorScores(logits)

    def over(self, first: int, other: "TensorScores") -> "TensorScores":
        logits = self.logits.clone()
        logits[first : first + other.rows] = other.logits
        return TensorScores(logits)

    def merged(self, pairs: Sequence[tuple[int, int]]) -> "TensorScores":
        if not pairs:
            return self
        chances = self.logits.softmax(-1)
        source, target = torch.tensor(pairs, dtype=torch.int64).T.to(chances.device, non_blocking=True)
        return TensorScores(chances.index_add(1, target, chances[:, source]).log())

    def bounded(self, tokens: Sequence[int], near: float) -> "TensorScores":
        ids = torch.tensor(tokens, dtype=torch.int64).to(self.logits.device, non_blocking=True)[:, None]
        level = self.logits.gather(1, ids)
        return TensorScores(self.logits.masked_fill(self.logits >= level - near, -torch.inf).scatter(1, ids, level))

    def perturbed(self, tree: Sequence[Below], draws: Draws, first: int, temperature: float) -> "TensorRanks":
        own, device = self._logp, self._logp.device
        noise = torch.as_tensor(draws.gumbel(self.rows, self.width, first)).to(device, non_blocking=True)
        gain, paths, ranks = torch.empty_like(own), list[Tensor | float](), list[Tensor | float]()
        for row, (above, token, path, rank) in enumerate(tree):
            paths.append(path if above < 0 else paths[above] + own[above, token].double())
            ranks.append(rank if above < 0 else ranks[above] + gain[above, token].double())
            gain[row] = perturbed(paths[row] + own[row], ranks[row], noise[row], temperature) - ranks[row]
        return TensorRanks(own, gain)


class TensorRanks:
    """What each token adds to a rank, `gain`, and its log-probability `own`, both [rows, width]."""

    def __init__(self, own: Tensor, gain: Tensor) -> None:
        self._own, self._gain = own, gain
        self.rows, self.width = gain.shape

    def __repr__(self) -> str:
        return f"<TensorRanks [{self.rows}, {self.width}] on {self._gain.device}>"

    def best(self, count: int, allowed: Given | None = None, among: TokenList | None = None) -> Reply[Best]:
        values, ids = _best(self._gain, count, allowed, among)
        return answered((values, ids, self._own.gather(1, ids)), partial(_told, count))

    def logp(self, rows: Sequence[int], tokens: Sequence[int]) -> Reply[Floats]:
        return _values(self._gain, rows, tokens)

    def mass(self, tokens: TokenList) -> Reply[Floats]:
        return answered((self._gain[:, _listed(tokens, self._gain.device)].amax(-1),), _same)


def statistics(logp: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Statistics`, each [rows], of log-probabilities [rows, width]."""
    probs = logp.exp()
    (prob, second), (token, _) = (two.unbind(-1) for two in highest(probs, 2))
    entropy = -logp.nan_to_num(neginf=0.0).mul_(probs).sum(-1)
    return token, prob, prob - second, entropy


def perturbed(logp: Tensor, greatest: float | Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Log-probabilities [n] of paths that share all but their last token, with Gumbel `noise` [n] of a temperature, so
    that the maximum is `greatest` (Kool et al. 2019, appendix B.3): the best k of a tree of such ranks are k paths
    drawn without replacement."""
    noisy = logp / temperature + noise
    top = greatest / temperature
    below = top - noisy + torch.log1p(-torch.exp(noisy - noisy.max()))
    return temperature * (top - below.relu() - torch.log1p(torch.exp(-below.abs())))


def _best(rows: Tensor, count: int, allowed: Given | None, among: TokenList | None) -> tuple[Tensor, Tensor]:
    """The `count` greatest numbers of each row and their tokens, or as many as there are."""
    if among is not None:
        ids = _listed(among, rows.device)
        values, places = highest(rows[:, ids], min(count, len(ids)))
        return values, ids[places]
    if allowed is not None and any(allowed):
        alike = all(one is allowed[0] for one in allowed)
        rows = rows + (_bias(allowed[0], rows) if alike else torch.stack([_bias(one, rows) for one in allowed]))
    return highest(rows, min(count, rows.shape[1]))


def highest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest numbers of each row [rows, n] and their places, of equal ones the first; `topk` takes any. Without
    the C library, it takes less time in a large vocabulary to look only at the blocks with the greatest maxima, and at
    what comes after the last block."""
    if rows.dtype == torch.float32 and rows.device.type == "cpu" and chosen() in variants():
        values, places = map(torch.from_numpy, best_in_c(rows.contiguous().numpy(), count))
        return values, places.long()
    if rows.shape[1] < BLOCK**2:
        places = ranked(rows).topk(count).indices
        return rows.gather(1, places), places
    blocks = rows.unfold(1, BLOCK, BLOCK)
    first = ranked(blocks.amax(-1)).topk(count).indices.sort().values
    near = first[:, :, None] * BLOCK + torch.arange(BLOCK, device=rows.device)
    end = torch.arange(blocks.shape[1] * BLOCK, rows.shape[1], device=rows.device).expand(len(rows), -1)
    places = torch.cat((near.flatten(1), end), 1)
    places = places.gather(1, ranked(rows.gather(1, places)).topk(count).indices)
    return rows.gather(1, places), places


def ranked(rows: Tensor) -> Tensor:
    """Different integers in the order of the numbers of each row [rows, n] in float32, the first of equal ones
    greatest: the number's bits, then how many come after it. NaN is the greatest."""
    bits = (rows.float() + 0.0).view(torch.int32)  # -0 becomes 0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) + torch.arange(rows.shape[1] - 1, -1, -1, device=rows.device)


@lru_cache(maxsize=BIASES)
def bias(allowed: Allowed, device: torch.device) -> Tensor:
    """0 for each token of a set, else -inf, [width]."""
    has = torch.from_numpy(allowed.has())
    return torch.zeros(len(has)).masked_fill_(~has, -torch.inf).to(device)


def _bias(allowed: Allowed | None, rows: Tensor) -> Tensor:
    """The same on the device of some rows, as wide as they are; 0 for all tokens without a set."""
    width = rows.shape[1]
    return rows.new_zeros(width) if allowed is None else bias(allowed, rows.device)[:width]


def _listed(tokens: TokenList, device: torch.device) -> Tensor:
    """Ids on a device, which keeps lists."""
    if isinstance(tokens, np.ndarray):
        return torch.from_numpy(tokens).to(device, non_blocking=True)
    return _ids(tuple(tokens), device)


@lru_cache(maxsize=LISTS)
def _ids(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int64, device=device)


def _values(rows: Tensor, at: Sequence[int], tokens: Sequence[int]) -> Reply[Floats]:
    where = torch.tensor([at, tokens], dtype=torch.int64).to(rows.device, non_blocking=True)
    return answered((rows[where[0], where[1]],), _same)


# Values of arrays


def _same(numbers: Floats) -> Floats:
    return numbers


def _as_ids(tokens: NDArray[np.int64]) -> Ids:
    return tokens.astype(np.int32)


def _statistics(token: NDArray[np.int64], prob: Floats, margin: Floats, entropy: Floats) -> Statistics:
    return Statistics(token.astype(np.int32), prob, margin, entropy)


def _told(count: int, values: Floats, ids: NDArray[np.int64], logp: Floats) -> Best:
    """With -1 and -inf after the last allowed token."""
    if values.shape[1] < count:
        more = (0, 0), (0, count - values.shape[1])
        values, logp = (np.pad(numbers, more, constant_values=-np.inf) for numbers in (values, logp))
        ids = np.pad(ids, more)
    none = values == -np.inf
    return Best(np.where(none, -1, ids).astype(np.int32), values, np.where(none, np.float32(-np.inf), logp))
