"""Where what a model wrote is run. Against accidents of a model, not against an attacker."""

import inspect
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

CPU_S, WALL_S, MEMORY = 5, 30.0, 1 << 30  # of a program in the sandbox; the wall time is for machines that are busy


def passes(program: str, *, cpu_s: int = CPU_S, wall_s: float = WALL_S) -> bool:
    """Whether a program runs to its end."""
    secret = secrets.token_hex(16)
    source = inspect.getsource(confined) + "\nconfined()\n"
    with tempfile.TemporaryDirectory(prefix="caesura-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-X", "utf8", "-c", source, secret, str(cpu_s), str(MEMORY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(program.encode("utf-8", errors="replace"), timeout=wall_s)
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return said.decode(errors="replace") == secret


def confined() -> None:
    """What runs in the sandbox's process, sent there as source: limits, then the program that stdin holds.

    Says the secret at the end, so that a program that exits early has not passed.
    """
    import os
    import resource
    import sys

    secret, cpu_s, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    program = sys.stdin.buffer.read().decode()
    out, silence = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    limits = [(resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0)]
    for limit, most in [*limits, (resource.RLIMIT_CORE, 0)]:
        try:
            resource.setrlimit(limit, (most, most))
        except (ValueError, OSError):
            if limit != resource.RLIMIT_AS:  # macOS has none
                raise

    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    harmless = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"}
    refused = {"ctypes", "fcntl", "os", "pty", "resource", "shutil", "signal", "socket", "sqlite3", "subprocess"}

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        if isinstance(flags, int) and flags & writing:
            raise PermissionError("the sandbox is read-only")
        if event.partition(".")[0] in refused and event not in harmless:
            raise PermissionError(f"{event} is refused in the sandbox")

    sys.addaudithook(audit)
    exec(compile(program, "program.py", "exec"), {"__name__": "program"})  # noqa: S102  (what a sandbox is for)
    os.write(out, secret.encode())
