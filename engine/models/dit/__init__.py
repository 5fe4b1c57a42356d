"""Small diffusion transformers (DiT; Peebles and Xie 2023) over GPT-2's tokens. They share this trunk, whose layers are
modulated by the noise level; a file for each family has the names of its checkpoints and the meaning of their output.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, pad, scaled_dot_product_attention, silu

from caesura.engine import memory
from caesura.engine.cache import FEW, KV, Cache, Kept
from caesura.engine.cache.tensors import TensorStore
from caesura.engine.model import MAX_ROWS, LoadChoice, ModelSpec, Run
from caesura.engine.models.devices import chosen, device_of
from caesura.engine.models.llama.layer import rotate
from caesura.engine.models.llama.rotary import turns
from caesura.engine.noise import Absorbing
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.tokenizer import load as load_tokenizer
from caesura.engine.weights.checkpoint import Checkpoint
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import rotary
from caesura.model_store.reading import reason

CONTEXT = {"cpu": 256}  # tokens around a hole, unless the user asks for others;
USUAL = 512  # on a GPU
LEAST = 64  # that a user may ask for
RADIUS = 64  # default rows next to a slot that every step computes
ROWS = 8192  # most rows of a step on a GPU, all canvases together
WORK = 1 << 37  # multiplications of a step on a CPU in float32: about three seconds of one core
THETA = 10_000.0  # the longest wave of positions, and of the noise level
CHUNK = 128  # context rows of a step, in a model of blocks
WAVES = 256  # columns of the noise level's embedding
MLP = 4  # the MLP is this much wider than the layer
LEAST_LEVEL, MOST_LEVEL = 1e-5, 1 - 1e-3  # shares of masked rows that training showed (the log-linear schedule)
ENDOFTEXT = "<|endoftext|>"

Output = Callable[[Tensor, float], Tensor]  # the head's rows [n, vocabulary] and sigma -> logits


@dataclass(frozen=True)
class Config:
    vocabulary: int  # the mask token is the last
    hidden: int
    cond: int  # columns of the noise level that modulates the layers
    layers: int
    heads: int
    length: int  # rows that training showed

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> "Config":
        """Raises WeightsError where a size is missing, is no possible number, or does not divide another."""
        try:
            shape = cls(**{name: int(said[name]) for name in cls.__annotations__})
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise WeightsError(f"config.json is damaged: {reason(error)}.") from error
        if not all(0 < size <= 1 << 20 for size in vars(shape).values()):
            raise WeightsError("config.json is damaged: every size must be above 0, and possible.")
        if shape.hidden % (2 * shape.heads):
            raise WeightsError("config.json is damaged: the heads do not divide the hidden size evenly.")
        return shape

    @property
    def of_layer(self) -> int:
        """Weights of a layer's matrices."""
        return self.hidden * ((4 + 2 * MLP) * self.hidden + 6 * self.cond)


class Affine(NamedTuple):
    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N] in the weight's dtype."""
        return linear(x.to(self.weight.dtype), self.weight, self.bias)


class DitLayer(NamedTuple):
    attn_norm: Tensor
    qkv: Affine
    out: Affine
    mlp_norm: Tensor
    up: Affine
    down: Affine
    modulation: Affine  # [6 hidden, cond]: shift, scale and gate of attention, then of the MLP


class Weights:
    """The tensors of a checkpoint by their places in the trunk. Raises WeightsError."""

    def __init__(self, shape: Config, tensors: Checkpoint, dtype: torch.dtype) -> None:
        self._tensors, self._dtype = tensors, dtype
        hidden, cond, vocabulary = shape.hidden, shape.cond, shape.vocabulary
        self.embed = tensors.tensor("vocab_embed.embedding", (vocabulary, hidden), dtype)
        self.level = [self._affine("sigma_map.mlp.0", cond, WAVES), self._affine("sigma_map.mlp.2", cond, cond)]
        self.layers = [self._layer(f"blocks.{number}.", hidden, cond) for number in range(shape.layers)]
        self.norm = tensors.tensor("output_layer.norm_final.weight", (hidden,), dtype)
        self.head = self._affine("output_layer.linear", vocabulary, hidden)
        self.modulation = self._affine("output_layer.adaLN_modulation", 2 * hidden, cond)
        tensors.finish()

    def _affine(self, name: str, rows: int, columns: int, *, bias: bool = True) -> Affine:
        weight = self._tensors.tensor(f"{name}.weight", (rows, columns), self._dtype)
        return Affine(weight, self._tensors.tensor(f"{name}.bias", (rows,), self._dtype) if bias else None)

    def _layer(self, at: str, hidden: int, cond: int) -> DitLayer:
        return DitLayer(
            self._tensors.tensor(f"{at}norm1.weight", (hidden,), self._dtype),
            self._affine(f"{at}attn_qkv", 3 * hidden, hidden, bias=False),
            self._affine(f"{at}attn_out", hidden, hidden, bias=False),
            self._tensors.tensor(f"{at}norm2.weight", (hidden,), self._dtype),
            self._affine(f"{at}mlp.0", MLP * hidden, hidden),
            self._affine(f"{at}mlp.2", hidden, MLP * hidden),
            self._affine(f"{at}adaLN_modulation", 6 * hidden, cond),
        )


