"""Jobs in, events out, on a virtual clock: what every client relies on, whatever else is going on."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from caesura import wire
from caesura.engine.cache import KV
from caesura.engine.methods.verify import around
from caesura.engine.methods.verify.search import PASSES
from caesura.engine.model import Drafter, Run
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.samplers import names
from caesura.engine.scheduler import LIVE, SHARE, Event, Running, Scheduler, in_turn
from caesura.engine.scores import Floats, Ids
from caesura.engine.scores.tensors import TensorScores

from ..support.checkpoints.tiny import Clock, Scripted, alone, done, infill, run
from .canvas.test_canvas import CURSORS

MODES = ["verify", "threshold", "wino", "joint_edit"]  # every other sampler of a canvas is in test_canvases
modes = pytest.mark.parametrize("sampler", MODES)

CODE = "def count(items, left):\n    total = 0\n    for item in items:\n        total += item.left\n    return "
JOBS = {
    **CURSORS,
    "long": ("value = [left, right]\n" * 60 + "print(", ")\n" * 40),
    "repeats": ("self._count(left)\nself._count(right)\nself._co", "\n"),
}


def locked(event: wire.EngineMessage) -> list[str]:
    """Locked text of each hole."""
    assert isinstance(event, wire.Locked | wire.Done)
    return ["".join(fill.text[a:b] for a, b in fill.locked) for fill in event.holes]


def within(part: str, whole: str) -> bool:
    """Whether the letters of `part` come in `whole`, in order: text between locked spans may be decided later."""
    letters = iter(whole)
    return all(letter in letters for letter in part)


def keeps_the_contract(events: list[wire.EngineMessage], holes: int = 1) -> wire.Done:
    """Locked*, then one Done: numbered, cumulative, locked text only grows."""
    assert all(isinstance(e, wire.Locked) for e in events[:-1])
    answer = done(events)
    before = [""] * holes
    for number, event in enumerate(events):
        assert isinstance(event, wire.Locked | wire.Done)
        assert event.seq == number
        assert len(event.holes) == holes
        for fill in event.holes:
            assert 0 <= fill.confidence <= 1
            assert all(0 <= a < b <= len(fill.text) for a, b in fill.locked)
            ends = [0, *(end for end, _ in fill.probabilities)]
            assert all(a < b for a, b in pairwise(ends))
            assert ends[-1] == len(fill.text), "every token of the text has its probability"
        now = locked(event)
        assert all(within(a, b) for a, b in zip(before, now, strict=True)), (before, now)
        before = now
    assert wire.decode_engine(wire.encode(answer)) == answer
    return answer


@modes
@pytest.mark.parametrize(("prefix", "suffix"), JOBS.values(), ids=JOBS)
def test_every_job_keeps_the_contract(tiny: NativeLlama, sampler: str, prefix: str, suffix: str) -> None:
    scheduler = Scheduler(tiny)
    events = run(scheduler, [infill("j", prefix, suffix, sampler=sampler)])["j"]
    answer = keeps_the_contract(events)
    assert answer.holes[0].open == 0
    assert answer.steps >= 1
    assert answer.stop in ("complete", "steps")
    assert scheduler.step(Clock()) == []


@modes
@pytest.mark.parametrize(("prefix", "suffix"), CURSORS.values(), ids=CURSORS)
def test_a_model_with_nothing_to_say_ends_too(tiny: NativeLlama, sampler: str, prefix: str, suffix: str) -> None:
    """Null in every slot, and no token likelier than another."""
    keeps_the_contract(
        run(Scheduler(Scripted(tiny.tokenizer, [])), [infill("j", prefix, suffix, sampler=sampler)])["j"]
    )


@pytest.mark.parametrize("name", sorted(set(CURSORS) - {"deep empty line"}))  # 48 blanks are many rows of random tree
def test_a_search_finds_something_at_every_cursor(tiny: NativeLlama, name: str) -> None:
    prefix, suffix = CURSORS[name]
    job = infill("j", prefix, suffix, wire.Hole(64), sampler="verify")
    assert alone(tiny, job).holes[0].text.strip()


def test_locked_text_of_a_search_only_grows_at_its_end(tiny: NativeLlama) -> None:
    for prefix, suffix in JOBS.values():
        before = ""
        for event in run(Scheduler(tiny), [infill("j", prefix, suffix, sampler="verify")])["j"]:
            assert isinstance(event, wire.Locked | wire.Done)
            fill = event.holes[0]
            now = fill.text[: fill.locked[0][1]] if fill.locked else ""
            assert now.startswith(before)
            before = now


# A batch gives each canvas what it would get alone


def answers(scheduler: Scheduler, jobs: list[wire.Infill]) -> dict[str, tuple[wire.Fill, ...]]:
    return {key: done(events).holes for key, events in run(scheduler, jobs).items()}


def test_a_batch_gives_each_job_what_it_would_get_alone(tiny: NativeLlama) -> None:
    jobs = [
        infill(f"{name} {mode}", *JOBS[name], sampler=mode, seed=seed)
        for seed, (mode, name) in enumerate(
            (mode, name) for mode in MODES for name in ("mid-token", "empty file", "first word", "long", "repeats")
        )
    ]
    by_itself = {job.job: alone(tiny, job).holes for job in jobs}
    assert answers(Scheduler(tiny), jobs) == by_itself
    assert answers(Scheduler(tiny), jobs[::-1]) == by_itself


@modes
def test_a_job_repeats_itself(tiny: NativeLlama, sampler: str) -> None:
    job = infill("j", CODE, "\n", sampler=sampler, seed=7)
    assert alone(tiny, job).holes == alone(tiny, job).holes


@modes
def test_the_fill_is_the_same_however_the_context_came(tiny: NativeLlama, sampler: str) -> None:
    suffix = "\n\nprint(count)\n"
    job = infill("j", CODE * 2, suffix, sampler=sampler)
    cold = alone(tiny, job)

    typed = Scheduler(tiny)
    for end in range(len(CODE) - 40, len(CODE) + 1, 8):
        run(typed, [infill("t", CODE + CODE[:end], suffix, sampler=sampler)])
    appended = done(run(typed, [job])["j"])
    assert typed.cache.reused > typed.cache.asked / 2

    deleted = Scheduler(tiny)
    run(deleted, [infill("t", CODE * 2 + "left + item.right", suffix, sampler=sampler)])
    truncated = done(run(deleted, [job])["j"])

    longer = Scheduler(tiny)
    run(longer, [infill("t", CODE * 8, suffix, sampler=sampler)])
    forked = done(run(longer, [job])["j"])
    assert longer.cache.reused

    for answer in (appended, truncated, forked):
        assert [f.text for f in answer.holes] == [f.text for f in cold.holes]
        assert answer.holes[0].confidence == pytest.approx(cold.holes[0].confidence, rel=0.02)


def test_another_seed_finds_another_answer_and_the_same_one_again(tiny: NativeLlama) -> None:
    jobs = [
        infill(f"{name} {seed}", *CURSORS[name], sampler="verify", seed=seed)
        for name in ("after a dot", "empty line", "f-string", "digits")
        for seed in range(1, 4)
    ]
    together = answers(Scheduler(tiny), jobs)
    texts = [together[job.job][0].text for job in jobs]
    assert len(set(texts)) > 8
    assert all(alone(tiny, job).holes == together[job.job] for job in jobs[::3])


@modes
def test_another_job_before_leaves_no_trace(tiny: NativeLlama, sampler: str) -> None:
    job = infill("j", CODE, "\n", sampler=sampler)
    used = Scheduler(tiny)
    run(used, [infill(str(n), "other = " + "x + " * n, "y", sampler=sampler) for n in range(12)])
    assert done(run(used, [job])["j"]).holes == alone(tiny, job).holes


def test_more_jobs_than_live_canvases_all_end(tiny: NativeLlama) -> None:
    jobs = [infill(str(n), CODE[: n * 3], "\n", sampler="threshold") for n in range(20)]
    for events in run(Scheduler(tiny), jobs).values():
        keeps_the_contract(events)


# Several holes


@modes
@pytest.mark.parametrize("between", [", ", ")\n", ")", " + retu", ""])
def test_several_holes(tiny: NativeLlama, sampler: str, between: str) -> None:
    segments: list[wire.Text | wire.Hole] = [
        wire.Hole(8),
        wire.Hole(4, "span"),
        wire.Text("]\n"),
        wire.Hole(4, "block"),
    ]
    if between:
        segments.insert(1, wire.Text(between))
    events = run(Scheduler(tiny), [infill("j", "f(x[", ")\n", *segments, sampler=sampler)])["j"]
    answer = keeps_the_contract(events, holes=3)
    assert "\n" not in answer.holes[0].text + answer.holes[1].text


@modes
def test_sixteen_holes_and_no_more(tiny: NativeLlama, sampler: str) -> None:
    def job(count: int) -> wire.Infill:
        segments: list[wire.Text | wire.Hole] = [wire.Hole(2), wire.Text(", ")] * count
        return infill("j", "", "", *segments, sampler=sampler)

    keeps_the_contract(run(Scheduler(tiny), [job(16)])["j"], holes=16)
    (failed,) = run(Scheduler(tiny), [job(17)])["j"]
    assert isinstance(failed, wire.Failed)
    assert failed.code == "invalid"


def test_a_deadline_amid_several_holes_answers_all_of_them(tiny: NativeLlama) -> None:
    """The finished ones, the best of the one that runs, and drafts of the rest."""
    scheduler, clock = Scheduler(tiny), Clock()
    between = wire.Text("\n    total = ")
    segments = (wire.Hole(8), between, wire.Hole(8), between, wire.Hole(8))
    scheduler.take(b"p", infill("j", CODE, "\n", *segments, sampler="verify", deadline_ms=100.0), 0.0)
    events: list[wire.Locked] = []
    while not events or events[-1].holes[0].open or not events[-1].holes[1].probabilities:
        for _, event in scheduler.step(clock):
            assert isinstance(event, wire.Locked), "it was done before"
            events.append(event)
    last = events[-1]
    assert last.holes[1].open
    assert last.holes[2] == events[0].holes[2]
    clock.now = 0.2
    ((_, answered),) = scheduler.step(clock)
    answer = keeps_the_contract([*events, answered], holes=3)
    assert answer.stop == "deadline"
    assert answer.holes[0] == last.holes[0]
    assert [fill.text for fill in answer.holes] == [fill.text for fill in last.holes]
    assert all(fill.text and fill.open == 0 for fill in answer.holes)
    assert not answer.alternatives


@modes
def test_the_answer_of_every_hole_says_how_likely_its_tokens_are(tiny: NativeLlama, sampler: str) -> None:
    job = infill(
        "j", CODE, "\n", wire.Hole(8), wire.Text("\n    total = "), wire.Hole(8), sampler=sampler, candidates=3
    )
    answer = keeps_the_contract(run(Scheduler(tiny), [job])["j"], holes=2)
    assert all(bool(fill.probabilities) == bool(fill.text) for fill in answer.holes)
    (single,) = run(Scheduler(tiny), [infill("j", CODE, "\n", sampler=sampler, candidates=3)]).values()
    for (fill,) in done(single).alternatives:
        assert fill.probabilities[-1][0] == len(fill.text)


def test_the_lookup_of_a_later_hole_sees_the_fills_before_it() -> None:
    segments = (wire.Text("a = "), wire.Hole(), wire.Text("\nb = "), wire.Hole(), wire.Text("\nc"), wire.Hole())
    job = infill("j", "x\n", "\ny", *segments)
    assert around(job, 0, []) == ("x\na = ", "\nb = \0\nc\0\ny")
    assert around(job, 1, [wire.Fill("total(left)")]) == ("x\na = total(left)\nb = ", "\nc\0\ny")


class Echo(Scripted):
    """Left to right it repeats: whatever followed a token in `text` follows it again."""

    def __init__(self, model: NativeLlama, text: str) -> None:
        super().__init__(model.tokenizer, [])
        ids = model.tokenizer.encode(text)
        self.next = dict(pairwise(ids))

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        judged, drawn = super().forward(trees, canvases)
        for row, token in zip(judged.logits, (token for each in trees for token in each.ids), strict=True):
            if token in self.next:
                row[self.next[token]] = 12.0
        return judged, drawn


LINE = "value = left(right)\n"


def test_a_later_hole_repeats_what_an_earlier_text_says(tiny: NativeLlama) -> None:
    model = Echo(tiny, LINE)
    segments = (wire.Hole(8), wire.Text("\nx = 1\n" + LINE + "x = 2\nvalue = lef"), wire.Hole(8))
    answer = alone(model, infill("j", "value =", "\n", *segments, sampler="verify"))
    assert [fill.text for fill in answer.holes] == [" left(right)", "t(right)"]
    assert answer.tokens.lookup > 0


class Drafting(Echo):
    """It drafts what it expects itself, or always the same `wrong` token."""

    def __init__(self, model: NativeLlama, text: str, wrong: int | None = None) -> None:
        super().__init__(model, text)
        self.wrong, self.asked = wrong, 0

    @property
    def drafter(self) -> Drafter:
        return self

    def draft(self, runs: Sequence[Run]) -> tuple[Ids, Floats]:
        self.asked += len(runs)
        chains = [[run.ids[0]] for run in runs]
        for chain in chains * 3:
            chain.append(self.next.get(chain[-1], 0) if self.wrong is None else self.wrong)
        return np.array([chain[1:] for chain in chains], np.int32), np.full((len(runs), 3), 0.9, np.float32)


NOVEL = "value = left(right) + total[item]\n"


@pytest.mark.parametrize("sampler", ["verify", "left_to_right"])
def test_right_drafts_save_passes_and_wrong_ones_change_nothing(tiny: NativeLlama, sampler: str) -> None:
    """And left to right, which the others are compared with, has none."""
    job = infill("j", "value =", "\n", sampler=sampler)
    plain, right, wrong = Echo(tiny, NOVEL), Drafting(tiny, NOVEL), Drafting(tiny, NOVEL, wrong=5)
    alone_, helped, misled = (alone(model, job) for model in (plain, right, wrong))
    assert [fill.text for fill in helped.holes] == [fill.text for fill in misled.holes] == [NOVEL[7:-1]]
    assert alone_.holes == misled.holes
    if sampler == "verify":
        assert helped.steps < alone_.steps / 2
        assert misled.steps == alone_.steps
        assert helped.tokens.canvas > 2 * helped.tokens.left_to_right
        assert misled.tokens == alone_.tokens
    else:
        assert right.asked == wrong.asked == 0


def test_a_batch_drafts_for_each_job_what_it_would_get_alone(tiny: NativeLlama) -> None:
    model = Drafting(tiny, NOVEL)
    jobs = [infill("a", "value =", "\n"), infill("b", "value = left(", "\n"), infill("c", "x\nvalue = left(", "\n")]
    found = run(Scheduler(model), jobs)
    assert [done(found[job.job]).holes for job in jobs] == [alone(model, job).holes for job in jobs]


def test_a_name_given_in_one_hole_is_proposed_for_the_next(tiny: NativeLlama) -> None:
    model = Echo(tiny, "(left)\n[left")
    segments = (wire.Hole(8), wire.Text(")\nindex["), wire.Hole(8))
    answer = alone(model, infill("j", "x = 1\nprint(", ")\n", *segments, sampler="verify"))
    assert [fill.text for fill in answer.holes] == ["left", "left"]
    assert answer.tokens.lookup > 0


@pytest.mark.parametrize(
    ("effort", "segments", "canvases"),
    [
        ("full", [wire.Hole(8)], 0),
        ("full", [wire.Hole(8), wire.Text("\nx = "), wire.Hole(8)], 1),
        ("full", [wire.Hole(16, grammar=wire.Json())], 0),
        ("full", [wire.Hole(16, grammar=wire.Json()), wire.Text("\nx = "), wire.Hole(16, grammar=wire.Json())], 0),
        ("ghost", [wire.Hole(8), wire.Text("\nx = "), wire.Hole(8)], 0),
    ],
    ids=["a hole", "several holes", "a grammar", "several grammars", "ghost text"],
)
def test_a_canvas_drafts_for_several_holes(
    tiny: NativeLlama,
    monkeypatch: pytest.MonkeyPatch,
    effort: Literal["ghost", "full"],
    segments: list[wire.Text | wire.Hole],
    canvases: int,
) -> None:
    forward, drawn = tiny.forward, []

    def counted(trees: Sequence[Run], drafts: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        drawn.extend(drafts)
        return forward(trees, drafts)

    monkeypatch.setattr(tiny, "forward", counted)
    job = infill("j", LINE + "value =", "\n", *segments, sampler="verify", effort=effort)
    events = run(Scheduler(tiny), [job])["j"]
    assert len(drawn) == canvases
    most = PASSES * sum(isinstance(piece, wire.Hole) for piece in segments)
    assert {event.of for event in events if isinstance(event, wire.Locked)} <= {most}
    assert done(events).stop == ("steps" if done(events).steps == most else "complete")


def test_a_neighbours_line_is_proposed(tiny: NativeLlama) -> None:
    beside = (wire.Neighbour("# left.py", LINE),)
    tokens = {}
    for neighbours in ((), beside):
        job = infill("j", "other = 1\nvalue =", "\n", neighbours=neighbours, sampler="verify")
        answer = alone(Echo(tiny, LINE), job)
        assert answer.holes[0].text == " left(right)"
        tokens[neighbours] = answer.tokens.lookup
    assert tokens[()] == 0
    assert tokens[beside] > 0


# Supersede, cancel, drop


def kinds(events: list[Event]) -> list[tuple[bytes, str, str]]:
    return [(peer, getattr(e, "job", ""), getattr(e, "code", type(e).__name__)) for peer, e in events]


def test_a_job_without_an_answer_tells_its_steps(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    scheduler.take(b"p", infill("j", "x = ", "\n", wire.Hole(96), sampler="threshold"), 0.0)
    for _ in range(3):
        scheduler.step(clock)
    ((_, failed),) = scheduler.take(b"p", wire.Cancel("j"), 0.0)
    assert failed == wire.Failed("j", "cancelled", "The job was cancelled.", 3)


@modes
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_cancel_is_answered_at_once_and_frees_the_canvas(tiny: NativeLlama, sampler: str, steps: int) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    scheduler.take(b"p", infill("j", CODE, "\n", sampler=sampler), 0.0)
    for _ in range(steps):
        scheduler.step(clock)
    assert kinds(scheduler.take(b"p", wire.Cancel("j"), 0.0)) == [(b"p", "j", "cancelled")]
    assert not scheduler.busy
    assert scheduler.step(clock) == []
    assert scheduler.take(b"p", wire.Cancel("j"), 0.0) == []
    if steps:
        keeps_the_contract(run(scheduler, [infill("k", CODE, "\n", sampler=sampler)])["k"])
        assert scheduler.cache.reused, "the context of the cancelled job is lost"


def test_a_cancel_does_not_wait_for_a_long_context(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    scheduler.take(b"p", infill("j", *JOBS["long"]), 0.0)
    assert scheduler.step(clock) == []
    assert kinds(scheduler.take(b"p", wire.Cancel("j"), 0.0)) == [(b"p", "j", "cancelled")]
    assert not scheduler.busy
    again = infill("k", *JOBS["long"])
    assert done(run(scheduler, [again])["k"]).holes[0].text == alone(tiny, again).holes[0].text


def test_a_cancel_reaches_only_ones_own_job(tiny: NativeLlama) -> None:
    scheduler = Scheduler(tiny)
    scheduler.take(b"p", infill("j", CODE), 0.0)
    assert scheduler.take(b"q", wire.Cancel("j"), 0.0) == []
    assert scheduler.busy


def test_a_newer_job_supersedes_the_same_peers_document_and_kind(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    events = scheduler.take(b"p", infill("old", CODE, document="d"), 0.0)
    scheduler.step(clock)
    events += scheduler.take(b"p", infill("other document", CODE, document="e"), 0.0)
    events += scheduler.take(b"p", infill("other kind", CODE, document="d", kind="fill"), 0.0)
    events += scheduler.take(b"q", infill("other peer", CODE, document="d"), 0.0)
    assert events == []
    events = scheduler.take(b"p", infill("new", CODE, document="d"), 0.0)
    assert kinds(events) == [(b"p", "old", "superseded")]
    later: list[Event] = []
    while scheduler.busy:
        later += scheduler.step(clock)
    finished = {job for _, job, what in kinds(later) if what == "Done"}
    assert finished == {"other document", "other kind", "other peer", "new"}
    assert "old" not in {job for _, job, _ in kinds(later)}


def test_one_peers_many_jobs_do_not_keep_another_waiting(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    for number in range(2 * LIVE):
        scheduler.take(b"many", infill(f"m{number}", CODE), 0.0)
    scheduler.take(b"one", infill("j", CODE), 0.0)
    events = scheduler.step(clock)
    assert (b"one", "j") in [(peer, event.job) for peer, event in events if isinstance(event, wire.Locked)]


def test_where_too_many_type_whoever_pauses_is_answered(tiny: NativeLlama) -> None:
    scheduler, clock, heard = Scheduler(tiny), Clock(), list[Event]()
    for key in range(60):
        for peer in range(LIVE):
            scheduler.take(b"%d" % peer, infill(f"{key}", CODE + "x" * key, document="d"), 0.0)
        if key == 0:
            scheduler.take(b"paused", infill("j", CODE), 0.0)
        heard += scheduler.step(clock)
    assert (b"paused", "j", "Done") in kinds(heard)


def test_a_key_keeps_the_place_of_a_context_that_is_being_read(tiny: NativeLlama) -> None:
    """Else whoever types falls behind everybody else's cold context at each key."""
    scheduler, clock = Scheduler(Scripted(tiny.tokenizer, [])), Clock()
    prefix, suffix = JOBS["long"]
    for peer in range(3):
        scheduler.take(b"%d" % peer, infill("a", f"# {peer}\n{prefix}", suffix, document="d"), 0.0)
    scheduler.step(clock)
    scheduler.take(b"0", infill("b", f"# 0\n{prefix}l", suffix, document="d"), 0.0)
    heard = list[bytes]()
    while scheduler.busy:
        heard += [peer for peer, event in scheduler.step(clock) if isinstance(event, wire.Done)]
    assert heard[0] == b"0"


