"""Values and keys that have siblings: members of objects that stand beside similar ones, and what they would be filled
with by somebody who only copies."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from caesura import wire
from caesura.engine.methods.verify.lookup import lookup
from caesura.engine.model import Model
from caesura.server.structured.json.edits import offers
from caesura.server.structured.offer import NoOffer

from documents import Document  # isort: skip  (next to this script)
from inside import answers, scheduler, watched  # isort: skip
from latency import Report, spread  # isort: skip
from places import Edit, Node, nodes  # isort: skip
from verdicts import Asked, Invalid, job, values  # isort: skip

LARGEST = 60_000  # bytes of a file
LONGEST = 48  # code points of what is cut out
LEAST = 3  # objects that stand together
SHARE = 0.5  # of the siblings that have the key
OF_A_FILE = 2  # cases
OF_A_FOLDER = 30


@dataclass(frozen=True)
class Case:
    """`truth` was cut out of text[start:end]. `siblings` are what the other objects have there, the nearest first;
    `taken` are the other keys of its object."""

    document: Document
    kind: Literal["value", "key"]
    start: int
    end: int
    truth: str
    siblings: tuple[str, ...]
    taken: tuple[str, ...] = ()


def files(folders: Iterable[Path]) -> list[Document]:
    """JSON files of folders, at most OF_A_FOLDER of those that lie in one folder of the first level."""
    found = list[Document]()
    for folder in folders:
        of_part = Counter[str]()
        for path in sorted(folder.rglob("*.json")):
            part = path.relative_to(folder).parts[0]
            if of_part[part] >= OF_A_FOLDER or path.is_symlink() or path.stat().st_size > LARGEST:
                continue
            try:
                text = path.read_bytes().decode()
                json.loads(text)
            except (ValueError, RecursionError):
                continue
            of_part[part] += 1
            found.append(Document(folder.name, str(path.relative_to(folder)), text))
    return found


def cases(documents: Sequence[Document], draw: random.Random, count: int) -> list[Case]:
    """At most OF_A_FILE of a document, and as many values as keys where there are."""
    found = list[Case]()
    for document in mixed(documents, draw):
        possible = candidates(document)
        kinds = draw.sample(("value", "key"), 2)
        for kind in kinds[:OF_A_FILE]:
            of_kind = [case for case in possible if case.kind == kind]
            found += [draw.choice(of_kind)] if of_kind else []
        if len(found) >= count:
            break
    return found[:count]


def mixed(documents: Sequence[Document], draw: random.Random) -> list[Document]:
    """In random order, the sources in turn."""
    order = draw.sample(documents, len(documents))
    turn = Counter[str]()
    ranks = [turn.update((one.source,)) or turn[one.source] for one in order]
    return [one for _, one in sorted(zip(ranks, order, strict=True), key=lambda pair: pair[0])]


def candidates(document: Document) -> list[Case]:
    """Every value and key of a document that siblings have too. The first object of a group is left whole."""
    found = list[Case]()
    for group in groups(document.text, nodes(document.text)):
        for node in group[1:]:
            others = [other for other in group if other is not node]
            others.sort(key=lambda other: abs(other.start - node.start))
            found += _values(document, node, others) + _keys(document, node, others)
    return found


def groups(text: str, found: Sequence[Node]) -> list[list[Node]]:
    """Objects that are the items of one container, LEAST of them at least."""
    every = [[n for n in container.items if text[n.start] == "{" and n.items] for container in found]
    return [group for group in every if len(group) >= LEAST]


def members(text: str, node: Node) -> dict[str, Node]:
    return {text[a:b]: item for (a, b), item in zip(node.keys, node.items, strict=True)}


def _values(document: Document, node: Node, nearest: Sequence[Node]) -> list[Case]:
    text, found = document.text, list[Case]()
    theirs = [members(text, other) for other in nearest]
    for key, item in members(text, node).items():
        same = [text[o[key].start : o[key].end] for o in theirs if key in o and text[o[key].start] not in "{["]
        truth = text[item.start : item.end]
        if truth[0] not in "{[" and len(truth) <= LONGEST and len(same) >= SHARE * len(nearest):
            found.append(Case(document, "value", item.start, item.end, truth, tuple(same)))
    return found


def _keys(document: Document, node: Node, nearest: Sequence[Node]) -> list[Case]:
    """A key, of which nobody would copy one that its object has already."""
    text, found = document.text, list[Case]()
    for a, b in node.keys:
        own = sorted({text[c:d] for c, d in node.keys if c != a})
        theirs = tuple(key for other in nearest for key in members(text, other) if key not in own)
        if theirs.count(text[a:b]) >= SHARE * len(nearest) and b - a <= LONGEST:
            taken = tuple(map(json.loads, own))
            found.append(Case(document, "key", a, b, text[a:b], theirs, taken))
    return found


# What copying gives


def nearest(case: Case) -> str:
    return case.siblings[0] if case.siblings else ""


def most_frequent(case: Case) -> str:
    return Counter(case.siblings).most_common(1)[0][0] if case.siblings else ""


def repeated(case: Case) -> str:
    """The engine's lookup: what stood between the same texts elsewhere, up to the end of the value or key."""
    found = lookup(case.document.text[: case.start], case.document.text[case.end :], most=1)
    return first_value(found[0]) if found else ""


