"""Structured edits that the user asks for: the offers of a language, filled by the engine, each with its level of
guarantee. Every edit is checked in the whole document that it makes; the caller applies it.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import monotonic

from caesura import wire
from caesura.characters import visible
from caesura.client.backend import Infiller, job_id
from caesura.schema.dialects import SchemaError
from caesura.server.context.schema_files import Found, SchemaFiles
from caesura.server.context.secrets import reveals
from caesura.server.fills.history import LastFills, Turn
from caesura.server.fills.result import Events, FillResult, Level, Progress, Surround, alone
from caesura.server.fills.task import NoFill
from caesura.server.infill.job import Ask
from caesura.server.infill.site import budget, site
from caesura.server.languages import JSON, language
from caesura.server.options import Settings
from caesura.server.structured import edits
from caesura.server.structured.offer import NoOffer, Offer
from caesura.server.text.document import Document, Span

DEADLINE_S = 10.0  # for all jobs of a place
TRIES = 2  # most jobs of a place, each with a new seed
CANDIDATES = 4  # candidates per job
MOST_PLACES = 64  # most places of one edit
LEAST = 0.1  # the least probability of an edit of prose: a reader gains nothing from less likely ones

TOLD: dict[Level, str] = {  # the best first
    "valid": "valid form, guessed values",
    "checked": "checked against the schema",
    "parses": "parses",
}

Replacement = tuple[int, int, str]  # a span of the text (start, end), and its new text
Find = Callable[[str, int, int], tuple[Sequence[Offer], str]]
"""(text, start, end) -> the offers there, best first, and a sentence on their schema, or an empty one. Raises NoOffer.
Runs on a thread."""


@dataclass(frozen=True)
class _Filled:
    """The new text of an offer's span, its level of guarantee and its probability."""

    text: str
    level: Level
    chance: float


class Unlikely(NoFill):
    """All that the model proposes is less likely than asked for; `chance` is that of the best at most."""

    def __init__(self, chance: float) -> None:
        super().__init__("The model's best guess here is too unlikely; the text stays as it is.")
        self.chance = chance


