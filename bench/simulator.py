"""Somebody types, in emulated editors: what Neovim and VS Code show of the real `caesura lsp`, and what it costs.

    python bench/simulator.py [--folder FOLDER] [--stretches N] [--speed WPM] [--set NAME=VALUE]... [--model NAME|PATH]
                              [--json] [--out FILE]

Each stretch of typing_stretches/ is replayed on the real clock by the editor it was made for. `--set` sends a setting
as initializationOptions, for ablations.
"""

import argparse
import asyncio
import contextlib
import difflib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree_sitter
from emulators import EDITORS, SUPERSEDED, Asked, Draw, Editor, Message
from latency import CAESURA, conditions, own_engine, save, spread, table
from typist import NOTICE_S, SHORTEST, STRETCHES, Gain, Stretch, Typist, stretches

from caesura import model_store
from caesura.client.backend import FinishedJob
from caesura.client.shared import Engine
from caesura.server.languages import grammar, language
from caesura.server.records import trace

HERE = Path(__file__).resolve().parent
LSP = [*CAESURA, "lsp"]

AT_ONCE_MS = 10.0  # an answer that came from what was there already
LOOK_S = 0.5  # between opening a file and the first key
LAST_ANSWER_S = 12.0  # how long a request may be on its way when the typing is over
ENGINE_S = 300.0

Report = dict[str, Any]


# The server


class Server:
    """A server process on stdio; `answer` of each request is called when its response arrives. Raises EOFError for
    whatever is sent to a server that has ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.log: list[str] = []  # what it wrote to stderr: warnings, of which there should be none
        self.encoding = "utf-16"
        self._process = process
        self._answers: dict[int, Callable[[Message], None]] = {}
        self._requests = 0
        self._reading = asyncio.create_task(self._read())
        self._listening = asyncio.create_task(self._listen())

    def notify(self, method: str, params: object) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: object, answer: Callable[[Message], None]) -> int:
        self._requests += 1
        self._answers[self._requests] = answer
        self._send({"id": self._requests, "method": method, "params": params})
        return self._requests

    async def ask(self, method: str, params: object) -> Any:
        """The result of a request. Raises RuntimeError for an error, EOFError where the server has ended."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.request(method, params, future.set_result)
        waited: set[asyncio.Future[Any]] = {future, self._reading}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise EOFError(f"The server has ended before it answered {method}.")
        if "error" in future.result():
            raise RuntimeError(f"{method}: {future.result()['error']}")
        return future.result()["result"]

    def _send(self, message: Message) -> None:
        assert self._process.stdin
        if self._reading.done():
            raise EOFError("The server has ended.")
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    async def _read(self) -> None:
        assert self._process.stdout
        while head := await self._process.stdout.readline():
            while (line := await self._process.stdout.readline()).strip():
                head += line
            found = re.search(rb"(?i)content-length:\s*(\d+)", head)
            assert found, "every message of the server has its length"
            message = json.loads(await self._process.stdout.readexactly(int(found[1])))
            if "method" not in message:
                self._answers.pop(message["id"])(message)
            elif "id" in message:
                items = message["params"].get("items") if message["params"] else None
                self._send({"id": message["id"], "result": [None] * len(items) if items else None})

    async def _listen(self) -> None:
        assert self._process.stderr
        async for line in self._process.stderr:
            self.log.append(line.decode().rstrip())
            print(self.log[-1], file=sys.stderr)


