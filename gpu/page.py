"""One page of tables with the measurements that decide what to do next.

`python gpu/page.py FOLDER` reads the books in that folder. It runs at the end of every call, so it imports no torch."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]
TOP = 12  # kernels of a step
PAGE = {  # measure: title and columns
    "probe": ("The card", ("what", "ms", "us", "gb_s", "tflop_s")),
    "profile": ("Steps", ("shape", "way", "rows", "wall_ms", "device_ms", "gaps_ms", "kernels")),
    "tune": (
        "Block sizes that beat the formula",
        ("kernel", "shape", "rows", "formula_ms", "best_ms", "of_formula", "blocks"),
    ),
    "protocol": ("Protocol", ("form", "way", "ms_a_forward", "tokens_s", "tokens_s_with_prompt", "of_floor")),
    "infill": ("Infills", ("form", "context", "pins", "slots", "steps", "p50_ms", "p95_ms", "floor_ms")),
    "race": ("All lengths of a hole", ("form", "context", "rows", "p50_ms", "unrecorded_p50_ms", "floor_ms")),
    "steps": ("Steps by rows", ("form", "context", "canvas", "p50_ms", "unrecorded_p50_ms", "floor_ms")),
    "peers": (
        "Kernels and PyTorch's",
        ("form", "kernel", "ms", "floor_ms", "cublas_bf16_ms", "decoded_ms", "scaled_grouped_mm_ms", "grouped_mm_ms"),
    ),
    "causal verify": ("Passes of code models", ("shape", "context", "rows", "p50_ms", "floor_ms")),
    "causal job": ("Jobs of code models", ("shape", "method", "p50_ms", "passes", "ms_a_pass")),
    "masked step": ("Steps of other diffusion models", ("shape", "text", "context", "p50_ms", "floor_ms")),
}
ONLY: Mapping[str, Line] = {  # so that it stays a page; and what failed
    "infill": {"slots": 32},
    "steps": {"context": 2048},
    "tune": {"wins": True},
}


def table(title: str, columns: Sequence[str], lines: Iterable[Line]) -> None:
    """For people: the columns of the lines; of one that failed what it has, and why."""
    cells = [list(columns)]
    for line in lines:
        cells.append([cell(line.get(column)) for column in columns] + [line.get("failed", "")])
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        print("  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), *row[len(columns) :]]))
    print(flush=True)


def cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return " ".join(map(str, value.values()))
    return "-" if value is None else str(value)


def main(folder: Path) -> None:
    lines = list[Line]()
    for book in sorted(folder.glob("*.jsonl")):
        whole, _, _ = book.read_text().rpartition("\n")  # a line that was cut off goes
        lines += map(json.loads, whole.splitlines())
    for measure, (title, columns) in PAGE.items():
        wanted = ONLY.get(measure, {})
        if found := [line for line in lines if line.get("measure") == measure]:
            table(title, columns, [line for line in found if all(line.get(n, v) == v for n, v in wanted.items())])
    for line in lines:
        if line.get("measure") == "profile" and line.get("way") == "served":
            title = f"Kernels of a step, {line['rows']} rows"
            table(title, ("ms", "gap_ms", "count", "grid", "kernel"), line.get("top", ())[:TOP])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
