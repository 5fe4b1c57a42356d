"""`caesura doctor`: checks of the installation, each after those that it depends on, and a report on the last sessions
in an editor.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from importlib import metadata

import msgspec
import zmq

from caesura import model_store, paths, speeds, wire
from caesura.characters import shown
from caesura.client.backend import EngineError
from caesura.commands import CommandFailed, explain
from caesura.commands.common import ask, print_json, shared
from caesura.ipc import rendezvous
from caesura.model_store.reading import UnusableModel
from caesura.server.infill.site import probe
from caesura.server.languages import LANGUAGES, grammar
from caesura.server.records import trace

PROBE = "def area(width, height):\n    return "
PACKAGES = ("tokenizers", "numpy", "pyzmq", "msgspec", "pygls", "tree-sitter")
SUPPORTED = ((3, 11), (3, 14))
INSTALL = "Install Caesura again: run `make install` in your clone."
RESTORE = "Bring its files back: `git restore models engine/embedded` in your clone, or install the model again."
KERNELS = "PyTorch computes, several times as slowly as our C: install gcc 11 or clang, then Caesura again."
SLOW_START = "Run `caesura stop` and try again while nothing else computes."
LATE = (
    "Let an editor suggest only what is asked for: set `mode` to `manual`; `caesura settings` says how it is written."
)
ASK = "Turn inline completion on in your editor: it has to send `textDocument/inlineCompletion`."
SLOW_MS = 2000.0  # upper limit of the median time of a fill
START_S = 2.0  # upper limit of the language server's start
GIVE_UP_S = 20.0
LATE_MS = 500.0  # upper limit of the p95 of the wait for an answer in an editor
ENOUGH = 25  # least answers of a session for a p95
SESSIONS = 5  # number of sessions in the report
LARGER, TIMES = (
    "Qwen2.5-Coder-1.5B",
    4.5,
)  # duration of its pass / of a pass of `coder`; docs/models.md, "A larger base"
LINE = 11  # passes of a line that is asked for
HOW = "The section 'A larger base' of docs/models.md says how to get it. It takes 5 GB of memory while it is loaded."

HALF = "ms (half of them / 95 % took at most this)"
STAGES = {  # words for the keys of wire.Timings and trace.RequestRecord
    "total": "in all",
    "queue": "waiting",
    "prefill": "reading the text",
    "denoise": "computing",
    "first_lock": "to the first words",
    "context": "choosing the text",
    "gate": "checking",
    "wait": "in all",
}
ANSWERS: dict[str, str] = {  # words for trace.AnswerKind
    "typed_through": "typed along with",
    "warm": "begun before the editor asked",
    "cold": "begun when it asked",
    "speculated": "computed in idle time",
    "nothing": "with nothing to suggest",
    "superseded": "overtaken by a newer request",
    "cancelled": "given up by the editor",
    "off": "switched off",
}


class Check(msgspec.Struct, frozen=True):
    """The result of a check. `next` is the next step, empty if nothing is wrong. `slow` marks a time measured just now,
    which the present load may explain."""

    name: str
    ok: bool
    found: str
    next: str = ""
    slow: bool = False


def run(options: argparse.Namespace) -> None:
    busy = _busy()  # before we load the machine ourselves
    checks = [_python(), *_packages(), _zeromq(), _grammars(), _runtime(), _model(options.model)]
    checks += [asyncio.run(_server()), *asyncio.run(_engine(options, busy))]
    past, found = _past()
    checks += found
    checks = [_excused(check, busy) if busy and check.slow else check for check in checks]
    bad = [check for check in checks if not check.ok]
    if options.json:
        print_json({"ok": not bad, "checks": checks, "sessions": _sessions(past)})
    else:
        for check in checks:
            print(f"{'ok ' if check.ok else 'BAD'}  {check.name}: {shown(check.found)}")
            if check.next:
                print(f"     {shown(check.next)}")
    if bad:
        raise CommandFailed(f"{len(bad)} of {len(checks)} checks failed: {', '.join(check.name for check in bad)}.")


def _busy() -> str:
    """The reason why times measured now are not judged; empty if they are."""
    load, cores = (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0), os.cpu_count() or 1
    if load <= cores:
        return ""
    return f"slow, and not judged: the load was {load:.1f} on {cores} cores when this began"


def _excused(check: Check, why: str) -> Check:
    return msgspec.structs.replace(check, ok=True, found=f"{check.found}; {why}", next="")


def _python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()}, {platform.platform(terse=True)}"
    first, last = SUPPORTED
    ok = first <= sys.version_info[:2] <= last
    return Check("python", ok, found, "" if ok else "Use Python 3.11 to 3.14.")


def _packages() -> Iterator[Check]:
    for name in PACKAGES:
        try:
            yield Check(name, True, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, False, "not installed", INSTALL)
    try:
        yield Check("torch", True, metadata.version("torch"))
    except metadata.PackageNotFoundError:
        yield Check("torch", True, "not installed; a GPU and some models need it")


def _zeromq() -> Check:
    ok = zmq.zmq_version_info() >= (4, 3, 5)  # any peer can crash older ones
    return Check("libzmq", ok, zmq.zmq_version(), "" if ok else "Install pyzmq 27 or newer from its wheel.")


def _grammars() -> Check:
    rows = [row for row in LANGUAGES.values() if row.wheel]
    bad = []
    for row in rows:
        try:
            if grammar(row) is None:
                bad.append(row.id)
        except Exception:  # a broken wheel, or one for another ABI
            bad.append(row.id)
    found = f"{len(rows) - len(bad)} of {len(rows)} load" + (f"; not {', '.join(bad)}" if bad else "")
    return Check("grammars", not bad, found, INSTALL if bad else "")


def _runtime() -> Check:
    try:
        return Check("runtime folder", True, str(paths.runtime()))
    except (paths.UnsafeFolder, OSError) as error:
        return Check("runtime folder", False, "not usable", explain(error) or str(error))


def _model(name: str) -> Check:
    try:
        folder = model_store.locate(name)
        if folder.is_file():
            return Check("model files", True, f"{folder}, which has no checksums")
        if model_store.published(folder) and not (folder / model_store.MANIFEST).is_file():
            return Check("model files", True, f"{folder}, published without checksums")
        damaged = model_store.damaged(folder)
    except model_store.NoModel as error:
        return Check("model files", False, f"no model {name!r}", str(error))
    except UnusableModel as error:
        return Check("model files", False, "no usable manifest", str(error))
    if damaged:
        return Check("model files", False, f"damaged: {', '.join(damaged)}", RESTORE)
    return Check("model files", True, f"{folder}, sha256 as in its manifest")


async def _server() -> Check:
    """Start the language server as an editor does, and check its capabilities."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "caesura", "lsp"), stdin=pipe, stdout=pipe, stderr=nothing, cwd="/"
    )
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await _initialize(process)
    except (TimeoutError, OSError, EOFError, ValueError, LookupError):
        advice = "Run `caesura lsp < /dev/null` and read what it says."
        return Check("language server", False, "no answer to initialize", advice)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    took_s = time.monotonic() - began
    slow = took_s > START_S
    return Check("language server", not slow, f"answers after {took_s:.1f} s", SLOW_START if slow else "", slow)


