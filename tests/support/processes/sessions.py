"""Sessions of real editors, recorded in tests/data/sessions: whoever changes how the server is built, and not what it
answers, runs test_recorded_sessions.py before and after.

    python -m tests.support.processes.sessions [NAME...] [--write]

plays what the editors said to the server of today and prints what it answers otherwise: to the editor, and in the jobs
that it gives the engine. `--write` takes today's answers as right. `python -m tests.real.recordings.record` records the
editors again. Time is that of the recording, on a clock that waits for nobody.
"""

import argparse
import asyncio
import contextlib
import difflib
import gzip
import json
import os
import queue
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from caesura import wire
from caesura.client.backend import Condition, FinishedJob

from .clock import Clock

FOLDER = Path(__file__).parents[2] / "data" / "sessions"
PLACE = "/recorded"  # the session's folder, in a recording
PATIENCE_S = 20.0  # for an answer that the recording has at this place
AT_LEAST_S = 0.001  # between what an editor says: the server has done by then what needs no time
STEP_S = 0.02  # between two events of a job
MOST_TOLD = 5  # differences of a session
CLOCKS: list[Clock] = [Clock()]  # the one that plays
MADE_UP = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
NAMED = re.compile(r"«[^«»]+»")

LINES = (  # what the model wants to write
    "return width * height",
    "return area(width, height) * depth",
    "result = perhaps(width, height)",
    "self.items.append(item)",
    "sum(width, height)",
    "slow_answer = compute(width)",
    "for item in items:\n        total += item.price\n        count += 1",
    "const total = width * height;",
    "function scaled(shape, factor) {\n  return shape.width * factor;\n}",
    "let total = width * height;",
    "fmt.Println(width, height)",
    '"height": 80,',
    "- second item of the list",
    "The second sentence says more about it.",
    "image: registry/app:latest",
    "print(total, count)",
)
VALUES = ('"seven"', "7", "true", '{"name": "seven"}', '["seven"]')  # JSON, whatever the place asks for
ITEMS = {"members": '"seven": 7', "elements": '{"name": "seven", "port": 7}', "key": '"seven"'}
PHRASES = ("seven", "7", "- seven", "1. seven", "[seven](#seven)", "seven.md", "| seven |", "# Seven", "7. seven", "")

Event = dict[str, Any]  # one of `in` (messages that came together, and `at`, in ms), `out`, `job`, `left` and `stats`
Message = dict[str, Any]


@dataclass
class Session:
    """`files` are those of the folder, by name; `events` are in the order in which they came."""

    editor: str
    files: Mapping[str, str]
    events: list[Event] = field(default_factory=list)


def read(path: Path) -> Session:
    head, *events = gzip.decompress(path.read_bytes()).decode().splitlines()
    return Session(**json.loads(head), events=list(map(json.loads, events)))


def write(path: Path, session: Session) -> None:
    lines = [{"editor": session.editor, "files": session.files}, *session.events]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{text(line)}\n" for line in lines).encode(), mtime=0))


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# The engine


