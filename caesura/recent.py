"""LRU caches bounded in bytes, for values that differ in size."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import update_wrapper
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

ENTRY = 500  # approximate bytes of a remembered call without its result

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")


class Recent(Generic[K, V]):
    """An LRU cache of at most `room` bytes. `size` returns the bytes of a key and its value. Values may grow later: all
    are measured again at each `put`. A value larger than `room` is not kept. Thread-safe."""

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


class Remembered(Generic[P, V]):
    """Like functools.lru_cache, but bounded to `room` bytes. `size` takes a result and its arguments. Errors are not
    kept."""

    def __init__(self, make: Callable[P, V], room: int, size: Callable[..., int]) -> None:
        update_wrapper(self, make)
        self._make, self._size = make, size
        self._kept = Recent[Hashable, tuple[int, V]](room, lambda _, entry: entry[0])

    def __call__(self, *args: P.args, **more: P.kwargs) -> V:
        key = args, tuple(more.items())
        entry = self._kept.get(key)
        if entry is None:
            made = self._make(*args, **more)
            entry = ENTRY + self._size(made, *args, **more), made
            self._kept.put(key, entry)
        return entry[1]

    def __repr__(self) -> str:
        return f"<Remembered {self._kept}>"

    def clear(self) -> None:
        self._kept.clear()


def remembered(room: int, size: Callable[..., int]) -> Callable[[Callable[P, V]], Remembered[P, V]]:
    """A decorator."""
    return lambda make: Remembered(make, room, size)
