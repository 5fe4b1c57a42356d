"""Where Caesura keeps its sockets, logs and converted models: folders of the user's own, mode 0700."""

import getpass
import os
import stat
import tempfile
from pathlib import Path

import platformdirs


class UnsafeFolder(Exception):
    """A folder that another user could write to or that is a link: refused, with the sentence for the user."""


def runtime() -> Path:
    """Sockets and locks. `CAESURA_RUNTIME` overrides it (tests, several engines side by side). Not platformdirs': that
    warns on every call where there is no session folder, as in a container."""
    if override := os.environ.get("CAESURA_RUNTIME"):
        return private(Path(override))
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return private(Path(session) / "caesura")
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # a uid may be without a name, as in a container
    return private(Path(tempfile.gettempdir()) / f"caesura-{user}")


def logs() -> Path:
    return private(platformdirs.user_log_path("caesura"))


def models() -> Path:
    """Converted and downloaded models."""
    return private(platformdirs.user_data_path("caesura") / "models")


def private(folder: Path) -> Path:
    """Create `folder` with mode 0700 if needed and return it. Raises UnsafeFolder where others could reach in."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise UnsafeFolder(f"{folder} is a symbolic link; remove it and try again.")
    if hasattr(os, "getuid"):
        if state.st_uid != os.getuid():
            raise UnsafeFolder(f"{folder} belongs to another user; set CAESURA_RUNTIME to a folder of your own.")
        if state.st_mode & 0o077:
            raise UnsafeFolder(f"{folder} is open to other users; run: chmod 700 {folder}")
    return folder
