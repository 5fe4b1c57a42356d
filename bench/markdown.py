"""Structured edits of Markdown under random fills: is the structure outside of an edit as it was, and valid inside?

    python bench/markdown.py --data FOLDER [--tables 200] [--fills 3] [--seed 7] [--json]
                             [--out bench/results/markdown.json]

FOLDER holds CommonMark's spec.txt. At every line of every example, and of tables and lists made here, all offers are
taken; their holes get texts drawn from their patterns, marks of Markdown more often than not. No model and no engine is
used: this is about the grammars. The judge is markdown-it, inline text included, where the server compares blocks.
"""

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

from latency import HERE, Report, conditions, save, table

from caesura.model_store import DEFAULT
from caesura.server.structured.markdown import edits
from caesura.server.structured.markdown.blocks import BlockShape, lines_of, read
from caesura.server.structured.offer import NoOffer, Offer
from caesura.wire import Pattern

sys.path.insert(0, str(HERE.parent))
from tests.support.commonmark import blocks, edited, fills, links, problem, walker

Walk = Callable[[Pattern, int], str]
WORDS = (
    "apple",
    "`code`",
    "**bold**",
    "a [link](#top)",
    "12",
    "x",
    "naïve",
    "日本",
    "a \\| b",
    "",
    "two words",
    "_it_",
)
CUTS = ("structure", "links", "refused", "not code")  # what may be wrong with an edit; random text is seldom code