class StructuredEdits:
    """The structured edits of all documents. An edit ends in NoFill if the document changes meanwhile, or if a newer
    fill or edit begins in it. `surround` adds the rest of the project to a context. All jobs of a place take
    `deadline_s` at most; then the engine completes its text as the grammar requires. Edits less likely than
    `min_probability`, or than LEAST in prose, are not made; a job ends when it can make no other."""

    def __init__(
        self,
        engine: Infiller,
        settings: Settings,
        last: LastFills,
        surround: Surround = alone,
        deadline_s: float = DEADLINE_S,
        min_probability: float | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._surround = surround
        self._last = last
        self._deadline_s = deadline_s
        self._min_probability = min_probability

    def __repr__(self) -> str:
        return f"<StructuredEdits {self._last}>"

    def edit(self, document: Document, spans: Sequence[Span], find: Find, chosen: int | str = 0) -> Events:
        """Edit each place by the offer `chosen` there, by title or number. Yields events, the last a FillResult; raises
        NoFill or EngineError. Closing the events early cancels the job. The text is read at the call. Each place sees
        the edits before it, so that no edit repeats them."""
        spans = sorted(set(spans))
        if len(spans) > MOST_PLACES:
            raise NoFill(f"There are {len(spans)} places, and {MOST_PLACES} can be edited together; select fewer.")
        return self._edit(document, document.text, spans, find, chosen, self._last.begin(document))

    async def _edit(
        self,
        document: Document,
        text: str,
        spans: Sequence[Span],
        find: Find,
        chosen: int | str,
        turn: Turn,
    ) -> Events:
        done: list[Replacement] = []
        levels: list[Level] = []
        holes, notes = 0, dict[str, None]()
        for number, span in enumerate(spans):
            turn.check()
            now, to_come = applied(text, done), len(spans) - number - 1
            offer, note = await asyncio.to_thread(choose, find, now, *_moved(span, done), chosen)
            notes[note] = None
            async with aclosing(self._fill(document, now, offer, turn)) as events:
                async for event in events:
                    if isinstance(event, _Filled):
                        done.append((*_original(offer, done), event.text))
                        levels.append(event.level)
                    else:
                        yield Progress(holes + event, holes + len(offer.holes) + to_come)
            holes += len(offer.holes)
        turn.check()
        yield FillResult(
            id=job_id(),
            version=document.version,
            edits=tuple(done),
            unfilled=(),
            holes=holes,
            level=max(levels, key=list(TOLD).index),
            note=" ".join(filter(None, notes)),
        )

    async def _fill(
        self, document: Document, text: str, offer: Offer, turn: Turn
    ) -> AsyncGenerator[int | _Filled, None]:
        """Yield the number of holes filled so far and, last, the first candidate that passes the check. Raises
        NoFill."""
        tried, bar = {text[offer.start : offer.end]}, self._min_probability_in(document)
        problem, late = "", monotonic() + self._deadline_s
        for seed in range(TRIES):
            if (left := late - monotonic()) <= 0:
                break
            job = self._job(document, text, offer, seed, 1000 * left)
            async with aclosing(self._engine.infill(job)) as events:
                async for event in events:
                    turn.check()
                    yield sum(not fill.open for fill in event.holes)
            assert isinstance(event, wire.Done)  # infill raises otherwise
            candidates = list(_candidates(text, offer, event))
            best = max((one.chance for one in candidates), default=1.0)
            if best < bar or event.stop == "unlikely":
                raise Unlikely(min(best, bar))
            for candidate in candidates:
                if candidate.text in tried or candidate.chance < bar:
                    continue
                tried.add(candidate.text)
                new = applied(text, [(offer.start, offer.end, candidate.text)])
                found = await asyncio.to_thread(offer.check, new)
                if found is None:
                    yield candidate
                    return
                problem = found
            turn.check()
        if problem:
            raise NoFill(f"No proposal passed the check, so the text stays as it is: {problem}")
        raise NoFill("The model proposes nothing else here; the text stays as it is.")

    def _job(self, document: Document, text: str, offer: Offer, seed: int, deadline_ms: float) -> wire.Infill:
        options, (start, end) = self._settings.options, (offer.start, offer.end)
        found = site(text, start, end, document.language, tree=None, options=options, kind="span")
        around = self._surround(document, found.context, budget(options))
        ask = Ask(
            kind="edit",
            candidates=CANDIDATES,
            deadline_ms=deadline_ms,
            seed=seed,
            min_probability=self._min_probability_in(document),
        )
        return replace(found, context=around, offer=offer).job(ask)

    def _min_probability_in(self, document: Document) -> float:
        if self._min_probability is not None:
            return self._min_probability
        return LEAST if language(document.language).prose else 0.0


def finder(uri: str, name: str, schemas: SchemaFiles, schema: str | None = None) -> Find:
    """A Find for a document, with the schema in the file `schema`, else its own."""

    def find(text: str, start: int, end: int) -> tuple[Sequence[Offer], str]:
        if schema and name not in JSON:
            raise NoOffer("A schema applies to JSON only.")
        try:
            found = schemas.find(uri, text, schema) if name in JSON else Found()
        except SchemaError as error:
            raise NoOffer(str(error)) from error
        try:
            offers = edits.offers(text, start, end, language=name, schema=found.schema)
        except NoOffer:
            if end - start != 1:  # a block cursor is sent as a selection of one
                raise
            offers = edits.offers(text, start, start, language=name, schema=found.schema)
        return offers, found.note

    return find


def applied(text: str, edits: Sequence[Replacement]) -> str:
    """The text with ascending edits in it."""
    parts, at = list[str](), 0
    for start, end, new in edits:
        parts += text[at:start], new
        at = end
    return "".join([*parts, text[at:]])


def _moved(span: Span, edits: Sequence[Replacement]) -> Span:
    """The span in the text with the edits before it. Raises NoFill if an edit overlaps it."""
    if edits and span[0] < edits[-1][1]:
        raise NoFill("Two of the places belong to one edit; ask for them one after the other.")
    grown = sum(len(new) - (end - start) for start, end, new in edits)
    return span[0] + grown, span[1] + grown


def _original(offer: Offer, edits: Sequence[Replacement]) -> Span:
    """The span of an offer in the text before the edits. Raises NoFill if an edit overlaps it."""
    grown = sum(len(new) - (end - start) for start, end, new in edits)
    start, end = offer.start - grown, offer.end - grown
    if edits and start < edits[-1][1]:
        raise NoFill("Two of the places belong to one edit; ask for them one after the other.")
    return start, end


def choose(find: Find, text: str, start: int, end: int, chosen: int | str) -> tuple[Offer, str]:
    """The offer with the title or number `chosen` at a place, and the sentence on its schema. Raises NoFill."""
    try:
        offers, note = find(text, start, end)
    except NoOffer as error:
        raise NoFill(str(error)) from error
    if isinstance(chosen, int):
        found = list(offers[chosen : chosen + 1])
    else:
        found = [offer for offer in offers if offer.title == chosen]
    if not found:
        titles = "; ".join(offer.title for offer in offers)
        raise NoFill(f"There is no such edit here, only: {titles}." if titles else "Nothing can be edited here.")
    return found[0], note


def _candidates(text: str, offer: Offer, done: wire.Done) -> Iterator[_Filled]:
    """The new texts of the offer's span, best first. None has the placeholder of a masked secret, or an invisible
    character that the file does not use."""
    known = "".join(offer.schemas)
    for fills in (done.holes, *done.alternatives):
        given = [fill.text for fill in fills]
        shown = [visible(each, text, known) for each in given]
        if not any(reveals(each, text, known) for each in shown):
            level = _level(offer, sure=done.level == "valid" and shown == given)
            yield _Filled(offer.text(shown), level, math.prod(map(_chance, fills)))


def _chance(fill: wire.Fill) -> float:
    """The probability of a fill, or the engine's confidence if there are no probabilities of tokens."""
    return math.prod(chance for _, chance in fill.probabilities) if fill.probabilities else fill.confidence


def _level(offer: Offer, *, sure: bool) -> Level:
    """The level of guarantee. `sure`: the engine reports valid text, and nothing has changed it since."""
    if offer.level == "parses" or not (sure or offer.schemas):
        return "parses"
    return offer.level if sure else "checked"
