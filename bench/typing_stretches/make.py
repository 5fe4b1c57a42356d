"""Makes the stretches: a seeded typist writes the marked parts of the files in sources/, one JSON file a stretch.

    python bench/typing_stretches/make.py [FOLDER [GAPS.jsonl.gz]]

With GAPS, a held-out set of training/heldout.py, the typist writes gaps of six packages instead.

No person was recorded; what the typist does stands in the constants below. The same seed gives the same files.
An event is [ms since the one before, what, arguments]: `key` text (an Enter brings its indentation), `pair` text and
what the editor puts behind the cursor, `over` a bracket that it has put there, `back` count, `to` line and column.
"""

import gzip
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARKED = re.compile("«(.*?)»", re.DOTALL)
LANGUAGES = {"py": "python", "js": "javascript", "ts": "typescript", "json": "json", "md": "markdown", "go": "go"}

SEED = 7
SLOWEST_WPM, FASTEST_WPM = 40, 120  # a word is five keys, pauses included; the stretches are spread between the two
SPREAD = 0.45  # sigma of the log-normal times between keys
LINE_END_MS = 650.0  # median of what an Enter takes longer
THINK_MS, THINK_SHARE = 280.0, 0.4  # before a name: median, and how many names are thought about
MOVE_MS = 900.0  # median of a movement of the cursor
TYPO_SHARE = 0.04  # of the letters
NOTICE_LATE_SHARE = 0.3  # of the typos: seen one key later
NOTICED_MS = 260.0  # median of what the first backspace takes longer
SHORT = 48  # code points; a shorter part is written in one stretch with the next one
WORDS_EVERY = 4  # of each editor's stretches one takes ghosts word by word
CLOSERS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`"}
QUOTES = "\"'`"
PACKAGES = (
    *("pypi:marimo", "pypi:inspect-ai", "pypi:pydantic-ai-slim", "pypi:schemathesis"),
    *("npm:eslint-plugin-unicorn", "npm:fast-json-stringify"),
)
EACH = 6  # gaps of a package
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

Event = list[float | int | str]


@dataclass
class Typist:
    """Writes the events of one stretch. `closes`: the editor closes brackets and quotes by itself."""

    draw: random.Random
    wpm: float
    closes: bool
    events: list[Event] = field(default_factory=list)

    def add(self, what: str, *arguments: int | str, more_ms: float = 0.0) -> None:
        mean_ms = 60_000 / (5 * self.wpm)
        key_ms = mean_ms * self.draw.lognormvariate(-(SPREAD**2) / 2, SPREAD)
        self.events.append([round(key_ms + more_ms), what, *arguments])

    def keep_pace(self) -> None:
        """Scale all times so that the whole stretch has its words a minute."""
        factor = len(self.events) * 60_000 / (5 * self.wpm) / sum(int(event[0]) for event in self.events)
        for event in self.events:
            event[0] = round(int(event[0]) * factor)

    def pause(self, median_ms: float) -> float:
        return median_ms * self.draw.lognormvariate(0, 0.5)

    def write(self, text: str, before: str, after: str) -> None:
        """Type `text` between `before` and `after`."""
        pairs = _pairs(text, after) if self.closes else {}
        closers = {end: start for start, end in pairs.items()}
        at = 0
        split: set[int] = set()  # opening braces whose line was broken, so that the closing one waits below
        while at < len(text):
            char = text[at]
            more = self._hesitation(text, at)
            if char == "\n":
                indent = _indent(text, at + 1)
                closing = at + 1 + len(indent)
                if closing in closers and closers[closing] in split:
                    row, column = _place(before + text[: closing + 1])
                    self.add("to", row, column, more_ms=self.pause(MOVE_MS) / 2)
                    at = closing + 1
                    continue
                at = self._enter(text, at, before, pairs, split, more)
            elif at in pairs:
                self.add("pair", char, text[pairs[at]], more_ms=more)
                at += 1
            elif at in closers:
                self.add("over", char, more_ms=more)
                at += 1
            else:
                self._letter(char, text[at + 1 : at + 2], more)
                at += 1

    def _hesitation(self, text: str, at: int) -> float:
        begins = re.match(r"\w", text[at]) and not (at and re.match(r"\w", text[at - 1]))
        return self.pause(THINK_MS) if begins and self.draw.random() < THINK_SHARE else 0.0

    def _enter(self, text: str, at: int, before: str, pairs: dict[int, int], split: set[int], more: float) -> int:
        """An Enter with the indentation that an editor gives the line, and what it takes to correct that."""
        line = (before + text[:at]).rpartition("\n")[2]
        wanted, given = _indent(text, at + 1), _given(line, before)
        pause = more + self.pause(LINE_END_MS)
        if at - 1 in pairs and text[pairs[at - 1] - 1] in " \t\n":
            split.add(at - 1)
            self.add("pair", "\n" + wanted, "\n" + _indent(line, 0), more_ms=pause)
            return at + 1 + len(wanted)
        self.add("key", "\n" + given, more_ms=pause)
        if given.startswith(wanted) and given != wanted:
            self.add("back", len(given) - len(wanted))
        elif given != wanted:
            self.add("key", wanted[len(given) :])
        return at + 1 + len(wanted)

    def _letter(self, char: str, following: str, more: float) -> None:
        if char.isascii() and char.isalpha() and self.draw.random() < TYPO_SHARE:
            self.add("key", _beside(char, self.draw), more_ms=more)
            late = following.isalpha() and self.draw.random() < NOTICE_LATE_SHARE
            if late:
                self.add("key", following)
            more = 0.0
            for number in range(1 + late):
                self.add("back", 1, more_ms=0 if number else self.pause(NOTICED_MS))
        self.add("key", char, more_ms=more)


