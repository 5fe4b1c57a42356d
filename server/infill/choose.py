"""Choose which candidate to insert, and how much of ghost text to show: the start that is expected to save most keys.
Pure.

A correct suggestion saves the keys of its text, less the one to accept it; a wrong one costs the time to read it.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from caesura import wire
from caesura.server.context.context import Context
from caesura.server.infill.insert import INSIDE, STATEMENT, ends, is_half
from caesura.server.infill.site import Site
from caesura.server.languages import UNKNOWN, language

TAB_KEYS = 1  # cost of accepting a suggestion, in keys
READING_KEYS = 2  # cost of reading a wrong suggestion, in keys

_LINE_BREAK = re.compile(r"(?:\r\n|\r|\n)[ \t]*")  # Enter, and the indentation that the editor adds
_WORD = re.compile(r"\w+")
T = TypeVar("T")


@dataclass(frozen=True)
class ShowThreshold:
    """The requirement for showing a suggestion: `chance` is the least probability that all of it is correct, `keys` the
    fewest keys that it saves beyond the word at the cursor; 0 for no limit."""

    chance: float = 0.0
    keys: int = 0

    def lower(self, other: "ShowThreshold") -> "ShowThreshold":
        return ShowThreshold(min(self.chance, other.chance), min(self.keys, other.keys))

    def passes(self, before: str, insert: str, *, ends_line: bool, words: bool) -> bool:
        """True if `insert` after the text `before` is long enough. With `ends_line` it may be shorter, but must save a
        key. With `words`, the rest of the word at the cursor counts too."""
        if not self.keys:
            return True
        beyond = keys(insert if words else insert[_rest_of_word(before, insert) :])
        return beyond >= self.keys or (ends_line and keys(insert) > TAB_KEYS)

    def shows(self, before: str, insert: str, chance: float, *, ends_line: bool, words: bool) -> bool:
        """True if `insert`, which is correct with this `chance`, is likely and long enough and expected to save keys;
        the rest as in `passes`."""
        return self.passes(before, insert, ends_line=ends_line, words=words) and self.pays(keys(insert), chance)

    def pays(self, saved: int, chance: float) -> bool:
        """True if text with this `chance` is likely enough and expected to save keys; `saved` if it is right."""
        return chance >= self.chance and (not self.keys or expected_saving(saved, chance) > 0)


ALL = ShowThreshold()


def counts_words(context: Context) -> bool:
    """True if the rest of a word is worth a suggestion: in Markdown, plain text and comments."""
    return context.scope == "comment" or context.language == UNKNOWN.id or language(context.language).prose


def keys(text: str) -> int:
    """The number of keys to type `text`; a line break with its indentation is one."""
    return len(_LINE_BREAK.sub("\n", text))


def expected_saving(saved: int, chance: float) -> float:
    """The number of keys that a suggestion is expected to save."""
    return chance * (saved - TAB_KEYS) - (1 - chance) * READING_KEYS


@dataclass(frozen=True)
class Guess:
    """A fill `text` with `probabilities` as those of `wire.Fill`: each is the probability of a token given the tokens
    before it, so their product is the probability that a start is correct. The first `typed` code points are in the
    document already. `fixed_start`, the end of the context's prefix, is not: it is shown too. `whole`: nothing follows
    `text`, so it ends a line."""

    text: str
    probabilities: Sequence[tuple[int, float]]
    context: Context
    typed: int = 0
    fixed_start: str = ""
    whole: bool = True

    def best_start(self, threshold: ShowThreshold) -> str:
        """The start to show, cut where text may end; empty if none reaches the threshold. Without probabilities, all of
        the text. An end inside of brackets or a string that the text opens is the last choice."""
        if not self.probabilities:
            return self.text
        best, value = "", (False, -math.inf)
        for end, grade, chance, saved in self._long_enough(threshold):
            if threshold.pays(saved, chance):
                rank = (grade < INSIDE, expected_saving(saved, chance))
                best, value = max((best, value), (self.text[:end], rank), key=lambda pair: pair[1])
        return best

    def best_chance(self, threshold: ShowThreshold) -> float | None:
        """The highest probability of a start that saves enough keys for the threshold; None if none does."""
        return max((chance for _, _, chance, _ in self._long_enough(threshold)), default=None)

    def _long_enough(self, threshold: ShowThreshold) -> Iterator[tuple[int, int, float, int]]:
        """The starts that save enough keys: the end of each, its grade, its probability and the keys that it saves."""
        before = self.context.prefix.removesuffix(self.fixed_start) + self.text[: self.typed]
        left, words = self.text[self.typed :], counts_words(self.context)
        for end, grade, chance in _starts(self.text, self.probabilities, self.context):
            insert, ends = self.fixed_start + left[: end - self.typed], ends_line(self.text, end, whole=self.whole)
            if end > self.typed and threshold.passes(before, insert, ends_line=ends, words=words):
                yield end, grade, chance, keys(insert)


def ends_line(text: str, end: int, *, whole: bool) -> bool:
    """True if a line ends after `text[:end]`; `whole`: also after all of `text`."""
    return text[end : end + 1] in ("\r", "\n") or (whole and end == len(text))


def likely(probabilities: Sequence[tuple[int, float]], chance: float) -> int:
    """The end of the longest start of a fill that is correct with at least this `chance`; see Guess."""
    last = 0
    for end, probability in itertools.accumulate(probabilities, lambda one, two: (two[0], one[1] * two[1])):
        if probability < chance:
            break
        last = end
    return last


def _starts(
    text: str, probabilities: Sequence[tuple[int, float]], context: Context
) -> Iterator[tuple[int, int, float]]:
    """The ends of the starts of `text`, each with its grade and the probability of the text before it."""
    tokens, end, chance = iter(probabilities), 0, 1.0
    for at, grade in _graded(text, context):
        while end < at and (token := next(tokens, None)):
            end, chance = token[0], chance * token[1]
        if end >= at:
            yield at, grade, chance


@lru_cache(maxsize=16)
def _graded(text: str, context: Context) -> list[tuple[int, int]]:
    """The ends of the starts of `text`, each with its grade. Kept, as each key typed along asks for the same ones."""
    return sorted((dict(ends(text, context)) | {len(text): STATEMENT}).items())


def _rest_of_word(before: str, insert: str) -> int:
    """The length of the start of `insert` that continues the last word of `before`."""
    rest = _WORD.match(insert) if _WORD.fullmatch(before[-1:]) else None
    return rest.end() if rest else 0


def ranked(
    candidates: Sequence[T], start: Callable[[T], T | None], is_later: Callable[[T], bool] = lambda one: False
) -> Iterator[T]:
    """The candidates that may stand whole, in their order, but at the end those that come later by `is_later`. Then the
    start of the first candidate that has one, unless that is all of it. `start` gives the part of a candidate that may
    stand, or None."""
    for candidate in sorted(candidates, key=is_later):
        if start(candidate) == candidate:
            yield candidate
    for candidate in candidates:
        if part := start(candidate):
            if part != candidate:
                yield part
            return


def choice(site: Site, done: wire.Done) -> tuple[str, wire.Fill]:
    """The text that is inserted for an answer, and the fill it comes from."""
    return next(proposals(site, done), ("", done.holes[0]))


def proposals(site: Site, done: wire.Done) -> Iterator[tuple[str, wire.Fill]]:
    """The texts that may be inserted for an answer, each with the fill it comes from: whole ones before half ones. None
    of them shows the mask of a secret."""

    def start(candidate: tuple[str, wire.Fill]) -> tuple[str, wire.Fill] | None:
        text, fill = candidate
        sound = site.sound_start(text)
        return (sound, fill) if sound and not site.reveals(sound) else None

    fills = [site.fill(holes) for holes in (done.holes, *done.alternatives)]
    texts = [(text, fill) for fill in fills if (text := site.fitted(fill.text))]
    return ranked(texts, start, lambda one: site.offer is None and is_half(one[0], site.context))
