"""Chooses parts of other files for the model: definitions of the names near the cursor, similar code and recent edits.
Pure over snapshots; `outline.index` masks their secrets.

Choose when the cursor moves to a new place, not at every key: other neighbours invalidate the KV cache of the prefix.
Pass the last choice as `kept`; it is returned again unless another is clearly better.
"""

import heapq
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from caesura import wire
from caesura.server.context.outline import NAME, Index, body, by_use, definitions, index
from caesura.server.languages import COMMON, kin, language
from caesura.server.text.document import Edit

MAX_TEXT = 200_000  # code points; longer files are skipped
MAX_TEXTS = 1_000_000  # code points of all files considered for one place, in the order given
NEAR = 24, 6  # lines before and after the cursor whose names count
NEAR_TEXT = 1000  # code points before the cursor that are searched for members
USES = 6  # maximum lines per file that use the receiver (the name before the cursor's dot or bracket)
BEYOND = 4  # lines shown after a chunk
LEAST = 0.12  # minimum score
SHARED = 2  # minimum number of names that similar code shares
STEADY = 0.7  # keep the old choice if it has at least this share of the best score
MAX_LINE = 2000  # code points of a neighbour whose first line alone exceeds the budget
TOP = 48  # candidates compared in detail
LABEL = 200  # code points of a path, from its end

# Scores, relative to the definition of a name in the cursor's line, which has 1.
_ALIKE = 0.8  # a chunk that contains all names
_RECEIVER = 1.3  # the receiver's class or module
_USES = 0.7  # a line of another file that uses the receiver; several count up to twice that
_MEMBERS = 0.7  # a method or field of that name, in any class
_ELSEWHERE = 0.7  # factor: a definition in a file that the document does not import
_EDITED, _EARLIER = 0.4, 0.8  # the newest edit, and the factor from each edit to the one before it


@dataclass(frozen=True)
class Snapshot:
    """Another file of a trusted folder. `name` is its path within the folder and identifies it. `imported`: the target
    imports it; `aliases` are the target's names for it."""

    name: str
    language: str
    text: str
    imported: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The document to complete. `prefix` and `suffix` are the parts that the model sees."""

    name: str
    language: str
    prefix: str
    suffix: str


@dataclass(frozen=True)
class NeighbourBudget:
    """The maximum number of neighbours, and of code points of each and in total. The engine may use fewer."""

    most: int = 6
    each: int = 240
    total: int = 1600


@dataclass(frozen=True)
class RecentEdit:
    """Lines `first` to `last` (both included, from 0) of a file, last edited at `at` (seconds)."""

    name: str
    first: int
    last: int
    at: float


class History:
    """The last edits, newest first. Edits close to each other are merged; old ones are dropped."""

    MOST = 16
    FORGET_S = 1200.0
    CLOSE = 6  # lines

    def __init__(self) -> None:
        self._edits: list[RecentEdit] = []

    def __repr__(self) -> str:
        return f"<History {len(self._edits)} places>"

    def edited(self, name: str, edit: Edit, now: float) -> None:
        """Add an edit of the file `name` at `now` (seconds)."""
        first, old_last, new_last = edit.start_point[0], edit.old_end_point[0], edit.new_end_point[0]
        last, others = new_last, list[RecentEdit]()
        for one in self._edits:
            if one.name != name or one.last < first - self.CLOSE:
                others.append(one)
            elif one.first > old_last + self.CLOSE:
                moved = new_last - old_last
                others.append(replace(one, first=one.first + moved, last=one.last + moved))
            else:
                first, last = min(first, one.first), max(last, one.last + new_last - old_last)
        self._edits = [RecentEdit(name, first, last, now), *others][: self.MOST]

    def forget(self, name: str) -> None:
        """Drop the edits of a file that was closed or replaced as a whole."""
        self._edits = [one for one in self._edits if one.name != name]

    def recent(self, now: float) -> tuple[RecentEdit, ...]:
        return tuple(one for one in self._edits if now - one.at < self.FORGET_S)


def choose(
    target: Target,
    snapshots: Sequence[Snapshot],
    edits: Sequence[RecentEdit] = (),
    *,
    budget: NeighbourBudget = NeighbourBudget(),
    kept: tuple[wire.Neighbour, ...] = (),
) -> tuple[wire.Neighbour, ...]:
    """The neighbours for a place, best first; `kept` itself if it is still nearly as good. `snapshots` come in the
    order of their last use, newest first. Deterministic.

    A neighbour's name is the comment line shown above its text: `# path/of/file.py`."""
    files = _files(target, snapshots)
    wanted = _wanted(target)
    alike = [*_similar(files, wanted), *_used(files, wanted, target)]
    candidates = _together([*alike, *_edited(files, edits), *_defined(files, wanted, target)])
    pieces = list(_pieces(candidates, target, budget.each))
    chosen: list[_Piece] = []
    room = budget.total
    for piece in pieces:
        size = len(piece.neighbour.name) + len(piece.neighbour.text)
        if len(chosen) < budget.most and size <= room and not any(piece.overlaps(other) for other in chosen):
            chosen.append(piece)
            room -= size
    worth = _worth(kept, pieces)
    if worth and worth >= STEADY * sum(piece.score for piece in chosen) and _hold(kept, files, target):
        return kept
    return tuple(piece.neighbour for piece in chosen)


