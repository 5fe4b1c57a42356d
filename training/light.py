"""The light drafter of engine/models/llama/light.py with gradients: what it learns from, and how well its drafts fit.

The base is frozen. One forward of it over a context gives the states that the drafter reads, and what the base itself
expects at each position, which is half of the target (Hinton et al. 2015). Blocks stand at random places of the prefix.
A context is used twice, for other blocks, since reading it costs as much as they do.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, rms_norm, scaled_dot_product_attention, silu
from torch.utils.data import Dataset

from caesura.engine.models.llama.config import MATRICES, Config
from caesura.engine.models.llama.layer import rotate
from caesura.engine.models.llama.light import BLOCK, FIRST, LAYERS, copied, proportions, shapes, sized, taps
from caesura.engine.models.llama.rotary import frequencies, turns
from caesura.engine.tokens.tokenizer import Tokenizer

from batches import Batch  # isort: skip  (beside this script)
from net import POSITIONS, Layer, Matrix, after, before, fastest, project  # isort: skip

PREFIX, SUFFIX = 384, 96  # tokens of a context at most
ANCHORS, TESTED = 128, 32  # blocks of a context, to learn from and held out
USES = 2  # of a context
CHUNK = 256  # rows of logits at once: 20 MB of them in bfloat16
DECAY = 0.8  # of a row's weight from place to place: a later token only counts where those before it are right
SINK = 4  # first rows of a context, whose states are enormous in most models of this kind


@dataclass
class Blocks(Dataset[Batch]):
    """Batch number `step`: contexts `[suffix] separator [prefix]` [B, rows] with `anchors` [B, blocks], the places of
    tokens that the drafter drafts after. `number` [B] is of the contexts."""

    texts: Sequence[str]
    tokenizer: Tokenizer
    separator: list[int]
    contexts: int
    seed: str
    blocks: int = ANCHORS  # of a context

    def __getitem__(self, step: int) -> Batch:
        number = step // USES
        rng = random.Random(f"{self.seed}/{number}")
        made = list[tuple[list[int], int]]()
        while len(made) < self.contexts:
            one = context(max(rng.choices(self.texts, k=2), key=len), self.tokenizer, self.separator, rng)
            if one is not None:
                made.append(one)
        rng = random.Random(f"{self.seed}/{number}/{step}")
        ids = torch.zeros(len(made), SUFFIX + len(self.separator) + PREFIX, dtype=torch.int64)
        for row, (tokens, _) in zip(ids, made, strict=True):
            row[: len(tokens)] = torch.tensor(tokens)
        anchors = [sorted(rng.sample(places(tokens, first), self.blocks)) for tokens, first in made]
        lengths = torch.tensor([len(tokens) for tokens, _ in made])
        numbers = number * len(made) + torch.arange(len(made))
        return {"context": ids, "lengths": lengths, "anchors": torch.tensor(anchors), "number": numbers}


def places(tokens: Sequence[int], first: int) -> range:
    """List where a block may stand: after a token of the prefix, with its labels in the context."""
    return range(first + 1, len(tokens) - BLOCK)


def context(
    text: str, tokenizer: Tokenizer, separator: Sequence[int], rng: random.Random
) -> tuple[list[int], int] | None:
    """Tokens, and where the prefix begins in them; None where it is too short for all blocks. Cut as in examples.py."""
    if len(text) < 200:
        return None
    window = PREFIX * 4
    split = rng.randint(min(len(text) // 2, window), len(text)) if rng.random() < 0.8 else len(text)
    start = text.rfind("\n", 0, max(0, split - window)) + 1
    suffix = tokenizer.encode(text[split : split + SUFFIX * 5])[:SUFFIX]
    tokens = [*suffix, *separator, *tokenizer.encode(text[start:split])[:PREFIX]]
    first = len(suffix) + len(separator)
    return (tokens, first) if len(places(tokens, first)) >= ANCHORS else None


class Read(NamedTuple):
    """What the base says of contexts [B, S]."""

    tapped: Tensor  # [B, S, taps * hidden]
    last: Tensor  # [B, S, hidden], normed: the head's input
    held: list[tuple[Tensor, Tensor]]  # keys and values [B, key heads, S, width] of each layer


class LightNet:
    """`trained` are the drafter's parameters, and the scale, which stays; `base` is frozen. The usual size of the
    base's states is that in the contexts of `sample`."""

    trains = "light"

    def __init__(self, config: Config, base: Mapping[str, Tensor], sample: Batch, device: str = "cpu") -> None:
        self.config, self.dtype = config, fastest(device)
        self.base = {name: tensor.to(device, self.dtype) for name, tensor in base.items()}
        self.turn = [table.to(device, self.dtype) for table in turns(frequencies(config), torch.arange(POSITIONS))]
        self.taps = taps(config.num_layers)
        tapped, rows = self.read(sample["context"].to(device)).tapped.cpu(), torch.arange(sample["context"].shape[1])
        sizes = tapped[(rows >= SINK) & (rows < sample["lengths"][:, None])].float().square().mean(0).sqrt()
        trained = first_tensors(config, base, sizes)
        self.trained = {name: nn.Parameter(tensor.to(device)) for name, tensor in trained.items()}
        self.trained["scale"].requires_grad_(False)

    @torch.no_grad()
    def read(self, ids: Tensor) -> Read:
        """Contexts [B, S], right-padded, through the base."""
        config, tapped, held = self.config, list[Tensor](), list[tuple[Tensor, Tensor]]()
        x = self.base["embed"][ids]
        cos, sin = (table[: ids.shape[1]] for table in self.turn)
        for number in range(config.num_layers):
            layer = layer_of(self.base, number)
            q, k, v = (t.transpose(1, 2) for t in before(x, layer.attn_norm, layer.qkv, cos, sin, config))
            held.append((k, v))
            seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
            x = after(x, seen, layer.out, layer.mlp_norm, layer.gate_up, layer.down, config.rms_norm_eps)
            tapped += [x] * self.taps.count(number)
        return Read(torch.cat(tapped, -1), self.normed(x, self.base["norm"]), held)

    def states(self, tapped: Tensor) -> Tensor:
        """[B, S, taps * hidden] -> [B, S, hidden]."""
        seen = tapped * self.trained["scale"].to(tapped.dtype)
        return sized(seen[..., -self.config.hidden_size :] + project(seen, Matrix(self.trained["mix"])))

    def keys_values(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """States [B, S, hidden] -> keys and values [B, key heads, S, width] of each of the drafter's layers."""
        groups = self.config.num_kv_heads
        rows = project(states, Matrix(self.trained["kv"], bias=self.trained["kv_bias"]))
        keys, values = rows.unflatten(-1, (-1, self.config.head_dim)).chunk(2, -2)
        keys = rotate(keys, *(table[: states.shape[1]] for table in self.turn))
        return [
            (k.transpose(1, 2), v.transpose(1, 2))
            for k, v in zip(keys.split(groups, 2), values.split(groups, 2), strict=True)
        ]

    def block(self, read: Read, ids: Tensor, anchors: Tensor) -> Tensor:
        """The rows of blocks at `anchors` [B, A], normed: [B, A, BLOCK, hidden]."""
        states = self.states(read.tapped)
        tokens = sized(self.first(read, ids, anchors))
        first = torch.cat((tokens[:, :, None], tokens.new_zeros(*anchors.shape, BLOCK - 1, tokens.shape[-1])), 2)
        ahead = states.gather(1, (anchors - 1)[..., None].expand_as(tokens))[:, :, None].expand_as(first)
        x = first + ahead * proportions(self.trained["scale"]).to(self.dtype) + self.trained["place"].to(self.dtype)
        x = x + project(torch.cat((first, ahead), -1), self.own("enter"))
        layers = [layer_of(self.trained, number) for number in range(LAYERS)]
        mask = visible(anchors, BLOCK, ids.shape[1], causal=False)
        x = self.through(layers, x, anchors, self.keys_values(states), mask)
        return self.normed(x, self.trained["norm"])

    @torch.no_grad()
    def first(self, read: Read, ids: Tensor, anchors: Tensor) -> Tensor:
        """The tokens at `anchors` [B, A] as the base's first layers read them: [B, A, hidden]."""
        layers, x = [layer_of(self.base, number) for number in range(FIRST)], self.base["embed"][ids.gather(1, anchors)]
        mask = visible(anchors, 1, ids.shape[1], causal=True)
        return self.through(layers, x[:, :, None], anchors, read.held[:FIRST], mask)[:, :, 0]

    def corrected(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """Rows [..., hidden] as the head reads them after the token [...] chosen before each."""
        joined = torch.cat((rows, sized(self.base["embed"][chosen])), -1)
        return rows + project(silu(project(joined, self.own("join"))), self.own("up"))

    def through(
        self, layers: Sequence[Layer], x: Tensor, first: Tensor, held: list[tuple[Tensor, Tensor]], mask: Tensor
    ) -> Tensor:
        """Rows [B, A, R, hidden] at positions `first` [B, A] and on, through layers whose context is `held`."""
        positions = first[..., None] + torch.arange(x.shape[2], device=first.device)
        cos, sin = (table[positions] for table in self.turn)
        for layer, past in zip(layers, held, strict=True):
            q, k, v = before(x, layer.attn_norm, layer.qkv, cos, sin, self.config)
            seen = attended(q, k, v, past, mask)
            x = after(x, seen, layer.out, layer.mlp_norm, layer.gate_up, layer.down, self.config.rms_norm_eps)
        return x

    def own(self, name: str) -> Matrix:
        return Matrix(self.trained[name])

    def normed(self, x: Tensor, norm: Tensor) -> Tensor:
        return rms_norm(x, norm.shape, norm.to(x.dtype), self.config.rms_norm_eps)

    @torch.no_grad()
    def draft(self, rows: Tensor, ids: Tensor) -> Tensor:
        """The tokens that are drafted after `ids` [n] with the rows [n, BLOCK, hidden] of their blocks: [n, BLOCK]."""
        chosen = [ids]
        for place in range(BLOCK):
            chosen.append(linear(self.corrected(rows[:, place], chosen[-1]), self.base["embed"]).argmax(-1))
        return torch.stack(chosen[1:], 1)

    @torch.no_grad()
    def greedy(self, read: Read, ids: Tensor, anchors: Tensor) -> Tensor:
        """The base's own likeliest tokens after `anchors` [B, A]: [B, A, BLOCK]."""
        layers = [layer_of(self.base, number) for number in range(self.config.num_layers)]
        ahead = read.last.gather(1, anchors[..., None].expand(-1, -1, read.last.shape[-1]))
        chosen = [linear(ahead, self.base["embed"]).argmax(-1)]
        while len(chosen) < BLOCK:
            x = self.base["embed"][torch.stack(chosen, 2)]
            mask = visible(anchors + 1, len(chosen), ids.shape[1], causal=True)
            x = self.through(layers, x, anchors + 1, read.held, mask)[:, :, -1]
            chosen.append(linear(self.normed(x, self.base["norm"]), self.base["embed"]).argmax(-1))
        return torch.stack(chosen, 2)


def first_tensors(config: Config, base: Mapping[str, Tensor], sizes: Tensor) -> dict[str, Tensor]:
    """The drafter before any step: copies of the base's layers, whose keys and values of a context are those that the
    base would make of its last tap. `sizes` [taps * hidden] are of the taps' dimensions."""
    found = {name: torch.zeros(shape) for name, shape in shapes(config).items()}
    width, of_keys = config.hidden_size, config.num_kv_heads * config.head_dim
    found["scale"] = 1 / sizes.clamp_min(1e-4)
    usual = proportions(found["scale"])
    parts = list[Tensor]()
    for number, layer in enumerate(copied(config.num_layers)):
        stem = f"layers.{layer}."
        found |= {f"layers.{number}.{n.removeprefix(stem)}": t.clone() for n, t in base.items() if n.startswith(stem)}
        bias = base.get(f"{stem}qkv_bias", torch.zeros(config.shape("qkv")[0]))
        weight = base[f"{stem}qkv"] * (base[f"{stem}attn_norm"] * usual)
        parts.append(torch.cat((weight, bias[:, None]), 1)[-2 * of_keys :])
    both = torch.cat([part[:of_keys] for part in parts] + [part[of_keys:] for part in parts])
    found["kv"], found["kv_bias"] = both[:, :-1].contiguous(), both[:, -1].contiguous()
    found["norm"] = base["norm"].clone()
    found["place"] = torch.randn(BLOCK, width) * 0.1
    found["join"] = torch.randn(found["join"].shape) * (2 * width) ** -0.5
    return found


def layer_of(weights: Mapping[str, Tensor], number: int) -> Layer:
    """A layer without a low-rank update."""
    stem = f"layers.{number}"
    qkv, out, gate_up, down = (
        Matrix(weights[f"{stem}.{name}"], bias=weights.get(f"{stem}.{name}_bias")) for name in MATRICES
    )
    return Layer(weights[f"{stem}.attn_norm"], qkv, out, weights[f"{stem}.mlp_norm"], gate_up, down)


def visible(start: Tensor, rows: int, size: int, *, causal: bool) -> Tensor:
    """Which of `size` context rows and of all blocks' rows each row of a block sees, bool [B, A * R, size + A * R]:
    context before `start` [B, A], and its own block, or of that what is before it."""
    count = start.shape[1] * rows
    number = torch.arange(count, device=start.device)
    seen = torch.arange(size, device=start.device) < start.repeat_interleave(rows, 1)[..., None]
    own = (number[:, None] // rows == number // rows) & ((number[:, None] >= number) | (not causal))
    return torch.cat((seen, own.expand(len(start), -1, -1)), 2)


def attended(q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """q, k, v [B, A, R, heads, width] of blocks, and keys and values of their contexts -> [B, A, R, hidden]. Query
    heads that share a key head are laid out as more rows of it."""
    batch, blocks, rows, groups = k.shape[:4]
    share = q.shape[3] // groups
    keys, values = (
        torch.cat((one, new.flatten(1, 2).transpose(1, 2)), 2) for one, new in zip(past, (k, v), strict=True)
    )
    folded = q.reshape(batch, blocks * rows, groups, share, -1).permute(0, 2, 1, 3, 4).flatten(2, 3)
    bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -torch.inf)
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=bias.repeat_interleave(share, 1)[:, None])
    return out.unflatten(2, (blocks, rows, share)).permute(0, 2, 3, 1, 4, 5).flatten(3)


class Distilled(torch.autograd.Function):
    """Cross-entropy [n] of rows [n, hidden] under a frozen head, half of it against the true tokens and half against
    what another row expects. The gradient is computed with it, a chunk of logits at a time, to save memory."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, head: Tensor, tokens: Tensor, expecting: Tensor, weight: Tensor) -> Tensor:
        """`expecting` [n, hidden] are the rows whose logits are the target, `weight` [n] of each row's loss."""
        losses, gradients = list[Tensor](), list[Tensor]()
        for some, token, other, share in zip(*(t.split(CHUNK) for t in (rows, tokens, expecting, weight)), strict=True):
            logits, target = linear(some, head), linear(other, head).softmax(-1).mul_(0.5)
            gradient = logits.softmax(-1)
            true, chance = (t.gather(1, token[:, None])[:, 0].float() for t in (logits, gradient))
            losses.append(0.5 * true - chance.log() - (target * logits).sum(-1, dtype=torch.float32))
            gradient.sub_(target)
            gradient.scatter_add_(1, token[:, None], gradient.new_full((len(token), 1), -0.5))
            gradients.append(linear(gradient, head.T) * share[:, None].to(head.dtype))
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses) * weight

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0][:, None].to(gradient.dtype), None, None, None, None


