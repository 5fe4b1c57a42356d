"""The user's private folders (mode 0700) for sockets, logs, keys and models."""

import contextlib
import getpass
import os
import stat
import sys
import tempfile
from pathlib import Path

import platformdirs


class UnsafeFolder(Exception):
    """A folder or file is a link or open to other users; the message is a sentence for the user."""


class DamagedFile(Exception):
    """A file of ours cannot be read; the message is a sentence for the user."""


def runtime() -> Path:
    """Sockets and locks. `CAESURA_RUNTIME` overrides it, for tests and for several engines. platformdirs' folder would
    warn on every call without a session folder, as in a container."""
    if override := os.environ.get("CAESURA_RUNTIME"):
        return private(Path(override))
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return private(Path(session) / "caesura")
    if sys.platform == "win32":
        return private(Path(tempfile.gettempdir()) / f"caesura-{getpass.getuser()}")
    return private(Path(tempfile.gettempdir()) / f"caesura-{os.getuid()}")  # in a container, a user may have no name


def logs() -> Path:
    return private(platformdirs.user_log_path("caesura"))


def models() -> Path:
    """Converted and downloaded models."""
    return private(platformdirs.user_data_path("caesura") / "models")


def keys() -> Path:
    """This machine's key and its paired machines. Not created here, since most users pair nothing."""
    return platformdirs.user_config_path("caesura") / "keys"


def private(folder: Path) -> Path:
    """Create `folder` with mode 0700 if needed. Raises UnsafeFolder if it is open to other users."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return checked(folder)


def checked(folder: Path) -> Path:
    """An existing private folder. Raises UnsafeFolder or FileNotFoundError."""
    state = folder.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise UnsafeFolder(f"{folder} is a symbolic link; remove it and try again.")
    if sys.platform != "win32":  # on Windows, a user's folders are private by default
        if state.st_uid != os.getuid():
            raise UnsafeFolder(f"{folder} belongs to another user; set CAESURA_RUNTIME to a folder of your own.")
        if state.st_mode & 0o077:
            raise UnsafeFolder(f"{folder} is open to other users; run: chmod 700 {folder}")
    return folder


def own(name: str, flags: int) -> int:
    """An opener for `open`: new files have mode 0600."""
    return os.open(name, flags, 0o600)


def unfollowed(name: str, flags: int) -> int:
    """An opener for `open`: follows no link, and does not block on a FIFO."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def read(path: Path) -> bytes | None:
    """The content of a file in a private folder; None if there is no file. Raises UnsafeFolder."""
    try:
        checked(path.parent)
        with open(path, "rb", opener=unfollowed) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or (sys.platform != "win32" and state.st_uid != os.getuid()):
                raise UnsafeFolder(f"{path} is not a file of yours; remove it and try again.")
            if sys.platform != "win32" and state.st_mode & 0o077:
                raise UnsafeFolder(f"{path} is open to other users; run: chmod 600 {path}")
            return file.read()
    except FileNotFoundError:
        return None


def write(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file of a private folder atomically, mode 0600. Without `replace`, an existing file stays."""
    descriptor, name = tempfile.mkstemp(dir=private(path.parent))  # mode 0600
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
