"""Draft and verify, hole by hole: canvas and lookup propose, one causal pass of the base model scores it all, and
left-to-right steps go on from there (search.py). Later holes see the fills of earlier ones. The canvas may be another
model's (drafting.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas, HoleState
from caesura.engine.canvas.layout import Layout
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods import Begin, _forward, absorbing, settled
from caesura.engine.methods.verify import drafting
from caesura.engine.methods.verify.drafting import CanvasDraft, DraftingModel
from caesura.engine.methods.verify.lines import NO_RULES, Judge, Rules, copying, ending, lacks_body, never
from caesura.engine.methods.verify.lookup import Repeats, identifiers, lookup
from caesura.engine.methods.verify.search import FULL, GHOST, HEAD, WIDTH, Search, passes
from caesura.engine.methods.verify.tree import Origin, TokenNode
from caesura.engine.model import Model, Verifier
from caesura.engine.noise import Uniform
from caesura.engine.scores import Scores
from caesura.wire import Fill, Hole, Impossible, Infill, Missing, StopReason, Text, Tokens

FAINTEST = 1e-30  # probability of fills that is told from none
PATTERN_MEMORY = 1 << 20  # bytes of a client's compiled pattern; with half, C's pattern takes 8 times as long


@dataclass(eq=False)
class Verifying:
    """The holes of a job, searched one after the other: `search` fills number `hole`. `done` are earlier fills, with
    other answers (`others`) and the `sources` of their tokens. A pass scores `width` hypotheses; with 1 nothing is
    proposed. The canvas `drafts` in the first forward or not at all; or before it another model's does (`drafting`),
    whose text is `written`. A fill that binds the job's missing name `binds`. The job ends once its
    fills are `unlikely`."""

    model: Model
    vocabulary: Vocabulary
    job: Infill
    layout: Layout
    kv: KV
    width: int
    fresh: Sequence[int]
    drafts: bool = False
    drafting: CanvasDraft | None = None
    written: tuple[Fill, ...] = ()
    hole: int = 0
    done: list[Fill] = field(default_factory=list)
    others: list[list[Fill]] = field(default_factory=list)
    sources: list[Origin] = field(default_factory=list)
    binds: Judge = never
    step: int = 0
    finished: bool = False
    finite: bool = True
    unlikely: bool = False
    of: int = field(init=False)
    search: Search = field(init=False)

    hidden = shadowed = ()
    flanks = None
    approximate = False

    def __post_init__(self) -> None:
        self.of = sum(passes(hole, self.width, long=self._long(hole)) for hole in self.canvas.holes)

    @property
    def advance(self) -> Callable[[Model, Sequence[Any]], None]:
        return _forward.advance if self.drafting is None else draft

    @property
    def canvas(self) -> Canvas:
        return self.layout.canvas

    @property
    def rows(self) -> int:
        return self.canvas.rows if self.drafting is None else self.drafting.rows

    def decide(self, model: Model, scores: Scores) -> None:
        """Propose the canvas's draft; the next pass scores it."""
        absorbing.look(model, self.canvas, scores, first=True)
        self.search.propose(self.canvas.guess(0), "canvas")

    def drafted(self) -> None:
        """After a step of the other model, which is none of the search's: propose its text once it is over."""
        assert self.drafting is not None
        self.step, self.of = self.step + 1, self.of + 1
        self.written = self.drafting.fills()
        if self.drafting.over:
            self.drafting = None
            self._propose_written()

    def close(self) -> None:
        """After a pass: drop unlikely hypotheses, and go on to the next hole if this one is finished."""
        self.drafts = False
        self.step += 1
        self.finished = self.step >= self.of
        self.finite = self.finite and self.canvas.finite
        if self.finite:
            self.search.prune()
            self.finished = (self.finished or self.search.finished()) and not self._next_hole()

    def search_hole(self, tail: list[int]) -> bool:
        """Start the token tree of the current hole after `tail`, with its proposals. True if the lookup had any."""
        hole, kv, encode = self.canvas.holes[self.hole], self.kv, self.model.tokenizer.encode
        kv.truncate(len(kv.ids))
        long = self._long(hole)
        after = self.canvas.fixed_after(self.hole)
        if self.hole + 1 < len(self.canvas.holes):
            after = after + encode(self.canvas.holes[self.hole + 1].forced.decode())
        elif long and len(after) < min(
            HEAD, self.model.spec.head
        ):  # the text ends there: after a line more it seldom does
            after = after + sorted(self.model.spec.ends)[:1]
        context, draws = self.layout.context, Draws(self.job.seed, self.hole) if self.job.seed else None
        before, following = around(self.job, self.hole, self.done)
        copies = never if hole.grammar else copying(before, following)
        blocks = ending(before, copies) if long else None
        self.search = Search(
            self.vocabulary,
            hole,
            tail,
            after,
            len(context),
            draws,
            self.width,
            repeats=None if self.width == 1 else Repeats([*context, *tail]),
            min_probability=min(1.0, self.job.min_probability / max(self._chance, FAINTEST)),
            long=long,
            effort=GHOST if self.job.effort == "ghost" else FULL,
            rules=Rules(copies, self.binds, blocks, lacks_body(before, following)) if self.width > 1 else NO_RULES,
        )
        return self.width > 1 and self._propose(hole.forced.decode())

    def _long(self, hole: HoleState) -> bool:
        """True if a fill goes on as long as the base does. Ghost text does not."""
        return hole.block and self.job.effort == "full"

    def _propose(self, forced: str) -> bool:
        encode, has_canvas = self.model.tokenizer.encode, self.model.spec.noise is not None
        if has_canvas:  # empty for the first hole: its draft comes with the first forward
            self.search.propose(self.canvas.guess(self.hole), "canvas")
        self._propose_written()
        if self.job.draft:  # the rest of an earlier answer
            self.search.propose(encode(forced + self.job.draft[self.hole]), "canvas" if has_canvas else "left_to_right")
        sides = around(self.job, self.hole, self.done)
        repeated = lookup(*sides, [neighbour.text for neighbour in self.job.neighbours])
        starts = self.job.missing.starts if self.job.missing is not None else ()
        for text in (*repeated, *starts, *identifiers([fill.text for fill in self.done])):
            self.search.propose(encode(forced + text), "lookup")
        return bool(repeated)

    def _propose_written(self) -> None:
        """Propose the other model's text, if it wrote any here."""
        if self.written and (text := self.written[self.hole].text):
            forced = self.canvas.holes[self.hole].forced.decode()
            self.search.propose(self.model.tokenizer.encode(forced + text), "canvas")

    def _next_hole(self) -> bool:
        """Keep the finished fill and go on with the next hole. False if there is none."""
        search = self.search
        node = search.leader()
        empty = len(self.canvas.holes) == 1 and search.is_over and not search.text()[1]
        self.done.append(Fill("") if empty else shown(search, final=True))
        others = [] if empty else search.candidates()[1 : self.job.candidates]
        self.others.append([candidate(search, end.node) for end in others])
        self.sources += [n.source for n in node.path()]
        self.hole += 1
        bar = self.job.min_probability
        self.unlikely = bar > 0 and (search.best() is None or self._chance < bar)
        if self.hole >= len(self.canvas.holes):
            return False
        self.search_hole(search.tail + search.tree.tokens(node) + self.canvas.fixed_after(self.hole - 1))
        return not self.unlikely

    @property
    def _chance(self) -> float:
        """The probability of the fills so far."""
        return math.prod(chance for fill in self.done for _, chance in fill.probabilities)

    # Answers
    def stop(self, steps: int) -> StopReason:
        return "unlikely" if self.unlikely else "steps" if steps >= self.of else "complete"

    def fills(self, *, final: bool = False) -> tuple[Fill, ...]:
        """The finished holes, the current one, and drafts of the rest."""
        search, left = self.search, len(self.canvas.holes) - self.hole
        if self.unlikely:
            return (*self.done, *[Fill("")] * left)
        scored = [shown(search, final=final)] if left and search.passes else []
        waiting = search.drafted and not final
        if len(scored) == left and not (left and waiting):
            return (*self.done, *scored)
        drafts = (() if final else self.written) or self.canvas.fills()  # another model's text is no answer
        if scored and waiting:
            scored = [drafted(search, drafts[self.hole]) or scored[0]]
        rest = drafts[self.hole + len(scored) :]
        return (*self.done, *scored, *(map(settled, rest) if final else rest))

    def alternatives(self, fills: tuple[Fill, ...]) -> tuple[tuple[Fill, ...], ...]:
        """Other candidates for a job's only hole."""
        return tuple((fill,) for fill in self.others[0]) if self.others and len(fills) == 1 else ()

    def tokens(self) -> Tokens:
        sources = list(self.sources)
        if self.hole < len(self.canvas.holes):
            sources += [n.source for n in self.search.leader().path()]
        origins: tuple[Origin, ...] = ("canvas", "lookup", "left_to_right")
        return Tokens(**{origin: sources.count(origin) for origin in origins})


