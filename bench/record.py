"""Record a real `caesura fill --watch` and draw it as an animated SVG: the picture at the top of the README.

    python bench/record.py examples/stack.js --at 17:5 --out docs/fill.svg [--slow 1 6] [--note MACHINE] [-- OPTION ...]

The command runs in a pseudo-terminal against the shared engine, which is started and asked once before, so that neither
loading nor a cold cache is in the picture. Every frame is what the terminal got, with the time at which it came; the
picture plays it once for each factor of `--slow` and says which. What stands behind `--` goes to `caesura fill`, for
example `--sampler threshold`. The SVG is self-contained: CSS key frames, no script, nothing loaded.
"""

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from xml.sax.saxutils import escape

from rich.console import Console
from rich.text import Text

T = TypeVar("T", Text, str)

COLUMNS, ROWS = 84, 50
HOLD_S = 2.5  # the last frame of each playing
CHARACTER, LINE, PAD, BAR, FOOT = 8.4, 20.0, 18.0, 38.0, 34.0  # pixels
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
STYLES = {2: "locked", 3: "draft", 8: "open"}  # what watch.py prints in green, yellow and bright black
CSS = """
text{font:14px %s;white-space:pre;fill:#8d96a0}
.locked{fill:#56d364;font-weight:600}.draft{fill:#e3b341}.open{fill:#6e7681}
.bar{fill:#c9d1d9}.clock{fill:#79c0ff}.foot{font-size:12px}
.f{visibility:hidden;animation:%.3fs step-end infinite}
"""


@dataclass(frozen=True)
class Frame:
    """One picture of the terminal: when it came, its corner, and the rows between the panel's borders."""

    at_s: float
    corner: str
    rows: tuple[Text, ...]


