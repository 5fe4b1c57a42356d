"""The tensors of published models of the Llama kind under our names, as `BlockLlama` computes with them.

Families differ in names; here their tensors get the names of our stored form. Imports no torch.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from caesura.engine.models.llama.config import FEEDING
from caesura.engine.weights import forms, hub, mapped
from caesura.engine.weights.hub import AGAIN, FLOATS, headers, some
from caesura.engine.weights.mapped import Array, Damaged, Entry
from caesura.engine.weights.sources import CodedParts, RowReader, Source
from caesura.engine.weights.stored import WeightsError, damaged
from caesura.kernels.cpu import F32
from caesura.kernels.cpu.repack import RowBlocks
from caesura.model_store.reading import short

if TYPE_CHECKING:
    from caesura.engine.models.llama.config import Mixture

Spellings = dict[str, list[list[str]]]


class Names(NamedTuple):
    """Our tensor name -> spellings in a file; the first spelling that exists wins. A spelling is a list of tensors that
    are stacked by rows. Names in `layer` are appended to `at`, where the layer's number replaces {}."""

    outer: Spellings
    at: str
    layer: Spellings


OUTER: Spellings = {
    "embed": [["model.embed_tokens.weight"], ["model.word_embeddings.weight"]],
    "norm": [["model.norm.weight"]],
    "norm_bias": [["model.norm.bias"]],
    "head": [["lm_head.weight"]],
}
LAYER: Spellings = {
    "attn_norm": [["input_layernorm.weight"]],
    "attn_norm_bias": [["input_layernorm.bias"]],
    "qkv": [[f"self_attn.{part}_proj.weight" for part in "qkv"], ["attention.query_key_value.weight"]],
    "qkv_bias": [[f"self_attn.{part}_proj.bias" for part in "qkv"], ["attention.query_key_value.bias"]],
    "q_norm": [["self_attn.q_norm.weight"], ["attention.query_layernorm.weight"]],
    "k_norm": [["self_attn.k_norm.weight"], ["attention.key_layernorm.weight"]],
    "out": [["self_attn.o_proj.weight"], ["attention.dense.weight"]],
    "out_bias": [["self_attn.o_proj.bias"], ["attention.dense.bias"]],
    "mlp_norm": [["post_attention_layernorm.weight"]],
    "mlp_norm_bias": [["post_attention_layernorm.bias"]],
    "gate_up": [["mlp.gate_proj.weight", "mlp.up_proj.weight"], ["mlp.c_fc.weight"]],
    "gate_up_bias": [["mlp.gate_proj.bias", "mlp.up_proj.bias"], ["mlp.c_fc.bias"]],
    "down": [["mlp.down_proj.weight"], ["mlp.c_proj.weight"]],
    "down_bias": [["mlp.down_proj.bias"], ["mlp.c_proj.bias"]],
}
ROUTER: Spellings = {
    "router": [["mlp.gate.weight"]],
    "router_bias": [["mlp.gate.expert_bias"], ["mlp.expert_bias"]],
}
SHARED: Spellings = {
    "shared.gate_up": [
        ["mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"],
        ["shared_expert.gate_proj.weight", "shared_expert.up_proj.weight"],
    ],
    "shared.down": [["mlp.shared_experts.down_proj.weight"], ["shared_expert.down_proj.weight"]],
}
EXPERT: Spellings = {
    "gate_up": [["mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"]],
    "down": [["mlp.experts.{}.down_proj.weight"]],
}
HUB = Names(OUTER, "model.layers.{}.", LAYER)
USELESS = (".rotary_emb.inv_freq", ".attn.masked_bias")  # buffers in old files that nothing reads


def canonical(name: str) -> str | None:
    """The stored name, or None for a tensor that is skipped on purpose."""
    return None if name.endswith(USELESS) else name


