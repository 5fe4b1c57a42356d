"""Run Ray where nobody else can reach it, and leave nothing running when the door ends (Linux, by `unshare`).

Ray listens on every address of the network that it is started in, whatever it is told, and leaves processes behind when
it is killed. So it and the relay have a network of their own, with loopback and nothing else, and Ray has process
numbers of its own, which end with the first of them. Sockets that are files still work.
"""

import os
import shutil
import socket
import struct
import subprocess
import sys

if sys.platform == "linux":
    import fcntl

SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # of sockios.h and if.h
UNSHARE = "unshare"


class NotIsolated(Exception):
    """This machine gives us no network of our own; the message is a sentence for the administrator."""


def alone() -> list[str]:
    """The beginning of a command line that runs in a network of its own. Raises NotIsolated."""
    if sys.platform != "linux":
        raise NotIsolated("Ray is started on Linux alone; start Ray Serve elsewhere and name it in `engine.address`.")
    user = [] if os.getuid() == 0 else ["--map-root-user"]  # in there we are called root, and are who we were
    command = [shutil.which(UNSHARE) or UNSHARE, "--net", *user, "--"]
    try:
        subprocess.run([*command, *together(), "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = error.strerror if isinstance(error, OSError) else error.stderr.decode(errors="replace").strip()
        advice = "allow user namespaces, or start Ray Serve yourself and name it in `engine.address`"
        raise NotIsolated(f"Ray cannot have a network of its own here ({why}); {advice}.") from error
    return command


def together() -> list[str]:
    """The beginning of a command line, in there, whose processes all end with the first one."""
    return [shutil.which(UNSHARE) or UNSHARE, "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


def open_loopback() -> None:
    """In a new network not even loopback is up."""
    if sys.platform == "linux":
        with socket.socket() as found:
            fcntl.ioctl(found, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
