"""Pictures as SVG, by hand: scales, marks, axes, readable on light and on dark. plots.py says what is drawn."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

Scale = Callable[[float], float]  # a value's pixel

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 640, 56, 24, 24, 52  # pixels: the picture's, and around its axes
WIDE = 720  # pixels of a picture with long names
LETTER = 7.2  # pixels that a letter takes at most, on average
TICKS = (1, 2, 3, 5)  # of a decade
STYLE = (
    "text{font:13px sans-serif;fill:#444}.axis{stroke:#999}.grid{stroke:#ddd}.ours{fill:#c2410c;stroke:#c2410c}"
    ".peer{fill:#3b6ea5;stroke:#3b6ea5}.other{fill:#888;stroke:#888}.pale{fill-opacity:.3}"
    "path.ours,path.peer,path.other{fill:none;stroke-width:2}path.pale{stroke-dasharray:5 4}"
    ".frame{fill:#e8b48a;stroke:#fff;stroke-width:.5}.native{fill:#9db8d6}.within{font-size:11px;fill:#222}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.within{fill:#222}.frame{stroke:#0d1117}.grid{stroke:#444}}"
)

CODE = (  # of a listing: on a ground of its own, so that it is readable wherever it is shown
    ".code{font:13px ui-monospace,monospace;fill:#1f2328}.ground{fill:#f6f8fa;stroke:#d1d9e0}"
    ".keyword{fill:#cf222e}.name{fill:#8250df}.number,.builtin{fill:#0550ae}.string{fill:#0a3069}.comment{fill:#59636e}"
    ".gap{fill:#c2410c}.gap-ground{fill:#ffe8d6}.fill-ground{fill:#c9f2d3}"
    "@media(prefers-color-scheme:dark){.code{fill:#e6edf3}.ground{fill:#161b22;stroke:#3d444d}"
    ".keyword{fill:#ff7b72}.name{fill:#d2a8ff}.number,.builtin{fill:#79c0ff}.string{fill:#a5d6ff}.comment{fill:#9198a1}"
    ".gap{fill:#ffa657}.gap-ground{fill:#4a2c14}.fill-ground{fill:#1d4d2b}}"
)
ADVANCE, LEADING = 7.8, 19  # pixels of a letter and of a line of a listing


class Run(NamedTuple):
    """A piece of a line of code. `look` is the class of its letters, `ground` that of the box under it, if any."""

    text: str
    look: str = ""
    ground: str = ""


class Mark(NamedTuple):
    """A point of a series. `look` is its class: ours, peer or other, and pale."""

    value: float
    look: str


class Row(NamedTuple):
    """A line of marks with its name to the left and a word to the right."""

    name: str
    marks: Sequence[Mark]
    said: str = ""


def linear(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)


def ticks(low: float, high: float, of: Sequence[int] = TICKS) -> Iterator[float]:
    """Round values between the two."""
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        yield from (tick * 10**power for tick in of if low <= tick * 10**power <= high)


def rows(lines: Sequence[Row], legend: Sequence[tuple[str, str]], said: str, most: int = 0) -> str:
    """Marks on one axis, a line a row; `legend` has looks and names, `said` is below the axis. The axis is linear from
    0 to `most` where that is given, otherwise logarithmic."""
    top, step = 44, 26
    bottom = top + step * len(lines)
    left, right = (24 + LETTER * max(map(len, words)) for words in ([r.name for r in lines], [r.said for r in lines]))
    end = WIDE - right
    if most:
        x, marked = linear(0, most, left, end), [*range(0, most + 1, 10)]
    else:
        values = [mark.value for row in lines for mark in row.marks]
        low, high = min(values) / 1.3, max(values) * 1.3
        x, marked = logarithmic(low, high, left, end), [*ticks(low, high, TICKS if high / low < 100 else (1,))]
    parts = list(_legend(legend, left))
    for tick in marked:
        parts += [line(x(tick), top - 8, x(tick), bottom, "grid"), text(x(tick), bottom + 16, f"{tick:,g}", "middle")]
    for number, row in enumerate(lines):
        y = top + step * (number + 0.5)
        ends = [x(mark.value) for mark in row.marks]
        parts += [text(left - 10, y + 4, row.name, "end"), line(min(ends), y, max(ends), y, "axis")]
        parts += [circle(x(mark.value), y, mark.look) for mark in row.marks]
        parts.append(text(max(ends) + 12, y + 4, row.said, "start"))
    parts += [
        line(left, bottom, end, bottom, "axis"),
        text((left + end) / 2, bottom + 40, said, "middle"),
    ]
    return document(bottom + 52, parts, WIDE)


def _legend(names: Sequence[tuple[str, str]], left: float) -> Iterator[str]:
    for look, name in names:
        yield circle(left, 16, look)
        yield text(left + 10, 20, name, "start")
        left += 34 + LETTER * len(name)


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    return f'<line class="{look}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(points: Sequence[tuple[float, float]], look: str) -> str:
    return f'<path class="{look}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def text(x: float, y: float, said: object, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(said))}</text>' if said != "" else ""


def frame(x: float, y: float, width: float, height: float, name: str, told: str, look: str) -> str:
    """A box with as much of its name as fits, and what a pointer is told."""
    fits = int((width - 4) / 6.2)
    said = name if len(name) <= fits else f"{name[: fits - 1]}…" if fits > 3 else ""
    box = f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    within = f'<text class="within" x="{x + 3:.1f}" y="{y + height - 4:.1f}">{escape(said)}</text>' if said else ""
    return f"<g><title>{escape(told)}</title>{box}{within}</g>"


def listing(x: float, y: float, columns: int, title: str, code: Sequence[Sequence[Run]]) -> Iterator[str]:
    """Lines of code in a box of `columns` letters. Every run is as long as its letters are many, whatever the font."""
    width, height = listing_size(columns, len(code))
    letters = []  # they are drawn after all grounds, which would cut off what is next to them
    yield f'<rect class="ground" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
    for number, runs in enumerate([[Run(title, "comment")], [], *code]):
        at, base = x + 2 * ADVANCE, y + LEADING * (number + 1.5)
        for run in runs:
            long, said = ADVANCE * len(run.text), run.text.strip()
            if run.ground:
                box = f'x="{at - 2:.1f}" y="{base - 14:.1f}" width="{long + 4:.1f}" height="{LEADING - 1}" rx="3"'
                yield f'<rect class="{run.ground}" {box}/>'
            if said:
                start = at + ADVANCE * (len(run.text) - len(run.text.lstrip()))
                place = f'x="{start:.1f}" y="{base:.1f}" textLength="{ADVANCE * len(said):.1f}"'
                letters.append(f'<text class="{f"code {run.look}".strip()}" {place}>{escape(said)}</text>')
            at += long
    yield from letters


def listing_size(columns: int, lines: int) -> tuple[float, float]:
    """Width and height of a listing's box, in pixels."""
    return ADVANCE * (columns + 4), LEADING * (lines + 3.5)


def circle(x: float, y: float, look: str) -> str:
    return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'


def document(height: float, parts: Sequence[str], width: float = WIDTH) -> str:
    body = "\n".join(part for part in parts if part)
    box = f'viewBox="0 0 {width:g} {height:g}" role="img"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n<style>{STYLE}</style>\n{body}\n</svg>\n'
