"""The sizes of a decoder of the Llama kind, and its rotary positions."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from caesura.engine.models._experts import Mixture
from caesura.engine.models._llama_layer import Shape
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import rotary
from caesura.model_store.reading import reason

SEEING, FEEDING = ("qkv", "out"), ("gate_up", "down")  # the matrices of attention and of the MLP
MATRICES = (*SEEING, *FEEDING)


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
    def layer(self) -> Shape:
        return Shape(self.num_heads, self.num_kv_heads, self.head_dim, self.rms_norm_eps, self.gated)

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


def frequencies(config: Config, device: str = "cpu") -> Tensor:
    """Radians from one position to the next of each pair of head columns, float64 [turning / 2]."""
    return rotary.frequencies(config.turning, config.rope_theta, config.turning // 2, torch.device(device))


def turns(of: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [rows, 1, columns that turn], for frequencies and integer positions [rows]."""
    cos, sin = rotary.cos_sin(positions[:, None] * of).repeat(1, 1, 2)[:, :, None]
    return cos, sin
