"""The two paths of the trunk of `engine/models/llama` with gradients, over batches of one fixed shape, and what is
minimised.

Frozen base + a low-rank update of one of its paths, or one set of float32 weights for both, used in bfloat16 where the
device has it. `tests/tools/test_training.py` holds that the logits are the runtime's. A layer is written as the two
functions around its attention, so that `compiled` builds them once instead of once a layer.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    cross_entropy,
    embedding,
    linear,
    one_hot,
    pad,
    rms_norm,
    scaled_dot_product_attention,
    silu,
)

from caesura.engine.models.llama.config import MATRICES, SPECIALS, Config
from caesura.engine.models.llama.layer import rotate
from caesura.engine.models.llama.rotary import frequencies, turns

RANK = 32
ALIGNED = 8  # bfloat16 values in 16 bytes: rows of any other length keep a GPU from its fastest matrix products
TAUGHT = 0.5  # share of a teacher's expectation in what is learnt
POSITIONS = 1024  # rows of the rotary table; a context with its canvas is shorter

Trains = Literal["canvas", "context", "all"]  # an update of that path's matrices, or every weight

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
KeysValues = list[tuple[Tensor, Tensor]]


def fastest(device: str) -> torch.dtype:
    """bfloat16 where the device computes in it: a CPU that does not takes seven times as long with it."""
    return torch.bfloat16 if device != "cpu" or torch.cpu._is_avx512_bf16_supported() else torch.float32


class Matrix(NamedTuple):
    """[N, K] weights; the factors of a low-rank update, and the bias [N], where there are any."""

    weight: Tensor
    a: Tensor | None = None
    b: Tensor | None = None
    bias: Tensor | None = None


class Layer(NamedTuple):
    attn_norm: Tensor
    qkv: Matrix
    out: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


def project(x: Tensor, matrix: Matrix) -> Tensor:
    out = linear(x, matrix.weight.to(x.dtype), None if matrix.bias is None else matrix.bias.to(x.dtype))
    if matrix.a is None or matrix.b is None:
        return out
    return out + linear(linear(x, matrix.a.to(x.dtype)), matrix.b.to(x.dtype))


def before(x: Tensor, norm: Tensor, qkv: Matrix, cos: Tensor, sin: Tensor, config: Config) -> tuple[Tensor, ...]:
    """Rows [..., hidden] -> q, k, v [..., heads, width], q and k turned to their positions."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    rows = project(rms_norm(x, norm.shape, norm.to(x.dtype), config.rms_norm_eps), qkv)
    split = rows.unflatten(-1, (heads + 2 * kv_heads, config.head_dim))
    turned = rotate(split[..., : heads + kv_heads, :], cos, sin)
    return turned[..., :heads, :], turned[..., heads:, :], split[..., heads + kv_heads :, :]


def after(x: Tensor, seen: Tensor, out: Matrix, norm: Tensor, gate_up: Matrix, down: Matrix, eps: float) -> Tensor:
    """The rest of a layer: what attention saw, and the feed-forward part."""
    x = x + project(seen, out)
    gate, up = project(rms_norm(x, norm.shape, norm.to(x.dtype), eps), gate_up).chunk(2, -1)
    return x + project(silu(gate) * up, down)


def attention(q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, bias: Tensor) -> Tensor:
    """q, k, v [B, C, R, heads, width] of canvases, keys and values [B, kv_heads, S, width] of their contexts, and what
    is added to the scores [B, 1, C, 1, R, S + K] -> [B, C, R, heads * width]. K is R or more: zeros follow the own
    keys of a canvas, and the bias hides them.

    Query heads that share a key head are laid out as more rows of it, so keys are never repeated for them, and all
    canvases of a context are rows of one product with its keys. For the shapes of a GPU's training this moves fewer
    bytes than a fused kernel does, which would want a copy of the context's keys and of the bias for each canvas.
    """
    (contexts, canvases, rows, heads, width), (groups, size) = q.shape, past_k.shape[1:3]
    apart = contexts, groups, canvases, heads // groups, rows
    own_keys = bias.shape[-1] - size
    k, v = (pad(t.permute(0, 3, 1, 2, 4), (0, 0, 0, own_keys - rows)) for t in (k, v))
    q = q.unflatten(3, (groups, -1)).permute(0, 3, 1, 4, 2, 5) * width**-0.5
    before = (q.reshape(contexts, groups, -1, width) @ past_k.transpose(2, 3)).view(*apart, size)
    inside = (q.flatten(3, 4) @ k.transpose(3, 4)).view(*apart, own_keys)
    past, own = (torch.cat((before, inside), -1) + bias).softmax(-1).split((size, own_keys), -1)
    out = (past.reshape(contexts, groups, -1, size) @ past_v).view(*apart, width)
    out = out + (own.flatten(3, 4) @ v).view(*apart, width)
    return out.permute(0, 2, 4, 1, 3, 5).flatten(3)