def first_value(text: str) -> str:
    """What of a text is one JSON value; nothing where it does not begin with one."""
    text = text.lstrip()
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except ValueError:
        return ""


COPIED: dict[str, Callable[[Case], str]] = {
    "lookup": repeated,
    "nearest sibling": nearest,
    "most frequent sibling": most_frequent,
}
ROOM = 24  # tokens of a value or key


@dataclass
class Row:
    """Exact matches by kind, and what an edit took."""

    right: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    invalid: int = 0
    ms: list[float] = field(default_factory=list)
    grammar_ms: list[float] = field(default_factory=list)

    def add(self, case: Case, answer: str, text: str) -> None:
        """`answer` is what is compared, `text` is what stands in the document then."""
        self.asked[case.kind] += 1
        self.right[case.kind] += answer == case.truth
        try:
            values(case.document.text[: case.start] + text + case.document.text[case.end :], case.document.language)
        except Invalid:
            self.invalid += 1

    def report(self) -> Report:
        kinds = {
            kind: {"n": n, "exact_percent": round(100 * self.right[kind] / n, 1)} for kind, n in self.asked.items()
        }
        share = round(100 * sum(self.grammar_ms) / sum(self.ms), 1) if self.ms else None
        times = {"ms": spread(self.ms), "grammar_ms": spread(self.grammar_ms), "grammar_percent": share}
        return kinds | {"invalid": self.invalid} | (times if self.ms else {})


def edits(case: Case) -> dict[str, tuple[Edit, tuple[str, ...] | None]]:
    """How the engine is asked, each with a draft to start from or none."""
    spec = wire.Json(start=case.kind, taken=case.taken)
    free, ruled = (Edit(case.kind, case.start, case.end, (wire.Hole(ROOM, "span", g),)) for g in (None, spec))
    found: dict[str, tuple[Edit, tuple[str, ...] | None]]
    found = {"ours without grammar": (free, None), "ours": (ruled, None)}
    if case.siblings:
        found["ours, drafted with the nearest sibling"] = (ruled, (nearest(case),))
    with suppress(NoOffer):
        offer = offers(case.document.text, case.start, case.end, language=case.document.language)[0]
        if (offer.start, offer.end, len(offer.segments)) == (case.start, case.end, 1):
            found["ours, as the server offers it"] = (
                Edit("offer", offer.start, offer.end, offer.segments, offer.schemas, offer=offer),
                None,
            )
    return found


def exact(model: Model, found: Sequence[Case], until: float) -> dict[str, Row]:
    """Each case by each row, one at a time, each with a cold context. Without a grammar the fill counts up to the end
    of its first value, but is put in as it is."""
    rows: dict[str, Row] = {name: Row() for name in COPIED}
    for case in found:
        if time.perf_counter() > until:
            break
        for name, copied in COPIED.items():
            rows[name].add(case, copied(case), copied(case))
        for name, (edit, draft) in edits(case).items():
            row, engine = rows.setdefault(name, Row()), scheduler(model)
            asked = job(0, Asked(case.document, edit, 60_000.0))
            with watched() as spent:
                began = time.perf_counter()
                last = answers(engine, [msgspec.structs.replace(asked, draft=draft)])["0"][-1]
                row.ms.append(1000 * (time.perf_counter() - began))
            row.grammar_ms.append(1000 * (spent.asking + spent.making))
            text = last.holes[0].text if isinstance(last, wire.Done) else ""
            row.add(case, first_value(text), text)
    return rows