def refusal(model: Model) -> str:
    if isinstance(model.spec.noise, Uniform) or model.spec.visibility != "context":
        return f"The model {model.name} cannot verify drafts; name another method."
    return ""


def prepare(model: Model, vocabulary: Vocabulary) -> Begin:
    verifier = cast(Verifier, model)
    if model.device.startswith("cuda"):
        verifier.rehearse()
    other = verifier.drafting
    return partial(begin, model, vocabulary, by=drafting.prepare(other) if other is not None else None)


def begin(
    model: Model,
    vocabulary: Vocabulary,
    job: Infill,
    layout: Layout,
    kv: KV,
    fresh: Sequence[int],
    sampler: str | None = None,
    *,
    width: int = WIDTH,
    by: DraftingModel | None = None,
) -> Verifying:
    """Begin to search, with `width` hypotheses a pass, and with drafts `by` another model."""
    if job.missing is not None and len(layout.canvas.holes) > 1:
        raise Impossible("A job that names what the hole must bind has one hole.")
    absorbing.lay_drafts(model, job, layout.canvas)
    made = Verifying(model, vocabulary, job, layout, kv, width, fresh, binds=binding(job.missing))
    repeated = made.search_hole(list(layout.canvas.tail))
    if width > 1 and by and another_drafts(by.model, layout.canvas, repeated=repeated):
        made.drafting = by.draft(job)
    made.drafts = width > 1 and by is None and canvas_drafts(model, job)
    return made