def _pairs(text: str, after: str) -> dict[int, int]:
    """Opening and closing brackets and quotes that an editor closes by itself: before blanks and closing brackets."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for at, char in enumerate(text):
        inside = text[opened[-1]] if opened and text[opened[-1]] in QUOTES else ""
        if inside:
            if char == inside and text[at - 1] != "\\":
                found[opened.pop()] = at
            elif char == "\n":
                opened.pop()
        elif char in "([{" or (char in QUOTES and not _ends_word(text[:at])):
            opened.append(at)
        elif char in ")]}" and opened:
            found[opened.pop()] = at
    tail = after[:1]
    # What follows the opening one when it is typed: the closing ones of the pairs around it, then `after`.
    return found if not tail or tail in " \t\n)]};,:" else {}


def _ends_word(text: str) -> bool:
    """Whether a quote behind `text` ends something and opens nothing; an `f` before a string is no word."""
    return text[-1:].isalnum() and text[-1] not in "frb"


def _indent(text: str, at: int) -> str:
    return re.compile(r"[ \t]*").match(text, at)[0]  # type: ignore[index]  # it matches the empty string


def _given(line: str, before: str) -> str:
    """The indentation that an editor gives the line after `line`."""
    tabs, two = (re.search(start, before, re.MULTILINE) for start in (r"^\t", r"^  \S"))
    unit = "\t" if tabs else "  " if two else "    "
    return _indent(line, 0) + (unit if line.rstrip().endswith((":", "{", "(", "[")) else "")


def _beside(char: str, draw: random.Random) -> str:
    """A key beside the right one."""
    row = next(row for row in ROWS if char.lower() in row)
    at = row.index(char.lower())
    return draw.choice(row[max(0, at - 1) : at] + row[at + 1 : at + 2])


def _place(text: str) -> tuple[int, int]:
    return text.count("\n"), len(text) - text.rfind("\n") - 1


def stretches(seed: int = SEED) -> Iterator[tuple[str, dict[str, object]]]:
    """(name, stretch): the sources by turns, the editors by turns."""
    sources = sorted((HERE / "sources").glob("*.txt"))
    turns = [[(path, parts) for parts in _groups(path.read_text("utf-8"))] for path in sources]
    longest = max(map(len, turns))
    order = [group[number] for number in range(longest) for group in turns if number < len(group)]
    for number, (path, parts) in enumerate(order):
        file = path.name.removesuffix(".txt")
        editor = ("neovim", "vscode")[number % 2]
        draw = random.Random(f"{seed} {number} {file}")
        step = (FASTEST_WPM - SLOWEST_WPM) / (len(order) - 1)
        wpm = round(SLOWEST_WPM + step * (number * 16 % len(order)))
        stretch = _stretch(MARKED.split(path.read_text("utf-8")), parts, Typist(draw, wpm, closes=editor == "vscode"))
        head = {"editor": editor, "file": file, "language": LANGUAGES[file.rpartition(".")[2]], "wpm": wpm}
        yield f"{number + 1:02}-{file.replace('.', '-')}", {**head, "words": number // 2 % WORDS_EVERY == 3, **stretch}


def _groups(source: str) -> list[list[int]]:
    """The marked parts by number; short ones with the next."""
    groups: list[list[int]] = []
    short = False
    for number, part in enumerate(MARKED.findall(source)):
        if short:
            groups[-1].append(number)
        else:
            groups.append([number])
        short = not short and len(re.sub(r"\n\s*", "\n", part)) < SHORT
    return groups


def of_packages(path: Path, seed: int = SEED) -> Iterator[tuple[str, dict[str, object]]]:
    """(name, stretch): EACH gaps of every package in PACKAGES, bodies of Python and lines of JavaScript as far as there
    are some; the editors by turns, the speeds spread."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        gaps = [gap for line in file if (gap := json.loads(line))["package"] in PACKAGES]
    draw = random.Random(seed)
    for package in PACKAGES:
        found = [gap for gap in gaps if gap["package"] == package and gap["group"] in ("python-block", "js-line")]
        for number, gap in enumerate(draw.sample(found, EACH)):
            editor = ("neovim", "vscode")[number % 2]
            wpm = round(SLOWEST_WPM + (FASTEST_WPM - SLOWEST_WPM) * number / (EACH - 1))
            typist = Typist(random.Random(f"{seed} {gap['id']}"), wpm, closes=editor == "vscode")
            name = package.partition(":")[2]
            head = {"editor": editor, "file": Path(gap["path"]).name, "language": gap["lang"], "wpm": wpm}
            pieces = [gap["prefix"], gap["middle"], gap["suffix"]]
            yield f"{name}-{number + 1}", {**head, "words": False, **_stretch(pieces, [0], typist)}


