"""Which files are hidden, and the text of the files that a document imports: read off the event loop, only inside the
workspace's folders, no ignored file and no link out of a folder, and bounded in count, size and time."""

import asyncio
import os
import re
import stat
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from sys import getsizeof
from urllib.parse import unquote

from caesura import paths
from caesura.ipc.consent import Agreement
from caesura.recent import Recent
from caesura.server.context.context import Snapshot
from caesura.server.context.globs import Globs, TooMany
from caesura.server.context.secrets import RULES, Ignore
from caesura.server.languages import UNKNOWN, Import, language
from caesura.server.text.workspace import path_of

MOST = 24  # most files read for one document
CASELESS = sys.platform in ("darwin", "win32")  # `Private` and `private` are usually the same folder there
MAX_BYTES = 200_000  # a larger file is not read
MAX_RULES = 65_536  # most bytes of a folder's `.caesuraignore`
TIME_S = 0.25  # for the files of one document; the ones read by then are the answer
CACHED = 4 << 20  # bytes of files kept as text
IMPORTS = 40_000  # code points at the start of a document that are searched for imports


FileStamp = tuple[int, int, int]  # a file's inode, modification time in ns, and size in bytes


class TextFiles:
    """Reads regular files of at most `largest` bytes as text. The last ones read are cached until they change, in at
    most `room` bytes."""

    def __init__(self, room: int, largest: int) -> None:
        self._largest = largest
        self._kept = Recent[Path, tuple[FileStamp, str]](room, lambda _, kept: getsizeof(kept[1]))

    def __repr__(self) -> str:
        return f"<TextFiles of {len(self)} files>"

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, real: Path) -> str | None:
        """The text of a file whose path has no links; None if it is too large or no regular file. Raises OSError, and
        ValueError if it is not UTF-8."""
        with open(real, "rb", opener=paths.unfollowed) as file:
            about = os.fstat(file.fileno())
            stamp = about.st_ino, about.st_mtime_ns, about.st_size
            if not stat.S_ISREG(about.st_mode) or about.st_size > self._largest:
                return None
            if (kept := self._kept.get(real)) and kept[0] == stamp:
                return kept[1]
            text = file.read(self._largest).decode()
        self._kept.put(real, (stamp, text))
        return text


class Files:
    """The files of the workspace's `folders` (absolute paths); `patterns` are the user's ignore globs. In an untrusted
    workspace only ignore rules are read, and patterns that begin with "!" are dropped, since the editor may have them
    from the workspace. Rules are read once: make new Files when they are `outdated`. An `agreement` hides all files
    that it does not cover."""

    def __init__(
        self,
        folders: Sequence[str] = (),
        patterns: Sequence[str] = (),
        *,
        trusted: bool = True,
        agreement: Agreement | None = None,
    ) -> None:
        if not trusted:
            patterns = [pattern for pattern in patterns if not pattern.startswith("!")]
        self._trusted = trusted
        self._agreement = agreement
        self._never = _never(agreement)
        self._outside = Ignore(patterns)
        self._inside: dict[Path, Ignore] = {}  # by folder: the editor's path of it, and the path without links
        self._read_rules = {Path(folder): _rules(Path(folder)) for folder in folders if Path(folder).is_absolute()}
        for folder, rules in self._read_rules.items():
            ignore = Ignore(patterns, rules, file=str(folder / RULES), caseless=CASELESS)
            self._inside[folder] = self._inside[folder.resolve()] = ignore
        self._texts = TextFiles(CACHED, MAX_BYTES)
        self._reading = asyncio.Lock()  # a slow disk blocks one thread at most

    def __repr__(self) -> str:
        return f"<Files of {len(self._inside)} folders, {len(self._texts)} kept>"

    @property
    def problems(self) -> list[str]:
        """A sentence for each ignore pattern that could not be read."""
        ignores = (self._outside, *self._inside.values())
        return list(dict.fromkeys([*(problem for ignore in ignores for problem in ignore.problems), *self._left_out]))

    @property
    def _left_out(self) -> Iterator[str]:
        """A sentence for each folder that joined the workspace after the choice of its engine."""
        for folder in self._read_rules if self._agreement else ():
            if self._agreement and not self._agreement.covers(folder):
                name = self._agreement.engine.name
                yield f"{folder} gets no completions: it was not named for the engine {name}. Restart the editor."

    @property
    def outdated(self) -> bool:
        """True if a folder's `.caesuraignore` has changed since it was read."""
        return any(_rules(folder) != rules for folder, rules in self._read_rules.items())

    def hides(self, uri: str) -> bool:
        """True if a document gets no suggestions and nothing is read of it. Reads no file."""
        return self.rule(uri) is not None

    def rule(self, uri: str) -> str | None:
        """The rule that hides a document, in words; None if none does. It may hide the document's path or, where that
        leads through links, the file's own path."""
        ways = _ways(path_of(uri) or unquote(re.split("[?#]", uri.partition(":")[2])[0]))
        return next((rule for rule in map(self._rule, ways) if rule), None)

    def withholds(self, real: Path) -> bool:
        """True if the engine is on another machine, and the text of this file must not be sent there."""
        return self._agreement is not None and self._rule(real) is not None

    async def imported(self, uri: str, text: str, language_id: str) -> tuple[Snapshot, ...]:
        """The files that a document imports, in the order of its imports. Reads for one document at a time."""
        path = path_of(uri)
        if not self._trusted or not path or self._folder(Path(path)) is None:
            return ()
        async with self._reading:
            return tuple(await asyncio.to_thread(self._snapshots, Path(path), text[:IMPORTS], language_id))

    # On a thread

    def _snapshots(self, document: Path, text: str, language_id: str) -> Collection[Snapshot]:
        end = time.monotonic() + TIME_S
        found: dict[Path, Snapshot] = {}
        for wanted in language(language_id).imports(text, document.name):
            if len(found) == MOST or time.monotonic() > end:
                break
            path = self._path(wanted, document, language_id)
            if path is not None and path not in found and (snapshot := self._snapshot(path)):
                found[path] = snapshot
        return found.values()

    def _path(self, wanted: Import, document: Path, language_id: str) -> Path | None:
        """The first file that matches an import."""
        endings = language(language_id).endings
        folder = self._folder(document)
        roots = [document.parent] if wanted.relative or folder is None else _roots(document, folder)
        tries = (os.path.normpath(root / path) for path in wanted.paths for root in roots)
        paths = (Path(f"{path}{ending}") for path in tries for ending in endings)
        return next((path for path in paths if path != document and _is_file(path)), None)

    def _snapshot(self, path: Path) -> Snapshot | None:
        folder = self._folder(path)
        row = language("", path.name)
        if folder is None or row is UNKNOWN or self._rule(path):
            return None
        text = self._read(path)
        if text is None:
            return None
        return Snapshot(path.relative_to(folder).as_posix(), row.id, text)

    def _read(self, path: Path) -> str | None:
        """The text of a file that lies, with links resolved, in one of the folders; None for any other, or if it is no
        text."""
        try:
            real = path.resolve(strict=True)
            if self._folder(real) is None or self._rule(real):
                return None
            return self._texts.read(real)
        except (OSError, ValueError, RuntimeError):  # gone, no UTF-8, a loop of links
            return None

    def _rule(self, path: Path) -> str | None:
        if self._agreement and not self._agreement.covers(path):
            return f"the engine {self._agreement.engine.name}, since its folder was not named for that engine"
        folder = self._folder(path)
        if self._never and any(map(self._never.match, _from(path, folder))):
            return "the policy of the engine's administrator"
        if folder is None:
            return self._outside.rule(path.as_posix())
        return self._inside[folder].rule(path.relative_to(folder).as_posix())

    def _folder(self, path: Path) -> Path | None:
        """The innermost folder that contains the path, without following links: `_read` follows them."""
        inside = [folder for folder in self._inside if path.is_relative_to(folder) and ".." not in path.parts]
        return max(inside, key=lambda folder: len(folder.parts), default=None)


