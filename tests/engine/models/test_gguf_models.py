"""Diffusion models in GGUF files compute what their folders compute, keep the bits of the file on a CPU, and fill."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import TokenType

from caesura.engine import models
from caesura.engine.model import Model, ModelError
from caesura.engine.models import audit
from caesura.engine.models.llama import published
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.weights import forms
from caesura.engine.weights.gguf.file import EXPERTS, LAYERS, OUTSIDE
from caesura.kernels import cpu
from caesura.wire import Hole

from ...support.checkpoints import compared, kept, masked
from ...support.checkpoints.tiny import alone, infill
from ..weights.test_gguf import permuted

IDS = torch.randint(0, 400, (60,), generator=torch.Generator().manual_seed(1)).tolist()
ARCHITECTURES = {"llada": "llada", "dream": "dream", "llada-moe": "llada_moe", "rnd1": "rnd1", "qwen2": "open_dcoder"}
DENSE = ("llada", "dream", "qwen2")
SIZES = masked.SIZES


@pytest.fixture(scope="module", autouse=True)
def sparse() -> Iterator[None]:
    """All layers have experts, as llama.cpp takes for granted."""
    with pytest.MonkeyPatch.context() as patch:
        for family in ("llada_moe", "rnd1"):
            trunk, sizes, said = masked.ALL[family]
            whole = {"moe_layer_freq": [1, 1, 1]} if "moe_layer_freq" in said else {}
            patch.setitem(masked.ALL, family, (trunk, sizes | {"mlp_only_layers": []}, said | whole))
        yield


@pytest.fixture(scope="module")
def folders(sparse: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By architecture: the hub's folder. Read only."""
    place = tmp_path_factory.mktemp("gguf")
    return {name: masked.published(place / family, family) for name, family in ARCHITECTURES.items()}


def metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or SIZES["hidden_size"] // config.num_attention_heads)
    writer.add_rope_freq_base(SIZES["rope_theta"])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    if hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def vocabulary(writer: gguf.GGUFWriter, folder: Path, mask: int | None) -> None:
    file = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(file["model"]["vocab"], key=file["model"]["vocab"].__getitem__)
    special = {token["content"] for token in file["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in file["model"]["merges"]])
    writer.add_bos_token_id(tokens.index(masked.BOS))
    writer.add_eos_token_id(tokens.index(masked.EOS))
    if mask is not None:
        writer.add_mask_token_id(mask)


def arrays(architecture: str, model: Any) -> dict[str, np.ndarray]:
    """The weights of the native model as llama.cpp's converter names and orders them."""
    names, found = LAYERS[architecture], dict[str, np.ndarray]()
    stored = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    for part, hub in OUTSIDE.items():
        if not (part == "output" and model.config.tie_word_embeddings):
            found[f"{part}.weight"] = stored[f"{hub}.weight"]
    for layer in range(SIZES["num_hidden_layers"]):
        for part, hub in names.items():
            for kind in ("weight", "bias"):
                key = f"model.layers.{layer}.{hub}.{kind}"
                if part in EXPERTS and kind == "weight":
                    found[f"blk.{layer}.{part}.weight"] = stacked(stored, f"model.layers.{layer}.mlp.experts", part)
                elif key in stored:
                    turned = architecture == "llada" and part in heads
                    found[f"blk.{layer}.{part}.{kind}"] = permuted(stored[key], heads[part]) if turned else stored[key]
    return found


def stacked(stored: dict[str, np.ndarray], at: str, part: str) -> np.ndarray:
    """The experts' matrices of a layer [experts, N, K]; Transformers has gate and up in one."""
    if part == "ffn_down_exps":
        return stored[f"{at}.down_proj"]
    gate, up = np.split(stored[f"{at}.gate_up_proj"], 2, axis=1)
    return np.ascontiguousarray(gate if part == "ffn_gate_exps" else up)


def written(
    path: Path,
    architecture: str,
    folder: Path,
    kind: Type = Type.F32,
    more: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    mask: int | None = 3,
    values: Type | None = None,
) -> Path:
    """`values` are of another type than all other matrices, if that is given."""
    model = masked.oracle(ARCHITECTURES[architecture])
    writer = gguf.GGUFWriter(path, architecture)
    metadata(writer, model.config)
    vocabulary(writer, folder, mask)
    more(writer)
    for name, array in arrays(architecture, model).items():
        small = array.ndim < 2 or "gate_inp" in name or array.shape[-1] % 32
        its = Type.F32 if small else values if values and "attn_v" in name else kind
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(array), its), raw_dtype=its)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_file_computes_what_the_folder_of_the_same_weights_computes(
    folders: dict[str, Path], tmp_path: Path, architecture: str
) -> None:
    path = written(tmp_path / "m.gguf", architecture, folders[architecture])
    ours, theirs = (models.load(str(place), "cpu", exact=True) for place in (path, folders[architecture]))
    expected = compared.logits(theirs, IDS)[:, : ours.width]
    assert (compared.logits(ours, IDS) - expected).abs().max() < 1e-5 * expected.abs().max()
    for trait in ("shift", "visibility", "lengths", "method", "prompt", "start", "finish"):
        assert getattr(ours.spec, trait) == getattr(theirs.spec, trait), trait
    assert ours.spec.noise == theirs.spec.noise
    assert audit.summary(path)["parameters"] == audit.summary(folders[architecture])["parameters"]
    audit.check(path)


