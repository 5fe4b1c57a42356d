"""`caesura pair`: exchange keys between two machines of one user, and name the folders whose documents may be sent to
the other machine. Each step prints the next.
"""

import argparse
import os
import sys
from pathlib import Path

from msgspec.structs import replace

from caesura.characters import shown
from caesura.commands import CommandFailed
from caesura.ipc import pairing
from caesura.ipc.keys import own_keys
from caesura.ipc.pairing import PairedClient, Pairs, Remote


def show(options: argparse.Namespace) -> None:
    """Print this machine's key and the paired machines; on stderr, what the key is for."""
    key, found = own_keys().public.hex(), pairing.pairs()
    print(f"This machine's key: {key}")
    for client in found.clients:
        print(f"{client.name} may use this machine's engine: {client.key}")
    for engine in found.engines:
        print(f"{engine.name} ({engine.address}) has: {', '.join(map(shown, engine.folders)) or 'no folder yet'}")
    what = "The key names this machine and is no secret. To use another machine's engine from here, run there:"
    print(f"caesura: {what} caesura pair allow {key}", file=sys.stderr)


def allow(options: argparse.Namespace) -> None:
    name, found = options.name or options.key[:8], pairing.pairs()
    if options.key == (own := own_keys().public.hex()):
        raise CommandFailed("This is this machine's own key; give that of the other one.")
    others = tuple(client for client in found.clients if options.key != client.key)
    _unused(name, [client.name for client in others])
    pairing.save(replace(found, clients=(*others, PairedClient(name, options.key))))
    print(f"{name} may use this machine's engine. Run here: caesura engine --listen ADDRESS:PORT")
    print(f"Then there, with the same address: caesura pair with ADDRESS:PORT {own}")


def revoke(options: argparse.Namespace) -> None:
    found = pairing.pairs()
    left = tuple(client for client in found.clients if options.name not in (client.name, client.key))
    if left == found.clients:
        raise CommandFailed(f"No machine {options.name} may use this engine; `caesura pair` lists those that may.")
    pairing.save(replace(found, clients=left))
    print(f"{options.name} may no longer use this machine's engine; a running engine ends its jobs within a second.")


def meet(options: argparse.Namespace) -> None:
    name, found = options.name or options.address.rpartition(":")[0].strip("[]")[:64], pairing.pairs()
    before = next((engine for engine in found.engines if engine.key == options.key), None)
    others = tuple(engine for engine in found.engines if engine is not before)
    _unused(name, [engine.name for engine in others])
    folders = before.folders if before else ()
    pairing.save(replace(found, engines=(*others, Remote(name, options.address, options.key, folders))))
    print(f"{name} is added. Name the folders whose documents may be sent to it: caesura pair use FOLDER")


def use(options: argparse.Namespace) -> None:
    found = pairing.pairs()
    engine = _chosen(found, options.engine)
    folder = os.path.realpath(options.folder)
    if not Path(folder).is_dir():
        raise CommandFailed(f"{options.folder} is not a folder.")
    engines = (_without(one, folder) for one in found.engines)
    chosen = replace(engine, folders=(*_without(engine, folder).folders, folder))
    pairing.save(replace(found, engines=tuple(chosen if one.name == engine.name else one for one in engines)))
    print(f"Documents in {shown(folder)} may be sent to {engine.name}. Restart your editor; then see `caesura status`.")


def forget(options: argparse.Namespace) -> None:
    """Forget an engine by name, or a folder."""
    found, folder = pairing.pairs(), os.path.realpath(options.name)
    engines = tuple(_without(one, folder) for one in found.engines if one.name != options.name)
    if engines == found.engines:
        raise CommandFailed(f"{options.name} is neither a paired engine nor a folder of one; see `caesura pair`.")
    pairing.save(replace(found, engines=engines))
    print(f"{options.name}: nothing is sent any more. Restart your editor there to use this machine's engine.")


def _without(engine: Remote, folder: str) -> Remote:
    return replace(engine, folders=tuple(one for one in engine.folders if one != folder))


def _chosen(found: Pairs, name: str | None) -> Remote:
    fits = [engine for engine in found.engines if name in (None, engine.name)]
    if not fits:
        raise CommandFailed("There is no such paired engine; run first: caesura pair with HOST:PORT KEY")
    if len(fits) > 1:
        raise CommandFailed(f"Say which engine: --engine {' or '.join(engine.name for engine in fits)}.")
    return fits[0]


def _unused(name: str, names: list[str]) -> None:
    if name in names:
        raise CommandFailed(f"{name} is the name of another machine; choose one with --name.")