def hidden_by(path: Path) -> str | None:
    """The rule that hides a file from the command line, in words; None if none does. Rules are the built-in ones, and
    the `.caesuraignore` of each folder above the file and above its target, if it is a link."""
    ways = _ways(str(Path.cwd() / path))
    built_in = (Ignore().rule(way.as_posix()) for way in ways)
    of_folders = (_ruled(way, folder) for way in ways for folder in way.parents)
    return next((rule for rule in chain(built_in, of_folders) if rule), None)


def _ruled(path: Path, folder: Path) -> str | None:
    """The rule of a folder's `.caesuraignore` that hides a file in the folder."""
    if (rules := _rules(folder)) == []:
        return None
    ignore = Ignore((), rules, file=str(folder / RULES), caseless=CASELESS)
    return ignore.rule(path.relative_to(folder).as_posix())


def _ways(path: str) -> list[Path]:
    """A file's path as it is given, without `..`, and its path without links, if that is another one."""
    ways = [os.path.normpath(path)]
    if os.path.isabs(path):
        with suppress(OSError, ValueError):  # no file has such a name
            ways.append(os.path.realpath(path))
    if os.sep == "/":
        ways = [re.sub("^//+", "/", way) for way in ways]  # of `file:////`
    return [Path(way) for way in dict.fromkeys(ways)]


def _rules(folder: Path) -> list[str] | None:
    """The lines of a folder's `.caesuraignore`; None if it cannot be read."""
    path = folder / RULES
    try:
        if not path.is_file():
            return []
        return path.read_text("utf-8").splitlines() if path.stat().st_size < MAX_RULES else None
    except (OSError, ValueError):
        return None


def _never(agreement: Agreement | None) -> Globs | None:
    """What the administrator of an engine does not want to have; all, where the patterns are too many."""
    if agreement is None or not agreement.never:
        return None
    try:
        return Globs(agreement.never)
    except TooMany:
        return Globs(["*"])


def _from(path: Path, folder: Path | None) -> list[str]:
    """A file's path from the root and from its folder, for a pattern may mean either."""
    inside = [path.relative_to(folder).as_posix()] if folder else []
    return [path.as_posix().lstrip("/"), *inside]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _roots(document: Path, folder: Path) -> list[Path]:
    """The roots of absolute imports: the folder, its usual source folders, and every folder down to the document."""
    above = [parent for parent in document.parents if parent.is_relative_to(folder)]
    return list(dict.fromkeys([folder, folder / "src", folder / "lib", folder / "include", *above]))
