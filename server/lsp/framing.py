"""LSP's framing: bytes in, message bodies out. What is no message is skipped."""

import re
from collections.abc import Iterator

MAX_MESSAGE = 64 << 20  # bytes
MAX_HEADER = 8 << 10

_END = re.compile(rb"\n\r?\n")  # of a header, with the line break before it
_LENGTH = re.compile(rb"(?i)content-length:[ \t]*(\d{1,15})[ \t]*\r?\n")


class MessageTooLarge(Exception):
    """A header announces more than we are ready to hold."""


class Framer:
    """The last length before an empty line counts: what comes before it may be the rest of a broken message."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted: int | None = None

    def __repr__(self) -> str:
        return f"<Framer {len(self._buffer)} of {self._wanted} bytes>"

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that `data` completes. Raises MessageTooLarge."""
        self._buffer += data
        while True:
            if self._wanted is None and not self._header():
                return
            assert self._wanted is not None
            if len(self._buffer) < self._wanted:
                return
            yield bytes(memoryview(self._buffer)[: self._wanted])
            del self._buffer[: self._wanted]
            self._wanted = None

    def _header(self) -> bool:
        """Whether a header was found. Each byte is looked at once or twice, whatever the bytes are."""
        while end := _END.search(self._buffer):
            lengths = _LENGTH.findall(self._buffer, max(0, end.start() - MAX_HEADER), end.start() + 1)
            del self._buffer[: end.end()]
            if lengths:
                self._wanted = int(lengths[-1])
                if self._wanted > MAX_MESSAGE:
                    raise MessageTooLarge
                return True
        del self._buffer[:-MAX_HEADER]
        return False
