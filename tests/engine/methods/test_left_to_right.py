"""The sampler `left_to_right`, which others are compared with: the best token of each pass, no drafts, no looking
ahead."""

import pytest

from caesura import wire
from caesura.engine.canvas.canvas import HoleState
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods._forward import Pass
from caesura.engine.methods.verify.search import Search
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.noise import Uniform
from caesura.engine.scheduler import Scheduler

from ...support.checkpoints.tiny import Scripted, alone, infill, run
from ..test_scheduler import JOBS, keeps_the_contract
from .test_search import Table, answer


@pytest.fixture(scope="module")
def vocabulary(tiny: NativeLlama) -> Vocabulary:
    return Vocabulary(tiny)


def single(tiny: NativeLlama, vocabulary: Vocabulary, after: str = "\n") -> tuple[Search, list[int], list[int]]:
    """A search of one hypothesis behind `return`, its tail and the suffix's tokens."""
    tail, head = tiny.tokenizer.encode("return"), tiny.tokenizer.encode(after)
    return Search(vocabulary, HoleState(True, 16), tail, head, 0, width=1), tail, head


def test_the_best_token_is_taken_even_where_another_begins_a_better_fill(
    tiny: NativeLlama, vocabulary: Vocabulary
) -> None:
    search, tail, head = single(tiny, vocabulary)
    greedy, better = tiny.tokenizer.encode(" 1")[-1], tiny.tokenizer.encode(" 2")[-1]
    table = Table(tiny.tokenizer.size)
    table.known[tuple(tail)] = {greedy: 0.5, better: 0.45}
    table.known[*tail, greedy] = {head[0]: 0.05}
    table.known[*tail, better] = {head[0]: 0.99}
    answer(search, table)
    assert search.tree.tokens(search.leader())[0] == greedy


def test_a_pass_is_a_token_and_what_is_shown_is_locked(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    search, tail, head = single(tiny, vocabulary)
    fill = tiny.tokenizer.encode(" left + right + 1")
    table = Table(tiny.tokenizer.size)
    table.chain([*tail, *fill, *head], 0.6, len(tail))
    rows = list[Pass]()
    shown = answer(search, table, rows.append)
    assert [len(r.ids) for r in rows] == [len(tail)] + [1] * len(fill), "the last pass says that it ends"
    assert [text for text, _ in shown[:-1]] == [tiny.tokenizer.decode(fill[: n + 1]) for n in range(len(fill))]
    assert all(locked == len(text) for text, locked in shown)
    assert search.text()[0] == " left + right + 1"


def test_it_ends_at_any_line_break_where_the_suffix_begins_with_one(tiny: NativeLlama, vocabulary: Vocabulary) -> None:
    breaks = vocabulary.line_ends
    search, tail, head = single(tiny, vocabulary)
    (other,) = [token for token in breaks if token != head[0] and tiny.tokenizer.pieces[token]][:1]
    word = tiny.tokenizer.encode(" 1")[-1]
    table = Table(tiny.tokenizer.size)
    table.known[tuple(tail)] = {word: 0.9}
    table.known[*tail, word] = {other: 0.6}
    answer(search, table)
    assert search.tree.tokens(search.leader()) == [word]


@pytest.mark.parametrize(("prefix", "suffix"), JOBS.values(), ids=JOBS)
def test_every_job_keeps_the_contract(tiny: NativeLlama, prefix: str, suffix: str) -> None:
    answered = keeps_the_contract(run(Scheduler(tiny), [job("j", prefix, suffix)])["j"])
    assert answered.tokens.canvas == answered.tokens.lookup == 0
    assert answered.steps - answered.tokens.left_to_right in (0, 1)


def job(name: str, prefix: str, suffix: str, **more: object) -> wire.Infill:
    return infill(name, prefix, suffix, sampler="left_to_right", **more)


def test_drafts_are_not_looked_at(tiny: NativeLlama) -> None:
    prefix, suffix = JOBS["repeats"]
    drafted = alone(tiny, job("j", prefix, suffix, draft=("unt(left)",)))
    plain = alone(tiny, job("j", prefix, suffix))
    assert (drafted.holes, drafted.steps, drafted.tokens) == (plain.holes, plain.steps, plain.tokens)


def test_in_a_batch_with_others_it_is_as_alone(tiny: NativeLlama) -> None:
    jobs = [job(f"{name} ours", *JOBS[name]) for name in ("mid-token", "repeats")]
    jobs += [infill(f"{name} {mode}", *JOBS[name], sampler=mode) for name in JOBS for mode in ("verify", "threshold")]
    together = run(Scheduler(tiny), jobs)
    for one in jobs[:2]:
        answered = together[one.job][-1]
        assert isinstance(answered, wire.Done)
        assert answered.holes == alone(tiny, one).holes


def test_several_holes_keep_the_contract(tiny: NativeLlama) -> None:
    segments = (wire.Hole(4), wire.Text(" = "), wire.Hole(4))
    answered = keeps_the_contract(
        run(Scheduler(tiny), [infill("j", "x = 1\n", "\n", *segments, sampler="left_to_right")])["j"], holes=2
    )
    assert 2 <= answered.tokens.left_to_right <= 8


def test_a_seed_draws_another_answer_and_the_same_one_again(tiny: NativeLlama) -> None:
    texts = [
        alone(tiny, job("j", "def area(width, height):\n    ret", "\n", seed=seed)).holes[0].text
        for seed in (*range(1, 9), 1)
    ]
    assert texts[0] == texts[-1]
    assert len(set(texts)) > 1


def test_a_model_that_cannot_verify_says_so(tiny: NativeLlama) -> None:
    scheduler = Scheduler(Scripted(tiny.tokenizer, [], Uniform(tiny.tokenizer.size)))
    (event,) = [message for _, message in scheduler.take(b"p", job("j", "a", "b"), 0.0)]
    assert isinstance(event, wire.Failed)
    assert "name another method" in event.message
