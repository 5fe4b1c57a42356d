"""DiffusionGemma: one Gemma 4 mixture-of-experts stack in two modes. Context rows are causal and write the KV cache.
Canvas rows see the cache and each other, leave nothing in the cache, and receive the predictions of the last step
(self-conditioning). Noise is uniform: there is no mask token, and every step predicts every slot again.

Results equal those of Transformers' `DiffusionGemmaForBlockDiffusion` (eager attention, dynamic cache). Rows of both
modes may share a forward: context rows never see canvas rows; canvas rows see the fresh context.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from caesura.engine import memory
from caesura.engine.cache import KV, Cache, Kept
from caesura.engine.cache.tensors import TensorStore
from caesura.engine.model import Drafter, Fixed, LoadChoice, ModelSpec, Run
from caesura.engine.models.devices import chosen, device_of
from caesura.engine.models.diffusion_gemma.files import (
    ROUNDED,
    Config,
    LayerWeights,
    Shape,
    Weights,
    canonical,
    generation,
    read,
    rounding,
    said_of_generation,
)
from caesura.engine.noise import Uniform
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.turns import turns_of
from caesura.engine.weights.checkpoint import Checkpoint
from caesura.engine.weights.forms import ON_GPU, rounds
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import experts, head
from caesura.kernels.attention import attention, rounded_attention
from caesura.kernels.gated import gated
from caesura.kernels.jit import fused
from caesura.kernels.linear import Activations
from caesura.kernels.matmul import products
from caesura.kernels.norms import add_attention, add_experts, add_signals, enter, rms, route
from caesura.kernels.rotary import rotary, turned
from caesura.model_store import title

if TYPE_CHECKING:
    from caesura.engine.weights.gguf.file import GGUF

__all__ = ["PINS", "ROUNDED", "Config", "DiffusionGemma", "canonical", "kept", "load", "load_gguf"]

log = logging.getLogger("caesura.engine")

CONTEXT = 8192  # default tokens of context
LEAST = 1024  # fewest tokens of context that a user may ask for
PINS = 12  # rows of the suffix that close a canvas
CHUNK = 512  # context rows of a step on a GPU, some 30 ms in FP8 on an H100 (gpu/gemma); a CPU takes an eighth of them
EVERYTHING = 1 << 62  # columns in the window of a full-attention layer: no limit
ENDS = ("<turn|>", "<|tool_response>")  # as its generation_config.json has them, of which a GGUF file names one
ENDING = ("eos", "eot", "eom")  # roles of such tokens in a GGUF file
CONTEXTS = 4  # contexts that are kept if they fit, even if that leaves little memory


class RowSpan(NamedTuple):
    """Rows of one sequence in a forward. `at` is the position of the first row, `context` the end of its context.
    Context rows are causal; canvas rows see their whole span and every context row in the window."""

    kv: KV
    rows: slice
    at: int
    context: int
    canvas: bool


def _split(qkv: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor | None]:
    """q, k and v of their product [parts, rows, n], as views; a full-attention layer has no v."""
    one = shape.kv_heads * shape.head_dim
    kept = (one, one) if shape.sliding else (one,)
    q, k, *v = qkv.split((qkv.shape[-1] - sum(kept), *kept), -1)
    return q, k, v[0] if v else None


class DiffusionGemma:
    """See `caesura.engine.model.Model`. Matrices and the residual stream are in `dtype`; norms, softmax and logits are
    in float32."""

    kernels = ""
    drafter: Drafter | None = None

    def __init__(
        self,
        name: str,
        config: Config,
        weights: Weights,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        contexts: int = CONTEXTS,
    ) -> None:
        self.name, self.config, self.weights, self.tokenizer, self.spec = name, config, weights, tokenizer, spec
        self.device, self.dtype = str(weights.embed.device), weights.embed.dtype
        self.machine, self.width, self._contexts = device_of(self.device), config.vocab_size, contexts
        self._head = head.Head(weights.head, weights.embed, config.softcap)
        self.scale = torch.tensor(config.hidden_size**0.5).to(self.dtype).item()  # rounded as the reference rounds it

    def __repr__(self) -> str:
        return f"<DiffusionGemma {self.name} {self.config.num_layers}x{self.config.hidden_size} {self.dtype}>"

    def cache(self) -> Cache:
        return Cache(kept(self.config), TensorStore(self.device, self.dtype), entries=self._contexts)

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._forward([], {id(kv): (kv, ids)})

    @torch.inference_mode()
    def denoise(self, runs: Sequence[Run]) -> TensorScores:
        return TensorScores(self.logits(self.hidden(runs)))

    @torch.inference_mode()
    def hidden(self, runs: Sequence[Run]) -> Tensor:
        fresh: dict[int, tuple[KV, Sequence[int]]] = {}
        for run in runs:
            if run.fresh:
                fresh[id(run.kv)] = run.kv, run.fresh
        return self._forward(runs, fresh)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return head.logits(self._head, hidden)

    @torch.inference_mode()
    def observe(self, rows: head.Rows) -> head.Seen:
        seen = head.observe(self._head, rows)
        return seen._replace(soft=seen.soft * self.scale)

    @torch.inference_mode()
    def score(self, hidden: Tensor, ids: Tensor) -> Tensor:
        return head.score(self._head, hidden, ids)

    @torch.inference_mode()
    def draw(self, rows: head.Rows, seen: head.Seen, at: Tensor, wanted: Tensor) -> Tensor:
        return head.draw(self._head, rows, seen, at, wanted)

    @torch.inference_mode()
    def condition(self, logits: Tensor) -> Tensor:
        """Temperature-scaled logits [rows, vocabulary] -> soft embeddings [rows, hidden]. The reference has both casts
        to `dtype` too."""
        soft = logits.to(self.dtype).softmax(-1, dtype=torch.float32).to(self.dtype)
        return (soft @ self.weights.embed) * self.scale

    def _forward(self, runs: Sequence[Run], fresh: Mapping[int, tuple[KV, Sequence[int]]]) -> Tensor:
        """The wanted hidden rows of the runs, after the last norm. `fresh` maps the id of a KV to the context that this
        forward appends to it."""
        spans = _spans(runs, fresh)
        ids = [i for _, rows in fresh.values() for i in rows] + [i for run in runs for i in run.ids]
        positions = torch.cat([torch.arange(s.at, s.at + s.rows.stop - s.rows.start) for s in spans]).to(self.device)
        mode = torch.cat([torch.full((s.rows.stop - s.rows.start,), int(s.canvas)) for s in spans]).to(self.device)
        x = self.embedded(torch.tensor(ids, device=self.device))
        x = self._conditioned(x, runs, [s for s in spans if s.canvas])

        def attend(number: int, layer: LayerWeights, turn: Tensor, qkv: Tensor) -> Tensor:
            parts = [self._attend(number, layer, qkv[:, span.rows], span, turn[:, span.rows]) for span in spans]
            return torch.cat(parts) if len(parts) > 1 else parts[0]

        h = self._through(x, rms(x, self.weights.layers[0].input_norm, self._eps), self.turns(positions), mode, attend)
        for kv, context in fresh.values():
            kv.length += len(context)
            kv.ids.extend(context)
        starts = [s.rows.start for s in spans if s.canvas]
        rows = [range(len(run.ids)) if run.wanted is None else run.wanted for run in runs]
        return h[[start + row for start, of_run in zip(starts, rows, strict=True) for row in of_run]]

    def _through(
        self, x: Tensor, h: Activations, turns: Mapping[Shape, Tensor], mode: Tensor, attend: "Attend"
    ) -> Tensor:
        """Rows [rows, hidden] after all layers and the last norm; h is x after the first norm. `mode` is 1 for canvas
        rows, else 0."""
        layers = self.weights.layers
        following = [*((layer.input_norm, layer.qkv.rounds) for layer in layers[1:]), (self.weights.norm, False)]
        for number, layer in enumerate(layers):
            own = partial(attend, number, layer, turns[layer.shape])
            x, h = self._layer(layer, x, h, own, mode, *following[number])
        assert isinstance(h, Tensor)
        return h

    def spans(self, seen: Tensor) -> dict[Shape, Tensor]:
        context = seen[:, :1]
        first = {True: (context - (self.config.sliding_window - 1)).clamp_min(0), False: torch.zeros_like(context)}
        return {shape: torch.cat((first[shape.sliding], seen), 1) for shape in set(self.config.shapes)}

    @torch.inference_mode()
    def fixed(self, rows: Fixed) -> Tensor:
        c, eps, first = self.weights.conditioner, self._eps, self.weights.layers[0]
        x, signals = enter(rows.ids, self.weights.embed, self.scale, rows.conditioning, rows.source, c.norm, eps)
        signals = c.down(gated(signals, c.gate_up))
        x, h = add_signals(x, signals, first.input_norm, rows.mode, eps, first.qkv.rounds)

        def attend(number: int, layer: LayerWeights, turn: Tensor, qkv: Tensor) -> Activations:
            buffers, table = rows.buffers[number], rows.tables[number]
            q = turned(*_split(qkv, layer.shape), layer.q_norm, layer.k_norm, turn, eps, *buffers, rows.places, table)
            window, spans = self._window(layer.shape), rows.spans[layer.shape]
            if layer.o.rounds:
                return rounded_attention(q, *buffers, window, spans, table)
            return attention(q, *buffers, None, window, spans, table)

        return self._through(x, h, rows.turns, rows.mode, attend)

    @torch.inference_mode()
    def turns(self, positions: Tensor) -> dict[Shape, Tensor]:
        return {shape: self._turn(positions, shape) for shape in set(self.config.shapes)}

    @torch.inference_mode()
    def embedded(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.weights.embed) * self.scale

    def _conditioned(self, x: Tensor, runs: Sequence[Run], spans: Sequence[RowSpan]) -> Tensor:
        """Add the predictions of the last step to canvas rows and norm them; the first step is normed too."""
        signals, places = [], list[Tensor]()
        for run, span in zip(runs, spans, strict=True):
            if run.conditioning is not None:
                soft = x[span.rows].clone()  # a row with a known token is conditioned on that token
                soft[list(run.wanted or range(len(run.ids)))[: len(run.conditioning)]] = run.conditioning.to(soft.dtype)
                signals.append(soft)
                places.append(torch.arange(span.rows.start, span.rows.stop, device=self.device))
        if signals:
            x = x.index_add(0, torch.cat(places), self._conditioner(torch.cat(signals)))
        if spans:
            first = spans[0].rows.start  # canvases come after all fresh context
            x = torch.cat((x[:first], rms(x[first:], None, self._eps)))
        return x

    def _conditioner(self, signals: Tensor) -> Tensor:
        c = self.weights.conditioner
        return c.down(gated(rms(signals, c.norm, self._eps), c.gate_up))

    @property
    def _eps(self) -> float:
        return self.config.rms_norm_eps

    def _turn(self, positions: Tensor, shape: Shape) -> Tensor:
        c = self.config
        theta, part = (c.sliding_theta, 1.0) if shape.sliding else (c.full_theta, c.full_rotary)
        return rotary(positions, shape.head_dim, theta, part, self.dtype)

    def _window(self, shape: Shape) -> int:
        return self.config.sliding_window if shape.sliding else EVERYTHING

    def _low(self, context: int, sliding: bool) -> int:
        """The first position that a span after `context` tokens can see. All rows of a canvas see the same context,
        because the window counts from the end of the context."""
        return max(0, context - (self.config.sliding_window - 1)) if sliding else 0

    def _attend(self, number: int, layer: LayerWeights, qkv: Tensor, span: RowSpan, turn: Tensor) -> Tensor:
        """Attention of one span, [rows, heads * width], from its products qkv [parts, rows, n] and its rotary
        positions. Canvases that share a context write their keys to the same place, so each attends before the next one
        writes."""
        low, end = self._low(span.context, layer.shape.sliding), span.at + qkv.shape[1]
        own = span.kv.get(number, span.at, end)
        q = turned(*_split(qkv, layer.shape), layer.q_norm, layer.k_norm, turn, self._eps, *own)
        keys, values = span.kv.get(number, low, end)
        return attention(q, keys, values, None if span.canvas else span.at - low, self._window(layer.shape))

    def _layer(
        self,
        layer: LayerWeights,
        x: Tensor,
        h: Activations,
        attend: Callable[[Tensor], Activations],
        mode: Tensor,
        following: Tensor,
        rounds: bool,
    ) -> tuple[Tensor, Activations]:
        """One layer for rows x [rows, hidden] and their norm h. Returns the new x and its norm by `following`, the next
        norm of the stack, as `Rows8` where what comes next `rounds`."""
        eps = self._eps
        attended = products(attend(products(h, layer.qkv)), layer.o)
        before = layer.post_attention_norm, layer.pre_mlp_norm, layer.pre_moe_norm
        views = layer.gate_up.rounds, layer.expert_gate_up.rounds
        x, to_mlp, to_moe, to_router = add_attention(x, attended, before, layer.router_scale, eps, views)
        mlp = products(gated(to_mlp, layer.gate_up, layer.down.rounds), layer.down)
        weights, chosen, lists = route(to_router, layer.router, layer.expert_scale, self.config.top_k_experts)
        moe = experts.pairs(to_moe, chosen, lists, layer.expert_gate_up, layer.expert_down)
        after = layer.post_mlp_norm, layer.post_moe_norm, layer.post_norm, following
        return add_experts(x, mlp, moe, after, layer.scalar, mode, eps, weights, rounds)


Attend = Callable[[int, LayerWeights, Tensor, Tensor], Activations]


def _spans(runs: Sequence[Run], fresh: Mapping[int, tuple[KV, Sequence[int]]]) -> list[RowSpan]:
    """The spans of a forward: fresh context first, then the canvases. Reserves their rows in the KVs."""
    spans, start = list[RowSpan](), 0
    room: dict[int, int] = {}
    for run in runs:
        room[id(run.kv)] = max(room.get(id(run.kv), 0), len(run.ids))
    for key, (kv, ids) in fresh.items():
        kv.reserve(len(ids) + room.pop(key, 0))
        spans.append(RowSpan(kv, slice(start, start + len(ids)), kv.length, kv.length, canvas=False))
        start += len(ids)
    for run in runs:
        if id(run.kv) in room:
            run.kv.reserve(room.pop(id(run.kv)))
        _, before = fresh.get(id(run.kv), (run.kv, ()))
        at = run.kv.length + len(before)
        spans.append(RowSpan(run.kv, slice(start, start + len(run.ids)), at, at, canvas=True))
        start += len(run.ids)
    return spans


def kept(config: Config) -> list[Kept]:
    """What the cache keeps for a context row, layer by layer."""
    return [Kept(s.kv_heads, s.head_dim, config.sliding_window if s.sliding else None) for s in config.shapes]


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> DiffusionGemma:
    """Load a published checkpoint, one layer at a time. Raises WeightsError or TokenizerError."""
    shape, device = Config.read(config), chosen(choice.device)
    if choice.quantise is not None:
        raise WeightsError(f"{folder.name} is quantised by `caesura models convert`, not when it is loaded.")
    context = _context(folder.name, shape, choice.context)
    tokenizer = Tokenizer(folder / "tokenizer.json")
    if tokenizer.size > shape.vocab_size:
        raise WeightsError(f"tokenizer.json has {tokenizer.size} tokens, but config.json says {shape.vocab_size}.")
    checkpoint = Checkpoint(folder, canonical, device, choice.progress)
    itemsize = 4 if checkpoint.dtype("embed_tokens.weight") == "F32" else 2
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    contexts = _contexts(folder.name, shape, size, context, itemsize, device)
    weights = _rounding(read(shape, checkpoint), choice, rounds(config))
    path = folder / "generation_config.json"
    described = spec(shape, tokenizer, device, context, said_of_generation(config, path), path)
    if checkpoint.skipped:
        log.info("Skipped %d tensors of %s that text does not need", len(checkpoint.skipped), folder.name)
    return DiffusionGemma(folder.name, shape, weights, tokenizer, described, contexts)


def load_gguf(file: "GGUF", choice: LoadChoice) -> DiffusionGemma:
    """Load a GGUF file. Its weights are kept in bfloat16, or in the form that the user chose. Raises WeightsError or
    TokenizerError."""
    from caesura.engine.weights.gguf.gemma import Restored

    name, shape, device = title(file.path), Config.read(file.config), chosen(choice.device)
    if choice.quantise not in (None, *ON_GPU):
        raise WeightsError(f"{name} cannot be computed in {choice.quantise}; choose {' or '.join(ON_GPU)}.")
    context, tokenizer = _context(name, shape, choice.context), file.tokenizer()
    if tokenizer.size > shape.vocab_size:
        raise WeightsError(f"{name} has {tokenizer.size} tokens, but weights for {shape.vocab_size} of them.")
    tensors = Restored(file, ROUNDED, choice.quantise, device, exact=choice.exact)
    contexts = _contexts(name, shape, tensors.nbytes, context, tensors.dtype.itemsize, device)
    weights = _rounding(read(shape, tensors), choice, choice.quantise == "fp8")
    roles = file.roles
    ends = (tokenizer.find(token) for token in {*ENDS, *(roles[role] for role in ENDING if role in roles)})
    said = {
        "eos_token_id": [end for end in ends if end is not None],
        "pad_token_id": tokenizer.find(roles.get("padding", "")),
    }
    described = spec(shape, tokenizer, device, context, {**file.config, **said}, file.path)
    return DiffusionGemma(name, shape, weights, tokenizer, described, contexts)


def _rounding(weights: Weights, choice: LoadChoice, prescribed: bool) -> Weights:
    """With activations in FP8 where that is `prescribed` and a GPU multiplies them; unless the choice is `exact`."""
    here = weights.embed.dtype == torch.bfloat16 and fused(weights.embed, fp8=True)
    return rounding(weights) if prescribed and here and not choice.exact else weights


def _context(name: str, shape: Config, wanted: int | None) -> int:
    """The tokens of context. Raises WeightsError if the model has no room for those wanted."""
    most = shape.max_position_embeddings - shape.canvas_length
    if most < LEAST:
        raise WeightsError(f"{name} has room for {most:,} tokens of context; {LEAST:,} are needed.")
    if wanted is not None and not LEAST <= wanted <= most:
        raise WeightsError(f"{name} takes {LEAST:,} to {most:,} tokens of context, not {wanted:,}.")
    return wanted or min(CONTEXT, most)


def _contexts(name: str, shape: Config, size: int, context: int, itemsize: int, device: str) -> int:
    """How many contexts are kept next to weights of `size` bytes. Raises DoesNotFit."""
    if device == "meta":
        return CONTEXTS
    step = memory.of_step(shape.vocab_size)
    step += memory.of_recorded(shape.vocab_size, itemsize) if device.startswith("cuda") else 0
    room = memory.free(device_of(device))
    return memory.fit(name, size, kept(shape), lambda _: step, context, itemsize, device, CONTEXTS, room, LEAST)


def spec(
    shape: Config, tokenizer: Tokenizer, device: str, context: int, said: Mapping[str, Any], path: Path
) -> ModelSpec:
    """With the schedule and the ends that `path` has `said`. The turns of a chat bring their own start. Raises
    WeightsError."""
    schedule, ends = generation(said, path, tokenizer.size)
    return ModelSpec(
        Uniform(shape.vocab_size, schedule, shape.canvas_length),
        Uniform.method,
        max_context=context,
        chunk=CHUNK // 8 if device == "cpu" else CHUNK,
        tail=0,
        head=PINS,
        ends=ends,
        sampler="entropy_bound",
        prompt="plain" if turns_of(tokenizer) is None else "chat",
    )
