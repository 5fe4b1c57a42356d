"""Fills that the user asks for: a selection, several holes, a broken region; afterwards another candidate, or the rest
of a fill again. The results are edits, which the caller applies.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

from caesura import wire
from caesura.client.backend import Infiller, job_id
from caesura.schema.document import Schema
from caesura.server.context.recall import recall
from caesura.server.fills.batch import Batch, next_batch
from caesura.server.fills.history import FillHistory, LastFills, Turn
from caesura.server.fills.placeholders import is_snippets, placeholders
from caesura.server.fills.result import DEADLINE_MS, Events, FillResult, Progress, Surround, alone, or_else
from caesura.server.fills.task import MARKER, Candidate, Gap, HoleIndex, Invented, NoFill, Task, markers, trimmed
from caesura.server.infill.job import Ask, masked_draft
from caesura.server.infill.site import budget, offer_at
from caesura.server.options import Settings
from caesura.server.structured.offer import Offer
from caesura.server.text import repair
from caesura.server.text.document import Document, Span

MOST_HOLES = 64  # most holes of one fill, over all its jobs
MAX_SELECTION = 800  # most code points of a selection: about as many as the tokens of a hole make
TRIES = 4  # most jobs for another candidate, each with a new seed
CANDIDATES = 4  # candidates per job


class Fills:
    """The fills of all documents. Each method that begins one yields events, the last a FillResult, or raises NoFill or
    EngineError; closing the events early cancels the job. The text is read at the call. A fill ends in NoFill if the
    document changes meanwhile, or if a newer fill begins in it. `surround` adds the rest of the project to a
    context."""

    def __init__(self, engine: Infiller, settings: Settings, last: LastFills, surround: Surround = alone) -> None:
        self._engine = engine
        self._settings = settings
        self._surround = surround
        self._last = last

    def __repr__(self) -> str:
        return f"<Fills {self._last}>"

    def selection(self, document: Document, spans: Sequence[Span], schema: Schema | None = None) -> Events:
        """Replace the selected texts, all in one fill. A single cursor gets text with a grammar among imports and in
        JSON, which has a `schema`, and Markdown."""
        text, name = document.text, document.language
        inner = [trimmed(text, *span) for span in spans]
        if any(end - start > MAX_SELECTION for start, end in inner):
            raise NoFill(f"The selection is longer than {MAX_SELECTION} characters; select less.")
        at_cursor = len(inner) == 1 and inner[0][0] == inner[0][1]
        tree, structured = repair.parsed(text, name), self._settings.options.structured
        offer = offer_at(text, inner[0][0], name, tree, schema, structured=structured) if at_cursor else None
        return self._begin(document, [Gap(*span) for span in inner], offer=offer)

    def holes(
        self, document: Document, spans: Sequence[Span] = (), marker: str = MARKER, *, snippet: bool = False
    ) -> Events:
        """Fill every marker in the spans, or in the whole text if there are none; see `gaps_in`."""
        found, note = gaps_in(document, spans, marker, snippet=snippet)
        if not found:
            raise NoFill(note or f"There is no marker {marker} here; put one where something is missing.")
        return self._begin(document, found, note)

    def repair(self, document: Document, start: int, end: int) -> Events:
        """Replace the smallest broken region around `start:end`, so that the text parses better."""
        tree = repair.parsed(document.text, document.language)
        if tree is None:
            raise NoFill("This document has no syntax tree to find faults with; select the text to replace.")
        spans = repair.regions(tree, document.text, start, end)
        if not spans:
            raise NoFill("Nothing is broken here; select the text to replace.")
        tasks = [Task(document.text, document.language, (Gap(*span),), tree, repairs=True) for span in spans]
        histories = [FillHistory(job_id(), task) for task in tasks]
        events = self._repair(document, histories, self._last.begin(document))
        return or_else(events, "No repair was found that parses better; the text stays as it is.")

    def another(self, document: Document, id: str | None = None) -> Events:
        """Replace the document's last fill by another candidate. Raises NoFill if the last fill is not `id`."""
        history = self._last.history(document, id)
        events = self._next(document, history, self._last.begin(document), tries=TRIES)
        return or_else(events, "The model proposes nothing else here.")

    def keep(self, document: Document, kept: Sequence[Span], id: str | None = None) -> Events:
        """Keep the text in the spans `kept` of `filled(document)`, and denoise the rest of that fill again."""
        history = self._last.history(document, id).keeping(kept)
        events = self._next(document, history, self._last.begin(document), tries=TRIES)
        return or_else(events, "The model proposes nothing else next to the kept text.")

    def filled(self, document: Document, id: str | None = None) -> Document:
        """The document with its last fill in it, applied or not."""
        text, _ = self._last.history(document, id).applied()
        return Document(document.uri, document.language, document.version, text, document.encoding)

    # One fill

    def _begin(self, document: Document, gaps: Sequence[Gap], note: str = "", offer: Offer | None = None) -> Events:
        gaps = sorted(gaps, key=lambda gap: (gap.start, gap.end))
        if len(gaps) > MOST_HOLES:
            raise NoFill(f"There are {len(gaps)} holes, and {MOST_HOLES} can be filled together; select fewer.")
        if any(later.start < gap.end for gap, later in pairwise(gaps)):
            raise NoFill("The selections overlap.")
        text, language = document.text, document.language
        checked = self._settings.options.syntax_gate
        task = Task(text, language, tuple(gaps), repair.parsed(text, language), offer=offer, is_checked=checked)
        history = FillHistory(job_id(), task)
        events = self._next(document, history, self._last.begin(document), tries=2)
        return or_else(events, "The model proposes nothing that fits here; the text stays as it is.", note)

    async def _next(self, document: Document, history: FillHistory, turn: Turn, *, tries: int) -> Events:
        """Yield the result for the best candidate not shown yet. If none of `tries` jobs has one, the part of a
        candidate that fits is the result, if there is any."""
        turn.check()
        history.where(document.text)
        answer, known = list[Candidate](), len(history.invented)
        found = history.take()
        while found is None and tries:
            async with aclosing(self._denoise(document, history, turn)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        yield event
                    else:
                        answer = event if any(map(any, event)) else answer
            history.seed += 1
            tries -= 1
            found = history.take()
        found = found or history.take_part(answer)
        if found is not None:
            turn.check()
            yield self._result(document, history, found)
        elif invented := history.invented[known:]:
            raise Invented(invented)

    async def _repair(self, document: Document, histories: Sequence[FillHistory], turn: Turn) -> Events:
        attempts = [*histories, *histories]  # the second round has another seed
        for number, history in enumerate(attempts):
            yield Progress(number, len(attempts))
            async with aclosing(self._next(document, history, turn, tries=1)) as events:
                async for event in events:
                    if isinstance(event, FillResult):
                        yield event
                        return

    def _result(self, document: Document, history: FillHistory, candidate: Candidate) -> FillResult:
        """The edits from the current document to the one with `candidate` in its gaps."""
        spans = history.where(document.text)
        now = [document.text[start:end] for start, end in spans]
        removes = history.task.repairs
        history.standing = tuple(text if text or removes else old for text, old in zip(candidate, now, strict=True))
        self._last.keep(document, history)
        new = zip(spans, now, history.standing, strict=True)
        return FillResult(
            id=history.id,
            version=document.version,
            edits=tuple((*span, text) for span, old, text in new if text != old),
            unfilled=tuple(span for span, text in zip(spans, candidate, strict=True) if not text and not removes),
            holes=len(spans) - sum(gap.like is not None for gap in history.task.gaps),
            fills=tuple(history.fills[candidate]),
        )

    async def _denoise(
        self, document: Document, history: FillHistory, turn: Turn
    ) -> AsyncGenerator[Progress | list[Candidate], None]:
        """Fill all holes. Holes that lie far apart are filled in batches, and each batch sees the fills of those before
        it. The last event has the candidates, best first; only a fill of one batch has several."""
        task, filled, made = history.task, dict[HoleIndex, str](), list[wire.Fill]()
        count = len(task.holes)
        while len(filled) < count:
            turn.check()
            batch = next_batch(task, filled, self._settings.options)
            async with aclosing(self._engine.infill(self._job(document, history, batch))) as events:
                async for event in events:
                    turn.check()
                    yield Progress(len(filled) + sum(not fill.open for fill in batch.fills(event.holes)), count)
            assert isinstance(event, wire.Done)  # infill raises otherwise
            answers = [batch.fills(holes) for holes in (event.holes, *event.alternatives)]
            if len(batch.sites) == count:
                yield history.receive([task.candidate(batch.fitted(fills)) for fills in answers], answers)
                return
            filled |= batch.fitted(answers[0])
            made += answers[0]
        yield history.receive([task.candidate(filled)], [made])

    def _job(self, document: Document, history: FillHistory, batch: Batch) -> wire.Infill:
        """The job of a batch, which reads no member that an earlier one invented. The first job of a repair starts from
        the broken text."""
        around = self._surround(document, batch.around, budget(self._settings.options))
        warm = history.task.repairs and history.seed == 0
        replaced = ((history.task.replaced(index), site.context) for index, site in batch.sites.items())
        draft = tuple(masked_draft(text, around) for text, around in replaced) if warm else None
        ask = Ask(kind="fill", document=history.id, candidates=CANDIDATES, deadline_ms=DEADLINE_MS, seed=history.seed)
        first, *_, last = [*batch.sites.values(), *batch.sites.values()]
        passage = recall(batch.text, first.start, last.end, around.language)
        first = replace(first, context=around, neighbours=(passage.neighbour,) if passage else ())
        return first.job(ask, draft, batch.segments(history.invented))


def gaps_in(
    document: Document, spans: Sequence[Span], marker: str = MARKER, *, snippet: bool = False
) -> tuple[list[Gap], str]:
    """The gaps for the markers in the spans, or in the whole text if there are none, and a sentence or an empty one. In
    spans without a marker of a file of snippets, or with `snippet`, they are those of the placeholders."""
    found = [Gap(*span) for span in markers(document.text, spans, marker)]
    if found or not spans or not (snippet or is_snippets(document.uri)):
        return found, ""
    return placeholders(document.text, spans)
