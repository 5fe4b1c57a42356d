"""The canvas of one model drafts for another that verifies: the answer is the verifier's, in fewer passes."""

import copy
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from caesura import wire
from caesura.engine import memory, models
from caesura.engine.device import Host
from caesura.engine.methods.verify import drafting
from caesura.engine.model import LoadChoice, Model, ModelError, Run
from caesura.engine.models.folder import read
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer

from ...support.checkpoints import masked, qwen
from ...support.checkpoints.tiny import CODE, Scripted, alone, done, infill, run, train_tokenizer

FAMILIES = ("dream", "open_dcoder", "dreamon", "sdar", "fast_dllm")
LINE = "zyxwvuqjbdfh"  # no token of it comes twice
SUFFIX = "\n"
FORCED = "9"  # the healed end of the prefix
GAP = ("def area(a, b):\n    c[" + FORCED, SUFFIX, wire.Hole(24, "line"))
BLOCK = ("def area(a, b):\n    ", "\n\nclass Place:\n", wire.Hole(12, "block"))
TWO = ("def area(a, b):\n    c[" + FORCED, SUFFIX, wire.Hole(6), wire.Text(" = "), wire.Hole(6))


class Sure(Scripted):
    """An autoregressive model that has one text in mind, whatever came before its tokens."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        super().__init__(tokenizer, [])
        self.spec, self.width = replace(self.spec, noise=None, method="verify", null_id=None), tokenizer.size
        tokens = [*tokenizer.encode(text), *tokenizer.encode(SUFFIX)[:1]]
        assert len(set(tokens)) == len(tokens)
        self.first, self.after = tokens[0], dict(itertools.pairwise(tokens))
        self.passes = 0

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        scores, of_canvases = super().forward(trees, canvases)
        rows = [token for run in trees for token in run.ids]
        for row, token in zip(scores.logits, rows, strict=True):
            row[self.after.get(token, self.first)] = self.sure
        self.passes += 1
        return scores, of_canvases


def answered(tokenizer: Tokenizer, by: Model | None) -> tuple[wire.Done, int]:
    """The answer of a sure model for which another one drafts, and its passes."""
    base = Sure(tokenizer, LINE)
    base.drafting = by
    return alone(base, infill("j", *GAP)), base.passes


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Diffusion models, and for each an autoregressive one with the same tokenizer."""
    place, found = tmp_path_factory.mktemp("pairs"), dict[str, Path]()
    for family in FAMILIES:
        found[family] = masked.published(place / family, family)
        base = found[f"{family}'s base"] = qwen.published(place / f"base-{family}")
        shutil.copy(found[family] / "tokenizer.json", base)
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> NativeLlama:
    name = str(request.param)
    model = models.load(str(folders[f"{name}'s base"]), "cpu", draft=str(folders[name]))
    assert isinstance(model, NativeLlama)
    return model


def without(pair: NativeLlama) -> NativeLlama:
    """The same model alone."""
    found = copy.copy(pair)
    found.drafting = None
    return found


def test_a_right_draft_saves_passes_and_a_wrong_one_changes_nothing(tiny: NativeLlama) -> None:
    encode = tiny.tokenizer.encode
    plain, passes = answered(tiny.tokenizer, None)
    assert plain.holes[0].text == LINE
    for text in (LINE, LINE[:8], LINE + "+ 1", "rubbish", ""):
        found, fewer = answered(tiny.tokenizer, Scripted(tiny.tokenizer, encode(FORCED + text)))
        right = len(encode(LINE)) if text.startswith(LINE) else len(encode(text)) if LINE.startswith(text) else 0
        assert found.holes == plain.holes, text
        assert found.tokens.canvas >= right
        assert fewer <= passes - right, "each right token saves a pass"


def test_a_wrong_draft_of_a_random_model_changes_no_answer(pair: NativeLlama) -> None:
    for number, gap in enumerate((BLOCK, TWO)):
        job = infill(f"j{number}", *gap)
        found, plain = alone(pair, job), alone(without(pair), job)
        assert [fill.text for fill in found.holes] == [fill.text for fill in plain.holes]
        assert found.steps > plain.steps, "it drafted"


