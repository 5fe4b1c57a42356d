"""The embedded family: a Llama base whose context path reads left to right, and a canvas path of base + adapter.

Context is causal and KV-cached; the canvas rows see all of it and each other (block diffusion with one block: Arriola
et al. 2025, BD3LM). Logits are shifted: the row before a slot predicts it, so the adapter starts from the base's own
left-to-right knowledge (Dream 7B). The base itself is the verifier: a canvas of one slot is the next-token model. It
may have a low-rank update of its own, `context.safetensors`, merged when it loads, to read a gap behind its suffix.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from caesura.engine import samplers, weights
from caesura.engine.cache import KV, Cache, Kept
from caesura.engine.models import Run, _llama_layer
from caesura.engine.models._llama_layer import Matrix, Shape, Span, Weights
from caesura.engine.noise import Absorbing, Noise
from caesura.engine.search import VERIFY
from caesura.engine.tokenizer import Tokenizer
from caesura.kernels import int8

MATRICES = ("qkv", "out", "gate_up", "down")
COLUMNS = 128  # columns of attention are padded to a multiple of it; the KV's room is one
# Rows; fewer are computed by one thread. Layers that are not TorchScript leave little to a second one.
WORTH_TWO = 64 if _llama_layer.layer is _llama_layer.written else 16
PACKERS = 2  # threads that pack matrices while a model is loaded
SPECIALS = ("mask", "null")  # rows of the adapter's embedding, behind the base's vocabulary

Step = Callable[[], object]


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
        """Raises WeightsError where a field is missing, is no possible number, or does not divide another."""
        try:
            shape = cls(**{name: kind(config[name]) for name, kind in cls.__annotations__.items()})
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise weights.WeightsError(f"config.json is damaged: {error}") from error
        if not all(0 < size <= 2**31 for size in vars(shape).values()):
            raise weights.WeightsError("config.json is damaged: every size must be above 0, and possible.")
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


class Part(NamedTuple):
    """Rows that lie in `kv` from row `at` on; of the last columns they see what the bool mask [rows, columns] says."""

    kv: KV
    at: int
    ids: Sequence[int]
    positions: Sequence[int]
    mask: Tensor | None
    wanted: Sequence[int] = ()  # rows whose logits are asked for

    def cut(self, count: int) -> "tuple[Part, Part]":
        """The first `count` rows, which see none of the others, and the others."""
        assert self.mask is not None
        size, rows = self.mask.shape[1], len(self.ids)
        return (
            Part(
                self.kv,
                self.at,
                self.ids[:count],
                self.positions[:count],
                self.mask[:count, : size - rows + count],
                [row for row in self.wanted if row < count],
            ),
            Part(
                self.kv,
                self.at + count,
                self.ids[count:],
                self.positions[count:],
                self.mask[count:],
                [row - count for row in self.wanted if row >= count],
            ),
        )


class Lane:
    """Rows of one path that one thread takes through the layers; `share` query heads share a key head."""

    def __init__(self, share: int, *, canvas: bool) -> None:
        self.canvas, self._share = canvas, share
        self.parts = list[tuple[int, Part, Tensor]]()  # with their first row, and what is added to their scores
        self.ids, self.positions, self.wanted = list[int](), list[int](), list[int]()

    def __repr__(self) -> str:
        return f"<Lane of {len(self.ids)} rows {'canvas' if self.canvas else 'context'} {len(self.parts)} parts>"

    def add(self, part: Part) -> None:
        """Makes room in its KV."""
        start, count, end = len(self.ids), len(part.ids), part.at + len(part.ids)
        part.kv.reserve(end - part.kv.length)
        self.parts.append((start, part, additive(part.mask, count, end, self._share)))
        self.ids += part.ids
        self.positions += part.positions
        self.wanted += [start + row for row in part.wanted]

    def spans(self) -> list[list[Span]]:
        """Of each layer. Only when no part makes room any more."""
        buffers = {id(part.kv): part.kv.buffers for _, part, _ in self.parts}
        layers = len(next(iter(buffers.values())))
        return [
            [
                Span(start, start + len(part.ids), *buffers[id(part.kv)][number], part.at, added)
                for start, part, added in self.parts
            ]
            for number in range(layers)
        ]


def rotary(config: Config, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [..., 1, head_dim] for integer positions [...]."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = positions.float()[..., None] / config.rope_theta**half
    angles = torch.cat((angles, angles), -1)[..., None, :]
    return angles.cos(), angles.sin()


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
        self.chunk = 128
        embed = torch.cat((base["embed"], adapter["special"]))
        self._embed, self._head = weights.q8(embed), int8.pack(embed)
        with ThreadPoolExecutor(PACKERS) as pool:  # the kernel packs slowly, on one core each
            self._layers = list(pool.map(partial(packed, config, base, adapter), range(config.num_layers)))
        self._norm = norms(base, adapter, "norm", config)
        self._shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps)
        self._second = ThreadPoolExecutor(1, "lane")

    def __repr__(self) -> str:
        return f"<BlockLlama {self.name} {self.config.num_layers}x{self.config.hidden_size}>"

    def cache(self) -> Cache:
        kept = Kept(self.config.num_kv_heads, self.config.head_dim, turned=True)
        return Cache([kept] * self.config.num_layers, dtype=attended())

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._wave(*self._lanes([context(kv, kv.length, ids)]))
        _append(kv, ids)

    def denoise(self, runs: Sequence[Run]) -> Tensor:
        return self.forward((), runs)[1]

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[Tensor, Tensor]:
        """In a KV fresh context, the tree and the canvas follow one another."""
        read, drawn = list[Part](), self._lane(canvas=True)
        ends = {id(run.kv): run.kv.length for run in (*trees, *canvases)}
        for run in (*trees, *canvases):
            if run.fresh:
                read.append(context(run.kv, run.kv.length, run.fresh))
                ends[id(run.kv)] += len(run.fresh)
        for run in trees:
            read.append(Part(run.kv, ends[id(run.kv)], run.ids, run.positions, run.mask, range(len(run.ids))))
        of_trees = {id(run.kv): len(run.ids) for run in trees}
        for run in canvases:  # of one KV, each takes the place of the one before: nothing of them is kept
            count, hidden = len(run.ids), of_trees.get(id(run.kv), 0)
            mask = (torch.arange(hidden + count) >= hidden).expand(count, -1) if hidden else None
            asked = range(count) if run.wanted is None else run.wanted
            wanted = [row - self.shift for row in asked]
            drawn.add(Part(run.kv, ends[id(run.kv)] + hidden, run.ids, run.positions, mask, wanted))
        if canvases:
            judged, logits = self._wave(self._lane(read), drawn)
        else:
            judged, logits = torch.cat(self._wave(*self._lanes(read))), self._logits(drawn)
        for run in (*trees, *canvases):
            _append(run.kv, run.fresh)
        for run in trees:
            run.kv.length += len(run.ids)
        return judged[:, : self.config.vocab_size], logits

    def condition(self, logits: Tensor) -> None:
        """The mask token says all that an earlier step could."""

    def embedded(self, ids: Tensor) -> None:
        """As `condition`."""

    def _lane(self, parts: Sequence[Part] = (), *, canvas: bool = False) -> Lane:
        lane = Lane(self.config.num_heads // self.config.num_kv_heads, canvas=canvas)
        for part in parts:
            lane.add(part)
        return lane

    def _lanes(self, parts: Sequence[Part]) -> tuple[Lane, Lane]:
        """Two lanes of half of the rows each, where there are enough."""
        count = sum(len(part.ids) for part in parts)
        half = -(-count // 2) if count > WORTH_TWO else count
        ahead, behind = list[Part](), list[Part]()
        for part in parts:
            left = half - sum(len(one.ids) for one in ahead)
            if left >= len(part.ids):
                ahead.append(part)
            elif left:
                first, second = part.cut(left)
                ahead.append(first)
                behind.append(second)
            else:
                behind.append(part)
        return self._lane(ahead), self._lane(behind)

    def _wave(self, ahead: Lane, behind: Lane) -> tuple[Tensor, Tensor]:
        """The logits that two lanes want. Each has a thread: the second one computes a layer once the first one has,
        whose keys and values are there then. A matrix is read from memory for both."""
        if not (ahead.ids and behind.ids):
            return self._logits(ahead), self._logits(behind)
        done = Semaphore(0)
        later = self._second.submit(self._logits, behind, begin=done.acquire)
        try:
            first = self._logits(ahead, end=done.release)
        finally:  # whatever came of it, nothing of this forward goes on behind it
            done.release(len(self._layers))
            wait([later])
        return first, later.result()

    @torch.inference_mode()
    def _logits(self, lane: Lane, begin: Step = lambda: None, end: Step = lambda: None) -> Tensor:
        """[rows wanted, width]. Before each layer, what a lane ahead has to do is waited for with `begin`; `end` is
        called behind it."""
        if not lane.ids:
            return torch.empty(0, self.width)
        at = torch.tensor(lane.ids)
        x = weights.grouped(*(part[at] for part in self._embed))
        cos, sin = rotary(self.config, torch.tensor(lane.positions))
        last = len(self._layers) - 1
        for number, (held, spans) in enumerate(zip(self._layers, lane.spans(), strict=True)):
            begin()
            wanted = torch.tensor(lane.wanted, dtype=torch.int64) if number == last else None
            x = _llama_layer.layer(x, held[lane.canvas], spans, cos, sin, wanted, self._shape, lane.canvas)
            end()
        if not lane.wanted:
            return torch.empty(0, self.width)
        return int8.product(rms_norm(x, x.shape[-1:], self._norm[lane.canvas], self._shape.eps), self._head)


def context(kv: KV, at: int, ids: Sequence[int]) -> Part:
    """Rows of context, each of which sees what is before it."""
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    return Part(kv, at, ids, range(at, at + len(ids)), causal)


def _append(kv: KV, ids: Sequence[int]) -> None:
    """Rows that were put become context."""
    kv.length += len(ids)
    kv.ids.extend(ids)


def attended() -> torch.dtype:
    """Of keys and values: bfloat16 where the CPU multiplies it, which takes half the time and the memory."""
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def rounded(rows: int) -> int:
    """Up to a multiple of 16, and of a half of the power of two below."""
    step = max(16, 1 << rows.bit_length() - 2)
    return -(-rows // step) * step


def additive(mask: Tensor | None, rows: int, end: int, share: int) -> Tensor:
    """What `rows` rows see of `end` columns, of the last ones as a bool mask [rows, columns] says: 0 or -inf, for each
    of the query heads that share a key head.

    Rows and columns are padded to few sizes: oneDNN makes code for each pair of them, in half a millisecond and half a
    megabyte.
    """
    added = torch.zeros(rounded(rows * share), -(-end // COLUMNS) * COLUMNS, dtype=attended())
    added[:, end:] = -torch.inf
    if mask is not None:
        added[: rows * share, end - mask.shape[1] : end].masked_fill_(~mask.repeat(share, 1), -torch.inf)
    return added


def packed(
    config: Config, base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], number: int
) -> tuple[Weights, Weights]:
    """One layer for inference, of the context path and of the canvas path; shape errors name the tensor."""
    name = f"layers.{number}"
    qkv, out, gate_up, down = (matrix(base, adapter, f"{name}.{m}", config.shape(m)) for m in MATRICES)
    first, second = norms(base, adapter, f"{name}.attn_norm", config), norms(base, adapter, f"{name}.mlp_norm", config)
    context, canvas = (Weights(a, qkv, out, m, gate_up, down) for a, m in zip(first, second, strict=True))
    return context, canvas


def matrix(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], name: str, size: tuple[int, int]) -> Matrix:
    """A matrix [N, K] of both paths, as `Merged` would have the canvas path's."""
    weight, up = expect(base, name, size), torch.zeros(0, size[0])
    if f"{name}.a" in adapter:
        rank = adapter[f"{name}.a"].shape[0]
        weight = torch.cat((weight, expect(adapter, f"{name}.a", (rank, size[1]))))
        up = expect(adapter, f"{name}.b", (size[0], rank)).T
    return Matrix(int8.pack(weight), up, size[0])


def norms(
    base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], name: str, config: Config
) -> tuple[Tensor, Tensor]:
    """The weights of an RMS norm (Zhang and Sennrich 2019) of the context path and of the canvas path."""
    size = (config.hidden_size,)
    return expect(base, name, size), own(adapter, base, name, size)


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
    if shape.num_layers > len(base):  # a layer has several, and each layer takes memory before its tensors are missed
        raise weights.WeightsError(
            f"config.json has {shape.num_layers} layers, {folder.name} too few tensors for them."
        )
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
