"""Mixtures of experts compute what their published code computes, in any company, and count in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from caesura import wire
from caesura.engine import memory, models
from caesura.engine.model import ModelError, Run
from caesura.engine.models.llama import published, trunk
from caesura.engine.models.llama.config import Mixture
from caesura.engine.models.llama.experts import choose
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import cpu

from ...support.checkpoints import compared, masked, sparse
from ...support.checkpoints.tiny import CODE, infill, run
from ..test_scheduler import keeps_the_contract

IDS = torch.randint(0, 400, (70,), generator=torch.Generator().manual_seed(1)).tolist()
KINDS = ["llada_moe", "rnd1", "all of LLaDA-MoE", "llada2"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("experts")
    found = {family: masked.published(place / family, family) for family in ("llada_moe", "rnd1")}
    found["all of LLaDA-MoE"] = sparse.published(place / "all", sparse.LLADA_MOE)
    return found | {"llada2": sparse.published(place / "llada2", sparse.LLADA2)}


def test_a_shared_expert_a_bias_in_the_weights_and_a_dense_layer_are_computed(folders: dict[str, Path]) -> None:
    right = sparse.reference(sparse.tensors(), sparse.LLADA_MOE, IDS)
    model = models.load(str(folders["all of LLaDA-MoE"]), "cpu", exact=True)
    found = compared.logits(model, IDS)
    assert (found - right[:, : model.width]).abs().max() < 1e-5 * right.abs().max()


def test_llada2_chooses_in_groups_and_turns_half_of_a_head_and_sees_blocks(folders: dict[str, Path]) -> None:
    model = models.load(str(folders["llada2"]), "cpu", exact=True)
    block = torch.arange(len(IDS)) // model.spec.block_size
    right = sparse.reference(sparse.tensors(), sparse.LLADA2, IDS, block[:, None] >= block)[:, : model.width]
    assert (model.spec.block_size, model.spec.shift) == (32, 0)
    for context in (0, 32, 64):
        found = compared.logits(model, IDS, context)
        assert (found - right[context:]).abs().max() < 1e-5 * right.abs().max()


@pytest.mark.parametrize("variant", [next(iter(cpu.variants()), "torch"), "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_canvas_gets_in_a_batch_what_it_would_get_alone(
    folders: dict[str, Path], kind: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit: also the experts that its rows choose."""
    monkeypatch.setenv("CAESURA_CPU", variant)
    model = models.load(str(folders[kind]), "cpu")
    kv, other = model.cache().lease([]), model.cache().lease([])
    runs = [Run(kv, IDS, range(70)), Run(kv, IDS[:1], range(1)), Run(other, IDS[20:], range(50), wanted=[3, 9])]
    assert torch.equal(model.denoise(runs).logits, torch.cat([model.denoise([one]).logits for one in runs]))


