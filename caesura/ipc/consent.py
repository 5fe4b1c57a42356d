"""The user's consent to send documents to an engine that is not this machine's own, folder by folder. Only the command
line takes it, since settings may come with a project. It ends as soon as it is taken back, even during a job.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
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


def covers(engine: Consented, path: Path) -> bool:
    """True if a file or folder, links followed, lies in a folder that was named for this engine."""
    return path.is_absolute() and any(Path(os.path.realpath(path)).is_relative_to(f) for f in engine.folders)


def named_for(engines: Iterable[_Engine], folders: Sequence[str]) -> _Engine | None:
    """The engine that was named for every one of these folders. None where there is no folder."""
    fits = (one for one in engines if folders and all(covers(one, Path(folder)) for folder in folders))
    return next(fits, None)


class Agreement:
    """The folders that the user lets `engine` see. `now` gives all engines as the user has them at the moment."""

    def __init__(self, engine: Consented, now: Callable[[], Iterable[Consented]]) -> None:
        self.engine = engine
        self._now = now

    def __repr__(self) -> str:
        return f"<Agreement with {self.engine.name} on {len(self.engine.folders)} folders>"

    def covers(self, path: Path) -> bool:
        """True if the file at `path`, after following links, may be sent. A file that is not on this disk never may."""
        return any(covers(one, path) for one in self._now() if one.identity == self.engine.identity)


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
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("%s: %s", self._meaning, error)
        return self._found
