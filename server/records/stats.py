"""Counts of suggestions shown and accepted, by day and language, in a local file that the user can read.

Several servers add to the same file. Nothing leaves this machine.
"""

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from pathlib import Path

import msgspec

from caesura import paths
from caesura.server.records import store

DELAY_S = 5.0
KEPT = timedelta(days=400)
NAME_LENGTH = 64  # code points of a language's name


class Counts(msgspec.Struct):
    """Numbers of suggestions; `characters` are code points. A suggestion accepted word by word adds one to `partly` for
    each part, since editors report parts only."""

    shown: int = 0
    accepted: int = 0
    partly: int = 0
    rejected: int = 0
    shown_characters: int = 0
    accepted_characters: int = 0

    def add(self, other: "Counts") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Days = dict[str, dict[str, Counts]]  # ISO date -> language -> counts


class Stats:
    """One server's counts, written in batches."""

    def __init__(
        self,
        path: Callable[[], Path] | None = None,
        today: Callable[[], date] = date.today,
        delay_s: float = DELAY_S,
    ) -> None:
        self._enabled = True
        self._path = path or file
        self._today = today
        self._new: Days = {}
        self._writer = store.BatchWriter(self._take, self._write, delay_s)

    def __repr__(self) -> str:
        return f"<Stats {self._new}>"

    def enable(self, enabled: bool) -> None:
        """Off: count nothing, and drop what is not written yet."""
        self._enabled = enabled
        if not enabled:
            self._new = {}

    def shown(self, language: str, characters: int) -> None:
        self._count(language, Counts(shown=1, shown_characters=characters))

    def grown(self, language: str, characters: int) -> None:
        """The suggestion on the screen got longer by `characters`."""
        self._count(language, Counts(shown_characters=characters))

    def accepted(self, language: str, characters: int) -> None:
        self._count(language, Counts(accepted=1, accepted_characters=characters))

    def partly(self, language: str, characters: int) -> None:
        """One part was accepted, of `characters` code points."""
        self._count(language, Counts(partly=1, accepted_characters=characters))

    def rejected(self, language: str, characters: int) -> None:
        """`characters` are ignored: they were counted when shown."""
        self._count(language, Counts(rejected=1))

    async def close(self) -> None:
        """Write the rest."""
        await self._writer.close()

    def _count(self, language: str, counts: Counts) -> None:
        if self._enabled:
            _add(self._new, self._today().isoformat(), language[:NAME_LENGTH], counts)
            self._writer.soon()

    def _take(self) -> Days | None:
        taken, self._new = self._new, {}
        return taken or None

    def _write(self, news: Days) -> None:
        path = self._path()
        with store.locked(path):
            try:
                days = read(path)
            except paths.DamagedFile:
                path.replace(path.with_name(f"{path.name}.damaged"))
                days = {}
            for day, languages in news.items():
                for language, counts in languages.items():
                    _add(days, day, language, counts)
            oldest = (self._today() - KEPT).isoformat()
            kept = {day: days[day] for day in sorted(days) if day >= oldest}
            store.replace(path, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def file() -> Path:
    return paths.logs() / "stats.json"


def read(path: Path) -> Days:
    """Raises paths.DamagedFile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Days)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise paths.DamagedFile(
            f"{path} cannot be read ({error}); run `caesura stats --reset` to start a new one."
        ) from error


def reset(path: Path) -> None:
    """Delete all counts. Raises OSError or UnsafeFolder."""
    with store.locked(path):
        path.unlink(missing_ok=True)


def total(days: Days, first: date, last: date) -> dict[str, Counts]:
    """Counts by language from `first` to `last`, both included, the most shown first."""
    found: Days = {}
    for day in _between(days, first, last):
        for language, counts in days[day].items():
            _add(found, "", language, counts)
    return dict(sorted(found.get("", {}).items(), key=lambda pair: -pair[1].shown))


def _between(days: Days, first: date, last: date) -> Iterable[str]:
    return (day for day in days if first.isoformat() <= day <= last.isoformat())


def _add(days: Days, day: str, language: str, counts: Counts) -> None:
    days.setdefault(day, {}).setdefault(language, Counts()).add(counts)