async def _initialize(process: asyncio.subprocess.Process) -> None:
    """Send `initialize`. Raises LookupError if the server offers no inline completion."""
    assert process.stdin is not None
    assert process.stdout is not None
    params: dict[str, object] = {
        "processId": None,
        "rootUri": None,
        "capabilities": {"notebookDocument": {"synchronization": {}}},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    header = await process.stdout.readuntil(b"\r\n\r\n")
    size = int(header.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    capabilities = json.loads(await process.stdout.readexactly(size))["result"]["capabilities"]
    if "inlineCompletionProvider" not in capabilities:
        raise LookupError


async def _engine(options: argparse.Namespace, busy: str) -> list[Check]:
    """Start the engine if necessary, fill a gap, and report its times."""
    try:
        async with shared(options) as (engine, welcome):
            done = await ask(engine, probe(PROBE))
            status = await engine.status()
    except (EngineError, model_store.NoModel, rendezvous.NoPlace, paths.UnsafeFolder, OSError) as error:
        return [Check("engine", False, "no answer", explain(error) or str(error))]
    return [
        Check("engine", True, f"{welcome.model} on {welcome.device}, process {status.pid}"),
        _kernels(welcome.device),
        _fill(done),
        _speed(status, options.model),
        *([] if busy else _larger(options.model, done, welcome.device)),
        *_recorded(options.model, done, status),
    ]


def _kernels(device: str) -> Check:
    missing = device == "cpu:torch" and "CAESURA_CPU" not in os.environ
    return Check("kernels", not missing, device, KERNELS if missing else "")


def _recorded(model: str, done: wire.Done, status: wire.Status) -> Iterator[Check]:
    """Record the speed for `caesura models`; a check only if that fails."""
    tokens = done.tokens.canvas + done.tokens.lookup + done.tokens.left_to_right
    if not tokens:
        return
    measured = speeds.Speed(
        at=date.today().isoformat(),
        device=status.device,
        token_ms=round(done.timings.denoise_ms / tokens, 1),
        fill_ms=round(done.timings.total_ms, 1),
        memory_mb=round(status.memory_mb + (status.worker_memory_mb or 0), 1),
    )
    try:
        speeds.record(model_store.identity(model), measured)
    except (paths.UnsafeFolder, OSError) as error:
        yield Check("records", False, "speeds, statistics and traces are not kept", paths.reason(error))


def _fill(done: wire.Done) -> Check:
    text = done.holes[0].text
    found = f"{text!r} in {done.timings.total_ms:.0f} ms, {done.steps} steps"
    ok = bool(text.strip())
    return Check("fill", ok, found, "" if ok else "Run `caesura models verify` on the model, or try another model.")


def _speed(status: wire.Status, model: str) -> Check:
    times = {stage: (p50, status.p95_ms.get(stage, p50)) for stage, p50 in status.p50_ms.items()}
    slow = times.get("total", (0.0, 0.0))[0] > SLOW_MS
    found = f"{_times(times)}, of {status.done} fills since {_date(time.time() - status.uptime_s)}"
    return Check("speed of fills", not slow, found, _faster(model) if slow else "", slow and status.done == 1)


def _larger(model: str, done: wire.Done, device: str) -> Iterator[Check]:
    """The use of the next larger base on this machine, computed from the duration of a pass of `coder`."""
    if model_store.resolve(model) != model_store.CODER or not device.startswith("cpu") or not done.steps:
        return
    line_ms = LINE * TIMES * done.timings.denoise_ms / done.steps
    if line_ms > SLOW_MS:
        yield Check("larger model", True, f"none: a line of {LARGER} would take about {line_ms / 1000:.1f} s")
        return
    use = "suggestions and fills" if line_ms <= LATE_MS else "fills that you ask for, not for suggestions"
    yield Check("larger model", True, f"{LARGER} for {use}: a line would take about {line_ms / 1000:.1f} s", HOW)


def _date(seconds: float) -> str:
    """A Unix time in the user's zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _times(stages: Mapping[str, tuple[float, float]]) -> str:
    told = (f"{STAGES.get(stage, stage)} {p50:.0f}/{p95:.0f}" for stage, (p50, p95) in stages.items())
    return f"{', '.join(told)} {HALF}"


def _faster(model: str) -> str:
    """The next step if a model is slow on an idle machine."""
    if model_store.named(model) != model_store.SMALL and model_store.SMALL in model_store.names():
        return "Try the smaller model: `caesura doctor --model small`; the setting `model` chooses it."
    return LATE


def _past() -> tuple[list[trace.Past], list[Check]]:
    """The last sessions in editors, and checks of them."""
    try:
        path = trace.file()
        past = trace.read(path)[-SESSIONS:]
    except (paths.UnsafeFolder, OSError) as error:
        return [], [Check("trace", False, "not readable", explain(error) or str(error))]
    if not past:
        return [], [Check("editor", True, "none has run `caesura lsp` so far, or the setting `stats` is off")]
    asked = any(one.requests for one in past)
    lost = sum(job.end == "engine_lost" for one in past for job in one.jobs)
    advice = f"Read the end of the engine's log in {path.parent}, then run `caesura stop`."
    return past, [
        *_editor(past[-1].session, asked=asked),
        *(_answers(past) if asked else ()),
        Check("jobs lost", not lost, f"{lost} in the last {len(past)} sessions", advice if lost else ""),
    ]


def _editor(last: trace.SessionRecord, *, asked: bool) -> Iterator[Check]:
    """Checks of the last editor. Some editors ask for inline completions without announcing them."""
    abilities = ", ".join(last.capabilities) or "nothing that matters here"
    engine = f"{last.model} on {last.device}" if last.model else "no engine yet"
    found = f"{last.client}, {last.encoding}, {engine}; announces {abilities}"
    ok = asked or "inlineCompletion" in last.capabilities
    yield Check("editor", ok, found + ("" if asked else "; has asked for nothing yet"), "" if ok else ASK)
    wrong, advice = " ".join(last.problems), "Correct your editor's settings; `caesura settings` lists those there are."
    yield Check("settings", not wrong, wrong or "all understood", advice if wrong else "")


def _answers(past: Sequence[trace.Past]) -> Iterator[Check]:
    requests = [request for one in past for request in one.requests]
    kinds = trace.by_answer(requests).items()
    told = ", ".join(f"{count} {ANSWERS.get(kind, kind)} {p50:.0f}/{p95:.0f}" for kind, (count, p50, p95) in kinds)
    found = f"{told} {HALF}, since {_date(past[0].at)}"
    waits = [request.ms.get("wait", 0.0) for one in past if len(one.requests) >= ENOUGH for request in one.requests]
    late = bool(waits) and trace.percentiles(waits)[1] > LATE_MS
    found += "" if waits else f"; not judged: no session has {ENOUGH} answers yet"
    yield Check("speed of answers", not late, found, LATE if late else "")
    yield Check("stages of answers", True, _times(trace.by_stage(requests)))


def _sessions(past: Sequence[trace.Past]) -> list[dict[str, object]]:
    """The sessions for `--json`: times as [p50, p95] in ms, after the count for answers."""
    return [
        {
            "at": one.at,
            **msgspec.to_builtins(one.session),
            "stages": trace.by_stage(one.requests),
            "answers": trace.by_answer(one.requests),
        }
        for one in past
    ]
