"""The weights of a decoder of the Llama kind: tensors by our names, packed as the kernels take them, layer by layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from caesura.engine.models._experts import Experts, Mixture
from caesura.engine.models._llama_config import FEEDING, SEEING, Config
from caesura.engine.models._llama_layer import AdaptedMatrix, Attention, Mlp, Norm, Sparse, Weights
from caesura.engine.weights import forms
from caesura.engine.weights import stored as weights
from caesura.kernels import cpu, int8, linear
from caesura.kernels.experts import Stack
from caesura.kernels.linear import Linear

SPECIALS = ("mask", "null")  # rows of the adapter's embedding; their ids follow the base's vocabulary

Source = tuple[Mapping[str, Tensor], str, tuple[int, ...]]  # tensors, the name of a matrix in them, its shape [N, K]
Form = Callable[..., int8.Packed]  # stacks sources by rows and packs them for the product


class Merged(Mapping[str, Tensor]):
    """The base with a low-rank update: a matrix W becomes W + B A (Hu et al. 2021, LoRA; B includes the scale). Tensors
    that the update holds in full (norms) replace those of the base."""

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

    def _changed(self, name: str) -> bool:
        return name in self._update or f"{name}.a" in self._update

    def form(self, name: str) -> str:
        """See `forms.Coded`."""
        return "" if self._changed(name) else forms.named(self._base, name)

    def parts(self, name: str) -> tuple[str, forms.CodedParts]:
        """See `forms.Coded`."""
        return ("", ()) if self._changed(name) else forms.of(self._base, name)

    def __contains__(self, name: object) -> bool:
        return name in self._base  # without making the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def base_of(folder: Path) -> Mapping[str, Tensor]:
    """The base of a model folder, which both paths use, with the update of `context.safetensors` if there is one."""
    base, update = weights.Stored(*weights.bases(folder)), folder / "context.safetensors"
    return Merged(base, weights.Stored(update)) if update.is_file() else base


def packed(
    config: Config, base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], form: Form, number: int
) -> tuple[Weights | Sparse, Weights | Sparse]:
    """The weights of layer `number` for the context path and for the canvas path; it has experts if there is a router
    for it. Raises WeightsError that names the tensor."""
    name = f"layers.{number}"
    qkv, out = (matrix(base, adapter, f"{name}.{m}", config.shape(m), form) for m in SEEING)
    device, of_heads = qkv.up.device, None
    if f"{name}.q_norm" in base:
        (query, _), (key, _) = (norms(base, {}, f"{name}.{part}_norm", config.head_dim) for part in "qk")
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


def mixed(config: Config, mixture: Mixture, base: Mapping[str, Tensor], form: Form, name: str, norm: Norm) -> Experts:
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
        first, last = (matrix(base, {}, f"{name}.shared.{m}", config.shape(m, mixture.shared), form) for m in FEEDING)
        shared = first, last
    exact = router.double() if device.type == "cpu" else router
    return Experts(mixture, config.layer, norm, exact, bias, gate_up, down, shared)


def stacked(form: Form, sources: Sequence[Source]) -> Stack:
    """Matrices of one shape, one for each expert, packed."""
    first, others = form(sources[0]), map(form, sources[1:])
    if isinstance(first, Tensor):
        return linear.stack(([linear.Dense(held)] for held in chain([first], others)), len(sources), str(first.device))
    if isinstance(first, Linear):
        return linear.stack(([held] for held in chain([first], others)), len(sources), str(where(first)))
    return int8.PackedStack([first, *others])


def matrix(
    base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], name: str, size: tuple[int, int], form: Form
) -> AdaptedMatrix:
    """A matrix [N, K] for both paths; the canvas path computes what `Merged` would."""
    sources, up = list[Source]([(base, name, size)]), torch.zeros(0, size[0])
    bias = expect(base, f"{name}_bias", size[:1]) if f"{name}_bias" in base else None
    if f"{name}.a" in adapter:
        rank = adapter[f"{name}.a"].shape[0]
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


def as_stored(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> tuple[str, forms.CodedParts]:
    """The form and the parts of a matrix as stored; no parts if it is a float or must be computed first."""
    form, parts = forms.of(tensors, name)
    if form and forms.shape(form, parts) != shape:
        raise misshapen(name, forms.shape(form, parts), shape)
    return form, parts


def in_form(sources: Sequence[Source], quantise: str, device: str) -> Linear | None:
    """A matrix for a GPU's kernels, as it is stored or quantised now; None for floats."""
    if len(sources) > 1:
        return None
    form, parts = as_stored(*sources[0])
    if form not in forms.ON_GPU:
        weight = expect(*sources[0])
        form = quantise if quantise and forms.fits(quantise, weight.shape[1]) else ""
        parts = forms.quantised(form, weight.to(device)) if form else ()
    return forms.linear(form, parts).to(device) if form else None


def joined(sources: Sequence[Source]) -> Tensor:
    """Matrices stacked by rows, in float32."""
    return torch.cat([expect(*source) for source in sources]) if len(sources) > 1 else expect(*sources[0])


def by_torch(*sources: Source) -> int8.Packed:
    """Pack sources in int8 for torch's kernels."""
    return int8.pack(joined(sources))


def by_library(*sources: Source, form: str = "q8") -> cpu.Packed:
    """Pack sources for our own kernels, each in its stored form; floats get the `form`."""
    return cpu.Packed(*(tiled(*source, form) for source in sources))


def tiled(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], made: str = "q8") -> cpu.Matrix:
    """A matrix for our own kernels: in 4 or 8 bits as stored; floats are quantised to the form `made`, or to 8 bits if
    their columns do not fill its groups."""
    form, parts = as_stored(tensors, name, shape)
    if form not in forms.ON_CPU:
        weight = expect(tensors, name, shape)
        form = made if forms.fits(made, shape[1]) else "q8"
        parts = forms.quantised(form, pad(weight, (0, -shape[1] % weights.GROUP)))
    try:
        return cpu.Matrix(form, *parts)
    except ValueError as error:
        raise weights.damaged(name, error) from error


def codes(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """A matrix in 8 bits. If stored like that, only the rows that are read take memory; otherwise it is quantised."""
    form, parts = as_stored(tensors, name, shape)
    return parts if form == "q8" else forms.quantised("q8", expect(tensors, name, shape))


def norms(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], name: str, size: int) -> tuple[Norm, Norm]:
    """The norm of the context path and that of the canvas path."""
    bias = expect(base, f"{name}_bias", (size,)) if f"{name}_bias" in base else None
    own = expect(adapter if name in adapter else base, name, (size,))
    return Norm(expect(base, name, (size,)), bias), Norm(own, bias)


def moved(norm: Norm, device: str | torch.device) -> Norm:
    return Norm(norm.weight.to(device), None if norm.bias is None else norm.bias.to(device))


def expect(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """The tensor. Raises WeightsError if it is missing or has another shape."""
    if name not in tensors:
        raise weights.WeightsError(f"The weights lack the tensor {name}; install the model again.")
    tensor = tensors[name]
    if tuple(tensor.shape) != shape:
        raise misshapen(name, tuple(tensor.shape), shape)
    return tensor


def misshapen(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> weights.WeightsError:
    return weights.WeightsError(f"The tensor {name} has shape {list(found)}, not {list(wanted)}.")
