"""The ghost text of one document: its canvases, the jobs that fill them, and what the editor shows.

Denoising starts at the edit, so a request finds it in progress. Typing along with a proposal is free; after any other
key a new canvas starts from the rest of the old one.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

import msgspec

from caesura import wire
from caesura.client.backend import Backend, EngineBusy, EngineError, EngineUnavailable, job_id
from caesura.server.context.context import Context, line_after, line_before, opens_block
from caesura.server.context.project import Project
from caesura.server.context.recall import Passage, recall
from caesura.server.ghost.canvas import WarmCanvas
from caesura.server.ghost.canvases import Canvases
from caesura.server.ghost.feedback import TAKEN, Feedback, Suggestion
from caesura.server.ghost.reader import ContextReader
from caesura.server.ghost.sites import IN_FRONT, Sites
from caesura.server.ghost.typed import Proposal, Typed
from caesura.server.infill.choose import ALL, ShowThreshold
from caesura.server.infill.indentation import usual_step
from caesura.server.infill.insert import line_break
from caesura.server.infill.job import Ask, Priority
from caesura.server.infill.site import Site
from caesura.server.languages import Language
from caesura.server.options import MODES, Settings
from caesura.server.records.trace import AnswerKind
from caesura.server.text.document import Edit
from caesura.server.text.lexer import indent_of
from caesura.server.text.workspace import OpenDocument


@dataclass(frozen=True)
class Selected:
    """The item selected in a completion popup: `text` would replace the text between `start` and the cursor."""

    start: int
    text: str


@dataclass(frozen=True)
class Start:
    """A request for a canvas at the offset `at`; `threshold` is the requirement that a suggestion must meet."""

    at: int
    priority: Literal["invoked", "automatic"]
    threshold: ShowThreshold
    selected: Selected | None = None


@dataclass(frozen=True)
class Continued:
    """Text that the editor shows for `selected`, the selected item of a popup, over what was `typed` of it."""

    selected: Selected
    typed: Typed
    insert: str

    def rest(self, cursor: int) -> Proposal | None:
        """The rest of it at `cursor`, also once the popup has closed; None if there is none."""
        return self.typed.rest(self.insert, cursor)


@dataclass
class Services:
    """The services that all panes of a session share."""

    engine: Backend
    settings: Settings
    project: Project
    feedback: Feedback
    sites: Sites
    reader: ContextReader
    report: Callable[[str], None]  # gets the sentence of each error, and an empty text after each answer


class Pane:
    """The ghost text of the document `opened`."""

    def __init__(self, opened: OpenDocument, services: Services) -> None:
        self.opened = opened
        self.canvases = Canvases()
        self.suggestion: Suggestion | None = None  # shown by the editor
        self.ticket = 0  # number of the newest request
        self._continued: Continued | None = None  # shown by the editor in a popup
        self.withdrawn = False  # settings or a policy want nothing shown that came before them
        self.changed = asyncio.Event()  # set at each news, and replaced by a new one
        self._services = services
        self._key = job_id()  # names the document to the engine without its path
        self._at = 0  # the offset at the newest edit or request
        self._start: Start | None = None  # the newest request for a canvas; None while the cursor's position is unknown
        self._passage: Passage | None = None  # of the newest canvas
        self._place: tuple[tuple[object, ...], Site] | None = None  # the last of `place`, after its key
        self._readings = 0  # `reader.count` when the engine last had this document's context

    def __repr__(self) -> str:
        return f"<Pane at {self._at} {self.canvases}>"

    # What the editor does

    def supersede(self) -> int:
        """Supersede all requests so far. Returns the ticket of the next one."""
        self._services.reader.end()
        self.ticket += 1
        self._wake()
        return self.ticket

    def edited(self, edits: Sequence[Edit]) -> None:
        """Apply edits: keep the canvas if the user typed what it proposes, else begin a new one."""
        self.supersede()
        now = asyncio.get_running_loop().time()
        for edit in edits:
            self.canvases.follow(edit)
            if self._continued and not self._continued.typed.follow(edit):
                self._continued = None
            if self.suggestion:
                self._services.feedback.judge(self.suggestion, self.suggestion.follow(edit, now))
        at, self._start = _cursor_after(edits, self.opened.language), None
        if at is None or not self._services.settings.options.warm or self.refusal(invoked=False):
            return
        canvas, how = self.canvas_for(Start(at, "automatic", self._services.feedback.threshold(invoked=False)))
        if how != "cold" and len(edits[0].text.strip()) >= TAKEN:
            self._refine(canvas)

    def replaced(self) -> None:
        """The whole text was replaced. The cursor's position is unknown until the next request begins a canvas."""
        self.close()
        self._continued = None
        if self.suggestion:
            self.suggestion.moved = True

    def rested(self, at: int) -> None:
        """The cursor has come to rest: have its context prefilled, unless that of a known canvas is still in the
        engine's cache."""
        reader = self._services.reader
        if not self._services.settings.options.warm or self.refusal(invoked=False):
            return
        reader.end()
        known = self._known(at, None) is not None
        if known and self._readings == reader.count:
            return
        closing = self.opened.document.text[at : self._services.sites.end(self.opened, at)]
        canvas = self._canvas(Typed(at, closing=closing), speculative=True)
        if canvas.refusal in ("", IN_FRONT):  # the user may begin another word there
            reader.read(self._job(canvas, reader.document))
            self._readings = reader.count if known else self._readings

    def close(self) -> None:
        """End the requests and the jobs of this document."""
        self.supersede()
        self.canvases.drop()
        self._place = None

    def refusal(self, *, invoked: bool) -> str:
        """The sentence on why this document gets no suggestions; empty if it gets some."""
        options, language = self._services.settings.options, self.opened.document.language
        if not options.enable:
            return "The setting 'enable' turns suggestions off."
        if not options.allows(language):
            return f"The setting 'languages' turns suggestions in {language} off."
        if rule := self._services.project.hidden_by(self.opened):
            return f"This file is hidden by {rule}."
        if not invoked and not MODES[options.mode].automatic:
            return f"The mode '{options.mode}' suggests only if you ask."
        return ""

    # The canvas at the cursor

    def canvas_for(self, start: Start) -> tuple[WarmCanvas, AnswerKind]:
        """The canvas for `start`, a kept one that still agrees or a new one, and how it was found."""
        self._at, self._start, self._readings = start.at, start, self._services.reader.count
        canvas = self._known(start.at, start.selected)
        invoked = start.priority == "invoked"
        if canvas is None or canvas.lacks(start.threshold, asked=invoked):
            return self._begin(start), "cold"
        if invoked:
            canvas.threshold = canvas.threshold.lower(canvas.threshold_for(start.threshold, asked=True))
            replacing = start.selected is not None
            shown = None if replacing else self.shown_at(start.at, canvas)
            if canvas.over and not canvas.propose(start.at, self.place(canvas), shown, replacing=replacing).insert:
                seed = canvas.seed + 1 if canvas.asked else canvas.seed  # first the best answer, then another one
                return self._begin(start, seed=seed), "cold"
        self.canvases.put(canvas)
        if canvas.speculative:
            self._raise_priority(canvas, start.priority)
            return canvas, "speculated"
        return canvas, "typed_through" if canvas.typed.written and canvas.fills else "warm"

    def place(self, canvas: WarmCanvas) -> Site:
        """The site of `canvas` in the current text. The states of a canvas share it until the text changes: each check
        is parsed in the event loop, in 1.4 ms at 2,000 lines, and with a site of its own in 2.6 ms (p50)."""
        text, tree, options = self.opened.document.text, self.opened.tree.tree, self._services.settings.options
        key = canvas, text, tree, options.syntax_gate
        if self._place is None or self._place[0] != key:
            self._place = key, canvas.place(text, tree, is_checked=options.syntax_gate)
        return self._place[1]

    def _known(self, at: int, selected: Selected | None) -> WarmCanvas | None:
        """A kept canvas that answers for the cursor at `at`, and whose context no edit elsewhere has changed."""
        if selected is not None:
            known = self.canvases.current
            if known is None or (known.fixed_start, known.typed.origin) != (selected.text, selected.start):
                return None
            moved = at != known.typed.origin + len(known.typed.text)  # within the word, with the popup still open
            return None if moved or known.stale or (known.over and not known.fills) else known
        agreeing = self.canvases.agreeing(at)
        return next((canvas for canvas in agreeing if not (canvas.stale and self._differs(canvas))), None)

    def _differs(self, canvas: WarmCanvas) -> bool:
        """True if edits elsewhere have changed the context of a canvas. An offer depends on the whole document."""
        if canvas.offer:
            return True
        start, end = canvas.typed.origin, canvas.typed.origin + len(canvas.typed.text)
        now = self._services.sites.context(self.opened, start, end)
        canvas.stale = (now.prefix + canvas.fixed_start, now.suffix) != (canvas.context.prefix, canvas.context.suffix)
        return canvas.stale

    def _begin(self, start: Start, *, seed: int = 0) -> WarmCanvas:
        """Begin a new canvas, warm-started from the rest of the one before it."""
        at, text = start.at, self.opened.document.text
        fixed_start, origin = (start.selected.text, start.selected.start) if start.selected else ("", at)
        end = at if start.selected else self._services.sites.end(self.opened, at)
        typed = Typed(origin, text[origin:at], text[at:end])
        draft = _after_fixed_start(self.canvases.remainder_at(at), text[origin:at], fixed_start)
        canvas = self._canvas(typed, start.threshold, fixed_start=fixed_start, asked=start.priority == "invoked")
        canvas.replaces, canvas.seed = start.selected is not None, seed
        self.canvases.put(canvas)
        self._launch(canvas, draft)
        return canvas

    def _canvas(
        self,
        typed: Typed,
        threshold: ShowThreshold = ALL,
        *,
        fixed_start: str = "",
        asked: bool = False,
        speculative: bool = False,
    ) -> WarmCanvas:
        """A canvas in place of `typed`, with the passage that the model sees besides."""
        began, end = perf_counter(), typed.origin + len(typed.text)
        site, refusal = self._services.sites.site(self.opened, typed.origin, end, fixed_start, invoked=asked)
        self._passage = recall(site.text, site.start, site.end, site.context.language, self._passage)
        site = replace(site, neighbours=(self._passage.neighbour,) if self._passage else ())
        canvas = WarmCanvas(
            typed, site, fixed_start=fixed_start, threshold=threshold, asked=asked, speculative=speculative
        )
        canvas.refusal, canvas.context_ms = refusal, (perf_counter() - began) * 1000
        return canvas

    # Jobs

    def _launch(self, canvas: WarmCanvas, draft: tuple[str] | None = None) -> None:
        """Begin the job of a canvas, unless no suggestion is wanted there."""
        if canvas.refusal:
            canvas.over = True
            return
        job = self._job(canvas, self._key if canvas is self.canvases.current else self._key + "+", draft)
        canvas.task = asyncio.create_task(self._run(canvas, job))

    def _job(self, canvas: WarmCanvas, document: str, draft: tuple[str] | None = None) -> wire.Infill:
        ask = Ask(
            canvas.priority,
            document=document,
            candidates=self._services.settings.options.candidates,
            seed=canvas.seed,
            min_probability=canvas.min_path_probability,
            effort="full" if canvas.asked else "ghost",
        )
        canvas.job = canvas.site.job(ask, draft if len(canvas.site.segments) == 1 else None)
        return canvas.job

    def _raise_priority(self, canvas: WarmCanvas, priority: Priority) -> None:
        """Send the job of a canvas again if it is speculative, since those wait for all others. The engine continues it
        with the new priority; one that lacks priorities has begun it long ago."""
        older = canvas.task
        if "priorities" in self._services.engine.condition.lacks:
            return
        if older and canvas.job and canvas.job.priority == "speculative" and not canvas.over:
            canvas.job = msgspec.structs.replace(canvas.job, job=job_id(), priority=priority)
            canvas.task = asyncio.create_task(self._run(canvas, canvas.job))
            older.cancel()  # it runs after the new task, so the engine has the new job by then

    async def _run(self, canvas: WarmCanvas, job: wire.Infill) -> None:
        try:
            async with aclosing(self._services.engine.infill(job)) as events:
                async for event in events:
                    if canvas.job is not job:  # it was sent again
                        return
                    canvas.on_event(event)
                    if not canvas.agrees(self._at):
                        self._restart(canvas)  # its text differs from the typed text, or ends with it
                    self._wake()
            self._services.report("")
            if canvas is self.canvases.ahead and not canvas.speculative:
                self._adopt()
        except EngineError as error:
            if canvas.job is not job:
                return
            if job.priority != "speculative" or canvas is self.canvases.current:  # else no request waits for it
                self._services.report(str(error))
            canvas.refusal = str(error)
            hopeless = isinstance(error, (EngineBusy, EngineUnavailable))  # another job would fail too
            if canvas.typed.written and not canvas.shown and not hopeless:
                self._restart(canvas)  # no job covers the newest keys, and the editor shows nothing
        finally:
            canvas.over |= canvas.job is job
            self._wake()

    def _restart(self, canvas: WarmCanvas) -> None:
        """Replace this canvas by a new one, if it is the current one and the cursor's position is known."""
        if self.canvases.current is canvas and not canvas.replaces and self._start:
            self._begin(self._start)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # The shown suggestion, and the canvas that runs ahead of it

    def shown_at(self, at: int, canvas: WarmCanvas | None) -> Proposal | None:
        """What is left at `at` of the text that the editor shows, of whichever canvas it is; else of what `canvas` has
        shown before."""
        for known in (self.suggestion, self._continued, canvas):
            if known and (rest := known.rest(at)):
                return rest
        return None

    def continued(self, at: int) -> Proposal | None:
        """What the editor goes on to show for the item selected in a popup: its text for this item, or a suggestion
        that begins with the item."""
        selected = self._start.selected if self._start else None
        if selected is None:
            return None
        back = max(0, at - selected.start)
        known = self._continued
        if known and known.selected == selected and at == selected.start + len(known.typed.text):
            return Proposal(known.insert, back=back)
        shown = self.shown_at(at, None)
        whole = self.opened.document.text[selected.start : at] + shown.insert if shown and not shown.eat else ""
        return Proposal(whole, back=back) if whole and whole.startswith(selected.text) else None

    def show(self, canvas: WarmCanvas, at: int, proposal: Proposal) -> Proposal:
        """Record a proposal that the editor shows from now on, and compute what may come after it. Returns it with an
        id."""
        before, self.suggestion, self._continued = self.suggestion, None, None
        if not proposal.insert:
            return proposal
        proposal = replace(proposal, id=job_id())
        if (selected := self._start.selected if self._start else None) is not None:
            typed = Typed(selected.start, self.opened.document.text[selected.start : at])
            self._continued = Continued(selected, typed, proposal.insert)
        if proposal.back:
            return proposal  # the popup draws it over the typed text, and its edits do not match our text
        document, now = self.opened.document, asyncio.get_running_loop().time()
        typed = Typed(at, closing=document.text[at : at + proposal.eat])
        self.suggestion = Suggestion(proposal.id, document.language, typed, proposal.insert, now)
        self._services.feedback.shown(self.suggestion, before)
        canvas.give(proposal, at)
        self._speculate(canvas, proposal)
        return proposal

    def regenerate_tail(self, canvas: WarmCanvas, sound: Proposal) -> bool:
        """Denoise again what follows the sound part of a proposal that the syntax gate cut. False if that was tried
        already, or is impossible."""
        fixed_start = canvas.typed.written + sound.insert
        inside = self._at != canvas.typed.origin + len(canvas.typed.written)  # the editor closed brackets
        if (
            not canvas.answer
            or canvas.regenerated
            or sound.back
            or inside
            or not fixed_start.startswith(canvas.fixed_start)
        ):
            return False
        canvas.regenerated = True
        self._go_ahead(canvas, fixed_start, seed=1)
        return True

    def _refine(self, canvas: WarmCanvas) -> None:
        """Denoise the rest of the canvas again after the accepted part, which is fixed now."""
        taken = canvas.typed.written
        at_end = self._at == canvas.typed.origin + len(taken)
        if (
            canvas.answer
            and not canvas.offer
            and canvas.remainder()
            and at_end
            and taken.startswith(canvas.fixed_start)
        ):
            self._go_ahead(canvas, taken, draft=canvas.remainder())

    def _speculate(self, canvas: WarmCanvas, proposal: Proposal) -> None:
        """Compute, in idle time, what comes next if the user accepts the proposal and ends the line."""
        options, text = self._services.settings.options, self.opened.document.text
        wanted = options.speculate and options.warm and MODES[options.mode].automatic
        ends = canvas.context.kind != "span" and not line_after(text, self._at).strip()
        if not (wanted and ends and canvas.answer) or self.canvases.ahead or proposal.eat or proposal.back:
            return
        typed = Typed(canvas.typed.origin, canvas.typed.text)
        before = canvas.context.prefix.removesuffix(canvas.fixed_start)
        fixed_start = _entered(before, typed.text + proposal.insert, canvas.context, self.opened.language)
        self._run_ahead(self._canvas(typed, canvas.threshold, fixed_start=fixed_start, speculative=True))

    def _go_ahead(
        self, canvas: WarmCanvas, fixed_start: str, *, draft: tuple[str] | None = None, seed: int = 0
    ) -> None:
        """Denoise the hole of `canvas` again after `fixed_start`."""
        typed = Typed(canvas.typed.origin, canvas.typed.written, canvas.typed.closing)
        again = self._canvas(typed, canvas.threshold, fixed_start=fixed_start)
        again.regenerated, again.seed = True, seed
        self._run_ahead(again, draft)

    def _run_ahead(self, canvas: WarmCanvas, draft: tuple[str] | None = None) -> None:
        self.canvases.run_ahead(canvas)
        self._launch(canvas, draft)

    def _adopt(self) -> None:
        """Make the canvas ahead the current one if it only extends the shown text, which never jumps; else stop it."""
        old, new = self.canvases.current, self.canvases.ahead
        if old is None or new is None:
            return
        shown = old.propose(self._at, self.place(old), self.shown_at(self._at, old))
        found = new.propose(self._at, self.place(new))
        if found.continues(shown) and len(found.insert) > len(shown.insert):
            self.canvases.put(new)
            self.canvases.resting.remove(old)
        else:
            self.canvases.run_ahead(None)


def _cursor_after(edits: Sequence[Edit], row: Language) -> int | None:
    """The cursor's offset after typing; None for edits that no single cursor makes. It stays inside an auto-closed
    pair."""
    if len(edits) != 1:
        return None
    start, text = edits[0].start, edits[0].text
    if len(text) == 2 and ((text[0], text[1]) in row.pairs or (text[0] == text[1] and text[0] in row.quotes)):
        return start + 1
    return start + len(text)


def _after_fixed_start(rest: tuple[str] | None, typed: str, fixed_start: str) -> tuple[str] | None:
    """The rest of a canvas as a draft for one that has `fixed_start` before it instead of `typed`."""
    if rest is None or not (typed + rest[0]).startswith(fixed_start):
        return None
    return ((typed + rest[0]).removeprefix(fixed_start),) if fixed_start else rest


def _entered(before: str, fixed_start: str, context: Context, row: Language) -> str:
    """`fixed_start`, with the line break and the indentation that an editor adds at Enter after it."""
    line = line_before(before + fixed_start, len(before + fixed_start))
    step = usual_step(before + context.suffix, row.id)[0] if opens_block(line, row) else ""
    return fixed_start + line_break(context) + indent_of(line) + step
