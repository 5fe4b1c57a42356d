"""The algorithm on one screen, for every model: a forward over the canvases, then a decision what to accept.

Absorbing noise: an accepted slot stays, the rest is masked again. Uniform noise: every slot is predicted anew at every
step (renoise.py), and one that is sure and does not move any more is locked: it is pinned from then on. Models whose
entry says `verify` draft with the first forward and decide by causal passes (search.py), one in each forward.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from caesura.engine import length
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas
from caesura.engine.methods.uniform import renoise
from caesura.engine.methods.verify.search import Search
from caesura.engine.models import Drafter, Model, Renoiser, Run, Verifier
from caesura.engine.noise import Schedule, Uniform
from caesura.engine.samplers import Sampler, Scores, statistics

BUDGET = 0.3  # nats over all slots; a uniform-noise canvas is done when nothing moves and it is this sure


@dataclass(eq=False)
class Denoising:
    """A canvas on its way: `of` bounds the steps; `search` is set where causal passes decide, for which the canvas
    `drafts` or not.

    `fresh` is context that the first forward takes along. Of uniform noise `state` is what lies between two forwards,
    and `judged` says whether the canvas is one of several lengths: then `score` is how well it fits what is pinned.
    Once what the model said of a canvas were no numbers it is not `sound`, nor is what its rows left in the KV.
    """

    canvas: Canvas
    kv: KV
    sampler: Sampler
    of: int
    generator: torch.Generator
    search: Search | None = None
    drafts: bool = True
    fresh: Sequence[int] = ()
    state: renoise.State | None = None
    judged: bool = False
    score: float = -math.inf
    step: int = 0
    finished: bool = False
    sound: bool = True


Replay = Callable[[Sequence[Denoising]], Sequence[Denoising]]


def step(model: Model, work: Sequence[Denoising], replay: Replay | None = None) -> None:
    """One step of every canvas; a batch gives each canvas what it would get alone. A canvas that is to be verified is
    denoised once, in the same forward that first scores its token tree; the next one has its draft in the tree.
    `replay` may take steps of uniform noise over, and returns the canvases that are left (graphs.py)."""
    if isinstance(model.noise, Uniform):
        if left := work if replay is None else replay(work):
            renew(cast(Renoiser, model), model.noise.schedule, left)
    else:
        drafting = [w for w in work if w.search is None or (w.drafts and w.step == 0)]
        searching = [w for w in work if w.search is not None]
        for w, logits in zip(drafting, forward(model, drafting, searching), strict=True):
            decide(model, w, logits)
    for w in work:
        w.sound = w.sound and all(math.isfinite(slot.prob) for slot in w.canvas.slots)
        if w.search is not None and w.sound:
            w.search.prune()
            w.finished = w.search.finished()
        w.step += 1
        w.finished = w.finished or w.step >= w.of


def forward(model: Model, work: Sequence[Denoising], searching: Sequence[Denoising] = ()) -> tuple[Tensor, ...]:
    """Per canvas: logits [slots, width]. Those of the token trees go to their searches."""
    canvases = runs(model, work)
    rows = [len(w.canvas.slots) for w in work]
    if not searching:
        parts: tuple[Tensor, ...] = on_host(model.denoise(canvases)).split(rows)
        return parts
    if model.drafter is not None:
        draft(model.drafter, searching)
    plans = [w.search.plan() for w in searching if w.search is not None]
    trees = [Run(w.kv, p.ids, p.positions, p.mask, fresh=w.fresh) for w, p in zip(searching, plans, strict=True)]
    for w in searching:
        w.fresh = ()
    verifier = cast(Verifier, model)  # a job that asks another family for it is not taken
    judged, logits = verifier.forward(trees, canvases)
    for w, of_tree in zip(searching, judged.split([len(p.ids) for p in plans]), strict=True):
        assert w.search is not None
        logp = on_host(of_tree.log_softmax(-1))
        w.sound = bool(logp[:, 0].isfinite().all())  # one logit of a row that is no number makes all of them none
        if w.sound:
            w.search.receive(logp)
    parts = on_host(logits).split(rows)
    return parts


def draft(model: Drafter, searching: Sequence[Denoising]) -> None:
    """Guess what follows the best hypothesis of each search that asks for it."""
    asking = [(w.kv, w.search, asked) for w in searching if w.search is not None and (asked := w.search.to_draft())]
    if not asking:
        return
    tokens, probabilities = model.draft([Run(kv, rows.ids, rows.positions, rows.mask) for kv, _, rows in asking])
    for (_, search, _), chain, chances in zip(asking, tokens.tolist(), probabilities.tolist(), strict=True):
        search.take_draft(chain, chances)


def on_host(rows: Tensor) -> Tensor:
    """On the CPU, which decides whatever is not uniform noise: a search asks for many single numbers, and would wait
    for a GPU at each. From a GPU it is one copy, into pinned memory: 40 rows of Qwen's vocabulary are 24 MB."""
    if not rows.is_cuda:
        return rows.cpu()
    copied = rows.to("cpu", non_blocking=True)
    torch.cuda.current_stream(rows.device).synchronize()
    return copied


