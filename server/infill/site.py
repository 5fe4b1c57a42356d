"""A place to fill: a span of a text, with its context, its check and the grammar of its fill. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import re2
import tree_sitter

from caesura import wire
from caesura.characters import visible
from caesura.schema.document import Schema
from caesura.server.context.context import Budget, Context, HoleKind, context, hole
from caesura.server.context.secrets import reveals
from caesura.server.infill.check import HARMLESS, SyntaxGate
from caesura.server.infill.insert import finish
from caesura.server.infill.job import Ask, infill
from caesura.server.languages import language
from caesura.server.options import Options
from caesura.server.structured import edits, imports
from caesura.server.structured.offer import Offer
from caesura.server.text.document import Span
from caesura.server.text.repair import parsed

DEFAULTS = Options()


@dataclass(frozen=True)
class Site:
    """The span `start:end` (code points) of `text`, which a `hole` replaces, or the segments of an `offer`, which has
    the grammar of the fill. `neighbours` are related text from elsewhere, masked. `finished`: nobody types on at the
    end of the fill. `is_checked`: the setting 'syntaxGate'. `harmless` as in SyntaxGate."""

    text: str
    start: int
    end: int
    context: Context
    hole: wire.Hole
    tree: tree_sitter.Tree | None = None
    neighbours: tuple[wire.Neighbour, ...] = ()
    offer: Offer | None = None
    finished: bool = True
    is_checked: bool = True
    harmless: Sequence[str] = HARMLESS

    @property
    def segments(self) -> tuple[wire.Text | wire.Hole, ...]:
        return self.offer.segments if self.offer else (self.hole,)

    def job(
        self,
        ask: Ask,
        draft: tuple[str, ...] | None = None,
        segments: Sequence[wire.Text | wire.Hole] | None = None,
    ) -> wire.Infill:
        """The job that fills the span, or `segments` that begin there; `draft` as in `infill`."""
        return infill(self, ask, draft, self.segments if segments is None else segments)

    def fill(self, holes: Sequence[wire.Fill]) -> wire.Fill:
        """The fills of the segments' holes as one fill of the span."""
        return self.offer.fill(holes) if self.offer and len(self.segments) > 1 else holes[0]

    def fitted(self, text: str) -> str:
        """The engine's `text` as the file wants it; empty if nothing of it fits. The text of an offer, and one of
        several choices, stays as it is."""
        if isinstance(self.hole.grammar, wire.Pattern):
            return text if re2.fullmatch(self.hole.grammar.regex, text) else ""
        if self.offer is None:
            return self._finish(text)
        return text if text == visible(text, self.context.prefix, self.context.suffix) else ""

    def reveals(self, insert: str) -> bool:
        """True if `insert` shows the mask of a secret."""
        return reveals(insert, self.context.prefix, self.context.suffix)

    def sound_start(self, insert: str) -> str:
        """The best start of `insert` that may stand in the span. A text that an offer does not accept has none."""
        if self.offer:
            return "" if self.offer.check(self.text[: self.start] + insert + self.text[self.end :]) else insert
        return self._shortened(insert) if self.is_checked else insert

    def is_sound(self, insert: str, new: Sequence[Span] | None = None) -> bool:
        """True if all of `insert` may stand in the span; `new` as in SyntaxGate."""
        if self.offer:
            return self.sound_start(insert) == insert
        return not self.is_checked or self._gate.sound(insert, new)

    def invented(self, insert: str, new: Sequence[Span] | None = None) -> tuple[str, ...]:
        """The members that `insert` reads and a class does not have."""
        judged = self.is_checked and not self.offer
        return self._gate.invented(insert, [(0, len(insert))] if new is None else new) if judged else ()

    def moved(self, start: int, end: int) -> "Site":
        """The site of another span of the text, after this one's start."""
        if (start, end) not in self._moved:
            around = replace(self.context, prefix=self.context.prefix + self.text[self.start : start])
            self._moved[start, end] = replace(self, start=start, end=end, context=around)
        return self._moved[start, end]

    @cached_property
    def _gate(self) -> SyntaxGate:
        """One for all candidates."""
        return SyntaxGate(self)

    @cached_property
    def _shortened(self) -> Callable[[str], str]:
        return lru_cache(maxsize=16)(self._gate.shortened)

    @cached_property
    def _finish(self) -> Callable[[str], str]:
        return lru_cache(maxsize=16)(partial(finish, context=self.context))

    @cached_property
    def _moved(self) -> dict[Span, "Site"]:
        return {}


def site(
    text: str,
    start: int,
    end: int,
    name: str,
    *,
    tree: tree_sitter.Tree | None,
    options: Options = DEFAULTS,
    kind: HoleKind | None = None,
    following: bool = False,
) -> Site:
    """The span `start:end` of a text in the language with the id `name`, with as much context as the settings allow.
    `tree`, `kind` and `following` as in `context`."""
    size = budget(options)
    around = context(text, start, end, language=name, tree=tree, budget=size, kind=kind, following=following)
    to_fill = hole(around, options.max_tokens)
    return Site(text, start, end, around, to_fill, tree, is_checked=options.syntax_gate)


def bare_site(text: str, start: int, end: int, name: str, kind: HoleKind | None = None) -> Site:
    """The span of a text that no editor has open."""
    return site(text, start, end, name, tree=parsed(text, name), kind=kind)


def at_cursor(text: str, at: int, name: str, kind: HoleKind | None = None) -> Site:
    """The place at a cursor as ghost text fills it, in a text that no editor has open: among imports and in JSON and
    Markdown with the grammar of the fill."""
    place = bare_site(text, at, at, name, kind)
    return replace(place, offer=offer_at(text, at, name, place.tree, schema=None))


def offer_at(
    text: str, at: int, name: str, tree: tree_sitter.Tree | None, schema: Schema | None, *, structured: bool = True
) -> Offer | None:
    """The offer at a cursor, if there is one; `structured` is the setting of that name. No other files are read for
    it."""
    row = language(name)
    if row.names:
        return imports.completion(text, at, row, tree)
    return edits.completion(text, at, language=name, schema=schema) if structured else None


def probe(prefix: str) -> wire.Infill:
    """A short job that shows whether an engine answers: the rest of a line of Python."""
    at = len(prefix)
    place = site(f"{prefix}\n", at, at, "python", tree=None)
    return replace(place, hole=wire.Hole(max_tokens=16, kind="line")).job(Ask())


def budget(options: Options) -> Budget:
    return Budget(options.context_before, options.context_after)
