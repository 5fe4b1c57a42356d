"""Where new items of a JSON container go, and what has to stand around them: commas, line breaks, indentation.

Comments stay where they are, a trailing comma is kept as the file has it. Pure."""

from dataclasses import dataclass

from caesura.server.text.json import Document, Style, indent_at


@dataclass(frozen=True)
class Gap:
    """The items with `before` and `after` around them take the place of start:end. `indent` is the white space of their
    line; `alone`: they stand on lines of their own."""

    start: int
    end: int
    before: str
    after: str
    indent: str
    alone: bool


def gap(document: Document, container: int, offset: int, style: Style) -> Gap:
    """For items at `offset`, which is neither inside an item nor inside a comment of the container."""
    return _Between(document, container, offset, style).gap()


class _Between:
    """What stands between two items, or between a bracket and an item, as `code` in which comments are covered."""

    def __init__(self, document: Document, container: int, offset: int, style: Style) -> None:
        self.document, self.style = document, style
        self.left = self.right = -1
        for child in document.children(container):
            if document.ends[child] <= offset:
                self.left = child
            else:
                self.right = child
                break
        self.start = document.starts[container] + 1 if self.left < 0 else document.ends[self.left]
        self.end = document.ends[container] - 1 if self.right < 0 else document.item_start(self.right)
        self.code = covered(document, self.start, self.end)
        self.comma = self.code.find(",")
        self.offset = offset - self.start
        self.line = max(self.code.rfind("\n", 0, self.offset), self.code.rfind("\r", 0, self.offset)) + 1
        ends = [at for mark in "\r\n" if (at := self.code.find(mark, self.offset)) >= 0]
        self.line_end = min(ends, default=len(self.code))

    def __repr__(self) -> str:
        return f"<Between {self.code!r} at {self.offset}>"

    def gap(self) -> Gap:
        style, line = self.style, self.code[self.line : self.line_end]
        below = style.newline + (style.base if style.item is None else style.item)
        if not self.code.strip(" \t") and self.left < 0 and self.right < 0:
            if style.item is None:
                return self._at(0, style.pad, style.pad, to=len(self.code))
            return self._at(0, below, style.newline + style.base, to=len(self.code), alone=True)
        if self.line and self.line_end < len(self.code) and not line.strip(" \t"):
            return self._at(self.line, style.item or line, "", to=self.line_end, alone=style.item is not None)
        if style.item is None or ("\n" not in self.code and "\r" not in self.code):
            return self._in_line(below)
        if self.line_end == len(self.code) and self.right < 0:  # the line of the closing bracket
            return self._at(self._content(self.line), below, "", alone=True)
        margin = len(line) - len(line.lstrip(" \t"))
        if self.line and (self.line_end == len(self.code) or self.offset <= self.line + margin):
            return self._at(max(self.offset, self.line + margin), "", style.newline + line[:margin], alone=True)
        return self._at(self._content(self.line_end), below, "", alone=True)

    def _in_line(self, below: str) -> Gap:
        style = self.style
        blank = self.style.comma.partition(",")[2]
        ahead = self.left >= 0 and (self.comma < 0 or self.comma >= self.offset)
        if not ahead and self.right >= 0 and not self.code[self.offset :].strip(" \t"):
            return self._at(len(self.code), "", blank)
        at = self._content(self.offset)
        lead = blank if at or self.left >= 0 else ""
        if (at + self.start) in {end for start, end in self.document.comments if self.document.text[start + 1] == "/"}:
            lead = below + ((style.indent or "  ") if style.item is None else "")
        return self._at(at, lead, "" if ahead or self.code[at : at + 1].isspace() or at == len(self.code) else blank)

    def _content(self, end: int) -> int:
        """Where what stands before `end` ends."""
        return len(self.code[:end].rstrip(" \t\r\n"))

    def _at(self, at: int, before: str, after: str, *, to: int | None = None, alone: bool = False) -> Gap:
        """At `at`, in the place of what stands up to `to`; with a comma on the side where none is."""
        start, end = self.start + at, self.start + (at if to is None else to)
        if 0 <= self.comma < at or (self.left < 0 and self.right >= 0):
            after = "," + after
        elif self.left >= 0:
            before = "," + self.document.text[self.start : start] + before
            start = self.start
        line = self.document.text[:start] + before
        indent = indent_at(line, len(line))
        return Gap(start, end, before, after, indent, alone)


def covered(document: Document, start: int, end: int) -> str:
    """The text of a span, with other characters in the place of comments."""
    text = document.text[start:end]
    for first, last in document.comments:
        if start <= first < end:
            text = text[: first - start] + "\0" * (min(last, end) - first) + text[last - start :]
    return text
