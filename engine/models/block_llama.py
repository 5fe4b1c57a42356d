"""The embedded family: a Llama base whose context path reads left to right, and a canvas path of base + adapter.

Context is causal and KV-cached; the canvas rows see all of it and each other (block diffusion with one block: Arriola
et al. 2025, BD3LM). Logits are shifted: the row before a slot predicts it, so the adapter starts from the base's own
left-to-right knowledge (Dream 7B). The base itself is the verifier: a canvas of one slot is the next-token model. It
may have a low-rank update of its own, `context.safetensors`, merged when it loads, to read a gap behind its suffix.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from caesura.engine import samplers, weights
from caesura.engine.cache import KV, Cache, Kept
from caesura.engine.models import Run
from caesura.engine.noise import Absorbing, Noise
from caesura.engine.search import VERIFY
from caesura.engine.tokenizer import Tokenizer
from caesura.kernels import int8

MATRICES = ("qkv", "out", "gate_up", "down")
PACKERS = 2  # threads that pack matrices while a model is loaded
SPECIALS = ("mask", "null")  # rows of the adapter's embedding, behind the base's vocabulary

Linear = Callable[[Tensor], Tensor]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Config:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @classmethod
    def read(cls, config: dict[str, Any]) -> "Config":
        """Raises WeightsError where a field is missing, is not a positive number, or does not divide another."""
        try:
            shape = cls(**{name: kind(config[name]) for name, kind in cls.__annotations__.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise weights.WeightsError(f"config.json is damaged: {error}") from error
        if min(vars(shape).values()) <= 0:
            raise weights.WeightsError("config.json is damaged: every size must be above 0.")
        if shape.hidden_size % (2 * shape.num_heads) or shape.num_heads % shape.num_kv_heads:
            raise weights.WeightsError("config.json is damaged: the heads do not divide the hidden size.")
        return shape

    def shape(self, matrix: str) -> tuple[int, int]:
        """[N, K] of a layer's matrix."""
        d, kv = self.hidden_size, self.num_kv_heads * self.head_dim
        return {
            "qkv": (d + 2 * kv, d),
            "out": (d, d),
            "gate_up": (2 * self.intermediate_size, d),
            "down": (d, self.intermediate_size),
        }[matrix]


