"""Damaged and hostile input: 60 seconds of coverage-guided framing and JSON, a million frames of the wire, twenty
thousand of them to an engine that works for somebody else, ten thousand files of models.

    python bench/fuzz.py [--seconds 60] [--frames 1000000] [--sent 20000] [--files 10000] [--seed 0]
                         [--out bench/results/fuzz.json]

Each part runs in a process of its own. An escape is an exception that is none of ours, a process that died, was stuck
for a minute or grew by more than its bound; its numbers are in the results and make it again
(tests/support/processes/mutants.py). The first part needs atheris, which is no dependency: pip install atheris.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import io
import json
import logging
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from latency import HERE, Report, conditions, save, table

sys.path.append(str(HERE.parent))

STUCK_S = 60  # a single input may not take longer
MEMORY = 8 << 30  # bytes of addresses of a process; torch alone maps most of it
SAMPLED = 100  # frames from one look at the memory to the next
MANY = 20  # escapes that are listed
AGES = 500  # inputs that a server hears before another takes its place: it takes as long to make as thirty of them
GUIDES = ("lsp.framing", "lsp.transport", "lsp.protocol", "text.document")
# MiB that a process may grow by, some twice what it does: libFuzzer keeps what it has found; frames leave nothing
# behind, 20 are 20 bytes for each of a million; a model's files are mapped, torch has its pools, and the tokenizers
# library keeps 0.12 MiB of each tokenizer that was used, of which a worker has one and this part a thousand.
BOUNDS = {"framing": 128, "frames": 20, "sent": 20, "files": 600}
PARTS = tuple(BOUNDS)

HELLO = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"processId":null,"rootUri":null,"capabilities":{}}}'
OPEN = (
    b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":'
    b'{"uri":"file:///a.py","languageId":"python","version":0,"text":"x = "}}}'
)
CHANGE = (
    b'{"jsonrpc":"2.0","method":"textDocument/didChange","params":{"textDocument":{"uri":"file:///a.py","version":1},'
    b'"contentChanges":[{"range":{"start":{"line":0,"character":4},"end":{"line":0,"character":4}},"text":"1"}]}}'
)
COMPLETE = (
    b'{"jsonrpc":"2.0","id":2,"method":"textDocument/inlineCompletion","params":{"textDocument":{"uri":"file:///a.py"},'
    b'"position":{"line":0,"character":4},"context":{"triggerKind":2}}}'
)
CANCEL = b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":2}}'
SHUTDOWN = b'{"jsonrpc":"2.0","id":3,"method":"shutdown","params":null}'
SPOKEN = ((b"null",), (HELLO,), (HELLO, OPEN, CHANGE, COMPLETE, CANCEL), (HELLO, SHUTDOWN))  # what it starts from


def guarded(options: argparse.Namespace, attempt: Callable[[int], str]) -> Report:
    """`attempt` for every number. The state says which one it is, should the process die of it."""
    found, escapes, first, grown = Counter[str](), list[str](), _mib(), 0.0
    faulthandler.register(signal.SIGALRM, chain=True)  # where it was stuck goes to stderr, then the process ends
    for number in range(options.start, options.files):
        options.state.write_text(json.dumps({"number": number, "found": found, "escapes": escapes}))
        signal.alarm(STUCK_S)
        try:
            found[attempt(number)] += 1
        except BaseException as error:  # PanicException, of tokenizers, is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            escapes.append(f"{number}: {type(error).__name__} {str(error)[:120]} ({place.name}:{place.lineno})")
        grown = max(grown, _mib() - first)
    signal.alarm(0)
    return {"found": found, "escapes": escapes, "grown_mib": round(grown, 1)}


def _mib() -> float:
    """Resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


# The parts


def frames(count: int, seed: int) -> Report:
    """Every message of the wire, its bytes and its fields changed, to both decoders. In one process: a state for each
    frame would take longer than the frame."""
    import msgspec

    from caesura import wire
    from tests.shared.test_wire import ALL
    from tests.support.processes.mutants import Frames

    made = Frames(ALL)
    chance, found, escapes, first, grown = random.Random(seed), Counter[str](), list[str](), _mib(), 0.0
    for number in range(count):
        frame, read = made.mutant(chance), False
        for decode in (wire.decode_client, wire.decode_engine, wire.decode_head, wire.job_of):
            try:
                read |= decode(frame) is not None
            except msgspec.DecodeError:
                pass
            except BaseException as error:
                escapes.append(f"{number}: {type(error).__name__} {frame[:80].hex()}")
        found["read" if read else "refused"] += 1
        if not number % SAMPLED:
            grown = max(grown, _mib() - first)
    return {"found": found, "escapes": escapes, "grown_mib": round(grown, 1)}


def sent(count: int, seed: int) -> Report:
    """The same to a real supervisor and worker, over their socket."""
    from kills import own_folder

    from tests.support.processes.strangers import visit

    with own_folder():
        seen = asyncio.run(visit(count, seed))
    found = {"dropped": seen.dropped, "others": count - seen.dropped}
    return {
        **{"found": found, "escapes": seen.wrong, "grown_mib": seen.grown_mib},
        **{"served": seen.served, "slowest_ms": seen.slowest_ms},
    }


def files(options: argparse.Namespace) -> Report:
    import torch

    from tests.support.processes.mutants import Folders

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="caesura-") as where:
        folders = Folders(Path(where))
        return guarded(options, lambda number: folders.mutant(options.seed + number))