class Net:
    """`trained` are the parameters, `base` what stays as it is. An update begins at layer `first`: the layers below are
    the base's, and nothing is carried back through them."""

    def __init__(
        self,
        config: Config,
        base: Mapping[str, Tensor],
        trains: Trains,
        *,
        first: int = 0,
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        self.config, self.trains, self.first, self.dtype = config, trains, first, fastest(device)
        trained = {}
        if trains != "context":
            trained["special"] = base["embed"].mean(0, keepdim=True).repeat(len(SPECIALS), 1)
        for i in range(first, config.num_layers):
            for matrix in () if trains == "all" else MATRICES:
                n, k = config.shape(matrix)
                trained[f"layers.{i}.{matrix}.a"] = torch.randn(RANK, k) / math.sqrt(k)
                trained[f"layers.{i}.{matrix}.b"] = torch.zeros(n, RANK)
            for norm in ("attn_norm", "mlp_norm"):
                trained[f"layers.{i}.{norm}"] = base[f"layers.{i}.{norm}"].clone()
        trained["norm"] = base["norm"].clone()
        if trains == "all":
            trained |= {name: t.clone() for name, t in base.items() if name not in trained}
        self.trained = {name: nn.Parameter(t.to(device)) for name, t in trained.items()}
        self.base = {} if trains == "all" else {name: t.to(device, self.dtype) for name, t in base.items()}
        self.turn = [t.to(device, self.dtype) for t in turns(frequencies(config), torch.arange(POSITIONS))]
        # Few shapes: contexts, and canvases of each bucket, with gradients and without; with a teacher's they are more
        # than the eight that are built of a function before it is given up.
        torch._dynamo.config.recompile_limit = 32
        self.before = torch.compile(before, dynamic=False, fullgraph=True, disable=not compiled)
        self.after = torch.compile(after, dynamic=False, fullgraph=True, disable=not compiled)
        self.attention = torch.compile(attention, dynamic=False, fullgraph=True, disable=not compiled)

    def moves(self, *, canvas: bool) -> bool:
        """Whether that path is trained."""
        return self.trains in ("all", "canvas" if canvas else "context")

    def matrix(self, name: str, *, moves: bool) -> Matrix:
        weights = self.trained if self.trains == "all" else self.base
        found = Matrix(weights[name], bias=weights.get(f"{name}_bias"))
        if self.trains == "all" or not moves:
            return found
        return found._replace(a=self.trained[f"{name}.a"], b=self.trained[f"{name}.b"])

    def layer(self, number: int, *, canvas: bool) -> Layer:
        """One layer of the canvas path or of the context path."""
        moves, stem = self.moves(canvas=canvas) and number >= self.first, f"layers.{number}"
        norms = self.trained if moves else self.base
        qkv, out, gate_up, down = (self.matrix(f"{stem}.{name}", moves=moves) for name in MATRICES)
        return Layer(norms[f"{stem}.attn_norm"], qkv, out, norms[f"{stem}.mlp_norm"], gate_up, down)

    def table(self) -> Tensor:
        """Embedding and head, [vocabulary + specials, hidden]; without specials where only the context is trained."""
        embed = self.trained["embed"] if self.trains == "all" else self.base["embed"]
        special = [self.trained["special"].to(self.dtype)] if self.trains != "context" else []
        return torch.cat((embed.to(self.dtype), *special))

    def stack(self, x: Tensor, positions: Tensor, attend: Attend, *, canvas: bool) -> Tensor:
        """All layers over rows [..., hidden] at positions [...]; `attend` owns masks and KV. Returns normed rows."""
        cos, sin = (table[positions] for table in self.turn)
        eps = self.config.rms_norm_eps
        learns = torch.is_grad_enabled()
        for number in range(self.config.num_layers):
            layer = self.layer(number, canvas=canvas)
            with torch.set_grad_enabled(learns and number >= self.first):
                q, k, v = self.before(x, layer.attn_norm, layer.qkv, cos, sin, self.config)
                x = self.after(x, attend(number, q, k, v), layer.out, layer.mlp_norm, layer.gate_up, layer.down, eps)
        norm = (self.trained if self.moves(canvas=canvas) else self.base)["norm"]
        return rms_norm(x, norm.shape, norm.to(x.dtype), eps)

    def context(self, ids: Tensor) -> tuple[Tensor, KeysValues]:
        """ids [B, S], right-padded -> hidden rows and (k, v) [B, kv_heads, S, width] of each layer."""
        held: KeysValues = []

        def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            held.append((k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)

        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.stack(embedding(ids, self.table()), positions, attend, canvas=False), held

    def canvas(self, ids: Tensor, start: Tensor, keys: Tensor, causal: Tensor, held: KeysValues) -> Tensor:
        """ids [B, C, R]: C canvases of each context; start [B, C] visible context rows; keys [B, C, R] real rows;
        causal [B, C] canvases read left to right. Returns hidden rows [B, C, R, hidden]."""
        rows = ids.shape[2]
        size = held[0][0].shape[2]
        seen = torch.arange(size, device=ids.device) < start[..., None]
        order = torch.ones(rows, rows, dtype=torch.bool, device=ids.device).tril()
        own = keys[:, :, None] & (order | ~causal[..., None, None])
        context = seen[:, :, None].expand(-1, -1, rows, -1)
        visible = torch.cat((context, pad(own, (0, -rows % ALIGNED))), 3)
        mask = visible[:, None, :, None]
        bias = torch.zeros(mask.shape, dtype=self.dtype, device=ids.device).masked_fill(~mask, -torch.inf)

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.attention(q, k, v, *held[number], bias)

        positions = start[..., None] + torch.arange(rows, device=ids.device)
        return self.stack(embedding(ids, self.table()), positions, attend, canvas=True)


def logits_of(rows: Tensor, table: Tensor) -> Tensor:
    """Rows [n, hidden] under a head [vocabulary, hidden], float32 [n, vocabulary]."""
    return linear(rows, pad(table, (0, 0, 0, -len(table) % ALIGNED)))[:, : len(table)].float()


class Read(NamedTuple):
    """Logits [.., vocabulary + specials] of what a batch asks for, and the tokens that are right."""

    slots: Tensor
    slot_labels: Tensor
    ordered: Tensor  # left to right: context rows, and behind them canvases that are read so
    ordered_labels: Tensor
    contexts: int  # how many of them are context rows
    picked: Tensor  # [contexts, canvases, rows] bool: which rows the slots are


def read(net: Net, batch: Mapping[str, Tensor], *, ordered: bool) -> Read:
    """Forward of a batch as `batches.collate` makes it; `ordered` where the left-to-right rows are wanted too."""
    with torch.set_grad_enabled(net.trains == "all" and torch.is_grad_enabled()):
        hidden, held = net.context(batch["context"])
    rows = net.canvas(batch["ids"], batch["start"], batch["keys"], batch["causal"], held)
    table, labels = net.table(), batch["labels"]
    causal = batch["causal"][..., None] & (labels >= 0)
    picked = (labels >= 0) & ~causal
    real = torch.arange(1, hidden.shape[1], device=hidden.device) < batch["lengths"][:, None]
    real &= ordered
    context = batch["context"][:, 1:][real]
    follow = torch.cat((context, labels[causal & ordered]))
    left = torch.cat((hidden[:, :-1][real], rows[causal & ordered]))
    slots, ordered_logits = (logits_of(some, table) for some in (rows[picked], left))
    return Read(slots, labels[picked], ordered_logits, follow, len(context), picked)


class Losses(NamedTuple):
    ce: Tensor  # [n] of every predicted slot
    null: Tensor  # [n] whether its true token is null
    canvas: Tensor  # [n] number of its canvas
    causal: Tensor  # mean left-to-right loss, 0 where only the canvas path is trained


def losses(net: Net, batch: Mapping[str, Tensor], null: int, teacher: Net | None = None) -> Losses:
    """Cross-entropy of a batch; with a teacher, half of it against what the teacher expects there (Hinton et al. 2015)
    instead of the token that is right."""
    ordered = net.trains == "all"
    found = read(net, batch, ordered=ordered)
    slots, follow = found.slot_labels, found.ordered_labels
    if teacher is not None:
        with torch.no_grad():
            taught = read(teacher, batch, ordered=ordered)
        slots = softened(slots, taught.slots)
        # What the teacher says left to right it says by its context path: its canvas path may never have read so.
        hard = one_hot(follow[found.contexts :], taught.ordered.shape[1]).to(slots.dtype)
        follow = torch.cat((softened(follow[: found.contexts], taught.ordered[: found.contexts]), hard))
    ce = cross_entropy(found.slots, slots, reduction="none")
    causal = cross_entropy(found.ordered, follow) if ordered else ce.new_zeros(())
    labels = batch["labels"]
    number = torch.arange(labels.shape[0] * labels.shape[1], device=labels.device).view(*labels.shape[:2], 1)
    return Losses(ce, found.slot_labels == null, number.expand_as(labels)[found.picked], causal)


def softened(labels: Tensor, logits: Tensor) -> Tensor:
    """[n] tokens and [n, V] logits of a teacher -> [n, V] probabilities, half of each."""
    target = logits.softmax(-1) * TAUGHT
    return target.scatter_add_(1, labels[:, None], torch.full_like(target[:, :1], 1 - TAUGHT).expand(len(labels), 1))


def objective(found: Losses, canvases: int) -> Tensor:
    """Flat over tokens; the nulls of one canvas together weigh as one token (DreamOn), else they would dominate."""
    null = found.null.float()
    nulls = null.new_zeros(canvases).index_add(0, found.canvas, null)
    weight = torch.where(found.null, 1 / nulls[found.canvas].clamp_min(1), 1.0)
    return (found.ce * weight).sum() / weight.sum()
