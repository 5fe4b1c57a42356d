"""The one rule on whether a text may be inserted at its place: it adds no syntax error, repeats no key of a mapping and
invents no member of a class (members.py). Pure.

A start of ghost text may open a block, since the user types on. A fill that the user asks for is finished."""

import re
import string
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tree_sitter

from caesura.server.context.context import NEAR, line_after, line_before, opens_block
from caesura.server.infill.insert import STATEMENT, WORD, ends
from caesura.server.infill.members import ClassMembers
from caesura.server.infill.readers import reads
from caesura.server.infill.window import ParseWindow
from caesura.server.languages import COMMON, JSON, Language, grammar, language
from caesura.server.text import json
from caesura.server.text.document import Span
from caesura.server.text.lexer import CLOSER, Scan, closes, heredocs, indent_of, without_heredocs

if TYPE_CHECKING:
    from caesura.server.infill.site import Site

MAX_WHOLE = 60_000  # most bytes of a file that is parsed whole before anything is cut
MAX_TRIALS = 12  # most shorter insertions that are parsed
MAX_STARTS = 4  # most shorter insertions with which a document is read
HARMLESS = ("", "x", "0")  # texts for a hole; at most places one of them breaks nothing
_BRACE_ALONE = re.compile(r"\n[ \t]*\{[ \t]*\r?\n")
_DECLARES = re.compile(r"\b(?:class|enum|interface|namespace|record|struct|union)\b")
_BEFORE_BRACE = string.ascii_letters + string.digits + "_)>"
_FIRST_WORD = re.compile(r"\w+")
_END_TAG = re.compile(r"</([\w:-]+)")
_TAKES_LINE = {True: re.compile(r"(?:\\|\||&&)\Z"), False: re.compile(r"\\\Z")}  # the end of a line, in a shell or not
_ASSIGNS = re.compile(r"[ \t]*(?:[-+*/%|&^:?.]{1,3})?=(?![=>~])")
_CALL = re.compile(r"\s*(?!(?:if|for|foreach|while|switch|catch|using|lock|fixed)\b)[\w.:>-]+\(.*\)")  # no header
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(if|endif|elseif|elif|else|region|endregion)", re.MULTILINE)
_BEFORE_DECLARATION = re.compile(r"\s*(?:@|#?\[|template\b).*[\w)\]>]")  # attributes and decorators, as a whole line
_DECLARATIONS = ("class a {}", "int a();", "a() {}", "a: u8,", "a,", "def a(): pass", "function a() {}")
_DEMANDS = {"try": (" finally {}", " catch (...) {}"), "do": (" while (0);",)}  # after the block of that word


