"""A light drafter over a base of the Llama kind: three layers that read the base's own states and guess a few tokens at
once, for the base to verify.

Hidden states at five depths of the base, each dimension divided by its usual size, are mixed into one state of each
row (EAGLE-3: Li et al. 2025). The drafter's layers take their keys and values for context and token tree from those
states (DFlash: Chen et al. 2026, "Block Diffusion for Flash Speculative Decoding"). The KV cache holds them after the
base's layers, so that they are reused, forked and truncated together; last it holds the state itself. A block has three
rows: the token to draft after, as the base's first layer reads it, and two empty rows. Each row guesses the next token;
it sees the other rows and what the token sees. Logits are shifted and come from the base's head, and the token chosen
for one row corrects those of the next (Hydra: Ankner et al. 2024).

The base scores every token of a guess. A wrong guess costs time; where an answer is drawn by a seed, it may change
which one is drawn.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from caesura.engine.cache import Kept
from caesura.engine.models import Drafter, Run
from caesura.engine.models._llama_layer import Norm, normalized, rotate
from caesura.engine.models.block_llama import BlockLlama, Config, Layers, Part, expect, packed, rotary
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.stored import WeightsError
from caesura.kernels import int8
from caesura.kernels.cpu.layers import Span

FIRST = 1  # layers of the base that read the token of a block
LAYERS = 3
TAPS = 5
BLOCK = 3  # rows of a block, each of which guesses a token
RANK = 256  # of the correction
SHORTLIST = 64  # likeliest tokens of a row, which the correction may reorder


def copied(layers: int) -> list[int]:
    """The base's layers that the drafter starts as copies of: of 24, these are 15, 19 and 23."""
    return [layers * (number + LAYERS + 1) // (2 * LAYERS) - 1 for number in range(LAYERS)]


def taps(layers: int) -> list[int]:
    """The base's layers after which its states are read: of 24, these are 3, 8, 13, 18 and 22. Not the last one, which
    only computes the rows that are asked for."""
    return [max(0, min(layers - 2, layers * (number + 1) // TAPS - 1)) for number in range(TAPS)]


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Of the drafter's own tensors, besides its layers: [N, K] of a matrix."""
    d, keys = config.hidden_size, 2 * LAYERS * config.num_kv_heads * config.head_dim
    return {
        "scale": (TAPS * d,),  # one over the usual size of each dimension of each tap
        "mix": (d, TAPS * d),  # is added to the last tap
        "kv": (keys, d),  # keys of all layers, then values of all layers
        "kv_bias": (keys,),
        "enter": (d, 2 * d),  # token and state before it, added to their sum
        "place": (BLOCK, d),
        "norm": (d,),
        "join": (RANK, 2 * d),  # a row and the token chosen before it
        "up": (d, RANK),
    }


def proportions(scale: Tensor) -> Tensor:
    """The usual sizes [hidden] of a state's dimensions in the base, as the last tap has them, with a mean square of 1:
    by these a state is again one that the base's layers know."""
    width = len(scale) // TAPS
    return sized(1 / scale[-width:])


def sized(x: Tensor) -> Tensor:
    """[..., size] with a mean square of 1."""
    return rms_norm(x, x.shape[-1:])


class LightLlama(BlockLlama):
    """See `caesura.engine.models.Drafter`."""

    def __init__(
        self,
        name: str,
        config: Config,
        tokenizer: Tokenizer,
        base: Mapping[str, Tensor],
        adapter: Mapping[str, Tensor] | None,
        light: Mapping[str, Tensor],
    ) -> None:
        """`light` are the drafter's tensors: its layers under a base's names, and those of `shapes`. Raises
        WeightsError."""
        if "head" in base:
            raise WeightsError("A light drafter needs a base whose head is its embedding; remove light.safetensors.")
        super().__init__(name, config, tokenizer, base, adapter)
        self.taps = taps(config.num_layers)
        drafting = [packed(config, light, {}, self._form, number)[0] for number in range(LAYERS)]
        self._drafting = self._path(drafting, canvas=False)
        self._entry = self._path([context for context, _ in self._layers[:FIRST]], canvas=False)
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
        base = super()._kept()
        return [*base, *base[:1] * LAYERS, Kept(1, self.config.hidden_size // 2)]  # a state is in two halves

    def _tap(self, tapped: Sequence[Tensor], spans: Sequence[Span], cos: Tensor, sin: Tensor) -> None:
        shape, half = self._shape, self.config.hidden_size // 2
        seen = torch.cat(list(tapped), -1) * self._scale
        state = sized(seen[:, -2 * half :] + int8.product(seen, self._mix))
        rows = (int8.product(state, self._kv) + self._kv_bias).unflatten(-1, (-1, shape.width))
        keys = rotate(rows[:, : LAYERS * shape.groups], cos, sin)
        both = torch.cat((keys, rows[:, LAYERS * shape.groups :]), 1).unflatten(1, (2, LAYERS, shape.groups))
        for span in spans:
            for number in range(LAYERS):
                put(span, number, both[:, 0, number], both[:, 1, number])
            put(span, LAYERS, state[:, None, :half], state[:, None, half:])

    @torch.inference_mode()
    def draft(self, runs: Sequence[Run]) -> tuple[Tensor, Tensor]:
        return self._choose(self.block(runs), torch.tensor([run.ids[0] for run in runs]))

    @torch.inference_mode()
    def block(self, runs: Sequence[Run]) -> Tensor:
        """The rows of each run's block through the layers, normed: [runs, BLOCK, hidden]."""
        first = torch.zeros(len(runs), BLOCK, self.config.hidden_size)
        first[:, 0] = sized(self._first(runs))
        states = torch.stack([state_before(run) for run in runs])[:, None].expand_as(first)
        entering = int8.product(torch.cat((first, states), -1).flatten(0, 1), self._enter)
        x = (first + states * self._proportions + self._place).flatten(0, 1) + entering
        x = self._through(self._drafting, x, [blocked(run) for run in runs], self.config.num_layers)
        return normalized(x, self._final, self._shape.eps).view(*first.shape)

    def _first(self, runs: Sequence[Run]) -> Tensor:
        """The runs' tokens [runs, hidden] as the base's first layers read them."""
        parts = [Part(run.kv, run.kv.length, run.ids, run.positions, run.mask) for run in runs]
        return self._through(self._entry, self._embedded(torch.tensor([run.ids[0] for run in runs])), parts, 0)

    def _through(self, path: Layers, x: Tensor, parts: Sequence[Part], at: int) -> Tensor:
        """Rows through layers, the first of which is number `at` in the cache."""
        lane = self._lane(parts)
        return path.through(x, *rotary(self._lengths, torch.tensor(lane.positions)), lane.placed(at))[0]

    def _choose(self, rows: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The best token of each row [runs, BLOCK, hidden] after the one chosen for the row before, and its
        probability. `before` [runs] are the tokens before the first."""
        logits = int8.product(rows.flatten(0, 1), self._head)[:, : self.config.vocab_size].unflatten(0, rows.shape[:2])
        shortlist = logits.topk(min(SHORTLIST, logits.shape[-1])).indices
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


def blocked(run: Run) -> Part:
    """A block in place of a run's one row: all of its rows see what that one sees, and each other."""
    assert run.mask is not None
    seen = run.mask[:, :-1].expand(BLOCK, -1)
    mask = torch.cat((seen, torch.ones(BLOCK, BLOCK, dtype=torch.bool)), 1)
    first = run.positions[0]
    return Part(run.kv, run.kv.length, [*run.ids, *[0] * (BLOCK - 1)], range(first, first + BLOCK), mask)


def state_before(run: Run) -> Tensor:
    """The state [hidden] of the row before a run's, the last one that it sees."""
    assert run.mask is not None
    columns = run.mask.shape[1] - 1
    row = run.kv.length - columns + int(run.mask[0, :columns].nonzero()[-1])
    left, right = run.kv.buffers[-1]
    return torch.cat((left[0, row], right[0, row])).float()


def put(span: Span, layer: int, keys: Tensor, values: Tensor) -> None:
    """The rows of a span out of [rows, heads, width] into its buffers of a layer."""
    end = span.at + span.end - span.first
    for held, rows in zip(span.buffers[layer], (keys, values), strict=True):
        held[:, span.at : end] = rows[span.first : span.end].transpose(0, 1)
