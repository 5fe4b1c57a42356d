"""What was used last, bounded by the bytes that it takes: for caches whose values differ in size."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, those used last, of at most `room` bytes together. `size` gives the bytes of a key and its value.
    Values may grow after they were put: all are measured again when the next one is. What does not fit alone is not
    kept. For several threads."""

    def __init__(self, room: int, size: Callable[[K, V], int]) -> None:
        self._room, self._size = room, size
        self._kept = OrderedDict[K, V]()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Recent {len(self)}, {self.nbytes >> 10} of {self._room >> 10} KiB>"

    @property
    def nbytes(self) -> int:
        return sum(self._size(key, value) for key, value in self._kept.items())

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None and self._size(key, found) > self._room:
                found = None
                del self._kept[key]
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._kept.pop(key, None)
            if self._size(key, value) <= self._room:
                self._kept[key] = value
            excess = self.nbytes - self._room
            while excess > 0:
                excess -= self._size(*self._kept.popitem(last=False))

    def drop(self, key: K) -> None:
        with self._lock:
            self._kept.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