def runs(model: Model, work: Sequence[Denoising]) -> list[Run]:
    """A forward's rows of each canvas. Of uniform noise its pins are wanted too where the canvas is judged by them."""
    found = []
    fresh = {id(w.kv): len(w.fresh) for w in work if w.fresh}
    for w in work:
        if isinstance(model.noise, Uniform):
            w.state = w.state or renoise.start(cast(Renoiser, model), [s.shown for s in w.canvas.slots], w.generator)
            ids = w.canvas.ids(w.state.ids.tolist())
        else:
            assert model.noise is not None, "without a canvas there is only a search"
            ids = w.canvas.ids(model.noise.draw(len(w.canvas.slots), w.generator).tolist())
        wanted = w.canvas.slot_rows() + ([row for row, _ in w.canvas.pins()] if w.judged else [])
        at = w.kv.length + fresh.get(id(w.kv), 0)
        conditioning = w.state.conditioning if w.state else None
        found.append(Run(w.kv, ids, range(at, at + len(ids)), None, wanted, w.fresh, conditioning))
        w.fresh = ()
    return found


def decide(model: Model, w: Denoising, logits: Tensor) -> None:
    """Absorbing noise: accept, broadcast nulls, grow, lock."""
    canvas = w.canvas
    allowed = canvas.constrain(logits)
    scores = statistics(allowed)
    observe(canvas, scores, beside(allowed, scores, model.null_id) if model.null_id is not None else None)
    if w.step == 0:
        keep_warm(canvas)
    if w.search is not None:
        w.search.propose(canvas.guess(0), "canvas")
    elif model.null_id is not None and len(canvas.open()) == len(canvas.slots) and lengthen(canvas):
        pass  # nothing was accepted yet and the canvas grew: this step told its length
    else:
        absorb(w, scores, model.null_id)


def beside(logits: Tensor, scores: Scores, token: int) -> Tensor:
    """The probability of a token [slots], from that of the best one: no second pass over the distribution."""
    best = logits.gather(1, scores.token[0][:, None])[:, 0]
    return scores.prob[0] * (logits[:, token] - best).exp()


def keep_warm(canvas: Canvas) -> None:
    """Accept what a warm start showed and the model agrees with; nothing of a hole whose healed start is lost."""
    for slot in canvas.slots:
        if slot.shown is not None and slot.shown == slot.draft:
            slot.token = slot.draft
        slot.shown = None
    lost = canvas.unhealed()
    for slot in canvas.slots:
        if slot.hole in lost:
            slot.token = None


def observe(canvas: Canvas, scores: Scores, p_null: Tensor | None) -> None:
    """Write the statistics of a forward into the open slots."""
    nothing = [0.0] * len(canvas.slots) if p_null is None else p_null.tolist()
    for slot, token, prob, null in zip(
        canvas.slots, scores.token[0].tolist(), scores.prob[0].tolist(), nothing, strict=True
    ):
        if slot.token is None:
            slot.draft, slot.prob, slot.p_null = token, prob, null


