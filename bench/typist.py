"""The one who types: replays a stretch of typing_stretches/ in an emulated editor, and takes ghosts on the way.

A ghost is taken when it has been visible for NOTICE_S and is just what the typist was going to type next, at least
SHORTEST characters that are not blank; else they go on typing.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulators import Editor, offset

STRETCHES = Path(__file__).resolve().parent / "typing_stretches"

NOTICE_S = 0.3  # how long a ghost is on the screen before the typist can take it
SHORTEST = 4  # code points that are not blank; less is typed
WORD_S = 0.2  # between two words that are taken one by one
TAB_KEYS, WRONG_KEYS = 1, 2  # what it costs to take a ghost, and to read a wrong one

CLOSED = ")]}\"'` \t\n"

Event = list[Any]


@dataclass(frozen=True)
class Stretch:
    """A file of typing_stretches/; make.py says what its events mean."""

    name: str
    editor: str
    file: str
    language: str
    wpm: float
    words: bool  # ghosts are taken word by word
    start: str
    end: str
    events: list[Event]

    def __repr__(self) -> str:
        return f"<Stretch {self.name} {self.editor} {self.wpm} wpm {len(self.events)} events>"


def stretches(folder: Path = STRETCHES) -> list[Stretch]:
    return [Stretch(path.stem, **json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]


def press(editor: Editor, event: Event) -> None:
    match event[1:]:
        case ["key", text]:
            editor.key(text)
        case ["pair", text, behind]:
            editor.key(text, behind)
        case ["over", text]:
            editor.over(text)
        case ["back", count]:
            editor.back(count)
        case ["to", line, column]:
            editor.to(line, column)


def ahead(events: Sequence[Event], text: str = "", cursor: int = 0) -> list[str]:
    """What stands between the place of the cursor in `text` and that after each of `events`: what the typist means to
    write, typing errors on the way included. It ends where something before that place changes, and where the cursor
    moves over more than what an editor has closed."""
    found, begin = list[str](), cursor
    for event in events:
        match event[1:]:
            case ["key", typed]:
                text, cursor = text[:cursor] + typed + text[cursor:], cursor + len(typed)
            case ["pair", typed, behind]:
                text, cursor = text[:cursor] + typed + behind + text[cursor:], cursor + len(typed)
            case ["over", typed]:
                closed = len(typed) if text.startswith(typed, cursor) else 0
                text, cursor = text[:cursor] + typed + text[cursor + closed :], cursor + len(typed)
            case ["back", count] if cursor - count >= begin:
                text, cursor = text[: cursor - count] + text[cursor:], cursor - count
            case ["to", line, column] if _passes_closed(text, cursor, at := offset(text, line, column)):
                cursor = at
            case _:
                break
        found.append(text[begin:cursor])
    return found


def _passes_closed(text: str, cursor: int, to: int) -> bool:
    """Whether a movement goes on over blanks and what an editor closes, and nothing else."""
    return cursor <= to and not text[cursor:to].strip(CLOSED)


def wanted(ghost: str, texts: Sequence[str], *, words: bool) -> int:
    """How many code points of the ghost the typist takes: all of it or nothing; with `words`, its first good words."""
    last = texts[-1] if texts else ""
    size = len(ghost) if last.startswith(ghost) else 0
    if words and not size:
        ends = [found.end() for found in re.finditer(r"\s*(\w+|[^\w\s]+)", ghost)]
        size = max((end for end in ends if last.startswith(ghost[:end])), default=0)
        size = 0 if re.match(r"\w\w", ghost[size - 1 : size + 1] + last[size : size + 1]) else size
    return size if len("".join(ghost[:size].split())) >= SHORTEST else 0


@dataclass(frozen=True)
class Look:
    """A ghost as it was when the next key was due: `right` where it is just what the typist goes on to write, `read`
    where it had been visible for NOTICE_S."""

    text: str
    right: bool
    read: bool


@dataclass
class Gain:
    """What ghosts were worth to the typist, in keys. `looks` by the time at which a ghost appeared: one that grows, or
    is typed along with, counts once, as it was last."""

    keys: int = 0  # pressed
    with_ghost: int = 0  # of these, while a ghost was visible
    spared: int = 0  # left out, since a ghost had them
    tabs: int = 0
    looks: dict[float, Look] = field(default_factory=dict)

    @property
    def saved(self) -> int:
        """Keys spared, less those that taking and reading cost."""
        wrong = sum(look.read and not look.right for look in self.looks.values())
        return self.spared - TAB_KEYS * self.tabs - WRONG_KEYS * wrong


class Typist:
    """Replays the events of one stretch. `pace` scales the recorded times."""

    def __init__(self, editor: Editor, stretch: Stretch, pace: float) -> None:
        self.gain = Gain()
        self._editor, self._words, self._pace = editor, stretch.words, pace
        self._events = stretch.events
        self._at = 0

    async def type(self) -> None:
        while self._at < len(self._events):
            due = self._editor.now + self._events[self._at][0] / 1000 * self._pace
            if not await self._take_before(due):
                self._look()
                press(self._editor, self._events[self._at])
                self.gain.keys += 1
                self._at += 1

    def _look(self) -> None:
        """Note the ghost that is visible now."""
        editor = self._editor
        if ghost := editor.visible:
            self.gain.with_ghost += 1
            texts = ahead(self._events[self._at :], editor.text, editor.cursor)
            right = bool(texts) and texts[-1].startswith(ghost)
            read = editor.now - editor.shown_since >= NOTICE_S
            before = self.gain.looks.get(editor.shown_since)
            self.gain.looks[editor.shown_since] = Look(
                ghost if before is None else max(before.text, ghost, key=len), right, read
            )

    async def _take_before(self, due: float) -> bool:
        """Whether a ghost was taken before the next key is due."""
        editor = self._editor
        while True:
            editor.changed.clear()
            texts = ahead(self._events[self._at :], editor.text, editor.cursor)
            size = wanted(editor.visible, texts, words=self._words)
            ready = max(editor.now, editor.shown_since + NOTICE_S) if size else due
            if size and ready <= editor.now:
                await self._take(size, texts)
                return True
            try:
                async with asyncio.timeout_at(min(due, ready)):
                    await editor.changed.wait()
            except TimeoutError:
                if due <= ready:
                    return False

    async def _take(self, size: int, texts: Sequence[str]) -> None:
        """Take `size` code points of the ghost, and leave out the keys that would have written them."""
        self._look()
        part = self._editor.visible[:size]
        if self._words:
            part = re.match(r"\s*(\w+|[^\w\s]+)\s*$|\s*(\w+|[^\w\s]+)", part)[0]  # type: ignore[index]
        self._editor.accept(len(part))
        spared = texts.index(part) + 1 if part in texts else self._split(part, texts)
        self._at, self.gain.spared, self.gain.tabs = self._at + spared, self.gain.spared + spared, self.gain.tabs + 1
        if self._words:
            await asyncio.sleep(WORD_S)

    def _split(self, part: str, texts: Sequence[str]) -> int:
        """`part` ends inside what one event types, an indentation, or passes, a bracket: the rest of that event is yet
        to come. How many events come before it."""
        number = next(index for index, text in enumerate(texts) if text.startswith(part))
        rest = texts[number][len(part) :]
        self._events = [*self._events]
        self._events[self._at + number] = [0, "over" if rest.lstrip() else "key", rest]
        return number