# Candidates


@dataclass(frozen=True)
class _Candidate:
    """Line numbers of a file, the most useful first. `place` is the line where their definition or chunk begins, -1 for
    a module's top level, -2 for scattered lines."""

    score: float
    place: int
    file: Snapshot
    index: Index
    numbers: tuple[int, ...]


def _files(target: Target, snapshots: Iterable[Snapshot]) -> list[tuple[Snapshot, Index]]:
    """The other files of the language, each once: the text of its first snapshot, the imports of all."""
    wanted = kin(target.language)
    files: dict[str, Snapshot] = {}
    room = MAX_TEXTS
    for one in snapshots:
        if one.name == target.name or len(one.text) > MAX_TEXT or kin(one.language) != wanted:
            continue
        if known := files.get(one.name):
            aliases = (*known.aliases, *one.aliases)
            one = replace(known, imported=known.imported or one.imported, aliases=aliases)
        elif (room := room - len(one.text)) < 0:
            break
        files[one.name] = one
    return [(one, index(one.text, one.language)) for one in files.values()]


def _wanted(target: Target) -> dict[str, float]:
    """The names near the cursor, with weights that fall with the distance in lines."""
    wanted: dict[str, float] = {}
    before = target.prefix.split("\n")[-NEAR[0] :][::-1]
    after = target.suffix.split("\n")[: NEAR[1]]
    for lines, most in ((before, 1.0), (after, 0.5)):
        for distance, line in enumerate(lines):
            for name in NAME.findall(line):
                if name not in COMMON:
                    wanted[name] = max(wanted.get(name, 0.0), most / (1 + distance / 4))
    return wanted


def _similar(files: Sequence[tuple[Snapshot, Index]], wanted: dict[str, float]) -> Iterator[_Candidate]:
    """Chunks scored by the wanted names that they contain, rare names counting more (BM25, Robertson et al. 1994, on
    sets of names). A few lines after the chunk are shown too: they followed similar code."""
    chunks = sum(len(found.chunks) for _, found in files)
    sizes = sum(sum(found.sizes) for _, found in files) / max(1, chunks)
    values: dict[str, float] = {}
    for name, weight in wanted.items():
        frequency = sum(len(found.words.get(name, ())) for _, found in files)
        values[name] = weight * math.log(1 + (chunks + 1) / (frequency + 0.5)) if frequency <= 8 + chunks / 5 else 0.0
    whole = sum(values.values()) or 1.0
    for file, found in files:
        scores, shared = [0.0] * len(found.chunks), [0] * len(found.chunks)
        for name, value in values.items():
            for number in found.words.get(name, ()):
                scores[number] += value
                shared[number] += 1
        for number, score in enumerate(scores):
            score *= _ALIKE / whole / (0.75 + 0.25 * max(1.0, found.sizes[number] / sizes)) if score else 0.0
            if score >= LEAST and shared[number] >= SHARED:
                start, end = found.chunks[number]
                yield _Candidate(score, start, file, found, tuple(range(start, min(len(found.lines), end + BEYOND))))


