"""Contexts as the engine lays them out, and the forward pass of Qwen2 over all of them, a layer at a time: what
calibration (gptq.py) and the nats of `coder.py` stand on. Plain float32, without a cache."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers
import torch
from torch import Tensor
from torch.nn.functional import linear, log_softmax, rms_norm, scaled_dot_product_attention, silu

SEPARATOR = "<|file_sep|>"
SHARES = {"python": 0.7, "javascript": 0.075, "typescript": 0.075, "json": 0.08, "markdown": 0.07}  # of contexts
WIDTHS = (512, 768)  # tokens of a context for calibration

Layer = Mapping[str, Tensor]  # `qkv`, `qkv_bias`, `out`, `gate_up`, `down`, `attn_norm`, `mlp_norm`


class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    groups: int
    inner: int
    base: float  # of the rotary frequencies
    eps: float


class File(NamedTuple):
    language: str
    text: str


def files(corpus: Path, pattern: str, seed: int = 0) -> Iterator[File]:
    """The corpus' files in a random order of shards."""
    shards = sorted(corpus.glob(pattern))
    random.Random(seed).shuffle(shards)
    for shard in shards:
        with gzip.open(shard, "rt", encoding="utf-8", newline="") as lines:
            for record in map(json.loads, lines):
                yield File(record["lang"], record["text"])


def contexts(tokenizer: tokenizers.Tokenizer, corpus: Path, count: int, pattern: str, seed: int) -> Iterator[list[int]]:
    """`suffix separator prefix` of files cut at a random place, the suffix a third at most: what the engine reads."""
    chance = random.Random(seed)
    wanted = {language: round(share * count) for language, share in SHARES.items()}
    separator = tokenizer.token_to_id(SEPARATOR)
    for file in files(corpus, pattern, seed):
        if not wanted.get(file.language) or chance.random() < 0.5:
            continue
        width = chance.randint(*WIDTHS)
        ids = tokenizer.encode(file.text, add_special_tokens=False).ids
        if len(ids) < width:
            continue
        wanted[file.language] -= 1
        after = chance.randint(0, width // 3)
        at = chance.randint(width - after, len(ids) - after)
        yield [*ids[at : at + after], separator, *ids[at - (width - after) : at]]
        if not any(wanted.values()):
            return


def waves(length: int, shape: Shape) -> tuple[Tensor, Tensor]:
    width = shape.hidden // shape.heads
    frequencies = shape.base ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def attention(qkv: Tensor, shape: Shape) -> Tensor:
    """[rows, (heads + 2 groups) * width] of one context -> [rows, hidden]."""
    rows, width = len(qkv), shape.hidden // shape.heads
    q, k, v = qkv.view(rows, -1, width).transpose(0, 1).split([shape.heads, shape.groups, shape.groups])
    cos, sin = waves(rows, shape)

    def turned(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), -1) * sin

    out = scaled_dot_product_attention(turned(q)[None], turned(k)[None], v[None], is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1).reshape(rows, shape.hidden)


Seen = Callable[[str, list[Tensor]], Tensor]  # a matrix by name and all of its inputs -> the weight to go on with


def through(xs: list[Tensor], layer: Layer, shape: Shape, seen: Seen) -> list[Tensor]:
    """Contexts [rows, hidden] after a layer."""

    def normed(name: str, some: list[Tensor]) -> list[Tensor]:
        return [rms_norm(x, (shape.hidden,), layer[name], shape.eps) for x in some]

    inputs = normed("attn_norm", xs)
    weight = seen("qkv", inputs)
    inputs = [attention(linear(x, weight, layer["qkv_bias"]), shape) for x in inputs]
    weight = seen("out", inputs)
    xs = [x + linear(y, weight) for x, y in zip(xs, inputs, strict=True)]
    inputs = normed("mlp_norm", xs)
    weight = seen("gate_up", inputs)
    inputs = [gated(linear(x, weight)) for x in inputs]
    weight = seen("down", inputs)
    return [x + linear(y, weight) for x, y in zip(xs, inputs, strict=True)]


def gated(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return silu(gate) * up


def embedded(table: Tensor, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    return [table[torch.tensor(ids)] for ids in texts]


class Sums(NamedTuple):
    """Of one context: the nats of its tokens, and how many they are."""

    nats: float
    tokens: int


def judged(hidden: Tensor, ids: Sequence[int], table: Tensor) -> Sums:
    logp = log_softmax(linear(hidden[:-1], table), -1)
    each = -logp.gather(1, torch.tensor(ids)[1:, None])[:, 0]
    return Sums(float(each.sum()), len(each))


def nats_of(texts: list[list[int]], table: Tensor, norm: Tensor, shape: Shape, layer: Callable[[int], Layer]) -> Tensor:
    """[contexts, 2] float64: nats and tokens."""
    xs = embedded(table, texts)
    for i in range(shape.layers):
        weight = layer(i)
        xs = through(xs, weight, shape, lambda name, _, weight=weight: weight[name])
    xs = [rms_norm(x, (shape.hidden,), norm, shape.eps) for x in xs]
    return torch.tensor([judged(x, ids, table) for x, ids in zip(xs, texts, strict=True)], dtype=torch.float64)


def ratio(sums: Tensor) -> tuple[float, float]:
    """Nats a token with its standard error over contexts."""
    mean = sums[:, 0].sum() / sums[:, 1].sum()
    spread = (sums[:, 0] - mean * sums[:, 1]).square().sum().sqrt() / sums[:, 1].sum()
    return float(mean), float(spread)