@dataclass
class Drafting:
    """Blocks of contexts, for train.py."""

    net: LightNet
    batches: Blocks
    held: Sequence[Batch]
    betas = (0.9, 0.95)
    _number: int = -1
    _read: Read | None = None

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        """The mean over blocks of the weighted loss of their rows."""
        net, ids, anchors = self.net, batch["context"], batch["anchors"]
        number = int(batch["number"][0])
        if self._read is None or self._number != number:
            self._number, self._read = number, net.read(ids)
        around, expecting = labelled(self._read, ids, anchors)
        rows = net.corrected(net.block(self._read, ids, anchors), around[..., :-1])
        weight = DECAY ** torch.arange(BLOCK, device=ids.device).expand(rows.shape[:3])
        parts = (rows, around[..., 1:], expecting, weight / weight.sum())
        flat, tokens, others, shares = (part.flatten(0, 2) for part in parts)
        losses: Tensor = Distilled.apply(flat, net.base["embed"], tokens, others, shares)  # type: ignore[no-untyped-call]
        return losses.sum(), tokens.numel()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """`accepted`: tokens of a draft, up to the first wrong one, that the base would choose; `accepted_text`: that
        are true. `ce_1` and on: nats of the true tokens by place, given those before."""
        found, net = list[Tensor](), self.net
        for batch in self.held:
            ids, anchors = batch["context"], batch["anchors"]
            read = net.read(ids)
            around, _ = labelled(read, ids, anchors)
            rows = net.block(read, ids, anchors)
            drafts = net.draft(rows.flatten(0, 1), around[..., 0].flatten())
            agreed = [
                (drafts == tokens.flatten(0, 1)).long().cumprod(1).sum(1, keepdim=True)
                for tokens in (net.greedy(read, ids, anchors), around[..., 1:])
            ]
            judged, tokens = net.corrected(rows, around[..., :-1]).flatten(0, 2), around[..., 1:].flatten()
            chunks = zip(judged.split(CHUNK), tokens.split(CHUNK), strict=True)
            nats = [cross_entropy(linear(r, net.base["embed"]).float(), t, reduction="none") for r, t in chunks]
            found.append(torch.cat((*agreed, torch.cat(nats).view(-1, BLOCK)), 1))
        names = ("accepted", "accepted_text", *(f"ce_{place + 1}" for place in range(BLOCK)))
        return dict(zip(names, torch.cat(found).mean(0).tolist(), strict=True))


def labelled(read: Read, ids: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of blocks, [B, A, 1 + BLOCK] with the one they stand after, and the base's rows [B, A, BLOCK, hidden]
    that expect all but that one."""
    at = anchors[..., None] + torch.arange(BLOCK + 1, device=ids.device)
    contexts = torch.arange(len(ids), device=ids.device)[:, None, None]
    return ids[contexts, at], read.last[contexts, at[..., :-1]]
