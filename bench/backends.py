"""A real llama-server with Caesura in front of it: what that costs, how often it asks, and how good the fills are.

    python bench/backends.py overhead --data FOLDER [--n 20]
    python bench/backends.py typing [--nvim PROGRAM] [--n 4]
    python bench/backends.py gaps --data FOLDER [--n 60]

`make llama-server` first. FOLDER has HumanEval-Infilling's files. Each part is an entry of bench/results/backends.json;
bench/README.md says what its figures mean.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from caesura import model_store, wire
from caesura.client.backend import job_id
from caesura.client.backends.jobs import HttpBackend
from caesura.client.backends.kinds import backend
from caesura.client.backends.named import NamedService
from caesura.server.infill.choose import choice
from caesura.server.infill.job import Ask
from caesura.server.infill.site import Site, at_cursor

from infilling.cases import Case, Sources, read  # isort: skip  (next to this script)
from infilling.report import summary  # isort: skip
from infilling.rows import Completion, Means, complete  # isort: skip
from infilling.scores import paired, score  # isort: skip
from latency import CAESURA, HERE, Report, conditions, own_engine, save, spread, table  # isort: skip
from neovim import LITERAL, begin, replay, version  # isort: skip
from typist import Stretch, stretches  # isort: skip

sys.path.insert(0, str(HERE.parent))
from tests.real.backends.llama_server import THREADS, LlamaServer, missing, request, running, wait
from tests.real.backends.relay import Passed, Relay
from tests.real.neovim import Neovim
from tests.real.test_llama_vim import PLUGIN

SEED = 7
AGAIN = 3  # times that a case is asked for, each way
MOST = 32  # tokens of a line, as in `caesura eval`
DEADLINE_MS, DONE_S = 60_000.0, 60.0  # limits are reached only where something is wrong
TEXT = re.compile(rb'"content":"[^"]')  # the first event that has text
COUNTED = re.compile(r"llamacpp:(prompt_tokens|tokens_predicted)_total (\d+)")
SETTINGS = (
    "let g:llama_config = {{'endpoint_fim': 'http://127.0.0.1:{port}/infill', 'show_info': 0}} | set rtp^={folder}"
)


def gap_of(case: Case) -> Site:
    return at_cursor(case.prefix + case.suffix, len(case.prefix), case.lang, case.kind)


def job_of(gap: Site) -> wire.Infill:
    return gap.job(Ask(deadline_ms=DEADLINE_MS))


def connected(port: int) -> HttpBackend:
    return backend(NamedService("bench", f"http://127.0.0.1:{port}/", "llama-server"))


# What our backend adds to a request


class Times(NamedTuple):
    """Milliseconds from asking to the first text and to the end of the answer."""

    first: float
    whole: float


def bare(server: LlamaServer, body: bytes) -> Times:
    """A client that does nothing but read, on a connection that is open."""
    with server.connect() as connection:
        began, raw, first = time.perf_counter(), b"", 0.0
        connection.sendall(request("POST", "/infill", body))
        while part := connection.recv(1 << 16):
            raw += part
            if not first and TEXT.search(raw):
                first = since(began)
            if raw.endswith(b"\r\n0\r\n\r\n"):
                break
        return Times(first or since(began), since(began))


async def ours(to: HttpBackend, job: wire.Infill) -> Times:
    began, first = time.perf_counter(), 0.0
    async for event in to.infill(msgspec.structs.replace(job, job=job_id())):
        if not first and event.holes[0].text:
            first = since(began)
    return Times(first or since(began), since(began))


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


@dataclass
class Left:
    """Milliseconds until a connection was closed: after its stream was given up, and after a newer job of the document;
    and from giving it up until the server was free."""

    given_up: list[float] = field(default_factory=list)
    superseded: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)


async def leave(to: HttpBackend, job: wire.Infill, relay: Relay, server: LlamaServer, left: Left) -> None:
    """Give up a stream after its first text, if there is any."""
    events = to.infill(msgspec.structs.replace(job, job=job_id()))
    if isinstance(await anext(events), wire.Done):
        return
    began = time.perf_counter()
    await events.aclose()
    left.given_up.append(await closed(relay.passed[-1]) - began * 1000)
    wait(lambda: not server.busy, DONE_S)
    left.free.append(since(began))


async def supersede(to: HttpBackend, job: wire.Infill, relay: Relay, left: Left) -> None:
    """Ask again, as at the next key, while the answer before is written."""
    first = to.infill(msgspec.structs.replace(job, job=job_id()))
    if isinstance(await anext(first), wire.Done):
        return
    passed, reading = relay.passed[-1], asyncio.ensure_future(anext(first))
    await asyncio.sleep(0)
    began = time.perf_counter()
    newer = asyncio.ensure_future(anext(to.infill(msgspec.structs.replace(job, job=job_id()))))
    left.superseded.append(await closed(passed) - began * 1000)
    await asyncio.gather(reading, newer, return_exceptions=True)


async def closed(passed: Passed) -> float:
    """When the client closed, in milliseconds."""
    async with asyncio.timeout(DONE_S):
        while passed.closed is None:
            await asyncio.sleep(0.001)
    return passed.closed * 1000


async def overhead(cases: Sequence[Case]) -> Report:
    """Each case both ways in turn, with its context in the server's cache, so that the model does the same."""
    times: dict[str, list[Times]] = {"bare": [], "ours": []}
    left = Left()
    with running() as server, Relay(server.port) as relay:
        seen, direct = connected(relay.port), connected(server.port)
        for number, case in enumerate(cases):
            print(f"\r{number + 1} of {len(cases)} ", end="", file=sys.stderr, flush=True)
            job = job_of(gap_of(case))
            await ours(seen, job)
            body = relay.passed[-1].body
            for again in range(AGAIN):
                for way in ("bare", "ours") if (number + again) % 2 else ("ours", "bare"):
                    times[way].append(bare(server, body) if way == "bare" else await ours(direct, job))
            await leave(seen, job, relay, server, left)
            await supersede(seen, job, relay, left)
        await seen.close()
        await direct.close()
    more = [(a.first - b.first, a.whole - b.whole) for a, b in zip(times["ours"], times["bare"], strict=True)]
    return {
        **{f"{way}, first text": spread([one.first for one in found]) for way, found in times.items()},
        **{f"{way}, whole line": spread([one.whole for one in found]) for way, found in times.items()},
        "added to first text": spread([first for first, _ in more]),
        "added to whole line": spread([whole for _, whole in more]),
        "given up to closed": spread(left.given_up),
        "superseded to closed": spread(left.superseded),
        "given up to server free": spread(left.free),
    }


