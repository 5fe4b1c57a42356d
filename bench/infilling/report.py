"""The report: what a row came to in a group, and the tables that people read.

Sums over groups are means of the groups' figures, each group as heavy as any other.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any

from infilling.rows import SOURCES, Completion, kind, place  # isort: skip  (next to this)
from infilling.scores import Bin, Score, calibration_error, interval, paired, reliability  # isort: skip
from latency import Report, spread, table  # isort: skip


def summary(completions: Sequence[Completion], scores: Sequence[Score]) -> Report:
    """One row of one group: shares of 1 with their intervals, means and percentiles. Lengths are code points."""
    n = len(scores)
    exact = sum(s.exact for s in scores)
    tokens: Counter[str] = Counter()
    for completion in completions:
        tokens.update(completion.tokens)
    told = [(c.chance, s.exact) for c, s in zip(completions, scores, strict=True) if c.chance is not None]
    return {
        "n": n,
        "exact": round(exact / n, 4),
        "exact_95": interval(exact, n),
        "hits": "".join("01"[s.exact] for s in scores),
        **_verdicts("pass", [s.passed for s in scores]),
        **_verdicts("parses", [s.parses for s in scores]),
        "first_line": round(sum(s.first_line for s in scores) / n, 4),
        "similarity": round(sum(s.similarity for s in scores) / n, 4),
        "length_error": round(fmean(abs(s.length) for s in scores), 2),
        "length_bias": round(fmean(s.length for s in scores), 2),
        "empty": round(sum(not c.text.strip() for c in completions) / n, 4),
        "errors": sum(bool(c.error) for c in completions),
        "late": sum(c.late for c in completions),
        "ms": spread([c.ms for c in completions if c.ms is not None]),
        "steps": spread([c.steps for c in completions if c.ms is not None]),
        "tokens": {source: tokens[source] for source in SOURCES},
        "reliability": reliability(told) if told else None,
    }


def _verdicts(name: str, found: Sequence[bool | None]) -> Report:
    """A share and its interval, where there are verdicts."""
    known = [verdict for verdict in found if verdict is not None]
    if not known:
        return {name: None}
    return {name: round(sum(known) / len(known), 4), f"{name}_95": interval(sum(known), len(known))}


def drawn(completions: Sequence[Completion], scores: Sequence[Score], best: Sequence[Score]) -> Report:
    """Counts of ghost text: gaps where the model is asked, where something is shown, where that is the author's text or
    begins it; and the same of the whole best candidates, shown or not."""
    shown = [one for one, completion in zip(scores, completions, strict=True) if completion.text]
    asked = [one for one, completion in zip(best, completions, strict=True) if completion.best is not None]
    found = {
        "n": len(scores),
        "asked": len(asked),
        "shown": len(shown),
        "exact": sum(one.exact for one in shown),
        "begun": sum(one.begun for one in shown),
        "best_exact": sum(one.exact for one in asked),
        "best_first_line": sum(one.first_line for one in asked),
    }
    return {
        **found,
        "exact_of_shown_95": interval(found["exact"], found["shown"]),
        "best_exact_95": interval(found["best_exact"], found["asked"]),
        "best_hits": "".join("01"[one.exact] for one in best),
    }


# Pairs of rows

ALL = "all"


def pairs(groups: Report) -> list[Report]:
    """Every two rows on the cases that both have, group by group and, where there are several, over all of them. Rows
    of results that do not say which cases were exact are left out."""
    told = {name: {row: one["hits"] for row, one in g["rows"].items() if "hits" in one} for name, g in groups.items()}
    named = sorted({row for rows in told.values() for row in rows}, key=place)
    return [pair for left, right in itertools.combinations(named, 2) for pair in _pairs(told, left, right)]


def _pairs(told: dict[str, dict[str, str]], left: str, right: str) -> Iterable[Report]:
    both = {name: (rows[left], rows[right]) for name, rows in told.items() if left in rows and right in rows}
    if len(both) > 1:
        both[ALL] = "".join(hits for hits, _ in both.values()), "".join(hits for _, hits in both.values())
    for name, hits in both.items():
        found = paired(*([hit == "1" for hit in of] for of in hits))
        yield {"left": left, "right": right, "group": name, **found._asdict()}


def comparison(found: Sequence[Report]) -> str:
    """The pairs as a person reads them."""
    head = ("left - right", "group", "n", "only left", "only right", "exact %", "95 %")
    lines = [
        (
            f"{one['left']} - {one['right']}",
            *(one[key] for key in ("group", "n", "only_left", "only_right")),
            100 * one["difference"],
            " to ".join(f"{100 * bound:+.1f}" for bound in one["interval"]),
        )
        for one in found
    ]
    return table(head, lines)


# Tables

Cell = Callable[[Report], object]
MEASURES: dict[str, Cell] = {
    "exact %": lambda row: _percent(row["exact"]),
    "pass@1 %": lambda row: _percent(row["pass"]),
    "first line %": lambda row: _percent(row["first_line"]),
    "edit similarity %": lambda row: _percent(row["similarity"]),
    "parses %": lambda row: _percent(row["parses"]),
    "length error": lambda row: row["length_error"],
    "empty %": lambda row: _percent(row["empty"]),
    "steps p50": lambda row: row["steps"]["p50"],
    "ms p50": lambda row: row["ms"]["p50"],
    "ms p95": lambda row: row["ms"]["p95"],
}


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def rows(report: Report) -> list[str]:
    """Those that every group has: only they can be compared."""
    found = [set(group["rows"]) for group in report["groups"].values()]
    return sorted(set.intersection(*found), key=place) if found else []


def over_groups(report: Report, row: str, measure: str) -> float | None:
    """The mean of the groups that have the measure."""
    found = [MEASURES[measure](group["rows"][row]) for group in report["groups"].values()]
    known = [value for value in found if isinstance(value, int | float)]
    return fmean(known) if known else None


def curve(report: Report, row: str) -> list[Bin]:
    """A row's reliability over all groups."""
    found: list[list[Any]] = [group["rows"][row]["reliability"] or [] for group in report["groups"].values()]
    return [tuple(map(sum, zip(*bins, strict=True))) for bins in zip(*filter(None, found), strict=True)]  # type: ignore[misc]


