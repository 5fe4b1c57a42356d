"""The pictures of docs/pictures that show measurements, drawn from bench/results.

    python bench/plots.py [--out docs/pictures]

Each is a function from a results file to an SVG; `make plots` after every new measurement.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from infilling.report import over_groups  # isort: skip  (beside this script)
from infilling.report import rows as compared  # isort: skip
from latency import HERE, Report  # isort: skip
from svg import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Mark, Row, Scale, circle, document, frame  # isort: skip
from svg import line, linear, logarithmic, path, rows, text, ticks  # isort: skip

PICTURES = HERE.parent / "docs" / "pictures"
OURS = ("canvas", "left-to-right", "verify")


def quality(report: Report) -> str:
    """Median milliseconds on a log scale, exact matches in per cent, each the mean over the groups. Rows that need no
    model have no milliseconds: they are lines."""
    height = 380
    found = [(row, over_groups(report, row, "ms p50"), over_groups(report, row, "exact %")) for row in compared(report)]
    points = [(row, ms, exact) for row, ms, exact in found if ms and exact is not None]
    assert points, "a row that computes is measured in every group"
    floors = [(row, exact) for row, ms, exact in found if not ms and exact]
    low, high = min(ms for _, ms, _ in points) / 1.5, max(ms for _, ms, _ in points) * 1.8
    top = 10 * math.ceil(max(exact for _, _, exact in points) / 10 + 0.1)
    x, y = logarithmic(low, high, LEFT, WIDTH - RIGHT), linear(0, top, height - BOTTOM, TOP)
    parts = [line(LEFT, y(0), WIDTH - RIGHT, y(0), "axis"), line(LEFT, TOP, LEFT, y(0), "axis")]
    for exact in range(0, top + 1, 10):
        parts += [line(LEFT, y(exact), WIDTH - RIGHT, y(exact), "grid"), text(LEFT - 8, y(exact) + 4, exact, "end")]
    parts += [text(x(ms), y(0) + 18, f"{ms:,g}", "middle") for ms in ticks(low, high)]
    for row, exact in floors:
        parts += [line(LEFT, y(exact), WIDTH - RIGHT, y(exact), "axis"), text(WIDTH - RIGHT, y(exact) - 5, row, "end")]
    for row, ms, exact in points:
        parts += [circle(x(ms), y(exact), "ours" if row in OURS else "peer"), text(x(ms), y(exact) - 10, row, "middle")]
    said = f"median ms of a fill, log scale, cold context; means of {len(report['groups'])} groups"
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, height - 12, said, "middle"))
    parts.append(text(LEFT + 8, TOP - 8, "exact matches, %", "start"))
    return document(height, parts)


def steps(report: Report) -> str:
    """Median milliseconds of a step, ours and Transformers', with the least that the machine allows."""
    looks = {"bound": "other", "ours": "ours", "transformers": "peer", "eager": "peer pale"}
    lines = []
    for row in report["rows"]:
        threads = "1 thread" if row["threads"] == 1 else f"{row['threads']} threads"
        name = f"{row['vocabulary']:,} tokens, canvas {row['canvas']}, {threads}"
        ms = {"bound": row["bound_ms"], **{side: row["ms"][side]["p50"] for side in ("ours", "transformers", "eager")}}
        lines.append(Row(name, [Mark(ms[side], look) for side, look in looks.items()], f"{row['ratio']:.1f}x"))
    legend = list(zip(looks.values(), ("bound", "ours", "Transformers", "eager"), strict=True))
    return rows(lines, legend, "median ms of a step, log scale; right: Transformers over ours")


def latency(report: Report) -> str:
    """What keys and starts wait for, the 50th and the 95th percentile, and the peer's lines where there are any."""
    lines = [_spread(name.replace("  ", "first text, "), ms, "ours") for name, ms in report["ms"].items()]
    legend = [("ours", "Caesura"), ("ours pale", "95 %")]
    if beside := report.get("beside"):
        for name in ("context warm", "context cold"):
            if name not in beside:
                continue
            for side, look in (("ours", "ours"), ("peer", "peer")):
                who = "llama.cpp" if side == "peer" else "ours"
                lines.append(_spread(f"whole line, {name}: {who}", beside[name]["ms"][side], look))
        legend += [("peer", "llama.cpp"), ("peer pale", "95 %")]
    return rows(lines, legend, "ms, log scale; right: p50 / p95")


def _spread(name: str, ms: Report, look: str) -> Row:
    return Row(name, [Mark(ms["p50"], look), Mark(ms["p95"], f"{look} pale")], f"{_ms(ms['p50'])} / {_ms(ms['p95'])}")


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