def test_the_verifiers_own_canvas_does_not_draft_next_to_another_model(
    tiny: NativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, forward, drawn = copy.copy(tiny), tiny.forward, list[Run]()
    model.drafting = Scripted(tiny.tokenizer, tiny.tokenizer.encode("(left)"))

    def counted(trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        drawn.extend(canvases)
        return forward(trees, canvases)

    monkeypatch.setattr(model, "forward", counted)
    for before in ("", "value = 1\n"):  # with a text to look up neither drafts
        assert done(run(Scheduler(model), [infill("j", before + "value =", "\n", sampler="verify")])["j"]).steps
    assert not drawn


def test_drafts_in_a_batch_are_those_of_each_job_alone(pair: NativeLlama) -> None:
    jobs = [infill(f"j{number}", *gap) for number, gap in enumerate((GAP, TWO, BLOCK))]
    together = run(Scheduler(pair), jobs)
    for job in jobs:
        found, single = done(together[job.job]), alone(pair, job)
        assert (found.holes, found.steps, found.tokens) == (single.holes, single.steps, single.tokens)


def test_a_draft_is_shown_and_not_locked_before_the_base_has_read_it(tiny: NativeLlama) -> None:
    base = Sure(tiny.tokenizer, LINE)
    base.drafting = Scripted(tiny.tokenizer, tiny.tokenizer.encode(FORCED + LINE))
    first, *_ = run(Scheduler(base), [infill("j", *GAP)])["j"]
    assert isinstance(first, wire.Locked)
    assert (first.holes[0].text, first.holes[0].locked) == (LINE, ())


def test_before_the_first_pass_nothing_of_a_draft_is_an_answer(tiny: NativeLlama) -> None:
    base = Sure(tiny.tokenizer, LINE)
    base.drafting = Scripted(tiny.tokenizer, tiny.tokenizer.encode(FORCED + LINE))
    scheduler = Scheduler(base)
    scheduler.take(b"p", infill("j", *GAP, deadline_ms=1000.0), 0.0)
    scheduler.step(lambda: 0.0)
    assert scheduler.jobs[0].filling.fills()[0].text == LINE
    ((_, event),) = scheduler.expire(2.0)
    assert isinstance(event, wire.Done)
    assert (event.stop, event.holes[0].text, base.passes) == ("deadline", "", 0)


def test_a_job_that_ends_early_gives_its_context_back(tiny: NativeLlama) -> None:
    by = drafting.prepare(Scripted(tiny.tokenizer, [], sure=0.0))
    job = infill("j", *GAP)
    drafts = [by.draft(job) for _ in range(14)]
    assert all(drafts)
    assert by.draft(job) is None, "the search goes on alone"
    drafts.clear()
    assert by.draft(job) is not None


def test_a_long_context_is_read_in_chunks_and_kept_for_the_next_key(folders: dict[str, Path]) -> None:
    by = drafting.prepare(models.load(str(folders["sdar"]), "cpu"))
    by.model.spec = replace(by.model.spec, chunk=32)
    steps = list[int]()
    for _ in range(2):
        draft, count = by.draft(infill("j", CODE[:900] + GAP[0], *GAP[1:])), 0
        assert draft is not None
        while not draft.over:
            drafting.advance([draft])
            count += 1
        steps.append(count - draft.steps)
    assert steps[0] > 3
    assert steps[1] == 0


def test_what_does_not_fit_a_draft_is_searched_without_one(folders: dict[str, Path]) -> None:
    by = drafting.prepare(models.load(str(folders["dream"]), "cpu"))
    long = wire.Text("x = 1\n" * 2000)
    assert by.draft(infill("j", "a", "b", wire.Hole(4), long, wire.Hole(4))) is None


def test_pairs_that_cannot_be_are_refused_in_a_sentence(folders: dict[str, Path], tmp_path: Path) -> None:
    base, dream = str(folders["dream's base"]), str(folders["dream"])
    cases = {
        (dream, dream): "cannot verify drafts; take an autoregressive one as --model.",
        (base, base): "has no canvas and cannot draft; take a diffusion model as --draft.",
        (str(qwen.published(tmp_path / "stranger")), dream): "they have different tokenizers; take models of one kind.",
        (base, str(tmp_path / "nothing")): "nothing",
    }
    for (name, draft), sentence in cases.items():
        with pytest.raises(ModelError) as error:
            models.load(name, "cpu", draft=draft)
        assert sentence in str(error.value)


def test_a_base_with_fewer_tokens_and_other_ids_takes_drafts(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = qwen.published(tmp_path / "fewer")
    train_tokenizer(folder / "tokenizer.json", more=[masked.BOS, masked.MASK, "<|more|>"])
    base = models.load(str(folder), "cpu", draft=str(folders["dream"]))
    job = infill("j", *BLOCK)
    assert isinstance(base, NativeLlama)
    assert [fill.text for fill in alone(base, job).holes] == [fill.text for fill in alone(without(base), job).holes]


def test_both_models_are_counted_before_either_is_read(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, dream, needs = str(folders["dream's base"]), str(folders["dream"]), list[int]()
    for name in (base, dream):
        read(name, LoadChoice("cpu", 512, beside=needs.append))
    together = sum(needs)
    monkeypatch.setattr(Host, "free", lambda self: together)
    assert models.load(base, "cpu", 512, draft=dream)
    monkeypatch.setattr(Host, "free", lambda self: together - 1)
    monkeypatch.setattr("caesura.engine.weights.mapped.raw", lambda entry: pytest.fail("it was read"))
    with pytest.raises(ModelError, match=r"^dream needs .* GiB"):
        models.load(base, "cpu", 512, draft=dream)
    assert memory.free(Host()) == together - 1, "nothing counts as taken after that"
