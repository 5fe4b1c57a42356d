"""The plot of quality against latency: a point a row, drawn as SVG by hand."""

import math
from html import escape

from infilling.report import over_groups, rows  # isort: skip  (beside this)
from latency import Report  # isort: skip

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 380, 56, 24, 24, 52  # pixels
OURS = ("canvas", "left-to-right", "verify")
TICKS = (1, 2, 3, 5)  # of a decade
STYLE = (
    "text{font:13px sans-serif;fill:#444}.axis{stroke:#999}.grid{stroke:#ddd}.ours{fill:#c2410c}.peer{fill:#3b6ea5}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#444}}"
)


def plot(report: Report) -> str:
    """Median milliseconds on a log scale, exact matches in per cent, each the mean over the groups. Rows that need no
    model have no milliseconds: they are lines."""
    found = [(row, over_groups(report, row, "ms p50"), over_groups(report, row, "exact %")) for row in rows(report)]
    points = [(row, ms, exact) for row, ms, exact in found if ms and exact is not None]
    assert points, "a row that computes is measured in every group"
    floors = [(row, exact) for row, ms, exact in found if not ms and exact]
    low, high = min(ms for _, ms, _ in points) / 1.5, max(ms for _, ms, _ in points) * 1.8
    top = 10 * math.ceil(max(exact for _, _, exact in points) / 10 + 0.1)

    def x(ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(ms / low) / math.log(high / low)

    def y(exact: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * exact / top

    parts = [_line(LEFT, y(0), WIDTH - RIGHT, y(0), "axis"), _line(LEFT, TOP, LEFT, y(0), "axis")]
    for exact in range(0, top + 1, 10):
        parts += [_line(LEFT, y(exact), WIDTH - RIGHT, y(exact), "grid"), _text(LEFT - 8, y(exact) + 4, exact, "end")]
    for ms in (tick * 10**power for power in range(6) for tick in TICKS if low <= tick * 10**power <= high):
        parts.append(_text(x(ms), y(0) + 18, f"{ms:,}", "middle"))
    for row, exact in floors:
        parts += [
            _line(LEFT, y(exact), WIDTH - RIGHT, y(exact), "axis"),
            _text(WIDTH - RIGHT, y(exact) - 5, row, "end"),
        ]
    for row, ms, exact in points:
        name = "ours" if row in OURS else "peer"
        parts.append(f'<circle class="{name}" cx="{x(ms):.1f}" cy="{y(exact):.1f}" r="5"/>')
        parts.append(_text(x(ms), y(exact) - 10, row, "middle"))
    said = f"median ms of a fill, log scale, cold context; means of {len(report['groups'])} groups"
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, said, "middle"))
    parts.append(_text(LEFT + 8, TOP - 8, "exact matches, %", "start"))
    body = "\n".join(parts)
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, said: object, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(said))}</text>'
