"""Make the weights of `coder` from the GGUF file of Qwen2.5-Coder-0.5B-Instruct: the vocabulary cut to what code needs,
the body at 4.5 bits a weight by GPTQ, the embedding at 8.5.

    python training/coder.py make --gguf FILE --corpus FOLDER --out FOLDER
    python training/coder.py widen --gguf FILE --translations FOLDER --model FOLDER [--tokens 8064]
    python training/coder.py nats --gguf FILE --corpus FOLDER --model FOLDER [--model FOLDER]

`make` calibrates on the corpus' shards, laid out as the engine lays out a context. `widen` adds tokens that are not
ASCII, and the parts that these are merged from, to a model that it made: their rows are a file of their own, and all
other tokens keep their numbers. `nats` compares the nats a token of models that it made, and of the file, on held-out
text. The manifest that `make` writes has hashes only; `widen` and `export.py canary` add the rest.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import export
import gptq
import tokenizers
import torch
from calibration import SEPARATOR, Layer, Shape, contexts, embedded, files, nats_of, ratio, through
from safetensors.torch import save_file
from torch import Tensor

from caesura.engine.tokens.tokenizer_file import QWEN
from caesura.engine.weights import stored as weights
from caesura.engine.weights.tensors import ByName, dense, quantised

MATRICES = ("qkv", "out", "gate_up", "down")
ENDS = ("<|endoftext|>", "<|fim_pad|>", "<|im_end|>", SEPARATOR, "<|repo_name|>")
SPECIALS = (*ENDS, "<|im_start|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
SPLIT: list[dict[str, Any]] = [
    {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
]
COUNTED = {"python": 0.6, "javascript": 0.1, "typescript": 0.1, "json": 0.08, "markdown": 0.08}  # of the counted tokens
REST = 0.04  # of all other languages together
# Languages in which many people comment code, by gettext's names: `widen` counts the tokens of their translations.
TRANSLATED = "ar cs de el es fa fr he hi it ja ko pl pt_BR ru sv th tr uk vi zh_Hans zh_Hant".split()  # noqa: SIM905
MESSAGE = re.compile(r'^msgstr(?:\[\d\])? ((?:".*"\n)+)', re.MULTILINE)  # of a .po file
LAST = (6, 13, 18, 23)  # the last layer of each file, so that none is over 95 MB; the embedding has one of its own
ABOUT: dict[str, Any] = {
    "name": "caesura-coder",
    "base": "Qwen2.5-Coder-0.5B-Instruct (Qwen), from its own Q4_K_M GGUF file",
    "licence": "Apache-2.0",
    "memory_mb": 370,  # MiB of supervisor and worker with one open file: bench/memory.py
}


class Source:
    """The tensors of a qwen2 GGUF file, restored to float32 one by one."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(path)
        self._tensors = {t.name: t for t in self._reader.tensors}

    def field(self, name: str) -> Any:
        return self._reader.fields[name].contents()

    def shape(self) -> Shape:
        sizes = "block_count embedding_length attention.head_count attention.head_count_kv feed_forward_length"
        reals = "rope.freq_base attention.layer_norm_rms_epsilon"
        *counts, base, eps = (self.field(f"qwen2.{name}") for name in f"{sizes} {reals}".split())
        return Shape(*counts, base=base, eps=float(f"{eps:.6g}"))  # float32 in the file

    def tensor(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        found = self._tensors[name]
        return torch.from_numpy(dequantize(found.data, found.tensor_type).copy())

    def layer(self, number: int) -> dict[str, Tensor]:
        def read(*parts: str) -> Tensor:
            return torch.cat([self.tensor(f"blk.{number}.{part}") for part in parts])

        qkv = ("attn_q", "attn_k", "attn_v")
        return {
            "qkv": read(*(f"{part}.weight" for part in qkv)),
            "qkv_bias": read(*(f"{part}.bias" for part in qkv)),
            "out": read("attn_output.weight"),
            "gate_up": read("ffn_gate.weight", "ffn_up.weight"),
            "down": read("ffn_down.weight"),
            "attn_norm": read("attn_norm.weight"),
            "mlp_norm": read("ffn_norm.weight"),
        }

    def embedding(self) -> Tensor:
        """[tokens, hidden]. The head is tied to it, and a file that has both keeps the head at more bits."""
        return self.tensor("output.weight" if "output.weight" in self._tensors else "token_embd.weight")

    def tokenizer(self) -> dict[str, Any]:
        """Qwen's tokenizer.json."""
        tokens: list[str] = self.field("tokenizer.ggml.tokens")
        merges: list[str] = self.field("tokenizer.ggml.merges")
        kinds: list[int] = self.field("tokenizer.ggml.token_type")
        vocab = {t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == 1 or t in SPECIALS}
        return export.tokenizer_json(vocab, [m.split(" ") for m in merges], list(SPECIALS), SPLIT)


# ---- vocabulary


def counted(tokenizer: tokenizers.Tokenizer, corpus: Path) -> dict[str, collections.Counter[int]]:
    """Tokens by language."""
    counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for file in files(corpus, "shard-*.jsonl.gz"):
        counts[file.language].update(tokenizer.encode(file.text, add_special_tokens=False).ids)
    return counts


def ranked(counts: Mapping[str, collections.Counter[int]]) -> list[int]:
    """Tokens by their share of the text that is wanted. A token that a language has once tells nothing of it."""
    shared: dict[int, float] = collections.defaultdict(float)
    others = sum((c for language, c in counts.items() if language not in COUNTED), collections.Counter[int]())
    for share, some in [(COUNTED[n], c) for n, c in counts.items() if n in COUNTED] + [(REST, others)]:
        for token, count in some.items():
            shared[token] += share * (count - 0.9) / some.total()
    return sorted(shared, key=lambda token: -shared[token])


def cut(full: dict[str, Any], corpus: Path, size: int) -> tuple[dict[str, Any], list[int]]:
    """The tokenizer with `size` tokens at most, and the old id of each."""
    counts = counted(tokenizers.Tokenizer.from_str(json.dumps(full)), corpus)
    old = export.closed(full, ranked(counts), SPECIALS, size)
    kept = set(old)
    for language, some in sorted(counts.items(), key=lambda one: -one[1].total()):
        covered = sum(n for token, n in some.items() if token in kept) / some.total()
        print(f"{language}: {covered:.3%} of {some.total()} tokens kept")
    return export.renumbered(full, old, SPECIALS, SPLIT), old


def translations(folder: Path, language: str) -> str:
    """What the .po files below a folder say in a language."""
    files = sorted(folder.rglob(f"{language}/LC_MESSAGES/*.po"))
    found = [ast.literal_eval(f"({message})") for file in files for message in MESSAGE.findall(file.read_text("utf-8"))]
    return "\n".join(message for message in found if "Content-Type" not in message)


def ascii_only(token: str) -> bool:
    """As byte-level BPE spells it: 256 to 289 are the bytes of ASCII that have no print."""
    return all(ord(letter) < 127 or 256 <= ord(letter) < 290 for letter in token)


def beyond_ascii(full: dict[str, Any], folder: Path) -> list[int]:
    """The tokens that are not ASCII: by turns the next most frequent of the translations, where all languages weigh the
    same, and the next that the tokenizer learnt."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(full))
    share: dict[int, float] = collections.defaultdict(float)
    for language in TRANSLATED:
        some = collections.Counter(tokenizer.encode(translations(folder, language)).ids)
        for token, count in some.items():
            share[token] += count / some.total()
    learnt = sorted(i for token, i in full["model"]["vocab"].items() if not ascii_only(token))
    used = sorted(share.keys() & set(learnt), key=lambda token: (-share[token], token))
    return list(dict.fromkeys(token for pair in zip_longest(used, learnt) for token in pair if token is not None))


# ---- make


def stored(name: str, parts: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{part}": t.contiguous() for part, t in zip(weights.FORMS["k4"], parts, strict=True)}


def nearest(layer: Layer) -> dict[str, Tensor]:
    """The stored parts of a layer's matrices, rounded to nearest."""
    return {part: t for name in MATRICES for part, t in stored(name, quantised("k4", layer[name])).items()}


def calibrated(xs: list[Tensor], layer: Layer, shape: Shape) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The same by GPTQ, each matrix on what the rounded ones before it give it; also the contexts after the layer."""
    out: dict[str, Tensor] = {}

    def seen(name: str, inputs: list[Tensor]) -> Tensor:
        hessian = torch.zeros(layer[name].shape[1], layer[name].shape[1])
        for x in inputs:
            hessian.addmm_(x.T, x)
        parts = gptq.gptq(layer[name], hessian)
        out.update(stored(name, parts))
        return dense("k4", parts)

    return out, through(xs, layer, shape, seen)


def config(shape: Shape, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "block_llama",
        "name": "coder",
        "vocab_size": vocab,
        "hidden_size": shape.hidden,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.groups,
        "intermediate_size": shape.inner,
        "rope_theta": shape.base,
        "rms_norm_eps": shape.eps,
        "separator": SEPARATOR,
        "ends": list(ENDS),
        "sampler": "verify",
    }


def save(folder: Path, number: int, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / f"base-{number}.safetensors")
    tensors.clear()


@torch.no_grad()
def make(arguments: argparse.Namespace) -> None:
    """Write the model folder."""
    source, out = Source(arguments.gguf), arguments.out
    shape = source.shape()
    out.mkdir(parents=True, exist_ok=True)
    for former in weights.bases(out):
        former.unlink(missing_ok=True)  # or the rows of `widen` would be read with the new ones
    file, old = cut(source.tokenizer(), arguments.corpus, arguments.vocab)
    (out / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")))
    (out / "config.json").write_text(json.dumps(config(shape, len(old)), indent=1) + "\n")
    codes, scale = quantised("q8", source.embedding()[old])
    xs: list[Tensor] = []
    if arguments.contexts:
        tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        texts = contexts(tokenizer, arguments.corpus, arguments.contexts, "shard-*.jsonl.gz", 0)
        xs = embedded(dense("q8", (codes, scale)), list(texts))
        print(f"calibration: {len(xs)} contexts, {sum(map(len, xs))} tokens")
    tensors, number = dict[str, Tensor](), 1
    for i in range(shape.layers):
        layer = source.layer(i)
        if arguments.contexts:
            parts, xs = calibrated(xs, layer, shape)
        else:
            parts = nearest(layer)
        parts |= {name: layer[name].half() for name in layer.keys() - MATRICES}
        tensors |= {f"layers.{i}.{name}": part for name, part in parts.items()}
        print(f"layer {i}", flush=True)
        if i in LAST or i == shape.layers - 1:
            save(out, number, tensors)
            number += 1
    save(out, number, {"embed.q8": codes, "embed.scale": scale, "norm": source.tensor("output_norm.weight").half()})
    weights.write_manifest(out, ABOUT)


def widen(arguments: argparse.Namespace) -> None:
    """Add tokens that are not ASCII to a model folder; the folder is damaged until the manifest is written."""
    source, out = Source(arguments.gguf), arguments.model
    full, had = source.tokenizer(), json.loads((out / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    kept = [full["model"]["vocab"][token] for token in sorted(had, key=had.__getitem__)]
    ranked = kept + beyond_ascii(full, arguments.translations)
    old = kept + sorted(set(export.closed(full, ranked, SPECIALS, len(kept) + arguments.tokens)) - set(kept))
    codes, scale = quantised("q8", source.embedding()[old[len(kept) :]])
    save(out, len(weights.bases(out)) + 1, {"embed.q8": codes, "embed.scale": scale})
    file = export.renumbered(full, old, SPECIALS, SPLIT)
    (out / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")))
    told = json.loads((out / "config.json").read_text("utf-8")) | {"vocab_size": len(old)}
    (out / "config.json").write_text(json.dumps(told, indent=1) + "\n")
    export.vouch(out, export.about(out))


# ---- nats


@torch.no_grad()
def nats(arguments: argparse.Namespace) -> None:
    """Nats a token of the file and of models made from it, which have one vocabulary, on held-out contexts."""
    source, shape = Source(arguments.gguf), Source(arguments.gguf).shape()
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.model[0] / "tokenizer.json"))
    kept = tokenizer.get_vocab()
    full = source.tokenizer()["model"]["vocab"]
    old = [full[token] for token in sorted(kept, key=kept.__getitem__)]
    texts = list(contexts(tokenizer, arguments.corpus, arguments.contexts, "heldout-*.jsonl.gz", 1))
    first = nats_of(texts, source.embedding()[old], source.tensor("output_norm.weight"), shape, source.layer)
    mean, error = ratio(first)
    print(f"{arguments.gguf.name}: {mean:.4f} ± {error:.4f} nats a token, {int(first[:, 1].sum())} tokens")
    for folder in arguments.model:
        made = ByName(weights.Stored(*weights.bases(folder)))

        def layer(i: int, made: Mapping[str, Tensor] = made) -> Layer:
            head = f"layers.{i}."
            return {name.removeprefix(head): made[name] for name in made if name.startswith(head)}

        sums = nats_of(texts, made["embed"], made["norm"], shape, layer)
        more, error = ratio(torch.stack((sums[:, 0] - first[:, 0], sums[:, 1]), 1))
        print(f"{folder}: {ratio(sums)[0]:.4f}, more than the file by {more:.4f} ± {error:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (make, widen, nats):
        command = commands.add_parser(run.__name__, help=run.__doc__)
        command.add_argument("--gguf", type=Path, required=True)
        command.set_defaults(run=run)
        if run is widen:
            command.add_argument(
                "--translations", type=Path, required=True, help="a folder with .po files, as Django's"
            )
            command.add_argument("--model", type=Path, required=True)
            command.add_argument("--tokens", type=int, default=8_064, help="to add: 8 MB with their spelling")
            continue
        command.add_argument("--corpus", type=Path, required=True, help="made by corpus.py")
        command.add_argument("--contexts", type=int, default=40, help="of 512 to 768 tokens; `make` with 0 rounds")
        if run is make:
            command.add_argument("--vocab", type=int, default=37_888, help="tokens to keep")
            command.add_argument("--out", type=Path, required=True)
        else:
            command.add_argument("--model", type=Path, action="append", required=True)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
