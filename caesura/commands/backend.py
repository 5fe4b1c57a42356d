"""`caesura backend`: engines of other makers over HTTP, and the folders whose documents may be sent to them. Each
step says the next."""

import argparse
import asyncio
import getpass
import os
import sys
import time
from contextlib import aclosing
from pathlib import Path

from msgspec.structs import replace

from caesura.characters import shown
from caesura.client.backends import KINDS, named
from caesura.client.backends.named import KEYRING, NamedService
from caesura.commands import CommandFailed
from caesura.fim_formats import FORMATS
from caesura.ipc import pairing

SENT = "text of the file that you edit, with its secrets covered, and import lines of other files"


def show(options: argparse.Namespace) -> None:
    found = named.services()
    for one in found:
        about = (one.url, one.kind, one.model, one.format, f"key from {one.key_from}" if one.key_from else "")
        fallback = ", else the local engine" if one.fallback else ""
        folders = ", ".join(map(shown, one.folders)) or "no folder yet"
        print(f"{one.name} ({', '.join(filter(None, about))}) has: {folders}{fallback}")
    if not found:
        print("To use another engine: caesura backend add NAME URL --kind " + "|".join(KINDS))


def add(options: argparse.Namespace) -> None:
    found = named.services()
    if options.format and options.kind != "fim":
        raise CommandFailed("--format is for --kind fim; the other kinds know how their prompts look.")
    if options.format not in (None, *FORMATS):
        raise CommandFailed(f"There is no format {options.format}; choose one of {', '.join(FORMATS)}.")
    before = next((one for one in found if one.name == options.name), None)
    folders = before.folders if before and before.url == options.url else ()  # consent was given to that address
    about = (options.kind, options.model or "", options.format or "", options.key_from or "", options.fallback)
    service = NamedService(options.name, options.url, *about, folders)
    if service.key_from == KEYRING:
        _ask_for_key(service)
    named.save((*(one for one in found if one.name != service.name), service))
    if before:
        _forget_key(before)
    print(f"{service.name} is added; nothing is sent to it yet. Try it: caesura backend test {service.name}")
    print(
        f"Then name the folders whose documents may be sent to it: caesura backend use FOLDER --backend {service.name}"
    )


def use(options: argparse.Namespace) -> None:
    found = named.services()
    service = _chosen(found, options.backend)
    folder = os.path.realpath(options.folder)
    if not Path(folder).is_dir():
        raise CommandFailed(f"{options.folder} is not a folder.")
    if machine := next((one for one in pairing.pairs().engines if folder in one.folders), None):
        raise CommandFailed(f"{folder} belongs to {machine.name}; run first: caesura pair forget {machine.name}")
    others = (_without(one, folder) for one in found)
    named.save(
        tuple(replace(one, folders=(*one.folders, folder)) if one.name == service.name else one for one in others)
    )
    print(f"{service.name} at {service.host} is sent what its engine needs of documents in {shown(folder)}: {SENT}.")
    print("Restart your editor; then see `caesura status`.")


def test(options: argparse.Namespace) -> None:
    print(asyncio.run(_tried(_chosen(named.services(), options.name))))


def remove(options: argparse.Namespace) -> None:
    """Forget a backend by name, or a folder."""
    found, folder = named.services(), os.path.realpath(options.name)
    left = tuple(_without(one, folder) for one in found if one.name != options.name)
    if left == found:
        raise CommandFailed(f"{options.name} is neither a backend nor a folder of one; see `caesura backend list`.")
    named.save(left)
    print(f"{options.name}: nothing is sent any more. Restart your editor there to use this machine's engine.")
    for one in found:
        _forget_key(one)


async def _tried(service: NamedService) -> str:
    """One short gap of our own text."""
    from caesura.client.backends import kinds
    from caesura.server.infill.site import probe

    backend, began, first_s = kinds.backend(service), time.monotonic(), 0.0
    try:
        async with aclosing(backend.infill(probe("def add(a, b):\n    return "))) as events:
            async for event in events:
                first_s = first_s or time.monotonic() - began
                last = event
    finally:
        model = backend.condition.model
        await backend.close()
    took = f"{first_s * 1000:.0f} ms to the first text, {(time.monotonic() - began) * 1000:.0f} ms in all"
    return f"{service.name} answers with {model}: {took}, {last.holes[0].text.strip()!r} for `a + b`."


def _ask_for_key(service: NamedService) -> None:
    """Store a key in the keyring; without a terminal or an answer, the one that is there stays."""
    if sys.stdin.isatty() and (text := getpass.getpass(f"Key of {service.name} for {service.host}: ").strip()):
        named.keep_key(service, text)
    named.key(service)


def _forget_key(old: NamedService) -> None:
    """Remove the key of a backend that has gone, unless it is another's too."""
    kept = {(one.name, one.host) for one in named.services() if one.key_from == KEYRING}
    if old.key_from == KEYRING and (old.name, old.host) not in kept:
        named.forget_key(old)


def _without(service: NamedService, folder: str) -> NamedService:
    return replace(service, folders=tuple(one for one in service.folders if one != folder))


def _chosen(found: tuple[NamedService, ...], name: str | None) -> NamedService:
    fits = [one for one in found if name in (None, one.name)]
    if not fits:
        raise CommandFailed("There is no such backend; run first: caesura backend add NAME URL --kind KIND")
    if len(fits) > 1:
        raise CommandFailed(f"Say which backend: --backend {' or '.join(one.name for one in fits)}.")
    return fits[0]