def _defined(files: Sequence[tuple[Snapshot, Index]], wanted: dict[str, float], target: Target) -> Iterator[_Candidate]:
    """Definitions of wanted names that the document itself lacks, and outlines of the modules that it names. Nested
    definitions count only if their name follows a dot, and then with a lower score."""
    receiver, kinds, dot = _receiver(target.prefix)
    weights = wanted | dict.fromkeys(kinds, _RECEIVER)
    members = set(_MEMBER.findall(target.prefix[-NEAR_TEXT:]))
    here = {name for text in (target.prefix, target.suffix) for name, _ in definitions(text, target.language)}
    for name in sorted(weights.keys() - here):
        places = sum(len(found.definitions.get(name, ())) for _, found in files)
        for file, found in files if places else ():
            score = weights[name] * (1.0 if file.imported else _ELSEWHERE) / max(1, places - 1)
            for line in found.definitions.get(name, ()) if score >= LEAST else ():
                if not found.heads[line] or name in members:
                    sure = 1.0 if not found.heads[line] else _MEMBERS
                    numbers = body(found, line, wanted, constructed=not (dot and name in kinds))
                    yield _Candidate(score * sure, line, file, found, numbers)
    for file, found in files:
        names = {*file.aliases, file.name.rpartition("/")[2].partition(".")[0]} if file.imported else set(file.aliases)
        weight = _RECEIVER if receiver in names else 0.5 * max((wanted.get(name, 0.0) for name in names), default=0.0)
        top = [line for line, depth in found.heads.items() if not depth]
        if top and weight >= LEAST:
            yield _Candidate(weight, -1, file, found, tuple(by_use(found, top, wanted)))


def _used(files: Sequence[tuple[Snapshot, Index]], wanted: dict[str, float], target: Target) -> Iterator[_Candidate]:
    """Lines of other files that use the receiver, those that share most names first."""
    at = _before(target.prefix)
    if at is None or at[1] in COMMON:
        return
    use = re.compile(rf"(?<!def )(?<!class )\b{re.escape(at[1] + at[2])}\w*")
    for file, found in files:
        lines: dict[str, int] = {}  # the first line that uses each member; for a call, every line
        for chunk in found.words.get(at[1], ()):
            for number in range(*found.chunks[chunk]):
                if said := use.search(found.lines[number]):
                    lines.setdefault(found.lines[number] if at[2] == "(" else said[0], number)
        shares = {
            number: sum(wanted.get(name, 0.0) for name in sorted(set(NAME.findall(found.lines[number]))))
            for number in lines.values()
        }
        if numbers := heapq.nlargest(USES, shares, key=lambda number: (shares[number], -number)):
            yield _Candidate(_USES * (1 + len(numbers) / USES), -2, file, found, tuple(numbers))


def _edited(files: Sequence[tuple[Snapshot, Index]], edits: Sequence[RecentEdit]) -> Iterator[_Candidate]:
    """The last edits, each with one line before and after."""
    by_name = {file.name: (file, found) for file, found in files}
    score = _EDITED
    for edit in edits:
        if edit.name in by_name:
            file, found = by_name[edit.name]
            first, last = max(0, edit.first - 1), min(len(found.lines) - 1, edit.last + 1)
            if first <= last:
                yield _Candidate(score, first, file, found, tuple(range(first, last + 1)))
                score *= _EARLIER