class Layer(NamedTuple):
    attn_norm: Tensor
    qkv: Linear
    out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def rotary(config: Config, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [..., 1, head_dim] for integer positions [...]."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions.float()[..., None] / config.rope_theta**half
    angles = torch.cat((angles, angles), -1)[..., None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [..., heads, head_dim], pairs split in halves."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def stack(
    x: Tensor,
    layers: Sequence[Layer],
    norm: Tensor,
    attend: Attend,
    turn: tuple[Tensor, Tensor],
    config: Config,
    wanted: Sequence[int],
) -> Tensor:
    """All layers over rows [rows, hidden]; `attend(layer, q, k, v)` owns masks and KV. Returns the wanted rows, normed:
    the others end with the keys and values of the last layer."""
    heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.rms_norm_eps
    for number, layer in enumerate(layers):
        qkv = layer.qkv(rms_norm(x, layer.attn_norm, eps)).unflatten(-1, (heads + 2 * kv_heads, config.head_dim))
        turned = rotate(qkv[..., : heads + kv_heads, :], *turn)
        q, k, v = turned[..., :heads, :], turned[..., heads:, :], qkv[..., heads + kv_heads :, :]
        seen = attend(number, q, k, v)
        if number == len(layers) - 1:
            x, seen = x[wanted], seen[wanted]
        x = x + layer.out(seen)
        gate, up = layer.gate_up(rms_norm(x, layer.mlp_norm, eps)).chunk(2, -1)
        x = x + layer.down(silu(gate) * up)
    return rms_norm(x, norm, eps)


class Merged(Mapping[str, Tensor]):
    """Every matrix W of the base becomes W + B A (Hu et al. 2021, LoRA; the scale is inside B), and what the update
    holds whole (norms) takes the base's place."""

    def __init__(self, base: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> None:
        self._base, self._update = base, update

    def __getitem__(self, name: str) -> Tensor:
        if name in self._update:
            return self._update[name]
        weight = self._base[name]
        if f"{name}.a" not in self._update:
            return weight
        rank = self._update[f"{name}.a"].shape[0]
        down = expect(self._update, f"{name}.a", (rank, weight.shape[1]))
        return weight + expect(self._update, f"{name}.b", (weight.shape[0], rank)) @ down

    def __contains__(self, name: object) -> bool:
        return name in self._base  # without making the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def base_of(folder: Path) -> Mapping[str, Tensor]:
    """What both paths stand on: the base of a model folder, with the update of its context path if there is one."""
    base, update = weights.Stored(folder / "base.safetensors"), folder / "context.safetensors"
    return Merged(base, weights.Stored(update)) if update.is_file() else base


class Matrix:
    """A matrix W of both paths, packed once with A below it: the canvas path adds B (A x) to the context path's W x (as
    `Merged` would)."""

    def __init__(self, base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], name: str, size: tuple[int, int]):
        weight, self._rows, self._up = expect(base, name, size), size[0], torch.zeros(0, size[0])
        if f"{name}.a" in adapter:
            rank = adapter[f"{name}.a"].shape[0]
            weight = torch.cat((weight, expect(adapter, f"{name}.a", (rank, size[1]))))
            self._up = expect(adapter, f"{name}.b", (size[0], rank)).T.half()  # for memory's sake
        self._packed = int8.Linear(weight)

    def context(self, x: Tensor) -> Tensor:
        """[rows, K] -> [rows, N]"""
        return self._packed(x)[:, : self._rows]

    def canvas(self, x: Tensor) -> Tensor:
        """[rows, K] -> [rows, N]"""
        out = self._packed(x)
        return torch.addmm(out[:, : self._rows], out[:, self._rows :], self._up.float())


class BlockLlama:
    """See `caesura.engine.models.Model`. float32 activations, int8 matrices where the CPU has a kernel for them."""

    shift = 1
    tail = 4  # as in training/examples.py

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        base: Mapping[str, Tensor],
        adapter: Mapping[str, Tensor],
    ) -> None:
        self.name, self.device, self.config, self.tokenizer = name, "cpu", config, tokenizer
        self.noise: Noise = Absorbing(config.vocab_size)
        self.null_id: int | None = config.vocab_size + SPECIALS.index("null")
        self.ends: frozenset[int] = frozenset()
        self.width = config.vocab_size + len(SPECIALS)
        self.separator: Sequence[int] = ()
        self.sampler = "threshold"
        self.prompt = "suffix_first"
        self.max_context = 768
        self.chunk = 64
        self.mixed = False  # context rows run on the base's weights, canvas rows on adapted ones
        embed = torch.cat((base["embed"], adapter["special"]))
        self._embed, self._head = weights.q8(embed), int8.Linear(embed)
        with ThreadPoolExecutor(PACKERS) as pool:  # the kernel packs slowly, on one core each
            pairs = list(pool.map(partial(packed, config, base, adapter), range(config.num_layers)))
        self._base, self._canvas = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        width = (config.hidden_size,)
        self._norms = expect(base, "norm", width), own(adapter, base, "norm", width)

    def __repr__(self) -> str:
        return f"<BlockLlama {self.name} {self.config.num_layers}x{self.config.hidden_size}>"

    def cache(self) -> Cache:
        return Cache([Kept(self.config.num_kv_heads, self.config.head_dim)] * self.config.num_layers)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        start = kv.length
        causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        run = Run(kv, ids, range(start, start + len(ids)), causal, wanted=())
        self._forward([run], self._base, self._norms[0])
        kv.length += len(ids)
        kv.ids.extend(ids)

    @torch.inference_mode()
    def causal(self, runs: Sequence[Run], *, keep: bool = False) -> Tensor:
        hidden = self._forward(runs, self._base, self._norms[0])
        if keep:
            for run in runs:
                run.kv.length += len(run.ids)
        return self._head(hidden)[:, : self.config.vocab_size]

    @torch.inference_mode()
    def denoise(self, runs: Sequence[Run]) -> Tensor:
        return self._head(self._forward(runs, self._canvas, self._norms[1], self.shift))

    def condition(self, logits: Tensor) -> None:
        """The mask token says all that an earlier step could."""

    def _forward(self, runs: Sequence[Run], layers: Sequence[Layer], norm: Tensor, shift: int = 0) -> Tensor:
        """The wanted rows of all runs [rows, hidden]: matrices over the packed rows, attention run by run."""
        spans, start = [], 0
        for run in runs:
            run.kv.reserve(len(run.ids))
            spans.append(slice(start, start + len(run.ids)))
            start += len(run.ids)
        masks = [visible(run, self.config) for run in runs]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = [attention(layer, q[s], k[s], v[s], r.kv, m) for s, r, m in zip(spans, runs, masks, strict=True)]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        ids = torch.tensor([i for run in runs for i in run.ids])
        x = weights.grouped(*(part[ids] for part in self._embed))
        turn = rotary(self.config, torch.tensor([p for run in runs for p in run.positions]))
        return stack(x, layers, norm, attend, turn, self.config, wanted(runs, shift))


