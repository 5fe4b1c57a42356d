"""Patterns for the holes of Markdown, in syntax that ECMA-262 (u flag) and Python's `re` read alike.

Inline text has single blanks between its words, its code spans are closed, it has no HTML, and it links only to
targets that the document has.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from caesura.server.context.secrets import masked

MOST_TARGETS, MOST_BYTES = 200, 3_000  # targets in one hole; those further away are left out
_PROSE_TARGETS, _PROSE_BYTES = 20, 500  # targets in inline text, whose automaton holds each several times

# Control characters, blanks other than " ", the usual invisible characters, marks of direction, and noncharacters.
# `visible` removes all invisible ones from an answer; in each automaton they would take half as long again.
UNFIT = r"\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\uffff"
_SYNTAX = re.compile(r"[\^$\\.*+?()\[\]{}|/]")
_WWW = r"(?!(?:.*[ (*_~\"'])?[wW]{3}\.)"  # GFM would make a link
_BLOCK = (  # a text that begins like this is no paragraph
    r"(?![-+*](?: |$)|[0-9]{1,9}[.)](?: |$)|#{1,6}(?: |$)|>|~~~|[-*_ ]+$|=+$)"
)
_ESCAPE = r"\\[!#()*+.<>\[\]_{|}~-]"
_CODE = rf"`[^`{UNFIT}]+`"
_CELL_CODE_TEXT = rf"(?:[^`|\\{UNFIT}]|\\\|)"
_CELL_CODE = f"`{_CELL_CODE_TEXT}+`"


def quoted(text: str) -> str:
    """A pattern that matches the text and nothing else."""
    return _SYNTAX.sub(r"\\\g<0>", text)


def either(texts: Iterable[str]) -> str:
    return f"(?:{'|'.join(quoted(text) for text in texts)})"


def few(texts: Iterable[str], most: int = MOST_TARGETS, size: int = MOST_BYTES) -> tuple[str, ...]:
    """The first of the texts, as many as keep an automaton small, without those that hold a secret: the engine would
    read it."""
    kept = list[str]()
    for text in dict.fromkeys(texts):
        if masked(text) != text:
            continue
        size -= len(text.encode())
        if size < 0 or len(kept) == most:
            break
        kept.append(text)
    return tuple(kept)


def except_for(texts: Iterable[str], pattern: str) -> str:
    """The pattern, but for the first few of the texts, none of which may end in a blank."""
    known = few((text for text in texts if text), _PROSE_TARGETS, _PROSE_BYTES)
    return f"(?!{either(known)}$){pattern}" if known else pattern


@dataclass(frozen=True)
class Inline:
    """The patterns of inline text in one document. `targets`, nearest first, are written as between parentheses;
    `labels` belong to reference definitions."""

    targets: Sequence[str] = ()
    labels: Sequence[str] = ()

    @cached_property
    def cell(self) -> str:
        """A table cell: every bar in it is escaped."""
        return f"{_WWW}{self._text(True)}"

    @cached_property
    def first_cell(self) -> str:
        """A cell without a bar before it: it begins no other block."""
        return f"{_BLOCK}{self.cell}"

    @cached_property
    def item(self) -> str:
        """The one line of a list item."""
        return f"{_BLOCK}{_WWW}{self._text(False)}"

    @cached_property
    def heading(self) -> str:
        """A heading's text, which does not end in closing marks."""
        return rf"(?!.*#$){_WWW}{self._text(False)}"

    @cached_property
    def link_text(self) -> str:
        return f"{_WWW}{_link_text(True)}"

    def rest(self, typed: str) -> str | None:
        """The text that may follow `typed` in a cell; None if no cell may begin with it."""
        if not typed.strip(" "):
            return self.cell
        if (at := self.open_code(typed)) is not None:
            least = "+" if at == len(typed) - 1 else "*"
            return f"{_CELL_CODE_TEXT}{least}`(?: {self._text(True)})?"
        if not re.fullmatch(self.cell, typed.strip(" ")) or typed[-1] in ":!<":
            return None
        if typed.endswith(" "):
            return self.cell
        word, more = self._word(True), self._text(True)
        return f"{_WWW}(?:{word}(?: {more})?| {more})"

    def open_code(self, typed: str) -> int | None:
        """Where a code span begins that `typed` leaves open; None if it does not, or if no cell may begin with it."""
        at = typed.rfind("`")
        before, code = typed[: max(0, at)].strip(" "), typed[at + 1 :]
        fits = re.fullmatch(f"(?:{self.cell})?", before) and re.fullmatch(f"{_CELL_CODE_TEXT}*", code)
        return at if at >= 0 and fits else None

    @property
    def rest_of_code(self) -> str:
        """The rest of a code span in a cell, without its closing mark."""
        return f"{_CELL_CODE_TEXT}+"

    def _text(self, cell: bool) -> str:
        word = self._word(cell, "@?")
        urls = [target for target in self._near if "://" in target]
        if urls:
            word = f"(?:{word}|{either(urls)})"
        return f"{word}(?: {word})*"

    def _word(self, cell: bool, before: str = "") -> str:
        """Characters, escapes, code and links. No colon before a slash and no `!` before a link, so that no address and
        no image is invented. `@` only at the start, as in a name and not in an address."""
        bar = "|" if cell else ""
        inner = "|".join([rf"[^{bar} /\\`<\[\]:!@{UNFIT}]", _ESCAPE, _CELL_CODE if cell else _CODE, "<[-=0-9]"])
        piece = f"(?:{'|'.join([inner, '/', *self._links(cell)])})"
        return rf"(?:{before}(?:{piece}|[:!]+(?:{inner}))+[:!]*|[:!]+|<)"

    def _links(self, cell: bool) -> list[str]:
        found, text = list[str](), _link_text(cell)
        targets = [target for target in self._near if not (cell and "|" in target)]
        labels = few((label for label in self.labels if not (cell and "|" in label)), _PROSE_TARGETS, _PROSE_BYTES // 2)
        if targets:
            found.append(rf"\[{text}\]\({either(targets)}\)")
        if labels:
            found.append(rf"\[{text}\]\[{either(labels)}\]")
        return found

    @cached_property
    def _near(self) -> tuple[str, ...]:
        return few(self.targets, _PROSE_TARGETS, _PROSE_BYTES)


def _link_text(cell: bool) -> str:
    bar = "|" if cell else ""
    word = rf"(?:[^{bar} \\`<\[\]:!@{UNFIT}]|{_ESCAPE}|{_CELL_CODE if cell else _CODE})+"
    return f"{word}(?: {word})*"


def body(marker: str, prefix: str, newline: str) -> str:
    """The lines of a fenced block. No line closes the fence; the first and the last are not blank; each line but the
    first begins with `prefix`, stripped on the right if the line is blank."""
    mark, least = marker[0], len(marker)
    fit = UNFIT.replace(r"\x00-\x1f", r"\x00-\x08\x0a-\x1f")  # tabs indent code
    most = f"{{1,{least - 1}}}"
    line = rf"[ \t]*(?:{mark}{most}(?:[^{mark}{fit}][^{fit}]*)?|[^{mark} \t{fit}][^{fit}]*)"
    end = {"\n": r"\n", "\r\n": r"\r\n", "\r": r"\r"}[newline]
    blank = f"(?:{end}{quoted(prefix.rstrip())})*"
    return f"{line}(?:{blank}{end}{quoted(prefix)}{line})*"
