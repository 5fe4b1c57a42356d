"""How good a completion is, and how likely a share of them is by chance."""

import ast
import json
import math
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from caesura.server.languages import grammar, language
from caesura.server.text import repair

from infilling.cases import Case  # isort: skip  (next to this)
from infilling.sandbox import passes  # isort: skip

NORMAL_95 = 1.96
WITHIN_WORD = re.compile(r"\w\w")
BINS = 10  # of a reliability curve, by confidence


@dataclass(frozen=True)
class Score:
    """`parses`, `passed`: None where it cannot be told. `length` is that of the fill less that of what was wanted, in
    code points. `begun`: what was wanted begins with the words of the fill."""

    exact: bool
    first_line: bool
    similarity: float
    length: int
    parses: bool | None = None
    passed: bool | None = None
    begun: bool = False


def score(case: Case, text: str) -> Score:
    """Blanks at the end of the text do not count; blanks at its start do: the cursor is behind the indentation."""
    said, wanted = text.rstrip(), case.middle.rstrip()
    return Score(
        exact=said == wanted,
        first_line=_first(said) == _first(wanted),
        similarity=similarity(said, wanted),
        length=len(said) - len(wanted),
        parses=parses(case, text),
        passed=passes(case.program(text)) if case.test else None,
        begun=bool(said) and wanted.startswith(said) and not WITHIN_WORD.match(wanted, len(said) - 1),
    )


def score_drawn(case: Case, text: str, best: str | None) -> Score:
    """The score of ghost text. A start of the best candidate may leave a bracket open: only a whole one has to
    parse. Where nothing is drawn, no program passes."""
    found = score(case, text)
    found = found if text else replace(found, passed=False if case.test else None)
    return found if text and text == best else replace(found, parses=None)


def _first(text: str) -> str:
    return text.partition("\n")[0].rstrip()


def similarity(left: str, right: str) -> float:
    """1 - Levenshtein distance / length of the longer: edit similarity as in RepoCoder (Zhang et al. 2023)."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return 1.0 - row[-1] / max(len(left), len(right), 1)


def parses(case: Case, text: str) -> bool | None:
    """Whether the whole text is valid with the fill in it, by a parser, or else has no more syntax errors than the
    author's, by a grammar. For a table: True if its row has as many cells as before."""
    if case.lang in PARSERS:
        return _taken(PARSERS[case.lang], case.filled(text))
    if case.lang == "markdown":
        line = case.prefix.rpartition("\n")[2]
        return _cells(line + text) == _cells(line + case.middle) if line.startswith("|") else None
    if grammar(language(case.lang)) is None:
        return None
    return _faults(case, text) <= _faults(case, case.middle)


PARSERS: dict[str, Callable[[str], object]] = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads}


def _taken(parser: Callable[[str], object], text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parser(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _faults(case: Case, text: str) -> int:
    tree = repair.parsed(case.filled(text), case.lang)
    assert tree is not None, "the grammar is one of the package's own"
    return repair.faults(tree).nodes


def _cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row))


def interval(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not n:
        return 0.0, 1.0
    z2, share = NORMAL_95**2, successes / n
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = NORMAL_95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return round(max(0.0, middle - reach), 4), round(min(1.0, middle + reach), 4)


class Paired(NamedTuple):
    """Two rows on the same cases: what each alone has right, and the difference of their shares, left less right, with
    its 95 % interval."""

    n: int
    only_left: int
    only_right: int
    difference: float
    interval: tuple[float, float]


def paired(left: Sequence[bool], right: Sequence[bool]) -> Paired:
    """The interval is Agresti and Min's (2005): Wald's of pairs, with half a case more in each of the four cells."""
    pairs = Counter(zip(left, right, strict=True))
    n, mine, yours = len(left), pairs[True, False], pairs[False, True]
    a, b, total = mine + 0.5, yours + 0.5, n + 2
    middle, reach = (a - b) / total, NORMAL_95 * math.sqrt(a + b - (a - b) ** 2 / total) / total
    bounds = round(max(-1.0, middle - reach), 4), round(min(1.0, middle + reach), 4)
    return Paired(n, mine, yours, round((mine - yours) / n, 4) if n else 0.0, bounds)


Bin = tuple[int, float, int]  # completions, the sum of their confidences, how many were right


def reliability(told: Sequence[tuple[float, bool]]) -> list[Bin]:
    """A reliability curve: completions by how sure they were, from the least. Sums, so that curves can be added."""
    bins: list[Bin] = [(0, 0.0, 0)] * BINS
    for chance, right in told:
        at = min(int(chance * BINS), BINS - 1)
        n, total, hits = bins[at]
        bins[at] = n + 1, round(total + chance, 4), hits + right
    return bins


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """The mean distance between how sure and how often right, over completions (Naeini et al. 2015)."""
    n = sum(one[0] for one in bins)
    return round(sum(abs(total - hits) for _, total, hits in bins) / n, 4) if n else None
