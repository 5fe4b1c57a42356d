"""Files by patterns in the syntax of gitignore. A project brings such patterns, trusted or not, so RE2 matches them:
all at once, in a time that is linear in the path. Python's `re` may take hours for a single line.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

import re2
from pathspec import GitIgnoreSpec

MOST = 1000  # patterns at once
LONGEST = 1000  # characters of one; RE2 would not match what its memory cannot hold
CACHED = 256  # paths whose answer is kept

_WRONG = (ValueError, re.error, re2.error)


class TooMany(Exception):
    """These patterns need more memory or time than they are worth."""


class Globs:
    """The files that match; of two patterns that disagree, by `!`, the later one counts. `wrong` are the patterns that
    are none, which are passed over. Raises TooMany."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.wrong: list[str] = []
        patterns = [pattern for pattern in patterns if pattern.strip() and not pattern.startswith("#")]
        if len(patterns) > MOST or any(len(pattern) > LONGEST for pattern in patterns):
            raise TooMany
        self.match = lru_cache(CACHED)(self._match)  # hundreds of long patterns take 0.1 s for a path of 250 characters
        try:
            self._spec = _spec(patterns)
        except _WRONG:
            self.wrong = [pattern for pattern in patterns if _is_wrong(pattern)]
            try:
                self._spec = _spec([pattern for pattern in patterns if pattern not in self.wrong])
            except _WRONG:
                raise TooMany from None

    def __repr__(self) -> str:
        return f"<Globs {len(self._spec)} patterns, {len(self.wrong)} wrong>"

    def _match(self, path: str) -> bool:
        """Whether the file at `path` does, with `/` between its folders."""
        return self._spec.match_file(path.encode(errors="replace").decode())  # names need not be UTF-8


def _spec(patterns: Sequence[str]) -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(patterns, backend="re2")


def _is_wrong(pattern: str) -> bool:
    try:
        _spec([pattern])
    except _WRONG:
        return True
    return False
