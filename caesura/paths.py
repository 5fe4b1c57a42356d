"""The user's private folders (mode 0700) for sockets, logs, keys and models. They are created by what writes there."""

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
    """Sockets and locks. `CAESURA_RUNTIME` overrides it, for tests and for several engines. The session's folder is not
    used if it is another user's, as after `sudo -E`. platformdirs' folder would warn on every call without a session
    folder, as in a container. Raises UnsafeFolder or OSError."""
    if override := os.environ.get("CAESURA_RUNTIME"):
        return private(Path(override), "CAESURA_RUNTIME")
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or os.devnull)
    if _owned(session) and (_owned(session / "caesura") or not (session / "caesura").exists()):
        return private(session / "caesura", "CAESURA_RUNTIME")
    return private(Path(tempfile.gettempdir()) / f"caesura-{_user()}", "CAESURA_RUNTIME")


def _user() -> str:
    if sys.platform == "win32":
        return getpass.getuser()
    return str(os.getuid())  # in a container, a user may have no name


def logs() -> Path:
    """Logs, statistics, traces and speeds."""
    return platformdirs.user_log_path("caesura")


def tiles() -> Path:
    """Models as the C kernels map them: a cache."""
    return platformdirs.user_cache_path("caesura") / "tiles"


def models() -> Path:
    """Converted and downloaded models. Raises UnsafeFolder."""
    folder = platformdirs.user_data_path("caesura") / "models"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        checked(folder)
    return folder


def keys() -> Path:
    """This machine's key and its paired machines."""
    return platformdirs.user_config_path("caesura") / "keys"


def private(folder: Path, variable: str = "HOME") -> Path:
    """Create `folder` with mode 0700 if needed, but not in a folder of another user: root would lock that user out.
    Raises UnsafeFolder, which names the environment variable that chooses the folder, or OSError."""
    if not folder.exists():
        parent = next(above for above in folder.parents if above.exists())
        if sys.platform != "win32" and parent.stat().st_uid not in (0, os.getuid()):
            why = f"{folder} is not created, since {parent} belongs to another user"
            raise UnsafeFolder(f"{why}; set {variable} to a folder of your own.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return checked(folder, variable)


def checked(folder: Path, variable: str = "HOME") -> Path:
    """An existing private folder. Raises UnsafeFolder, FileNotFoundError or NotADirectoryError."""
    state = folder.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise UnsafeFolder(f"{folder} is a symbolic link; remove it, or set {variable} to a folder of your own.")
    if sys.platform != "win32":  # on Windows, a user's folders are private by default
        if state.st_uid != os.getuid():
            raise UnsafeFolder(f"{folder} belongs to another user; set {variable} to a folder of your own.")
        if state.st_mode & 0o077:
            raise UnsafeFolder(f"{folder} is open to other users; run: chmod 700 {folder}")
    return folder


def _owned(folder: Path) -> bool:
    """True for an existing folder of this user, also by a link."""
    try:
        return folder.is_dir() and (sys.platform == "win32" or folder.stat().st_uid == os.getuid())
    except OSError:
        return False


def reason(error: Exception) -> str:
    """The sentence of an UnsafeFolder, or of an OSError without its number."""
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def own(name: str, flags: int) -> int:
    """An opener for `open`: new files have mode 0600."""
    return os.open(name, flags, 0o600)


def unfollowed(name: str, flags: int) -> int:
    """An opener for `open`: follows no link, and does not block on a FIFO."""
    return unblocked(name, flags | getattr(os, "O_NOFOLLOW", 0))


def unblocked(name: str, flags: int) -> int:
    """An opener for `open`: does not block on a FIFO, and takes no terminal."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


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
    except (FileNotFoundError, NotADirectoryError):
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
