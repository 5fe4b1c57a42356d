"""What a forward says of the tokens in its rows. The numbers stay where they were computed, in C and numpy on a CPU
(`host.py`), in torch elsewhere (`tensors.py`); methods, samplers, canvas, grammar and search ask for the few that they
decide on. All answers of a step come to the host in one copy (`told`).

A row has log-probabilities: its logits', or what `only`, `merged`, `bounded` and `perturbed` make of them. They
are never written out: a row keeps the logarithm of its sum. A row's numbers do not depend on the rows next to it. Of
equal numbers the token with the lower id comes first.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from caesura.engine.draws import Draws

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Allowed:
    """A set of tokens, one bit each. It never changes, so that a device keeps a copy."""

    def __init__(self, has: Bools) -> None:
        """From bool [width]."""
        self.width = len(has)
        self.bits = np.packbits(has, bitorder="little")  # uint8 [width / 8], rounded up

    @classmethod
    def of(cls, width: int, tokens: Iterable[int] | NDArray[np.int64]) -> "Allowed":
        """These tokens alone."""
        has = np.zeros(width, np.bool_)
        has[np.asarray(list(tokens) if not isinstance(tokens, np.ndarray) else tokens, np.int64)] = True
        return cls(has)

    def __contains__(self, token: int) -> bool:
        return bool(self.bits[token >> 3] >> (token & 7) & 1)

    def __and__(self, other: "Allowed") -> "Allowed":
        return Allowed(self.has() & other.has())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allowed) and self.width == other.width and bool((self.bits == other.bits).all())

    __hash__ = object.__hash__  # a device's copy belongs to the object

    def __repr__(self) -> str:
        return f"<Allowed {int(self.has().sum())} of {self.width}>"

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def has(self) -> Bools:
        """bool [width]."""
        return np.unpackbits(self.bits, count=self.width, bitorder="little").view(np.bool_)


Given = Sequence[Allowed | None]  # of each row; None: all tokens
TokenList = Sequence[int] | NDArray[np.int64]


class Best(NamedTuple):
    """The likeliest tokens of each row, all [rows, count]: `ids`, -1 after the last allowed one; their `values`, -inf
    there; and their log-probabilities `logp`. Values and log-probabilities are the same unless rows are `perturbed`,
    whose values order the tokens."""

    ids: Ids
    values: Floats
    logp: Floats


class Statistics(NamedTuple):
    """Of each row, all [rows]: its best token, that token's probability, its lead over the second, and the entropy of
    the distribution in nats."""

    token: Ids
    prob: Floats
    margin: Floats
    entropy: Floats


class Reply(Protocol[T_co]):
    """An answer that may still be on a device; `told` has all of a step brought to the host."""

    @property
    def value(self) -> T_co: ...


class Known(Generic[T]):
    """An answer that is on the host."""

    def __init__(self, value: T) -> None:
        self.value = value


class Below(NamedTuple):
    """A row of a search's tree, for `perturbed`: the row `above` it in the same scores and its own `token` there; or
    with no row above (-1) the log-probability of its `path` and its `rank`."""

    above: int
    token: int
    path: float = 0.0
    rank: float = 0.0


class Ranked(Protocol):
    """Rows [rows, width] of tokens by their values, log-probabilities unless they are perturbed; they own their memory,
    so they outlive the forward."""

    rows: int
    width: int

    def best(
        self,
        count: int,
        allowed: Given | None = None,
        among: TokenList | None = None,
    ) -> Reply[Best]:
        """The `count` likeliest tokens of each row: of those that are `allowed` in it, or `among` these ids in all,
        ascending. The log-probabilities are over all tokens."""

    def logp(self, rows: Sequence[int], tokens: Sequence[int]) -> Reply[Floats]:
        """The value of a token in a row, float32 [n]."""

    def mass(self, tokens: TokenList) -> Reply[Floats]:
        """The logarithm of the tokens' probability together, float32 [rows]; of perturbed rows the greatest value, as
        the Gumbel of a sum is."""


class Scores(Ranked, Protocol):
    """Rows of log-probabilities."""

    # Questions

    def total(self) -> Reply[Floats]:
        """The logarithm of the sum of exp(logits), float32 [rows]: of allowed tokens after `only`."""

    def statistics(self) -> Reply[Statistics]: ...

    def draw(self, rows: Sequence[int], uniform: NDArray[np.float64]) -> Reply[Ids]:
        """A token of each of these rows by its probability, int32 [n]: the first in the order of ids up to which the
        probabilities, in float64, add up to more than the row's `uniform` number."""

    def greatest(self, sets: Sequence[NDArray[np.int64]]) -> Reply[Floats]:
        """The greatest log-probability of each set of ids, float32 [sets, rows]."""

    def finite(self) -> Reply[Bools]:
        """bool [rows]; false where a logit is NaN or +inf, or all are -inf."""

    def dense(self) -> Reply[Floats]:
        """All log-probabilities, float32 [rows, width]. For tests and comparisons, and for what keeps whole
        distributions."""

    # Other rows

    def part(self, first: int, end: int) -> Self:
        """The rows from `first` to `end`, without a copy."""

    def taken(self, rows: Sequence[int]) -> Self:
        """These rows, in this order; a row -1 has equal probabilities."""

    def only(self, allowed: Given) -> Self:
        """The rows given that their token is allowed; None changes nothing. Without a copy of the logits."""

    def over(self, first: int, other: Self) -> Self:
        """The rows with those from `first` on replaced."""

    def merged(self, pairs: Sequence[tuple[int, int]]) -> Self:
        """The rows with the probability of the first token of each pair added to the second's, where the first keeps
        its own; then normalized again."""

    def bounded(self, tokens: Sequence[int], near: float) -> Self:
        """The rows without any token that is likelier than the row's one of `tokens` [rows], or less than `near` nats
        less likely."""

    def perturbed(self, tree: Sequence[Below], draws: Draws, first: int, temperature: float) -> Ranked:
        """What each token adds to the rank of another answer: perturbed log-probabilities of a path with that token
        less the rank of the path without it, so that the greatest adds nothing (Kool et al. 2019, appendix B.3). Row r
        takes the Gumbel noise of row `first` + r of `draws`."""


def told(*answers: Reply[Any]) -> tuple[Any, ...]:
    """Their values, on the host, after one wait for the device and one copy."""
    waiting = [answer for answer in answers if not isinstance(answer, Known)]
    if waiting:
        waiting[0].bring(waiting)  # type: ignore[attr-defined]  # the class of a device's answers
    return tuple(answer.value for answer in answers)