def test_the_file_says_whether_logits_are_shifted(folders: dict[str, Path], tmp_path: Path) -> None:
    for shift in (False, True):
        path = written(
            tmp_path / f"{shift}.gguf",
            "dream",
            folders["dream"],
            more=lambda writer, shift=shift: writer.add_bool("diffusion.shift_logits", shift),
        )
        assert models.load(str(path), "meta").spec.shift == int(shift)


def test_a_file_without_a_mask_token_is_refused_or_autoregressive(folders: dict[str, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "dream", folders["dream"], mask=None)
    with pytest.raises(ModelError, match="m names no valid mask token"):
        models.load(str(path), "cpu")
    left_to_right = models.load(str(written(tmp_path / "q.gguf", "qwen2", folders["qwen2"], mask=None)), "cpu")
    assert left_to_right.spec.noise is None


# In the bits of the file


@pytest.mark.skipif(cpu.chosen() == "torch", reason="the C library is not built")
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q5_0])
@pytest.mark.parametrize("architecture", DENSE)
def test_on_a_cpu_a_file_keeps_its_bits(
    folders: dict[str, Path], tmp_path: Path, architecture: str, kind: Type
) -> None:
    """Others than 4 and 8 become 8."""
    path = written(tmp_path / "m.gguf", architecture, folders[architecture], kind)
    model, right = models.load(str(path), "cpu"), models.load(str(path), "cpu", exact=True)
    assert isinstance(model, NativeLlama)
    assert kept.forms(model) == {cpu.FORMS["q4" if kind == Type.Q4_0 else "q8"]}
    found, expected = (compared.logits(one, IDS) for one in (model, right))
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.skipif(cpu.chosen() == "torch", reason="the C library is not built")
@pytest.mark.parametrize("architecture", DENSE)
def test_matrices_of_a_layer_that_differ_in_type_keep_their_bits(
    folders: dict[str, Path], tmp_path: Path, architecture: str
) -> None:
    """As in half of the layers of Q4_K_M."""
    path = written(tmp_path / "m.gguf", architecture, folders[architecture], Type.Q4_0, values=Type.Q5_1)
    model, right = models.load(str(path), "cpu"), models.load(str(path), "cpu", exact=True)
    assert isinstance(model, NativeLlama)
    for qkv in kept.matrices(model)[::4]:
        assert [one.held.form for one in qkv.matrices] == [cpu.FORMS["q4"], cpu.FORMS["q8"]]
    found, expected = (compared.logits(one, IDS) for one in (model, right))
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_a_file_fills(folders: dict[str, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", "llada", folders["llada"], Type.Q4_0)
    model: Model = models.load(str(path), "cpu")
    assert alone(model, infill("j", "x = ", "\ny = 1\n", Hole(4))).stop == "complete"


@pytest.mark.parametrize("form", ["fp8", "nvfp4"])
def test_for_a_gpu_a_file_is_quantised_when_it_is_loaded(
    folders: dict[str, Path], tmp_path: Path, form: forms.Quantise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "FLOATS", {"cpu": "bf16"})
    path = written(tmp_path / "m.gguf", "llada-moe", folders["llada-moe"], Type.Q8_0)
    model = models.load(str(path), "cpu", quantise=form)
    assert isinstance(model, BlockLlama)
    for layer, _ in model._layers:
        assert type(layer.experts.gate_up).__name__ == f"{form.title()}Linear"
    assert compared.logits(model, IDS).isfinite().all()
