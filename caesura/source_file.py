"""A file that the command line edits: checked when read, and replaced as a whole, only if nobody else changed it."""

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caesura.commands import CommandFailed

MAX_BYTES = 5_000_000
_BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class SourceFile:
    """A text file. `text` has no byte order mark, which editors do not count as a column."""

    path: Path
    data: bytes
    text: str

    @staticmethod
    def read(name: str) -> "SourceFile":
        """Read a text file of at most MAX_BYTES. Raises CommandFailed."""
        path = Path(name)
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
        data = path.read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise CommandFailed(f"{name} is not UTF-8 text.") from None
        if "\0" in text:
            raise CommandFailed(f"{name} is a binary file.")
        return SourceFile(path, data, text.removeprefix(_BOM))

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
        """Replace the spans `start:end`, in order, by their texts. Every other byte stays; so does the mode."""
        parts, last = [_BOM if self.data.startswith(_BOM.encode()) else ""], 0
        for start, end, text in edits:
            parts += [self.text[last:start], text]
            last = end
        parts.append(self.text[last:])
        self._replace("".join(parts).encode())

    def _replace(self, data: bytes) -> None:
        target = self.path.resolve()  # a link stays a link
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                os.chmod(name, stat.S_IMODE(target.stat().st_mode))
                file.flush()
                os.fsync(file.fileno())
            if target.read_bytes() != self.data:
                raise CommandFailed(f"{self.path} has changed meanwhile; nothing was written.")
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