def markdown(report: Report) -> str:
    """The tables of docs/models.md: exact matches by group, then every measure over all groups; what ghost text draws;
    reliability curves."""
    named = rows(report)
    head = ["", *named]
    lines = [
        [f"{name}, {group['n']}", *(_exact(group["rows"], row) for row in named)] for name, group in _groups(report)
    ]
    for measure in MEASURES:
        lines.append([f"**{measure}**", *(_figure(over_groups(report, row, measure)) for row in named)])
    lines.append(["**calibration error %**", *(_figure(_percent(calibration_error(curve(report, r)))) for r in named)])
    ghost = [_table(*_drawn(report, row)) for row in named if kind(row) == "ghost"]
    curves = _curves(report)
    parts = [_table(head, lines), *([ABOUT_GHOST, *ghost] if ghost else [])]
    return "\n".join([*parts, _table(*curves)] if curves[1] else parts)


ABOUT_GHOST = """\
Ghost text, in counts: where it asks the model and where it shows something; where that is the author's text, or the
start of it; then its best candidate, shown or not. It shows only what is likely enough, and it finds from the text
whether a gap has one line or several. **Where a word follows the cursor it asks nothing**, as in most random spans:
such a gap is no failure of the model, and `fill` says what people get there when they ask.
"""
DRAWN = {  # of a row of ghost text: a count, and of how many it is
    "asks": ("asked", "n"),
    "shows": ("shown", "n"),
    "exact": ("exact", "shown"),
    "or its start": ("begun", "shown"),
    "best candidate exact": ("best_exact", "asked"),
    "its first line": ("best_first_line", "asked"),
}


def _drawn(report: Report, row: str) -> tuple[list[str], list[list[str]]]:
    """Counts of ghost text, group by group and of all. A count of none is left out."""
    found = {name: group["rows"][row]["ghost"] for name, group in _groups(report)}
    total = {key: sum(told[key] for told in found.values()) for pair in DRAWN.values() for key in pair}
    return [row, *DRAWN], [[name, *_counts(told)] for name, told in [*found.items(), ("**all**", total)]]


def _counts(told: Report) -> list[str]:
    return [f"{told[key]} of {told[of]}" if told[of] else "" for key, of in DRAWN.values()]


def _curves(report: Report) -> tuple[list[str], list[list[str]]]:
    """Of the fills that a row held so likely, how many in a hundred were exact, and how many there were."""
    found = {row: curve(report, row) for row in rows(report)}
    count = max(map(len, found.values()), default=0)
    head = ["held likely, %", *(f"{100 * i // count}-{100 * (i + 1) // count}" for i in range(count))]
    lines = [
        [row, *(f"{100 * right / n:.0f} of {n}" if n else "" for n, _, right in bins)] for row, bins in found.items()
    ]
    return head, [line for line in lines if len(line) > 1]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|\n" for line in cells)


def _groups(report: Report) -> Iterable[tuple[str, Report]]:
    return report["groups"].items()


def _exact(found: Report, row: str) -> str:
    """With the pass rate behind a stroke where programs were run."""
    exact, passed = found[row]["exact"], found[row]["pass"]
    return f"{100 * exact:.1f}" + ("" if passed is None else f" / {100 * passed:.1f}")


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def picture(name: str, group: Report) -> str:
    """A group as a person reads it."""
    head = ("", *MEASURES, "c/l/r")
    said = f"{name}: {group['data']}, n {group['n']}, seed {group['seed']}"
    passing = group["reference_passes"]
    lines = [_line(row, group["rows"][row]) for row in sorted(group["rows"], key=place)]
    told = [said if passing is None else f"{said}, reference passes {passing}", table(head, lines)]
    ghost = [(row, *_counts(one["ghost"])) for row, one in group["rows"].items() if "ghost" in one]
    return "\n".join([*told, table(("", *DRAWN), ghost)] if ghost else told)


def _line(name: str, row: Report) -> list[object]:
    trouble = [f"{row[key]} {key}" for key in ("errors", "late") if row[key]]
    said = f"{name} ({', '.join(trouble)})" if trouble else name
    return [said, *(of(row) for of in MEASURES.values()), "/".join(str(row["tokens"][source]) for source in SOURCES)]