def framing(seconds: int, seed: int) -> None:
    """What an editor writes, as bytes: through the framer into the protocol and our handlers. Coverage of those guides
    it; libFuzzer ends the process and says how it was."""
    import atheris

    with atheris.instrument_imports(include=[f"caesura.server.{name}" for name in GUIDES]):
        from caesura.server.app import App
        from caesura.server.lsp import transport
        from caesura.server.lsp.framing import Framer, MessageTooLarge
    from pygls.io_ import StdoutWriter

    hooks = transport.converter()
    transport.converter = lambda: hooks  # with all that it has learnt, which takes as long as a thousand inputs
    from tests.support.processes.lsp_server import FakeEngine

    logging.disable(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    app, age = App(lambda options, client, remote: FakeEngine()), 0  # type: ignore[arg-type, return-value]

    async def hear(data: bytes) -> None:
        framer = Framer()
        app.server.protocol.set_writer(StdoutWriter(io.BytesIO()))
        with contextlib.suppress(MessageTooLarge):
            for part in (data[: len(data) // 2], data[len(data) // 2 :]):
                for body in framer.feed(part):
                    app.server.protocol.receive(body)
                    await asyncio.sleep(0)

    def once(data: bytes) -> None:
        nonlocal app, age
        age += 1
        app.server.protocol._shutdown = False  # or all that comes next would be refused
        if age > AGES:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            app, age = App(lambda options, client, remote: FakeEngine()), 0  # type: ignore[arg-type, return-value]
        loop.run_until_complete(hear(data))

    with tempfile.TemporaryDirectory(prefix="caesura-") as corpus:
        for number, bodies in enumerate(SPOKEN):
            frames = (b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)
            Path(corpus, str(number)).write_bytes(b"".join(frames))
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=4096", "-timeout=20", corpus],
            once,
        )
        atheris.Fuzz()


# The processes


def apart(part: str, options: argparse.Namespace) -> Report:
    """A part in processes of its own: another goes on behind the input that one died of."""
    began, found, escapes, grown, start = time.monotonic(), Counter[str](), list[str](), 0.0, 0
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        state = Path(folder, "state")
        while True:
            command = [sys.executable, __file__, "--part", part, "--start", str(start), "--state", str(state)]
            for name in ("seconds", "frames", "sent", "files", "seed"):
                command += [f"--{name}", str(getattr(options, name))]
            ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
            if ran.returncode == 0:
                last = json.loads(ran.stdout)
                found, escapes = found + Counter(last["found"]), escapes + last["escapes"]
                grown = max(grown, last["grown_mib"])
                break
            if not state.exists():
                escapes.append(f"the process ended with {ran.returncode}")
                break
            last = json.loads(state.read_text())
            state.unlink()
            found, escapes = found + Counter(last["found"]), escapes + last["escapes"]
            escapes.append(f"{last['number']}: the process ended with {ran.returncode}")
            start = last["number"] + 1
    escapes += excess(part, grown)
    return {
        **{"part": part, "inputs": sum(found.values()) + len(escapes), "seconds": round(time.monotonic() - began, 1)},
        **{"grown_mib": grown, "bound_mib": BOUNDS[part], "found": found},
        **{name: last[name] for name in ("served", "slowest_ms") if name in last},
        **{"escaped": len(escapes), "escapes": escapes[:MANY]},
    }


def excess(part: str, grown: float | None) -> list[str]:
    """What a part that has grown by so many MiB did wrong."""
    if grown is None or grown <= BOUNDS[part]:
        return []
    return [f"it grew by {grown} MiB, of which {BOUNDS[part]} are allowed"]


def guided(options: argparse.Namespace) -> Report:
    """The part that libFuzzer runs, from what it says at its end."""
    command = [sys.executable, __file__, "--part", "framing", "--seconds", str(options.seconds)]
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        ran = subprocess.run(
            [*command, "--seed", str(options.seed)], cwd=folder, stderr=subprocess.PIPE, text=True, check=False
        )
        crashers = [path.read_bytes().hex() for path in Path(folder).iterdir()]
    runs = re.findall(r"Done (\d+) runs", ran.stderr)
    memory = [int(mib) for mib in re.findall(r"rss: (\d+)Mb", ran.stderr)]
    grown = memory[-1] - memory[0] if memory else None
    escapes = (crashers or ([] if runs else [ran.stderr[-400:]])) + excess("framing", grown)
    return {
        **{"part": "framing", "inputs": int(runs[-1]) if runs else None, "seconds": options.seconds},
        **{"grown_mib": grown, "bound_mib": BOUNDS["framing"], "found": {}},
        **{"escaped": len(escapes), "escapes": escapes[:MANY]},
    }


def picture(report: Report) -> str:
    head = ["", "inputs", "seconds", "MiB more", "escaped"]
    return table(head, [[p["part"], p["inputs"], p["seconds"], p["grown_mib"], p["escaped"]] for p in report["parts"]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--sent", type=int, default=20_000, help="frames to an engine that works")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "fuzz.json")
    parser.add_argument("--part", choices=PARTS, help="this one alone, in this process; its counts as JSON")
    parser.add_argument("--start", type=int, default=0, help="the first file of a part")
    parser.add_argument("--state", type=Path, help="where a part says what it is at")
    options = parser.parse_args()
    if options.part == "framing":
        framing(options.seconds, options.seed)
    elif options.part:
        parts = {
            "frames": lambda: frames(options.frames, options.seed),
            "sent": lambda: sent(options.sent, options.seed),
            "files": lambda: files(options),
        }
        print(json.dumps(parts[options.part]()))
    else:
        report = {"conditions": conditions("fake"), "parts": [guided(options), *(apart(p, options) for p in PARTS[1:])]}
        save(report, options.out)
        print(json.dumps(report) if options.json else picture(report))
        sys.exit(any(part["escaped"] for part in report["parts"]))


if __name__ == "__main__":
    main()