# How often each asks for the same typing


@contextlib.contextmanager
def configured(port: int) -> Iterator[Path]:
    """A folder that a backend at `port` may serve, and a configuration of our own that says so."""
    names = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(prefix="caesura-backends-") as scratch:
        os.environ.update({name: str(Path(scratch, name)) for name in names})
        folder = Path(scratch, "project")
        (folder / ".git").mkdir(parents=True)  # so that it is an editor's workspace
        try:
            for words in (("add", "bench", f"http://127.0.0.1:{port}", "--kind", "llama-server"), ("use", str(folder))):
                subprocess.run([*CAESURA, "backend", *words], check=True, stdout=subprocess.DEVNULL)
            yield folder
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def lines_of(stretch: Stretch) -> int:
    """Lines that are typed in."""
    found, fresh = 0, True
    for event in stretch.events:
        fresh |= event[1] == "to"
        if event[1] in ("key", "pair"):
            found += fresh
            fresh = False
            fresh |= "\n" in event[2]
    return found


def begin_llama_vim(neovim: Neovim, file: Path, port: int) -> None:
    neovim.command(SETTINGS.format(port=port, folder=PLUGIN))
    neovim.command("runtime plugin/llama.vim")
    neovim.command(f"filetype on | edit {file} | {LITERAL}")
    neovim.input("i")


def counted(server: LlamaServer) -> tuple[int, int]:
    """Tokens that the server has read and written since it began."""
    found = dict(COUNTED.findall(server.ask("GET", "/metrics").body.decode()))
    return int(found["prompt_tokens"]), int(found["tokens_predicted"])


def typing(program: str, chosen: Sequence[Stretch]) -> Report:
    """The same keys at the same times, in real Neovim: once with our plugin, once with llama.vim. Nothing is taken."""
    report: Report = {"neovim": version(program), "stretches": len(chosen)}
    report |= {"keys": sum(len(one.events) for one in chosen), "lines": sum(map(lines_of, chosen))}
    for name in ("caesura", "llama.vim"):
        with running("--metrics") as server, Relay(server.port) as relay, configured(relay.port) as folder:
            for stretch in chosen:
                file = folder / stretch.file
                file.write_text(stretch.start, "utf-8")
                neovim = Neovim(program, width=110, height=36)
                try:
                    if name == "caesura":
                        begin(neovim, file, {"cmd": [*CAESURA, "lsp"]})
                    else:
                        begin_llama_vim(neovim, file, relay.port)
                    replay(neovim, stretch, 1.0)
                    assert "\n".join(neovim.lines) + "\n" == stretch.end, f"{stretch.name} came out otherwise"
                finally:
                    neovim.close()
            wait(lambda server=server: not server.busy, DONE_S)
            asked_, (prompt, written) = len(relay.passed), counted(server)
        report[name] = {
            "requests": asked_,
            "requests a line": round(asked_ / report["lines"], 2),
            "tokens read": prompt,
            "tokens written": written,
        }
    return report


