"""Small diffusion transformers compute their equations, and fill gaps between fixed text."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import models
from caesura.engine.canvas.layout import lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods._flanks import Flanks
from caesura.engine.methods.absorbing import SEAM
from caesura.engine.model import Model, ModelError, Run
from caesura.engine.models import audit
from caesura.engine.models.convert import convert
from caesura.engine.scheduler import Scheduler
from caesura.engine.weights.stored import WeightsError

from ...support.checkpoints import compared, dits
from ...support.checkpoints.tiny import CODE, alone, done, infill, run
from ..test_scheduler import JOBS, keeps_the_contract

IDS = torch.randint(0, dits.MASK, (60,), generator=torch.Generator().manual_seed(1)).tolist()
NOISY = [dits.MASK if row % 3 == 0 else token for row, token in enumerate(IDS)]
BEFORE, AFTER = CODE[:200] + "\nx = ", "\ny = 1\n"
TWO = (wire.Hole(6), wire.Text(", "), wire.Hole(6, "span"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("dits")
    return {family: dits.published(place / family, family) for family in dits.FAMILIES}


@pytest.fixture(scope="module", params=dits.FAMILIES)
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Model:
    return models.load(str(folders[request.param]), "cpu")


def agrees(ours: Tensor, theirs: Tensor) -> None:
    """All but the mask, which no row becomes."""
    assert ours[:, dits.MASK].eq(-torch.inf).all()
    assert (ours - theirs)[:, : dits.MASK].abs().max() < 1e-5 * theirs.abs().max()


# What they compute


def test_mdlm_computes_its_equations(folders: dict[str, Path]) -> None:
    model = models.load(str(folders["mdlm"]), "cpu", exact=True)
    agrees(compared.logits(model, NOISY), dits.oracle(dits.tensors(), NOISY, 0.0))


@pytest.mark.parametrize("block", [4, 16])
def test_bd3lm_computes_its_equations_in_blocks_cached_or_not(tmp_path: Path, block: int) -> None:
    model = models.load(str(dits.published(tmp_path, "bd3lm", block_size=block)), "cpu", exact=True)
    ids = [*IDS[:48], *NOISY[48:]]
    theirs = dits.oracle(dits.tensors(), ids, 0.0, block)
    for context in (0, 16, 48):
        agrees(compared.logits(model, ids, context), theirs[context:])


@pytest.mark.parametrize("scaled", [True, False])
def test_sedd_computes_its_equations(tmp_path: Path, scaled: bool) -> None:
    """Score ratios as published, times exp(sigma) - 1."""
    said = dits.FAMILIES["sedd"][1]["model"] | {"scale_by_sigma": scaled}
    model = models.load(str(dits.published(tmp_path, "sedd", model=said)), "cpu", exact=True)
    for ids, share in ((NOISY, 20 / 60), ([dits.MASK] * 30, 0.999)):
        sigma = -math.log(1 - share)
        factor = math.exp(sigma) - 1
        ratios = dits.oracle(dits.tensors(), ids, sigma) - (math.log(factor * dits.MASK) if scaled else 0.0)
        agrees(compared.logits(model, ids), ratios + math.log(factor))


def test_the_noise_level_is_read_off_the_canvas_where_training_showed_it(tmp_path: Path) -> None:
    model = models.load(str(dits.published(tmp_path, "mdlm", time_conditioning=True)), "cpu", exact=True)
    for ids, share in ((NOISY, 20 / 60), ([dits.MASK] * 30, 0.999), (IDS, 1e-5)):
        sigma = -math.log(1 - share)
        agrees(compared.logits(model, ids), dits.oracle(dits.tensors(), ids, sigma))


def test_canvases_of_a_batch_do_not_see_each_other(model: Model) -> None:
    kv = model.cache().lease([])
    runs = [Run(kv, NOISY, range(60)), Run(kv, NOISY[:40], range(40)), Run(kv, NOISY[9:], range(51), wanted=[3, 9])]
    assert torch.equal(model.denoise(runs).logits, torch.cat([model.denoise([one]).logits for one in runs]))


def test_rows_near_the_slots_have_the_same_logits_while_the_others_are_frozen(folders: dict[str, Path]) -> None:
    slots = [40, 41, 42]
    ids = [dits.MASK if row in slots else token for row, token in enumerate(IDS)]
    for family in ("mdlm", "sedd"):
        model = models.load(str(folders[family]), "cpu", exact=True)
        run, flanks = Run(model.cache().lease([]), ids, range(60), wanted=slots), Flanks(8, model.spec.shift)
        whole, vicinity = model.denoise([run]).logits, flanks.vicinity(run, slots)
        flanks.refresh(model, vicinity)
        narrow = model.denoise([flanks.narrowed(vicinity)]).logits
        assert len(vicinity.far) > 30
        agrees(narrow, whole.nan_to_num(neginf=0.0))


# How they fill


def test_text_lies_on_the_canvas_between_ends_of_text(folders: dict[str, Path]) -> None:
    model = models.load(str(folders["mdlm"]), "cpu")
    laid, end = (
        lay(model, Vocabulary(model), infill("j", BEFORE, AFTER, wire.Hole(4)), 4),
        model.tokenizer.find("<|endoftext|>"),
    )
    assert laid.context == []
    assert (laid.canvas.tail[0], laid.canvas.head) == (end, [*model.tokenizer.encode(AFTER), end])
    assert end not in model.tokenizer.encode("<|endoftext|>")


@pytest.mark.parametrize(("prefix", "suffix"), JOBS.values(), ids=JOBS)
def test_every_job_keeps_the_contract(model: Model, prefix: str, suffix: str) -> None:
    for segments in ((wire.Hole(8),), TWO):
        keeps_the_contract(run(Scheduler(model), [infill("j", prefix, suffix, *segments)])["j"], len(segments) // 2 + 1)


def test_a_batch_gives_each_job_what_it_gets_alone(model: Model) -> None:
    jobs = [infill(str(n), BEFORE[n:], AFTER, wire.Hole(4 + n)) for n in range(3)]
    together = run(Scheduler(model), jobs)
    for job in jobs:
        found, once = together[job.job][-1], alone(model, job)
        assert isinstance(found, wire.Done)
        assert (found.holes, found.steps) == (once.holes, once.steps)


@pytest.mark.parametrize("sampler", ["threshold", "ancestral", "first_hitting"])
def test_fixed_text_stays_in_every_forward(
    folders: dict[str, Path], sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.load(str(folders["sedd"]), "cpu", radius=0)
    job = infill("j", BEFORE, AFTER, wire.Hole(8), sampler=sampler)
    fixed, denoise, seen = lay(model, Vocabulary(model), job, 4).canvas, model.denoise, list[list[int]]()

    def watched(runs: Sequence[Run]) -> Tensor:
        seen.extend(list(run.ids) for run in runs)
        return denoise(runs)

    monkeypatch.setattr(model, "denoise", watched)
    answer, after = alone(model, job), len(fixed.head)
    assert len(seen) > answer.steps
    for ids in seen:
        assert ids[: len(fixed.tail)] == fixed.tail
        assert [token for token in ids[-after:] if token != dits.MASK] in (fixed.head, fixed.head[SEAM:])


@pytest.mark.parametrize("sampler", ["ancestral", "first_hitting"])
def test_a_seed_decides_what_is_drawn_alone_or_in_a_batch(folders: dict[str, Path], sampler: str) -> None:
    for family in dits.FAMILIES:
        model, hole = models.load(str(folders[family]), "cpu"), wire.Hole(12, "block")
        jobs = [infill(str(seed), BEFORE, AFTER, hole, sampler=sampler, seed=seed) for seed in range(3)]
        together = [done(events).holes for events in run(Scheduler(model), jobs).values()]
        assert together == [alone(model, job).holes for job in jobs]
        assert len({hole.text for (hole,) in together}) > 1


# What is refused

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no size": ("mdlm", {"hidden_dim": None}, "config.json is damaged"),
    "an odd head": ("mdlm", {"n_heads": 16}, "heads do not divide"),
    "another size": ("mdlm", {"cond_dim": 16}, "has the shape"),
    "fewer blocks": ("mdlm", {"n_blocks": 1}, "tensors without a place"),
    "too short": ("mdlm", {"model_length": 512}, "sees 512 tokens at once; 576 are needed"),
    "blocks of one": ("bd3lm", {"block_size": 1}, "has blocks of 1 rows; only 2 to 128"),
    "no modulation": ("bd3lm", {"adaln": False}, "has adaln False; only True is supported"),
    "a uniform graph": ("sedd", {"graph": {"type": "uniform"}}, "trained on the graph uniform; only absorb"),
    "no sizes": ("sedd", {"model": None}, "config.json of .* is damaged"),
    "another vocabulary": ("mdlm", {"vocab_size": 50258}, "has 400 tokens, and the model 50,257 besides its mask"),
}


@pytest.mark.parametrize(("family", "change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_compute_is_refused_in_a_sentence(
    folders: dict[str, Path], tmp_path: Path, family: str, change: dict[str, Any], sentence: str
) -> None:
    for file in folders[family].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(dits.FAMILIES[family][1] | change))
    with pytest.raises(ModelError, match=sentence):
        models.load(str(tmp_path), "meta")


def test_a_folder_without_a_tokenizer_says_which_one_it_needs(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["mdlm"].iterdir():
        if file.name not in ("vocab.json", "merges.txt"):
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ModelError, match=r"has no tokenizer; put GPT-2's vocab\.json and merges\.txt into /"):
        models.load(str(tmp_path), "meta")


def test_weights_in_a_pickle_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["sedd"].iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"are a pickle, which could run code; save them as safetensors\.$"):
        models.load(str(tmp_path), "meta")


def test_a_model_without_a_type_is_named_by_its_family_where_it_cannot_be_converted(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match="a model of type 'sedd', which cannot be converted"):
        convert(folders["sedd"], tmp_path / "converted", "fp8", lambda done, total: None)


def test_a_checkpoint_is_shown_and_checked(folders: dict[str, Path]) -> None:
    for family, folder in folders.items():
        audit.check(folder)
        found = audit.summary(folder)
        assert found["model_type"] == family
        assert (found["layers"], found["parameters"]) == (dits.BLOCKS, sum(t.numel() for t in dits.tensors().values()))
        assert any(name.endswith("rotary_emb.inv_freq") for name in found["skipped"])