class Published(Source):
    """The tensors of a hub folder."""

    def __init__(self, folder: Path) -> None:
        """Raises WeightsError."""
        self._entries = forms.matrices([entry for entry in headers(folder) if canonical(entry.name)])
        super().__init__(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        form, entries = self._entries[name]
        self._entry(name)
        return forms.stored_shape(form, entries)

    def floats(self, name: str) -> F32:
        form, entries = self._entries[name]
        if not form:
            return hub.floats(self._entry(name))
        try:
            return forms.dense(form, forms.read(form, entries))
        except (ValueError, IndexError) as error:
            raise damaged(name, error) from error

    def form(self, name: str) -> str:
        return self._entries[name][0]

    def parts(self, name: str) -> tuple[str, CodedParts]:
        form, entries = self._entries[name]
        return (form, forms.read(form, entries)) if form else ("", ())

    def blocks(self, name: str) -> Sequence[RowBlocks]:
        """Only floats, of 16 or 32 bits; see `Source`."""
        entry = self._entry(name)
        if self.form(name) or len(entry.shape) != 2 or not entry.nbytes:
            return ()
        try:
            return [RowBlocks(entry.dtype, mapped.raw(entry).reshape(entry.shape[0], -1), entry.shape[1])]
        except Damaged as error:
            raise hub.damaged(entry.path, error) from error

    def table(self, name: str) -> RowReader:
        form, entries = self._entries[name]
        parts = forms.read(form, entries) if form else (hub.stored(self._entry(name)),)

        def rows(ids: Array) -> F32:
            found = tuple(part[ids] for part in parts)
            return forms.dense(form, found) if form else mapped.values(found[0], entries[0].dtype)

        return rows

    def _entry(self, name: str) -> Entry:
        """The first part of a tensor. Raises WeightsError for floats of another type."""
        form, (entry, *_) = self._entries[name]
        if not form and entry.dtype not in FLOATS:
            named = short(name)
            raise WeightsError(f"{entry.path}: {named} has the type {entry.dtype}, not a float type; {AGAIN}.")
        return entry


class Renamed(Source):
    """The tensors of a file under our names. Embedding and head are cut to the number of tokens, because files pad
    them. `progress` is called as in `LoadChoice`."""

    def __init__(
        self,
        tensors: Source,
        layers: int,
        tokens: int,
        *,
        tied: bool,
        names: Names = HUB,
        mixture: "Mixture | None" = None,
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        self._tensors, self._tokens, self._progress, self._read = tensors, tokens, progress, set[str]()
        self._parts = dict[str, list[str]]()
        super().__init__(self._parts)
        experts = 0 if mixture is None else mixture.count
        if layers > len(tensors) or experts > len(tensors):
            raise WeightsError(
                f"config.json names {layers} layers and {experts} experts; the files lack tensors for them."
            )
        self._find("", names.outer)
        for layer in range(layers):
            self._add(f"layers.{layer}.", names.at.format(layer), names.layer, mixture)
        self.sparse = [layer for layer in range(layers) if f"layers.{layer}.router" in self]  # layers with experts
        used = {part for parts in self._parts.values() for part in parts}
        left = [name for name in tensors if name not in used]
        if left:
            raise WeightsError(
                f"{len(left)} tensors have no place in this model: {some(sorted(left))}; this is another "
                "model, or a format that is not supported yet."
            )
        if tied:
            self._parts.pop("head", None)

    def _add(self, ours: str, theirs: str, layer: Spellings, mixture: "Mixture | None") -> None:
        """Add a layer by its prefixes. One with a router has experts instead of an MLP."""
        if mixture is not None:
            self._find(ours, ROUTER, theirs)
        if mixture is None or f"{ours}router" not in self:
            self._find(ours, layer, theirs)
            return
        attention = {name: spellings for name, spellings in layer.items() if name not in FEEDING}
        self._find(ours, attention | (SHARED if mixture.shared else {}), theirs)
        for expert in range(mixture.count):
            self._find(f"{ours}experts.{expert}.", EXPERT, theirs, expert)

    def _find(self, ours: str, names: Spellings, theirs: str = "", expert: int = 0) -> None:
        """Add those of `names`, after the prefixes `ours` and `theirs`, that the file has."""
        for name, spellings in names.items():
            for parts in spellings:
                named = [theirs + part.format(expert) for part in parts]
                if all(part in self._tensors for part in named):
                    self._parts[ours + name] = named
                    break

    def shape(self, name: str) -> tuple[int, ...]:
        self._reads(name)
        shapes = [self._tensors.shape(part) for part in self._parts[name]]
        self._alike(name, shapes)
        rows = sum(shape[0] for shape in shapes if shape)
        return (self._cut(name, rows), *shapes[0][1:]) if shapes[0] else ()

    def floats(self, name: str) -> F32:
        self._reads(name)
        parts = [self._tensors.floats(part) for part in self._parts[name]]
        self._alike(name, [part.shape for part in parts])
        whole = mapped.below(parts)
        return whole[: self._cut(name, len(whole))] if whole.ndim else whole

    def form(self, name: str) -> str:
        """None where the tensors below one another differ in it."""
        found = {self._tensors.form(part) for part in self._parts.get(name, [])}
        return found.pop() if len(found) == 1 else ""

    def parts(self, name: str) -> tuple[str, CodedParts]:
        self._reads(name)
        found = [self._tensors.parts(part) for part in self._parts[name]]
        if len({form for form, _ in found}) == 1:
            for column in zip(*(parts for _, parts in found), strict=True):
                self._alike(name, [part.shape for part in column])
        form, parts = forms.stacked(found)
        return form, tuple(part[: self._cut(name, len(part))] for part in parts)

    def blocks(self, name: str) -> Sequence[RowBlocks]:
        self._reads(name)
        found = [self._tensors.blocks(part) for part in self._parts[name]]
        if not all(found):
            return ()
        blocks = list(chain.from_iterable(found))
        self._alike(name, [(len(one.rows), one.columns) for one in blocks])
        cut = self._cut(name, sum(len(one.rows) for one in blocks))
        return [one._replace(rows=one.rows[:cut]) for one in blocks]

    def table(self, name: str) -> RowReader:
        self.shape(name)
        (part,) = self._parts[name]
        return self._tensors.table(part)

    def _cut(self, name: str, rows: int) -> int:
        """How many of its rows a tensor has. Raises WeightsError if there are too few."""
        if name not in ("embed", "head"):
            return rows
        if rows < self._tokens:
            raise WeightsError(f"The model has {self._tokens} tokens, but weights for only {rows} of them; {AGAIN}.")
        return self._tokens

    def _alike(self, name: str, shapes: Sequence[tuple[int, ...]]) -> None:
        """Raises WeightsError if tensors cannot be put one below the other."""
        if len(shapes) > 1 and (len({shape[1:] for shape in shapes}) > 1 or not all(shapes)):
            raise WeightsError(f"{some(self._parts[name])} must have the same number of columns; {AGAIN}.")

    def _reads(self, name: str) -> None:
        self._progress(len(self._read) / len(self))  # those before it
        self._read.add(name)
