"""LSP's framing: bytes in, message bodies out. Bytes outside messages are skipped."""

import re
from collections.abc import Iterator

MAX_MESSAGE = 64 << 20  # bytes
MAX_HEADER = 8 << 10  # bytes

_END = re.compile(rb"\n\r?\n")  # the end of a header, with the line break before it
_LENGTH = re.compile(rb"(?i)content-length:[ \t]*(\d{1,15})[ \t]*\r?\n")


class MessageTooLarge(Exception):
    """A header announces a message larger than MAX_MESSAGE."""


class Framer:
    """Splits a stream into messages. The last length before an empty line counts: earlier bytes may be the rest of a
    broken message."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted: int | None = None

    def __repr__(self) -> str:
        return f"<Framer {len(self._buffer)} of {self._wanted} bytes>"

    @property
    def held(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add `data`; yield the bodies that are now complete. Raises MessageTooLarge."""
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
        """Find a header; True on success. Scans each byte at most twice."""
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
