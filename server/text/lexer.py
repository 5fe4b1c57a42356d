"""A rough lexer for all languages: which brackets, strings and comments are open at an offset.

It needs no grammar and no whole file, so it works if the tree is missing or out of date. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from caesura.server.languages import Language
from caesura.server.words import Tags, Words

PARTNER = {")": "(", "]": "[", "}": "{"}
CLOSER = {opening: closing for closing, opening in PARTNER.items()}

_WORD_BEFORE = re.compile(r"\w*\Z")


@dataclass(frozen=True)
class Bracket:
    """An open bracket. `at` is its offset in the text fed, `begins` an offset in the line where its statement begins,
    and `resumes` the string that continues after an interpolation."""

    mark: str
    at: int
    begins: int
    resumes: str = ""


class Scan:
    """The brackets, string and comment that are open after the `text` fed so far. `faults` counts closers without an
    opener and strings cut by a line end; `comment` is the mark that ends the open comment."""

    def __init__(self, row: Language, quote: str = "", comment: str = "") -> None:
        self.row, self.quote, self.comment = row, quote, comment
        self.text = ""
        self.raw: re.Pattern[str] | None = None  # all of the open raw string or comment, from `_raw_at` up to its end
        self._raw_at = 0
        self.open: list[Bracket] = []
        self.faults = 0
        self._interpolates = False  # "{" begins code in the open string
        self._begins: int | None = None  # start of this line's statement, if on a line above
        self._below: int | None = None  # start of the first whole line of the suffix
        self._cut = False

    def __repr__(self) -> str:
        return f"<Scan {len(self.text)} open={len(self.open)} quote={self.quote!r} comment={self.comment!r}>"

    def copy(self) -> "Scan":
        other = Scan(self.row, self.quote, self.comment)
        other.text, other.open, other.faults = self.text, self.open.copy(), self.faults
        other._interpolates, other._begins = self._interpolates, self._begins
        other.raw, other._raw_at = self.raw, self._raw_at
        return other

    def feed(self, text: str) -> "Scan":
        for _ in self.steps(text):
            pass
        return self

    def feed_suffix(self, suffix: str, *, cut: bool) -> "Scan":
        """Feed the text after the hole. There, a closer that begins a line does not match a bracket in a deeper line,
        nor (except a parenthesis) in a shallower one. If the text before was `cut`, closers below the hole's line may
        match a bracket outside the text."""
        self._below, self._cut = len(self.text) + len(suffix.partition("\n")[0]) + 1, cut
        return self.feed(suffix)

    def steps(self, text: str) -> Iterator[tuple[int, int]]:
        """Feed `text`; yield after each mark, with its start and its end."""
        done = before = len(self.text)
        self.text += text
        while (
            found := self.raw.match(self.text, self._raw_at) if self.raw else _marks(self.row).search(self.text, done)
        ):
            start = found.start("end") if self.raw else found.start()
            done = self._leave(found.end()) if self.raw else self._take(found[0], start)
            yield start - before, done - before

    def _leave(self, end: int) -> int:
        """Handle the end of the raw string or comment."""
        self.raw, self.quote, self.comment = None, "", ""
        return end

    @property
    def closers(self) -> str:
        """What closes all that is open, on one line."""
        return "".join(_closer(bracket.mark, self.row) for bracket in reversed(self.open))

    def _take(self, mark: str, at: int) -> int:
        """Handle one mark. Returns the offset where the next one may begin."""
        end = at + len(mark)
        if mark == "\n":
            self._begins = None
        if self.comment:
            if mark == self.comment or (self.comment == "\n" and mark.endswith("\n")):
                self.comment = ""
        elif self.quote:
            return self._take_in_string(mark, at)
        elif ending := _raw_ending(self.row, self.text, at, mark):
            self.raw, self._raw_at = ending, end
            if self.row.comment and mark.startswith(self.row.comment):
                self.comment = mark
            else:
                self.quote = mark
        elif mark == self.row.comment:
            self.comment = "\n"
        elif self.row.block_comment and mark == self.row.block_comment[0]:
            self.comment = self.row.block_comment[1]
        elif mark in self.row.long_quotes or (len(mark) == 1 and mark in self.row.quotes):
            word = _WORD_BEFORE.findall(self.text, max(0, at - 4), at)[0]
            if mark != "'" or not word.strip(self.row.prefixes):
                self.quote = mark
                self._interpolates = len(word) < 3 and any(letter in word for letter in self.row.formats)
        elif mark[-1] in "([{" and mark[0] != "\\":  # an escape in a regular expression opens nothing
            self._open(mark[-1], end - 1)
        elif mark in PARTNER:
            if not (mark == ")" and self.row.words and self.row.words.patterns and self._innermost() == "case"):
                self._close(mark, at)
        elif self.row.words:
            self._take_word(self.row.words, mark, at)
        return end

    def _take_word(self, words: Words | Tags, word: str, at: int) -> None:
        """Handle a block word: it opens or closes a block where a statement may begin."""
        start = self.text.rfind("\n", 0, at) + 1
        line, rest = self.text[start:at], self.text[at + len(word) :].partition("\n")[0]
        begun = self.open[-1].mark if self.open and self.open[-1].at >= start else ""
        if words.opens(word, line, rest, begun):
            self._open(word, at)
        elif word == "/>" and self._innermost()[:1] == "<" and ">" not in self.text[self.open[-1].at : at]:
            self.open.pop()
        elif words.closes(word, line):
            self._close(word, at)

    def _innermost(self) -> str:
        return self.open[-1].mark if self.open else ""

    def _take_in_string(self, mark: str, at: int) -> int:
        end = at + len(mark)
        if mark == self.quote:
            self.quote = ""
        elif mark == "\n" and self.quote not in self.row.long_quotes and self.quote not in self.row.spanning:
            self.quote, self.faults = "", self.faults + 1
        elif mark == "{" and self._interpolates:
            if self.text.startswith("{{", at):
                return at + 2
            self._interpolate("{", end)
        elif mark in self.row.interpolations and self.quote != "'":
            self._interpolate(mark[-1], end)
        elif len(mark) > 1 and mark[0] != "\\":  # a mark of code may hide the end of the string
            self.quote = "" if mark[0] == self.quote else self.quote
            return at + 1
        return end

    def _interpolate(self, mark: str, end: int) -> None:
        self._open(mark, end - 1, self.quote + "f" * self._interpolates)
        self.quote = ""

    def _open(self, mark: str, at: int, resumes: str = "") -> None:
        self.open.append(Bracket(mark, at, at if self._begins is None else self._begins, resumes))

    def _close(self, mark: str, at: int) -> None:
        if self._below is not None and at >= self._below and (depth := self._depth(at)) is not None:
            while self.open and (self._depth(self.open[-1].begins, anywhere=True) or 0) > depth:
                self.open.pop()
                self.faults += 1
            if self.open and mark != ")" and (self._depth(self.open[-1].begins, anywhere=True) or 0) < depth:
                self.faults += 1
                return
        if self.open and _closer(self.open[-1].mark, self.row) == mark:
            bracket = self.open.pop()
            self.quote, self._interpolates = bracket.resumes.removesuffix("f"), bracket.resumes.endswith("f")
            if self.text.find("\n", bracket.at, at) >= 0:
                self._begins = bracket.begins
        elif self.open or not self._cut or self._below is None or at < self._below:
            self.faults += 1

    @property
    def total(self) -> int:
        """Unmatched brackets and strings."""
        return self.faults + len(self.open) + bool(self.quote)

    def _depth(self, at: int, *, anywhere: bool = False) -> int | None:
        """The indentation of the line that the character at `at` begins (or, with `anywhere`, is in); else None."""
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        indent = line[: len(line) - len(line.lstrip())]
        return len(indent.expandtabs()) if anywhere or not line.strip() else None


@cache
def _marks(row: Language) -> re.Pattern[str]:
    comments = (*(row.block_comment or ()), *filter(None, [row.comment]))
    parts = [r"\\.", *(opening for opening, _ in row.raw)]
    parts += [r"(?<![\w$&{:])" + re.escape(mark) if mark in ("#", "//") else re.escape(mark) for mark in comments]
    parts += [re.escape(mark) for mark in (*row.long_quotes, *row.interpolations)]
    parts += [row.words.pattern] if row.words else []
    if row.quotes and "'" not in row.quotes:
        parts.append(r"'(?:[^'\\\n]|\\[^'\n]{1,8}|\\')'")  # a character literal
    return re.compile("|".join([*parts, r"[()\[\]{}\"'`\n]"]), re.DOTALL)


def _raw_ending(row: Language, text: str, at: int, mark: str) -> re.Pattern[str] | None:
    """The pattern for all after `mark`, at `at` of the text, if that begins a raw string or comment."""
    for opening, ending in row.raw:
        if (found := re.compile(opening).match(text, at)) and found[0] == mark:
            return re.compile(found.expand(ending) if found.re.groups else ending, re.DOTALL)
    return None


def _closer(mark: str, row: Language) -> str:
    """The mark that closes what `mark` has opened."""
    return CLOSER.get(mark) or (row.words.closer(mark) if row.words else "")


def closes(line: str, row: Language) -> bool:
    """True if a line begins with a mark that closes a block, or that goes on with one."""
    bare = line.lstrip()
    if bare[:1] in PARTNER:
        return True
    word = re.match(r"\w+|</[\w:-]+", bare)
    return row.words is not None and word is not None and (row.words.closes(word[0], "") or row.words.turns(bare))


def heredocs(text: str, row: Language) -> Iterator[tuple[int, int]]:
    """The here-documents of `text`, each from the start of its command's line to the end of the line that ends it; to
    beyond the text where that is missing. No part of one is worth anything: its command would wait for the keyboard."""
    for found in re.finditer(row.heredoc, text, re.MULTILINE) if row.heredoc else ():
        blanks = "" if re.match(r"<<[^-~<]", found[0]) else r"[ \t]*"  # after a plain `<<` the last line has none
        blanks = r"\t*" if "tabs" in found.re.groupindex and found["tabs"] else blanks
        end = re.compile(rf"^{blanks}{found[found.lastindex or 0]}\b", re.MULTILINE).search(text, found.end())
        yield text.rfind("\n", 0, found.start()) + 1, end.end() if end else len(text) + 1


def without_heredocs(text: str, row: Language) -> str:
    """`text` without the lines of its here-documents; the lines of their commands stay."""
    kept, at, begins = "", 0, -1
    for first, last in heredocs(text, row):
        body = text.find("\n", first)
        if body >= at:
            kept, begins = kept + text[at:body], body
        if body == begins:  # another one that begins in the text of one begins nothing
            at = max(at, last)
    return kept + text[at:]


def literal_lines(text: str, row: Language, before: str) -> set[int]:
    """The numbers of the lines of `text`, after the line `before`, that begin in a string or here-document that `text`
    begins: their blanks are part of it."""
    found, at = set[int](), 0
    scan, documents = Scan(row).feed(before), list(heredocs(text, row))
    typed = bool(scan.quote)
    for number, line in enumerate(text.split("\n")):
        document = any(first < at < last for first, last in documents)
        if document or (scan.quote and not typed):
            found.add(number)
        if not document:
            scan.feed(line + "\n")
        at += len(line) + 1
    return found


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