def record(command: list[str]) -> list[Frame]:
    """Run the command in a terminal of its own; the panels that it draws."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    began = time.monotonic()
    chunks: list[tuple[float, str]] = []
    while data := _read(parent):
        chunks.append((time.monotonic() - began, data.decode("utf-8", "replace")))
    os.close(parent)
    if process.wait():
        raise SystemExit("".join(text for _, text in chunks))
    return frames(chunks)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the last writer has gone
        return b""


def frames(chunks: list[tuple[float, str]]) -> list[Frame]:
    """Cut what a terminal got into panels, at each upper border, and drop repetitions."""
    found: list[Frame] = []
    text = "".join(part for _, part in chunks)
    starts = [match.start() for match in re.finditer("╭", text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        if "╰" not in text[start:end]:
            continue
        lines = re.sub(r"\x1b\[[0-9;?]*[A-HJKhl]", "", text[start:end]).split("\n")
        bottom = next(number for number, line in enumerate(lines) if "╰" in line)
        corner = lines[bottom].partition("╯")[0].strip("╰─ ")
        rows = tuple(inside(Text.from_ansi(line.rstrip("\r"))) for line in lines[1:bottom])
        if not found or (found[-1].corner, found[-1].rows) != (corner, rows):
            found.append(Frame(_time(chunks, start), corner, rows))
    return found


def _time(chunks: list[tuple[float, str]], offset: int) -> float:
    for at_s, text in chunks:
        if offset < len(text):
            return at_s
        offset -= len(text)
    raise AssertionError("the offset lies behind the end")


def inside(row: Text) -> Text:
    """A row of the panel without its borders."""
    row = row[2 : len(row) - 2]
    row.rstrip()
    return row


def draw(recorded: list[Frame], title: str, slow: list[float], note: str) -> str:
    """The SVG."""
    plays, now = [], 0.0  # (frame, from, to, label)
    for factor in slow:
        label = "real speed" if factor == 1 else f"{factor:g} times slower; the clock shows real time"
        for frame, following in zip(recorded, [*recorded[1:], None], strict=True):
            lasts = (following.at_s - frame.at_s) * factor if following else HOLD_S
            plays.append((frame, now, now + lasts, label))
            now += lasts
    height = max(number for frame in recorded for number, row in enumerate(frame.rows, 1) if row.plain.strip())
    width = COLUMNS * CHARACTER + 2 * PAD - 4 * CHARACTER
    whole = BAR + height * LINE + PAD + 6 + FOOT
    body: list[str] = []
    rules: list[str] = []

    def show(what: list[str], spans: list[tuple[float, float]]) -> None:
        """Elements that are visible in these seconds of the loop."""
        if sum(end - start for start, end in spans) > now - 1e-6:
            body.extend(what)
            return
        name = f"k{len(rules)}"
        steps = {0.0: "hidden"}
        for start, end in spans:
            steps[start] = "visible"
            steps.setdefault(end, "hidden")
        keys = "".join(f"{at / now:.4%}{{visibility:{state}}}" for at, state in sorted(steps.items()) if at < now)
        rules.append(f"@keyframes {name}{{{keys}}}")
        body.append(f'<g class="f" style="animation-name:{name}">{"".join(what)}</g>')

    for number in range(height):
        for row, spans in _distinct([(_row(f, number), a, b) for f, a, b, _ in plays]):
            show(_runs(row, number), spans)
    for corner, spans in _distinct([(f.corner, a, b) for f, a, b, _ in plays]):
        show([_text(width - PAD, BAR - 14, corner, "clock", 'text-anchor="end"')], spans)
    for label, spans in _distinct([(label, a, b) for _, a, b, label in plays]):
        show([_text(width - PAD, whole - 13, label, "foot", 'text-anchor="end"')], spans)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {whole:.0f}" width="{width:.0f}"'
            f' height="{whole:.0f}" role="img"><title>{escape(title)}</title>',
            f"<style>{CSS % (FONT, now)}{''.join(rules)}</style>",
            f'<rect width="{width:.0f}" height="{whole:.0f}" rx="10" fill="#0d1117" stroke="#30363d"/>',
            f'<path d="M0 {BAR}h{width:.0f}M0 {whole - FOOT}h{width:.0f}" stroke="#21262d"/>',
            _text(PAD, BAR - 14, title, "bar"),
            _text(PAD, whole - 13, note, "foot"),
            *body,
            "</svg>\n",
        ]
    )


def _row(frame: Frame, number: int) -> Text:
    return frame.rows[number] if number < len(frame.rows) else Text()


def _distinct(shown: list[tuple[T, float, float]]) -> list[tuple[T, list[tuple[float, float]]]]:
    """Equal things once, each with the spans of time in which it is shown; spans that touch are joined."""
    found: list[tuple[T, list[tuple[float, float]]]] = []
    for what, start, end in shown:
        spans = next((spans for known, spans in found if known == what), None)
        if spans is None:
            found.append((what, [(start, end)]))
        elif spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return found


def _runs(row: Text, number: int) -> list[str]:
    """The elements of a row, one a style; every run has its width, so that any monospace font fits."""
    out, column = [], 0
    for segment in row.render(Console(color_system=None)):
        color = segment.style.color if segment.style else None
        name = STYLES.get(color.number or 0, "") if color else ""
        indent = len(segment.text) - len(segment.text.lstrip())
        if text := segment.text.strip():
            x = PAD + (column + indent) * CHARACTER
            size = f'textLength="{len(text) * CHARACTER:.1f}"'
            out.append(_text(x, BAR + PAD / 2 + (number + 0.72) * LINE, text, name, size))
        column += len(segment.text)
    return out


def _text(x: float, y: float, text: str, name: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{name}" {more}>{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--at", required=True, metavar="LINE:COL")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--slow", type=float, nargs="+", default=[1, 6], help="a playing each, default: 1 6")
    parser.add_argument("--note", default="", help="what to say at the bottom: the machine")
    own, behind = sys.argv[1:], []
    if "--" in own:
        own, behind = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    fill = ["fill", options.file, "--at", options.at, *behind]
    command = [sys.executable, "-P", "-m", "caesura", *fill]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    recorded = record([*command, "--watch"])
    while len(recorded) > 1 and not recorded[0].corner.startswith("step"):
        del recorded[0]  # waiting for the engine
    options.out.write_text(draw(recorded, " ".join(["caesura", *fill, "--watch"]), options.slow, options.note))
    print(f"{options.out}: {len(recorded)} frames, {options.out.stat().st_size / 1000:.0f} kB; {recorded[-1].corner}")


if __name__ == "__main__":
    main()
