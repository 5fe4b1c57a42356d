"""A place to fill: a span of a text, with its context, its check and the grammar of its fill."""

from dataclasses import dataclass, replace

import tree_sitter

from caesura import wire
from caesura.schema.document import Schema
from caesura.server.context.context import Budget, Context, HoleKind, context, hole
from caesura.server.infill.check import SyntaxGate
from caesura.server.infill.insert import finish
from caesura.server.infill.job import Ask, infill
from caesura.server.languages import language
from caesura.server.options import Options
from caesura.server.structured import edits
from caesura.server.structured.offer import Offer
from caesura.server.text.trees import SyntaxTree


@dataclass(frozen=True)
class Site:
    """The span `start:end` (code points) of `text`. An `offer` has the grammar of the fill."""

    text: str
    start: int
    end: int
    context: Context
    gate: SyntaxGate
    offer: Offer | None = None

    @property
    def hole(self) -> wire.Hole:
        return hole(self.context, Options().max_tokens)

    @property
    def segments(self) -> tuple[wire.Text | wire.Hole, ...]:
        return self.offer.segments if self.offer else (self.hole,)

    def job(self, ask: Ask) -> wire.Infill:
        """The job that fills the span."""
        return infill(self.context, self.segments, ask, schemas=self.offer.schemas if self.offer else ())

    def fitted(self, text: str) -> str:
        """The text that is inserted for the engine's `text`."""
        return self.gate.shortened(finish(text, self.context))


def site(text: str, start: int, end: int, name: str, kind: HoleKind | None = None) -> Site:
    """The span `start:end` (code points) of a text in the language with the id `name`."""
    tree = SyntaxTree(language(name))
    tree.parse(text)
    around = context(text, start, end, language=name, tree=tree.tree, kind=kind)
    return Site(text, start, end, around, SyntaxGate(text, start, end, around, tree.tree))


def at_cursor(text: str, at: int, name: str, kind: HoleKind | None = None, schema: Schema | None = None) -> Site:
    """The place at a cursor as inline completion fills it: in JSON and Markdown with the grammar of the fill."""
    return replace(site(text, at, at, name, kind), offer=edits.completion(text, at, language=name, schema=schema))


def probe(prefix: str) -> wire.Infill:
    """A short job that shows whether an engine answers: the rest of a line of Python."""
    around = context(f"{prefix}\n", len(prefix), len(prefix), language="python")
    return infill(around, [wire.Hole(max_tokens=16, kind="line")], Ask())


def context_of(
    text: str,
    start: int,
    end: int,
    *,
    options: Options,
    language: str,
    tree: tree_sitter.Tree | None = None,
    kind: HoleKind | None = None,
    following: bool = False,
) -> Context:
    """The context of a hole, as large as the settings allow; see `context`."""
    size = budget(options)
    return context(text, start, end, language=language, tree=tree, budget=size, kind=kind, following=following)


def budget(options: Options) -> Budget:
    return Budget(options.context_before, options.context_after)
