"""The data of `caesura pair`: the machines that may use this machine's engine, and the engines on other machines that
it may use, each for the folders that the user named. And that of `caesura team`: the users of the one team whose door
this account may run.

Only the command line changes it, since a setting may come with a project. Keys are written in hex, which needs no
quoting in a shell.
"""

import ipaddress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from caesura import paths
from caesura.characters import PRINTABLE
from caesura.ipc.consent import WatchedFile

HexKey = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
MachineName = Annotated[str, Meta(min_length=1, max_length=64, pattern=PRINTABLE)]
MODEL = r"^[!-~]([ -~]{0,254}[!-~])?\Z"  # the name or path of a team's model, which travels as a header: ASCII
ModelName = Annotated[str, Meta(pattern=MODEL)]


class BadAddress(ValueError):
    """An address cannot be used; the message says why."""


class PairedClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A machine that may use this machine's engine."""

    name: MachineName
    key: HexKey


class TeamUser(PairedClient, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A user whose machine may use a team's engine, with this `model` or the team's default."""

    model: ModelName | None = None


class Remote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine on another machine, and the folders (with links resolved) whose documents may be sent to it."""

    name: MachineName
    address: Annotated[str, Meta(max_length=256, pattern=PRINTABLE)]
    key: HexKey
    folders: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        return self.name, self.address, self.key


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`clients` may use this machine's own engine, `users` the team's: neither may use the other."""

    clients: tuple[PairedClient, ...] = ()
    engines: tuple[Remote, ...] = ()
    users: tuple[TeamUser, ...] = ()


def pairs() -> Pairs:
    """Raises paths.DamagedFile or paths.UnsafeFolder."""
    path = _path()
    data = paths.read(path)
    try:
        return Pairs() if data is None else msgspec.json.decode(data, type=Pairs)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise paths.DamagedFile(f"{path} is damaged; remove it and pair again.") from error


def save(found: Pairs) -> None:
    paths.write(_path(), msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def watched() -> WatchedFile[Pairs]:
    """The current pairs. If they cannot be read, no machine is paired."""
    return WatchedFile(_path(), pairs, Pairs(), "No machine counts as paired")


def address(text: str) -> str:
    """Checks HOST:PORT of another machine's engine. Raises BadAddress."""
    host, port = _split(text)
    if not 0 < len(host) < 254 or any(c.isspace() or c in "/;*@" for c in host):
        raise BadAddress(f"{text!r} is not HOST:PORT")
    return f"{host}:{port}"


def own_address(text: str) -> str:
    """Checks ADDRESS:PORT of this machine to listen on: one address, never all. Raises BadAddress."""
    host, port = _split(text)
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        found = None
    if host in ("*", "") or (found and (getattr(found, "ipv4_mapped", None) or found).is_unspecified):
        raise BadAddress(f"{text!r} would listen on every network; give the address that your other machine uses")
    if found is None:
        raise BadAddress(f"{text!r} is not ADDRESS:PORT with an IP address of this machine")
    return f"{host}:{port}"


def _split(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536) or (":" in host and not bracketed):
        raise BadAddress(f"{text!r} is not ADDRESS:PORT; an IPv6 address is written in brackets")
    return host, int(port)


def _path() -> Path:
    return paths.keys() / "pairs.json"
