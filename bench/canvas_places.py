"""Cut the places where a young canvas may be worth having out of held-out files, for `canvas.py places`.

Each maker takes a file and yields trials. A trial has the text around its holes, the text that the author wrote in
them, and sometimes a draft for the canvas to start from.
"""

import ast
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caesura import wire
from caesura.engine.methods.verify.lookup import agreement

from forwards import AFTER, BEFORE  # isort: skip  (next to this script)
from infilling.cases import Case, lines  # isort: skip

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "training"))
import gap_places  # isort: skip

ROOM = 32  # tokens of a hole, as the server asks for a line
APART = 400  # code points between two holes
OF_A_FILE = 3  # trials of a place
NAME = re.compile(r"[^\W\d]\w*")
FRESH = ("entry", "payload", "candidate", "fragment", "bundle", "marker")  # names that a variable is given
ARGUMENT = range(3, 41)  # code points
CELL = range(2, 41)  # code points


@dataclass(frozen=True)
class Trial:
    """`wanted` and `draft` have a text for each hole of `segments`; a fill should use `name` if there is one."""

    lang: str
    prefix: str
    suffix: str
    segments: tuple[wire.Text | wire.Hole, ...]
    wanted: tuple[str, ...]
    draft: tuple[str, ...] | None = None
    name: str = ""

    def job(self, number: str) -> wire.Infill:
        return wire.Infill(
            job=number,
            document=number,
            prefix=self.prefix[-BEFORE:],
            suffix=self.suffix[:AFTER],
            segments=self.segments,
            language=self.lang,
            draft=self.draft,
            deadline_ms=60_000,
        )

    def joined(self, fills: Sequence[str]) -> str:
        """The text between prefix and suffix."""
        left = iter(fills)
        return "".join(part.text if isinstance(part, wire.Text) else next(left) for part in self.segments)

    def case(self) -> Case:
        return Case("", self.prefix, self.suffix, self.joined(self.wanted), self.lang)

    def agrees(self, fills: Sequence[str]) -> bool:
        """All holes hold the same name."""
        return len({fill.strip() for fill in fills}) == 1 and fills[0].strip().isidentifier()

    def uses(self, fills: Sequence[str]) -> bool:
        return any(self.name in NAME.findall(fill) for fill in fills)


def hole(text: str, start: int, end: int, lang: str, kind: str, **more: object) -> Trial:
    """Replace text[start:end] with one hole."""
    asked = wire.Hole(ROOM, kind)  # type: ignore[arg-type]
    return Trial(lang, text[:start], text[end:], (asked,), (text[start:end],), **more)  # type: ignore[arg-type]


Maker = Callable[[str, random.Random], Iterator[Trial]]


def joint(text: str, draw: random.Random) -> Iterator[Trial]:
    """A local name that occurs twice in its function, where it is assigned and where it is used: both are holes."""
    del draw
    source = gap_places.Source(text)
    for function in functions(source):
        start, end = source.span(function)
        for node in ast.walk(function):
            if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
                continue
            name, (at, stop) = node.targets[0].id, source.span(node.targets[0])
            uses = [start + found.start() for found in re.finditer(rf"\b{name}\b", text[start:end])]
            if len(name) >= 3 and len(uses) == 2 and uses[0] == at and uses[1] - at <= APART:
                between, after = wire.Text(text[stop : uses[1]]), text[uses[1] + len(name) :]
                holes = (wire.Hole(ROOM, "span"), between, wire.Hole(ROOM, "span"))
                yield Trial("python", text[:at], after, holes, (name, name))


def arguments(text: str, draw: random.Random) -> Iterator[Trial]:
    """The arguments of a call without its first and its last one."""
    del draw
    source = gap_places.Source(text)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or node.lineno != node.end_lineno:
            continue
        spans = sorted(source.span(one) for one in (*node.args, *node.keywords))  # type: ignore[arg-type]
        if len(spans) >= 3 and spans[-2][1] - spans[1][0] in ARGUMENT:
            yield hole(text, spans[1][0], spans[-2][1], "python", "span")


def damaged(text: str, draw: random.Random) -> Iterator[Trial]:
    """A line with two faults, which is the draft for its repair."""
    names = sorted(set(NAME.findall(text)))
    for start, end in gap_places.python_lines(text):
        broken = fault(fault(text[start:end], names, draw), names, draw)
        if broken != text[start:end]:
            yield hole(text, start, end, "python", "line", draft=(broken,))


def fault(line: str, names: Sequence[str], draw: random.Random) -> str:
    """The line with a character lost, doubled or swapped, or a name that is another one of the file."""
    at = draw.randrange(len(line) - 1)
    words = list(NAME.finditer(line))
    kind = draw.choice(("lost", "doubled", "swapped", "renamed") if words else ("lost", "doubled", "swapped"))
    if kind == "renamed":
        word = draw.choice(words)
        return line[: word.start()] + draw.choice(names) + line[word.end() :]
    middle = {"lost": "", "doubled": 2 * line[at], "swapped": line[at + 1] + line[at]}[kind]
    return line[:at] + middle + line[at + (2 if kind == "swapped" else 1) :]


