"""A file that the command line edits: checked when read, and written as a whole, only if nobody else changed it."""

import contextlib
import io
import os
import re
import stat
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caesura import paths
from caesura.commands import CommandFailed
from caesura.server.context.files import hidden_by

MAX_BYTES = 5_000_000
_BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class SourceFile:
    """A text file: its `path` as given, and its `real` one without links. `text` has no byte order mark, which editors
    do not count as a column."""

    path: Path
    real: Path
    data: bytes
    text: str

    @staticmethod
    def read(name: str, *, anyway: bool = False, write: bool = False) -> "SourceFile":
        """Read a text file of at most MAX_BYTES: a hidden one only `anyway`, and to `write` it only what the user may
        write. Raises CommandFailed or OSError."""
        path, real = Path(name), Path(os.path.realpath(name))
        try:
            state = path.stat()
        except FileNotFoundError:
            raise CommandFailed(f"{name} does not exist.") from None
        if stat.S_ISDIR(state.st_mode):
            raise CommandFailed(f"{name} is a directory.")
        if not stat.S_ISREG(state.st_mode):
            raise CommandFailed(f"{name} is not a regular file.")
        if state.st_size > MAX_BYTES:
            raise CommandFailed(f"{name} is larger than {MAX_BYTES // 10**6} MB.")
        if not anyway and (rule := hidden_by(path)):
            raise CommandFailed(f"{name} is hidden by {rule}; add --anyway to use it all the same.")
        if write:
            _check_writable(path)
        with open(real, "rb", opener=paths.unfollowed) as file:
            data = file.read(MAX_BYTES)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise CommandFailed(f"{name} is not UTF-8 text.") from None
        if "\0" in text:
            raise CommandFailed(f"{name} is a binary file.")
        return SourceFile(path, real, data, text.removeprefix(_BOM))

    def offset(self, line: int, column: int) -> int:
        """The offset of a position counted from 1. Raises CommandFailed after the end of the file or of the line."""
        starts = [0, *(found.end() for found in _LINE_END.finditer(self.text))]
        if line > len(starts):
            raise CommandFailed(f"{self.path} has no line {line}; its last is {len(starts)}.")
        start = starts[line - 1]
        end = found.start() if (found := _LINE_END.search(self.text, start)) else len(self.text)
        if column > end - start + 1:
            raise CommandFailed(f"Line {line} of {self.path} has no column {column}; its last is {end - start + 1}.")
        return start + column - 1

    def span(self, at: tuple[int, int], to: tuple[int, int] | None) -> tuple[int, int]:
        """The offsets of `--at` and `--to`. Raises CommandFailed."""
        start = self.offset(*at)
        end = self.offset(*to) if to else start
        if end < start:
            raise CommandFailed("--to lies before --at.")
        return start, end

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, counted from 1."""
        ends = [found.end() for found in _LINE_END.finditer(self.text, 0, offset)]
        return len(ends) + 1, offset - (ends[-1] if ends else 0) + 1

    def write(self, edits: Sequence[tuple[int, int, str]]) -> None:
        """Replace the spans `start:end`, in order, by their texts. Every other byte stays, and so do the file's names,
        owner, mode and attributes. Raises CommandFailed or OSError."""
        parts, last = [_BOM if self.data.startswith(_BOM.encode()) else ""], 0
        for start, end, text in edits:
            parts += [self.text[last:start], text]
            last = end
        parts.append(self.text[last:])
        self._replace("".join(parts).encode())

    def _replace(self, data: bytes) -> None:
        """Replace the file by a new one. If that would not be what the old one is, write into the old one."""
        changed = CommandFailed(f"{self.path} has changed meanwhile; nothing was written.")
        if os.path.realpath(self.path) != str(self.real):
            raise changed
        _check_writable(self.real)
        new = _alike(self.real, data)
        try:
            with open(self.real, "r+b", buffering=0, opener=paths.unfollowed) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read() != self.data:
                    raise changed
                if new is None:
                    _overwrite(file, data, self.data)
            if new is not None:
                os.replace(new, self.real)
        except BaseException:
            if new is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)
            raise


def _check_writable(path: Path) -> None:
    """Raises CommandFailed if the user may not write a file, or has protected it; that protects it from root too."""
    if not (path.stat().st_mode & stat.S_IWUSR and os.access(path, os.W_OK)):
        raise CommandFailed(f"{path} is write-protected; change its permissions, or leave out --write.")


def _alike(real: Path, data: bytes) -> str | None:
    """A new file next to `real` that has `data`, and its owner, mode and attributes. None if none can be made, or if
    the file has other names, which would keep the old one."""
    state = real.stat()
    if state.st_nlink > 1:
        return None
    try:
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=".caesura-")
    except PermissionError:  # a file may be written in a folder that may not
        return None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.chmod(name, stat.S_IMODE(state.st_mode))
            file.flush()
            os.fsync(file.fileno())
        if _attributes(name) == _attributes(str(real)):
            return name
    except BaseException:
        os.unlink(name)
        raise
    os.unlink(name)
    return None


def _attributes(name: str) -> tuple[int, int, int, dict[str, bytes]]:
    """Owner, group, mode and, on Linux, extended attributes. These hold access control lists too."""
    state, extended = os.stat(name), dict[str, bytes]()
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not every file system has some
            extended = {key: os.getxattr(name, key) for key in os.listxattr(name)}
    return state.st_uid, state.st_gid, state.st_mode, extended


def _overwrite(file: io.FileIO, data: bytes, before: bytes) -> None:
    """Write `data` into an open file; if that fails, `before` again."""
    try:
        _fill(file, data)
    except BaseException:
        _fill(file, before)
        raise


def _fill(file: io.FileIO, data: bytes) -> None:
    file.seek(0)
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    file.truncate()
    os.fsync(file.fileno())