def draft(model: Model, searches: Sequence[Verifying]) -> None:
    """One step of the model that drafts, before the first passes of these searches."""
    drafting.advance([search.drafting for search in searches if search.drafting is not None])
    for search in searches:
        search.drafted()


def canvas_drafts(model: Model, job: Infill) -> bool:
    """True if the model's own canvas drafts: for several holes, whose drafts are shown until each hole's turn, and are
    the answer at a deadline. For one hole it takes a quarter longer, and as many fills are right without. A draft is
    solved in its hole's grammar: with them a Markdown row takes two to four times as long."""
    holes = [segment for segment in job.segments if isinstance(segment, Hole)]
    is_free = all(hole.grammar is None for hole in holes)
    return model.spec.noise is not None and job.effort == "full" and len(holes) > 1 and is_free


def another_drafts(model: Model, canvas: Canvas, *, repeated: bool) -> bool:
    """True if another model's canvas drafts, which takes several of its steps; a lookup in one line replaces it."""
    [hole, *others] = canvas.holes
    drafted = repeated and hole.one_line and hole.grammar is None and not others
    return model.spec.noise is not None and not drafted


def binding(missing: Missing | None) -> Judge:
    """A judge of texts: True for a text that binds the missing name. Raises Impossible for an invalid pattern."""
    if missing is None:
        return never
    import re2  # not on a machine that only trains or measures

    options = re2.Options()
    options.max_mem, options.log_errors = PATTERN_MEMORY, False
    try:
        pattern = re2.compile(missing.pattern, options)
    except re2.error:
        raise Impossible(
            f"The pattern for what binds {missing.name} is not one that RE2 reads, or too large."
        ) from None
    return lambda text: pattern.search(text) is not None


def around(job: Infill, number: int, done: Sequence[Fill]) -> tuple[str, str]:
    """The text before a hole, with the fills of earlier holes, and the text after it, with a NUL for each hole."""
    segments = job.segments
    place = [i for i, segment in enumerate(segments) if isinstance(segment, Hole)][number]
    fills = iter(done)
    before = "".join(s.text if isinstance(s, Text) else next(fills).text for s in segments[:place])
    after = "".join(s.text if isinstance(s, Text) else "\0" for s in segments[place + 1 :])
    return job.prefix + before, after + job.suffix


def shown(search: Search, *, final: bool) -> Fill:
    """The leading hypothesis. In a final answer all of it is locked."""
    node = search.leader()
    if final:
        return candidate(search, node)
    text, locked = search.text()
    spans = ((0, locked),) if locked else ()
    return Fill(text, spans, search.confidence(node), 1, search.tree.probabilities(node))


def drafted(search: Search, draft: Fill) -> Fill | None:
    """The canvas's draft, not verified yet, if it agrees with the locked text."""
    text, locked = search.text()
    if not draft.text.startswith(text[:locked]):
        return None
    return msgspec.structs.replace(draft, locked=((0, locked),) if locked else ())


def candidate(search: Search, node: TokenNode) -> Fill:
    tree, text = search.tree, search.tree.text_of(node)
    spans = ((0, len(text)),) if text else ()
    return Fill(text, spans, search.confidence(node), 0, tree.probabilities(node, tree.answer(node)))