def absorb(w: Denoising, scores: Scores, null: int | None) -> None:
    """Accepted slots keep their token and lock; the rest is masked again."""
    canvas = w.canvas
    still = torch.tensor([[s.token is None for s in canvas.slots]])
    accepted = w.sampler(scores, still, w.step, w.of)[0].tolist()
    for slot, yes in zip(canvas.slots, healed_first(canvas, accepted), strict=True):
        if yes and slot.token is None:
            slot.token = slot.draft
    for hole in range(len(canvas.holes)) if null is not None else ():
        if canvas.holes[hole].grammar is not None:
            continue  # what it ends with may stand right of a null
        of_hole = canvas.of_hole(hole)
        ended = [s.token == null for s in of_hole]
        for i in length.broadcast([s.token is None for s in of_hole], ended, [s.p_null for s in of_hole]):
            of_hole[i].token = null
    for slot in canvas.slots:
        slot.locked = slot.token is not None
    canvas.shrink()
    w.finished = not canvas.open()


def healed_first(canvas: Canvas, accepted: list[bool]) -> list[bool]:
    """The start of a healed hole has to be known before anything can follow it: until then only its leftmost open slot
    is accepted."""
    waiting = canvas.unhealed()
    return [
        slot is waiting[slot.hole] if slot.hole in waiting else yes
        for slot, yes in zip(canvas.slots, accepted, strict=True)
    ]


def renew(model: Renoiser, schedule: Schedule, work: Sequence[Denoising]) -> None:
    """Uniform noise: a forward, what it says of each canvas, and the decision."""
    of_forward = runs(model, work)
    hidden = model.hidden(of_forward).split([len(run.wanted or ()) for run in of_forward])
    for w, rows, outlook in zip(work, hidden, outlooks(model, schedule, work, hidden), strict=True):
        settle(model, schedule, w, outlook.first(len(w.canvas.slots)))
        if w.judged:
            judge(model, w, rows, outlook)


def outlooks(
    model: Renoiser, schedule: Schedule, work: Sequence[Denoising], hidden: Sequence[Tensor]
) -> list[renoise.Outlook]:
    """Of each canvas, from its rows [slots and pins, hidden]. A grammar has to see all logits."""
    asked = []
    for w, rows in zip(work, hidden, strict=True):
        pins = [w.canvas.vocabulary.anything] * (len(rows) - len(w.canvas.slots))
        biases = [*w.canvas.biases(lambda *_: None), *pins]
        open = [*(not slot.locked for slot in w.canvas.slots), *[False] * len(pins)]
        asked.append(renoise.Asked(rows, schedule.temperature(w.step, w.of), biases, open))
    free = [i for i, w in enumerate(work) if not w.canvas.ruled]
    found = dict(zip(free, renoise.outlooks(model, [asked[i] for i in free]) if free else [], strict=True))
    for i, w in enumerate(work):
        if w.canvas.ruled:
            raw, slots = model.logits(hidden[i]), len(w.canvas.slots)
            allowed = torch.cat((w.canvas.constrain(raw[:slots]), raw[slots:]))
            found[i] = renoise.of_logits(model, allowed, asked[i].temperature, raw)
    heal(model, {i: work[i].canvas for i in free}, dict(enumerate(asked)), found)
    return [found[i] for i in range(len(work))]


def heal(
    model: Renoiser,
    canvases: Mapping[int, Canvas],
    asked: dict[int, renoise.Asked],
    found: dict[int, renoise.Outlook],
) -> None:
    """What may stand in a slot can depend on the best token of the one before, where a forced text takes several: then
    that slot is asked again, in one more pass for all canvases at once."""
    while True:
        again = dict[int, list[int]]()
        for i, canvas in canvases.items():
            known, tokens = asked[i].biases, found[i].scores.token[0]
            wanted = canvas.biases(partial(best_of, known, tokens))
            if rows := [at for at, bias in enumerate(wanted) if not same(bias, known[at])]:
                again[i] = rows
                asked[i] = replace(asked[i], biases=[*wanted, *known[len(wanted) :]])
        if not again:
            return
        parts = [asked[i].some(rows) for i, rows in again.items()]
        for (i, rows), part in zip(again.items(), renoise.outlooks(model, parts), strict=True):
            found[i] = found[i].but(rows, part)


