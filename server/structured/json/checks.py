"""Check that a JSON document is still valid after an edit: it parses, no edited object has a duplicate key, and its
schema finds no new fault. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from caesura.schema.document import Schema
from caesura.server.text.json import JsonPath, JsonTree, NotJson, line_column, read

MAX_FAULTS = 1000  # most faults of a schema that are compared
MAX_PATH = 200  # most code points of a path in a message


class Checks:
    """The checks of a document's edits. With `lines` each line is a document, and only edited lines are checked."""

    def __init__(self, text: str, *, relaxed: bool = False, lines: bool = False, schema: Schema | None = None) -> None:
        self.text, self.relaxed, self.lines = text, relaxed, lines
        self.validator = None if schema is None else schema.validator()

    def __repr__(self) -> str:
        return f"<Checks of {len(self.text)} code points, {'with' if self.validator else 'without'} a schema>"

    def of(self, start: int, end: int, path: JsonPath | None, before: JsonTree) -> Callable[[str], str | None]:
        """A check of the text after an edit of start:end. `path` leads to the value that is replaced, if there is one.
        `before` is the document as read; faults that its schema finds there outside of that value are not the
        edit's."""

        def check(new: str) -> str | None:
            stop = len(new) - (len(self.text) - end)
            olds = self._own_lines(start, end) if self.lines else [before]
            for first, text in self._documents(new, start, stop):
                try:
                    tree = read(text, relaxed=self.relaxed)
                except NotJson as fault:
                    return f"The document would be broken at {line_column(new, first + fault.offset)}: {fault.what}."
                problem = repeats(tree, max(0, start - first), stop - first, olds)
                if problem := problem or self._faults(tree, olds, path):
                    return problem
            return None

        return check

    def _documents(self, text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
        """The texts to read, each with its offset."""
        if not self.lines:
            yield 0, text
            return
        first = text.rfind("\n", 0, start) + 1
        last = text.find("\n", end)
        for line in text[first : len(text) if last < 0 else last].split("\n"):
            if line.strip(" \t\r"):
                yield first, line
            first += len(line) + 1

    def _own_lines(self, start: int, end: int) -> list[JsonTree]:
        """The edited lines that are valid JSON."""
        found = []
        for _, line in self._documents(self.text, start, end):
            with suppress(NotJson):
                found.append(read(line, relaxed=False))
        return found

    def _faults(self, new: JsonTree, olds: Sequence[JsonTree], path: JsonPath | None) -> str | None:
        if self.validator is None:
            return None
        try:
            found = list(islice(self.validator.iter_errors(new.value()), MAX_FAULTS))
            if not found:
                return None
            known = Counter[tuple[Any, ...]]()
            for old in olds:
                for error in islice(self.validator.iter_errors(old.value()), MAX_FAULTS):
                    known[tuple(error.absolute_schema_path)] += not _inside(error.absolute_path, path)
        except (RecursionError, ValueError):
            return "The document is nested too deeply, or has too large a number, to be checked against its schema."
        except (AttributeError, TypeError):  # `referencing` mistakes a property named `id` for an identifier
            return "The document could not be checked against its schema; leave the schema out, or edit by hand."
        for error in found:
            rule = tuple(error.absolute_schema_path)
            known[rule] -= 1
            if known[rule] < 0:
                where = "/".join(map(str, error.absolute_path)) or "the document"
                return f"The schema does not allow this at {where[:MAX_PATH]}, by its keyword `{error.validator}`."
        return None


def _inside(path: JsonPath, other: JsonPath | None) -> bool:
    return other is not None and list(path)[: len(other)] == list(other)


def repeats(tree: JsonTree, start: int, end: int, olds: Sequence[JsonTree]) -> str | None:
    """A sentence if an object that the edit is in, or has written, has a new duplicate key."""
    around = tree.innermost(start, end)
    written = range(bisect_left(tree.starts, start), bisect_left(tree.starts, end))
    for value in ([around] if around >= 0 else []) + [one for one in written if tree.kinds[one] == "object"]:
        if span := tree.repeated(value):
            if value == around and any(_repeated(old, tree.path(around)) for old in olds):
                continue
            return f'The key "{tree.decoded(span)[:40]}" would appear twice in its object.'
    return None


def _repeated(old: JsonTree, path: JsonPath) -> bool:
    """True if the object at a path had a duplicate key."""
    return any(old.repeated(value) and old.path(value) == path for value in range(len(old.kinds)))
