"""The pictures of docs/pictures that show measurements, drawn from bench/results.

    python bench/plots.py [--out docs/pictures]

Each is a function from a results file to an SVG; `make plots` after every new measurement.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token

from latency import HERE, Report  # isort: skip  (next to this script)
from svg import CODE, LEFT, RIGHT, TOP, WIDTH, Mark, Row, Run, Scale, circle, document, frame  # isort: skip
from svg import line, linear, listing, listing_size, logarithmic, path, rows, text, ticks  # isort: skip

PICTURES = HERE.parent / "docs" / "pictures"
GROUPS = {
    "single-line": "HumanEval, a line",
    "multi-line": "HumanEval, several lines",
    "random-span": "HumanEval, random span",
    "santa-python": "SantaCoder, Python line",
    "santa-js": "SantaCoder, JavaScript line",
    "python-line": "held-out Python, a line",
    "python-block": "held-out Python, a block",
    "python-span": "held-out Python, inside a line",
    "js-line": "held-out JavaScript, a line",
    "json-value": "held-out JSON, a value",
    "json-key": "held-out JSON, a key",
    "markdown-row": "held-out Markdown, a row",
    "markdown-item": "held-out Markdown, an item",
}
SIDES = {  # row: look and name; the last is drawn on top
    "smollm2-q4": ("peer pale", "SmolLM2"),
    "qwen": ("peer", "Qwen2.5-Coder"),
    "fill:small": ("ours pale", "small"),
    "fill:coder": ("ours", "coder"),
}


def quality(report: Report) -> str:
    """Exact matches in per cent by kind of gap, ours next to the bases of our models in llama.cpp, where measured."""
    lines = []
    for group, found in report["groups"].items():
        marks = [
            Mark(100 * found["rows"][row]["exact"], look) for row, (look, _) in SIDES.items() if row in found["rows"]
        ]
        lines.append(Row(GROUPS.get(group, group), marks))
    groups = report["groups"].values()
    legend = [side for row, side in reversed(SIDES.items()) if any(row in group["rows"] for group in groups)]
    counts = " to ".join(map(str, sorted({min(group["n"] for group in groups), max(group["n"] for group in groups)})))
    return rows(lines, legend, f"exact fills, %; {counts} gaps a kind; blue: llama.cpp", most=80)


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


CARRIED = {  # model: look and name
    "7B": ("peer", "7B shape on one H200, a bound"),
    "DiffusionGemma": ("other", "DiffusionGemma on one H200, a bound"),
    "0.5B": ("peer pale", "0.5B shape on one H200, a bound"),
    "coder": ("ours", "coder on 2 cores"),
    "small": ("ours pale", "small on 2 cores"),
}


def capacity(report: Report) -> str:
    """Users at one replica and how long 95 of 100 of their warm jobs wait, with the limit. A line ends where more than
    five of a hundred get no answer."""
    found = [row for row in report["rows"] if row["replicas"] == 1 and row["kind"] in ("measured", "bound")]
    found = [row for row in found if row["warm_ms"]["p95"] is not None]
    counts, waits = [row["users"] for row in found], [row["warm_ms"]["p95"] for row in found]
    low, high = min(waits) / 1.2, max(*waits, report["limit_ms"]) * 1.2
    x, y = logarithmic(1, max(2, *counts), LEFT + 12, WIDTH - RIGHT - 12), logarithmic(low, high, FLOOR, TOP + 16)
    parts = [
        line(LEFT, FLOOR, WIDTH - RIGHT, FLOOR, "axis"),
        text(LEFT, TOP, "p95 of first locked text where the context is warm, ms", "start"),
    ]
    parts.append(text(WIDTH / 2, FLOOR + 36, "users who type at one replica, both scales logarithmic", "middle"))
    parts += [text(x(users), FLOOR + 18, f"{users:,g}", "middle") for users in ticks(1, max(counts), (1, 2, 5))]
    apart = [ms for ms in ticks(low, high, (1, 2, 5)) if not 0.6 < ms / report["limit_ms"] < 1.7]  # not on its label
    for ms in (*apart, report["limit_ms"]):
        parts += [line(LEFT, y(ms), WIDTH - RIGHT, y(ms), "axis" if ms == report["limit_ms"] else "grid")]
        parts += [text(LEFT - 8, y(ms) + 4, f"{ms:,g}", "end")]
    for number, (model, (look, name)) in enumerate(CARRIED.items()):
        points = [(x(row["users"]), y(row["warm_ms"]["p95"])) for row in found if row["model"] == model]
        parts += [path(points, look), *(circle(*point, look) for point in points)] if points else []
        left, below = LEFT + number % 2 * 290, FLOOR + 60 + number // 2 * 20
        parts += [circle(left, below, look), text(left + 10, below + 4, name, "start")]
    return document(FLOOR + 114, parts)


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


MARKER = "<FILL>"
LOOKS = {  # of a token; what is nearest counts
    Keyword: "keyword",
    Operator.Word: "keyword",
    Name.Class: "name",
    Name.Decorator: "name",
    Name.Function: "name",
    Name.Builtin: "builtin",
    Keyword.Constant: "builtin",
    Number: "number",
    String: "string",
    Comment: "comment",
    Token: "",
}


def holes(report: Report) -> str:
    """A file with its markers, and the same file filled, each fill with the word and the probability of the command."""
    before, after = _filled(report)
    columns = [max(sum(len(run.text) for run in code) for code in side) for side in (before, after)]
    width, height = listing_size(columns[0], len(before))
    name, gap = report["file"], 16
    parts = [
        f"<style>{CODE}</style>",
        *listing(1, 1, columns[0], f"{name}, before", before),
        *listing(width + gap, 1, columns[1], f"after: caesura holes {name} --write", after),
    ]
    return document(height + 2, parts, width + gap + listing_size(columns[1], len(after))[0] + 1)


def _filled(report: Report) -> tuple[list[list[Run]], list[list[Run]]]:
    """The lines of both listings. Colours are those of the filled text, which parses."""
    pieces, holes = report["text"].split(MARKER), [*report["holes"], {"text": ""}]
    looks = iter(_looks(report["file"], "".join(p + hole["text"] for p, hole in zip(pieces, holes, strict=True))))
    before: list[Run] = []
    after: list[Run] = []
    said = ""
    for piece, hole in zip(pieces, holes, strict=True):
        around = [Run(letter, next(looks)) for letter in piece]
        end = piece.find("\n")
        before += around
        after += [*around[:end], Run(said, "comment"), *around[end:]] if said else around
        if "word" in hole:
            before.append(Run(MARKER, "gap", "gap-ground"))
            after += [Run(letter, next(looks), "fill-ground") for letter in hole["text"]]
            said = f"  {hole['word']} {hole['confidence']:.2f}"
    return _lines(before), _lines(after)


def _looks(file: str, text: str) -> Iterator[str]:
    """The look of each letter."""
    for token, piece in get_lexer_for_filename(file, stripnl=False).get_tokens(text):
        look = LOOKS[next(kind for kind in reversed(token.split()) if kind in LOOKS)]
        yield from itertools.repeat(look, len(piece))


def _lines(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that look alike are one; a line ends at each line break."""
    lines: list[list[Run]] = [[]]
    for run in runs:
        last = lines[-1][-1] if lines[-1] else None
        if run.text == "\n":
            lines.append([])
        elif last and last[1:] == run[1:]:
            lines[-1][-1] = run._replace(text=last.text + run.text)
        else:
            lines[-1].append(run)
    return lines[:-1]


DRAWN: dict[str, Callable[[Report], str]] = {
    "holes": holes,
    "quality": quality,
    "steps": steps,
    "latency": latency,
    "crowd": crowd,
    "capacity": capacity,
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
