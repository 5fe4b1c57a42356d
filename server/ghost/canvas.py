"""One warm canvas: a job for a place in a document, its answer so far, and the part of it that still fits the text
typed since. State only: pane.py starts, keeps and stops canvases.
"""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import tree_sitter

from caesura import wire
from caesura.characters import is_word
from caesura.server.context.context import Context
from caesura.server.ghost.typed import Proposal, Typed
from caesura.server.infill.choose import ALL, Guess, ShowThreshold, counts_words, ends_line, likely, ranked
from caesura.server.infill.job import Priority
from caesura.server.infill.site import Site
from caesura.server.structured.offer import Offer
from caesura.server.text.document import Edit

Fault = Literal["unfinished", "unlikely", "unfit", "secret", "typed over", "short", "unsound"]
"""Why a fill is not shown: `unlikely` is below the threshold, `unfit` repeats the text around it or cannot end there,
`short` saves too few keys, `unsound` adds a syntax error."""

EXPLORED_BELOW = 25  # the job explores no text this many times below the display threshold; typing confirms its start
MIN_EXPLORED = 0.002  # nor less likely text, even if the user wants to see all: that takes the engine 1.4 times as long
LEAST_PART = 8  # code points; a shorter start of a line is not shown before the whole line is locked


@dataclass(eq=False)
class WarmCanvas:
    """One job and the newest state of its hole.

    The engine saw `fixed_start`, the start of the proposal, as fixed text: it is an accepted part, the item selected in
    a popup, or, for a speculative canvas, the whole proposal of the canvas before it. A suggestion must reach the
    `threshold`. If the user has `asked`, the job takes the time for the best answer. With an offer, the job fills its
    segments, and the proposal is all of the offer's text, or a part that the offer allows to stand alone.
    """

    typed: Typed
    site: Site  # after the fixed start, in the text when the canvas was begun
    fixed_start: str = ""
    threshold: ShowThreshold = ALL
    asked: bool = False
    speculative: bool = False
    fills: tuple[wire.Fill, ...] = ()  # the answer so far; with its alternatives once it is done
    answer: wire.Done | None = None
    over: bool = False  # no more events will come
    refusal: str = ""  # the sentence on why it has no answer
    job: wire.Infill | None = None  # the newest that fills it
    seed: int = 0
    steps: int = 0
    context_ms: float = 0.0  # time to cut the context
    stale: bool = False  # the text around it has changed since
    broken: bool = False  # the syntax gate cut the best fill
    regenerated: bool = False  # its end has been denoised again for that reason
    shown: str = ""  # the text that the editor has shown of it, from the origin on
    replaces: bool = False  # the fixed start replaces the typed text, which may differ from it
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.threshold = self.threshold_for(self.threshold, asked=self.asked)
        explores_all = self.asked or (self.offer is not None and self.offer.is_known)
        least = max(self.threshold.chance / EXPLORED_BELOW, MIN_EXPLORED)
        self.min_path_probability = 0.0 if explores_all else least
        self._sound: dict[str, str] = {}  # text from the origin on -> the part of it that may stand

    def __repr__(self) -> str:
        state = "done" if self.answer else "over" if self.over else "live"
        return f"<WarmCanvas {self.context.kind} at {self.typed.origin} typed {len(self.typed.text)} {state}>"

    @property
    def context(self) -> Context:
        return self.site.context

    @property
    def offer(self) -> Offer | None:
        return self.site.offer

    @property
    def lost(self) -> bool:
        """True if the job ended without an answer."""
        return self.over and self.answer is None and self.task is not None

    @property
    def priority(self) -> Priority:
        return "speculative" if self.speculative else "invoked" if self.asked else "automatic"

    def threshold_for(self, threshold: ShowThreshold, *, asked: bool) -> ShowThreshold:
        """The requirement for its suggestions. A user who asks at an offer gets the best valid text, whatever its
        probability, as from a structured edit; so does one at an offer of texts that are known."""
        return ALL if self.offer and (asked or self.offer.is_known) else threshold

    def lacks(self, threshold: ShowThreshold, *, asked: bool) -> bool:
        """True if the job did not explore text that this threshold would show."""
        return self.min_path_probability > max(self.threshold_for(threshold, asked=asked).chance, MIN_EXPLORED)

    def on_event(self, event: wire.Locked | wire.Done) -> None:
        self.fills = (self.site.fill(event.holes),)
        self.steps = event.steps if isinstance(event, wire.Done) else event.step
        if isinstance(event, wire.Done):
            self.fills += tuple(map(self.site.fill, event.alternatives))
            self.answer = event
            self.over = True

    def follow(self, edit: Edit) -> bool:
        """Apply an edit of the document; False if it makes the canvas invalid."""
        if self.typed.follow(edit):
            return True
        self.stale, self.shown = True, ""
        self._sound.clear()  # the gate reads the whole document, not only the context
        return self.typed.move(edit)

    def agrees(self, cursor: int) -> bool:
        """True if this canvas still answers for `cursor`: nothing was typed, or only text that it proposes. A canvas
        without a draft agrees too: the next key needs the same prefill, and the first draft comes one pass later."""
        if not self.fills:
            written = self.typed.written
            fits = written.startswith(self.fixed_start) or self.fixed_start.startswith(written)
            return fits and not self.over and cursor == self.typed.origin + len(written)
        rest = self.typed.left(self.fixed_start + self.site.fitted(self.fills[0].text), cursor)
        return rest is not None and bool(rest.insert or not self.over or not self.typed.written)

    def ready(self, cursor: int, *, part: bool = False, replacing: bool = False) -> bool:
        """True if there is something to show, or nothing to wait for. `part`: locked words are enough."""
        return self.over or any(p.insert for p, _ in self._proposals(cursor, part=part, replacing=replacing))

    def propose(
        self,
        cursor: int,
        place: Site,
        shown: Proposal | None = None,
        *,
        part: bool = False,
        replacing: bool = False,
    ) -> Proposal:
        """The best fill that adds no syntax error, up to its last locked boundary; else the best sound start of a fill
        that meets the threshold too. What the editor shows, `shown`, stays: a fill that continues it precedes a better
        one.

        `place` is the site in the current text. `part` allows locked words that are no whole line. `replacing` includes
        the fixed start, which then replaces the typed text.
        """
        judged = self._proposals(cursor, part=part and not self.over, replacing=replacing)
        found = [one for one in judged if one[0].insert]
        fitting = list(ranked(found, lambda one: self._cut(*one, cursor, place)))
        whole = [one for one in fitting if one in found]
        if found:
            self.broken = not whole
        sound = [p for p, _ in whole or fitting]
        if shown:
            confidence = max((fill.confidence for fill in self.fills[:1]), default=0.0)
            on = [p for p in sound if p.continues(shown)] or [replace(shown, confidence=confidence)]
            sound = on + [p for p in sound if p not in on]
        if not sound:
            return Proposal("")
        best, *rest = sound
        others = dict.fromkeys(
            p.insert for p in rest if (p.eat, p.back) == (best.eat, best.back) and not best.insert.startswith(p.insert)
        )
        return replace(best, others=tuple(others))

    def best(self, cursor: int, place: Site) -> tuple[Proposal, wire.Fill]:
        """The best fill that adds no syntax error, and what would be shown of it if it were likely enough."""
        fits = ((self._fit(fill.text, cursor, replacing=False), fill) for fill in self.fills)
        fitting = [(p, fill) for p, fill in fits if isinstance(p, Proposal) and p.insert]

        def start(one: tuple[Proposal, wire.Fill]) -> tuple[Proposal, wire.Fill] | None:
            insert = self._gated(one[0], cursor, place)
            return (replace(one[0], insert=insert), one[1]) if insert else None

        return next(ranked(fitting, start), (Proposal(""), self.fills[0]))

    def fault(self, cursor: int, place: Site) -> Fault | None:
        """Why nothing of the best fill is shown at `cursor`; None if a part of it is."""
        found = self._judge(self.fills[0], cursor, part=False, replacing=False)
        if not isinstance(found, Proposal):
            return found
        return None if self._cut(found, self.fills[0], cursor, place) else "unsound"

    def chance(self, cursor: int) -> float | None:
        """The highest probability of a start of the best fill that saves enough keys at `cursor`; None if none does."""
        fill = self.fills[0]
        if not fill.probabilities:
            return fill.confidence
        guess = self._guess(fill, fill.text, cursor)
        if self.offer is not None:
            return math.prod(probability for _, probability in guess.probabilities)
        return guess.best_chance(self.threshold)

    def give(self, proposal: Proposal, cursor: int) -> None:
        """The editor shows `proposal` at `cursor` from now on."""
        size = cursor - self.typed.origin
        after = "" if proposal.eat else self.typed.text[size:]
        self.shown = self.typed.text[:size] + proposal.insert + after

    def rest(self, cursor: int) -> Proposal | None:
        """What is left at `cursor` of the text that was shown: after a mistake is erased, it is there again."""
        return self.typed.rest(self.shown, cursor) if self.shown else None

    def remainder(self) -> tuple[str] | None:
        """The rest of the best fill, as a draft for the next job."""
        text = self.fills[0].text[max(0, len(self.typed.written) - len(self.fixed_start)) :] if self.fills else ""
        return (text,) if text else None

    def place(self, text: str, tree: tree_sitter.Tree | None, *, is_checked: bool) -> Site:
        """The site without the fixed start, in the current text."""
        origin, around = self.typed.origin, self.context
        around = replace(around, prefix=around.prefix.removesuffix(self.fixed_start))
        return replace(self.site, text=text, tree=tree, start=origin, end=origin, context=around, is_checked=is_checked)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _proposals(self, cursor: int, *, part: bool, replacing: bool) -> Iterator[tuple[Proposal, wire.Fill]]:
        """What to show of the fills, best first, each with its fill."""
        judged = ((self._judge(fill, cursor, part=part, replacing=replacing), fill) for fill in self.fills)
        return ((found, fill) for found, fill in judged if isinstance(found, Proposal))

    def _judge(self, fill: wire.Fill, cursor: int, *, part: bool, replacing: bool) -> Proposal | Fault:
        """What to show of a fill at `cursor`, or why nothing of it is shown."""
        text = _settled(fill, done=self.answer is not None)
        shortest = 1
        if text is None and part and self.offer is None:
            text, shortest = _whole_words(fill), LEAST_PART
        if text is None or (self.offer is not None and text != fill.text):
            return "unfinished"
        start = self._start(fill, text, cursor)
        if not start:
            return "unlikely"
        found = self._fit(start, cursor, replacing=replacing)
        if not isinstance(found, Proposal):
            return found
        if len(found.insert.strip()) < shortest or not (replacing or self._passes(found, cursor, fill, start)):
            return "short"
        return replace(found, confidence=fill.confidence)

    def _fit(self, text: str, cursor: int, *, replacing: bool) -> Proposal | Fault:
        """The part of `text` to insert at `cursor`, however unlikely it is, or why there is none."""
        insert = self.site.fitted(text)
        if not insert:
            return "unfit"
        if self.site.reveals(insert):
            return "secret"
        found = self._replacement(insert, cursor) if replacing else self.typed.left(self.fixed_start + insert, cursor)
        return "typed over" if found is None else found

    def _start(self, fill: wire.Fill, text: str, cursor: int) -> str:
        """The start of `text` that is worth showing at `cursor`. Text that the user has typed is certain."""
        if not fill.probabilities:
            return text if fill.confidence >= self.threshold.chance else ""
        guess = self._guess(fill, text, cursor)
        if self.offer is not None:
            end = likely(guess.probabilities, self.threshold.chance)
            return text if end == guess.probabilities[-1][0] else self.offer.part(text, end)
        return guess.best_start(self.threshold)

    def _guess(self, fill: wire.Fill, text: str, cursor: int) -> Guess:
        size = cursor - self.typed.origin
        known, fixed_start = self._known(fill, text, cursor), self.fixed_start[max(0, size) :]
        typed = max(0, size - len(self.fixed_start))
        return Guess(text, known, self.context, typed, fixed_start, whole=self._ends_line(fill, text))

    def _known(self, fill: wire.Fill, text: str, cursor: int) -> list[tuple[int, float]]:
        """The tokens of the start `text` of a fill; those that the user has typed are certain."""
        given = cursor - self.typed.origin - len(self.fixed_start)
        return [(min(end, len(text)), 1.0 if end <= given else p) for end, p in _tokens(fill, text)]

    def _ends_line(self, fill: wire.Fill, start: str) -> bool:
        """True if a line ends after this start of a fill."""
        return ends_line(fill.text, len(start), whole=self.answer is not None and self.context.kind != "span")

    def _passes(self, found: Proposal, cursor: int, fill: wire.Fill, start: str) -> bool:
        """True if the text left to insert is long enough: it may be shorter than the fill."""
        ends, words = self._ends_line(fill, start), counts_words(self.context)
        return self.threshold.passes(self._before(cursor), found.insert, ends_line=ends, words=words)

    def _cut(self, proposal: Proposal, fill: wire.Fill, cursor: int, place: Site) -> tuple[Proposal, wire.Fill] | None:
        """The start of a proposal that the gate accepts; None if the gate cuts it below the threshold, or within the
        fixed start, which is no text of the engine."""
        insert = self._gated(proposal, cursor, place)
        if insert == proposal.insert:
            return proposal, fill
        size = cursor - proposal.back - self.typed.origin + len(insert) - len(self.fixed_start)
        if size <= 0:
            return None
        if not proposal.back and not self.offer:
            tokens = self._known(fill, fill.text[:size], cursor)
            chance = math.prod(p for _, p in tokens) if fill.probabilities else fill.confidence
            ends, words = ends_line(proposal.insert, len(insert), whole=False), counts_words(self.context)
            if not self.threshold.shows(self._before(cursor), insert, chance, ends_line=ends, words=words):
                return None
        return (replace(proposal, insert=insert), fill) if insert else None

    def _before(self, cursor: int) -> str:
        """The text before the cursor, back to a character before the origin."""
        return self.context.prefix.removesuffix(self.fixed_start)[-1:] + self.typed.text[: cursor - self.typed.origin]

    def _replacement(self, insert: str, cursor: int) -> Proposal:
        return Proposal(self.fixed_start + insert, back=max(0, cursor - self.typed.origin))

    def _gated(self, proposal: Proposal, cursor: int, place: Site) -> str:
        """The part of a proposal that the gate accepts. Proposals that make the same document text are checked once."""
        typed = "" if proposal.back else self.typed.text[: cursor - self.typed.origin]
        text = typed + proposal.insert
        if text not in self._sound or not self._sound[text].startswith(typed):
            span = place.moved(cursor - proposal.back, cursor + proposal.eat)
            self._sound[text] = typed + span.sound_start(proposal.insert)
        return self._sound[text][len(typed) :]


def _settled(fill: wire.Fill, *, done: bool) -> str | None:
    """The text up to the last locked boundary: all of a complete fill, else its locked whole lines."""
    run = fill.locked_start
    if done or (run == fill.text and not fill.open):
        return fill.text
    lines, line_break, _ = run.rpartition("\n")
    return lines if line_break else None


def _whole_words(fill: wire.Fill) -> str:
    """The locked start of the text, without a last word whose end is not locked."""
    run = fill.locked_start
    following = fill.text[len(run) : len(run) + 1]
    if following and not is_word(following):
        return run
    end = len(run)
    while end and is_word(run[end - 1]):
        end -= 1
    return run[:end]


def _tokens(fill: wire.Fill, text: str) -> Iterator[tuple[int, float]]:
    """The tokens of a fill that make up its start `text`; the last token may extend beyond it."""
    begin = 0
    for end, probability in fill.probabilities:
        if begin < len(text):
            yield end, probability
        begin = end
