"""`caesura doctor`: what a working installation needs, checked in the order in which one thing leans on another."""

import argparse
import asyncio
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

import msgspec
import zmq

from caesura import models, paths, rendezvous, wire
from caesura.commands import CommandFailed, explain
from caesura.commands.asking import ask, print_json, shared
from caesura.server.engine import EngineError, job_id

PACKAGES = ("torch", "safetensors", "tokenizers", "numpy", "pyzmq", "msgspec", "pygls", "tree-sitter")
SUPPORTED = ((3, 11), (3, 14))
INSTALL = "Install Caesura again: run `make install` in your clone."
RESTORE = "Bring its files back: `git restore engine/embedded` in your clone, or install your own model's folder again."
SLOW_MS = 2000.0


class Check(msgspec.Struct, frozen=True):
    """`next` is what to do about it, empty where nothing is wrong."""

    name: str
    ok: bool
    found: str
    next: str = ""


def run(options: argparse.Namespace) -> None:
    checks = [_python(), *_packages(), _zeromq(), _runtime(), _model(options.model)]
    checks += asyncio.run(_engine(options))
    bad = [check for check in checks if not check.ok]
    if options.json:
        print_json({"ok": not bad, "checks": checks})
    else:
        for check in checks:
            print(f"{'ok ' if check.ok else 'BAD'}  {check.name}: {check.found}")
            if check.next:
                print(f"     {check.next}")
    if bad:
        raise CommandFailed(f"{len(bad)} of {len(checks)} checks failed: {', '.join(check.name for check in bad)}.")


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


def _zeromq() -> Check:
    ok = zmq.zmq_version_info() >= (4, 3, 5)  # older ones can be crashed by whoever may connect
    return Check("libzmq", ok, zmq.zmq_version(), "" if ok else "Install pyzmq 27 or newer from its wheel.")


def _runtime() -> Check:
    try:
        return Check("runtime folder", True, str(paths.runtime()))
    except (paths.UnsafeFolder, OSError) as error:
        return Check("runtime folder", False, "not usable", explain(error) or str(error))


def _model(name: str) -> Check:
    folder = models.folder(name)
    if folder is None:
        return Check("model files", False, f"no model {name!r}", "`caesura models` lists those there are.")
    try:
        damaged = models.damaged(folder)
    except models.NoManifest as error:
        return Check("model files", False, "no manifest", str(error))
    if damaged:
        return Check("model files", False, f"damaged: {', '.join(damaged)}", RESTORE)
    return Check("model files", True, f"{folder}, sha256 as in its manifest")


async def _engine(options: argparse.Namespace) -> list[Check]:
    """Start it if need be, fill a gap, and ask where the time went."""
    try:
        async with shared(options) as (engine, welcome):
            done = await ask(engine, _job(), lambda event: None)
            status = await engine.status()
    except (EngineError, rendezvous.NoPlace, OSError) as error:
        return [Check("engine", False, "no answer", explain(error) or str(error))]
    return [
        Check("engine", True, f"{welcome.model} on {welcome.device}, process {status.pid}"),
        _fill(done),
        _speed(status),
    ]


def _fill(done: wire.Done) -> Check:
    text = done.holes[0].text
    found = f"{text!r} in {done.timings.total_ms:.0f} ms, {done.steps} steps"
    ok = bool(text.strip())
    return Check("fill", ok, found, "" if ok else "Run `caesura models verify` on the model, or try another model.")


def _speed(status: wire.Status) -> Check:
    stages = ", ".join(f"{stage} {p50:.1f}/{status.p95_ms.get(stage, p50):.1f}" for stage, p50 in status.p50_ms.items())
    ok = max(status.p50_ms.get("total", 0), status.p95_ms.get("total", 0)) <= SLOW_MS
    advice = "End what else keeps this machine busy, or choose a smaller model; then run `caesura stop` and try again."
    return Check("p50/p95 ms", ok, stages, "" if ok else advice)


def _job() -> wire.Infill:
    return wire.Infill(
        job=job_id(),
        document=job_id(),
        prefix="def area(width, height):\n    return ",
        suffix="\n",
        language="python",
        segments=(wire.Hole(max_tokens=16, kind="line"),),
    )
