"""Match files by gitignore patterns. They may come with an untrusted project, so RE2 matches them: all at once, in time
linear in the path. Python's `re` may take hours for a single pattern.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

import re2
from pathspec import GitIgnoreSpec

MOST = 1000  # patterns in one set
LONGEST = 1000  # characters of a pattern; RE2 has a memory limit
CACHED = 256  # paths whose result is cached

_WRONG = (ValueError, re.error, re2.error)


class TooMany(Exception):
    """The patterns are too many or too long, or need too much memory."""


class Globs:
    """A set of patterns, of which the last that matches decides (`!` negates). Invalid ones are ignored and listed in
    `wrong`. Raises TooMany."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.wrong: list[str] = []
        patterns = [pattern for pattern in patterns if pattern.strip() and not pattern.startswith("#")]
        if len(patterns) > MOST or any(len(pattern) > LONGEST for pattern in patterns):
            raise TooMany
        self.match = lru_cache(CACHED)(self._match)  # hundreds of long patterns take 0.1 s on a long path
        self._patterns = patterns
        try:
            self._spec = _spec(patterns)
        except _WRONG:
            self.wrong = [pattern for pattern in patterns if _is_wrong(pattern)]
            self._patterns = [pattern for pattern in patterns if pattern not in self.wrong]
            try:
                self._spec = _spec(self._patterns)
            except _WRONG:
                raise TooMany from None

    def __repr__(self) -> str:
        return f"<Globs {len(self._spec)} patterns, {len(self.wrong)} wrong>"

    def _match(self, path: str) -> str | None:
        """The pattern that `path`, with `/` between folders, matches; None if it matches none."""
        found = self._spec.check_file(path.encode(errors="replace").decode())  # a name may not be valid UTF-8
        return self._patterns[found.index] if found.include and found.index is not None else None


def _spec(patterns: Sequence[str]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(patterns, backend="re2")


def _is_wrong(pattern: str) -> bool:
    try:
        _spec([pattern])
    except _WRONG:
        return True
    return False
