"""DiffusionGemma in a GGUF file computes what its folder computes, reads the same tokens, and fills."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import TokenType
from safetensors.torch import load_file, save_file
from torch import Tensor

from caesura.engine import models
from caesura.engine.model import ModelError, Quantise, Run
from caesura.engine.models import audit
from caesura.engine.models.convert import convert
from caesura.engine.models.diffusion_gemma import model as diffusion_gemma
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.engine.noise import Uniform
from caesura.kernels.linear import Dense
from caesura.wire import Hole

from ...support.checkpoints import gemma
from ...support.checkpoints.tiny import CODE, alone, infill
from ..weights.test_gguf import spoilt

ARCHITECTURE = "diffusion-gemma"
NAMES = {  # of a layer's tensors, as llama.cpp's converter writes them, by those of the hub
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "layer_scalar": "layer_output_scale.weight",
}
OUTSIDE = {
    "model.decoder.embed_tokens.weight": "token_embd.weight",
    "model.decoder.norm.weight": "output_norm.weight",
    "model.decoder.self_conditioning.pre_norm.weight": "self_cond_pre_norm.weight",
    "model.decoder.self_conditioning.gate_proj.weight": "self_cond_gate.weight",
    "model.decoder.self_conditioning.up_proj.weight": "self_cond_up.weight",
    "model.decoder.self_conditioning.down_proj.weight": "self_cond_down.weight",
}
MORE = Callable[[gguf.GGUFWriter], object]
CANVAS = [7 * i % 500 + 20 for i in range(16)]
PROMPT = [2, *(11 * i % 500 + 20 for i in range(30))]  # longer than the window


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return gemma.published(tmp_path_factory.mktemp("hub") / "tiny")


@pytest.fixture(scope="module")
def file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return written(tmp_path_factory.mktemp("gguf") / "tiny.gguf", folder)


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for part in folder.glob("*.safetensors") for name, tensor in load_file(part).items()}


def renamed(name: str) -> str | None:
    """A published name in GGUF; None for the vision tower, which has its own file there."""
    if name in OUTSIDE or "vision" in name:
        return OUTSIDE.get(name)
    layer, its = name.split(".layers.")[1].split(".", 1)
    return f"blk.{layer}.{'enc_' if 'encoder' in name else ''}{NAMES[its]}"


def metadata(writer: gguf.GGUFWriter, folder: Path) -> None:
    text: dict[str, Any] = gemma.TEXT
    kinds, rope = text["layer_types"], text["rope_parameters"]
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(len(kinds))
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv([1 if kind == "full_attention" else 2 for kind in kinds])
    writer.add_array(f"{ARCHITECTURE}.attention.sliding_window_pattern", [kind[0] == "s" for kind in kinds])
    writer.add_sliding_window(text["sliding_window"])
    for end, width in (("", text["global_head_dim"]), ("_swa", text["head_dim"])):
        for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            writer.add_uint32(f"{ARCHITECTURE}.{key}{end}", width)
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_final_logit_softcapping(30.0)
    writer.add_expert_count(text["num_experts"])
    writer.add_expert_used_count(text["top_k_experts"])
    writer.add_expert_feed_forward_length(text["moe_intermediate_size"])
    writer.add_uint32(f"{ARCHITECTURE}.attention.shared_kv_layers", 0)
    writer.add_uint32(f"{ARCHITECTURE}.embedding_length_per_layer_input", 0)
    writer.add_causal_attention(False)
    writer.add_uint32("diffusion.canvas_length", gemma.CONFIG["canvas_length"])
    writer.add_uint32("diffusion.eb_max_steps", 12)


def vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    file = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(file["model"]["vocab"], key=file["model"]["vocab"].__getitem__)
    kinds = dict.fromkeys(gemma.BYTES, TokenType.BYTE)
    kinds |= {token["content"]: TokenType.CONTROL for token in file["added_tokens"] if token["special"]}
    kinds |= {gemma.UNFLAGGED: TokenType.USER_DEFINED, "<eos>": TokenType.NORMAL}  # so in published files
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([kinds.get(token, TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in file["model"]["merges"]])
    for role, token in (("bos", "<bos>"), ("eos", "<eos>"), ("padding", "<pad>"), ("unknown", "<unk>")):
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", tokens.index(token))


def written(
    path: Path,
    folder: Path,
    kind: Type = Type.F32,
    more: MORE = lambda writer: None,
    dropped: Sequence[str] = (),
    factors: Sequence[float] = (*[1.0] * 4, *[1e30] * 12),
) -> Path:
    """The file of a folder. Matrices that have no whole blocks stay in float32, as norms and scales do."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    metadata(writer, folder)
    vocabulary(writer, folder)
    more(writer)
    for name, tensor in tensors(folder).items():
        theirs = renamed(name)
        if theirs is not None and theirs not in dropped:
            small = tensor.ndim < 2 or "gate_inp" in theirs or tensor.shape[-1] % 32
            its = Type.F32 if small else kind
            writer.add_tensor(theirs, gguf.quantize(tensor.numpy(), its), raw_dtype=its)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def loaded(path: Path, quantise: Quantise | None = None) -> DiffusionGemma:
    model = models.load(str(path), "cpu", exact=True, quantise=quantise)
    assert isinstance(model, DiffusionGemma)
    return model