@asynccontextmanager
async def running(command: Sequence[str], kind: type[Editor], settings: Message) -> AsyncIterator[Server]:
    """A server process with what `kind` offers it; ended at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 24)
    server = Server(process)
    try:
        asked = {
            "processId": os.getpid(),
            "clientInfo": {"name": kind.name},
            "rootUri": None,
            "capabilities": {"general": {"positionEncodings": list(kind.encodings)}},
            "initializationOptions": settings,
        }
        server.encoding = (await server.ask("initialize", asked))["capabilities"]["positionEncoding"]
        server.notify("initialized", {})
        yield server
        await server.ask("shutdown", None)
        server.notify("exit", None)
        await asyncio.wait_for(process.wait(), 10)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await asyncio.wait({server._reading, server._listening}, timeout=1)


async def replay(server: Server, stretch: Stretch, pace: float) -> tuple[Editor, Gain]:
    """The editor, after the stretch was typed in it, and what its ghosts were worth."""
    uri = f"file:///stretches/{stretch.name}/{stretch.file}"
    editor = EDITORS[stretch.editor](server, server.encoding, uri, stretch.language, stretch.start)
    await asyncio.sleep(LOOK_S * pace)
    typist = Typist(editor, stretch, pace)
    await typist.type()
    limit = editor.now + LAST_ANSWER_S
    while any(asked.outcome == "pending" for asked in editor.seen.asked) and editor.now < limit:
        await asyncio.sleep(0.01)
    editor.close()
    return editor, typist.gain


# What was seen


@dataclass
class Tally:
    """The editors of one kind, each with its stretch, and what the server's own trace says."""

    played: list[tuple[Stretch, Editor]] = field(default_factory=list)
    gains: list[Gain] = field(default_factory=list)
    jobs: list[FinishedJob] = field(default_factory=list)
    requests: list[trace.RequestRecord] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def add(self, past: trace.Past) -> None:
        self.jobs += past.jobs
        self.requests += past.requests

    def report(self) -> Report:
        asked = [one for _, editor in self.played for one in editor.seen.asked]
        drawn = [draw for _, editor in self.played for draw in editor.seen.drawn]
        answered = [one for one in asked if one.outcome in ("items", "empty")]
        with_text = [one for one in answered if one.outcome == "items"]
        worth = self._worth(sum(draw.added for draw in drawn))
        late = [(draw.at - draw.key_at) * 1000 for draw in drawn if draw.new and draw.key_at is not None]
        return {
            **worth,
            "stretches": len(self.played),
            "ms": {
                "key to ghost": spread(late),
                "request to answer": spread([one.ms for one in answered]),
                "request to ghost": spread([one.ms for one in with_text]),
            },
            "gain": gain(self.gains),
            "counts": self._counts(asked, drawn),
            "share": {
                "answers within 10 ms": _part(sum(one.ms <= AT_ONCE_MS for one in answered), len(answered)),
                "ghosts within 10 ms": _part(sum(one.ms <= AT_ONCE_MS for one in with_text), len(with_text)),
                **worth["share"],
            },
            "answers": dict(sorted(Counter(f"answer: {one.answer}" for one in self.requests).items())),
        }

    def _counts(self, asked: Sequence[Asked], drawn: Sequence[Draw]) -> Report:
        errors = [one.code in SUPERSEDED for one in asked if one.outcome == "error"]
        kept_stale = sum(editor.seen.kept_stale for _, editor in self.played)
        return {
            "keys typed": sum(editor.seen.keys for _, editor in self.played),
            "requests": len(asked),
            **{name: sum(one.outcome == kind for one in asked) for kind, name in OUTCOMES.items()},
            "ghosts": sum(draw.new for draw in drawn),
            "ghosts that add a syntax error": sum(self._breaks()),
            "stale shows": sum(draw.stale for draw in drawn) + kept_stale,
            "superseded errors": errors.count(True),
            "other errors": errors.count(False),
            "warnings in the server's log": sum(line.startswith("caesura: ") for line in self.log),
            "other texts at the end": sum(editor.text != stretch.end for stretch, editor in self.played),
        }

    def _breaks(self) -> Iterator[bool]:
        """For each new ghost, whether the text has more errors with it than without it."""
        for stretch, editor in self.played:
            for draw in editor.seen.drawn:
                if draw.new:
                    yield errors(draw.after, stretch.language) > errors(draw.before, stretch.language)

    def _worth(self, shown: int) -> Report:
        """What came of it, in characters, and what the engine did for that. Nobody else uses this engine, so a job's
        time is from sending it to its end."""
        keys, accepted = (sum(getattr(e.seen, name) for _, e in self.played) for name in ("keys", "accepted"))
        kept = sum(sum(editor.marks) for _, editor in self.played)
        used = {one.job for one in self.requests if one.shown}
        idle = [job for job in self.jobs if job.job not in used]
        forwards = sum(job.steps for job in self.jobs)
        total_ms, idle_ms = (sum(job.ms.get("total", 0.0) for job in jobs) for jobs in (self.jobs, idle))
        return {
            "characters": {"shown": shown, "accepted": accepted, "kept": kept},
            "engine": {
                "jobs": len(self.jobs),
                "jobs of which nothing was shown": len(idle),
                "speculative jobs": sum(job.priority == "speculative" for job in self.jobs),
                "forwards": forwards,
                "engine time, s": round(total_ms / 1000, 1),
            },
            "share": {
                "kept of shown characters": _part(kept, shown),
                "engine time for nothing shown": _part(idle_ms, total_ms),
            },
            "per": {
                "accepted characters a key": _part(accepted, keys),
                "forwards an accepted character": _part(forwards, accepted),
                "jobs a key": _part(len(self.jobs), keys),
            },
        }


def gain(gains: Sequence[Gain]) -> Report:
    """What ghosts were worth, in keys; of the ghosts that were there when a key was due, how many, how long, how good.
    A hundred keys are those that the text takes without any ghost."""
    looks = [look for one in gains for look in one.looks.values()]
    pressed, spared = (sum(getattr(one, name) for one in gains) for name in ("keys", "spared"))
    return {
        "keys of the text": pressed + spared,
        "keys saved of a hundred": _percent(sum(one.saved for one in gains), pressed + spared),
        "keys spared of a hundred": _percent(spared, pressed + spared),
        "tabs": sum(one.tabs for one in gains),
        "ghosts at a key": len(looks),
        "wrong ghosts that were read": sum(look.read and not look.right for look in looks),
        "keys with a ghost, %": _percent(sum(one.with_ghost for one in gains), pressed),
        "right ghosts, %": _percent(sum(look.right for look in looks), len(looks)),
        "ghosts of several lines, %": _percent(sum("\n" in look.text.strip() for look in looks), len(looks)),
        "median length": statistics.median(len(look.text) for look in looks) if looks else None,
    }


