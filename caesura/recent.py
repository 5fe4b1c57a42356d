"""What was used last, bounded by the bytes that it takes: for caches whose values differ in size."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, those used last, of at most `room` bytes together. `size` gives the bytes of a key and its value;
    it is asked whenever that one is used, since values may grow. What does not fit alone is not kept. For several
    threads."""

    def __init__(self, room: int, size: Callable[[K, V], int]) -> None:
        self._room, self._size = room, size
        self._kept = OrderedDict[K, tuple[V, int]]()
        self._lock = Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Recent {len(self)}, {self.nbytes >> 10} of {self._room >> 10} KiB>"

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._put(key, found[0])
            return found[0] if key in self._kept else None

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._put(key, value)

    def drop(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.nbytes = 0

    def _put(self, key: K, value: V) -> None:
        self._drop(key)
        size = self._size(key, value)
        if size > self._room:
            return
        self._kept[key] = value, size
        self.nbytes += size
        while self.nbytes > self._room:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: K) -> None:
        if found := self._kept.pop(key, None):
            self.nbytes -= found[1]