class Dit:
    """See `caesura.engine.model.Model`. Each canvas has a forward of its own: its rows are enough for a product, and a
    batch changes no result. A `timed` model is told the noise level: the share of rows that are masked, which in
    training was 1 - exp(-sigma). In a model of blocks a row sees its block and those before it."""

    drafter = None
    kernels = ""

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        weights: Weights,
        device: str,
        output: Output,
        *,
        timed: bool,
        contexts: int,
    ) -> None:
        """At most `contexts` contexts are kept."""
        self.name, self.device, self.config, self.tokenizer, self.spec = name, device, config, tokenizer, spec
        self._weights, self._output, self._timed, self._contexts = weights, output, timed, contexts
        self.machine, self._mask = device_of(device), config.vocabulary - 1
        self.width = config.vocabulary
        width = config.hidden // config.heads
        self._frequencies = rotary.frequencies(width, THETA, width // 2, torch.device(device))
        self._waves = rotary.frequencies(WAVES, THETA, WAVES // 2, torch.device(device))

    def __repr__(self) -> str:
        return f"<Dit {self.name} {self.config.layers}x{self.config.hidden}>"

    def cache(self) -> Cache:
        store = TensorStore(self.device, self._weights.embed.dtype)
        return Cache(kept(self.config), store, entries=self._contexts, block=self.spec.block_size)

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        if ids:
            self._through(Run(kv, ids, range(kv.length, kv.length + len(ids))))
            kv.ids += ids
            kv.length += len(ids)

    def denoise(self, runs: Sequence[Run]) -> TensorScores:
        for run in runs:
            self.prefill(run.fresh, run.kv)
        nothing = torch.empty(0, self.width, device=self.device)
        return TensorScores(torch.cat([nothing, *map(self._logits, runs)]))

    def condition(self, logits: Tensor) -> None:
        """The mask token says all that an earlier step could."""

    def embedded(self, ids: Tensor) -> None:
        """As `condition`."""

    def sigma(self, run: Run) -> float:
        """The noise level of a canvas; 0 for a model that was trained without."""
        if not self._timed:
            return 0.0
        share = sum(token == self._mask for token in run.ids) / (run.kv.length + len(run.ids))
        return -math.log1p(-min(max(share, LEAST_LEVEL), MOST_LEVEL))

    @torch.inference_mode()
    def _logits(self, run: Run) -> Tensor:
        """[rows wanted, width]; no row becomes a mask."""
        rows, level = self._through(run)
        wanted = rows if run.wanted is None else rows[torch.tensor(run.wanted, dtype=torch.int64, device=self.device)]
        shift, scale = self._weights.modulation(level).chunk(2)
        head = self._weights.head(modulated(wanted, self._weights.norm, shift, scale)).float()
        logits = self._output(head, self.sigma(run))
        logits[:, self._mask] = -torch.inf
        return logits

    @torch.inference_mode()
    def _through(self, run: Run) -> tuple[Tensor, Tensor]:
        """The rows [n, hidden] of a run after the last layer, and what modulates the layers. Their keys and values are
        in the KV then, after the context."""
        kv, level = run.kv, self._level(self.sigma(run))
        kv.reserve(len(run.ids))
        x = self._weights.embed[torch.tensor(run.ids, device=self.device)].float()
        seen, positions = self._seen(run), torch.tensor(run.positions, device=self.device)
        rotations = turns(self._frequencies, positions)
        for number, layer in enumerate(self._weights.layers):
            columns = kv.get(number, 0, kv.length + len(run.ids))
            x = through(layer, x, level, rotations, columns, seen, self.config.heads)
        return x, level

    def _seen(self, run: Run) -> Tensor | None:
        """The columns that each row sees, bool [n, context and n]; None for all."""
        mask = None if run.mask is None else torch.from_numpy(run.mask)
        if mask is None and self.spec.visibility == "blocks":
            blocks = torch.tensor(run.positions) // self.spec.block_size
            mask = blocks[:, None] >= blocks
        return None if mask is None else pad(mask.to(self.device), (run.kv.length, 0), value=True)

    def _level(self, sigma: float) -> Tensor:
        """What modulates the layers, [cond]."""
        first, second = self._weights.level
        return silu(second(silu(first(rotary.cos_sin(sigma * self._waves).flatten()))))


def through(
    layer: DitLayer,
    x: Tensor,
    level: Tensor,
    rotations: tuple[Tensor, Tensor],
    columns: tuple[Tensor, Tensor],
    seen: Tensor | None,
    heads: int,
) -> Tensor:
    """Rows [n, hidden] through a layer. They take the last of the `columns`, keys and values [heads, context and n,
    width]; each sees those that its row of the bool mask `seen` says, or all."""
    shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = layer.modulation(level).chunk(6)
    qkv = layer.qkv(modulated(x, layer.attn_norm, shift, scale)).unflatten(-1, (3, heads, -1))
    turned = rotate(qkv[:, :2].float(), *(part[:, None] for part in rotations)).to(qkv.dtype).transpose(0, 2)
    keys, values = columns
    keys[:, -len(x) :], values[:, -len(x) :] = turned[:, 1], qkv[:, 2].transpose(0, 1)
    found = scaled_dot_product_attention(turned[None, :, 0], keys[None], values[None], attn_mask=seen)
    x = x + gate * layer.out(found[0].transpose(0, 1).flatten(1))
    inner = gelu(layer.up(modulated(x, layer.mlp_norm, mlp_shift, mlp_scale)), approximate="tanh")
    return x + mlp_gate * layer.down(inner)


def modulated(x: Tensor, norm: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """The layer norm, without a bias, of float32 rows [n, hidden], scaled and shifted."""
    return layer_norm(x, x.shape[-1:], norm.float()) * (1 + scale) + shift


def predicted(head: Tensor, sigma: float) -> Tensor:
    """The output of a model that was trained to predict the token (SUBS, Sahoo et al. 2024)."""
    return head


def kept(shape: Config) -> list[Kept]:
    """What a row of context takes."""
    return [Kept(shape.heads, shape.hidden // shape.heads)] * shape.layers


def spec(shape: Config, tokenizer: Tokenizer, device: str, context: int, radius: int) -> ModelSpec:
    """Of full visibility. `context` are the tokens around a hole; `radius` as in `ModelSpec`."""
    work = WORK // (shape.layers * shape.of_layer)
    return ModelSpec(
        Absorbing(shape.vocabulary - 1),
        Absorbing.method,
        max_context=context,
        chunk=CHUNK,
        tail=context,
        head=context,
        rows=ROWS if device != "cpu" else max(context + MAX_ROWS, min(ROWS, work)),
        visibility="full",
        radius=radius,
        ends=frozenset({tokenizer.special(ENDOFTEXT)}),
        prompt="inline",
    )


def load(
    folder: Path,
    shape: Config,
    choice: LoadChoice,
    canonical: Callable[[str], str | None],
    described: Callable[[Config, Tokenizer, str, int, int], ModelSpec] = spec,
    *,
    timed: bool,
    output: Output = predicted,
) -> Dit:
    """Read a published checkpoint, whose names `canonical` maps to the trunk's and whose spec `described` makes. Raises
    WeightsError or TokenizerError."""
    tokenizer, device = tokenizer_of(folder, shape), chosen(choice.device)
    limit = shape.length - MAX_ROWS
    if limit < LEAST:
        raise WeightsError(f"{folder.name} sees {shape.length:,} tokens at once; {LEAST + MAX_ROWS:,} are needed.")
    if choice.context is not None and not LEAST <= choice.context <= limit:
        raise WeightsError(f"{folder.name} takes {LEAST:,} to {limit:,} tokens of context, not {choice.context:,}.")
    context = choice.context or min(CONTEXT.get(device, USUAL), limit)
    radius = 0 if choice.exact else RADIUS if choice.radius is None else choice.radius
    dtype = torch.bfloat16 if device.startswith("cuda") and not choice.exact else torch.float32
    contexts = FEW if device == "meta" else fitting(folder.name, shape, context, device, dtype)
    weights = Weights(shape, Checkpoint(folder, canonical, device, choice.progress), dtype)
    if device == "cpu":
        torch.set_num_threads(1)  # as in llama/stored.py
    made = described(shape, tokenizer, device, context, radius)
    return Dit(folder.name, shape, tokenizer, made, weights, device, output, timed=timed, contexts=contexts)


def tokenizer_of(folder: Path, shape: Config) -> Tokenizer:
    """GPT-2's, which these repositories do not have. Raises WeightsError or TokenizerError."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.json")):
        raise WeightsError(f"{folder.name} has no tokenizer; put GPT-2's vocab.json and merges.txt into {folder}.")
    tokenizer = load_tokenizer(folder, usual="GPT2Tokenizer")
    if tokenizer.size != shape.vocabulary - 1:
        raise WeightsError(
            f"The tokenizer of {folder.name} has {tokenizer.size:,} tokens, and the model {shape.vocabulary - 1:,} "
            f"besides its mask; put GPT-2's vocab.json and merges.txt into {folder}."
        )
    tokenizer.reserve(tokenizer.special(ENDOFTEXT))  # vocab.json alone does not call it special
    return tokenizer


def fitting(name: str, shape: Config, context: int, device: str, dtype: torch.dtype) -> int:
    """How many contexts are kept. Raises DoesNotFit."""
    size = dtype.itemsize * (shape.layers * shape.of_layer + 2 * shape.vocabulary * shape.hidden)
    room, step = memory.free(device_of(device)), memory.of_step(shape.vocabulary)
    return memory.fit(name, size, kept(shape), lambda _: step, context, dtype.itemsize, device, FEW, room, LEAST)