class Engine:
    """Answers from what a job holds alone: the rest of one of the LINES that has begun in the text, or something of
    the form that is asked for. `heard` is told each job, and each that the server leaves."""

    condition = Condition("ready", "recorded", "cpu")

    def __init__(self, heard: Callable[[Event], None]) -> None:
        self._heard = heard
        self._count = 0
        self.on_change: Callable[[], None] = lambda: None
        self.on_job: Callable[[FinishedJob], None] = lambda _: None

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        self._count += 1
        number, over = self._count, False
        wire.decode_client(wire.encode(job))  # raises where a real engine would refuse it
        self._heard({"job": plain(job)})
        try:
            best, *others = answers(job)
            slow = any("slow" in text for text in best)
            for number, share in enumerate((0, 2)):
                await asyncio.sleep(STEP_S / 2)
                guesses = tuple("slower" if slow and not share else text for text in best)
                holes = tuple(fill(text, len(text) * share // 4) for text in guesses)
                yield wire.Locked(job=job.job, seq=number, holes=holes, step=number, of=3)
            await asyncio.sleep(STEP_S * (20 if slow else 1))
            over = True
            yield wire.Done(
                job=job.job,
                seq=2,
                holes=tuple(fill(text, len(text)) for text in best),
                alternatives=tuple(tuple(fill(text, len(text)) for text in other) for other in others),
                steps=3,
                tokens=wire.Tokens(),
                timings=wire.Timings(),
                stop="complete",
                level="valid" if job.kind == "edit" else "",
            )
        finally:
            if not over:
                self._heard({"left": number})


def answers(job: wire.Infill) -> list[tuple[str, ...]]:
    """A text for each hole, the best choice first, as many choices as the job may have."""
    found, before = list[list[str]](), job.prefix
    for segment in job.segments:
        if isinstance(segment, wire.Text):
            before += segment.text
        else:
            choices = shaped(segment.grammar) if segment.grammar else rests(before)
            found.append(choices)
            before += choices[0]
    count = min(max(job.candidates, 1), max(map(len, found)))
    shift = job.seed % count  # another seed begins with another choice
    rows = [tuple(one[min((row + shift) % count, len(one) - 1)] for one in found) for row in range(count)]
    return list(dict.fromkeys(rows))


def rests(before: str) -> list[str]:
    """What is left of each line that has begun; where none has, a name."""
    typed = before.rpartition("\n")[2].lstrip()
    if typed == "" or typed.isspace():
        return ["print(total, count)", ""]
    found = [line.removeprefix(typed) for line in LINES if line.startswith(typed) and line != typed]
    last = re.split(r"[\s(]", typed)[-1]
    found += [line.removeprefix(last) for line in LINES if last and line.startswith(last) and line != last]
    return found or ["total", "count"]


def shaped(grammar: wire.Json | wire.Pattern) -> list[str]:
    """Texts of a grammar's form."""
    if isinstance(grammar, wire.Pattern):
        return [text for text in PHRASES if matches(grammar.regex, text)] or ["seven"]
    if grammar.start == "value":
        return list(VALUES)
    return [ITEMS[grammar.start], ITEMS[grammar.start].replace("seven", "eight")]


def matches(regex: str, text: str) -> bool:
    try:
        return re.fullmatch(regex, text) is not None
    except re.error:  # of ECMA-262's that Python has not
        return False


def fill(text: str, locked: int) -> wire.Fill:
    """A word that is unsure says so: `perhaps`."""
    ends = [match.end() for match in re.finditer(r"\w+\W*|\W+", text)]
    unsure = text.find("perhaps") if "perhaps" in text else len(text) + 1
    probabilities = tuple((end, 0.3 if end > unsure else 0.97) for end in ends)
    return wire.Fill(text, ((0, locked),) if locked else (), 0.9, len(text) - locked, probabilities)


def plain(job: wire.Infill) -> Message:
    """A job without what has its default."""
    built: Message = msgspec.to_builtins(job)
    fields = msgspec.structs.fields(job)
    return {one.name: built[one.name] for one in fields if getattr(job, one.name) != one.default}


# The names of what is made up anew in each run


class Names:
    """An id that the server makes up is named by the message that it first came in."""

    def __init__(self) -> None:
        self.known = dict[str, str]()
        self._theirs = set[str]()  # what the editor has made up: the recording has it
        self._jobs = dict[str, str]()
        self._counts = Counter[str]()

    def out(self, message: Message) -> Message:
        said = text(message)
        where = f"answer to {message['id']}" if "method" not in message else self._next(message["method"])
        for place, found in enumerate(dict.fromkeys(MADE_UP.findall(said))):
            if found not in self._theirs:
                self.known.setdefault(found, f"«{where}, {place}»")
        return self.shown(message)

    def heard(self, message: Message) -> Message:
        """What an editor says."""
        self._theirs |= set(MADE_UP.findall(text(message))) - self.known.keys()
        return self.shown(message)

    def shown(self, message: Message) -> Message:
        found: Message = json.loads(MADE_UP.sub(lambda match: self.known.get(match[0], match[0]), text(message)))
        return found

    def job(self, event: Event) -> Event:
        """Jobs have names of their own: an editor never sees them."""
        said = text(event)
        for found in MADE_UP.findall(said):
            self._jobs.setdefault(found, f"«{len(self._jobs) + 1}»")
        named: Event = json.loads(MADE_UP.sub(lambda match: self._jobs[match[0]], said))
        return named

    def real(self, said: str) -> str:
        """The other way round. Raises KeyError where the server has not said it."""
        actual = {name: found for found, name in self.known.items()}
        return NAMED.sub(lambda match: actual[match[0]], said)

    def _next(self, method: str) -> str:
        self._counts[method] += 1
        return f"{method} {self._counts[method]}"


# Playing


class Play:
    """One session with a server in this process."""

    def __init__(self, session: Session, folder: Path) -> None:
        from caesura.server.app import App
        from caesura.server.lsp.framing import Framer

        self.events: list[Event] = []
        self._session, self._folder = session, folder
        self._names, self._framer = Names(), Framer()
        self._news = asyncio.Event()
        self._heard = set[Any]()  # the ids of what is answered, and the names that the editor knows
        self._handed, self._idle = queue.Queue[bytes](), threading.Event()
        engine = Engine(lambda event: self.events.append(self._names.job(event)))
        self.app = App(lambda options, client, remote: engine)

    async def run(self) -> list[Event]:
        serving = asyncio.create_task(self.app.server.serve_in_loop(self._read, self._write))
        wanted, clock = set[Any](), asyncio.get_running_loop().time
        for event in self._session.events:
            if "method" not in (out := event.get("out", {"method": ""})):
                wanted.add(out["id"])
            if "in" in event:
                await self._until(wanted | set(NAMED.findall(text(event["in"]))))
                await asyncio.sleep(max(AT_LEAST_S, event["at"] / 1000 - clock()))
                self._send(event)
        await asyncio.sleep(PATIENCE_S)
        self.app.server.stop(0)
        await serving
        return [*self.events, {"stats": counted()}]

    async def _until(self, wanted: set[Any]) -> None:
        """Wait for what the editor had heard when it said the next thing; in vain, the comparison tells of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not wanted <= self._heard:
                    self._news.clear()
                    await self._news.wait()

    def _send(self, event: Event) -> None:
        """What the editor has written at once is read at once."""
        self.events.append(event)
        for message in event["in"]:
            self._names.heard(message)
        try:
            messages = [self._names.real(text(one)).replace(PLACE, str(self._folder)) for one in event["in"]]
        except KeyError:
            return  # the server has not said what this is about
        bodies = [message.encode() for message in messages]
        self._idle.clear()
        self._handed.put(b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies))
        self._idle.wait()  # the reader has passed it on to the loop

    def _read(self) -> bytes:
        self._idle.set()
        return self._handed.get()

    def _write(self, data: bytes) -> None:
        for body in self._framer.feed(data):
            message = self._names.out(json.loads(body.decode().replace(str(self._folder), PLACE)))
            self.events.append({"out": message})
            self._heard |= {message["id"]} if "method" not in message else set()
        self._heard |= set(self._names.known.values())
        self._news.set()


def counted() -> Mapping[str, Any]:
    """What `caesura stats` knows of this session, without its day."""
    from caesura.server.records import stats

    found = stats.read(stats.file()) if stats.file().exists() else {}
    return {language: msgspec.to_builtins(counts) for day in found.values() for language, counts in day.items()}


def play(session: Session) -> list[Event]:
    """The events of today, on a clock of their own. Only in a process whose time is that of CLOCKS."""
    clock = Clock()
    CLOCKS[:] = [clock]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve() / "project"
            for kind in ("STATE", "CONFIG", "DATA"):
                os.environ[f"XDG_{kind}_HOME"] = str(folder.parent / kind)
            for path, text in session.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, newline="")
            asyncio.set_event_loop(clock)
            return clock.run_until_complete(Play(session, folder).run())
    finally:
        clock.close()


# Comparing


def labelled(events: Iterable[Event]) -> Iterator[tuple[str, Any]]:
    """What the server says, each with a name that is the same in every run."""
    counts, asked = Counter[str](), dict[Any, str]()
    for event in events:
        [(kind, said)] = ((kind, said) for kind, said in event.items() if kind != "at")
        if kind == "in":
            asked |= {one["id"]: one["method"] for one in said if "id" in one and "method" in one}
        elif kind == "left":
            yield f"job {said} is left", {}
        elif kind == "stats":
            yield "the counts of `caesura stats`", said
        elif kind == "out" and "method" not in said:
            yield f"the answer to {asked.get(said['id'])} {said['id']}", said
        else:
            name = "job" if kind == "job" else said["method"]
            if name == "$/progress":
                name += f" of {said['params']['token']}"
            counts[name] += 1
            yield f"{name}, number {counts[name]}", said


def differences(recorded: list[Event], played: list[Event]) -> list[str]:
    """In words, the first first."""
    known, found = dict(labelled(recorded)), dict(labelled(played))
    told = []
    for label in dict.fromkeys([*known, *found]):
        before, now = (json.dumps(one.get(label), indent=1, ensure_ascii=False) for one in (known, found))
        if label not in found:
            told.append(f"missing: {label}\n{before}")
        elif label not in known:
            told.append(f"new: {label}\n{now}")
        elif before != now:
            lines = difflib.unified_diff(before.split("\n"), now.split("\n"), "recorded", "today", lineterm="")
            told.append(f"different: {label}\n" + "\n".join(lines))
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.processes.sessions")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    time.monotonic = time.perf_counter = lambda: CLOCKS[0].now  # before the server is imported
    wrong = 0
    for path in [FOLDER / f"{name}.jsonl.gz" for name in options.names] or sorted(FOLDER.glob("*.jsonl.gz")):
        session = read(path)
        played = play(session)
        told = differences(session.events, played)
        wrong += len(told)
        if told:
            print(f"{path.name}, {session.editor}: {len(told)} of {len(dict(labelled(played)))} answers differ")
            print("\n\n".join(told[:MOST_TOLD]))
        if options.write:
            write(path, Session(session.editor, session.files, played))
    return 0 if options.write else min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
