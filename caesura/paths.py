"""Where Caesura keeps its sockets, logs, keys and converted models: folders of the user's own, mode 0700."""

import contextlib
import getpass
import os
import stat
import sys
import tempfile
from pathlib import Path

import platformdirs


class UnsafeFolder(Exception):
    """A folder or file that another user could reach or that is a link: refused, with the sentence for the user."""


def runtime() -> Path:
    """Sockets and locks. `CAESURA_RUNTIME` overrides it (tests, several engines side by side). Not platformdirs': that
    warns on every call where there is no session folder, as in a container."""
    if override := os.environ.get("CAESURA_RUNTIME"):
        return private(Path(override))
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return private(Path(session) / "caesura")
    if sys.platform == "win32":
        return private(Path(tempfile.gettempdir()) / f"caesura-{getpass.getuser()}")
    return private(Path(tempfile.gettempdir()) / f"caesura-{os.getuid()}")  # it may be without a name, in a container


def logs() -> Path:
    return private(platformdirs.user_log_path("caesura"))


def models() -> Path:
    """Converted and downloaded models."""
    return private(platformdirs.user_data_path("caesura") / "models")


def keys() -> Path:
    """This machine's key and those it is paired with. Not made here: most users pair nothing."""
    return platformdirs.user_config_path("caesura") / "keys"


def private(folder: Path) -> Path:
    """Create `folder` with mode 0700 if needed and return it. Raises UnsafeFolder where others could reach in."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return checked(folder)


def checked(folder: Path) -> Path:
    """A private folder that there is. Raises UnsafeFolder, and FileNotFoundError where there is none."""
    state = folder.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise UnsafeFolder(f"{folder} is a symbolic link; remove it and try again.")
    if sys.platform != "win32":  # there the folders of a user are the user's by default
        if state.st_uid != os.getuid():
            raise UnsafeFolder(f"{folder} belongs to another user; set CAESURA_RUNTIME to a folder of your own.")
        if state.st_mode & 0o077:
            raise UnsafeFolder(f"{folder} is open to other users; run: chmod 700 {folder}")
    return folder


def own(name: str, flags: int) -> int:
    """Opens for `open`: a file that is made is for the user alone."""
    return os.open(name, flags, 0o600)


def unfollowed(name: str, flags: int) -> int:
    """Opens for `open`: no link, and nothing that one would wait for."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def read(path: Path) -> bytes | None:
    """A file of a private folder, None where there is none. Raises UnsafeFolder where others could reach either."""
    try:
        checked(path.parent)
        with open(path, "rb", opener=unfollowed) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or (sys.platform != "win32" and state.st_uid != os.getuid()):
                raise UnsafeFolder(f"{path} is no file of your own; remove it and try again.")
            if sys.platform != "win32" and state.st_mode & 0o077:
                raise UnsafeFolder(f"{path} is open to other users; run: chmod 600 {path}")
            return file.read()
    except FileNotFoundError:
        return None


def write(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file of a private folder, mode 0600, whole or not at all. Without `replace` one that is there stays."""
    descriptor, name = tempfile.mkstemp(dir=private(path.parent))  # of mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        if replace:
            os.replace(name, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
