"""The matrices that a loaded model keeps in the C library's form."""

from caesura.engine.model import Model
from caesura.engine.models.llama.experts import Experts
from caesura.engine.models.llama.layer import Sparse
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.kernels.cpu import Packed
from caesura.kernels.int8 import PackedStack


def matrices(model: Model) -> list[Packed]:
    """The matrices of the context path, layer by layer: q, k and v, out, gate and up, down; experts lack the last,
    which is not as wide as a group of columns."""
    if isinstance(model, NativeLlama):
        return [held for held in model._paths[False]._kept if isinstance(held, Packed)]
    assert isinstance(model, BlockLlama)
    found = list[Packed]()
    for layer, _ in model._layers:
        found += [layer.attention.qkv.packed, layer.attention.out.packed]
        if isinstance(layer, Sparse):
            assert isinstance(layer.experts, Experts)
            assert isinstance(layer.experts.gate_up, PackedStack)
            found += layer.experts.gate_up._matrices
        else:
            found += [layer.mlp.gate_up.packed, layer.mlp.down.packed]
    return found


def forms(model: Model) -> set[int]:
    """Their forms, as the library numbers them."""
    return {one.held.form for packed in matrices(model) for one in packed.matrices}
