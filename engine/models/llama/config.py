"""The sizes of a decoder of the Llama kind. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Any

from caesura.engine.cache import Kept
from caesura.engine.weights.hub import AGAIN
from caesura.engine.weights.stored import WeightsError
from caesura.model_store.reading import reason

SEEING, FEEDING = ("qkv", "out"), ("gate_up", "down")  # the matrices of attention and of the MLP
MATRICES = (*SEEING, *FEEDING)
SPECIALS = ("mask", "null")  # rows of an adapter's embedding; their ids follow the base's vocabulary
MOST = 1 << 20  # experts, and columns of one
CHUNK = 128  # context rows of a step on a CPU; a GPU reads 512 in 24 ms and 128 in 15 (7B on an H100, gpu/causal)


def chunk_of(device: str) -> int:
    """The `chunk` of `ModelSpec` on a device."""
    return CHUNK if device == "cpu" else 4 * CHUNK


@dataclass(frozen=True)
class Mixture:
    """The sizes of the experts, and how a row chooses `top` of them. Scores are a `sigmoid`, or a softmax over all
    experts. The chosen scores are the weights; `renormalised`, they sum to 1. All weights are multiplied by `scale`. Of
    `groups` of equal size, a row chooses only from the `best_groups`, by the sum of the two best scores in each. A bias
    is added to the scores for the choice, and to the weights too if it `weighs`."""

    count: int
    top: int
    width: int  # inner columns of an expert
    shared: int = 0  # inner columns of the shared expert; 0 if there is none
    sigmoid: bool = False
    renormalised: bool = False
    scale: float = 1.0
    groups: int = 1
    best_groups: int = 1
    weighs: bool = False

    def check(self, name: str) -> None:
        """Raises WeightsError for sizes that contradict each other."""
        damaged, sizes = f"The config of {name} is damaged", (self.count, self.top, self.width, self.groups)
        if min(sizes) < 1 or self.shared < 0 or max(*sizes, self.shared) > MOST or not 0 < self.scale < MOST:
            raise WeightsError(f"{damaged}: it has an impossible number or size of experts; {AGAIN}.")
        of_group, rest = divmod(self.count, self.groups)
        if rest or (self.groups > 1 and of_group < 2) or not 1 <= self.best_groups <= self.groups:
            raise WeightsError(f"{damaged}: its experts do not form {self.groups} equal groups; {AGAIN}.")
        if self.top > of_group * self.best_groups:
            raise WeightsError(f"{damaged}: a row takes {self.top} of {of_group * self.best_groups} experts; {AGAIN}.")


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
    head_dim: int
    gated: bool  # the MLP computes SiLU(gate) * up, else GELU(up)
    rotary: float  # fraction of a head, its first columns, that has rotary positions
    tail: int  # rows of the prefix that open a canvas, as in training
    head: int  # rows of the suffix that close a canvas, as in training
    mixture: Mixture | None = None  # of the layers that have experts instead of an MLP

    @classmethod
    def read(cls, config: dict[str, Any]) -> "Config":
        """The sizes in config.json. Defaults: heads divide the hidden size, the MLP has a gate, and a canvas has 4 rows
        before its slots and 12 after them. Raises WeightsError for a field that is missing, that is not a possible size
        or that does not divide another."""
        try:
            width = int(config["hidden_size"]) // max(1, int(config["num_heads"]))
            usual = {"head_dim": width, "gated": True, "rotary": 1.0, "tail": 4, "head": 12}
            asked = {name: value for name, value in config.items() if value is not None}
            kinds = {name: kind for name, kind in cls.__annotations__.items() if name != "mixture"}
            shape = cls(**{name: kind((usual | asked)[name]) for name, kind in kinds.items()})
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise WeightsError(f"config.json is damaged: {reason(error)}.") from error
        if not all(0 < size <= 2**31 for name, size in vars(shape).items() if name not in ("gated", "mixture")):
            raise WeightsError("config.json is damaged: every size must be above 0 and at most 2**31.")
        if "head_dim" not in asked and shape.hidden_size % shape.num_heads:
            raise WeightsError("config.json is damaged: the heads do not divide the hidden size.")
        if shape.head_dim % 2 or shape.num_heads % shape.num_kv_heads:
            raise WeightsError(
                "config.json is damaged: head_dim must be even, and the key heads must divide the heads."
            )
        if shape.rotary > 1 or shape.turning < 2 or shape.turning % 2:
            raise WeightsError(
                "config.json is damaged: the columns of a head with rotary positions must be an even part of it."
            )
        return shape

    @property
    def turning(self) -> int:
        """The columns of a head that have rotary positions."""
        return int(self.head_dim * self.rotary)

    def shape(self, matrix: str, inner: int = 0) -> tuple[int, int]:
        """[N, K] of a layer's matrix; `inner` columns of the MLP, or those of the dense one."""
        d, inner, heads = self.hidden_size, inner or self.intermediate_size, self.num_heads * self.head_dim
        return {
            "qkv": (heads + 2 * self.num_kv_heads * self.head_dim, d),
            "out": (d, heads),
            "gate_up": (2 * inner if self.gated else inner, d),
            "down": (d, inner),
        }[matrix]

    def size(self, experts: int = 0) -> int:
        """The number of weights in a layer's matrices. With `experts`, count that many of them, the router and the
        shared expert instead of the MLP."""
        mixture, sizes = self.mixture, [self.shape(matrix) for matrix in SEEING]
        if mixture is None or not experts:
            sizes += [self.shape(matrix) for matrix in FEEDING]
        else:
            for inner in (mixture.width,) * experts + (mixture.shared,) * (mixture.shared > 0):
                sizes += [self.shape(matrix, inner) for matrix in FEEDING]
            sizes.append((mixture.count, self.hidden_size))
        return sum(math.prod(size) for size in sizes)


def on_gpu(device: str) -> bool:
    return device.startswith("cuda")


def kept(config: Config, device: str) -> list[Kept]:
    """What a cache keeps for a context row, layer by layer. A GPU's kernels read whole keys."""
    return [Kept(config.num_kv_heads, config.head_dim, turned=not on_gpu(device))] * config.num_layers
