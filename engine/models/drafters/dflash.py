"""DFlash: a few layers that read the hidden states of a base and draft a block of tokens in one forward (Chen et al.
2026, "Block Diffusion for Flash Speculative Decoding").

The hidden states after some layers of the base are mixed into one state per row of the context and the token tree. In
every layer of the drafter, queries come from the rows of the block alone, and keys and values from those states and
from the block. Those of the states are further layers of the base's KV cache, as in llama/light.py. A block is the
token to draft after and mask tokens, at the positions that follow; its rows see each other and everything that token
sees. Each masked row predicts the token at its own position. The embedding and the head are the base's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from caesura.engine import memory
from caesura.engine.cache import Kept
from caesura.engine.model import MAX_ROWS, Drafter, LoadChoice, Model, ModelError, Run
from caesura.engine.models.causal import CONTEXT, LEAST
from caesura.engine.models.devices import chosen, device_of
from caesura.engine.models.folder import folder_of, read, read_config
from caesura.engine.models.llama import published
from caesura.engine.models.llama.config import Config, kept
from caesura.engine.models.llama.lanes import Lane
from caesura.engine.models.llama.layer import Norm, normalized, rotate, shape_of, times
from caesura.engine.models.llama.light import blocked, put
from caesura.engine.models.llama.memory import of_weights
from caesura.engine.models.llama.names import LAYER, Names, Published, Renamed
from caesura.engine.models.llama.packed import expect, moved, packed
from caesura.engine.models.llama.rotary import frequencies, turns
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scores import Floats, Ids
from caesura.engine.weights import forms
from caesura.engine.weights.sources import InMemory, Source
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import int8
from caesura.model_store.reading import reason

NAMES = Names(
    {"mix": [["fc.weight"]], "mix_norm": [["hidden_norm.weight"]], "norm": [["norm.weight"]]}, "layers.{}.", LAYER
)
# Settings of later drafters, each with the only value that is supported.
PLAIN = {"is_causal": False, "input_embedding_scale": 1, "output_multiplier": 1, "final_logit_softcapping": 0}


@dataclass(frozen=True)
class Drafting:
    """What config.json says besides the sizes: the rows of a block, the mask token, the layers of the base whose output
    is read, and how many `layers` the base has, if it says so."""

    rows: int
    mask: int
    taps: tuple[int, ...]
    layers: int | None

    @classmethod
    def read(cls, name: str, config: dict[str, Any]) -> "Drafting":
        """Raises WeightsError."""
        own = config.get("dflash_config")
        said = {**config, **(own if isinstance(own, dict) else {})}
        odd = [key for key, value in PLAIN.items() if said.get(key) not in (None, value)]
        if odd or "sliding_attention" in str(said.get("layer_types")):
            raise WeightsError(
                f"{name} has {odd[0] if odd else 'sliding layers'}, which is not supported in a drafter."
            )
        try:
            taps = tuple(int(layer) for layer in said["target_layer_ids"])
            found = cls(
                int(said.get("block_size", 16)), int(said["mask_token_id"]), taps, said.get("num_target_layers")
            )
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise WeightsError(f"The config of {name} is damaged: its drafter lacks {reason(error)}.") from error
        ordered = bool(taps) and taps[0] >= 0 and list(taps) == sorted(set(taps))
        if not (ordered and 1 < found.rows <= MAX_ROWS and 0 <= found.mask < 2**31):
            raise WeightsError(
                f"The config of {name} is damaged: a drafter has 2 to {MAX_ROWS} rows, a mask token and layers of its "
                "base in ascending order."
            )
        return found


class DFlash(BlockLlama):
    """A base that drafts with such layers; see `caesura.engine.model.Drafter`."""

    def __init__(
        self,
        base: BlockLlama,
        config: Config,
        drafting: Drafting,
        stretch: NDArray[np.float64] | None,
        tensors: Source,
    ) -> None:
        """`config` and `stretch` are those of the drafter, as in `BlockLlama`. Raises WeightsError."""
        vars(self).update(vars(base))  # everything of the base, without a copy of its weights
        d = config.hidden_size
        self.taps, self._block, self._own = drafting.taps, drafting.rows, config
        self._masked = self._embedded(torch.tensor([drafting.mask], device=self.device))
        # The base may have been read with more tokens than its tokenizer has, for the sake of the mask token.
        self.config, self.width = replace(self.config, vocab_size=self.tokenizer.size), self.tokenizer.size
        self._mix = self._form((tensors, "mix", (d, len(self.taps) * d)))
        self._mix_norm, self._final = (
            moved(Norm(expect(tensors, name, (d,)), None), self.device) for name in ("mix_norm", "norm")
        )
        layers = [packed(config, tensors, InMemory({}), self._form, number)[0] for number in range(config.num_layers)]
        self._seeing = [layer.attention for layer in layers]
        self._drafting = self._path(config, layers, canvas=False)
        self._turning = frequencies(config, self.device)
        if stretch is not None:
            self._turning = self._turning / torch.from_numpy(stretch).to(self.device)
        both = super()._kept(), kept(config, self.device)
        own, more = (memory.of_context(layers, self.spec.max_context, 1) for layers in both)
        self._contexts = max(1, self._contexts * own // (own + more))

    @property
    def drafter(self) -> Drafter:
        return self

    def _kept(self) -> list[Kept]:
        return [*super()._kept(), *kept(self._own, self.device)]

    def _logits(self, lane: Lane, *order: Semaphore | None) -> Tensor:
        return super()._logits(lane, *order)[:, : self.width]

    def _tap(self, tapped: Sequence[Tensor], lane: Lane, cos: Tensor, sin: Tensor) -> None:
        del cos, sin  # of the base, whose heads may turn differently
        shape, spans = shape_of(self._own), lane.placed(len(self._layers))
        state = normalized(int8.product(torch.cat(list(tapped), -1), self._mix), self._mix_norm, shape.eps)
        turned = self._turned(lane)
        for number, seeing in enumerate(self._seeing):
            rows = times(state, seeing.qkv, canvas=False).unflatten(-1, (-1, shape.width))[:, shape.heads :]
            keys, values = rows.split(shape.groups, 1)
            if seeing.head_norms is not None:
                keys = normalized(keys, seeing.head_norms[1], shape.eps)
            for span in spans:
                put(span, number, rotate(keys, *turned), values)

    def _turned(self, lane: Lane) -> tuple[Tensor, Tensor]:
        return turns(self._turning, torch.tensor(lane.positions, device=self.device))

    def draft(self, runs: Sequence[Run]) -> tuple[Ids, Floats]:
        best = self.block(runs).softmax(-1).max(-1)
        return best.indices.int().cpu().numpy(), best.values.cpu().numpy()

    @torch.inference_mode()
    def block(self, runs: Sequence[Run]) -> Tensor:
        """The logits of the masked rows of each run's block, [runs, rows - 1, width]."""
        x = self._masked.repeat(len(runs), self._block, 1)
        x[:, 0] = self._embedded(torch.tensor([run.ids[0] for run in runs], device=self.device))
        lane = self._lane([blocked(run, self._block) for run in runs])
        after = self._drafting.through(x.flatten(0, 1), *self._turned(lane), lane.placed(len(self._layers)))[0]
        rows = normalized(after, self._final, self._own.rms_norm_eps).view(x.shape)[:, 1:]
        logits = int8.product(rows.flatten(0, 1), self._head)[:, : self.width]
        return logits.reshape(*rows.shape[:2], self.width)


