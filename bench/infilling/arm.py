"""`caesura eval` of a tree, where trees share what the engine says: languages.py runs it with the Python of each tree.

    PYTHON -P bench/infilling/arm.py CASES.jsonl COMPLETIONS.jsonl SAID.jsonl DEADLINE_MS

A job that is in SAID.jsonl already, whichever tree asked it, is not asked again. So two trees are compared in what
they ask and in what they make of an answer, and where they ask the same it costs one fill. Only `caesura` is
imported; a tree needs `server/infill` (from 4938e6a on).
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from caesura import model_store, wire
from caesura.client.shared import Engine
from caesura.commands.common import ask, shared
from caesura.server.infill.choose import choice
from caesura.server.infill.job import Ask
from caesura.server.infill.site import at_cursor
from caesura.server.languages import language
from caesura.server.options import Options


async def run(cases: Path, out: Path, said: Path, deadline_ms: float) -> None:
    known = {one["key"]: one for one in _lines(said)}
    done_already = {one["id"] for one in _lines(out)}
    options = argparse.Namespace(
        model=model_store.resolve("coder"), draft=None, device="auto", method=None, sampler=None
    )
    options.prompt_format, options.deadline_ms = None, deadline_ms
    async with AsyncExitStack() as stack:
        engine: Engine | None = None
        for case in _lines(cases):
            if case["id"] in done_already:
                continue
            text = case["prefix"] + case["suffix"]
            asked = at_cursor(text, len(case["prefix"]), language(case["lang"]).id, case["kind"] or None)
            job = asked.job(Ask(candidates=Options().candidates, deadline_ms=deadline_ms))
            key = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(job, job="", document=""))).hexdigest()
            if key not in known:
                if engine is None:
                    engine, _ = await stack.enter_async_context(shared(options))
                began = time.perf_counter()
                done = await ask(engine, job)
                ms = (time.perf_counter() - began) * 1000
                known[key] = {"key": key, "ms": ms, "done": json.loads(msgspec.json.encode(done))}
                _append(said, known[key])
            done = msgspec.convert(known[key]["done"], wire.Done)
            told = {"id": case["id"], "completion": choice(asked, done)[0], "ms": known[key]["ms"], "stop": done.stop}
            _append(out, told)


def _lines(path: Path) -> list[dict[str, str]]:
    return list(map(json.loads, path.read_text("utf-8").splitlines())) if path.exists() else []


def _append(path: Path, told: object) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    asyncio.run(run(*map(Path, sys.argv[1:4]), float(sys.argv[4])))
