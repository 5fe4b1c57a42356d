"""Editors for the typing simulator: what Neovim 0.12 and VS Code 1.139 do with inline completions, and nothing else.

Each keeps a text, tells the server of every edit, asks when the real one would ask, and draws what the real one would
draw. A `Link` carries the messages; time is the event loop's, so a test may run on a clock of its own.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

CANCELLED = -32800  # RequestCancelled: the standard answer to a request that the client has cancelled
SUPERSEDED = (CANCELLED, -32801, -32802)  # errors that say no more than that something newer came

Message = dict[str, Any]
Base = tuple[str, int]  # the text and the cursor when something was asked for
Outcome = Literal["items", "empty", "null", "error", "cancelled", "pending"]


class Link(Protocol):
    """The way to a server. `answer` is called with the whole response; an answer to nobody is never made."""

    def notify(self, method: str, params: object) -> None: ...

    def request(self, method: str, params: object, answer: Callable[[Message], None]) -> int: ...


@dataclass
class Asked:
    """A request for a completion and what became of it. Times in seconds of the event loop."""

    at: float
    answered: float | None = None
    outcome: Outcome = "pending"
    code: int | None = None  # of an error that the client did not ask for

    @property
    def ms(self) -> float:
        """From the request to its answer; NaN without one."""
        return math.nan if self.answered is None else (self.answered - self.at) * 1000


@dataclass(frozen=True)
class Draw:
    """A ghost that was drawn. `new`: not the rest of the one before it."""

    at: float
    key_at: float | None  # the last key before it
    text: str
    added: int  # code points that were not on the screen before
    new: bool
    stale: bool
    before: str  # the editor's text, and what it would be with the ghost taken
    after: str


@dataclass
class Seen:
    """All that happened in one editor."""

    asked: list[Asked] = field(default_factory=list)
    drawn: list[Draw] = field(default_factory=list)
    kept_stale: int = 0  # `null` left a ghost that no longer fits
    keys: int = 0
    accepted: int = 0  # code points


@dataclass(frozen=True)
class Ghost:
    """An item: `insert` in place of base[start:end], where `base` was the text and `asked_at` the cursor when it was
    asked for. `command` is for the server, after the item was taken."""

    base: str
    asked_at: int
    start: int
    end: int
    insert: str
    command: Message | None = None

    def rest(self, text: str, cursor: int) -> tuple[str, int] | None:
        """What is left to insert at `cursor` and how many code points after it that replaces; None where it does not
        fit: something else was typed than the item begins with, or something changed elsewhere.

        Closing brackets that the editor put behind the cursor by itself are part of what is replaced."""
        closers = len(text) - len(self.base) - (cursor - self.asked_at)  # put behind the cursor
        over = max(0, -closers)  # or typed over instead
        end = cursor + max(0, closers)
        if text[: self.start] != self.base[: self.start] or text[end:] != self.base[self.asked_at + over :]:
            return None
        typed = text[self.start : cursor]
        rest = self.insert.removeprefix(typed) if self.insert.startswith(typed) else None
        if cursor < self.start or over > self.end - self.asked_at or rest is None or text[cursor:end] not in rest:
            return None
        return rest, end - cursor + self.end - self.asked_at - over


class Editor:
    """What the two have in common: the text, the edits and the book. `accepted` marks what was taken from a ghost."""

    name = ""
    encodings: tuple[str, ...] = ()
    wait_s = 0.0  # from a change to the request
    commands_for_parts = False  # an item's command is also run when a part of it is taken

    def __init__(self, link: Link, encoding: str, uri: str, language: str, text: str) -> None:
        self.text, self.cursor = text, 0
        self.marks = [False] * len(text)  # for each code point: it was accepted
        self.ghost: Ghost | None = None
        self.shown_since = 0.0
        self.seen = Seen()
        self.changed = asyncio.Event()  # set whenever the ghost changes
        self._link, self._encoding, self._uri = link, encoding, uri
        self._version = 0
        self._timer: asyncio.TimerHandle | None = None
        self._key_at: float | None = None
        self._document = {"uri": uri, "languageId": language, "version": 0, "text": text}
        link.notify("textDocument/didOpen", {"textDocument": self._document})

    def __repr__(self) -> str:
        return f"<{self.name} at {self.cursor} of {len(self.text)}, version {self._version}, {self.visible!r}>"

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def visible(self) -> str:
        """What a user reads as the rest of the line; empty where no ghost is drawn or it does not fit."""
        rest = self.ghost.rest(self.text, self.cursor) if self.ghost else None
        return rest[0] if rest else ""

    # The user's hands

    def key(self, text: str, behind: str = "") -> None:
        """Insert at the cursor; `behind` is what the editor puts after it by itself."""
        self._typed(self.cursor, self.cursor, text, behind)

    def over(self, text: str) -> None:
        """Type a closing bracket over the one that the editor has put there; insert it where there is none."""
        size = len(text) if self.text.startswith(text, self.cursor) else 0
        self._typed(self.cursor, self.cursor + size, text)

    def back(self, count: int) -> None:
        self._typed(self.cursor - count, self.cursor, "")

    def to(self, line: int, column: int) -> None:
        """Move the cursor, by arrows or a click; from 0, in code points."""
        self.cursor = offset(self.text, line, column)
        self._key_at = None
        self.moved()

    def accept(self, size: int | None = None) -> int:
        """Take the ghost, or its first `size` code points; how many were inserted."""
        assert self.ghost
        rest = self.ghost.rest(self.text, self.cursor)
        assert rest
        text, eaten = rest
        part = text[:size]
        if part != text:
            eaten = 0
        command = self.ghost.command
        self.seen.accepted += len(part)
        self.taken(part != text)
        self._edit(self.cursor, self.cursor + eaten, part, accepted=True)
        if command and (part == text or self.commands_for_parts):
            self._link.request("workspace/executeCommand", command, lambda _: None)
        self.after_edit()
        return len(part)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._link.notify("textDocument/didClose", {"textDocument": {"uri": self._uri}})

    def _typed(self, start: int, end: int, text: str, behind: str = "") -> None:
        self.seen.keys += 1
        self._key_at = self.now
        self._edit(start, end, text, behind)
        self.after_edit()

    def _edit(self, start: int, end: int, text: str, behind: str = "", *, accepted: bool = False) -> None:
        where = {"start": self._position(start), "end": self._position(end)}
        self._version += 1
        self.text = self.text[:start] + text + behind + self.text[end:]
        self.marks[start:end] = [accepted] * len(text) + [False] * len(behind)
        self.cursor = start + len(text)
        change = {"range": where, "text": text + behind}
        document = {"uri": self._uri, "version": self._version}
        self._link.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})

    # What differs

    def after_edit(self) -> None:
        raise NotImplementedError

    def moved(self) -> None:
        raise NotImplementedError

    def taken(self, rest: bool) -> None:
        """The ghost is about to be inserted; `rest`: a part of it stays behind."""
        raise NotImplementedError

    def answered(self, asked: Asked, base: Base, response: Message) -> None:
        raise NotImplementedError

    # Asking and drawing

    def _ask_later(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self.wait_s, self._ask)

    def _ask(self) -> None:
        asked, base = Asked(self.now), (self.text, self.cursor)
        self.seen.asked.append(asked)

        def answer(response: Message) -> None:
            asked.answered = self.now
            self.answered(asked, base, response)

        where = {"textDocument": {"uri": self._uri}, "position": self._position(self.cursor)}
        params = {**where, "context": {"triggerKind": 2}}
        self.pending = asked, self._link.request("textDocument/inlineCompletion", params, answer)

    def _note(self, asked: Asked, response: Message) -> list[Message] | None:
        """Write down what an answer is; its items, None for null and for an error."""
        if error := response.get("error"):
            asked.outcome, asked.code = "error", error["code"]
            return None
        result = response["result"]
        if result is None:
            asked.outcome = "null"
            return None
        items: list[Message] = result["items"] if isinstance(result, dict) else result
        asked.outcome = "items" if items else "empty"
        return items

    def _draw(self, base: Base, item: Message) -> None:
        before = self.visible
        self.ghost = Ghost(*base, *self._offsets(base[0], item["range"]), item["insertText"], item.get("command"))
        rest = self.ghost.rest(self.text, self.cursor)
        text = rest[0] if rest else item["insertText"]
        new = not before or not text.startswith(before)
        if new:
            self.shown_since = self.now
        added = len(text) if new else len(text) - len(before)
        end = self.cursor + (rest[1] if rest else 0)
        after = self.text[: self.cursor] + text + self.text[end:]
        self.seen.drawn.append(Draw(self.now, self._key_at, text, added, new, rest is None, self.text, after))
        self.changed.set()

    def _hide(self) -> None:
        self.ghost = None
        self.changed.set()

    # Positions

    def _position(self, offset: int) -> Message:
        start = self.text.rfind("\n", 0, offset) + 1
        return {"line": self.text.count("\n", 0, start), "character": self._units(self.text[start:offset])}

    def _offsets(self, text: str, where: Message) -> tuple[int, int]:
        return self._offset(text, where["start"]), self._offset(text, where["end"])

    def _offset(self, text: str, position: Message) -> int:
        start = 0
        for _ in range(position["line"]):
            start = text.index("\n", start) + 1
        size = 0
        while self._units(text[start : start + size]) < position["character"]:
            size += 1
        return start + size

    def _units(self, text: str) -> int:
        match self._encoding:
            case "utf-8":
                return len(text.encode())
            case "utf-16":
                return len(text.encode("utf-16-le")) // 2
        return len(text)


class Neovim(Editor):
    """Asks 200 ms after the last movement of the cursor. Never cancels while typing. Draws whatever arrives, unchecked:
    `null` keeps what is drawn, an empty list clears it. Accepting cancels what is pending and forgets the ghost.

    A ghost is taken through `on_accept`, which stretches the range over what was typed since and refuses a ghost that
    no longer fits; without it Neovim inserts the typed part twice. Words are taken the same way."""

    name = "Neovim"
    encodings = ("utf-8", "utf-16", "utf-32")
    wait_s = 0.2
    commands_for_parts = True

    def after_edit(self) -> None:
        self.changed.set()  # what is drawn follows the cursor, expired or not
        self._ask_later()

    def moved(self) -> None:
        self.after_edit()

    def taken(self, rest: bool) -> None:
        if self.seen.asked and self.seen.asked[-1].outcome == "pending":
            self.seen.asked[-1].outcome = "cancelled"
            self._link.notify("$/cancelRequest", {"id": self.pending[1]})
        self._hide()

    def answered(self, asked: Asked, base: Base, response: Message) -> None:
        if asked.outcome == "cancelled":
            return
        items = self._note(asked, response)
        if items:
            self._draw(base, items[0])
        elif items is not None:
            self._hide()
        elif asked.outcome == "null" and self.ghost and self.ghost.rest(self.text, self.cursor) is None:
            self.seen.kept_stale += 1


class VSCode(Editor):
    """Asks 50 ms after a change and cancels the request before it. Keeps a ghost while it is typed through, else hides
    it at the key. Drops the answer of a cancelled request. A movement hides the ghost and asks nothing."""

    name = "VS Code"
    encodings = ("utf-16",)
    wait_s = 0.05

    def after_edit(self) -> None:
        self._cancel()
        if self.ghost and not self.visible:
            self._hide()
        self._ask_later()

    def moved(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._cancel()
        self._hide()

    def taken(self, rest: bool) -> None:
        if not rest:
            self._hide()

    def answered(self, asked: Asked, base: Base, response: Message) -> None:
        if asked.outcome == "cancelled":
            return
        if items := self._note(asked, response):
            self._draw(base, items[0])
        elif asked.outcome != "error":
            self._hide()

    def _cancel(self) -> None:
        if self.seen.asked and self.seen.asked[-1].outcome == "pending":
            self.seen.asked[-1].outcome = "cancelled"
            self._link.notify("$/cancelRequest", {"id": self.pending[1]})


def offset(text: str, line: int, column: int) -> int:
    """Of a place, from 0, in code points."""
    return sum(len(one) + 1 for one in text.split("\n")[:line]) + column


EDITORS = {"neovim": Neovim, "vscode": VSCode}
