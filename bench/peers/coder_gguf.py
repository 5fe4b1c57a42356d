"""The weights of `coder` as a GGUF file, so that llama.cpp and our engine can be compared on the same model.

    python bench/peers/coder_gguf.py coder-q8_0.gguf

The embedding holds the very codes of ours. Matrices are restored and rounded to Q8_0, as our engine rounds them to int8
when it loads. Tokens keep their numbers; llama.cpp finds the infill tokens by their text.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

from caesura import model_store
from caesura.engine.weights import stored

CONTEXT = 32768  # tokens that the base was trained on
Q8 = GGMLQuantizationType.Q8_0
ROWS = {"qkv": ("attn_q", "attn_k", "attn_v"), "gate_up": ("ffn_gate", "ffn_up")}  # ours are joined by rows
SINGLE = {"out": "attn_output.weight", "down": "ffn_down.weight"}
NORMS = {"attn_norm": "attn_norm.weight", "mlp_norm": "ffn_norm.weight"}


def write(folder: Path, target: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = GGUFWriter(target, "qwen2")
    _header(writer, config)
    _vocabulary(writer, json.loads((folder / "tokenizer.json").read_text("utf-8")))
    _tensors(writer, stored.Stored(*stored.bases(folder)), config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _header(writer: GGUFWriter, config: dict[str, int]) -> None:
    writer.add_name(f"caesura-{config['name']}")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(config["num_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_heads"])
    writer.add_head_count_kv(config["num_kv_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _vocabulary(writer: GGUFWriter, file: dict[str, dict[str, dict[str, int]]]) -> None:
    special = {token["content"]: token["id"] for token in file["added_tokens"]}
    numbered = {number: token for token, number in (file["model"]["vocab"] | special).items()}
    tokens = [numbered[number] for number in range(len(numbered))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in file["model"]["merges"]])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_pad_token_id(special["<|endoftext|>"])
    writer.add_add_bos_token(False)


def _tensors(writer: GGUFWriter, ours: stored.Stored, config: dict[str, int]) -> None:
    _, (codes, scale) = ours.parts("embed")
    writer.add_tensor("token_embd.weight", _blocks(codes, scale), raw_dtype=Q8)
    writer.add_tensor("output_norm.weight", ours.floats("norm"))
    keys = config["hidden_size"] // config["num_heads"] * config["num_kv_heads"]
    heights = {
        "qkv": (config["hidden_size"], keys, keys),
        "gate_up": (config["intermediate_size"], config["intermediate_size"]),
    }
    for i in range(config["num_layers"]):
        for name, theirs in ROWS.items():
            for their, part in zip(theirs, split(ours.floats(f"layers.{i}.{name}"), heights[name]), strict=True):
                _matrix(writer, f"blk.{i}.{their}.weight", part)
        for their, part in zip(ROWS["qkv"], split(ours.floats(f"layers.{i}.qkv_bias"), heights["qkv"]), strict=True):
            writer.add_tensor(f"blk.{i}.{their}.bias", part)
        for name, their in SINGLE.items():
            _matrix(writer, f"blk.{i}.{their}", ours.floats(f"layers.{i}.{name}"))
        for name, their in NORMS.items():
            writer.add_tensor(f"blk.{i}.{their}", ours.floats(f"layers.{i}.{name}"))


def _matrix(writer: GGUFWriter, name: str, values: np.ndarray) -> None:
    writer.add_tensor(name, quants.quantize(values, Q8), raw_dtype=Q8)


def split(rows: np.ndarray, heights: tuple[int, ...]) -> list[np.ndarray]:
    """Rows in parts of these heights."""
    return np.split(rows, np.cumsum(heights)[:-1])


def _blocks(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """int8 [N, K] and float16 [N, K/32] -> uint8 [N, K/32 * 34], the blocks of Q8_0."""
    rows, groups = scale.shape
    parts = (scale[..., None].view(np.uint8), codes.view(np.uint8).reshape(rows, groups, -1))
    return np.concatenate(parts, axis=-1).reshape(rows, -1)


def main() -> None:
    parser = argparse.ArgumentParser(description="The weights of coder as a GGUF file.")
    parser.add_argument("target", type=Path, metavar="TO.gguf")
    write(model_store.locate(model_store.CODER), parser.parse_args().target)


if __name__ == "__main__":
    main()
