"""The weights of a decoder of the Llama kind: tensors by our names, packed as the kernels take them, layer by layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from caesura.engine.models.llama.config import FEEDING, SEEING, Config, Mixture
from caesura.engine.models.llama.experts import Experts
from caesura.engine.models.llama.layer import AdaptedMatrix, Attention, Mlp, Norm, Sparse, Weights, shape_of
from caesura.engine.weights import forms, packing, tensors
from caesura.engine.weights.packing import as_stored, rank_of
from caesura.engine.weights.sources import InMemory, Source
from caesura.kernels import cpu, int8, linear
from caesura.kernels.experts import Stack
from caesura.kernels.linear import Linear

Named = tuple[Source, str, tuple[int, ...]]  # a source, the name of a matrix in it, its shape [N, K]
Form = Callable[..., int8.Packed]  # stacks matrices by rows and packs them for the product


def packed(
    config: Config, base: Source, adapter: Source, form: Form, number: int
) -> tuple[Weights | Sparse, Weights | Sparse]:
    """The weights of layer `number` for the context path and for the canvas path; it has experts if there is a router
    for it. Raises WeightsError that names the tensor."""
    name = f"layers.{number}"
    qkv, out = (matrix(base, adapter, f"{name}.{m}", config.shape(m), form) for m in SEEING)
    device, of_heads = qkv.up.device, None
    if f"{name}.q_norm" in base:
        (query, _), (key, _) = (norms(base, InMemory({}), f"{name}.{part}_norm", config.head_dim) for part in "qk")
        of_heads = moved(query, device), moved(key, device)
    first, second = (norms(base, adapter, f"{name}.{part}_norm", config.hidden_size) for part in ("attn", "mlp"))
    seeing = [Attention(moved(norm, device), qkv, of_heads, out) for norm in first]
    after = [moved(norm, device) for norm in second]
    layers: list[Weights | Sparse]
    if config.mixture is not None and f"{name}.router" in base:
        experts = mixed(config, config.mixture, base, form, name, after[0])
        layers = [Sparse(seen, replace(experts, norm=norm)) for seen, norm in zip(seeing, after, strict=True)]
    else:
        gate_up, down = (matrix(base, adapter, f"{name}.{m}", config.shape(m), form) for m in FEEDING)
        layers = [Weights(seen, Mlp(norm, gate_up, down)) for seen, norm in zip(seeing, after, strict=True)]
    context, canvas = layers
    return context, canvas


def mixed(config: Config, mixture: Mixture, base: Source, form: Form, name: str, norm: Norm) -> Experts:
    """The experts of a layer. Each is read and packed before the next one, so that few floats are in memory."""
    device, shared = norm.weight.device, None
    router = expect(base, f"{name}.router", (mixture.count, config.hidden_size)).to(device)
    bias = expect(base, f"{name}.router_bias", (mixture.count,)).to(device) if f"{name}.router_bias" in base else None
    shape = {m: config.shape(m, mixture.width) for m in FEEDING}
    gate_up, down = (
        stacked(form, [(base, f"{name}.experts.{expert}.{m}", shape[m]) for expert in range(mixture.count)])
        for m in FEEDING
    )
    if mixture.shared:
        first, last = (
            matrix(base, InMemory({}), f"{name}.shared.{m}", config.shape(m, mixture.shared), form) for m in FEEDING
        )
        shared = first, last
    exact = router.double() if device.type == "cpu" else router
    return Experts(mixture, shape_of(config), norm, exact, bias, gate_up, down, shared)


def stacked(form: Form, sources: Sequence[Named]) -> Stack:
    """Matrices of one shape, one for each expert, packed."""
    first, others = form(sources[0]), map(form, sources[1:])
    if isinstance(first, Tensor):
        return linear.stack(([linear.Dense(held)] for held in chain([first], others)), len(sources), str(first.device))
    if isinstance(first, Linear):
        return linear.stack(([held] for held in chain([first], others)), len(sources), str(where(first)))
    return int8.PackedStack([first, *others])


def matrix(base: Source, adapter: Source, name: str, size: tuple[int, int], form: Form) -> AdaptedMatrix:
    """A matrix [N, K] for both paths; the canvas path computes what `Merged` would."""
    sources, up = list[Named]([(base, name, size)]), torch.zeros(0, size[0])
    bias = expect(base, f"{name}_bias", size[:1]) if f"{name}_bias" in base else None
    if f"{name}.a" in adapter:
        rank = rank_of(name, adapter.shape(f"{name}.a"), size)
        sources.append((adapter, f"{name}.a", (rank, size[1])))
        up = expect(adapter, f"{name}.b", (size[0], rank)).T
    held = form(*sources)
    device = where(held) or up.device
    return AdaptedMatrix(held, up.to(device), size[0], None if bias is None else bias.to(device))


def where(matrix: object) -> torch.device | None:
    """The device of a packed matrix; None if it is packed for a CPU."""
    if isinstance(matrix, Linear):
        return matrix.tensors[0].device
    return matrix.device if isinstance(matrix, Tensor) else None


def in_form(sources: Sequence[Named], quantise: str, device: str) -> Linear | None:
    """A matrix for a GPU's kernels, as it is stored or quantised now; None for floats."""
    if len(sources) > 1:
        return None
    form, parts = as_stored(*sources[0])
    if form in forms.ON_GPU:
        return tensors.linear(form, tensors.coded(form, parts)).to(device)
    weight = expect(*sources[0])
    if not quantise or not forms.fits(quantise, weight.shape[1]):
        return None
    return tensors.linear(quantise, tensors.quantised(quantise, weight.to(device)))


def joined(sources: Sequence[Named]) -> Tensor:
    """Matrices stacked by rows, in float32."""
    return torch.cat([expect(*source) for source in sources]) if len(sources) > 1 else expect(*sources[0])


def by_torch(*sources: Named) -> int8.Packed:
    """Pack matrices in int8 for torch's kernels."""
    return int8.pack(joined(sources))


def by_library(*sources: Named, form: str = "q8") -> cpu.Packed:
    """Pack matrices for our own kernels, each in its stored form; floats get the `form`."""
    return cpu.Packed(*chain.from_iterable(packing.tiled(*source, form) for source in sources))


def codes(source: Source, name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """A matrix in 8 bits. If stored like that, only the rows that are read take memory; otherwise it is quantised."""
    form, parts = as_stored(source, name, shape)
    if form != "q8":
        parts = forms.quantised("q8", packing.expect(source, name, shape))
    return tensors.coded("q8", parts)


def norms(base: Source, adapter: Source, name: str, size: int) -> tuple[Norm, Norm]:
    """The norm of the context path and that of the canvas path."""
    bias = expect(base, f"{name}_bias", (size,)) if f"{name}_bias" in base else None
    own = expect(adapter if name in adapter else base, name, (size,))
    return Norm(expect(base, name, (size,)), bias), Norm(own, bias)


def moved(norm: Norm, device: str | torch.device) -> Norm:
    return Norm(norm.weight.to(device), None if norm.bias is None else norm.bias.to(device))


def expect(source: Source, name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor. Raises WeightsError if it is missing or has another shape."""
    return tensors.of(packing.expect(source, name, shape))
