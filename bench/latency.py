"""What a user waits for, measured from the editor's side of the pipe: keystrokes, cold starts, memory.

    python bench/latency.py [--model NAME|PATH] [--vs PEERS] [--keystrokes 60] [--seed 7] [--json]
                            [--out bench/results/latency.json]

The real `caesura lsp` over stdio, the real shared engine in a runtime folder of its own. A keystroke is a didChange;
its first text is the answer to textDocument/inlineCompletion where locked words will do (a deadline of PART_MS), its
whole fill the answer to one more request that may wait until the canvas is done. Unsure text is shown too, and nothing
runs ahead in idle time. With `--vs` llama.cpp is asked for the same lines, in turn with ours.
"""

import argparse
import ast
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from caesura import model_store
from caesura.client.shared import Engine
from caesura.engine.tokens.tokenizer import Tokenizer

from llama import CHARACTERS, THREADS, Line, Peer  # isort: skip  (next to this script)

CAESURA = [sys.executable, "-P", "-m", "caesura"]
HERE = Path(__file__).resolve().parent

FILES = ("argparse", "configparser", "csv", "shlex", "tarfile", "textwrap", "json/decoder", "http/cookies")
KEYS = 8  # of a place in a file: the first finds a cold context
THROUGH = 6  # keys typed through a proposal, per place
PART_MS = 10.0  # from then on locked words will do
WAIT_MS = 10_000.0  # the server's longest deadline
SHOWN_MS = 250.0  # the server's own deadline on a CPU
ANSWER_S = 60.0
START_S = 300.0
STARTS = 10  # of the language server
ENGINE_STARTS = 3
SETTLE_S = 0.3  # between opening a file and typing in it
REST_S = 1.0  # that the cursor rests in every second place before the first key, told as VS Code's extension does

Report = dict[str, Any]


# Conditions, shared with quality.py


@contextlib.contextmanager
def own_engine() -> Iterator[None]:
    """A runtime folder of our own, so that the engine is of this checkout and nobody else uses it; ended at the end."""
    before = os.environ.get("CAESURA_RUNTIME")
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        os.environ["CAESURA_RUNTIME"] = folder
        try:
            yield
        finally:
            stop_engine()
            os.environ.pop("CAESURA_RUNTIME")
            if before is not None:
                os.environ["CAESURA_RUNTIME"] = before


def stop_engine() -> None:
    subprocess.run([*CAESURA, "stop"], stdout=subprocess.DEVNULL, check=False)


def conditions(model: str) -> Report:
    """What a number needs next to it. `load` is the machine's, just before the measurement. A model without a manifest
    has none here: its identity is a path, which does not belong in results."""
    model, found, manifest = model_store.resolve(model), [], None
    with contextlib.suppress(model_store.NoModel):  # some measure no model
        place = model_store.locate(model)
        found = [file.name for file in model_store.files(place)]
        manifest = model_store.identity(model)[:12] if (place / model_store.MANIFEST).is_file() else None
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "model": {
            "name": Path(model).name,
            "manifest": manifest,
            "files": found,
        },
    }


def commit() -> str:
    """The commit that is checked out, with a plus when the files differ from it."""

    def git(*arguments: str) -> str:
        answer = subprocess.run(["git", "-C", str(HERE), *arguments], capture_output=True, text=True, check=False)
        return answer.stdout.strip()

    changed = git("status", "--porcelain", "--", ":/", ":(top,exclude)bench/results")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


