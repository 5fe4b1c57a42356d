"""The services that the user has named with `caesura backend`, each with the folders whose documents may be sent
to it. A key is not kept, only where it is: in an environment variable or in the system's keyring. No HTTP here.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from caesura import paths
from caesura.characters import PRINTABLE
from caesura.client.backends import Kind
from caesura.ipc import networks
from caesura.ipc.consent import WatchedFile

KEYRING = "keyring"  # instead of a variable's name
_HOST = re.compile(r"[a-z0-9.-]{1,253}")
_KEY = re.compile(r"[!-~]{1,4096}")


class BadUrl(ValueError):
    """No address of a backend; the message says why."""


class NoKey(Exception):
    """The key of a backend is not where it should be; the message is a sentence for the user."""


class NamedService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`url` ends in a slash, before the paths of the kind's API. `format` is a row of fim_formats.FORMATS, for prompts
    with a model's own markers; empty where the service takes the suffix by itself. `key_from` is a variable's name,
    `keyring` or empty. With `fallback` the local engine answers while the service does not."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=PRINTABLE)]
    url: Annotated[str, Meta(max_length=2048, pattern=PRINTABLE)]
    kind: Kind
    model: Annotated[str, Meta(max_length=256, pattern=PRINTABLE)] = ""
    format: Annotated[str, Meta(max_length=64, pattern=PRINTABLE)] = ""
    key_from: Annotated[str, Meta(max_length=256, pattern=PRINTABLE)] = ""
    fallback: bool = False
    folders: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        return self.name, self.url, self.kind, self.model, self.format, self.key_from

    @property
    def host(self) -> str:
        """With its port, if the address has one."""
        return urlsplit(self.url).netloc

    @property
    def near(self) -> bool:
        """True if it is on this machine or in a private network."""
        return networks.near(urlsplit(self.url).hostname or "")


class NamedServices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    services: tuple[NamedService, ...] = ()


def services() -> tuple[NamedService, ...]:
    """Raises paths.DamagedFile or paths.UnsafeFolder."""
    path = _path()
    data = paths.read(path)
    try:
        found = NamedServices() if data is None else msgspec.json.decode(data, type=NamedServices)
        for service in found.services:
            if address(service.url) != service.url:
                raise BadUrl(service.url)
    except (msgspec.DecodeError, UnicodeDecodeError, BadUrl) as error:
        raise paths.DamagedFile(f"{path} is damaged; remove it, and add your backends again.") from error
    return found.services


def save(found: tuple[NamedService, ...]) -> None:
    paths.write(_path(), msgspec.json.format(msgspec.json.encode(NamedServices(found)), indent=2) + b"\n")


def watched() -> WatchedFile[tuple[NamedService, ...]]:
    """The services as they are. Where they cannot be read there is none."""
    return WatchedFile(_path(), services, (), "No backend counts as named")


def address(text: str) -> str:
    """The URL of a service as it is kept. Text crosses a network only encrypted, so `http` is for this machine and for
    private networks. Raises BadUrl."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise BadUrl(f"{text!r} is no URL") from None
    literal = networks.literal(host)
    if parts.scheme not in ("http", "https") or not (literal or _HOST.fullmatch(host)):
        raise BadUrl(f"{text!r} is not http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise BadUrl("a URL with a password, a query or a fragment is not kept; keys come by --key-from")
    if re.search(r"[^\w./~-]", parts.path, re.ASCII) or ".." in parts.path:
        raise BadUrl(f"the path of {text!r} has characters that no service needs")
    if parts.scheme == "http" and not networks.near(host):
        raise BadUrl(
            f"http://{host} would send text readable for all on the way; use https://, or the IP address of a machine "
            "in your own network"
        )
    where = f"[{host}]" if literal and literal.version == 6 else host
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{where}{f':{port}' if port else ''}{path}/"


def key(service: NamedService) -> str:
    """Empty where the service needs none. It may wait for the system's keyring. Raises NoKey."""
    if not service.key_from:
        return ""
    found = _from_keyring(service) if service.key_from == KEYRING else os.environ.get(service.key_from)
    if not found:
        todo = (
            f"caesura backend add {service.name} again"
            if service.key_from == KEYRING
            else "set it where your editor starts"
        )
        raise NoKey(f"The key of {service.name} is not in {service.key_from}; {todo}.")
    return _valid(service, found)


def keep_key(service: NamedService, text: str) -> None:
    """Put a key into the system's keyring, instead of one that is there. Raises NoKey."""
    with _keyring(service) as keyring:
        keyring.set_password("caesura", _place(service), _valid(service, text))


def forget_key(service: NamedService) -> None:
    """Remove a key from the system's keyring, if there is one. Raises NoKey."""
    with _keyring(service) as keyring:
        if keyring.get_password("caesura", _place(service)) is not None:
            keyring.delete_password("caesura", _place(service))


def _from_keyring(service: NamedService) -> str | None:
    with _keyring(service) as keyring:
        found: str | None = keyring.get_password("caesura", _place(service))
        return found


def _valid(service: NamedService, text: str) -> str:
    if not _KEY.fullmatch(text):
        where = f"The value of {service.key_from} is not a valid key for {service.name}"
        raise NoKey(f"{where}: it contains spaces or control characters.")
    return text


def _place(service: NamedService) -> str:
    """A key belongs to a host: under the same name, another host never gets it."""
    return f"{service.name}@{service.host}"


@contextmanager
def _keyring(service: NamedService) -> Iterator[Any]:
    """The keyring library. Raises NoKey where there is none or the system's keyring stays locked."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        raise NoKey(f"The key of {service.name} is in the keyring; install: pip install 'caesura[keyring]'") from None
    try:
        yield keyring
    except KeyringError:
        raise NoKey(f"The system's keyring does not open; unlock it to use {service.name}.") from None


def _path() -> Path:
    return paths.keys() / "backends.json"