class SyntaxGate:
    """Judges insertions in the span of a site, the hole. Nothing is parsed until the first of them.

    Only the outermost statements next to the hole are parsed; the site's tree, which may be missing or out of date, has
    their bounds. An error is an ERROR or MISSING node. A text is often broken during typing, so a sound insertion may
    leave errors: as many as the text has now, or as with the best of the `harmless` texts in the hole, if that is
    fewer. If it must be `finished`, a block that it opens and nothing closes is an error too, and so is a node inside
    of an ERROR."""

    def __init__(self, site: "Site") -> None:
        self._text, self._start, self._end, self._context = site.text, site.start, site.end, site.context
        self._row = language(self._context.language)
        self._tree = site.tree.copy() if site.tree else None  # the document's own tree gets its later edits
        self._hole = self._text[self._start : self._end]
        self._finished, self._harmless = site.finished, site.harmless
        self._window: ParseWindow | None = None
        self._alone = _BRACE_ALONE.search(self._text, max(0, self._start - NEAR), self._end + NEAR) is not None
        self._members: ClassMembers | None = None
        self._commands = self._row.words is not None and self._row.words.commands
        self._allowed: int | None = None  # the most errors that a sound insertion leaves
        self._lone: int | None = None  # the errors with a statement alone in the hole

    def __repr__(self) -> str:
        return f"<SyntaxGate {self._row.id} {self._start}:{self._end} {self._window}>"

    def sound(self, insert: str, new: Sequence[Span] | None = None) -> bool:
        """True if all of `insert` may stand in the hole. `new`: the spans of `insert` that were filled, by default all
        of it."""
        new = [(0, len(insert))] if new is None else new
        if insert == self._hole:
            return True
        if self.invented(insert, new) or self._repeats_key(insert, new):
            return False
        window = self._opened()
        if window is None:
            return True
        if self._placed(insert) != insert:
            return False
        if not self._no_worse(window, insert, self._errors_with(window, insert)):
            window = self._widened(window)
            if not self._no_worse(window, insert, self._errors_with(window, insert)):
                return False
        if self._finished and any(window.lacks_body(insert, end) for _, end in new):
            return False
        return self._readable(insert) == insert

    def shortened(self, insert: str) -> str:
        """The best sound start of `insert`, or an empty string. A start that repairs a broken text precedes longer
        ones."""
        if self._repeats_key(insert, [(0, len(insert))]):
            return ""
        window = self._opened()
        if window is None or not (insert := self._placed(self._members_at_hole().known_lines(insert))):
            return insert
        if errors := self._errors_with(window, insert):
            window = self._widened(window)
            errors = self._errors_with(window, insert)
        return self._readable(self._best(window, insert, errors))

    def invented(self, insert: str, new: Sequence[Span]) -> tuple[str, ...]:
        """The members that the spans `new` of `insert` read and a class does not have."""
        if list(new) == [(0, len(insert))]:
            return self._members_at_hole().invented(insert)
        text, names = self._text[: self._start] + insert + self._text[self._end :], dict[str, None]()
        for start, end in ((self._start + start, self._start + end) for start, end in new):
            at, source = len(text[:start].encode()), (text[:start] + text[end:]).encode()
            members = ClassMembers(self._row, source, at, at, None)
            names |= dict.fromkeys(members.invented(text[start:end]))
        return tuple(names)

    def _members_at_hole(self) -> ClassMembers:
        if self._members is None:
            self._members = ClassMembers(self._row, self._text.encode(), *self._bytes(), self._tree)
        return self._members

    def _repeats_key(self, insert: str, new: Sequence[Span]) -> bool:
        """True if a key written in one of the spans repeats one of its object, which JSON's grammar allows."""
        if self._row.id not in JSON:
            return False
        text = self._text[: self._start] + insert + self._text[self._end :]
        return json.repeats_key(text, [(self._start + start, self._start + end) for start, end in new])

    def _best(self, window: ParseWindow, insert: str, errors: int) -> str:
        """The best start of `insert`, which leaves so many `errors`, by the syntax alone."""
        best = insert if self._no_worse(window, insert, errors) else ""
        for shorter in self._shorter(insert)[: MAX_TRIALS if window.small else MAX_TRIALS // 4] if errors else ():
            left = self._errors_with(window, shorter, brace=False)
            if not left:
                return shorter
            if not best and self._no_worse(window, shorter, left):
                best = shorter
        return best

    def _placed(self, insert: str) -> str:
        """The lines of `insert` before the first that ends or continues a block that is not open, as `done` does, which
        the grammar may read as a name."""
        words, above = self._row.words, self._text[: self._start]
        if self._context.scope != "code":
            return insert
        if self._row.directives and "#" in insert:
            insert = _directed(insert, _DIRECTIVE.findall(above), _DIRECTIVE.findall(self._text[self._end :]))
        if words is None or not any(map(words.openers, insert.split("\n"))):
            return insert
        scan, at = Scan(self._row).feed(without_heredocs(above[-NEAR:], self._row)), 0
        if len(above) > NEAR or scan.quote:
            return insert  # what is open may have begun further up
        documents = list(heredocs(insert, self._row))
        for line in insert.split("\n"):
            if not any(first < at < last for first, last in documents):
                wanted = words.openers(line) if at or not line_before(above, len(above)).strip() else set()
                if wanted and not scan.quote and not any(bracket.mark in wanted for bracket in scan.open):
                    return insert[: max(0, at - 1)]
                scan.feed(line + "\n")
            at += len(line) + 1
        return insert

    def _readable(self, insert: str) -> str:
        """The whole lines of `insert` with which a TOML or YAML document can be read, if it can be read without the
        hole's line: the syntax tree knows no keys. All of it in other languages. A list or a table that `insert` opens
        at the end of the line may close on the lines that the user writes next."""
        form, before, after = self._row.edits, self._text[: self._start], self._text[self._end :]
        if form not in ("toml", "yaml") or not insert or reads(before + insert + after, form):
            return insert
        line, rest = line_before(before, self._start), line_after(after, 0)
        closers = Scan(self._row).feed(line + insert).closers if not rest.strip() else ""
        if closers and reads(before + insert + closers + after, form):
            return insert
        above, below = before[: len(before) - len(line)], after[len(rest) :]
        without = [before + harmless + after for harmless in self._harmless]
        if not any(reads(text, form) for text in (without if "\n" in self._hole else [above + below, *without])):
            return insert
        starts = [insert[: line_end.start()] for line_end in re.finditer("\n", insert)]
        return next((start for start in starts[: -MAX_STARTS - 1 : -1] if reads(before + start + below, form)), "")

    def _no_worse(self, window: ParseWindow, insert: str, errors: int) -> bool:
        """True if `insert` adds no errors and, in a broken text, leaves no more unpaired brackets and strings."""
        if not errors:
            return True
        if errors > self._allowed_in(window):
            return False
        goes_on = not self._finished and insert.rstrip()[-1:] in CLOSER
        return goes_on or self._unpaired(insert) <= self._unpaired(self._hole)

    def _allowed_in(self, window: ParseWindow) -> int:
        if self._allowed is None:
            harmless = map(window.errors_with, self._harmless) if window.errors else ()
            self._allowed = min([window.errors, *harmless])
        return self._allowed

    def _unpaired(self, insert: str) -> int:
        """The number of unpaired brackets and strings near the hole, with `insert` in it."""
        scan = Scan(self._row).feed(self._text[max(0, self._start - NEAR) : self._start]).feed(insert)
        return scan.feed_suffix(self._text[self._end : self._end + NEAR], cut=self._start > NEAR).total

    def _shorter(self, insert: str) -> list[str]:
        """The shorter starts of `insert` that may be sound, the best first. They keep a final line end before a
        bracket."""
        body = insert.rstrip()
        tail = insert[len(body) :]
        tail = tail if "\n" in tail or "\r" in tail else ""
        lowest = STATEMENT if self._commands else WORD  # a part of a command does something else
        rated = sorted(
            (grade, -at)
            for at, grade in ends(body, self._context)
            if grade <= lowest and at < len(body) and not _ASSIGNS.match(body, at) and not self._halves(body, at)
        )
        return [body[:-at] + tail for _, at in rated]

    def _halves(self, body: str, at: int) -> bool:
        """True if the start of `body` up to `at` ends in a line of keywords alone that goes on there, such as `export`,
        or leaves a tag open that the rest closes."""
        rest, line = body[at:], line_before(self._text, self._start) + body[:at]
        for tag in (tags := _END_TAG.findall(rest)):
            if tags.count(tag) > len(re.findall(rf"<{re.escape(tag)}\b", rest)):
                return True
        words = line[line.rfind("\n") + 1 :].split()
        return not self._row.prose and bool(line_after(body, at).strip()) and COMMON.issuperset(words)

    def _opened(self) -> ParseWindow | None:
        """The parsed window; None if insertions cannot be judged."""
        known = grammar(self._row)
        if known is None:
            return None
        if self._window is None:
            self._window = self._parse(self._text.encode(), self._tree)
        return self._window if self._window.judges else None

    def _widened(self, window: ParseWindow) -> ParseWindow:
        """The window of the whole file, from now on, unless the file is large: around a broken statement, the window
        may hold only a part of it."""
        if not window.whole and len(source := self._text.encode()) <= MAX_WHOLE:
            window = self._window = self._parse(source, None)
            self._allowed = self._lone = None
        return window

    def _parse(self, source: bytes, tree: tree_sitter.Tree | None) -> ParseWindow:
        return ParseWindow(self._row, source, *self._bytes(), tree, nested=self._finished)

    def _bytes(self) -> tuple[int, int]:
        start = len(self._text[: self._start].encode())
        return start, start + len(self._hole.encode())

    def _errors_with(self, window: ParseWindow, insert: str, *, brace: bool = True) -> int:
        """The number of errors with `insert`. A block that it opens at the end of a line is no error unless it must be
        finished: the user writes the rest of it next. `brace`: so is a header whose brace comes on the next line."""
        errors = window.errors_with(insert)
        if not errors and self._takes_next_line(window, insert):
            return 1
        if self._finished:
            return errors + window.lacks_body(insert, len(insert))
        if errors and not line_after(self._text, self._end).strip():
            text = line_before(self._text, self._start) + insert
            for rest in rests(text, self._row, brace=brace, alone=self._alone):
                errors = min(errors, window.errors_with(insert + rest))
                if not errors:
                    break
        return errors

    def _takes_next_line(self, window: ParseWindow, insert: str) -> bool:
        """True if the next line of the document becomes the rest of a statement of `insert`. This is tested by putting
        `row.apart` on the next line: an error means that the statement runs on."""
        before, rest = line_before(self._text, self._start), line_after(self._text, self._end)
        if window.errors or before.strip() or rest.strip() or insert.strip() == self._hole.strip():
            return False
        last = (before + insert).rstrip().rpartition("\n")[2]
        following = line_after(self._text, self._end + len(rest) + 1)
        depth = len(indent_of(following).expandtabs())
        if not following.strip() or depth > len(indent_of(last).expandtabs()):
            return False
        if closes(following, self._row) or following.lstrip()[0] in ".?:&|{":
            return False
        goes_on, above = _TAKES_LINE[self._commands], self._text[: self._start].rpartition("\n")[0]
        if goes_on.search(last) and not goes_on.search(above):
            return True
        begun = last.endswith("=>") or _BEFORE_DECLARATION.fullmatch(last) or opens_block(last, self._row)
        if not self._row.apart or begun:
            return False
        if self._lone is None:
            self._lone = window.errors_with("\n" + self._row.apart)
        return not self._lone and window.errors_with(f"{insert}\n{self._row.apart}") > 0


def _directed(insert: str, above: list[str], below: list[str]) -> str:
    """The lines of `insert` before the first directive that has no place between the directives `above` and `below`."""
    marks, own = list(above), _DIRECTIVE.findall(insert)
    twice = _misplaced([*above, *own, *below]) > _misplaced([*above, *below])  # an "#else" that is below too
    for index, directive in enumerate(_DIRECTIVE.finditer(insert)):
        goes_on = directive[1][:2] == "el" and _misplaced(own[: index + 1]) > _misplaced(own[:index])
        if (twice and goes_on) or _misplaced([*marks, directive[1]]) > _misplaced(marks):
            return insert[: max(0, directive.start() - 1)]
        marks.append(directive[1])
    return insert


def _misplaced(marks: list[str]) -> int:
    """The number of directives that find nothing open to close or to go on with."""
    misplaced, open_ = 0, [""]
    for mark in marks:
        if mark in ("if", "region"):
            open_.append(mark)
        elif open_[-1] not in {"endregion": ("region",), "endif": ("if", "else")}.get(mark, ("if",)):
            misplaced += 1
        elif mark == "else":
            open_[-1] = mark
        elif mark.startswith("end"):
            open_.pop()
    return misplaced


def rests(text: str, row: Language, *, brace: bool, alone: bool) -> Iterator[str]:
    """What may follow whole lines that open a block at their end: a body, what closes the block, and what the grammar
    demands after that. Or a declaration, after attributes alone. Nothing after other lines. `brace`: the block's brace
    may come on the next line, which is usual if it stands `alone` in this file."""
    *_, last = lines = text.rstrip().split("\n")
    conditions = sum(line.lstrip().startswith("#if") - line.lstrip().startswith("#endif") for line in lines)
    if conditions > 0 and row.directives:
        yield "\n#endif" * conditions
    scan = Scan(row).feed(text)
    if scan.quote or scan.comment:
        return
    if _BEFORE_DECLARATION.fullmatch(last):
        yield from (f"\n{indent_of(last)}{declaration}" for declaration in _DECLARATIONS)
    innermost = scan.open[-1].mark if scan.open else ""
    body = row.words.body if row.words and innermost != "case" else ""
    if last[-1:] not in CLOSER and not opens_block(last, row):
        alone = alone or _DECLARES.search(last) is not None
        if not brace or "{" not in row.openers or last[-1:] not in (_BEFORE_BRACE if alone else ")"):
            return
        if not alone and _CALL.fullmatch(last):
            return
        body = "{}"
    closed = f"\n{body}\n{scan.closers}"
    yield from (closed, closed + ";", closed + ",", closed + " {}")
    word = _FIRST_WORD.search(last)
    yield from (closed + demanded for demanded in _DEMANDS.get(word[0] if word else "", ()))