def pair(name: str, folder: Path, config: dict[str, Any], choice: LoadChoice) -> Model:
    """The model `name` with the drafter of a folder. Both are counted before either is read. Raises UnusableModel."""
    own = folder.name
    drafting = Drafting.read(own, config)
    shape = published.read(own, config, config.get("vocab_size", drafting.mask + 1))
    if shape.vocab_size != vocabulary(name, shape.vocab_size):
        raise ModelError(f"{own} cannot draft for {name}: it was trained on a vocabulary of another size.")
    files = Published(folder)
    tensors = Renamed(files, shape.num_layers, shape.vocab_size, tied=False, names=NAMES)
    stretch, fit = published.stretched(own, config, shape), partial(fits, own, shape, drafting, tensors, choice)
    base = read(name, replace(choice, tokens=drafting.mask + 1, beside=fit))
    if problem := refusal(base, own, shape, drafting):
        raise ModelError(problem)
    assert isinstance(base, BlockLlama)
    fit(0)  # the shipped models are not counted, so nothing was asked before
    return DFlash(base, shape, drafting, stretch, tensors)


def vocabulary(name: str, usual: int) -> object:
    """The size that the config.json of a model says; `usual` if it has none."""
    path = folder_of(name)
    return read_config(path).get("vocab_size", usual) if path.is_dir() else usual


def fits(name: str, shape: Config, drafting: Drafting, tensors: Renamed, choice: LoadChoice, taken: int) -> None:
    """Raises DoesNotFit if the weights and one context of a drafter do not fit beside `taken` bytes, those of a base
    and its step; the drafter's step is smaller, and the two take turns."""
    device = chosen(choice.device)
    keeping = published.keeping_of(name, device, choice, tensors.form("layers.0.qkv"))
    d, itemsize, context = shape.hidden_size, keeping.itemsize, choice.context or CONTEXT
    layers = of_weights(replace(shape, vocab_size=0), keeping, tensors.form, tied=True)
    weights = layers + forms.nbytes(keeping.of(tensors.form("mix")), d, len(drafting.taps) * d)
    with memory.taken(taken):
        room = memory.free(device_of(device))
    memory.fit(name, weights, kept(shape, device), lambda tokens: 0, context, itemsize, device, 1, room, LEAST)


def refusal(base: Model, name: str, shape: Config, drafting: Drafting) -> str:
    """One sentence if the drafter cannot draft for the base, else an empty string."""
    if not isinstance(base, BlockLlama) or base.spec.noise or base.drafter or base.device == "meta":
        return f"{name} drafts only for an autoregressive model of Llama's kind, with values, which {base.name} is not."
    config, layers = base.config, drafting.layers or base.config.num_layers
    if config.hidden_size != shape.hidden_size or config.num_layers != layers:
        return (
            f"{name} cannot draft for {base.name}: it was trained for {layers} layers of {shape.hidden_size} columns, "
            f"not for {config.num_layers} of {config.hidden_size}."
        )
    if drafting.taps[-1] >= config.num_layers - 1:  # the last layer computes only the wanted rows
        return (
            f"{name} cannot draft for {base.name}: it reads the layers {list(drafting.taps)}, and the last that can be "
            f"read is {config.num_layers - 2}."
        )
    if not drafting.mask < config.vocab_size or base.tokenizer.size > shape.vocab_size:
        return f"{name} cannot draft for {base.name}: they have different vocabularies."
    return ""
