"""The cases of next edits, as an editor has them, and how good an answer is: the same score as cursortab's."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from caesura.server.next_edit.history import PastEdit

ORDERS = range(1, 7)  # character n-grams of chrF
BETA_2 = 4.0  # recall counts twice

_SECTION = re.compile(r"^-- (\S+) --\n", re.MULTILINE)
_PAST = re.compile(r"<\|file\|> (.*)\n<\|old\|>\n((?:(?!<\|).*\n)*)<\|new\|>\n((?:(?!<\|).*\n?)*)")


@dataclass(frozen=True)
class NextEditCase:
    """The text at a time, with the user's last edits in it, oldest first. `wanted`: the text after the next edit; None
    if nothing is to be shown."""

    id: str
    set: str
    kind: str
    language: str
    text: str
    history: tuple[PastEdit, ...]
    wanted: str | None


def load(folder: Path) -> Iterator[NextEditCase]:
    """The scenarios (`*.txtar`, also of `own/`) and the cases of releases (`*.jsonl`) of a folder."""
    kinds = json.loads((folder / "kinds.json").read_text())
    for file in sorted(folder.glob("**/*.txtar")):
        yield from _scenario(file, kinds)
    for file in sorted(folder.glob("*.jsonl")):
        yield from (_release(json.loads(line)) for line in file.read_text().splitlines())


def _scenario(file: Path, kinds: dict[str, str]) -> Iterator[NextEditCase]:
    """One case for each cursor."""
    head, *parts = _SECTION.split(file.read_text())
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    about = dict(re.findall(r"^([\w-]+): (.*)$", head, re.MULTILINE))
    text, row = sections["buffer.txt"], int(about["row"])
    found = (_past(text, row, *past) for past in _PAST.findall(sections.get("history", "")) if past[0] == about["file"])
    history = tuple(past for past in found if past)
    wanted = sections.get("expected")
    places = [about["id"], *(f"{about['id']}@L{at}" for at in re.findall(r"(\d+):", about.get("cursor-positions", "")))]
    for name in places:
        yield NextEditCase(name, "public", kinds[about["id"]], about["language"], text, history, wanted)


def _past(text: str, row: int, file: str, old: str, new: str) -> PastEdit | None:
    """An edit of a scenario, which has no place: the one nearest to the cursor. None if its lines are not there."""
    before, after, lines = old.splitlines(), new.splitlines(), text.split("\n")
    places = [at for at in range(len(lines)) if lines[at : at + len(after)] == after]
    return _cut(lines, before, after, min(places, key=lambda at: abs(at + 1 - row))) if places else None


def _cut(text: Sequence[str], old: Sequence[str], new: Sequence[str], at: int) -> PastEdit:
    """The lines that differ, or one more of the text where lines are only added or only removed."""
    start, end = common(old, new)
    before, after, at = old[start : len(old) - end], new[start : len(new) - end], at + start
    if not before or not after:
        above, below = (text[at - 1 : at], []) if at else ([], text[len(after) : len(after) + 1])
        before, after, at = [*above, *before, *below], [*above, *after, *below], at - len(above)
    return PastEdit(tuple(before), tuple(after), at)


def _release(case: dict[str, Any]) -> NextEditCase:
    history = tuple(_cut(case["text"], one["old"], one["new"], one["at"] - 1) for one in case["history"])
    wanted = "\n".join(case["expected"]) if case["expected"] is not None else None
    text = "\n".join(case["text"])
    return NextEditCase(case["id"], "releases", case["kind"], case["language"], text, history, wanted)


class Outcome(NamedTuple):
    """`delta`: deltaChrF, 0 to 1. `sound`: each line that the answer changes is changed so in the wanted text."""

    shown: bool
    exact: bool
    sound: bool
    delta: float


def outcome(case: NextEditCase, answer: str) -> Outcome:
    """`answer` is the whole text, which is the case's own if nothing is shown."""
    shown = answer != case.text
    if not shown or case.wanted is None:
        return Outcome(shown, exact=False, sound=False, delta=0.0)
    before, ours, wanted = (text.rstrip("\n").split("\n") for text in (case.text, answer, case.wanted))
    mine, theirs = _line_changes(before, ours), _line_changes(before, wanted)
    delta = 1.0 if ours == wanted else chrf(_changed(before, ours), _changed(before, wanted))
    return Outcome(shown, ours == wanted, mine <= theirs, delta)


def _line_changes(old: Sequence[str], new: Sequence[str]) -> Counter[tuple[int, str]]:
    """The removed lines by their numbers, and the added ones (number -1)."""
    found = Counter[tuple[int, str]]()
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            found.update((at, old[at]) for at in range(a, b))
            found.update((-1, line) for line in new[c:d])
    return found


def _changed(old: Sequence[str], new: Sequence[str]) -> str:
    start, end = common(old, new)
    return "\n".join(new[start : len(new) - end])


def common(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines are equal at the start and, after these, at the end."""
    most = min(len(old), len(new))
    start = next((at for at in range(most) if old[at] != new[at]), most)
    return start, next((at for at in range(most - start) if old[-1 - at] != new[-1 - at]), most - start)


def chrf(said: str, wanted: str) -> float:
    """chrF (Popovic 2015), the mean of F over the orders that either text has."""
    scores = []
    for order in ORDERS:
        mine, theirs = _grams(said, order), _grams(wanted, order)
        if not mine and not theirs:
            continue
        hits = (mine & theirs).total()
        precision, recall = hits / max(1, mine.total()), hits / max(1, theirs.total())
        scores.append((1 + BETA_2) * precision * recall / (BETA_2 * precision + recall) if hits else 0.0)
    return sum(scores) / len(scores) if scores else 0.0


def _grams(text: str, order: int) -> Counter[str]:
    return Counter(text[at : at + order] for at in range(len(text) - order + 1))