def values(text: str, draw: random.Random) -> Iterator[Trial]:
    """A scalar of a JSON object, under the grammar of a value."""
    del draw
    for start, end in gap_places.json_values(text):
        trial = hole(text, start, end, "json", "span")
        yield replace(trial, segments=(wire.Hole(ROOM, "span", wire.Json(start="value")),))


def cells(text: str, draw: random.Random) -> Iterator[Trial]:
    """A cell of a Markdown table, in any row but the head and the first one."""
    for start, end in gap_places.markdown_rows(text):
        row = text[start:end]
        found = [cell for cell in re.finditer(r"[^|\s](?:[^|]*[^|\s])?(?=\s*\|)", row) if len(cell[0]) in CELL]
        if found and "\\|" not in row:
            cell = draw.choice(found)
            yield hole(text, start + cell.start(), start + cell.end(), "markdown", "span")


def renamed(text: str, draw: random.Random) -> Iterator[Trial]:
    """A line of a function that uses a variable, after the variable got a new name everywhere in the function."""
    source, spans = gap_places.Source(text), list(gap_places.python_lines(text))
    new = draw.choice([name for name in FRESH if name not in text] or [""])
    for function in functions(source):
        start, end = source.span(function)
        body = text[start:end]
        names = sorted({node.id for node in ast.walk(function) if isinstance(node, ast.Name)})
        local = [name for name in names if stored(function, name) and not re.search(rf"\.{name}\b|\b{name}=", body)]
        inside = [span for span in spans if start < span[0] and span[1] <= end]
        for name in local if new else ():
            word = re.compile(rf"\b{name}\b")
            found = [(a, b) for a, b in inside if word.search(text[a:b]) and word.search(text[start:a])]
            if found and len(word.findall(body)) >= 3:
                a, b = draw.choice(found)
                before, wanted, after = (word.sub(new, text[c:d]) for c, d in ((start, a), (a, b), (b, end)))
                whole = (wire.Hole(ROOM, "line"),)
                yield Trial("python", text[:start] + before, after + text[end:], whole, (wanted,), name=new)


def functions(source: gap_places.Source) -> list[ast.stmt]:
    return [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def stored(function: ast.stmt, name: str) -> bool:
    """The function assigns a variable of that name, which has three letters at least."""
    nodes = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return len(name) >= 3 and any(node.id == name and isinstance(node.ctx, ast.Store) for node in nodes)


def python_line(text: str, draw: random.Random) -> Iterator[Trial]:
    del draw
    for span in gap_places.python_lines(text):
        yield hole(text, *span, "python", "line")


def rest(text: str, draw: random.Random) -> Iterator[Trial]:
    """The rest of a line from a later word on. At an indentation the base's first forward would only repeat that."""
    for start, end in gap_places.python_lines(text):
        words = [start + found.start() for found in re.finditer(r"(?<=\s)\w", text[start:end])]
        if later := [at for at in words if end - at in gap_places.LINE]:
            yield hole(text, draw.choice(later), end, "python", "line")


PLACES: dict[str, tuple[str, Maker]] = {  # language
    "two holes, one name": ("python", joint),
    "middle arguments": ("python", arguments),
    "repair": ("python", damaged),
    "JSON value": ("json", values),
    "table cell": ("markdown", cells),
    "renamed variable": ("python", renamed),
    "after a mismatch": ("python", python_line),
    "first draft": ("python", rest),
}


def trials(path: Path, place: str, n: int, seed: int) -> list[Trial]:
    """The trials of a place, a few of a file, in an order of chance that the seed fixes."""
    draw, (lang, maker), found = random.Random(f"{seed}/{place}"), PLACES[place], list[Trial]()
    texts = sorted({row["prefix"] + row["middle"] + row["suffix"] for row in lines(path) if row["lang"] == lang})
    for text in draw.sample(texts, len(texts)):
        of_file = list(maker(text, draw))
        found += draw.sample(of_file, min(OF_A_FILE, len(of_file)))
        if len(found) >= n:
            break
    return found[:n]


def mismatched(trial: Trial, answer: str) -> Trial | None:
    """The trial after its author typed up to the first character that differs from an answer. The rest of that answer
    is the draft, as in the server. None where nothing differs, or nothing follows."""
    [wanted] = trial.wanted
    typed = agreement(answer, wanted) + 1
    if typed > min(len(wanted), len(answer)) - 1:
        return None
    rest, draft = (wanted[typed:],), (answer[typed:],)
    return replace(trial, prefix=trial.prefix + wanted[:typed], wanted=rest, draft=draft)
