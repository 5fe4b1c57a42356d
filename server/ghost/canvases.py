"""Canvases of documents: which one answers for a cursor, when a new one is begun and from what, and what is worth
computing ahead. The engine, and what lies around a document, are passed in.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Literal, Protocol

from caesura import wire
from caesura.client.backend import EngineBusy, EngineError, EngineUnavailable, Infiller, job_id
from caesura.schema.document import Schema
from caesura.server.answers import syntax
from caesura.server.answers.finish import line_break
from caesura.server.answers.worth import ALL, Bar
from caesura.server.context import secrets
from caesura.server.context.context import (
    Budget,
    Context,
    after_closing,
    context,
    hole,
    line_after,
    line_before,
    opens_block,
)
from caesura.server.context.schema_files import SchemaFiles
from caesura.server.ghost.canvas import Gate, Proposal, Typed, WarmCanvas
from caesura.server.ghost.cursor import Cursor
from caesura.server.languages import Language
from caesura.server.options import MODES, Options
from caesura.server.records.trace import Answer
from caesura.server.structured import edits
from caesura.server.structured.offer import Offer
from caesura.server.text.lexer import indent_of
from caesura.server.text.workspace import Open

FAINT = 25  # explore text up to this many times below the display threshold; typing confirms its start
NEARBY = 30  # lines within which the neighbours stay as they were chosen, so that the engine's KV of them stays valid

LEAST_WORD = 3  # letters of a word of prose before its rest is worth a job

_WORD = re.compile(rf"\w{{{LEAST_WORD}}}\Z")

log = logging.getLogger(__name__)


class Around(Protocol):
    """What we need to know of what lies around a document; see context/project.py."""

    @property
    def generation(self) -> int: ...
    @property
    def schema_files(self) -> SchemaFiles: ...
    def schema(self, opened: Open) -> Schema | None: ...
    def hidden(self, opened: Open) -> bool: ...
    def frame(self, opened: Open, place: Context, budget: Budget) -> Context: ...
    def neighbours(
        self, opened: Open, place: Context, kept: tuple[wire.Neighbour, ...]
    ) -> tuple[wire.Neighbour, ...]: ...


@dataclass(frozen=True)
class Selected:
    """The item that a completion popup has selected: `text` would replace what lies between `start` and the cursor."""

    start: int
    text: str


class Canvases:
    """Begins, keeps and ends the canvases of all cursors."""

    def __init__(self, engine: Infiller, options: Callable[[], Options], around: Around) -> None:
        self._engine = engine
        self._options = options
        self._around = around
        self._trouble = ""
        self._reading: asyncio.Task[None] | None = None  # of what lies around a resting cursor
        self._readings, self._reader = 0, job_id()

    def __repr__(self) -> str:
        return f"<Canvases {self._trouble!r}>"

    def follow(
        self,
        cursor: Cursor,
        opened: Open,
        at: int,
        priority: Literal["invoked", "automatic"],
        bar: Bar,
        selected: Selected | None = None,
    ) -> tuple[WarmCanvas, Answer]:
        """The canvas for `at`: one there is that still agrees, else a new one; and which of them. `bar` is what a
        suggestion must reach."""
        start = partial(self._start, cursor, opened, at, priority, bar, selected)
        cursor.at, cursor.restart, cursor.readings = at, start, self._readings
        canvas = self._known(cursor, opened, at, selected)
        invoked = priority == "invoked"
        if canvas is None or canvas.faint > _bar_for(canvas, bar, invoked=invoked).chance:  # some of what was given up
            return start(), "cold"
        if invoked:
            canvas.bar = canvas.bar.lower(bar)
            gate = self.gate(cursor, opened, canvas)
            if canvas.over and not canvas.propose(at, gate, whole=selected is not None).insert:
                return start(
                    seed=canvas.seed + 1
                ), "cold"  # a person who asks again asks for something else than nothing
        cursor.put(canvas)
        return (
            canvas,
            "speculated"
            if canvas.speculative
            else "typed_through"
            if canvas.typed.written and canvas.fills
            else "warm",
        )

    def _known(self, cursor: Cursor, opened: Open, at: int, selected: Selected | None) -> WarmCanvas | None:
        if selected is not None:
            known = cursor.canvas
            if known is None or (known.lead, known.typed.origin) != (selected.text, selected.start):
                return None
            moved = at != known.typed.origin + len(known.typed.text)  # within the word, with the popup still open
            return None if moved or known.stale or (known.over and not known.fills) else known
        agreeing = [one for one in (cursor.canvas, cursor.ahead, *cursor.resting) if one and one.agrees(at)]
        for canvas in sorted(agreeing, key=lambda one: not one.fills):  # one that has said something does agree
            if not (canvas.stale and self._differs(canvas, opened)):
                return canvas
        return None

    def _differs(self, canvas: WarmCanvas, opened: Open) -> bool:
        """True if edits elsewhere have changed what the engine was shown for a canvas."""
        start, end = canvas.typed.origin, canvas.typed.origin + len(canvas.typed.text)
        now = self._context(opened, start, end)
        canvas.stale = (now.prefix + canvas.lead, now.suffix) != (canvas.context.prefix, canvas.context.suffix)
        return canvas.stale

    def _start(
        self,
        cursor: Cursor,
        opened: Open,
        at: int,
        priority: Literal["invoked", "automatic"],
        bar: Bar,
        selected: Selected | None,
        *,
        seed: int = 0,
    ) -> WarmCanvas:
        """A new canvas for `at`, warm from what is left of the one before it."""
        lead, start = (selected.text, selected.start) if selected else ("", at)
        end = at if selected else self._end(opened, at)
        typed = Typed(start, opened.document.text[start:at], opened.document.text[at:end])
        draft = _draft((cursor.canvas, *cursor.resting), opened.document.text[start:at], lead, at)
        began = perf_counter()
        place = self._place(cursor, opened, start, end, lead)
        canvas = WarmCanvas(typed, place, lead=lead, bar=bar)
        canvas.replaces, canvas.context_ms = selected is not None, (perf_counter() - began) * 1000
        cursor.put(canvas)
        self._launch(cursor, opened, canvas, priority, cursor.key, draft=draft, seed=seed)
        return canvas

    def read(self, cursor: Cursor, opened: Open, at: int) -> None:
        """Have the context of `at` prefilled in idle time. That of a known canvas was, unless other readings have taken
        its place in the engine's cache since. There is one reading at a time: it ends with this."""
        self.end_reading()
        known = self._known(cursor, opened, at, None) is not None
        if known and cursor.readings == self._readings:
            return
        end = self._end(opened, at)
        canvas = WarmCanvas(Typed(at, closing=opened.document.text[at:end]), self._place(cursor, opened, at, end))
        if self._wanted(opened, canvas, "speculative"):
            job = self._job(cursor, opened, canvas, "speculative", self._reader)
            self._readings += 1
            cursor.readings = self._readings if known else cursor.readings
            self._reading = asyncio.create_task(self._prefill(job))

    def end_reading(self) -> None:
        """Before another job begins, so that the engine has what was read so far for it."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _prefill(self, job: wire.Infill) -> None:
        """Until the engine says the first thing of the hole; its KV cache has the context then. Where it fails, nobody
        has asked for anything yet."""
        with suppress(EngineError):
            async with aclosing(self._engine.infill(job)) as events:
                await anext(events, None)

    def _place(self, cursor: Cursor, opened: Open, start: int, at: int, lead: str = "") -> Context:
        """The context there, with the cursor's neighbours chosen for it."""
        place = self._context(opened, start, at, lead)
        line, generation = opened.document.position(at)[0], self._around.generation
        if cursor.generation != generation or abs(line - cursor.anchor) > NEARBY:
            cursor.anchor, cursor.generation = line, generation
            cursor.neighbours = self._around.neighbours(opened, place, cursor.neighbours)
        return place

    def _end(self, opened: Open, at: int) -> int:
        """Where a hole at the cursor ends. Brackets and quotes that close there were put there by the editor as a rule:
        the fill says what becomes of them, and the suffix stays the same while they come and go."""
        return at if self._structured(opened) else after_closing(opened.document.text, at, opened.language)

    def _structured(self, opened: Open) -> bool:
        return self._options().structured and opened.document.language in edits.LANGUAGES

    def _context(self, opened: Open, start: int, end: int, lead: str = "") -> Context:
        """The context of the hole behind `lead`, which is thought to stand in the place of `start:end`."""
        text, tree = opened.document.text, opened.tree.tree
        budget = Budget(self._options().context_before, self._options().context_after)
        if lead:
            text, tree, start = text[:start] + lead + text[end:], None, start + len(lead)
            end = start
        language = opened.document.language
        found = context(text, start, end, language=language, tree=tree, budget=budget, following=True)
        return self._around.frame(opened, found, budget)

    def _launch(
        self,
        cursor: Cursor,
        opened: Open,
        canvas: WarmCanvas,
        priority: Literal["invoked", "automatic", "speculative"],
        key: str,
        *,
        draft: tuple[str] | None = None,
        seed: int = 0,
    ) -> None:
        """Begin the job of a canvas, unless nothing is wanted there."""
        if not self._wanted(opened, canvas, priority):
            canvas.over = True
            return
        job = self._job(cursor, opened, canvas, priority, key, draft=draft, seed=seed)
        canvas.task = asyncio.create_task(self._run(cursor, opened, canvas, job))

    def _wanted(self, opened: Open, canvas: WarmCanvas, priority: str) -> bool:
        options, start = self._options(), canvas.typed.origin
        if opened.document.language == "markdown" and priority != "invoked":
            text = opened.document.text
            before = line_before(text, start) + (canvas.lead or canvas.typed.written)
            line = line_before(before, len(before))
            prose = edits.is_prose(line) and not edits.in_code(text, start, opened.tree.tree)
            if prose and not _WORD.search(line):
                return False
        return {"comment": options.in_comments, "string": options.in_strings}.get(canvas.context.scope, True)

    def _job(
        self,
        cursor: Cursor,
        opened: Open,
        canvas: WarmCanvas,
        priority: Literal["invoked", "automatic", "speculative"],
        key: str,
        *,
        draft: tuple[str] | None = None,
        seed: int = 0,
    ) -> wire.Infill:
        place, options = canvas.context, self._options()
        canvas.job, canvas.seed, canvas.offer = job_id(), seed, self._offer(opened, canvas)
        canvas.bar = _bar_for(canvas, canvas.bar, invoked=priority == "invoked")
        canvas.faint = canvas.bar.chance / FAINT
        wanted = canvas.offer.segments if canvas.offer else (hole(place, options.max_tokens),)
        prefix, segments, suffix = secrets.concealed(place.prefix, wanted, place.suffix)
        return wire.Infill(
            job=canvas.job,
            document=key,
            priority=priority,
            prefix=prefix,
            suffix=suffix,
            language=place.language,
            neighbours=cursor.neighbours,
            segments=segments,
            candidates=options.candidates,
            draft=draft if len(segments) == 1 else None,
            seed=seed,
            least=canvas.faint,
            schemas=tuple(map(secrets.masked_schema, canvas.offer.schemas)) if canvas.offer else (),
        )

    def _offer(self, opened: Open, canvas: WarmCanvas) -> Offer | None:
        """What the grammar of the document's language lets stand behind the lead of a canvas."""
        if not self._structured(opened):
            return None
        document = opened.document
        start, typed = canvas.typed.origin, canvas.typed.text
        before, after = document.text[:start] + canvas.lead, document.text[start + len(typed) :]
        text, schema = before + after, self._around.schema(opened)
        return edits.completion(text, len(before), language=document.language, schema=schema)

    async def _run(self, cursor: Cursor, opened: Open, canvas: WarmCanvas, job: wire.Infill) -> None:
        try:
            async with aclosing(self._engine.infill(job)) as events:
                async for event in events:
                    canvas.hear(event)
                    if not canvas.agrees(cursor.at):
                        self._restart(cursor, canvas)  # it says something else than was typed, or nothing beyond it
                    cursor.wake()
            self._trouble = ""
            if canvas is cursor.ahead and not canvas.speculative:
                self._adopt(cursor, opened)
        except EngineError as error:
            self._report(str(error))
            hopeless = isinstance(error, (EngineBusy, EngineUnavailable))  # another job now would fare no better
            if canvas.typed.written and not canvas.shown and not hopeless:
                self._restart(cursor, canvas)  # no job has begun for the newest keys, nor does the editor show anything
        finally:
            canvas.over = True
            cursor.wake()

    def _restart(self, cursor: Cursor, canvas: WarmCanvas) -> None:
        """Begin a new canvas instead of this one, if that is the one at a cursor that we know."""
        if cursor.canvas is canvas and not canvas.replaces and cursor.restart:
            cursor.restart()

    def gate(self, cursor: Cursor, opened: Open, canvas: WarmCanvas) -> Gate:
        """What of a text is sound in the document as it is now. The drafts of a canvas share a gate until the text
        changes. Each draft is parsed in the event loop: 1.4 ms at 2,000 lines, 2.6 with a gate of its own (p50)."""
        key = canvas, opened.document.text, opened.tree.tree, self._options().syntax_gate
        if cursor.gate is None or cursor.gate[0] != key:
            cursor.gate = key, self._gate(opened, canvas)
        return cursor.gate[1]

    def _gate(self, opened: Open, canvas: WarmCanvas) -> Gate:
        text, tree = opened.document.text, opened.tree.tree
        if offer := canvas.offer:
            return cache(lambda start, end, insert: "" if offer.check(text[:start] + insert + text[end:]) else insert)
        if not self._options().syntax_gate:
            return lambda start, end, insert: insert
        before = canvas.context.prefix.removesuffix(canvas.lead)

        @cache  # of all candidates: they are for the same place
        def gate(start: int, end: int) -> syntax.Gate:
            place = replace(canvas.context, prefix=before + text[canvas.typed.origin : start])
            return syntax.Gate(text, start, end, place, tree)

        return lambda start, end, insert: gate(start, end).shortened(insert)

    def _report(self, trouble: str) -> None:
        """Log a trouble once, not at every keystroke."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("No completion: %s", trouble)

    # What runs ahead

    def refine(self, cursor: Cursor, opened: Open, canvas: WarmCanvas) -> None:
        """A part was accepted: it is fixed now, and what is left of the canvas is denoised again behind it."""
        taken = canvas.typed.written
        whole = cursor.at == canvas.typed.origin + len(taken)
        if canvas.answer and not canvas.offer and canvas.rest() and whole and taken.startswith(canvas.lead):
            self._go_ahead(cursor, opened, canvas, taken, draft=canvas.rest())

    def mend(self, cursor: Cursor, opened: Open, canvas: WarmCanvas, sound: Proposal) -> bool:
        """The syntax gate cut the proposal: denoise what is behind the sound part again; false when that was tried."""
        lead = canvas.typed.written + sound.insert
        inside = cursor.at != canvas.typed.origin + len(canvas.typed.written)  # of brackets that the editor closed
        if not canvas.answer or canvas.mended or sound.back or inside or not lead.startswith(canvas.lead):
            return False
        canvas.mended = True
        self._go_ahead(cursor, opened, canvas, lead, seed=1)
        return True

    def speculate(self, cursor: Cursor, opened: Open, canvas: WarmCanvas, proposal: Proposal) -> None:
        """In idle time, what would come next if the proposal were accepted and the line ended."""
        wanted = self._options().speculate and self._options().warm and MODES[self._options().mode].automatic
        ends = canvas.context.kind != "span" and not line_after(opened.document.text, cursor.at).strip()
        if not (wanted and ends and canvas.answer) or cursor.ahead or proposal.eat or proposal.back:
            return
        typed = Typed(canvas.typed.origin, canvas.typed.text)
        before = canvas.context.prefix.removesuffix(canvas.lead)
        lead = _entered(before, typed.text + proposal.insert, line_break(canvas.context), opened.language)
        place = self._context(opened, typed.origin, typed.origin + len(typed.text), lead)
        following = WarmCanvas(typed, place, lead=lead, bar=canvas.bar, speculative=True)
        cursor.run_ahead(following)
        self._launch(cursor, opened, following, "speculative", cursor.key + "+")

    def _go_ahead(
        self,
        cursor: Cursor,
        opened: Open,
        canvas: WarmCanvas,
        lead: str,
        *,
        draft: tuple[str] | None = None,
        seed: int = 0,
    ) -> None:
        """Denoise the hole of `canvas` again behind `lead`."""
        prefix = canvas.context.prefix.removesuffix(canvas.lead) + lead
        place = replace(canvas.context, prefix=prefix, indent=indent_of(line_before(prefix, len(prefix))))
        typed = Typed(canvas.typed.origin, canvas.typed.written, canvas.typed.closing)
        again = WarmCanvas(typed, place, lead=lead, bar=canvas.bar)
        again.mended = True
        cursor.run_ahead(again)
        self._launch(cursor, opened, again, "automatic", cursor.key + "+", draft=draft, seed=seed)

    def _adopt(self, cursor: Cursor, opened: Open) -> None:
        """Take the canvas that ran ahead, if it only adds to what the old one proposes: what is shown never jumps."""
        old, new = cursor.canvas, cursor.ahead
        if old is None or new is None:
            return
        shown = old.propose(cursor.at, self.gate(cursor, opened, old)).insert
        found = new.propose(cursor.at, self.gate(cursor, opened, new)).insert
        if found.startswith(shown) and len(found) > len(shown):
            cursor.put(new)
            cursor.resting.remove(old)
        else:
            cursor.run_ahead(None)


def _bar_for(canvas: WarmCanvas, bar: Bar, *, invoked: bool) -> Bar:
    """What the suggestions of a canvas must reach. A person who asks where the grammar is known gets the best that is
    valid, as from a structured edit."""
    return ALL if invoked and canvas.offer else bar


def _draft(known: Sequence[WarmCanvas | None], typed: str, lead: str, at: int) -> tuple[str] | None:
    """What is left of a canvas at `at`, as a start for one that has `lead` in the place of `typed` before it."""
    here = (canvas for canvas in known if canvas and at == canvas.typed.origin + len(canvas.typed.written))
    rest = next((rest for canvas in here if (rest := canvas.rest())), None)
    if rest is None or not (typed + rest[0]).startswith(lead):
        return None
    return ((typed + rest[0]).removeprefix(lead),) if lead else rest


def _entered(before: str, lead: str, line_break: str, row: Language) -> str:
    """`lead` behind `before`, with the line break and the indentation that an editor adds when its line is ended."""
    line = line_before(before + lead, len(before + lead))
    step = ("\t" if "\t" in indent_of(line) else "    ") if opens_block(line, row) else ""
    return lead + line_break + indent_of(line) + step