def _stretch(pieces: Sequence[str], parts: Sequence[int], typist: Typist) -> dict[str, object]:
    """The text without `parts`, the events that write them, and the text with them. The pieces are text, part, text,
    part, ..., text."""
    whole = "".join(pieces)
    written = {2 * part + 1 for part in parts}
    start = "".join(piece for number, piece in enumerate(pieces) if number not in written)
    for number in sorted(written):
        before = "".join(pieces[:number])
        after = "".join(piece for later, piece in enumerate(pieces) if later > number and later not in written)
        typist.add("to", *_place(before), more_ms=typist.pause(MOVE_MS))
        typist.write(pieces[number], before, after)
    typist.keep_pace()
    return {"start": start, "end": whole, "events": typist.events}


def _lines(stretch: dict[str, object]) -> str:
    """JSON with an event a line, so that a change of one can be read."""
    events = stretch["events"]
    assert isinstance(events, list)
    head = json.dumps({**stretch, "events": []}, indent=1, ensure_ascii=False).removesuffix("[]\n}")
    return head + "[\n" + ",\n".join(json.dumps(event, ensure_ascii=False) for event in events) + "\n]}\n"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, stretch in of_packages(Path(sys.argv[2])) if len(sys.argv) > 2 else stretches():
        (folder / f"{name}.json").write_text(_lines(stretch), "utf-8")


if __name__ == "__main__":
    main()