def two_steps(model: DiffusionGemma) -> Tensor:
    """Logits of a first step after a context, and of one conditioned on it."""
    kv = model.cache().lease(PROMPT)
    model.prefill(PROMPT, kv)
    positions = range(len(PROMPT), len(PROMPT) + len(CANVAS))
    first = model.denoise([Run(kv, CANVAS, positions)]).logits
    return torch.cat((first, model.denoise([Run(kv, CANVAS, positions, conditioning=model.condition(first))]).logits))


def as_stored(folder: Path, target: Path, kind: Type) -> Path:
    """The folder with the values that a file in a type has."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    for path in folder.glob("*.safetensors"):
        found = load_file(path)
        for name, tensor in found.items():
            if tensor.ndim > 1 and "router" not in name and tensor.shape[-1] % 32 == 0:
                found[name] = torch.from_numpy(gguf.dequantize(gguf.quantize(tensor.numpy(), kind), kind))
        save_file(found, target / path.name)
    return target


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.Q8_0])
def test_a_file_computes_what_a_folder_of_its_values_computes(folder: Path, tmp_path: Path, kind: Type) -> None:
    ours = loaded(written(tmp_path / "m.gguf", folder, kind))
    theirs = loaded(as_stored(folder, tmp_path / "hub", kind))
    expected = two_steps(theirs)
    assert (two_steps(ours) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert replace(ours.spec, ends=theirs.spec.ends) == theirs.spec
    assert ours.spec.ends == theirs.spec.ends | {gemma.CONTROL.index(gemma.UNFLAGGED)}


def test_eight_bits_change_little(folder: Path, tmp_path: Path) -> None:
    found, expected = (two_steps(loaded(one)) for one in (written(tmp_path / "m.gguf", folder, Type.Q8_0), folder))
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()  # 0.05; in bfloat16 0.013


def test_a_file_reads_the_tokens_that_the_folder_reads(folder: Path, file: Path) -> None:
    ours, theirs = (models.load(str(one), "meta").tokenizer for one in (file, folder))
    assert ours.pieces == theirs.pieces
    for text in (CODE, f"a {gemma.PLAIN} b\n\n\n  é 中 <eos> {gemma.UNFLAGGED} <0x41>"):
        assert ours.encode(text) == theirs.encode(text)


def test_the_schedule_is_that_of_the_file_or_the_published_one(folder: Path, tmp_path: Path, file: Path) -> None:
    def more(writer: gguf.GGUFWriter) -> None:
        for name, value in (("t_min", 0.3), ("t_max", 0.9), ("entropy_bound", 0.2), ("confidence_threshold", 0.01)):
            writer.add_float32(f"diffusion.eb_{name}", value)
        writer.add_uint32("diffusion.eb_stability_threshold", 2)

    for path, right in ((file, (12, 0.4, 0.8, 0.1, 1, 0.005)), (None, (12, 0.3, 0.9, 0.2, 2, 0.01))):
        noise = models.load(str(path or written(tmp_path / "m.gguf", folder, more=more)), "meta").spec.noise
        assert isinstance(noise, Uniform)
        assert tuple(vars(noise.schedule).values()) == right
        assert noise.canvas == gemma.CONFIG["canvas_length"]


def test_a_file_is_checked_summed_up_and_fills(folder: Path, file: Path) -> None:
    audit.check(file)
    ours, theirs = audit.summary(file), audit.summary(folder)
    assert [ours[key] for key in ("layers", "parameters")] == [theirs[key] for key in ("layers", "parameters")]  # type: ignore[literal-required]
    assert alone(loaded(file), infill("j", "x = ", "\ny = 1\n", Hole(4))).stop


@pytest.mark.parametrize("form", ["fp8", "nvfp4"])
def test_a_file_kept_in_fewer_bits_computes_what_a_converted_folder_computes(
    folder: Path, tmp_path: Path, form: Quantise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on a GPU activations in FP8 where weights are, as the folder prescribes."""
    ours = loaded(written(tmp_path / "m.gguf", folder, Type.Q8_0), form)
    convert(as_stored(folder, tmp_path / "hub", Type.Q8_0), tmp_path / "out", form, lambda done, total: None)
    expected = two_steps(loaded(tmp_path / "out"))
    assert (two_steps(ours) - expected).abs().max() <= 1e-5 * expected.abs().max()
    layer = ours.weights.layers[0]
    for matrix in (layer.qkv, layer.gate_up, layer.expert_gate_up, layer.expert_down):
        assert type(matrix).__name__ == f"{form.title()}Linear"
    assert isinstance(ours.weights.conditioner.gate_up, Dense)
    monkeypatch.setattr(diffusion_gemma, "fused", lambda _, *, fp8: fp8)
    for layer in models.load(str(tmp_path / "m.gguf"), "cpu", quantise=form).weights.layers:  # type: ignore[attr-defined]
        assert {layer.qkv.rounds, layer.o.rounds, layer.expert_down.rounds} == {form == "fp8"}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no self-conditioning": ({"dropped": ("self_cond_up.weight",)}, r"no tensor self_conditioning\.up_proj\.weight"),
    "a layer that lacks one": ({"dropped": ("blk.1.attn_v.weight",)}, r"no tensor layers\.1\.self_attn\.v_proj"),
    "other rotations": ({"factors": [1.0, 8.0] * 8}, "scales its rotations"),
    "of another width": ({"factors": [1.0] * 4}, "scales its rotations"),
    "another vocabulary": ({"more": lambda w: w.add_tokenizer_model("llama")}, "kind 'llama'; DiffusionGemma's is"),
    "heads of several widths": (
        {"more": lambda w: w.add_uint32(f"{ARCHITECTURE}.attention.value_length", 16)},
        "heads that are not DiffusionGemma's",
    ),
    "layers that share": (
        {"more": lambda w: w.add_uint32(f"{ARCHITECTURE}.attention.shared_kv_layers", 1)},
        "has attention.shared_kv_layers, which DiffusionGemma does not have",
    ),
    "too few layers told": ({"more": lambda w: w.add_head_count_kv([1])}, r"no usable attention\.head_count_kv"),
    "no canvas": ({"more": lambda w: w.add_string("diffusion.canvas_length", "?")}, r"no usable diffusion\.canvas"),
    "no steps": ({"more": lambda w: w.add_uint32("diffusion.eb_max_steps", 0)}, "outside the possible range"),
    "a tensor of another model": (
        {"more": lambda w: w.add_tensor("blk.0.inp_gate.weight", np.ones((2, 32), np.float32))},
        "'blk.0.inp_gate.weight', which has no place",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_kind_of_file_is_refused_in_a_sentence(
    folder: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, reason = REFUSED[case]
    path = written(tmp_path / "m.gguf", folder, **changes)
    with pytest.raises(ModelError, match=reason) as error:
        models.load(str(path), "meta")
    assert "\n" not in str(error.value)


def test_a_file_has_no_form_for_a_cpu(file: Path) -> None:
    with pytest.raises(ModelError, match="tiny cannot be computed in int8; choose fp8 or nvfp4"):
        models.load(str(file), "cpu", quantise="int8")


def test_damaged_files_are_read_or_refused_in_a_sentence(file: Path, tmp_path: Path) -> None:
    whole, rng = file.read_bytes(), random.Random(5)
    start = whole.index(b"\0" * 4, whole.index(b"token_embd"))
    sentences = [outcome(tmp_path / "m.gguf", spoilt(whole, start, rng)) for _ in range(60)]
    assert 3 < sentences.count("") < 57
    assert all(not said or (said.endswith(".") and len(said) < 600) for said in sentences)


def outcome(path: Path, raw: bytes) -> str:
    """What is said against a file, or nothing where it is loaded."""
    path.write_bytes(raw)
    try:
        models.load(str(path), "meta")
    except ModelError as error:
        return str(error)
    return ""