@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_as_on_a_gpu_and_in_8_bits_it_is_nearly_the_same(
    folders: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may choose another expert for a row, which changes that row alone; so bounds are for the median row."""
    right = compared.logits(models.load(str(folders[kind]), "cpu", exact=True), IDS)
    coarse = compared.logits(models.load(str(folders[kind]), "cpu"), IDS)
    monkeypatch.setattr(published, "FLOATS", {"cpu": "bf16"})
    half = compared.logits(models.load(str(folders[kind]), "cpu"), IDS)
    for found, bound in ((coarse, 0.08), (half, 0.03)):
        assert float(((found - right).norm(dim=1) / right.norm(dim=1)).median()) < bound
    assert not torch.equal(half, right)


@pytest.mark.parametrize("kind", KINDS)
def test_it_fills_a_gap(folders: dict[str, Path], kind: str) -> None:
    model = models.load(str(folders[kind]), "cpu")
    job = infill("j", CODE[:200] + "\nx = ", "\ny = 1\n", wire.Hole(6), wire.Text(", "), wire.Hole(6, "span"))
    answer = keeps_the_contract(run(Scheduler(model), [job])["j"], 2)
    assert (answer.stop, answer.tokens.lookup) == ("complete", 0)


def test_a_row_chooses_within_its_best_groups_by_biased_scores_and_is_weighted_by_the_others() -> None:
    mixture = Mixture(8, 2, 4, sigmoid=True, renormalised=True, scale=2.5, groups=4, best_groups=1)
    logits = torch.tensor([[3.0, -9, 2, 2, 2, 1, -9, -9]])  # the best expert is in a group that is not
    weights, chosen = choose(mixture, logits, None)
    assert chosen.tolist() == [[2, 3]]
    torch.testing.assert_close(weights, torch.tensor([[1.25, 1.25]]))
    bias = torch.tensor([0.0, 0, 0, 0, 9, 0, 0, 0])
    weights, chosen = choose(mixture, logits, bias)
    assert chosen.tolist() == [[4, 5]]
    torch.testing.assert_close(
        weights, torch.tensor([[2.0, 1.0]]).sigmoid() / torch.tensor([2.0, 1.0]).sigmoid().sum() * 2.5
    )


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "more experts than there are": ({"num_experts_per_tok": 17}, "takes 17 of 8 experts"),
    "none": ({"num_experts_per_tok": 0}, "impossible number or size"),
    "no number": ({"num_experts_per_tok": "all"}, "is damaged"),
    "no scale": ({"routed_scaling_factor": float("nan")}, "impossible number or size"),
    "unequal groups": ({"n_group": 3, "topk_group": 1}, "equal groups"),
    "groups of one": ({"n_group": 16, "topk_group": 1}, "equal groups"),
    "more groups than there are": ({"n_group": 2, "topk_group": 3}, "equal groups"),
    "too few in the groups": ({"n_group": 8, "topk_group": 1}, "takes 4 of 2 experts"),
    "other scores": ({"score_function": "tanh"}, "only softmax and sigmoid"),
    "far too many": ({"num_experts": 1 << 40}, "impossible number or size"),
    "no width": ({"moe_intermediate_size": None}, "is damaged"),
}


@pytest.mark.parametrize(("change", "sentence"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_mixture_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WeightsError, match=sentence):
        published.mixture("it", sparse.LLADA2 | change)


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({"expert_intermediate_size": 33}, "has shape"),
    "fewer experts": ({"num_experts": 15}, "have no place in this model"),
    "more experts": ({"num_experts": 17}, "has shape"),
    "no shared expert": ({"shared_expert_intermediate_size": None}, "6 tensors have no place in this model"),
    "an odd part of a head": ({"partial_rotary_factor": 0.1}, "even part"),
    "more than a head": ({"partial_rotary_factor": 1.5}, "even part"),
    "more experts than tensors": ({"num_experts": 1 << 20}, "lack tensors"),
}


@pytest.mark.parametrize(("change", "sentence"), OTHER.values(), ids=OTHER)
def test_a_config_of_other_files_is_refused_in_a_sentence(
    folders: dict[str, Path], tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    for file in folders["all of LLaDA-MoE"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(sparse.LLADA_MOE | change))
    with pytest.raises(ModelError, match=sentence):
        models.load(str(tmp_path), "meta")


def test_all_experts_count_in_memory_and_few_in_the_work_of_a_step(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read, a model that is too large is refused."""
    model = models.load(str(folders["rnd1"]), "cpu", exact=True)
    assert isinstance(model, BlockLlama)
    config, mixture = model.config, model.config.mixture
    assert mixture is not None
    stored = sum(file.stat().st_size for file in folders["rnd1"].glob("*.safetensors"))
    matrices = 2 * config.size(mixture.count) + config.size() + 2 * 416 * config.hidden_size
    assert 0.95 * stored < 4 * matrices < 1.05 * stored
    assert config.size(mixture.top) < config.size(mixture.count)
    monkeypatch.setattr(memory, "free", lambda device: memory.of_step(model.width) + 4 * matrices)
    monkeypatch.setattr(trunk, "BlockLlama", None)  # nothing is read
    with pytest.raises(ModelError, match=f"rnd1 needs {4 * matrices / memory.GIB:.1f} GiB for its weights"):
        models.load(str(folders["rnd1"]), "cpu", exact=True)
