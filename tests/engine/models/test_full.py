"""Families of full visibility compute what Transformers computes, and fill gaps by their own kind of canvas."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import models
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods.absorbing import SEAM
from caesura.engine.model import Model, ModelError, Run
from caesura.engine.models import audit
from caesura.engine.models.families import OPEN_DCODER
from caesura.engine.models.families import family as family_of
from caesura.engine.models.folder import read_config
from caesura.engine.models.llama import config as llama_config
from caesura.engine.models.llama import trunk
from caesura.engine.scheduler import Scheduler

from ...support.checkpoints import compared, masked
from ...support.checkpoints.tiny import CODE, alone, infill, laid_out, run
from ..test_scheduler import JOBS, keeps_the_contract

IDS = torch.randint(0, 400, (90,), generator=torch.Generator().manual_seed(1)).tolist()
BEFORE, AFTER = CODE[:200] + "\nx = ", "\ny = 1\n"
TWO = (wire.Hole(6), wire.Text(", "), wire.Hole(6, "span"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("full")
    return {family: masked.published(place / family, family) for family in masked.FAMILIES}


@pytest.fixture(params=["llada", "dream"])
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Model:
    """One of either shift."""
    return models.load(str(folders[request.param]), "cpu")


# What it computes


@pytest.mark.parametrize("family", masked.FAMILIES)
@pytest.mark.parametrize("gpu", [False, True])
def test_logits_are_those_of_transformers(
    folders: dict[str, Path], family: str, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU layers take another way."""
    for module in (trunk, llama_config):
        monkeypatch.setattr(module, "on_gpu", lambda device: gpu)
    theirs = masked.seen_by_all(masked.oracle(family), IDS)
    model = models.load(str(folders[family]), "cpu", exact=True)
    ours = compared.logits(model, IDS)
    assert ours.shape == (len(IDS), model.width)
    assert (ours - theirs[:, : model.width]).abs().max() < 1e-5 * theirs.abs().max()
    assert model.spec.shift == masked.SHIFT.get(family, 0)


@pytest.mark.parametrize("family", masked.FAMILIES)
def test_on_a_cpu_it_is_nearly_the_same_in_8_bits(folders: dict[str, Path], family: str) -> None:
    whole, coarse = (models.load(str(folders[family]), "cpu", exact=exact) for exact in (True, False))
    right, found = compared.logits(whole, IDS), compared.logits(coarse, IDS)
    assert (found - right).norm() < 0.15 * right.norm()


def test_a_slot_is_told_by_the_row_that_its_family_was_trained_with(folders: dict[str, Path]) -> None:
    for family in ("llada", "dream"):
        model = models.load(str(folders[family]), "cpu", exact=True)
        rows, at = compared.logits(model, IDS), [0, 5, 89]
        asked = model.denoise([Run(model.cache().lease([]), IDS, range(90), wanted=at)]).logits
        told = rows[[max(0, row - model.spec.shift) for row in at]]  # the first row tells itself
        torch.testing.assert_close(asked, told, atol=1e-5, rtol=0)


def test_canvases_of_a_batch_do_not_see_each_other(model: Model) -> None:
    kv, other = model.cache().lease([]), model.cache().lease([])
    runs = [Run(kv, IDS, range(90)), Run(kv, IDS[:40], range(40)), Run(other, IDS[20:], range(70), wanted=[3, 9])]
    apart = [compared.tensor(model.denoise([one])) for one in runs]
    assert torch.equal(compared.tensor(model.denoise(runs)), torch.cat(apart))


# How it fills


def test_all_of_the_text_is_on_the_canvas_between_what_a_text_begins_and_ends_with(model: Model) -> None:
    laid = laid_out(model, BEFORE, AFTER, wire.Hole(4), slots=4)
    encode = model.tokenizer.encode
    assert laid.context == []
    assert laid.canvas.tail[0] == model.tokenizer.find(masked.BOS)
    assert laid.canvas.head == [*encode(AFTER), model.tokenizer.find(masked.EOS)]
    assert model.tokenizer.decode(laid.canvas.tail) + laid.canvas.holes[0].forced.decode() == BEFORE
    long = laid_out(model, BEFORE, CODE, wire.Hole(4), slots=4).canvas
    assert long.head == encode(CODE)[: model.spec.max_context // 3], "a suffix that is cut does not end"
    assert long.rows <= model.spec.max_context + 4


@pytest.mark.parametrize(("prefix", "suffix"), JOBS.values(), ids=JOBS)
def test_every_job_keeps_the_contract(model: Model, prefix: str, suffix: str) -> None:
    for segments in ((wire.Hole(8),), TWO):
        answer = keeps_the_contract(
            run(Scheduler(model), [infill("j", prefix, suffix, *segments)])["j"], len(segments) // 2 + 1
        )
        assert answer.tokens.lookup == answer.tokens.left_to_right == 0


def shown(model: Model, job: wire.Infill, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Run]]:
    """The forwards of a job."""
    found, denoise = list[Sequence[Run]](), model.denoise

    def watched(runs: Sequence[Run]) -> Tensor:
        found.append(runs)
        return denoise(runs)

    monkeypatch.setattr(model, "denoise", watched)
    alone(model, job)
    return found