def main() -> None:
    parser = argparse.ArgumentParser(description="Structure of Markdown around and inside of edits.")
    parser.add_argument("--data", type=Path, metavar="FOLDER", required=True, help="holds CommonMark's spec.txt")
    parser.add_argument("--tables", type=int, default=200, help="tables and lists to make")
    parser.add_argument("--fills", type=int, default=3, help="random fills of each offer")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "markdown.json")
    options = parser.parse_args()
    sets = {"CommonMark examples": examples(options.data), "tables and lists": list(made(options.tables, options.seed))}
    report = {"conditions": conditions(DEFAULT), "seed": options.seed, "sets": {}}
    for name, documents in sets.items():
        report["sets"][name] = measure(documents, options.fills, options.seed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


def examples(folder: Path) -> list[str]:
    source = (folder / "spec.txt").read_text(encoding="utf-8").replace("→", "\t")
    return re.findall(r"^`{32} example\n(.*?)^\.\n", source, re.MULTILINE | re.DOTALL)


# Documents


def made(count: int, seed: int) -> Iterator[str]:
    """Tables and lists in turn, in all the styles that people write them in, with other blocks around some."""
    draw = random.Random(seed)
    for number in range(count):
        body = _table(draw) if number % 2 == 0 else _list(draw)
        prefix = draw.choice(["", "", "", "> ", "  ", "- "])
        lines = [prefix + line for line in body]
        if prefix == "- ":
            lines = [prefix + body[0], *("  " + line if line else "" for line in body[1:])]
        before = draw.choice([[], ["# Top", ""], ["Some text.", ""], ["[ref]: https://example.org/ref", ""]])
        behind = draw.choice([[], ["", "Text behind, [top](#top)."], ["", "- other"], ["", "```sh", "```"]])
        newline = draw.choice(["\n", "\n", "\n", "\r\n"])
        yield newline.join([*before, *lines, *behind]) + draw.choice([newline, newline, ""])


def _table(draw: random.Random) -> list[str]:
    columns, rows = draw.randint(1, 5), draw.randint(1, 6)
    grid = [[draw.choice(WORDS) for _ in range(columns)] for _ in range(rows + 1)]
    grid[0] = [cell or "head" for cell in grid[0]]
    sides = [draw.choice(["---", ":--", "--:", ":-:"]) for _ in range(columns)]
    margin = draw.choice([" ", " ", ""])
    aligned = bool(margin) and draw.random() < 0.5
    widths = [max(3, *(len(row[c]) for row in grid)) if aligned else 0 for c in range(columns)]
    bars = draw.choice(["|", "|", ""]) if columns > 1 else "|"
    rule = [f"{side[0]}{'-' * (max(3, width) - 2)}{side[2]}" for side, width in zip(sides, widths, strict=True)]
    lines = []
    for row in [grid[0], rule, *grid[1:]]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if not bars:
            cells = [cell if cell.strip() else "x" for cell in cells]
        line = f"{margin}|{margin}".join(cells)
        lines.append(f"|{margin}{line}{margin}|" if bars else line)
    return lines


def _list(draw: random.Random) -> list[str]:
    marker, task, loose = draw.choice("-*+.)"), draw.random() < 0.3, draw.random() < 0.3
    lines, number = list[str](), draw.choice([1, 1, 3, 8])
    for _ in range(draw.randint(1, 5)):
        begin = f"{number}{marker} " if marker in ".)" else f"{marker} "
        number += 1
        lines.append(begin + draw.choice(["[ ] ", "[x] "]) * task + (draw.choice(WORDS) or "item"))
        indent = " " * len(begin)
        lines += draw.choice([[], [], [f"{indent}- nested"], [f"{indent}more of it"], [f"{indent}```", f"{indent}```"]])
        lines += [""] * loose
    return lines[:-1] if loose else lines


# Edits


def measure(documents: list[str], count: int, seed: int) -> Report:
    """Per kind of edit: how many, and what was wrong with them."""
    walk, draw = walker(seed), random.Random(seed)
    found: Counter[tuple[str, str]] = Counter()
    wrong, spent, refusals = list[Report](), list[float](), 0
    same = [text for text in documents if blocks(text) == [(e.depth - 1, e.kind, e.first) for e in _shape(text)]]
    for text in same:
        for offer in _offers(text, spent):
            if isinstance(offer, NoOffer):
                refusals += 1
                continue
            for _ in range(count):
                drawn = fills(offer, walk, draw.randint(1, 24))
                found[_kind(offer), "edits"] += 1
                if fault := _fault(text, offer, drawn):
                    found[_kind(offer), fault] += 1
                    wrong += [{"text": text, "title": offer.title, "fills": drawn, "fault": fault}] * (
                        fault != "not code"
                    )
    kinds = sorted({kind for kind, _ in found})
    spent.sort()
    return {
        "documents": len(documents),
        "read as markdown-it does": len(same),
        "places without an offer": refusals,
        "offers_ms": {"p50": _at(spent, 0.5), "p95": _at(spent, 0.95)},
        "kinds": {kind: {name: found[kind, name] for name in ("edits", *CUTS)} for kind in kinds},
        "wrong": wrong[:20],
    }


def _shape(text: str) -> list[BlockShape]:
    return [entry for entry in read(text).shape() if entry.kind not in ("definition", "front")]


def _offers(text: str, spent: list[float]) -> Iterator[Offer | NoOffer]:
    """All that is offered at the ends of the text's lines, at bars and in brackets, and for selected words."""
    seen = set[tuple[str, int, int]]()
    spans = {(at, at) for line in lines_of(text) for at in (line.start, line.end)}
    spans |= {(match.end(), match.end()) for match in re.finditer(r"\||\]\(|\[", text)}
    spans |= {match.span() for match in re.finditer(r"[^\s|()]+(?: [^\s|()]+)*", text)}
    for start, end in sorted(spans):
        began = time.perf_counter()
        try:
            offers: list[Offer] = edits.offers(text, start, end)
        except NoOffer as refusal:
            yield refusal
            continue
        finally:
            spent.append(1e3 * (time.perf_counter() - began))
        if start == end and (begun := edits.completion(text, start)):
            offers = [*offers, begun]
        for offer in offers:
            if (offer.title, offer.start, offer.end) not in seen:
                seen.add((offer.title, offer.start, offer.end))
                yield offer


def _fault(text: str, offer: Offer, drawn: list[str]) -> str | None:
    new = edited(text, offer, drawn)
    if problem(text, offer, drawn):
        return "structure"
    if any(not link.startswith("#") and unquote(link) not in text for link in links(new) - links(text)):
        return "links"
    sentence = offer.check(new)
    return None if sentence is None else "not code" if "does not parse" in sentence else "refused"


def _kind(offer: Offer) -> str:
    return re.sub(r"\d+ (empty )?cells", r"\1cells", offer.title)


def _at(values: list[float], share: float) -> float:
    return round(values[min(len(values) - 1, int(share * len(values)))], 3)


def picture(report: Report) -> str:
    rows = [
        (f"{name}: {kind}", *(counts[column] for column in ("edits", *CUTS)))
        for name, found in report["sets"].items()
        for kind, counts in found["kinds"].items()
    ]
    lines = [table(("edit", "edits", *CUTS), rows)]
    for name, found in report["sets"].items():
        ms, alike = found["offers_ms"], found["read as markdown-it does"]
        lines.append(f"{name}: {alike} of {found['documents']} documents are read as markdown-it does")
        lines.append(f"    the offers of a place take {ms['p50']} ms p50, {ms['p95']} ms p95")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
