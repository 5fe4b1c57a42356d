"""Decoders of the Llama kind. The context path is the base, read left to right; the canvas path is base + adapter.

Context is causal and kept in the KV cache. Canvas rows see all of it and each other: block diffusion with one block
(Arriola et al. 2025, BD3LM). Logits are shifted: the row before a slot predicts it, so the adapter starts from what the
base knows as a left-to-right model (Dream 7B). The base is also the verifier, since a canvas of one slot is next-token
prediction. An optional low-rank update of the base, `context.safetensors`, teaches it to read the suffix before the
gap; it is merged at load. A model without an adapter has no canvas and can only verify.

`load` reads our own stored form. causal.py and full/ build the same class from published checkpoints.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from caesura.engine import memory, methods, samplers
from caesura.engine.cache import FEW, KV, Cache, Kept
from caesura.engine.canvas.canvas import MAX_ROWS
from caesura.engine.models import Drafter, LengthRule, LoadChoice, Model, Run, Visibility, _llama_layer, _native
from caesura.engine.models._llama_config import Config, frequencies, turns
from caesura.engine.models._llama_gpu.layers import GpuLayers, Placed
from caesura.engine.models._llama_gpu.passes import Passes
from caesura.engine.models._llama_layer import Norm, Sparse, Weights, normalized
from caesura.engine.models._llama_weights import (
    SPECIALS,
    Source,
    base_of,
    by_library,
    by_torch,
    codes,
    expect,
    in_form,
    joined,
    moved,
    norms,
    packed,
)
from caesura.engine.noise import Absorbing, Noise
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import ahead
from caesura.engine.weights import stored as weights
from caesura.kernels import cpu, int8
from caesura.kernels.cpu import layers as native
from caesura.model_store.reading import quoted

# Rows; up to this many, torch uses one thread. Layers in plain Python need more rows before a second thread pays off.
WORTH_TWO = 64 if _llama_layer.layer is _llama_layer.written else 16
PACKERS = 2  # threads that pack matrices while a model loads
CHUNK = 128  # context rows of a step on a CPU; a GPU reads 512 in 24 ms and 128 in 15 (7B on an H100, gpu/causal)

Layers = _llama_layer.Layers | native.Layers | GpuLayers  # the layers of one path


def on_gpu(device: str) -> bool:
    return device.startswith("cuda")


class Part(NamedTuple):
    """Rows of `kv` from row `at` on. The bool mask [rows, columns] says which of the last columns they see; they see
    all columns before those."""

    kv: KV
    at: int
    ids: Sequence[int]
    positions: Sequence[int]
    mask: Tensor | None
    wanted: Sequence[int] = ()  # rows whose logits are returned

    def cut(self, count: int) -> "tuple[Part, Part]":
        """The first `count` rows, which must not see the rest, and the rest."""
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
    """Rows of one path that one thread computes; `share` query heads share a key head."""

    def __init__(self, share: int, *, canvas: bool) -> None:
        self.canvas, self._share = canvas, share
        self.parts = list[tuple[int, Part]]()  # (first row, part)
        self.ids, self.positions, self.wanted = list[int](), list[int](), list[int]()

    def __repr__(self) -> str:
        return f"<Lane of {len(self.ids)} rows {'canvas' if self.canvas else 'context'} {len(self.parts)} parts>"

    def add(self, part: Part) -> None:
        """Append a part and reserve its rows in the KV."""
        start = len(self.ids)
        part.kv.reserve(part.at + len(part.ids) - part.kv.length)
        self.parts.append((start, part))
        self.ids += part.ids
        self.positions += part.positions
        self.wanted += [start + row for row in part.wanted]

    def placed(self, at: int = 0) -> list[native.KvRows]:
        """The spans of the parts, with the buffers of the cache from layer `at` on."""
        return [
            native.KvRows(start, start + len(part.ids), part.at, part.kv.buffers[at:], part.mask)
            for start, part in self.parts
        ]


class BlockLlama:
    """See `caesura.engine.models.Model`. Activations are float32. On a CPU, matrices are int8 if there is a kernel for
    it. With a `dtype` they are floats of that type: on a GPU, and for comparisons with a reference.

    Without an `adapter` there is no canvas: `noise` and `null_id` are None, and logits have no columns for SPECIALS.
    """

    shift: int = 1
    visibility: Visibility = "context"
    block_size: int = 1
    lengths: LengthRule = "null"
    expand_id: int | None = None
    rows: int = MAX_ROWS
    radius: int = 0
    finish: Sequence[int] = ()
    drafting: Model | None = None
    taps: Sequence[int] = ()  # layers whose output a drafter reads (_light.py, drafters/)

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        base: Mapping[str, Tensor],
        adapter: Mapping[str, Tensor] | None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        contexts: int = FEW,
        stretch: Tensor | None = None,
        quantise: str = "",
    ) -> None:
        """The cache keeps at most `contexts` contexts. `stretch` [turning / 2] divides the rotary frequencies.
        Matrices stored as floats get the form `quantise` (weights/forms.py), if it is not the usual one."""
        self.name, self.device, self.config, self.tokenizer = name, device, config, tokenizer
        drawn = adapter is not None
        self.tail, self.head = config.tail, config.head
        self.noise: Noise | None = Absorbing(config.vocab_size) if drawn else None
        self.null_id: int | None = config.vocab_size + SPECIALS.index("null") if drawn else None
        self.ends: frozenset[int] = frozenset()
        self.width = config.vocab_size + (len(SPECIALS) if drawn else 0)
        self.start: Sequence[int] = ()
        self.separator: Sequence[int] = ()
        self.method = self.noise.method if self.noise is not None else "verify"
        self.sampler = "threshold"
        self.prompt = "suffix_first"
        self.max_context = 768
        self.chunk = CHUNK if device == "cpu" else 4 * CHUNK
        self._dtype, self._contexts, self._quantise = dtype, contexts, quantise
        self.kernels = "" if dtype else cpu.chosen()
        self._special = torch.empty(0, config.hidden_size) if adapter is None else adapter["special"]
        pack = partial(packed, config, base, adapter or {}, self._form)
        with ThreadPoolExecutor(PACKERS) as pool:  # one core each
            outer = pool.submit(self._embed_and_head, base)
            self._layers = list(pool.map(pack, range(config.num_layers)))
        self._embed, self._head = outer.result()
        self._norm = tuple(moved(norm, device) for norm in norms(base, adapter or {}, "norm", config.hidden_size))
        self._frequencies = frequencies(config, device)
        if stretch is not None:
            self._frequencies = self._frequencies / stretch.to(device)
        self._shape = config.layer
        context, drawn_by = zip(*self._layers, strict=True)
        self._paths = [self._path(config, context, canvas=False), self._path(config, drawn_by, canvas=True)]
        # Our own kernels need no second lane: they split each product among their own threads.
        self._second = ThreadPoolExecutor(1, "lane") if cpu.chosen() == "torch" else None
        self._passes: Passes | None = None  # recorded ones

    @property
    def drafter(self) -> Drafter | None:
        return None

    def __repr__(self) -> str:
        return f"<BlockLlama {self.name} {self.config.num_layers}x{self.config.hidden_size}>"

    def _path(self, config: Config, layers: Sequence[Weights | Sparse], *, canvas: bool) -> Layers:
        """The layers of a path: for a GPU, in C, in TorchScript or in plain Python. Only the last two turn a part of a
        head, and C has no experts."""
        dense, shape = [layer for layer in layers if isinstance(layer, Weights)], config.layer
        known = len(dense) == len(layers) and config.turning == config.head_dim
        if self._dtype is None and known and _native.fits(config.hidden_size, config.intermediate_size, shape):
            return _native.layers(dense, shape, canvas)
        if (
            self._dtype is not None
            and on_gpu(self.device)
            and not len(self._special)
            and config.turning == config.head_dim
        ):
            return GpuLayers(layers, shape, self._dtype, canvas=canvas)
        scripted = self._dtype is None and cpu.chosen() == "torch" and int8.available()
        return _llama_layer.Layers(layers, shape, canvas, scripted=scripted)

    def _form(self, *sources: Source, quantise: str | None = None) -> int8.Packed:
        """Matrices of equal K, stacked by rows, in the form that `int8.product` takes."""
        form = self._quantise if quantise is None else quantise
        if self._dtype is not None:
            coded = None if self._dtype == torch.float32 else in_form(sources, form, self.device)
            return joined(sources).to(self.device, self._dtype) if coded is None else coded
        return by_torch(*sources) if cpu.chosen() == "torch" else by_library(*sources, form=form or "q8")

    def _embed_and_head(self, base: Mapping[str, Tensor]) -> tuple[tuple[Tensor, ...], int8.Packed]:
        """The embedding, as codes and scales or as floats, and the head: the same matrix if the base has none. Both
        have 8 bits where anything is quantised."""
        size = self.config.vocab_size, self.config.hidden_size
        head: list[Source] = [(base, "head" if "head" in base else "embed", size)]
        if len(self._special):
            head.append(({"special": self._special}, "special", (len(SPECIALS), size[1])))
        if self._dtype is None or (self._quantise and self._dtype != torch.float32):
            embed = codes(base, "embed", size)
            quantise = "q8" if self._dtype is None else "fp8"
            return tuple(part.to(self.device) for part in embed), self._form(*head, quantise=quantise)
        stored = (expect(base, "embed", size).to(self.device, self._dtype),)
        return stored, self._form(*head) if "head" in base or len(head) > 1 else stored[0]

    def _embedded(self, ids: Tensor) -> Tensor:
        """Embeddings of ids [n], float32 [n, hidden]."""
        known = ids.clamp_max(self.config.vocab_size - 1)
        rows = [part[known] for part in self._embed]
        found = weights.grouped(*rows) if len(rows) > 1 else rows[0].float()
        if len(self._special):
            special = self._special[(ids - self.config.vocab_size).clamp_min(0)]
            found = torch.where((ids > known)[:, None], special, found)
        return found

    def cache(self) -> Cache:
        kept, dtype = self._kept(), self._dtype or attended()
        return Cache(kept, self.device, dtype, entries=self._contexts, block=self.block_size)

    def keep_contexts(self, free: int | None) -> None:
        """Keep as many contexts as memory.py allows for so many free bytes."""
        one = memory.of_context(self._kept(), self.max_context, (self._dtype or attended()).itemsize)
        self._contexts = memory.contexts(free, one, self.device)

    def _kept(self) -> list[Kept]:
        """What the cache keeps for a context row, layer by layer."""
        return kept(self.config, self.device)

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._wave(*self._lanes([self._context(kv, ids)]))
        _append(kv, ids)

    def denoise(self, runs: Sequence[Run]) -> Tensor:
        return self.forward((), runs)[1]

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[Tensor, Tensor]:
        """In a KV, the rows of the fresh context come first, then the tree, then the canvas."""
        alone = self._passes is not None and len(trees) == 1 and not canvases
        judged = self._passes.judge(trees[0]) if self._passes is not None and alone else None
        if judged is None:
            judged, logits = self._launched(trees, canvases)
        else:
            logits = judged[:0]
        for run in (*trees, *canvases):
            _append(run.kv, run.fresh)
        for run in trees:
            run.kv.length += len(run.ids)
        return judged[:, : self.config.vocab_size], logits

    def _launched(self, trees: Sequence[Run], canvases: Sequence[Run]) -> tuple[Tensor, Tensor]:
        """The logits of `forward`, whose rows are in the KVs then; what of them is valid is for the caller to say."""
        read, drawn = list[Part](), self._lane(canvas=True)
        ends = {id(run.kv): run.kv.length for run in (*trees, *canvases)}
        for run in (*trees, *canvases):
            if run.fresh:
                read.append(self._context(run.kv, run.fresh))
                ends[id(run.kv)] += len(run.fresh)
        for run in trees:
            read.append(Part(run.kv, ends[id(run.kv)], run.ids, run.positions, run.mask, range(len(run.ids))))
        of_trees = {id(run.kv): len(run.ids) for run in trees}
        for run in canvases:  # canvases of one KV overwrite each other: nothing of them is kept
            count, hidden = len(run.ids), of_trees.get(id(run.kv), 0)
            mask = self._seen(run.positions) if self.visibility == "blocks" else run.mask
            if hidden:  # rows of the tree, which no canvas sees
                mask = pad(torch.ones(count, count, dtype=torch.bool) if mask is None else mask, (hidden, 0))
            asked = range(count) if run.wanted is None else run.wanted
            wanted = [max(0, row - self.shift) for row in asked]
            drawn.add(Part(run.kv, ends[id(run.kv)] + hidden, run.ids, run.positions, mask, wanted))
        if canvases:
            return self._wave(self._lane(read), drawn)
        parts = [part for part in self._wave(*self._lanes(read)) if len(part)]
        return parts[0] if len(parts) == 1 else torch.cat(parts), self._logits(drawn)

    def rehearse(self) -> None:
        """Record passes of every size on a GPU, where layers are dense and no drafter reads them."""
        layers = self._paths[False]
        if self._passes is None and isinstance(layers, GpuLayers) and layers.dense and not self.taps:
            self._passes = Passes(partial(self._fixed, layers), self.width, self.device)
            self._passes.rehearse(self.cache().lease([]))

    @torch.inference_mode()
    def _fixed(self, layers: GpuLayers, ids: Tensor, positions: Tensor, placed: Placed) -> Tensor:
        """The logits [rows, width] of rows of context or of a tree, without a wait for the host."""
        x = layers.fixed(self._embedded(ids), *turns(self._frequencies, positions), placed)
        return self._outer(x, canvas=False)

    def _context(self, kv: KV, ids: Sequence[int]) -> Part:
        """Rows of context after those of `kv`, each of which sees what is before it, and all of its block."""
        positions = range(kv.length, kv.length + len(ids))
        return Part(kv, kv.length, ids, positions, self._seen(positions))

    def _seen(self, positions: Sequence[int]) -> Tensor:
        """Which of these rows each of them sees, bool [rows, rows]: those of its block and of earlier ones."""
        blocks = torch.tensor(positions) // self.block_size
        return blocks[:, None] >= blocks

    def condition(self, logits: Tensor) -> None:
        """None: this family has no self-conditioning."""

    def embedded(self, ids: Tensor) -> None:
        """None, as in `condition`."""

    def _lane(self, parts: Sequence[Part] = (), *, canvas: bool = False) -> Lane:
        lane = Lane(self.config.num_heads // self.config.num_kv_heads, canvas=canvas)
        for part in parts:
            lane.add(part)
        return lane

    def _lanes(self, parts: Sequence[Part]) -> tuple[Lane, Lane]:
        """Two lanes with half of the rows each, if there are enough rows and a second thread; else all in the first."""
        count = sum(len(part.ids) for part in parts)
        half = -(-count // 2) if count > WORTH_TWO and self._second and self.device == "cpu" else count
        ahead, behind = list[Part](), list[Part]()
        for part in parts:
            left = half - sum(len(one.ids) for one in ahead)
            left -= (part.at + left) % self.block_size  # rows of a block see each other
            if left >= len(part.ids):
                ahead.append(part)
            elif left > 0:
                first, second = part.cut(left)
                ahead.append(first)
                behind.append(second)
            else:
                behind.append(part)
        return self._lane(ahead), self._lane(behind)

    def _wave(self, ahead: Lane, behind: Lane) -> tuple[Tensor, Tensor]:
        """The wanted logits of two lanes; rows of the second see rows of the first. With torch each lane has a thread.
        The second thread starts a layer once the first has finished it and so written its keys and values. Both
        threads share one read of each matrix from memory."""
        if self._second is None or not (ahead.ids and behind.ids):
            return self._logits(ahead), self._logits(behind)
        done = Semaphore(0)
        later = self._second.submit(self._logits, behind, done)
        try:
            first = self._logits(ahead, None, done)
        finally:  # even after an error, the second thread must not outlive this call
            done.release(self.config.num_layers)
            wait([later])
        return first, later.result()

    @torch.inference_mode()
    def _logits(self, lane: Lane, *order: Semaphore | None) -> Tensor:
        """The logits [wanted rows, width] of a lane. `order`: see `before` and `progress` in `_llama_layer.Layers`."""
        if not lane.ids:
            return torch.empty(0, self.width, device=self.device)
        x = self._embedded(torch.tensor(lane.ids, device=self.device))
        cos, sin = turns(self._frequencies, torch.tensor(lane.positions, device=self.device))
        taps = () if lane.canvas else self.taps
        x, tapped = self._paths[lane.canvas].through(x, cos, sin, lane.placed(), lane.wanted, taps, *order)
        if taps:
            self._tap(tapped, lane, cos, sin)
        if not lane.wanted:
            return torch.empty(0, self.width, device=self.device)
        return self._outer(x, canvas=lane.canvas)

    def _outer(self, x: Tensor, *, canvas: bool) -> Tensor:
        """Rows after all layers [rows, hidden] -> logits [rows, width]."""
        return int8.product(self._normed(x, self._norm[canvas]), self._head)

    def _normed(self, x: Tensor, norm: Norm) -> Tensor:
        """Rows [rows, hidden] after a norm, computed where the layers are."""
        if isinstance(self._paths[False], native.Layers):
            return native.normalized(x, native.Norm(*norm), self._shape.eps)
        return normalized(x, norm, self._shape.eps)

    def _tap(self, tapped: Sequence[Tensor], lane: Lane, cos: Tensor, sin: Tensor) -> None:
        """Keep what a drafter needs of the rows of a lane, in the cache layers that it adds after the base's."""
        raise NotImplementedError