def machine() -> str:
    cpu, memory = platform.processor() or platform.machine(), 0.0
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu = found[1] if found else cpu
    with contextlib.suppress(ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {cpu}, {memory:.0f} GiB, {platform.system()}"


def spread(values: Sequence[float]) -> Report:
    """n, p50 and p95 (the nearest rank), rounded to what the clock is worth."""
    if not values:
        return {"n": 0, "p50": None, "p95": None}
    ordered = sorted(values)
    rank = -(-95 * len(ordered) // 100) - 1
    return {"n": len(ordered), "p50": round(statistics.median(ordered), 2), "p95": round(ordered[rank], 2)}


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns for people: the first to the left, the rest to the right; nothing where a cell is None."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return str(value)


def save(report: Report, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


# The editor


class Editor:
    """The least an editor does: one `caesura lsp` process, one open document, one request at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([*CAESURA, "lsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout.fileno()
        self._arrived = b""
        self._requests = self._version = self._documents = 0
        self._uri = ""
        self.said: list[str] = []

    def __enter__(self) -> "Editor":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.ask("shutdown", None)
            self.tell("exit", None)
            self._process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def initialize(self, root: Path | None = None, **options: object) -> None:
        asked = {
            **{"processId": os.getpid(), "rootUri": root.as_uri() if root else None},
            **{"capabilities": {}, "initializationOptions": options},
        }
        self.ask("initialize", asked)

    def deadline(self, milliseconds: float) -> None:
        """How long the server may wait with its answers from now on."""
        self.tell("workspace/didChangeConfiguration", {"settings": {"caesura": {"deadlineMs": milliseconds}}})

    def open(self, text: str, file: Path | None = None, language: str = "python") -> None:
        """Open a text, as that of a file where it has one."""
        self._documents, self._version = self._documents + 1, 0
        self._uri = file.as_uri() if file else f"file:///bench/{self._documents}.py"
        document = {"uri": self._uri, "languageId": language, "version": 0, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})

    def close(self) -> None:
        self.tell("textDocument/didClose", {"textDocument": {"uri": self._uri}})

    def type(self, line: int, column: int, text: str, end: int | None = None) -> None:
        """Put a text there, in the place of what the line has up to `end`."""
        self._version += 1
        start, stop = ({"line": line, "character": at} for at in (column, column if end is None else end))
        change = {"range": {"start": start, "end": stop}, "text": text}
        document = {"uri": self._uri, "version": self._version}
        self.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})

    def rest(self, line: int, column: int) -> None:
        where = {"line": line, "character": column}
        self.tell("caesura/cursor", {"textDocument": {"uri": self._uri}, "position": where})

    def complete(self, line: int, column: int, *, invoked: bool = False) -> str:
        """The text of the first item, empty where nothing is proposed. `invoked`: a person asks for it."""
        where = {"textDocument": {"uri": self._uri}, "position": {"line": line, "character": column}}
        answer = self.ask("textDocument/inlineCompletion", {**where, "context": {"triggerKind": 1 if invoked else 2}})
        return answer["items"][0]["insertText"] if answer and answer["items"] else ""

    def ask(self, method: str, params: object) -> Any:
        """The result of a request. Raises RuntimeError for an error, a dead server and one that does not answer."""
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        deadline = time.monotonic() + ANSWER_S
        while True:
            message = self._message(deadline)
            if message.get("id") == self._requests and "method" not in message:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if message.get("method") == "window/logMessage":
                self.said.append(message["params"]["message"])

    def tell(self, method: str, params: object) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: Report) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def _message(self, deadline: float) -> Report:
        while (end := self._arrived.find(b"\r\n\r\n") + 4) < 4:
            self._receive(deadline)
        found = re.search(rb"Content-Length: (\d+)", self._arrived[:end])
        assert found, "every message of the server has its length"
        size = end + int(found[1])
        while len(self._arrived) < size:
            self._receive(deadline)
        body, self._arrived = self._arrived[end:size], self._arrived[size:]
        message: Report = json.loads(body)
        return message

    def _receive(self, deadline: float) -> None:
        if not select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise RuntimeError(f"caesura lsp did not answer in {ANSWER_S:g} s")
        arrived = os.read(self._stdout, 1 << 16)
        if not arrived:
            raise RuntimeError("caesura lsp has ended")
        self._arrived += arrived


# Typing


@dataclass(frozen=True)
class Place:
    """A line of a file, cut at `column`: `keys` is what its author wrote from there."""

    name: str
    text: str
    line: int
    column: int
    keys: str

    @property
    def before(self) -> str:
        lines = self.text.split("\n")
        return "\n".join([*lines[: self.line], lines[self.line][: self.column]])


class Pair(NamedTuple):
    """A whole line of ours and the peer's behind the same text; `tokens` are those of our text in our vocabulary."""

    warm: bool
    text: str
    tokens: int
    ms: float
    peer: Line


@dataclass
class Typing:
    """Milliseconds from the didChange. `cold`: the first key of a place, and the same where the cursor has rested
    before; `nothing`: keys without text."""

    first_rested: list[float] = field(default_factory=list)
    first_cold: list[float] = field(default_factory=list)
    first_warm: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    typed: int = 0
    foreseen: int = 0  # keys of the file's author that the proposal on the screen began with
    rested: int = 0  # first keys after a rest, which are in no share
    nothing: int = 0
    lost: int = 0  # typed through a proposal and got another answer than the rest of it
    pairs: list[Pair] = field(default_factory=list)

    @property
    def first(self) -> list[float]:
        return self.first_cold + self.first_warm

    @property
    def enough(self) -> int:
        return min(len(self.first_warm), len(self.hits))


def places(seed: int) -> list[Place]:
    """Simple statements of one line in files of the standard library, by turns, in an order that `seed` decides."""
    draw = random.Random(seed)
    library = Path(ast.__file__).parent
    turns = [_places(f"{name}.py", (library / f"{name}.py").read_text("utf-8"), draw) for name in FILES]
    return [place for turn in zip(*turns, strict=False) for place in turn]


def _places(name: str, source: str, draw: random.Random) -> list[Place]:
    simple = (ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Expr)
    found, lines = [], source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, simple) or node.lineno != node.end_lineno or not isinstance(node.end_col_offset, int):
            continue
        line = lines[node.lineno - 1]
        if not line.isascii() or line.strip() != line[node.col_offset : node.end_col_offset]:
            continue
        if node.end_col_offset - node.col_offset < KEYS + 6:
            continue
        column = draw.randint(node.col_offset, node.end_col_offset - KEYS)
        text = "\n".join([*lines[: node.lineno - 1], line[:column], *lines[node.lineno :]])
        found.append(Place(name, text, node.lineno - 1, column, line[column : column + KEYS]))
    draw.shuffle(found)
    return found


def type_at(editor: Editor, place: Place, seen: Typing, beside: "Beside | None" = None, *, rest: bool) -> None:
    """Type `place.keys`, then through the last proposal, waiting for the whole fill of each key."""
    editor.open(place.text)
    time.sleep(SETTLE_S)
    if rest:
        seen.rested += 1
        editor.rest(place.line, place.column)
        time.sleep(REST_S)
        if beside:
            beside.read(place)
    column, shown = place.column, ""
    first = seen.first_rested if rest else seen.first_cold
    for number, key in enumerate(place.keys):
        seen.typed += 1
        column += 1
        if shown[:1] == key and len(shown) > 1:
            seen.foreseen += 1
            shown = _through(editor, place.line, column, shown, seen)
        else:
            shown, ms = _key(editor, place.line, column, key, seen, seen.first_warm if number else first)
            if beside:
                seen.pairs += beside.key(place, column, shown, ms, warm=rest or number > 0)
    for _ in range(THROUGH):
        if len(shown) < 2 or not shown.isascii() or "\n" in shown:
            break
        column += 1
        shown = _through(editor, place.line, column, shown, seen)
    editor.close()


class Beside:
    """A peer that is asked for the lines of a place when ours are there, the text before it cut where it was."""

    def __init__(self, peer: Peer, tokenizer: Tokenizer) -> None:
        self.peer, self._tokenizer = peer, tokenizer

    def __repr__(self) -> str:
        return f"<Beside {self.peer}>"

    def read(self, place: Place) -> None:
        """The context before the first key, as our engine reads it while the cursor rests."""
        self.peer.fill(place.before[-CHARACTERS:], 1, warm=False)

    def key(self, place: Place, column: int, text: str, ms: float | None, *, warm: bool) -> list[Pair]:
        """The pair, where ours is a whole line; asked in any case, so that the next key finds its context read."""
        before = place.before[-CHARACTERS:] + place.keys[: column - place.column]
        tokens = len(self._tokenizer.encode(text))
        line = self.peer.fill(before, max(1, tokens), warm=warm)
        return [] if ms is None else [Pair(warm, text, tokens, ms, line)]


def _key(
    editor: Editor, line: int, column: int, key: str, seen: Typing, first: list[float]
) -> tuple[str, float | None]:
    """A key that nothing foresaw; the whole proposal for what follows it, and after how long. `first` takes the time to
    the first text."""
    began = time.perf_counter()
    editor.type(line, column - 1, key)
    text = editor.complete(line, column)
    if text:
        first.append(_since(began))
    editor.deadline(WAIT_MS)
    whole = editor.complete(line, column)
    ms = _since(began) if whole and text else None
    if ms is not None:
        seen.whole.append(ms)
    elif not whole:
        seen.nothing += 1
    editor.deadline(PART_MS)
    return whole, ms


def _through(editor: Editor, line: int, column: int, shown: str, seen: Typing) -> str:
    """The first character of the proposal, typed; what is proposed then."""
    began = time.perf_counter()
    editor.type(line, column - 1, shown[0])
    rest = editor.complete(line, column)
    if rest == shown[1:]:
        seen.hits.append(_since(began))
    else:
        seen.lost += 1
    return rest


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


# What is measured


def server_starts(times: int) -> list[float]:
    """From starting the process to its answer to `initialize`."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        with Editor() as editor:
            editor.initialize()
            spent.append(_since(began))
    return spent


def engine_starts(model: str, times: int) -> list[float]:
    """From the first look for an engine to a loaded model; the last one is left running."""

    async def start() -> float:
        engine = Engine(client="bench", model=model)
        began = time.perf_counter()
        await engine.start()
        try:
            await engine.ready(START_S)
            return _since(began)
        finally:
            await engine.close()

    spent = []
    for number in range(times):
        if number:
            stop_engine()
        spent.append(asyncio.run(start()))
    return spent


def typing(model: str, keystrokes: int, seed: int, beside: Beside | None) -> tuple[Typing, Report]:
    """At least `keystrokes` answers computed in a warm context and as many typed through; then each process's MiB."""
    seen, rest = Typing(), iter(places(seed))
    with Editor() as editor:
        # Eager: the other modes hold back for a while after suggestions that stood there unread, as all here do.
        settings = {"mode": "eager", "minConfidence": 0, "speculate": False, "stats": False}
        editor.initialize(model=model_store.resolve(model), deadlineMs=PART_MS, **settings)
        editor.tell("initialized", {})
        type_at(editor, next(rest), Typing(), beside, rest=False)  # grammars and buffers that are made once
        for number, place in enumerate(rest):
            if seen.enough >= keystrokes:
                break
            type_at(editor, place, seen, beside, rest=bool(number % 2))
            print(f"\r{place.name}: {seen.enough} of {keystrokes} ", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        for sentence in editor.said:
            print(f"caesura lsp: {sentence}", file=sys.stderr)
        return seen, memory(editor.pid)


def memory(server: int) -> Report:
    """MiB resident of the server, of the engine's supervisor and of its worker."""
    answer = subprocess.run([*CAESURA, "status", "--json"], capture_output=True, check=True)
    [engine] = json.loads(answer.stdout)["engines"]
    processes = {"lsp": server, "supervisor": engine["pid"], "worker": engine["worker_pid"]}
    return {name: resident(pid) for name, pid in processes.items() if pid}


def resident(pid: int) -> float:
    """MiB."""
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return round(int(answer.stdout) / 1024, 1)


def measure(model: str, keystrokes: int, seed: int, peers: Path | None) -> Report:
    with own_engine(), contextlib.ExitStack() as stack:
        report: Report = {"bench": "latency", **conditions(model)}
        starts = server_starts(STARTS), engine_starts(model, ENGINE_STARTS)
        beside = None
        if peers:
            beside = Beside(stack.enter_context(Peer(peers, model)), _tokenizer(model))
        seen, mib = typing(model, keystrokes, seed, beside)
    report |= {"part_ms": PART_MS, "keys": KEYS, "seed": seed, "files": list(FILES)}
    report["ms"] = {
        "key to first locked text": spread(seen.first),
        "  context warm": spread(seen.first_warm),
        "  context cold": spread(seen.first_cold),
        f"  context cold, after {REST_S:g} s of rest": spread(seen.first_rested),
        "key to whole line": spread(seen.whole),
        "typed-through hit": spread(seen.hits),
        "lsp: start to initialized": spread(starts[0]),
        "engine: start to ready": spread(starts[1]),
    }
    computed = seen.typed - seen.foreseen - seen.rested
    report["share"] = {
        "keys foreseen by the proposal before": _share(seen.foreseen, seen.typed),
        f"computed keys with text within {SHOWN_MS:g} ms": _share(sum(ms <= SHOWN_MS for ms in seen.first), computed),
        "computed keys without any proposal": _share(seen.nothing, computed),
        "typed through and lost": _share(seen.lost, seen.lost + len(seen.hits)),
    }
    report["mib"] = mib
    if beside:
        report["beside"] = {"peer": beside.peer.name, "threads": THREADS, **compared(seen.pairs)}
    return report


def _tokenizer(model: str) -> Tokenizer:
    return Tokenizer(model_store.locate(model) / "tokenizer.json")


def compared(pairs: Sequence[Pair]) -> Report:
    """Whole lines of both sides by whether the context was read before; `ratio`: the peer's time in ours."""
    report: Report = {}
    for name, warm in (("context warm", True), ("context cold", False)):
        found = [pair for pair in pairs if pair.warm == warm]
        if not found:
            continue
        ours, peer = spread([pair.ms for pair in found]), spread([pair.peer.ms for pair in found])
        wrote = {"tokens": [p.tokens for p in found], "characters": [len(p.text) for p in found]}
        theirs = {"tokens": [p.peer.tokens for p in found], "characters": [len(p.peer.text) for p in found]}
        report[name] = {
            "ms": {"ours": ours, "peer": peer},
            "ratio": {p: round(peer[p] / ours[p], 2) for p in ("p50", "p95")},
            "read": spread([pair.peer.read for pair in found]),
            "wrote": {"ours": _means(wrote), "peer": _means(theirs)},
        }
    return report


def _means(lists: Mapping[str, Sequence[int]]) -> Report:
    return {name: round(statistics.mean(values), 1) for name, values in lists.items()}


def _share(part: int, of: int) -> float | None:
    return round(part / of, 3) if of else None


def picture(report: Report) -> str:
    """The report as a person reads it."""
    rows = [(name, *(row[key] for key in ("n", "p50", "p95"))) for name, row in report["ms"].items()]
    shares = [(name, None if share is None else 100 * share) for name, share in report["share"].items()]
    parts = [
        f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}",
        table(("ms", "n", "p50", "p95"), rows),
        table(("%", ""), shares),
        table(("MiB resident", ""), list(report["mib"].items())),
    ]
    if beside := report.get("beside"):
        lines = [
            (f"{name}, {side}", *(row["ms"][side][p] for p in ("n", "p50", "p95")), *row["wrote"][side].values())
            for name, row in beside.items()
            if name.startswith("context")
            for side in ("ours", "peer")
        ]
        head = (f"ms to the whole line; peer: {beside['peer']}", "n", "p50", "p95", "tokens", "characters")
        parts.append(table(head, lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency and memory, seen from the editor.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--vs", type=Path, metavar="PEERS", help="ask llama.cpp for the same lines; see README.md")
    parser.add_argument("--keystrokes", type=int, default=60, help="of each kind, at least; default 60")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "latency.json")
    options = parser.parse_args()
    report = measure(options.model, options.keystrokes, options.seed, options.vs)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
