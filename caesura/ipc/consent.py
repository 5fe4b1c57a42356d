"""The user's consent to send documents to an engine that is not this machine's own, folder by folder. Only the command
line takes it, since settings may come with a project. It ends as soon as it is taken back, even during a job.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from caesura import paths

log = logging.getLogger(__name__)

_Content = TypeVar("_Content")


class Consented(Protocol):
    """An engine, and the folders, without links, whose documents may be sent to it. `identity` is what the user has
    agreed to: an engine that differs in it is another one."""

    @property
    def name(self) -> str: ...
    @property
    def folders(self) -> tuple[str, ...]: ...
    @property
    def identity(self) -> tuple[str, ...]: ...


_Engine = TypeVar("_Engine", bound=Consented)


def named_for(engines: Sequence[_Engine], folders: Sequence[str]) -> _Engine | None:
    """The engine that every one of these folders belongs to. None where there is no folder."""
    owners = [_owner(engines, Path(folder)) for folder in folders]
    return owners[0] if owners and all(one is owners[0] for one in owners) else None


def _owner(engines: Iterable[_Engine], path: Path) -> _Engine | None:
    """The engine that a file or folder, links followed, belongs to: that of the innermost folder named around it, and
    the first one where a folder was named for several."""
    if not path.is_absolute():
        return None
    place = Path(os.path.realpath(path))
    fits = ((len(f), engine) for engine in engines for f in engine.folders if place.is_relative_to(f))
    return max(fits, key=itemgetter(0), default=(0, None))[1]


class Agreement:
    """The folders that the user lets `engine` see. `now` gives all engines as the user has them at the moment. `never`
    are the patterns of files that the engine's administrator does not want to have."""

    def __init__(self, engine: Consented, now: Callable[[], Iterable[Consented]]) -> None:
        self.engine = engine
        self.never: tuple[str, ...] = ()
        self._now = now

    def __repr__(self) -> str:
        return f"<Agreement with {self.engine.name} on {len(self.engine.folders)} folders>"

    def covers(self, path: Path) -> bool:
        """True if the file at `path`, after following links, may be sent. A file that is not on this disk never may."""
        owner = _owner(self._now(), path)
        return owner is not None and owner.identity == self.engine.identity


class WatchedFile(Generic[_Content]):
    """The content of a file in the folder for keys, read again when it has changed, so that what is taken back ends at
    once. A file that cannot be read counts as `nothing`; the log calls that by its `meaning`."""

    def __init__(self, path: Path, read: Callable[[], _Content], nothing: _Content, meaning: str) -> None:
        self._path = path
        self._read = read
        self._nothing = self._found = nothing
        self._meaning = meaning
        self._seen: tuple[int, int] | None = None
        self._trouble = ""  # said once

    def __repr__(self) -> str:
        return f"<WatchedFile {self._path.name} {self._trouble!r}>"

    @property
    def now(self) -> _Content:
        try:
            about = self._path.lstat()
            seen = about.st_ino, about.st_ctime_ns
            if seen != self._seen:
                self._found = self._read()
            self._seen, self._trouble = seen, ""
        except FileNotFoundError:
            self._found, self._seen = self._nothing, None
        except (
            paths.DamagedFile,
            paths.UnsafeFolder,
            OSError,
        ) as error:  # mended without a change of the file, perhaps
            self._found, self._seen = self._nothing, None
            if paths.reason(error) != self._trouble:
                self._trouble = paths.reason(error)
                log.warning("%s: %s", self._meaning, self._trouble)
        return self._found
