"""A light drafter for a base of the Llama kind: three layers that read the hidden states of the base and draft three
tokens at once, for the base to verify.

Hidden states at five depths of the base, each dimension divided by its usual size, are mixed into one state per row
(EAGLE-3: Li et al. 2025). The drafter's layers take the keys and values of the context and the token tree from those
states (DFlash: Chen et al. 2026, "Block Diffusion for Flash Speculative Decoding"). The KV cache holds them after the
layers of the base, so that both are reused, forked and truncated together. Its last layer holds the state itself. A
block has three rows: the token to draft after, as the base's first layer outputs it, and two empty rows. Each row
drafts the next token; it sees the other rows and everything the token sees. Logits are shifted and come from the base's
head. The token chosen for one row corrects the logits of the next (Hydra: Ankner et al. 2024).

The base scores every drafted token. A wrong draft costs only time, unless the answer is sampled: then it may change
which answer a seed gives.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from caesura.engine.cache import FEW, Kept
from caesura.engine.model import Drafter, ModelSpec, Run
from caesura.engine.models.llama.config import Config
from caesura.engine.models.llama.config import kept as of_base
from caesura.engine.models.llama.lanes import Lane, Part, masked
from caesura.engine.models.llama.layer import Norm, PlacedRows, rotate
from caesura.engine.models.llama.packed import expect, packed
from caesura.engine.models.llama.rotary import turns
from caesura.engine.models.llama.trunk import BlockLlama, Layers
from caesura.engine.scores import Floats, Ids
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.sources import InMemory, Source
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import int8

FIRST = 1  # layers of the base that the token of a block passes through first
LAYERS = 3  # layers of the drafter
TAPS = 5  # depths of the base whose hidden states are read
BLOCK = 3  # rows of a block; each drafts one token
RANK = 256  # rank of the correction
SHORTLIST = 64  # most likely tokens of a row; the correction can only reorder these


def copied(layers: int) -> list[int]:
    """The layers of the base that the drafter's layers are copied from before training: 15, 19 and 23 of 24."""
    return [layers * (number + LAYERS + 1) // (2 * LAYERS) - 1 for number in range(LAYERS)]


def taps(layers: int) -> list[int]:
    """The layers of the base whose output is read: 3, 8, 13, 18 and 22 of 24. The last layer is never one of them,
    because it computes only the wanted rows."""
    return [max(0, min(layers - 2, layers * (number + 1) // TAPS - 1)) for number in range(TAPS)]


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The shapes of the drafter's tensors other than its layers; a matrix is [N, K]."""
    d, keys = config.hidden_size, 2 * LAYERS * config.num_kv_heads * config.head_dim
    return {
        "scale": (TAPS * d,),  # 1 / the usual size of each dimension of each tap
        "mix": (d, TAPS * d),  # its product is added to the last tap
        "kv": (keys, d),  # keys of all layers, then values of all layers
        "kv_bias": (keys,),
        "enter": (d, 2 * d),  # takes the token and the state before it; the product is added to their sum
        "place": (BLOCK, d),
        "norm": (d,),
        "join": (RANK, 2 * d),  # takes a row and the token chosen before it
        "up": (d, RANK),
    }


def proportions(scale: Tensor) -> Tensor:
    """The usual sizes [hidden] of the dimensions of the last tap, with a mean square of 1. Multiplied by these, a state
    has the proportions that the base's layers were trained on."""
    width = len(scale) // TAPS
    return sized(1 / scale[-width:])


def sized(x: Tensor) -> Tensor:
    """Rows [..., size] scaled to a mean square of 1."""
    return rms_norm(x, x.shape[-1:])


def kept(config: Config) -> list[Kept]:
    """What a cache keeps for a context row, layer by layer; a state lies half in the keys, half in the values."""
    base = of_base(config, "cpu")
    return [*base, *base[:1] * LAYERS, Kept(1, config.hidden_size // 2)]


class LightLlama(BlockLlama):
    """See `caesura.engine.model.Drafter`."""

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        base: Source,
        adapter: Source | None,
        light: Source,
        contexts: int = FEW,
    ) -> None:
        """`light` holds the drafter's tensors: its layers, named as in a base, and those of `shapes`. Raises
        WeightsError."""
        if "head" in base:
            raise WeightsError("A light drafter needs a base whose head is its embedding; remove light.safetensors.")
        super().__init__(name, config, tokenizer, spec, base, adapter, contexts=contexts)
        self.taps = taps(config.num_layers)
        drafting = [packed(config, light, InMemory({}), self._form, number)[0] for number in range(LAYERS)]
        self._drafting = self._path(config, drafting, canvas=False)
        self._entry = self._path(config, [context for context, _ in self._layers[:FIRST]], canvas=False)
        sizes = shapes(config)
        own = {name: expect(light, name, sizes[name]) for name in ("scale", "kv_bias", "place", "norm")}
        self._scale, self._kv_bias, self._place = own["scale"], own["kv_bias"], own["place"]
        self._proportions = proportions(self._scale)
        self._final = Norm(own["norm"], None)
        self._mix, self._kv, self._enter, self._join, self._up = (
            self._form((light, name, sizes[name])) for name in ("mix", "kv", "enter", "join", "up")
        )

    @property
    def drafter(self) -> Drafter:
        return self

    def _kept(self) -> list[Kept]:
        return kept(self.config)

    def _tap(self, tapped: Sequence[Tensor], lane: Lane, cos: Tensor, sin: Tensor) -> None:
        shape, half = self._shape, self.config.hidden_size // 2
        seen = torch.cat(list(tapped), -1) * self._scale
        state = sized(seen[:, -2 * half :] + int8.product(seen, self._mix))
        rows = (int8.product(state, self._kv) + self._kv_bias).unflatten(-1, (-1, shape.width))
        keys = rotate(rows[:, : LAYERS * shape.groups], cos, sin)
        both = torch.cat((keys, rows[:, LAYERS * shape.groups :]), 1).unflatten(1, (2, LAYERS, shape.groups))
        for span in lane.placed(len(self._layers)):
            for number in range(LAYERS):
                put(span, number, both[:, 0, number], both[:, 1, number])
            put(span, LAYERS, state[:, None, :half], state[:, None, half:])

    @torch.inference_mode()
    def draft(self, runs: Sequence[Run]) -> tuple[Ids, Floats]:
        tokens, chances = self._choose(self.block(runs), torch.tensor([run.ids[0] for run in runs]))
        return tokens.int().numpy(), chances.numpy()

    @torch.inference_mode()
    def block(self, runs: Sequence[Run]) -> Tensor:
        """The blocks of the runs after all layers and the last norm, [runs, BLOCK, hidden]."""
        first = torch.zeros(len(runs), BLOCK, self.config.hidden_size)
        first[:, 0] = sized(self._first(runs))
        states = torch.stack([state_before(run) for run in runs])[:, None].expand_as(first)
        entering = int8.product(torch.cat((first, states), -1).flatten(0, 1), self._enter)
        x = (first + states * self._proportions + self._place).flatten(0, 1) + entering
        x = self._through(self._drafting, x, [blocked(run, BLOCK) for run in runs], self.config.num_layers)
        return self._normed(x, self._final).view(*first.shape)

    def _first(self, runs: Sequence[Run]) -> Tensor:
        """The tokens of the runs after the first layers of the base, [runs, hidden]."""
        parts = [Part(run.kv, run.kv.length, run.ids, run.positions, masked(run)) for run in runs]
        return self._through(self._entry, self._embedded(torch.tensor([run.ids[0] for run in runs])), parts, 0)

    def _through(self, path: Layers, x: Tensor, parts: Sequence[Part], at: int) -> Tensor:
        """Rows after the layers of a path; the first of these is layer `at` of the cache."""
        lane = self._lane(parts)
        return path.through(x, *turns(self._frequencies, torch.tensor(lane.positions)), lane.placed(at))[0]

    def _choose(self, rows: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The best token of each row [runs, BLOCK, hidden], given the token chosen for the row before, and its
        probability. `before` [runs] are the tokens before the first row."""
        logits = int8.product(rows.flatten(0, 1), self._head)[:, : self.config.vocab_size].unflatten(0, rows.shape[:2])
        shortlist = logits.topk(min(SHORTLIST, logits.shape[-1])).indices.sort().values
        of_list = self._embedded(shortlist.flatten()).unflatten(0, shortlist.shape)
        chosen, scores = list[Tensor](), list[Tensor]()
        for place in range(BLOCK):
            joined = torch.cat((rows[:, place], sized(self._embedded(before))), -1)
            change = int8.product(silu(int8.product(joined, self._join)), self._up)
            of_row, listed = logits[:, place], shortlist[:, place]
            of_row.scatter_add_(1, listed, (of_list[:, place] * change[:, None]).sum(-1))
            best = of_row.gather(1, listed).max(1)
            before = listed.gather(1, best.indices[:, None])[:, 0]
            chosen.append(before)
            scores.append(best.values)
        return torch.stack(chosen, 1), (torch.stack(scores, 1) - logits.logsumexp(-1)).exp()


def blocked(run: Run, rows: int) -> Part:
    """The block of `rows` rows for a run of one row: each sees what that row sees, and the rest of the block."""
    assert run.mask is not None
    seen = torch.from_numpy(run.mask)[:, :-1].expand(rows, -1)
    mask = torch.cat((seen, torch.ones(rows, rows, dtype=torch.bool)), 1)
    first = run.positions[0]
    return Part(run.kv, run.kv.length, [*run.ids, *[0] * (rows - 1)], range(first, first + rows), mask)


def state_before(run: Run) -> Tensor:
    """The state [hidden] of the last row that a run's row sees."""
    assert run.mask is not None
    columns = run.mask.shape[1] - 1
    row = run.kv.length - columns + int(run.mask[0, :columns].nonzero()[0][-1])
    left, right = run.kv.buffers[-1]
    return torch.cat((left[0, row], right[0, row])).float()


def put(span: PlacedRows, layer: int, keys: Tensor, values: Tensor) -> None:
    """Copy the rows of a span from keys and values [rows, heads, width] into its buffers of a layer."""
    end = span.at + span.end - span.first
    for held, rows in zip(span.buffers[layer], (keys, values), strict=True):
        held[:, span.at : end] = rows[span.first : span.end].transpose(0, 1)
