"""The data of `caesura pair`: the machines that may use this machine's engine, and the engines on other machines that
it may use, each for the folders that the user named.

Only the command line changes it, since a setting may come with a project. Keys are written in hex, which needs no
quoting in a shell.
"""

import ipaddress
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from caesura import paths

log = logging.getLogger(__name__)

HexKey = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
MachineName = Annotated[str, Meta(min_length=1, max_length=64)]


class BadAddress(ValueError):
    """An address cannot be used; the message says why."""


class PairedClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that may use this machine's engine."""

    name: MachineName
    key: HexKey


class Remote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine on another machine, and the folders (with links resolved) whose documents may be sent to it."""

    name: MachineName
    address: Annotated[str, Meta(max_length=256)]
    key: HexKey
    folders: tuple[str, ...] = ()

    def covers(self, path: Path) -> bool:
        """True if a file or folder, after following links, is in a folder named for this engine."""
        return path.is_absolute() and any(Path(os.path.realpath(path)).is_relative_to(f) for f in self.folders)


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    clients: tuple[PairedClient, ...] = ()
    engines: tuple[Remote, ...] = ()

    def admits(self, key: str) -> bool:
        return any(client.key == key for client in self.clients)

    def remote(self, folders: Sequence[str]) -> Remote | None:
        """The first engine named for all of these folders; None without folders."""
        fits = (one for one in self.engines if folders and all(one.covers(Path(folder)) for folder in folders))
        return next(fits, None)


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


class Watched:
    """The current pairs. The file is read again when it changes, so that a revoked pair ends at once. If it cannot be
    read, no machine is paired."""

    def __init__(self) -> None:
        self._pairs = Pairs()
        self._seen: tuple[int, int] | None = None
        self._trouble = ""  # the last warning

    def __repr__(self) -> str:
        return f"<Watched {len(self._pairs.clients)} clients, {len(self._pairs.engines)} engines>"

    @property
    def pairs(self) -> Pairs:
        try:
            about = _path().lstat()
            seen = about.st_ino, about.st_ctime_ns
            if seen != self._seen:
                self._pairs = pairs()
            self._seen, self._trouble = seen, ""
        except FileNotFoundError:
            self._pairs, self._seen = Pairs(), None
        except (paths.DamagedFile, paths.UnsafeFolder, OSError) as error:  # may pass without a change of the file
            self._pairs, self._seen = Pairs(), None
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("No machine counts as paired: %s", error)
        return self._pairs


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


class Agreement:
    """The folders that the user lets `remote` see. It ends as soon as the user revokes it, even during a job."""

    def __init__(self, remote: Remote, paired: Watched) -> None:
        self.remote = remote
        self._paired = paired

    def __repr__(self) -> str:
        return f"<Agreement with {self.remote.name} on {len(self.remote.folders)} folders>"

    def covers(self, path: Path) -> bool:
        """True if the file at `path`, after following links, may be sent. A file that is not on this disk never may."""
        own = self.remote.name, self.remote.address, self.remote.key
        now = (one for one in self._paired.pairs.engines if (one.name, one.address, one.key) == own)
        return any(one.covers(path) for one in now)


def agreement(folders: Sequence[str]) -> Agreement | None:
    """The agreement for all folders of a workspace; None if this machine's engine is to be used."""
    paired = Watched()
    remote = paired.pairs.remote(folders)
    return Agreement(remote, paired) if remote else None