def _together(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """Merge candidates of the same place: the scores add up, and the last one's lines are shown."""
    places: dict[tuple[str, int], _Candidate] = {}
    for one in candidates:
        key = one.file.name, one.place
        if known := places.get(key):
            one = replace(one, score=known.score + one.score)
        places[key] = one
    return list(places.values())


def _before(prefix: str) -> re.Match[str] | None:
    """The receiver, and its dot or bracket."""
    return _AT.search(prefix, max(0, len(prefix) - 200))


def _receiver(prefix: str) -> tuple[str, set[str], bool]:
    """The receiver, the classes that it may be or be an instance of, and True if a member, not an argument, follows."""
    found = _before(prefix)
    if found is None:
        return "", set(), False
    name = re.escape(found[1])
    kinds = re.findall(rf"\b{name}[ \t]*(?::[ \t]*|:?=[ \t]*(?:await[ \t]+|new[ \t]+)?)(?:\w+\.)?([A-Z]\w+)", prefix)
    return found[1], {found[1], *kinds}, found[2] != "("


_AT = re.compile(r"([^\W\d]\w*)(\.|->|::|\?\.|\()\w*\Z")
_MEMBER = re.compile(r"(?:\.|->|::)(\w+)")


# Pieces


@dataclass(frozen=True)
class _Piece:
    score: float
    index: Index
    numbers: frozenset[int]
    neighbour: wire.Neighbour

    def overlaps(self, other: "_Piece") -> bool:
        return self.index is other.index and not self.numbers.isdisjoint(other.numbers)

    def shows(self, old: wire.Neighbour) -> bool:
        """True if this piece has most lines of `old`."""
        lines = old.text.split("\n")
        return old.name == self.neighbour.name and 2 * len({*lines} & {*self.neighbour.text.split("\n")}) > len(lines)


def _pieces(candidates: Iterable[_Candidate], target: Target, most: int) -> Iterator[_Piece]:
    """The best candidates with enough lines that the model does not see in the document, best first."""
    shown = {line.strip() for line in (target.prefix + "\n" + target.suffix).split("\n")}
    good = (candidate for candidate in candidates if candidate.score >= LEAST)
    for candidate in heapq.nlargest(TOP, good, key=lambda candidate: (candidate.score, candidate.file.name)):
        lines = candidate.index.lines
        numbers = _fitting(lines, candidate.numbers, most)
        telling = [line for number in numbers if len(line := lines[number].strip()) > 3]
        known = sum(line in shown for line in telling)
        if known < (0.5 if telling and telling[0] in shown else 0.8) * len(telling):
            text = textwrap.dedent("\n".join(lines[number] for number in numbers)).strip("\n")[:MAX_LINE]
            neighbour = wire.Neighbour(_label(candidate.file, target), text)
            yield _Piece(candidate.score, candidate.index, frozenset(numbers), neighbour)


def _fitting(lines: Sequence[str], numbers: Iterable[int], most: int) -> list[int]:
    """The lines that fit in `most` code points, and always the first, in the order of the file."""
    fitting: list[int] = []
    for number in numbers:
        most -= len(lines[number]) + 1
        if most < 0 and fitting:
            break
        fitting.append(number)
    return sorted(fitting)


def _worth(kept: Iterable[wire.Neighbour], pieces: Sequence[_Piece]) -> float:
    """The score of an earlier choice at the current place."""
    return sum(max((piece.score for piece in pieces if piece.shows(old)), default=0.0) for old in kept)


def _hold(kept: Iterable[wire.Neighbour], files: Iterable[tuple[Snapshot, Index]], target: Target) -> bool:
    """True if the files of an earlier choice still exist and contain all of its lines."""
    indexes = {_label(file, target): found for file, found in files}
    return all(
        old.name in indexes
        and {line.strip() for line in indexes[old.name].lines}.issuperset(map(str.strip, old.text.split("\n")))
        for old in kept
    )


def _label(file: Snapshot, target: Target) -> str:
    return f"{language(target.language).comment or '#'} {file.name[-LABEL:]}"