def best_of(known: Sequence[Tensor], tokens: Tensor, at: int, bias: Tensor) -> int | None:
    """The best token of a slot, where it was asked for with that bias."""
    return int(tokens[at]) if same(bias, known[at]) else None


def same(bias: Tensor, other: Tensor) -> bool:
    """Whether two biases say the same. Those in use are kept, but only so many: one that was let go and made again is
    another tensor, and must not be taken for another question, or it would be asked for ever."""
    return bias is other or torch.equal(bias, other)


def settle(model: Renoiser, schedule: Schedule, w: Denoising, outlook: renoise.Outlook) -> None:
    """Decide every slot that is not locked anew."""
    assert w.state is not None
    drawn = renoise.chances(model, len(w.canvas.slots), w.generator)
    asked = terms(schedule, w, outlook.logit.device)
    w.state, told = renoise.decide(model, schedule, w.state, outlook, w.sampler, w.step, w.of, asked, drawn)
    heed(w, told.tolist())


def terms(schedule: Schedule, w: Denoising, device: torch.device) -> renoise.Terms:
    """Of several lengths none locks anything. A healed hole locks its start, token by token, whatever it is, and only
    then what is sure."""
    slots, waiting = w.canvas.slots, {} if w.judged else w.canvas.unhealed()
    open = [not slot.locked for slot in slots]
    may = [not w.judged and slot.hole not in waiting for slot in slots]
    must = [slot is waiting.get(slot.hole) for slot in slots]
    masks = torch.tensor([open, may, must], device=device)
    return renoise.Terms(masks[0], masks[1], masks[2], w.canvas.vocabulary.stops, enough(schedule, w))


def enough(schedule: Schedule, w: Denoising) -> float:
    """The mean entropy in nats, below which a canvas at rest is done."""
    return max(schedule.confidence, BUDGET / len(w.canvas.slots))


def heed(w: Denoising, told: Sequence[Sequence[float]]) -> None:
    """Write a decision into the slots: best tokens, their probabilities, what is locked, whether the canvas is done."""
    for slot, best, prob, locked, done in zip(w.canvas.slots, *told, strict=True):
        w.finished = bool(done)
        if not slot.locked:
            slot.draft, slot.prob, slot.shown = int(best), prob, None
            if locked:
                slot.token, slot.locked = slot.draft, True


def judge(model: Renoiser, w: Denoising, hidden: Tensor, outlook: renoise.Outlook) -> None:
    """How well a canvas of this length fits, by what the model says of it before anything was forbidden."""
    assert w.state is not None
    slots, pins = len(w.canvas.slots), [pin for _, pin in w.canvas.pins()]
    ids = torch.tensor(pins, dtype=torch.int64, device=hidden.device)
    # A grammar has changed what its slots were told; the best token's own logit is asked for again.
    own = model.score(hidden[:slots], w.state.best) if w.canvas.ruled else outlook.logit[:slots]
    logp = torch.cat((own, model.score(hidden[slots:], ids))) - outlook.total
    w.score = length.score(logp[:slots], logp[slots:]) if w.canvas.whole() else -math.inf


def lengthen(canvas: Canvas) -> bool:
    """Double the holes whose last slot is not null; true when one grew and the step is spent."""
    grown = False
    for number, hole in enumerate(canvas.holes):
        slots = canvas.of_hole(number)
        if length.too_short(slots[-1].p_null, len(slots), hole.max_tokens):
            canvas.grow(number)
            grown = True
    canvas.begin()
    return grown
