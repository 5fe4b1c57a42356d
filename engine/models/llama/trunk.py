"""Decoders of the Llama kind. The context path is the base, read left to right; the canvas path is base + adapter.

Context is causal and kept in the KV cache. Canvas rows see all of it and each other: block diffusion with one block
(Arriola et al. 2025, BD3LM). Logits are shifted: the row before a slot predicts it, so the adapter starts from what the
base knows as a left-to-right model (Dream 7B). The base is also the verifier, since a canvas of one slot is next-token
prediction. An optional low-rank update of the base, `context.safetensors`, teaches it to read the suffix before the
gap; it is merged at load. A model without an adapter has no canvas and can only verify.

A GPU, `exact` numbers, experts, a light drafter and shapes that our C lacks take this class; a CPU takes the one in
`native.py` for the rest.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from threading import Semaphore

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from caesura.engine.cache import FEW, KV, Cache, Kept
from caesura.engine.cache.tensors import TensorStore
from caesura.engine.model import Drafter, Model, ModelSpec, Run
from caesura.engine.models.devices import device_of
from caesura.engine.models.llama import c_layers
from caesura.engine.models.llama import layer as llama_layer
from caesura.engine.models.llama.config import SPECIALS, Config, kept, on_gpu
from caesura.engine.models.llama.gpu.layers import GpuLayers, Placed
from caesura.engine.models.llama.gpu.passes import Passes
from caesura.engine.models.llama.lanes import Lane, Part, masked
from caesura.engine.models.llama.layer import Norm, Sparse, Weights, attended, normalized, shape_of
from caesura.engine.models.llama.packed import (
    Named,
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
from caesura.engine.models.llama.rotary import frequencies, turns
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import packing, tensors
from caesura.engine.weights.sources import InMemory, RowReader, Source
from caesura.kernels import cpu, int8
from caesura.kernels.cpu.layers import fits

# Rows; up to this many, torch uses one thread. Layers in plain Python need more rows before a second thread pays off.
WORTH_TWO = 64 if llama_layer.layer is llama_layer.written else 16
DTYPES = {"": None, "bf16": torch.bfloat16, "f32": torch.float32}  # of `Keeping.floats`
PACKERS = 2  # threads that pack matrices while a model loads

Layers = llama_layer.Layers | c_layers.Layers | GpuLayers  # the layers of one path


class BlockLlama:
    """See `caesura.engine.model.Model`. Activations are float32. On a CPU, matrices are int8 if there is a kernel for
    it. With a `dtype` they are floats of that type: on a GPU, and for comparisons with a reference.

    Without an `adapter` logits have no columns for SPECIALS.
    """

    drafting: Model | None = None
    taps: Sequence[int] = ()  # layers whose output a drafter reads (light.py, drafters/)

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        base: Source,
        adapter: Source | None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        contexts: int = FEW,
        stretch: NDArray[np.float64] | None = None,
        quantise: str = "",
    ) -> None:
        """The cache keeps at most `contexts` contexts. `stretch` [turning / 2] divides the rotary frequencies.
        Matrices stored as floats get the form `quantise` (weights/forms.py), if it is not the usual one."""
        self.name, self.device, self.config, self.tokenizer, self.spec = name, device, config, tokenizer, spec
        self.machine = device_of(device)
        if device == "cpu":
            torch.set_num_threads(
                1
            )  # for a canvas or a chunk of context, barriers cost more than a second thread gains
        self.width = config.vocab_size + (0 if adapter is None else len(SPECIALS))
        self._dtype, self._contexts, self._quantise = dtype, contexts, quantise
        self.kernels = "" if dtype else cpu.chosen()
        self._special = torch.empty(0, config.hidden_size) if adapter is None else tensors.of(adapter.floats("special"))
        adapter = InMemory({}) if adapter is None else adapter
        pack = partial(packed, config, base, adapter, self._form)
        with ThreadPoolExecutor(PACKERS) as pool:  # one core each
            outer = pool.submit(self._embed_and_head, base)
            self._layers = list(pool.map(pack, range(config.num_layers)))
        self._embed, self._head = outer.result()
        self._norm = tuple(moved(norm, device) for norm in norms(base, adapter, "norm", config.hidden_size))
        self._frequencies = frequencies(config, device)
        if stretch is not None:
            self._frequencies = self._frequencies / torch.from_numpy(stretch).to(device)
        self._shape = shape_of(config)
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
        dense, shape = [layer for layer in layers if isinstance(layer, Weights)], shape_of(config)
        known = len(dense) == len(layers) and config.turning == config.head_dim
        widths = config.hidden_size, config.intermediate_size, shape.heads, shape.width
        if self._dtype is None and known and fits(*widths):
            return c_layers.Layers(dense, shape, canvas)
        if (
            self._dtype is not None
            and on_gpu(self.device)
            and not len(self._special)
            and config.turning == config.head_dim
        ):
            return GpuLayers(layers, shape, self._dtype, canvas=canvas)
        scripted = self._dtype is None and cpu.chosen() == "torch" and int8.available()
        return llama_layer.Layers(layers, shape, canvas, scripted=scripted)

    def _form(self, *sources: Named, quantise: str | None = None) -> int8.Packed:
        """Matrices of equal K, stacked by rows, in the form that `int8.product` takes."""
        form = self._quantise if quantise is None else quantise
        if self._dtype is not None:
            coded = None if self._dtype == torch.float32 else in_form(sources, form, self.device)
            return joined(sources).to(self.device, self._dtype) if coded is None else coded
        return by_torch(*sources) if cpu.chosen() == "torch" else by_library(*sources, form=form or "q8")

    def _embed_and_head(self, base: Source) -> tuple[tuple[Tensor, ...] | RowReader, int8.Packed]:
        """The embedding, as codes and scales or as floats, or on a CPU where it lies; and the head: the same matrix if
        the base has none. Both have 8 bits where anything is quantised."""
        size = self.config.vocab_size, self.config.hidden_size
        head: list[Named] = [(base, "head" if "head" in base else "embed", size)]
        if len(self._special):
            head.append((InMemory({"special": self._special.numpy()}), "special", (len(SPECIALS), size[1])))
        if self._dtype is None:
            return packing.table(base, "embed", size), self._form(*head, quantise="q8")
        if self._quantise and self._dtype != torch.float32:
            embed = codes(base, "embed", size)
            return tuple(part.to(self.device) for part in embed), self._form(*head, quantise="fp8")
        stored = (expect(base, "embed", size).to(self.device, self._dtype),)
        return stored, self._form(*head) if "head" in base or len(head) > 1 else stored[0]

    def _embedded(self, ids: Tensor) -> Tensor:
        """Embeddings of ids [n], float32 [n, hidden]."""
        known = ids.clamp_max(self.config.vocab_size - 1)
        if callable(self._embed):
            found = tensors.of(self._embed(known.numpy()))
        else:
            rows = [part[known] for part in self._embed]
            found = tensors.grouped(*rows) if len(rows) > 1 else rows[0].float()
        if len(self._special):
            special = self._special[(ids - self.config.vocab_size).clamp_min(0)]
            found = torch.where((ids > known)[:, None], special, found)
        return found

    def cache(self) -> Cache:
        store = TensorStore(self.device, self._dtype or attended())
        return Cache(self._kept(), store, entries=self._contexts, block=self.spec.block_size)

    def _kept(self) -> list[Kept]:
        """What the cache keeps for a context row, layer by layer."""
        return kept(self.config, self.device)

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        self._wave(*self._lanes([self._context(kv, ids)]))
        _append(kv, ids)

    def denoise(self, runs: Sequence[Run]) -> TensorScores:
        return self.forward((), runs)[1]

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
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
        return TensorScores(judged[:, : self.config.vocab_size]), TensorScores(logits)

    def _launched(self, trees: Sequence[Run], canvases: Sequence[Run]) -> tuple[Tensor, Tensor]:
        """The logits of `forward`, whose rows are in the KVs then; what of them is valid is for the caller to say."""
        read, drawn = list[Part](), self._lane(canvas=True)
        ends = {id(run.kv): run.kv.length for run in (*trees, *canvases)}
        for run in (*trees, *canvases):
            if run.fresh:
                read.append(self._context(run.kv, run.fresh))
                ends[id(run.kv)] += len(run.fresh)
        for run in trees:
            mask = masked(run)
            read.append(Part(run.kv, ends[id(run.kv)], run.ids, run.positions, mask, range(len(run.ids))))
        of_trees = {id(run.kv): len(run.ids) for run in trees}
        for run in canvases:  # canvases of one KV overwrite each other: nothing of them is kept
            count, hidden = len(run.ids), of_trees.get(id(run.kv), 0)
            mask = self._seen(run.positions) if self.spec.visibility == "blocks" else masked(run)
            if hidden:  # rows of the tree, which no canvas sees
                mask = pad(torch.ones(count, count, dtype=torch.bool) if mask is None else mask, (hidden, 0))
            asked = range(count) if run.wanted is None else run.wanted
            wanted = [max(0, row - self.spec.shift) for row in asked]
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
        blocks = torch.tensor(positions) // self.spec.block_size
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
            left -= (part.at + left) % self.spec.block_size  # rows of a block see each other
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
        """The logits [wanted rows, width] of a lane. `order`: see `before` and `progress` in `llama_layer.Layers`."""
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
        if isinstance(self._paths[False], c_layers.Layers):
            return c_layers.normalized(x, norm, self._shape.eps)
        return normalized(x, norm, self._shape.eps)

    def _tap(self, tapped: Sequence[Tensor], lane: Lane, cos: Tensor, sin: Tensor) -> None:
        """Keep what a drafter needs of the rows of a lane, in the cache layers that it adds after the base's."""
        raise NotImplementedError


def _append(kv: KV, ids: Sequence[int]) -> None:
    """Make rows context whose keys and values are already in the KV."""
    kv.length += len(ids)
    kv.ids.extend(ids)
