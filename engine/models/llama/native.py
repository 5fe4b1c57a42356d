"""The decoder of trunk.py for a CPU, in our C library and numpy: the same rows and the same numbers.

A pass has two lanes of rows: first the context path's (context and trees), then the canvas path's. The library
shares each product among its threads, so nothing here needs one. A pass makes its logits anew, and keeps none: scores
outlive it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caesura.engine.cache import FEW, KV, Cache, HostStore, Kept
from caesura.engine.device import Host
from caesura.engine.model import Model, ModelSpec, Run
from caesura.engine.models.llama.config import SPECIALS, Config
from caesura.engine.scores import Bools
from caesura.engine.scores.host import HostScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.packing import rank_of
from caesura.engine.weights.stored import WeightsError
from caesura.engine.weights.tiles import Tiles
from caesura.kernels import cpu
from caesura.kernels.cpu import F32, Packed
from caesura.kernels.cpu.layers import KvRows, Layer, Layers, Norm, Projection, Shape, fits, normalized
from caesura.model_store import extras

F64 = NDArray[np.float64]

PACKERS = 2  # threads that pack matrices while a model loads


def computes(config: Config) -> bool:
    """True if our C library has layers of these sizes; torch has all others."""
    plain = config.mixture is None and config.turning == config.head_dim
    return plain and fits(config.hidden_size, config.intermediate_size, config.num_heads, config.head_dim)


def torch_use(name: str) -> extras.TorchUse:
    """Why a model is computed in torch, for the sentence that says so."""
    if not cpu.variants():
        return extras.NO_LIBRARY
    return extras.ASKED_KERNELS if cpu.chosen() == "torch" else extras.model(name)


class LaneRows(NamedTuple):
    """Rows `first` to `end` of a lane, which go into a KV from row `at` on; the mask is as in `KvRows`."""

    first: int
    end: int
    kv: KV
    at: int
    mask: Bools | None


class CpuLane:
    """Rows that go through the layers of one path together."""

    def __init__(self) -> None:
        self.parts = list[LaneRows]()
        self.ids, self.positions, self.wanted = list[int](), list[int](), list[int]()

    def __repr__(self) -> str:
        return f"<CpuLane of {len(self.ids)} rows in {len(self.parts)} parts>"

    def add(
        self,
        kv: KV,
        at: int,
        ids: Sequence[int],
        positions: Sequence[int],
        mask: Bools | None,
        wanted: Sequence[int] = (),
    ) -> None:
        """Append rows, reserve them in the KV, and ask for the logits of the `wanted` ones."""
        first = len(self.ids)
        kv.reserve(at + len(ids) - kv.length)
        self.parts.append(LaneRows(first, first + len(ids), kv, at, mask))
        self.ids += ids
        self.positions += positions
        self.wanted += [first + row for row in wanted]

    def spans(self) -> list[KvRows]:
        """For the library. All rows of all lanes must be reserved by now, since that may move a KV."""
        return [
            KvRows(part.first, part.end, part.at, [buffer[:3] for buffer in part.kv.addresses], part.mask)
            for part in self.parts
        ]


class NativeLlama:
    """See `caesura.engine.model.Verifier`. Without an `adapter` there is no canvas, and logits have no columns for
    SPECIALS. Keys and values are bfloat16."""

    device = "cpu"
    drafter = None
    drafting: Model | None = None

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        base: Tiles,
        adapter: Tiles | None,
        contexts: int = FEW,
        stretch: F64 | None = None,
    ) -> None:
        """The cache keeps at most `contexts` contexts. `stretch` [turning / 2] divides the rotary frequencies. Raises
        WeightsError."""
        self.name, self.config, self.tokenizer, self.spec = name, config, tokenizer, spec
        self.kernels, self._contexts, self.machine = cpu.chosen(), contexts, Host()
        size, hidden = (config.vocab_size, config.hidden_size), config.hidden_size
        self.width = config.vocab_size + (0 if adapter is None else len(SPECIALS))
        with ThreadPoolExecutor(PACKERS) as pool:  # one core each
            outer = pool.submit(base.matrix, "head" if "head" in base else "embed", size)
            layers = list(pool.map(partial(_layers, config, base, adapter), range(config.num_layers)))
        head = outer.result()
        self._heads, self._special = [head, head], np.empty((0, hidden), np.float32)
        (first, *more), tied = head.matrices, "head" not in base
        self._embed = first.restored if tied and not more and first.form == "q8" else base.rows("embed", size)
        if adapter is not None:
            special = len(SPECIALS), hidden
            self._special = adapter.floats("special", special)
            self._heads[True] = Packed(*head.matrices, *adapter.matrix("special", special).matrices)
        self._norms = _norms(base, adapter, "norm", hidden)
        shape = Shape(
            hidden,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            config.rms_norm_eps,
            config.gated,
        )
        self._paths = [Layers(path, shape) for path in zip(*layers, strict=True)]
        self._frequencies = frequencies(config.head_dim, config.rope_theta)
        if stretch is not None:
            self._frequencies = self._frequencies / stretch

    def __repr__(self) -> str:
        return f"<NativeLlama {self.name} {self.config.num_layers}x{self.config.hidden_size}>"

    def cache(self) -> Cache:
        kept = Kept(self.config.num_kv_heads, self.config.head_dim, turned=True)
        store = HostStore(np.uint16)
        return Cache([kept] * self.config.num_layers, store, entries=self._contexts, block=self.spec.block_size)

    def rehearse(self) -> None:
        """Nothing: passes are recorded on a GPU only."""

    def condition(self, logits: Any) -> None:
        """None: this family has no self-conditioning."""

    def embedded(self, ids: Any) -> None:
        """None, as in `condition`."""

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        read = CpuLane()
        self._read(read, kv, ids)
        self._logits(read, canvas=False)
        _append(kv, ids)

    def denoise(self, runs: Sequence[Run]) -> HostScores:
        return self.forward((), runs)[1]

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[HostScores, HostScores]:
        """In a KV, the rows of the fresh context come first, then the tree, then the canvas."""
        read, drawn = CpuLane(), CpuLane()
        ends = {id(run.kv): run.kv.length for run in (*trees, *canvases)}
        for run in (*trees, *canvases):
            if run.fresh:
                self._read(read, run.kv, run.fresh)
                ends[id(run.kv)] += len(run.fresh)
        for run in trees:
            mask = run.mask
            read.add(run.kv, ends[id(run.kv)], run.ids, run.positions, mask, range(len(run.ids)))
        of_trees = {id(run.kv): len(run.ids) for run in trees}
        for run in canvases:  # canvases of one KV overwrite each other: nothing of them is kept
            count, hidden = len(run.ids), of_trees.get(id(run.kv), 0)
            mask = self._seen(run.positions) if self.spec.visibility == "blocks" else run.mask
            if hidden:  # rows of the tree, which no canvas sees
                mask = np.pad(np.ones((count, count), np.bool_) if mask is None else mask, ((0, 0), (hidden, 0)))
            asked = range(count) if run.wanted is None else run.wanted
            wanted = [max(0, row - self.spec.shift) for row in asked]
            drawn.add(run.kv, ends[id(run.kv)] + hidden, run.ids, run.positions, mask, wanted)
        judged, logits = self._logits(read, canvas=False), self._logits(drawn, canvas=True)
        for run in (*trees, *canvases):
            _append(run.kv, run.fresh)
        for run in trees:
            run.kv.length += len(run.ids)
        return HostScores(judged), HostScores(logits)

    def _read(self, lane: CpuLane, kv: KV, ids: Sequence[int]) -> None:
        """Add rows of context at the end of `kv`. Each sees what is before it, and all of its block."""
        positions = range(kv.length, kv.length + len(ids))
        lane.add(kv, kv.length, ids, positions, self._seen(positions))

    def _seen(self, positions: Sequence[int]) -> Bools:
        """Which of these rows each of them sees, bool [rows, rows]: its block and earlier ones."""
        blocks = np.asarray(positions) // self.spec.block_size
        seen: Bools = blocks[:, None] >= blocks
        return seen

    def _logits(self, lane: CpuLane, *, canvas: bool) -> F32:
        """The logits of the wanted rows of a lane, [rows, vocabulary], or [rows, width] on the canvas path."""
        head = self._heads[canvas]
        if not lane.ids:
            return np.empty((0, head.rows), np.float32)
        x = self._embedded(np.array(lane.ids, np.int64))
        x, _ = self._paths[canvas].through(x, *turns(self._frequencies, lane.positions), lane.spans(), lane.wanted)
        return head.product(normalized(x, self._norms[canvas], self.config.rms_norm_eps))

    def _embedded(self, ids: NDArray[np.int64]) -> F32:
        """Embeddings of ids [n], float32 [n, hidden]."""
        known = np.minimum(ids, self.config.vocab_size - 1)
        found = self._embed(known)
        if len(self._special):
            found[ids > known] = self._special[ids[ids > known] - self.config.vocab_size]
        return found


def _layers(config: Config, base: Tiles, adapter: Tiles | None, number: int) -> tuple[Layer, Layer]:
    """A layer of the context path, and of the canvas path. Both share their matrices."""
    name, of_heads = f"layers.{number}", None
    if f"{name}.q_norm" in base:
        query, key = (_norms(base, None, f"{name}.{part}_norm", config.head_dim)[0] for part in "qk")
        of_heads = query, key
    first, second = (_norms(base, adapter, f"{name}.{part}_norm", config.hidden_size) for part in ("attn", "mlp"))
    qkv, out, gate_up, down = (
        _projections(base, adapter, f"{name}.{matrix}", config.shape(matrix))
        for matrix in ("qkv", "out", "gate_up", "down")
    )
    context, canvas = (
        Layer(first[path], qkv[path], of_heads, out[path], second[path], gate_up[path], down[path])
        for path in (False, True)
    )
    return context, canvas


def _projections(base: Tiles, adapter: Tiles | None, name: str, size: tuple[int, int]) -> tuple[Projection, Projection]:
    """A matrix [N, K] of both paths; the canvas path's has the adapter's low-rank update."""
    weight, bias = base.matrix(name, size), f"{name}_bias"
    plain = Projection(weight, bias=base.floats(bias, size[:1]) if bias in base else None)
    if adapter is None or f"{name}.a" not in adapter:
        return plain, plain
    rank = rank_of(name, adapter.shape(f"{name}.a"), size)
    down, up = adapter.matrix(f"{name}.a", (rank, size[1])), adapter.matrix(f"{name}.b", (size[0], rank))
    if len(down.matrices) + len(up.matrices) > 2:
        raise WeightsError(f"The low-rank update of {name} lies in several forms; install the model again.")
    return plain, Projection(weight, down.matrices[0], up.matrices[0], plain.bias)


def _norms(base: Tiles, adapter: Tiles | None, name: str, size: int) -> tuple[Norm, Norm]:
    """The norms of the context path and of the canvas path."""
    bias = base.floats(f"{name}_bias", (size,)) if f"{name}_bias" in base else None
    own = base if adapter is None or name not in adapter else adapter
    return Norm(base.floats(name, (size,)), bias), Norm(own.floats(name, (size,)), bias)


def _append(kv: KV, ids: Sequence[int]) -> None:
    """Make rows context whose keys and values are already in the KV."""
    kv.length += len(ids)
    kv.ids.extend(ids)


def frequencies(width: int, theta: float) -> F64:
    """As `kernels.rotary.frequencies` for all pairs of a head, float64 [width / 2]: computed in float64, with power and
    inverse rounded to float32."""
    exponents = (np.arange(0, width, 2, dtype=np.float32) / np.float32(width)).astype(np.float64)
    return (np.float32(1) / (theta**exponents).astype(np.float32)).astype(np.float64)


def turns(of: F64, positions: Sequence[int]) -> tuple[F32, F32]:
    """cos and sin, float32 [rows, width], for frequencies and positions; rounded once, as `kernels.rotary.cos_sin`."""
    angles = np.array(positions, np.int64)[:, None] * of
    cos, sin = (np.tile(part(angles).astype(np.float32), 2) for part in (np.cos, np.sin))
    return cos, sin
