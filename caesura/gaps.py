"""A gap of a text as the command line, the demo and the evaluation fill it: the job that asks for a fill, and the text
that an editor would insert for the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from caesura import wire
from caesura.characters import visible
from caesura.client.backend import job_id
from caesura.schema.document import Schema
from caesura.server.context.context import Context, HoleKind, context, hole
from caesura.server.infill.check import SyntaxGate
from caesura.server.infill.insert import finish, is_half
from caesura.server.languages import language
from caesura.server.options import Options
from caesura.server.structured import edits
from caesura.server.structured.offer import Offer
from caesura.server.text.trees import SyntaxTree

JobKind = Literal["complete", "fill"]  # as an editor asks while the user types, and when the user asks


@dataclass(frozen=True)
class JobOptions:
    """How a job is done, as in wire.Infill: None leaves the choice to the model."""

    deadline_ms: float = 10_000.0
    method: str | None = None
    sampler: str | None = None
    prompt: str | None = None
    candidates: int = 1
    seed: int = 0
    min_probability: float = 0.0


@dataclass(frozen=True)
class TextGap:
    """The span `start:end` (code points) of a text, with what a language server would know about it."""

    text: str
    start: int
    end: int
    context: Context
    gate: SyntaxGate
    offer: Offer | None = None  # with the grammar of the fill

    @property
    def hole(self) -> wire.Hole:
        return hole(self.context, Options().max_tokens)

    @property
    def segments(self) -> tuple[wire.Text | wire.Hole, ...]:
        return self.offer.segments if self.offer else (self.hole,)

    def job(self, options: JobOptions, kind: JobKind) -> wire.Infill:
        """The job that fills the gap."""
        return infill(self.context, self.segments, options, kind, self.offer.schemas if self.offer else ())

    def fitted(self, text: str) -> str:
        """The text that is inserted for the engine's `text`."""
        return self.gate.shortened(finish(text, self.context))

    def chosen(self, done: wire.Done) -> tuple[str, wire.Fill]:
        """The text that is inserted for an answer, and the fill it comes from."""
        return next(self.proposals(done), ("", done.holes[0]))

    def proposals(self, done: wire.Done) -> Iterator[tuple[str, wire.Fill]]:
        """The texts that may be inserted for an answer, each with the fill it comes from: the candidates that add no
        syntax error, whole ones before half ones and the best first; then the start of the best one that adds none. The
        fill of an offer is valid as a whole or left out."""
        if self.offer:
            whole = [self.offer.fill(holes) for holes in (done.holes, *done.alternatives)]
            yield from ((fill.text, fill) for fill in whole if fill.text and self._valid(self.offer, fill.text))
            return
        fills = [done.holes[0], *(others[0] for others in done.alternatives)]
        texts = [finish(fill.text, self.context) for fill in fills]
        for text, fill in sorted(zip(texts, fills, strict=True), key=lambda one: is_half(one[0], self.context)):
            if text and self.gate.shortened(text) == text:
                yield text, fill
        if text := self.gate.shortened(texts[0]):
            yield text, fills[0]

    def _valid(self, offer: Offer, insert: str) -> bool:
        if insert != visible(insert, self.context.prefix, self.context.suffix):
            return False
        return offer.check(self.text[: self.start] + insert + self.text[self.end :]) is None


def gap(text: str, start: int, end: int, name: str, kind: HoleKind | None = None) -> TextGap:
    """The span `start:end` (code points) of a text in the language with the id `name`."""
    tree = SyntaxTree(language(name))
    tree.parse(text)
    around = context(text, start, end, language=name, tree=tree.tree, kind=kind)
    return TextGap(text, start, end, around, SyntaxGate(text, start, end, around, tree.tree))


def at_cursor(text: str, at: int, name: str, kind: HoleKind | None = None, schema: Schema | None = None) -> TextGap:
    """The gap at a cursor as inline completion fills it: in JSON and Markdown with the grammar of the fill."""
    return replace(gap(text, at, at, name, kind), offer=edits.completion(text, at, language=name, schema=schema))


def infill(
    around: Context,
    segments: Sequence[wire.Text | wire.Hole],
    options: JobOptions,
    kind: JobKind,
    schemas: tuple[str, ...] = (),
) -> wire.Infill:
    """A job for which somebody waits, with an id and a cache of its own."""
    return wire.Infill(
        job=job_id(),
        document=job_id(),
        kind=kind,
        priority="invoked",
        deadline_ms=options.deadline_ms,
        prefix=around.prefix,
        suffix=around.suffix,
        language=around.language,
        segments=tuple(segments),
        candidates=options.candidates,
        method=options.method,
        sampler=options.sampler,
        prompt=options.prompt,
        seed=options.seed,
        min_probability=options.min_probability,
        missing=around.missing_from(segments),
        schemas=schemas,
    )


def probe(prefix: str) -> wire.Infill:
    """A short job that shows whether an engine answers: the rest of a line of Python."""
    around = context(f"{prefix}\n", len(prefix), len(prefix), language="python")
    return infill(around, [wire.Hole(max_tokens=16, kind="line")], JobOptions(), "complete")