def attention(layer: int, q: Tensor, k: Tensor, v: Tensor, kv: KV, mask: Tensor | None) -> Tensor:
    """q [rows, heads, width], k and v [rows, kv_heads, width] of one run -> [rows, heads * width].

    Query heads that share a key head are laid out as more rows of it, so keys are never repeated.
    """
    rows, heads, width = q.shape
    keys, values = kv.write(layer, k.transpose(0, 1), v.transpose(0, 1))
    groups = keys.shape[0]
    folded = q.view(rows, groups, heads // groups, width).permute(1, 2, 0, 3).reshape(1, groups, -1, width)
    out = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=mask)
    return out.view(groups, heads // groups, rows, width).permute(2, 0, 1, 3).reshape(rows, -1)


def visible(run: Run, config: Config) -> Tensor | None:
    """The run's mask over all columns, repeated for the query heads that share a key head: [rows * share, columns],
    additive, since a boolean one would be converted in every layer."""
    if run.mask is None:
        return None
    before = run.kv.length + len(run.ids) - run.mask.shape[1]
    full = torch.cat((torch.ones(len(run.ids), before, dtype=torch.bool), run.mask), 1)
    additive = torch.zeros(full.shape).masked_fill_(~full, -torch.inf)
    return additive.repeat(config.num_heads // config.num_kv_heads, 1)


def wanted(runs: Sequence[Run], shift: int) -> list[int]:
    """The rows that predict each run's wanted positions."""
    picked, start = [], 0
    for run in runs:
        rows = range(len(run.ids)) if run.wanted is None else run.wanted
        picked += [start + row - shift for row in rows]
        start += len(run.ids)
    return picked


def packed(
    config: Config, base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], number: int
) -> tuple[Layer, Layer]:
    """One layer for inference, of the context path and of the canvas path; shape errors name the tensor."""
    qkv, out, gate_up, down = (Matrix(base, adapter, f"layers.{number}.{m}", config.shape(m)) for m in MATRICES)

    def norms(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        first, second = (f"layers.{number}.{norm}" for norm in ("attn_norm", "mlp_norm"))
        return own(tensors, base, first, (config.hidden_size,)), own(tensors, base, second, (config.hidden_size,))

    (first, second), (canvas_first, canvas_second) = norms(base), norms(adapter)
    return (
        Layer(first, qkv.context, out.context, second, gate_up.context, down.context),
        Layer(canvas_first, qkv.canvas, out.canvas, canvas_second, gate_up.canvas, down.canvas),
    )


def own(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """The path's own tensor of that name, else the base's."""
    return expect(tensors if name in tensors else base, name, shape)


def expect(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor, or WeightsError when it is missing or has another shape."""
    if name not in tensors:
        raise weights.WeightsError(f"The weights lack the tensor {name}; install the model again.")
    tensor = tensors[name]
    if tuple(tensor.shape) != shape:
        raise weights.WeightsError(f"The tensor {name} has shape {list(tensor.shape)}, not {list(shape)}.")
    return tensor


def load(folder: Path, config: dict[str, Any], device: str, context: int | None) -> BlockLlama:
    """Read a model folder. Raises WeightsError or TokenizerError."""
    weights.verify(folder)
    del device  # a model this small is faster on the CPU than a transfer to anything else
    del context  # it was trained on what it takes
    torch.set_num_threads(1)  # barriers cost canvases and chunks of context more than a second thread gains
    shape = Config.read(config)
    tokenizer = Tokenizer(folder / "tokenizer.json")
    base = base_of(folder)
    if tokenizer.size != shape.vocab_size:
        raise weights.WeightsError(f"tokenizer.json has {tokenizer.size} tokens, config.json {shape.vocab_size}.")
    embed = expect(base, "embed", (shape.vocab_size, shape.hidden_size))
    adapter: Mapping[str, Tensor] = {"special": embed.mean(0, keepdim=True).repeat(len(SPECIALS), 1)}
    if (folder / "adapter.safetensors").is_file():
        adapter = weights.Stored(folder / "adapter.safetensors")
    expect(adapter, "special", (len(SPECIALS), shape.hidden_size))
    model = BlockLlama(str(config.get("name", folder.name)), shape, tokenizer, base, adapter)
    model.separator = [tokenizer.special(str(config.get("separator")))]
    model.sampler = str(config.get("sampler", model.sampler))
    if model.sampler not in (VERIFY, *samplers.names()):
        raise weights.WeightsError(f"config.json names the sampler {model.sampler!r}, which does not exist.")
    return model