def errors(text: str, name: str) -> int:
    """ERROR and MISSING nodes of a whole parse."""
    known = grammar(language(name))
    assert known, f"there is a grammar for {name}"
    nodes, found = [tree_sitter.Parser(known).parse(text.encode()).root_node], 0
    while nodes:
        node = nodes.pop()
        found += node.is_error or node.is_missing
        nodes += node.children if node.has_error else []
    return found


OUTCOMES = {
    "items": "answers with text",
    "empty": "empty answers",
    "null": "null",
    "cancelled": "cancelled",
    "pending": "no answer",
}


def _part(part: float, of: float) -> float | None:
    return round(part / of, 3) if of else None


def _percent(part: float, of: float) -> float | None:
    return round(100 * part / of, 1) if of else None


# The run


async def play(chosen: Sequence[Stretch], settings: Message, speed: float | None) -> dict[str, Tally]:
    """Replay stretch after stretch, each editor with a server of its own, all with one engine."""
    tallies, began = {EDITORS[stretch.editor].name: Tally() for stretch in chosen}, time.time()
    async with contextlib.AsyncExitStack() as stack:
        servers = {
            kind.name: await stack.enter_async_context(running(LSP, kind, settings))
            for kind in EDITORS.values()
            if kind.name in tallies
        }
        for number, stretch in enumerate(chosen):
            print(f"\r{number + 1} of {len(chosen)}: {stretch.name} ", end="", file=sys.stderr, flush=True)
            name, pace = EDITORS[stretch.editor].name, stretch.wpm / speed if speed else 1.0
            editor, gained = await replay(servers[name], stretch, pace)
            if editor.text != stretch.end:
                meant, got = (text.splitlines(keepends=True) for text in (stretch.end, editor.text))
                print("\n" + "".join(difflib.unified_diff(meant, got, "meant", "got", n=1)), file=sys.stderr)
            tallies[name].played.append((stretch, editor))
            tallies[name].gains.append(gained)
            tallies[name].log = servers[name].log
        print(file=sys.stderr)
    for past in trace.read(trace.file()):
        if past.at >= began and past.session.client in tallies:
            tallies[past.session.client].add(past)
    return tallies


@contextlib.contextmanager
def own_records() -> Iterator[None]:
    """Folders of our own for what the server writes down, so that the user's own records stay as they are."""
    names = ("XDG_STATE_HOME", "XDG_DATA_HOME")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="caesura-records-") as folder:
        os.environ.update(dict.fromkeys(names, folder))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


async def warm_up(model: str) -> None:
    """An engine with its model loaded, as it is after the first minute of a day."""
    engine = Engine(client="simulator", model=model)
    await engine.start()
    await engine.ready(ENGINE_S)
    await engine.close()


def measure(chosen: Sequence[Stretch], model: str, settings: Message, speed: float | None) -> Report:
    with own_records(), own_engine():
        report: Report = {"bench": "typing", **conditions(model), "settings": settings, "speed_wpm": speed}
        report |= {"notice_ms": NOTICE_S * 1000, "least": SHORTEST, "began": time.time()}
        asyncio.run(warm_up(model))
        tallies = asyncio.run(play(chosen, {"model": model_store.resolve(model), **settings}, speed))
    report["minutes"] = round((time.time() - report.pop("began")) / 60, 1)
    report["editors"] = {name: tally.report() for name, tally in tallies.items()}
    return report


def picture(report: Report) -> str:
    """The report as a person reads it: a column an editor."""
    editors: dict[str, Report] = report["editors"]
    first = next(iter(editors.values()))
    rows: list[list[object]] = []
    for name in first["ms"]:
        for rank, label in (("n", "n"), ("p50", "p50 ms"), ("p95", "p95 ms")):
            rows.append([f"{name}, {label}", *(editor["ms"][name][rank] for editor in editors.values())])
    for group in ("gain", "counts", "answers", "share", "characters", "engine", "per"):
        for name in dict.fromkeys(name for editor in editors.values() for name in editor[group]):
            values = [editor[group].get(name, 0) for editor in editors.values()]
            if group == "share":
                rows.append([f"{name}, %", *(None if value is None else round(100 * value, 1) for value in values)])
            else:
                rows.append([name, *(f"{value:.2f}" if isinstance(value, float) else value for value in values)])
    about = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    settings = json.dumps(report["settings"]) if report["settings"] else "default settings"
    return f"{about}, {settings}, {report['minutes']} min\n\n" + table(("", *editors), rows)


def setting(argument: str) -> tuple[str, Any]:
    """NAME=VALUE; a value that is no JSON is a word."""
    name, equals, value = argument.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description="Typing in emulated editors, with the real server and engine.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--folder", type=Path, default=STRETCHES, help="of stretches; default: %(default)s")
    parser.add_argument("--stretches", type=int, metavar="N", help="only the first N")
    parser.add_argument("--speed", type=float, metavar="WPM", help="type them all at this speed, not at their own")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="a setting")
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "typing.json")
    options = parser.parse_args()
    report = measure(stretches(options.folder)[: options.stretches], options.model, dict(options.set), options.speed)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
