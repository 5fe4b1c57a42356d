"""`caesura team`: run the door of a team's engine, and name the users that it lets in. An account runs one team: it has
one key for the door and one list of users."""

import argparse
import importlib.util
import logging
from pathlib import Path

from msgspec.structs import replace

from caesura import logs
from caesura.commands import CommandFailed
from caesura.ipc import pairing, rendezvous
from caesura.ipc.keys import own_keys
from caesura.ipc.pairing import TeamUser

# The parts of the extra `cluster`. A module without a dot is looked for, not loaded.
EXTRA = ("ray", "grpc", "prometheus_client", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")


def serve(options: argparse.Namespace) -> None:
    """Run in the foreground until stopped."""
    from caesura.cluster import config, door, isolation
    from caesura.engine.supervisor import clients, supervisor

    logs.begin(logging.INFO, "%(asctime)s %(levelname)s %(message)s")
    if missing := [name for name in EXTRA if not _installed(name)]:
        raise CommandFailed(f"{', '.join(missing)} cannot be imported; run: pip install 'caesura[cluster]'")
    try:
        door.serve(Path(options.config))
    except supervisor.AlreadyRunning as error:
        raise CommandFailed(f"An account runs one team. {running() or error}") from error
    except (config.BadConfig, isolation.NotIsolated, clients.CannotListen) as error:
        raise CommandFailed(str(error)) from error


def running() -> str | None:
    """The sentence about the door of this account, if it runs."""
    if holder := rendezvous.door().holder():
        ends = f"`caesura stop` leaves it alone, Ctrl-C or `kill {holder.pid}` ends it"
        return f"Process {holder.pid} is the team's door; {ends}."
    return None


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False


def invite(options: argparse.Namespace) -> None:
    """Let a user in. Inviting again changes the name or the model. The door's own key is welcome too, for an editor on
    its machine."""
    found = pairing.pairs()
    others = tuple(user for user in found.users if options.key != user.key)
    if options.name in (user.name for user in others):
        raise CommandFailed(f"{options.name} is invited with another key; choose another name, or revoke that one.")
    user = TeamUser(options.name, options.key, options.model)
    pairing.save(replace(found, users=(*others, user)))
    if len(others) < len(found.users):
        print(f"{user.name} was invited before and now has {user.model or 'the default model'}, from the next job on.")
        return
    print(f"{user.name} is invited. Send them these lines, with the address of the door:")
    print(f"  caesura pair with ADDRESS:PORT {own_keys().public.hex()} --name team")
    print("  caesura pair use FOLDER")


def revoke(options: argparse.Namespace) -> None:
    found = pairing.pairs()
    left = tuple(user for user in found.users if options.name not in (user.name, user.key))
    if left == found.users:
        raise CommandFailed(f"There is no user {options.name}; `caesura team list` names all.")
    pairing.save(replace(found, users=left))
    print(f"{options.name} is not let in any more; a running door ends their jobs within a second.")


def users(options: argparse.Namespace) -> None:
    """Print the invited users, with the models chosen for them."""
    found = pairing.pairs().users
    for user in found:
        print(f"{user.name}: {user.key}" + (f", model {user.model}" if user.model else ""))
    if not found:
        print("Nobody is invited; run: caesura team invite NAME KEY")