def _append(kv: KV, ids: Sequence[int]) -> None:
    """Make rows context whose keys and values are already in the KV."""
    kv.length += len(ids)
    kv.ids.extend(ids)


def kept(config: Config, device: str) -> list[Kept]:
    """What a cache keeps for a context row, layer by layer. A GPU's kernels read whole keys."""
    return [Kept(config.num_kv_heads, config.head_dim, turned=not on_gpu(device))] * config.num_layers


def attended() -> torch.dtype:
    """The dtype of keys and values: bfloat16, half the memory, where that is fast; else float32."""
    return torch.bfloat16 if cpu.chosen() != "torch" or torch.cpu._is_avx512_bf16_supported() else torch.float32


def load(folder: Path, config: dict[str, Any], choice: LoadChoice) -> BlockLlama:
    """Load a model folder in our own stored form. Raises WeightsError or TokenizerError."""
    weights.verify(folder)
    del choice  # the files suit only the int8 kernels of a CPU, and the model was trained for one length of context
    torch.set_num_threads(1)  # for a canvas or a chunk of context, barriers cost more than a second thread gains
    shape = Config.read(config)
    tokenizer = ahead.done(Tokenizer, folder / "tokenizer.json")
    base = base_of(folder)
    if tokenizer.size != shape.vocab_size:
        raise weights.WeightsError(
            f"tokenizer.json has {tokenizer.size} tokens, but config.json says {shape.vocab_size}."
        )
    if shape.num_layers > len(
        base
    ):  # a layer has several tensors; checked first, because each layer takes memory before a missing tensor is noticed
        raise weights.WeightsError(
            f"config.json says {shape.num_layers} layers, but {folder.name} has too few tensors for them."
        )
    adapter: Mapping[str, Tensor] | None = None
    if (folder / "adapter.safetensors").is_file():
        adapter = weights.Stored(folder / "adapter.safetensors")
        expect(adapter, "special", (len(SPECIALS), shape.hidden_size))
    named = str(config.get("name", folder.name))
    if (folder / "light.safetensors").is_file():
        from caesura.engine.models._light import LightLlama  # _light imports this file

        light = weights.Stored(folder / "light.safetensors")
        model: BlockLlama = LightLlama(named, shape, tokenizer, base, adapter, light)
    else:
        model = BlockLlama(named, shape, tokenizer, base, adapter)
    model.separator = [tokenizer.special(str(config.get("separator")))]
    ends = config.get("ends", [])
    if not isinstance(ends, list):
        raise weights.WeightsError(f"config.json is damaged: ends is {quoted(ends)}, not a list of tokens.")
    model.ends = frozenset(tokenizer.special(str(token)) for token in ends)
    model.keep_contexts(memory.free("cpu"))
    named = str(config.get("sampler", config.get("method", model.method)))  # older files name a method as their sampler
    if model.noise is not None and named in samplers.names():
        model.sampler = named
    elif named in methods.names() and not methods.refusal(named, cast(Model, model)):
        model.method = named
    else:
        raise weights.WeightsError(
            f"config.json names {quoted(named)}, which is neither a sampler nor a method of this model."
        )
    return model