# How good the fills are with the same weights


async def through(to: HttpBackend, case: Case) -> Completion:
    """By our backend, and fitted into the text as an editor's server does."""
    gap = gap_of(case)
    began = time.perf_counter()
    *_, done = [event async for event in to.infill(job_of(gap))]
    assert isinstance(done, wire.Done), "the last event is Done, or infill raises"
    return Completion(choice(gap, done)[0], since(began), done.steps)


def alone(server: LlamaServer, case: Case) -> Completion:
    """The line that llama-server itself writes. It has no time, since the context was read for `through`."""
    body = {"input_prefix": case.prefix, "input_suffix": case.suffix, "n_predict": MOST, "temperature": 0}
    answer = server.infill(**body, stop=["\n"], id_slot=0)
    return Completion(answer["content"], None, answer["tokens_predicted"])


async def both(cases: Sequence[Case]) -> dict[str, list[Completion]]:
    rows: dict[str, list[Completion]] = {"llama-server, Caesura": [], "llama-server alone": []}
    with running() as server:
        to = connected(server.port)
        for number, case in enumerate(cases):
            print(f"\r{number + 1} of {len(cases)} ", end="", file=sys.stderr, flush=True)
            rows["llama-server, Caesura"].append(await through(to, case))
            rows["llama-server alone"].append(alone(server, case))
        await to.close()
    return rows


def gaps(cases: Sequence[Case]) -> Report:
    means = Means(model_store.resolve(model_store.CODER), DEADLINE_MS)
    with own_engine(), tempfile.TemporaryDirectory() as scratch:
        rows = {"our engine": complete("fill", cases, means, Path(scratch))}
    rows |= asyncio.run(both(cases))
    scores = {
        name: [score(case, one.text) for case, one in zip(cases, found, strict=True)] for name, found in rows.items()
    }
    exact = {name: [one.exact for one in found] for name, found in scores.items()}
    report: Report = {"rows": {name: summary(found, scores[name]) for name, found in rows.items()}}
    report["pair"] = paired(exact["our engine"], exact["llama-server, Caesura"])._asdict()
    return report


# The run


def measure(options: argparse.Namespace) -> Report:
    match options.part:
        case "overhead":
            return asyncio.run(overhead(cases(options)))
        case "typing":
            chosen = [one for one in stretches() if one.editor == "neovim" and one.language == "python"]
            return typing(options.nvim, chosen[: options.n])
    return gaps(cases(options))


def cases(options: argparse.Namespace) -> list[Case]:
    return read(Sources(options.data), "single-line", options.n, SEED)


def picture(part: str, found: Report) -> str:
    match part:
        case "overhead":
            head = ("ms", "n", "p50", "p95")
            return table(head, [(name, one["n"], one["p50"], one["p95"]) for name, one in found.items()])
        case "typing":
            about = f"{found['keys']} keys in {found['lines']} lines, Neovim {found['neovim']}"
            names = ("caesura", "llama.vim")
            return f"{about}\n\n" + table(
                ("", *names), [(row, *(found[name][row] for name in names)) for row in found[names[0]]]
            )
    rows = [
        (name, 100 * row["exact"], 100 * row["parses"], row["ms"]["p50"], row["ms"]["p95"])
        for name, row in found["rows"].items()
    ]
    return table(("", "exact %", "parses %", "p50 ms", "p95 ms"), rows) + f"\n\npair: {found['pair']}"


USUAL = {"overhead": 20, "typing": 4, "gaps": 60}


def main() -> None:
    parser = argparse.ArgumentParser(description="A llama-server with Caesura in front of it.")
    parser.add_argument("part", choices=USUAL)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="HumanEval-Infilling's files")
    parser.add_argument("--nvim", default=os.environ.get("NVIM", "nvim"), metavar="PROGRAM")
    parser.add_argument("--n", type=int, help=f"cases, places or stretches; default: {USUAL}")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "backends.json")
    options = parser.parse_args()
    if options.part in ("overhead", "gaps") and not options.data:
        parser.error(f"{options.part} needs --data")
    if said := missing():
        parser.error(said)
    options.n = options.n or USUAL[options.part]
    known = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {"bench": "backends"}
    found = measure(options)
    save({**known, options.part: {**conditions(model_store.CODER), "threads": THREADS, "found": found}}, options.out)
    print(picture(options.part, found))


if __name__ == "__main__":
    main()
