"""How many suggestions were shown and taken, by day and language, in a file on this machine that the user can read.

Several servers add to the same file, each what is new with it. Nothing is sent anywhere.
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


class Damaged(Exception):
    """The file is not what we have written; the message is a sentence for the user."""


class Counts(msgspec.Struct):
    """Suggestions, and `characters` in code points. A suggestion taken word by word is `partly` accepted once for each
    part, as editors tell of parts only."""

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
    """The counts of one server, written in batches."""

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
        self._writer = store.Writer(self._take, self._write, delay_s)

    def __repr__(self) -> str:
        return f"<Stats {self._new}>"

    def enable(self, enabled: bool) -> None:
        """Off: nothing is counted, and what is not written yet is dropped."""
        self._enabled = enabled
        if not enabled:
            self._new = {}

    def shown(self, language: str, characters: int) -> None:
        self._count(language, Counts(shown=1, shown_characters=characters))

    def grown(self, language: str, characters: int) -> None:
        """What is shown goes on for so many more."""
        self._count(language, Counts(shown_characters=characters))

    def accepted(self, language: str, characters: int) -> None:
        self._count(language, Counts(accepted=1, accepted_characters=characters))

    def partly(self, language: str, characters: int) -> None:
        """`characters` are those of this part."""
        self._count(language, Counts(partly=1, accepted_characters=characters))

    def rejected(self, language: str, characters: int) -> None:
        """One of `characters`, which are not counted: they are among those shown."""
        self._count(language, Counts(rejected=1))

    async def close(self) -> None:
        """Write what is left."""
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
            except Damaged:
                path.replace(path.with_name(f"{path.name}.damaged"))
                days = {}
            for day, languages in news.items():
                for language, counts in languages.items():
                    _add(days, day, language, counts)
            oldest = (self._today() - KEPT).isoformat()
            kept = {day: days[day] for day in sorted(days) if day >= oldest}
            store.replace(path, msgspec.json.format(msgspec.json.encode(kept), indent=1))


def file() -> Path:
    """Raises paths.UnsafeFolder."""
    return paths.logs() / "stats.json"


def read(path: Path) -> Days:
    """Raises Damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Days)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise Damaged(f"{path} cannot be read ({error}); `caesura stats --reset` begins a new one.") from error


def reset(path: Path) -> None:
    """Forget everything. Raises OSError."""
    with store.locked(path):
        path.unlink(missing_ok=True)


def total(days: Days, first: date, last: date) -> dict[str, Counts]:
    """By language from `first` to `last`, both included; the most shown comes first."""
    found: Days = {}
    for day in _between(days, first, last):
        for language, counts in days[day].items():
            _add(found, "", language, counts)
    return dict(sorted(found.get("", {}).items(), key=lambda pair: -pair[1].shown))


def _between(days: Days, first: date, last: date) -> Iterable[str]:
    return (day for day in days if first.isoformat() <= day <= last.isoformat())


def _add(days: Days, day: str, language: str, counts: Counts) -> None:
    days.setdefault(day, {}).setdefault(language, Counts()).add(counts)
