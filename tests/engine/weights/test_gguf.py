"""GGUF files: what they hold by the hub's names, their tokenizer, and files that are damaged or of another kind."""

import json
import random
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
from gguf import GGMLQuantizationType as Type
from gguf import TokenType

from caesura.engine import models
from caesura.engine.model import ModelError, Run
from caesura.engine.scores import told
from caesura.engine.tokens.tokenizer import TokenizerError
from caesura.engine.tokens.tokenizer_file import LLAMA3, QWEN
from caesura.engine.weights.gguf.file import GGUF
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import cpu

from ...support.checkpoints import trained

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS, ROWS = 64, 4, 2, 96, 2, 400
HEAD = HIDDEN // HEADS
GATED = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD, HIDDEN),
    "attn_v": (KV_HEADS * HEAD, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "attn_q_norm": (HEAD,),
    "attn_k_norm": (HEAD,),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
KINDS = {  # by architecture: the names of a layer, and which of them have biases
    "llama": (GATED, ()),
    "qwen2": (GATED, ("attn_q", "attn_k", "attn_v")),
    "qwen3": ({**GATED, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}, ()),
    "starcoder2": (
        {name: hub for name, hub in GATED.items() if name[:3] != "ffn"}
        | {"ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up", "ffn_down"),
    ),
}
Arrays = dict[str, np.ndarray]  # by GGUF's names


def weights(architecture: str) -> tuple[Arrays, dict[str, str]]:
    """Random weights as the hub has them, by the names of GGUF, and the hub's name of each."""
    names, biased = KINDS[architecture]
    rng, arrays, hub = np.random.default_rng(7), Arrays(), dict[str, str]()
    for layer in range(LAYERS):
        for name, its in names.items():
            for kind in ("weight", *(["bias"] if name in biased else [])):
                shape = SHAPES.get(name, (HIDDEN,))
                key = f"blk.{layer}.{name}.{kind}"
                hub[key] = f"model.layers.{layer}.{its}.{kind}"
                arrays[key] = rng.standard_normal(shape[:1] if kind == "bias" else shape).astype(np.float32)
    for key, its, shape in (
        ("token_embd.weight", "model.embed_tokens.weight", (ROWS, HIDDEN)),
        ("output_norm.weight", "model.norm.weight", (HIDDEN,)),
    ):
        hub[key], arrays[key] = its, rng.standard_normal(shape).astype(np.float32)
    if architecture == "starcoder2":
        hub["output_norm.bias"] = "model.norm.bias"
        arrays["output_norm.bias"] = rng.standard_normal(HIDDEN).astype(np.float32)
    return arrays, hub


def permuted(array: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp stores the rows of rotated heads: the two halves of each in turn."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def metadata(writer: gguf.GGUFWriter, architecture: str) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    (writer.add_layer_norm_eps if architecture == "starcoder2" else writer.add_layer_norm_rms_eps)(1e-6)


def tokens(writer: gguf.GGUFWriter, folder: Path, expression: str = QWEN, before: str = "qwen2") -> Path:
    """A trained tokenizer in the file's metadata, and the tokenizer.json that says the same."""
    path = trained.train_tokenizer(folder / "tokenizer.json", expression)
    file = json.loads(path.read_text())
    vocabulary = sorted(file["model"]["vocab"], key=file["model"]["vocab"].__getitem__)
    special = {token["content"] for token in file["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(before)
    writer.add_token_list([*vocabulary, "<tool_call>", "[PAD401]"])
    kinds = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in vocabulary]
    writer.add_token_types([*kinds, TokenType.USER_DEFINED, TokenType.UNUSED])
    writer.add_token_merges([" ".join(merge) for merge in file["model"]["merges"]])
    writer.add_eos_token_id(vocabulary.index("<|endoftext|>"))
    writer.add_uint32("tokenizer.ggml.fim_sep_token_id", vocabulary.index("<file_sep>"))
    return path


def named(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")


def stored(arrays: Mapping[str, np.ndarray], kind: Type) -> dict[str, tuple[np.ndarray, Type]]:
    """Matrices in a type, vectors in float32, as llama.cpp writes them."""
    return {
        name: (gguf.quantize(array, kind), kind) if array.ndim == 2 else (array, Type.F32)
        for name, array in arrays.items()
    }


def write(
    path: Path,
    architecture: str = "qwen2",
    kind: Type = Type.F16,
    more: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    change: Callable[[Arrays], object] = lambda arrays: None,
    vocabulary: tuple[str, str] | None = None,
) -> Arrays:
    """A tiny model in a file; returns what it stands for, by the hub's names."""
    arrays, hub = weights(architecture)
    change(arrays)
    expected = {hub.get(name, name): np.copy(array) for name, array in arrays.items()}
    if architecture == "llama":
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
        arrays = {n: permuted(a, heads[p]) if (p := n.split(".")[-2]) in heads else a for n, a in arrays.items()}
    writer = gguf.GGUFWriter(path, architecture)
    metadata(writer, architecture)
    if vocabulary is not None:
        tokens(writer, path.parent, *vocabulary)
    more(writer)
    for name, (array, its) in stored(arrays, kind).items():
        writer.add_tensor(name, array, raw_dtype=its)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


# What a file holds


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q5_1, Type.Q5_0, Type.Q4_1, Type.Q4_0])
@pytest.mark.parametrize("architecture", KINDS)
def test_tensors_have_the_names_and_values_of_the_hub(tmp_path: Path, architecture: str, kind: Type) -> None:
    expected = write(tmp_path / "m.gguf", architecture, kind)
    file = GGUF(tmp_path / "m.gguf")
    assert set(file.tensors) == expected.keys()
    for name in file.tensors:
        tensor = file.tensors.floats(name)
        its = kind if tensor.ndim == 2 else Type.F32
        exact = gguf.dequantize(gguf.quantize(expected[name], its), its)
        assert np.array_equal(tensor, exact), name


@pytest.mark.parametrize("kind", [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS])
def test_k_quants_are_restored(tmp_path: Path, kind: Type) -> None:
    """The library does not make them: any bytes are some weights."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(3).integers(0, 60, (700, 2 * size), dtype=np.uint8)
    path = tmp_path / "m.gguf"
    write(
        path,
        change=lambda arrays: arrays.pop("token_embd.weight"),
        more=lambda writer: writer.add_tensor("token_embd.weight", raw, raw_dtype=kind),
    )
    found = GGUF(path).tensors.floats("model.embed_tokens.weight")
    assert found.shape == (700, 512)
    np.testing.assert_array_equal(found, gguf.dequantize(raw, kind))


@pytest.mark.parametrize("architecture", KINDS)
def test_the_configuration_is_in_the_words_of_the_hub(tmp_path: Path, architecture: str) -> None:
    write(tmp_path / "m.gguf", architecture)
    epsilon = "norm_epsilon" if architecture == "starcoder2" else "rms_norm_eps"
    assert GGUF(tmp_path / "m.gguf").config == {
        "model_type": architecture,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "intermediate_size": INNER,
        epsilon: 1e-6,
        "rope_theta": 100000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }


def test_heads_may_be_of_another_width_and_the_output_untied(tmp_path: Path) -> None:
    write(
        tmp_path / "m.gguf",
        more=lambda writer: writer.add_key_length(32),
        change=lambda arrays: arrays.update({"output.weight": np.ones((ROWS, HIDDEN), np.float32)}),
    )
    file = GGUF(tmp_path / "m.gguf")
    assert (file.config["head_dim"], file.config["tie_word_embeddings"]) == (32, False)
    assert np.array_equal(file.tensors.floats("lm_head.weight"), np.ones((ROWS, HIDDEN)))


def test_biases_of_rotated_heads_are_ordered_as_their_rows(tmp_path: Path) -> None:
    bias = np.arange(HIDDEN, dtype=np.float32)
    write(tmp_path / "m.gguf", "llama", change=lambda arrays: arrays.update({"blk.1.attn_q.bias": bias}))
    assert np.array_equal(GGUF(tmp_path / "m.gguf").tensors.floats("model.layers.1.self_attn.q_proj.bias"), bias)


def llama3(factor: float) -> np.ndarray:
    """The factor of each rotation, as llama.cpp's converter computes it from the hub's rope_scaling."""
    made = []
    for i in range(0, HEAD, 2):
        wave = 2 * np.pi * 100000.0 ** (i / HEAD)
        smooth = (8192 / wave - 1) / (4 - 1)
        made.append(1 if wave < 8192 / 4 else factor if wave > 8192 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(made, np.float32)


def test_scaled_rotations_are_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, "llama", change=lambda arrays: arrays.update({"rope_freqs.weight": llama3(32.0)}))
    assert GGUF(path).config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in GGUF(path).tensors

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32768)

    write(path, more=yarn)
    told = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert GGUF(path).config["rope_scaling"] == told


# The tokenizer

TEXTS = [
    "def f(self, count):\n    return self.item[12345]  # ünï 日本\r\n",
    *("don't  'LL \t\n\n x", "a<tool_call>b<|endoftext|>", "e\u0301 😀", "[PAD401]", "  \n   )\n\n"),
]


@pytest.mark.parametrize(
    ("before", "expression"),
    [("qwen2", QWEN), ("llama-bpe", LLAMA3), ("smollm", ""), ("starcoder", ""), ("refact", ""), ("codeshell", "")],
)
def test_text_has_the_tokens_of_the_equivalent_tokenizer_json(tmp_path: Path, before: str, expression: str) -> None:
    write(tmp_path / "m.gguf", vocabulary=(expression, before))
    tokenizer = GGUF(tmp_path / "m.gguf").tokenizer()
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    peer.add_tokens([tokenizers.AddedToken("<tool_call>", normalized=False)])
    peer.encode_special_tokens = True
    for text in TEXTS:
        assert tokenizer.encode(text) == peer.encode(text).ids
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_plain_pre_tokens_keep_numbers_together(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", vocabulary=("", "gpt-2"))
    tokenizer = GGUF(tmp_path / "m.gguf").tokenizer()
    assert tokenizer.pretokens("a 123 b") == [0, 1, 5]
    assert tokenizer.decode(tokenizer.encode("a 123 b")) == "a 123 b"


def test_tokens_keep_their_ids_and_their_parts(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", vocabulary=(QWEN, "qwen2"))
    file = GGUF(tmp_path / "m.gguf")
    tokenizer = file.tokenizer()
    assert file.roles == {"eos": "<|endoftext|>", "fim_sep": "<file_sep>"}
    assert [tokenizer.pieces[tokenizer.special(name)] for name in file.roles.values()] == [b"", b""]
    assert tokenizer.special("<tool_call>") == trained.VOCABULARY  # text to the model, in one token
    assert tokenizer.find("[PAD401]") is None
    assert tokenizer.size == trained.VOCABULARY + 1


def test_a_token_with_a_part_never_comes_of_text(tmp_path: Path) -> None:
    """Some converters call it an ordinary token."""
    path = tmp_path / "m.gguf"
    write(path, vocabulary=(QWEN, "qwen2"), more=lambda w: w.add_uint32("tokenizer.ggml.eot_token_id", 400))
    tokenizer = GGUF(path).tokenizer()
    assert 400 not in tokenizer.encode("a<tool_call>b")
    assert tokenizer.pieces[400] == b""


# Parts


def split(folder: Path) -> list[Path]:
    """A model in three files."""
    writer = gguf.GGUFWriter(folder / "m.gguf", "qwen2", split_max_tensors=9)
    metadata(writer, "qwen2")
    tokens(writer, folder)
    for name, (array, kind) in stored(weights("qwen2")[0], Type.F16).items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def test_any_part_of_a_split_model_stands_for_all(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    expected = write(tmp_path / "whole" / "m.gguf")
    parts = split(tmp_path)
    assert len(parts) == 3
    for part in parts:
        file = GGUF(part)
        assert set(file.tensors) == expected.keys()
        name = "model.layers.1.mlp.down_proj.weight"
        assert np.array_equal(file.tensors.floats(name), expected[name].astype(np.float16))
        assert file.tokenizer().size == trained.VOCABULARY + 1


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[1].unlink()
    with pytest.raises(WeightsError, match=r"m-00002-of-00003\.gguf is missing.*\.$"):
        GGUF(parts[0])


def test_a_part_under_another_name_or_of_another_model_is_refused(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(WeightsError, match="same tensor in two parts"):
        GGUF(parts[0])
    write(parts[2])
    with pytest.raises(WeightsError, match=r"00003-of-00003\.gguf is not a part"):
        GGUF(parts[0])
    with pytest.raises(WeightsError, match="one of 3 parts and is not called NAME-00001-of-00003"):
        GGUF(parts[0].rename(tmp_path / "renamed.gguf"))


# What cannot be read


def refused(path: Path) -> str:
    with pytest.raises((WeightsError, TokenizerError)) as error:
        GGUF(path).tokenizer()
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert len(sentence) < 500 + len(str(path))
    return sentence


def put(name: str, *shape: int) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({name: np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("v.patch_embd.weight", 8, 8), "vision"),
        (put("mm.0.weight", 8, 8), "vision"),
        (put("blk.0.ffn_gate_inp.weight", 8, 8), "'blk.0.ffn_gate_inp.weight', which has no place"),
        (put("blk.0.attn_q.weight.lora_a", 8, 8), "no place"),
        (put("blk.2.attn_q.weight", 8, 8), "no place"),
        (put("\x1b]0;pwn\x07\u202e\u3164", 8, 8), r"'\\x1b.*, which has no place"),
        (put("x" * 5000, 8, 8), "…, which has no place"),
        (lambda arrays: arrays.pop("blk.1.ffn_up.weight"), r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"),
        (lambda arrays: arrays.pop("token_embd.weight"), r"no tensor model\.embed_tokens"),
        (put("rope_freqs.weight", HEAD), "not Llama 3's"),
        (put("rope_freqs.weight", 0), "not Llama 3's|damaged"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: Callable[[Arrays], object], reason: str) -> None:
    write(tmp_path / "m.gguf", change=change, vocabulary=(QWEN, "qwen2"))
    assert re.search(reason, refused(tmp_path / "m.gguf"))


@pytest.mark.parametrize("shape", [(32,), (32, HIDDEN + 32), (HIDDEN, HIDDEN), (32, 32, 2)], ids=str)
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_tensor_of_another_shape_is_refused(tmp_path: Path, shape: tuple[int, ...], device: str) -> None:
    for kind in (Type.F16, Type.Q8_0):  # restored to floats, and kept in our form
        change = put("blk.0.attn_k.weight", *shape)
        write(tmp_path / "m.gguf", kind=kind, change=change, vocabulary=(QWEN, "qwen2"))
        with pytest.raises(ModelError, match=r"same number of columns|has shape \[\d+, \d+\], not"):
            models.load(str(tmp_path / "m.gguf"), device)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (lambda w: w.add_type("mmproj"), "vision"),
        (lambda w: w.add_type("adapter"), "GGUF calls 'adapter'"),
        (lambda w: w.add_expert_count(8), "mixture of experts"),
        (lambda w: w.add_rope_dimension_count(HEAD // 2), "only a part of each head"),
        (lambda w: w.add_key_length(0), r"attention\.key_length \(0\)"),
        (lambda w: w.add_key_length(2**31), r"attention\.key_length"),
        (lambda w: w.add_array("qwen2.attention.key_length", [8, 8]), r"attention\.key_length \(\[8, 8\]\)"),
        (lambda w: w.add_tokenizer_model("llama"), "kind 'llama'; only byte-level BPE"),
        (lambda w: w.add_tokenizer_model("x" * 100_000), "kind 'xxx"),
        (lambda w: w.add_tokenizer_model("\x1b[31m\u202e"), r"kind '.x1b"),
        (lambda w: w.add_tokenizer_pre("gpt-4o"), "pre-tokenizer 'gpt-4o', which is not known"),
        (lambda w: w.add_tokenizer_model("gpt2"), "pre-tokenizer '', which is not known"),  # files of 2023
        (lambda w: named(w), "neither|damaged|changes the text"),  # without any token
        (
            lambda w: (named(w), w.add_token_list(["a", "a"])),
            "vocabulary of m.gguf is damaged .two ids have one token",
        ),
        (
            lambda w: (named(w), w.add_token_list(["a"]), w.add_token_types([1, 1])),
            "vocabulary of m.gguf is damaged .1 tokens, 2 types",
        ),
        (
            lambda w: (named(w), w.add_token_list(["a"]), w.add_token_merges(["a zz"])),
            "damaged or of a kind",
        ),
    ],
)
def test_what_the_metadata_cannot_mean_is_a_sentence(
    tmp_path: Path, more: Callable[[gguf.GGUFWriter], object], reason: str
) -> None:
    def whole(writer: gguf.GGUFWriter) -> None:
        more(writer)
        if "tokenizer.ggml.model" not in writer.kv_data[0]:
            writer.add_tokenizer_model("gpt2")

    write(tmp_path / "m.gguf", more=whole)
    assert re.search(reason, refused(tmp_path / "m.gguf"))


@pytest.mark.parametrize("architecture", ["clip", "mamba", "phi3"])
def test_another_architecture_is_named(tmp_path: Path, architecture: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert ("vision" if architecture == "clip" else f"{architecture!r}; supported are llama") in refused(
        tmp_path / "m.gguf"
    )


def test_a_type_that_cannot_be_restored_is_named(tmp_path: Path) -> None:
    raw = np.zeros((4, gguf.GGML_QUANT_SIZES[Type.Q8_K][1]), np.uint8)
    write(
        tmp_path / "m.gguf",
        change=lambda arrays: arrays.pop("token_embd.weight"),
        more=lambda writer: writer.add_tensor("token_embd.weight", raw, raw_dtype=Type.Q8_K),
    )
    assert "type Q8_K, which cannot be read" in refused(tmp_path / "m.gguf")


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", change=lambda arrays: arrays["blk.0.attn_q.weight"].fill(np.nan))
    with pytest.raises(WeightsError, match=r"layers\.0\.self_attn\.q_proj\.weight is damaged .*\.$"):
        GGUF(tmp_path / "m.gguf").tensors.floats("model.layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize("shape", [(0, 1 << 62), (0, 1 << 31, 1 << 31)], ids=str)
def test_a_tensor_without_values_may_not_be_huge_either(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path, name = tmp_path / "m.gguf", b"blk.0.attn_q.weight"
    tensor = struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + struct.pack("<IQ", 0, 0) + bytes(64))
    assert "a tensor of an impossible shape" in refused(path)


@pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.IQ4_NL], ids=lambda kind: str(kind.name))  # in C, and by gguf
def test_a_row_that_is_no_number_fails_the_pass_that_reads_it(tmp_path: Path, kind: Type) -> None:
    """Where there is a head, the embedding is read row by row, in passes. Other jobs of that pass go on."""
    path, bad = tmp_path / "m.gguf", 7
    raw = np.zeros((ROWS + 2, HIDDEN // 32 * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    raw[bad, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)

    def change(arrays: Arrays) -> None:
        table = arrays.pop("token_embd.weight")
        arrays["output.weight"] = np.concatenate((table, table[:2]))

    def more(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)

    write(path, kind=Type.Q8_0, change=change, more=more, vocabulary=(QWEN, "qwen2"))
    model = models.load(str(path), "cpu")
    alone, cache = np.ones((1, 1), np.bool_), model.cache()
    scores, _ = model.forward([Run(cache.lease([]), [row], [0], alone) for row in (bad - 1, bad, bad + 1)], [])
    (finite,) = told(scores.finite())
    assert finite.tolist() == [True, False, True]


def test_an_embedding_that_cannot_be_mapped_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    tensors = GGUF(tmp_path / "m.gguf").tensors
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match=r"embed_tokens\.weight is damaged .*\.$"):
        tensors.table("model.embed_tokens.weight")


def test_what_is_no_gguf_file_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert "damaged" in refused(path)  # it is missing
    for content in (b"", b"GGUF", b"PK\3\4" * 100, b'{"model": 1}' * 20):
        path.write_bytes(content)
        assert "is no GGUF file, damaged" in refused(path)


def number(kind: int, value: int) -> bytes:
    return struct.pack("<IQ", kind, value)


@pytest.mark.parametrize(
    "claim",
    [
        struct.pack("<QQ", 1 << 60, 0),  # tensors
        struct.pack("<QQ", 0, 1 << 60),  # keys
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 62),  # bytes of a key
        *(
            struct.pack("<QQQ", 0, 1, 1) + b"a" + rest
            for rest in (
                number(8, 1 << 62),  # bytes of a string
                struct.pack("<IIQ", 9, 0, 1 << 60),  # an array of bytes
                struct.pack("<IIQ", 9, 8, 1 << 60),  # of strings
                struct.pack("<IIQ", 9, 8, 1000) + bytes(100),
                struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", 1 << 62),
                struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,  # arrays in arrays
            )
        ),
    ],
)
def test_sizes_that_a_file_only_claims_cost_nothing(tmp_path: Path, claim: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + claim + bytes(64))
    assert "damaged" in refused(path)


def test_damaged_files_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.gguf", random.Random(28)
    write(path, "llama", Type.Q4_0, vocabulary=("", "smollm"))
    whole = path.read_bytes()
    start = whole.index(b"\0" * 4, whole.index(b"token_embd"))  # most of what can go wrong stands before the weights
    outcomes = [outcome(path, spoilt(whole, start, rng)) for _ in range(300)]
    assert 10 < outcomes.count("") < 290
    assert all(not said or (said.endswith(".") and len(said) < 600) for said in outcomes)


def spoilt(whole: bytes, start: int, rng: random.Random) -> bytes:
    """Cut somewhere, or with some bits changed in front of `start`."""
    if rng.random() < 0.3:
        return whole[: rng.randrange(len(whole))]
    raw = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        raw[rng.randrange(start)] ^= 1 << rng.randrange(8)
    return bytes(raw)


def outcome(path: Path, raw: bytes) -> str:
    """What is said against a file, or nothing where all of it can be read."""
    path.write_bytes(raw)
    try:
        file = GGUF(path)
        file.tokenizer()
        assert all(len(file.tensors.floats(name)) for name in file.tensors)
    except (WeightsError, TokenizerError) as error:
        return str(error)
    return ""