def test_what_is_fixed_is_in_every_forward_but_what_the_first_one_is_asked_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = shown(model, infill("j", BEFORE, AFTER, *TWO), monkeypatch)
    encode, bos, eos = model.tokenizer.encode, model.spec.start, model.spec.finish
    between, after = encode(", "), [*encode(AFTER), *eos]
    mask = model.spec.noise.mask_id if model.spec.noise is not None and model.spec.noise.absorbing else -1
    assert len(first) > 4, "several lengths"
    assert others
    for runs, hidden in ((first, SEAM), *((runs, 0) for runs in others)):
        for one in runs:
            ids = list(one.ids)
            tail = ids[: len(ids) - len(after) - len(between) - 2]
            assert tuple(tail[:1]) == bos
            assert model.tokenizer.decode([token for token in tail if token != mask]).startswith(BEFORE[:150])
            assert ids[len(ids) - len(after) + hidden :] == after[hidden:]
            assert ids[len(ids) - len(after) : len(ids) - len(after) + hidden] == [mask] * hidden
            assert len(one.ids) == len(one.positions)


def test_several_lengths_are_tried_and_the_one_that_fits_goes_on(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = shown(model, infill("j", BEFORE, AFTER, wire.Hole(12, "line")), monkeypatch)
    counts = [len(runs) for runs in forwards]
    assert counts[:2] == [10, 4]
    assert counts[-1] == 1
    assert all(sum(len(one.ids) for one in runs) <= model.spec.rows for runs in forwards)


def test_a_draft_is_one_more_length_and_is_kept_where_the_model_agrees(model: Model) -> None:
    once = alone(model, infill("j", BEFORE, AFTER, wire.Hole(6)))
    again = alone(model, infill("j", BEFORE, AFTER, wire.Hole(6), draft=(once.holes[0].text,)))
    assert again.stop == "complete"
    assert again.holes[0].text == once.holes[0].text
    assert again.steps <= once.steps


def test_no_special_token_is_written_and_none_is_read_out_of_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["open_dcoder"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "tokenizer.json"
    file = json.loads(path.read_text())
    for token in file["added_tokens"]:  # as in a tokenizer that does not call its mask special
        if token["content"] == masked.MASK:
            token["special"], token["content"] = False, "[MASK]"
    file["model"]["vocab"]["[MASK]"] = file["model"]["vocab"].pop(masked.MASK)
    path.write_text(json.dumps(file))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[MASK]"}))
    model = models.load(str(tmp_path), "cpu")
    mask = model.tokenizer.special("[MASK]")
    assert mask not in model.tokenizer.encode("a [MASK] b")
    assert model.tokenizer.decode(model.tokenizer.encode("a [MASK] b")) == "a [MASK] b"
    assert mask not in Vocabulary(model).allowed(b"", False)
    assert family_of(tmp_path, read_config(tmp_path)).traits is OPEN_DCODER


def test_a_cancel_in_mid_race_frees_every_length(model: Model) -> None:
    scheduler = Scheduler(model)
    scheduler.take(b"p", infill("a", BEFORE, AFTER, wire.Hole(12)), 0.0)
    scheduler.step(lambda: 0.0)
    ((_, event),) = scheduler.take(b"p", wire.Cancel("a"), 0.0)
    assert isinstance(event, wire.Failed)
    assert not scheduler.busy
    assert not scheduler.cache.full


def test_what_it_cannot_do_is_refused_in_a_sentence(model: Model, folders: dict[str, Path]) -> None:
    for fields, sentence in (({"method": "verify"}, "cannot verify drafts"), ({"prompt": "plain"}, "as inline")):
        (said,) = run(Scheduler(model), [infill("j", "a", "b", **fields)])["j"][-1:]
        assert isinstance(said, wire.Failed)
        assert sentence in said.message


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no mask token": ("dream", {"mask_token_id": None}, "names no valid mask token"),
    "other layers": ("llada", {"block_type": "sequential"}, "has block_type sequential; only llama"),
    "no rotary positions": ("llada", {"rope": False}, "has rope False; only True"),
    "fewer layers": ("llada", {"n_layers": 2}, "have no place in this model"),
    "another width": ("llada", {"mlp_hidden_size": 128}, "has shape"),
    "fewer experts": ("rnd1", {"num_experts": 9}, "has shape"),
    "clipped": ("llada_moe", {"clip_qkv": 8}, "has clip_qkv 8; only None"),
    "too short": ("a2d_qwen3", {"max_position_embeddings": 512}, "sees 512 tokens at once; 576 are needed"),
}


@pytest.mark.parametrize(("family", "change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_compute_is_refused_in_a_sentence(
    folders: dict[str, Path], tmp_path: Path, family: str, change: dict[str, Any], sentence: str
) -> None:
    for file in folders[family].iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    if family == "a2d_qwen3":
        config["mask_token_id"] = 3
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=sentence):
        models.load(str(tmp_path), "meta")


def test_a_checkpoint_is_shown_and_checked(folders: dict[str, Path]) -> None:
    for family, folder in folders.items():
        audit.check(folder)
        found = audit.summary(folder)
        trunk = masked.FAMILIES[family][2]["model_type"]
        assert (found["model_type"], found["layers"], found["skipped"]) == (trunk, 3, [])