def test_the_time_a_job_waits_for_room_is_told_as_waiting(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(Scripted(tiny.tokenizer, [])), Clock()
    prefix, suffix = JOBS["long"]
    for peer in (b"0", b"1"):
        scheduler.take(peer, infill("a", f"# {peer!r}\n{prefix}", suffix), 0.0)
    found = dict[bytes, wire.Timings]()
    while scheduler.busy:
        clock.now += 0.01
        found |= {peer: event.timings for peer, event in scheduler.step(clock) if isinstance(event, wire.Done)}
    assert found[b"1"].queue_ms > 20 + found[b"0"].queue_ms


class Counted(Scripted):
    """Counts the context rows that it reads."""

    read = 0

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self.read += len(ids)
        super().prefill(ids, kv)


def test_a_step_reads_little_context_however_many_wait(tiny: NativeLlama) -> None:
    model = Counted(tiny.tokenizer, [])
    scheduler, clock, steps = Scheduler(model), Clock(), 0
    for peer in range(LIVE):
        prefix, suffix = JOBS["long"]
        scheduler.take(b"%d" % peer, infill("j", f"# {peer}\n{prefix}", suffix), 0.0)
    while scheduler.busy and steps < 400:
        before, steps = model.read, steps + 1
        scheduler.step(clock)
        assert model.read - before <= 2 * model.spec.chunk
    assert not scheduler.busy
    assert model.read > LIVE * model.spec.chunk


def test_every_editor_finds_its_context_again(tiny: NativeLlama) -> None:
    scheduler = Scheduler(tiny)
    prefix, suffix = JOBS["long"]
    for typed in ("", "l"):
        scheduler.cache.reused = scheduler.cache.asked = 0
        for peer in (b"%d" % n for n in range(6)):
            run(scheduler, [infill("j", f"# {peer!r}\n{prefix}{typed}", suffix)], peer=peer)
    assert scheduler.cache.reused > 0.9 * scheduler.cache.asked


def test_a_peer_that_left_hears_nothing_and_frees_its_canvases(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    for name in ("a", "b"):
        scheduler.take(b"gone", infill(name, CODE, document=name), 0.0)
    scheduler.take(b"here", infill("c", CODE), 0.0)
    scheduler.step(clock)
    scheduler.drop(b"gone")
    scheduler.drop(b"never seen")
    heard: list[Event] = []
    while scheduler.busy:
        heard += scheduler.step(clock)
    assert {peer for peer, _ in heard} == {b"here"}


# Time


@pytest.mark.parametrize(
    ("sampler", "steps"),
    [(name, steps) for name in MODES for steps in ((1, 2) if name == "verify" else (1, 2, 4))],  # none is done by then
)
def test_at_the_deadline_the_best_so_far_is_the_answer(tiny: NativeLlama, sampler: str, steps: int) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    scheduler.take(b"p", infill("j", CODE, "\n", sampler=sampler, deadline_ms=100.0), 0.0)
    events: list[Event] = []
    for _ in range(steps):
        events += scheduler.step(clock)
    assert scheduler.expire(0.099) == []
    clock.now = 0.101
    last = events[-1][1]
    assert isinstance(last, wire.Locked)
    events += scheduler.step(clock)
    answer = keeps_the_contract([e for _, e in events])
    assert answer.stop == "deadline"
    assert answer.holes[0].text == last.holes[0].text
    assert not scheduler.busy
    assert answer.timings.total_ms == pytest.approx(101)


def test_a_job_that_never_started_expires_and_never_reaches_the_model(tiny: NativeLlama) -> None:
    scheduler = Scheduler(tiny)
    scheduler.take(b"p", infill("j", CODE, deadline_ms=10.0), 5.0)
    scheduler.take(b"p", infill("k", CODE, deadline_ms=0.0), 5.0)
    assert kinds(scheduler.expire(5.0)) == [(b"p", "k", "expired")]
    assert kinds(scheduler.expire(5.02)) == [(b"p", "j", "expired")]
    assert scheduler.cache.asked == 0
    assert not scheduler.busy


def test_invoked_jobs_go_before_speculative_ones(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    for n in range(12):
        scheduler.take(b"p", infill(f"s{n}", CODE, priority="speculative", sampler="threshold"), 0.0)
    scheduler.take(b"p", infill("now", CODE, priority="invoked", sampler="threshold"), 0.0)
    assert "now" in {job for _, job, _ in kinds(scheduler.step(clock))}


@modes
def test_speculation_costs_what_else_is_live_nothing(tiny: NativeLlama, sampler: str) -> None:
    """It neither steps nor prefills while anything else runs, and goes on where it stood."""
    scheduler, clock = Scheduler(tiny), Clock()
    guess = infill("guess", CODE, "\n", priority="speculative", sampler=sampler)
    later = infill("later", *JOBS["long"], priority="speculative", sampler=sampler)
    scheduler.take(b"p", guess, 0.0)
    heard = scheduler.step(clock)
    scheduler.take(b"p", later, 0.0)
    scheduler.take(b"q", infill("now", CODE * 3, "\n", sampler=sampler), 0.0)
    asked = scheduler.cache.asked
    while not any(isinstance(event, wire.Done) for _, event in heard):
        assert scheduler.busy
        heard += scheduler.step(clock)
    assert {peer for peer, _ in heard[1:]} <= {b"q"}
    assert scheduler.cache.asked - asked < len(tiny.tokenizer.encode(CODE * 3)) + 4, "a context was read for a guess"
    while scheduler.busy:
        heard += scheduler.step(clock)
    answer = keeps_the_contract([event for _, event in heard if getattr(event, "job", "") == "guess"])
    assert answer.holes == alone(tiny, guess).holes


@modes
def test_a_guess_that_somebody_waits_for_by_now_goes_on_where_it_stood(tiny: NativeLlama, sampler: str) -> None:
    """The same job again, with a priority: it waits for nobody, and no step is made or counted twice."""
    scheduler, clock = Scheduler(tiny), Clock()
    guess = infill("guess", CODE, "\n", priority="speculative", sampler=sampler)
    scheduler.take(b"p", guess, 0.0)
    for _ in range(2):
        scheduler.step(clock)
        clock.now += 1.0
    wanted = msgspec.structs.replace(guess, job="wanted", priority="automatic", deadline_ms=9_000.0)
    assert kinds(scheduler.take(b"p", wanted, clock())) == [(b"p", "guess", "superseded")]
    heard = []
    scheduler.take(b"q", infill("other", CODE * 3, "\n", sampler=sampler), 0.0)
    while scheduler.busy:
        clock.now += 0.001
        heard += scheduler.step(clock)
    peers = [peer for peer, _ in heard]
    assert b"q" in peers[peers.index(b"p") :], "it has waited for the other job"
    answer = keeps_the_contract([event for peer, event in heard if peer == b"p"])
    once = alone(tiny, guess)
    assert (answer.holes, answer.steps) == (once.holes, once.steps - 2)
    assert answer.timings.first_lock_ms is not None
    assert 0 == answer.timings.queue_ms < answer.timings.first_lock_ms <= answer.timings.total_ms < 1000


def test_timings_add_up(tiny: NativeLlama) -> None:
    class Ticking(Clock):
        def __call__(self) -> float:
            self.now += 0.001
            return self.now

    (events,) = run(Scheduler(tiny), [infill("j", CODE, "\n")], Ticking()).values()
    t = done(events).timings
    assert 0 < t.queue_ms + t.prefill_ms + t.denoise_ms <= t.total_ms
    assert t.first_lock_ms is not None
    assert t.first_lock_ms <= t.total_ms


def test_a_search_that_is_cut_short_says_so(tiny: NativeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.engine.methods.verify.search.PASSES", 3)
    answer = alone(tiny, infill("j", CODE, "\n", wire.Hole(64), sampler="verify"))
    assert (answer.steps, answer.stop) == (3, "steps")


# The context


def floats(numbers: Any) -> NDArray[np.float32]:
    """bfloat16, as a CPU keeps it, in float32."""
    return (numbers.astype(np.uint32) << 16).view(np.float32)


def test_a_chunked_prefill_equals_one(tiny: NativeLlama) -> None:
    ids = tiny.tokenizer.encode(CODE * 8)
    assert len(ids) > 2 * tiny.spec.chunk
    whole, parts = tiny.cache().lease([]), tiny.cache().lease([])
    tiny.prefill(ids, whole)
    for start in range(0, len(ids), tiny.spec.chunk):
        tiny.prefill(ids[start : start + tiny.spec.chunk], parts)
    assert parts.ids == whole.ids
    for layer in range(tiny.config.num_layers):
        for one, other in zip(whole.get(layer, 0, len(ids)), parts.get(layer, 0, len(ids)), strict=True):
            assert np.abs(floats(one) - floats(other)).max() < 2e-3


def test_a_long_context_takes_several_steps_so_that_others_are_served(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    scheduler.take(b"p", infill("long", *JOBS["long"], sampler="threshold"), 0.0)
    scheduler.take(b"p", infill("short", "x = ", "\n", sampler="threshold"), 0.0)
    assert {job for _, job, _ in kinds(scheduler.step(clock))} == {"short"}


# Warm start


def script_behind(tiny: NativeLlama, forced: str) -> Scripted:
    """A model that wants to say ` + 1` where the healed prefix ends in `forced`."""
    return Scripted(tiny.tokenizer, tiny.tokenizer.encode(forced + " + 1"))


@pytest.mark.parametrize("sampler", names())
def test_a_draft_that_the_model_agrees_with_is_kept(tiny: NativeLlama, sampler: str) -> None:
    model = script_behind(tiny, " =")
    cold = alone(model, infill("j", "x =", "\n", sampler=sampler))
    assert cold.holes[0].text == " + 1"
    kept = alone(model, infill("j", "x =", "\n", sampler=sampler, draft=(" + 1",)))
    assert kept.holes[0].text == " + 1"
    assert kept.steps <= cold.steps
    assert kept.holes[0].confidence == pytest.approx(cold.holes[0].confidence, rel=0.01)


@pytest.mark.parametrize("sampler", names())
@pytest.mark.parametrize("draft", [" - 2", "", "x" * 50, "\n\n", " + 1 + 1"])
def test_a_draft_that_the_model_doubts_is_redone(tiny: NativeLlama, sampler: str, draft: str) -> None:
    answer = alone(script_behind(tiny, " ="), infill("j", "x =", "\n", sampler=sampler, draft=(draft,)))
    assert answer.holes[0].text == " + 1"


@modes
@pytest.mark.parametrize("draft", ["rn left", "zzz", ""])
def test_a_draft_in_mid_token_leaves_the_forced_text_alone(tiny: NativeLlama, sampler: str, draft: str) -> None:
    """Whatever the draft was, the fill is text behind the prefix: an empty one would mean that it was lost."""
    job = infill("j", "x = 1\n    retu", "\n", wire.Hole(24), sampler=sampler, draft=(draft,))
    events = run(Scheduler(tiny), [job])["j"]
    answer = keeps_the_contract(events)
    assert answer.holes[0].text


def test_a_good_draft_spares_the_search_its_steps(tiny: NativeLlama) -> None:
    steps = []
    for prefix, suffix in JOBS.values():
        cold = alone(tiny, infill("j", prefix, suffix, sampler="verify"))
        drafted = alone(tiny, infill("j", prefix, suffix, sampler="verify", draft=(cold.holes[0].text,)))
        if drafted.holes[0].text == cold.holes[0].text:
            steps.append((drafted.tokens.left_to_right, cold.tokens.left_to_right))
    assert all(drafted <= cold for drafted, cold in steps)
    assert sum(drafted < cold for drafted, cold in steps) > len(steps) / 3


# What cannot be taken


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampler": "nope"}, "no sampler named 'nope'"),
        ({"method": "nope"}, "no method named 'nope'"),
        ({"method": "uniform"}, "has no canvas of uniform noise"),
        ({"sampler": "__init__"}, "no sampler"),
        ({"segments": (wire.Text("x"),)}, "holes"),
        ({"segments": (wire.Hole(grammar=wire.Pattern("(")),)}, "[Pp]attern"),
        ({"draft": ("a", "b")}, "drafts"),
    ],
)
def test_an_impossible_job_is_refused_in_one_sentence(tiny: NativeLlama, changes: dict[str, object], says: str) -> None:
    (failed,) = run(Scheduler(tiny), [infill("j", "x = ", "", **changes)])["j"]
    assert isinstance(failed, wire.Failed)
    assert failed.code == "invalid"
    assert len(failed.message) <= 256
    assert re.search(says, failed.message)
    assert failed.message.endswith(".")


def test_a_bug_on_a_text_is_told_without_its_words(tiny: NativeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    def lay(*arguments: object, **more: object) -> None:
        raise ValueError("CONFIDENTIAL")

    faults: list[Exception] = []
    monkeypatch.setattr("caesura.engine.scheduler.lay", lay)
    (failed,) = run(Scheduler(tiny, faults.append), [infill("j", "CONFIDENTIAL = ")])["j"]
    assert failed == wire.Failed("j", "invalid", "The engine could not read this job; see its log.")
    assert [type(fault) for fault in faults] == [ValueError]


# The answer


@modes
def test_tokens_say_where_the_answer_came_from(tiny: NativeLlama, sampler: str) -> None:
    tokens = alone(tiny, infill("j", *JOBS["repeats"], sampler=sampler)).tokens
    assert tokens.canvas + tokens.lookup + tokens.left_to_right > 0
    if sampler != "verify":
        assert tokens.lookup == tokens.left_to_right == 0


def test_candidates_are_further_texts(tiny: NativeLlama) -> None:
    one = alone(tiny, infill("j", CODE, "\n", sampler="verify"))
    several = alone(tiny, infill("j", CODE, "\n", sampler="verify", candidates=3))
    assert one.alternatives == ()
    assert several.holes == one.holes
    assert 0 < len(several.alternatives) <= 2
    texts = [one.holes[0].text, *(fills[0].text for fills in several.alternatives)]
    assert len(set(texts)) == len(texts)


@modes
@pytest.mark.parametrize("kind", ["line", "span"])
def test_a_one_line_hole_stays_one_line(tiny: NativeLlama, sampler: str, kind: str) -> None:
    for seed, prefix in enumerate(("x = ", CODE, "a\n", "if x:\n    ", "\r\n")):
        hole = wire.Hole(16, kind)  # type: ignore[arg-type]
        text = alone(tiny, infill("j", prefix, "\n", hole, sampler=sampler, seed=seed)).holes[0].text
        assert not {"\n", "\r"} & set(text)


def test_a_user_with_many_peers_has_one_turn_before_anybodys_second() -> None:
    greedy = [Running(b"%d" % number, "greedy", infill(f"{number}", "", ""), number, 0.0) for number in range(3)]
    late = Running(b"late", "late", infill("late", "", ""), 9, 0.0)
    assert in_turn([*greedy, late]) == [greedy[0], late, *greedy[1:]]


@pytest.mark.parametrize("many", [1, 8])
def test_however_many_long_jobs_one_user_has_another_waits_for_a_share_of_rows(tiny: NativeLlama, many: int) -> None:
    """And the long ones end too, each with what it would get alone."""
    scheduler, clock = Scheduler(tiny), Clock()
    long = [infill(f"{n}", f"# {n}\n{CODE}", "\n", wire.Hole(256), sampler="threshold") for n in range(many)]
    for job in long:
        scheduler.take(b"of " + job.job.encode(), job, 0.0, "greedy")
    scheduler.take(b"typist", infill("typed", CODE, "\n", sampler="threshold"), 0.0, "typist")
    heard, steps, rows = dict[str, wire.EngineMessage](), 0, 0
    while "typed" not in heard or not isinstance(heard["typed"], wire.Done):
        before = {live: live.steps for live in scheduler.jobs}
        heard |= {getattr(event, "job", ""): event for _, event in scheduler.step(clock)}
        rows += sum(live.rows for live, old in before.items() if live.user == "greedy" and live.steps > old)
        steps += 1
    assert steps <= alone(tiny, infill("typed", CODE, "\n", sampler="threshold")).steps + 1
    assert 0 < rows <= SHARE * (steps + 1)
    while scheduler.busy:
        heard |= {getattr(event, "job", ""): event for _, event in scheduler.step(clock)}
    assert [done([heard[job.job]]).holes for job in long[::7]] == [alone(tiny, job).holes for job in long[::7]]


def test_a_lone_users_jobs_all_run_in_each_step(tiny: NativeLlama) -> None:
    scheduler, clock = Scheduler(tiny), Clock()
    for n in range(4):
        scheduler.take(b"%d" % n, infill(f"{n}", "x = ", "\n", wire.Hole(96), sampler="threshold"), 0.0, "one")
    for _ in range(3):
        scheduler.step(clock)
    assert {live.steps for live in scheduler.jobs} == {3}