SERIES = (  # look, kind, whether one job at a time, name
    ("ours", "measured", False, "model small, 2 cores: batched"),
    ("ours pale", "measured", True, "the same, one job at a time"),
    ("peer", "simulated", False, "bound of one H200: batched"),
    ("peer pale", "simulated", True, "the same, one job at a time"),
)


def crowd(report: Report) -> str:
    """Editors at one engine: how many of those who rest are answered, and how long the median of them waits. A series
    ends where the percentile falls on who was never answered."""
    found = report["rows"]
    waits = [row["rested_ms"]["p50"] for row in found if row["rested_ms"]["p50"]]
    low, high = min(waits) / 1.4, max(waits) * 1.4
    shares = {100 * share: f"{100 * share:g}" for share in (0, 0.25, 0.5, 0.75, 1)}
    parts = [
        *_panel(found, LEFT, WIDTH / 2 - 24, lambda row: 100 * row["rested_answered"], partial(linear, 0, 100), shares),
        *_panel(
            found,
            WIDTH / 2 + 40,
            WIDTH - RIGHT,
            lambda row: row["rested_ms"]["p50"],
            partial(logarithmic, low, high),
            {ms: f"{ms:,g}" for ms in ticks(low, high)},
        ),
        text(LEFT, TOP, "answered where one rests, %", "start"),
        text(WIDTH / 2 + 40, TOP, "median wait, ms, log scale", "start"),
        text(WIDTH / 2, FLOOR + 36, "editors typing at one engine, log scale", "middle"),
    ]
    for number, (look, _, _, name) in enumerate(SERIES):
        x, y = LEFT + number % 2 * 290, FLOOR + 60 + number // 2 * 20
        parts += [circle(x, y, look), text(x + 10, y + 4, name, "start")]
    return document(FLOOR + 94, parts)


FLOOR = 242  # pixel of the panels' axis


def _panel(
    found: Sequence[Report],
    begin: float,
    end: float,
    value: Callable[[Report], float | None],
    scale: Callable[[float, float], Scale],
    marks: Mapping[float, str],
) -> Iterator[str]:
    """A value against the number of editors, from pixel `begin` to `end`."""
    counts = sorted({row["peers"] for row in found})
    x, y = logarithmic(counts[0], counts[-1], begin + 12, end - 12), scale(FLOOR, TOP + 16)
    yield line(begin, FLOOR, end, FLOOR, "axis")
    for count in counts:
        yield text(x(count), FLOOR + 18, count, "middle")
    for mark, said in marks.items():
        yield line(begin, y(mark), end, y(mark), "grid")
        yield text(begin - 8, y(mark) + 4, said, "end")
    for look, kind, alone, _ in reversed(SERIES):
        rows = [row for row in found if row["kind"] == kind and (row["live"] == 1) == alone]
        known = [(row["peers"], at) for row in rows if (at := value(row)) is not None]
        points = [(x(peers), y(at)) for peers, at in sorted(known)]
        yield path(points, look)
        yield from (circle(*point, look) for point in points)


BROAD, TALL = 960, 18  # pixels of the flame graph and of a frame's height


def flame(report: Report) -> str:
    """Stacks on one another, as wide as the time in them; native code is blue (after Gregg 2011, flame graphs)."""
    boxes: dict[tuple[str, ...], list[int]] = {}  # where in the samples it begins, how many it has
    begin = 0
    for names, samples in sorted((tuple(stack.split(";")), n) for stack, n in report["stacks"].items()):
        for depth in range(1, len(names) + 1):
            boxes.setdefault(names[:depth], [begin, 0])[1] += samples
        begin += samples
    height, pixel = TALL * max(map(len, boxes)), BROAD / begin
    parts = []
    for names, (at, samples) in boxes.items():
        told = f"{names[-1]}: {samples / begin:.1%}"
        look = "frame native" if names[-1].startswith("[") else "frame"
        parts.append(frame(at * pixel, height - TALL * len(names), samples * pixel, TALL, names[-1], told, look))
    said = f"{begin:,} samples of the threads that work, 100 a second; {report['machine']}"
    parts.append(text(0, height + 20, said, "start"))
    return document(height + 30, parts, BROAD)


DRAWN: dict[str, Callable[[Report], str]] = {
    "quality": quality,
    "steps": steps,
    "latency": latency,
    "crowd": crowd,
    "flame": flame,
}


def draw(results: Path, out: Path) -> None:
    for name, picture in DRAWN.items():
        report = json.loads((results / f"{name}.json").read_text("utf-8"))
        (out / f"{name}.svg").write_text(picture(report), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="The pictures of the measurements.")
    parser.add_argument("--out", type=Path, default=PICTURES)
    draw(HERE / "results", parser.parse_args().out)


if __name__ == "__main__":
    main()
