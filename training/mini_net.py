"""A small DiffusionGemma with gradients: the two modes of the stack over batches of fixed shapes, under the names that
its checkpoints use.

Every expert runs on every row and the router's weights pick: at this size two large products beat eight small ones.
The embedding is cut in two: rows of the task's own tokens, trained one by one, and all others, which are one shared
vector plus a small frozen texture each, so that a token of chance looks like noise from the first step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, softmax

TEXTURE = 0.05  # length of what tells one token of no task from another; the shared vector has length 1

# Matrices whose first draw is not of unit gain: routers that choose at once, self-conditioning that is quiet at first.
SCALES = {"router.proj.weight": 8.0, "down_proj.weight": 0.3}

KeysValues = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shape:
    """The sizes that a mini is free to choose."""

    hidden: int = 128
    layers: tuple[str, ...] = ("sliding", "full") * 3
    heads: int = 4
    width: int = 32
    kv_heads: int = 2
    full_width: int = 64
    full_kv_heads: int = 1
    dense: int = 192
    experts: int = 8
    top: int = 2
    expert: int = 32
    window: int = 1024
    canvas: int = 96
    vocabulary: int = 16384
    softcap: float = 30.0
    eos: int = 0


def rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (wide if weight is None else wide * weight).to(x.dtype)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def rotary(shape: Shape, kind: str, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos, sin [rows, width]. Full layers turn a quarter of their pairs (Gemma's `proportional`)."""
    width = shape.width if kind == "sliding" else shape.full_width
    turns = torch.arange(0, width, 2).float() / width
    rates = 1e4**-turns if kind == "sliding" else torch.where(turns < 0.25, 1e6**-turns, 0.0)
    angles = (positions.float()[:, None] * rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [rows, heads, width] to their positions; cos, sin [rows, 1, width]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def qkv(x: Tensor, w: dict[str, Tensor], cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, hidden] -> q, k, v [rows, heads, width]. Without `v_proj` the values are the raw keys."""
    h, width = rms(x, w["input_layernorm.weight"]), cos.shape[-1]

    def heads(name: str) -> Tensor:
        return linear(h, w[f"self_attn.{name}.weight"]).unflatten(-1, (-1, width))

    raw = heads("k_proj")
    v = heads("v_proj") if "self_attn.v_proj.weight" in w else raw
    q = turn(rms(heads("q_proj"), w["self_attn.q_norm.weight"]), cos, sin)
    return q, turn(rms(raw, w["self_attn.k_norm.weight"]), cos, sin), rms(v)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, heads, rows, width]. Two plain products: quicker here than the fused kernel's backward pass."""
    shape, kv_heads = q.shape, k.shape[1]
    scores = q.reshape(shape[0], kv_heads, -1, shape[-1]) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.unflatten(2, (-1, shape[2])).masked_fill(~mask[:, :, None], -torch.inf).flatten(2, 3)
    return (softmax(scores, -1) @ v).view(shape)


def rest(x: Tensor, seen: Tensor, w: dict[str, Tensor], scalar: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """A layer behind its attention, over [rows, hidden]; and how unevenly the router spreads the rows (1: evenly)."""
    x = x + rms(linear(seen, w["self_attn.o_proj.weight"]), w["post_attention_layernorm.weight"])
    h = rms(x, w["pre_feedforward_layernorm.weight"])
    act = gelu(linear(h, w["mlp.gate_proj.weight"]), approximate="tanh") * linear(h, w["mlp.up_proj.weight"])
    m = rms(linear(act, w["mlp.down_proj.weight"]), w["post_feedforward_layernorm_1.weight"])
    scaled = (rms(x).float() * w["router.scale"] * x.shape[-1] ** -0.5).to(x.dtype)
    p = softmax(linear(scaled, w["router.proj.weight"]).float(), -1)
    best, index = p.topk(top, -1)
    chosen = torch.zeros_like(p).scatter(-1, index, 1.0)
    best = best / best.sum(-1, keepdim=True)
    pick = torch.zeros_like(p).scatter(-1, index, best) * w["router.per_expert_scale"]
    experts, double, hidden = w["experts.gate_up_proj"].shape
    h = rms(x, w["pre_feedforward_layernorm_2.weight"])
    gate, up = linear(h, w["experts.gate_up_proj"].reshape(-1, hidden)).unflatten(-1, (experts, double)).chunk(2, -1)
    act = gelu(gate, approximate="tanh") * up * pick[..., None].to(x.dtype)
    down = w["experts.down_proj"].transpose(0, 1).reshape(hidden, -1)
    e = rms(linear(act.flatten(-2), down), w["post_feedforward_layernorm_2.weight"])
    x = x + rms(m + e, w["post_feedforward_layernorm.weight"])
    load = chosen.mean(0) / top
    return x * scalar.to(x.dtype), (load * p.mean(0)).sum() * experts


def combine(rows: Tensor, soft: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Embedded canvas rows and the soft embedding of the last prediction -> the decoder's input."""
    n = rms(soft, w["pre_norm.weight"])
    act = gelu(linear(n, w["gate_proj.weight"]), approximate="tanh") * linear(n, w["up_proj.weight"])
    return rms(rows + linear(act, w["down_proj.weight"]))


class Net(nn.Module):
    """`tasks`: the ids of the tokens that are trained one by one."""

    def __init__(self, shape: Shape, tasks: list[int], seed: int = 0, compiled: bool = False) -> None:
        super().__init__()
        self.shape = shape
        draw = torch.Generator().manual_seed(seed)
        d = shape.hidden

        def normal(*size: int, scale: float = 1.0) -> Tensor:
            return torch.randn(*size, generator=draw) * scale / math.sqrt(size[-1])

        self.register_buffer("tasks", torch.tensor(tasks))
        place = torch.full((shape.vocabulary,), -1)
        place[self.tasks] = torch.arange(len(tasks))
        self.register_buffer("place", place)
        self.register_buffer("others", torch.tensor(sorted(set(range(shape.vocabulary)) - set(tasks))))
        common = normal(d)
        self.register_buffer("texture", normal(shape.vocabulary, d, scale=TEXTURE).to(torch.bfloat16).float())
        self.task = nn.Parameter(0.5 * common + 0.87 * normal(len(tasks), d))
        self.other = nn.Parameter(0.5 * common + 0.87 * normal(d))
        self.params = nn.ParameterDict()
        self.groups: list[dict[str, str]] = []

        def add(stem: str, sizes: dict[str, tuple[int, ...]]) -> dict[str, str]:
            names = {}
            for name, size in sizes.items():
                tensor = normal(*size, scale=SCALES.get(name, 1.0))
                if len(size) == 1:
                    tensor = torch.full(size, 0.5 if "post_" in name or "attn" in name else 1.0)
                names[name] = f"{stem}{name}"
                self.params[f"{stem}{name}".replace(".", "/")] = nn.Parameter(tensor)
            return names

        f = shape.dense
        self.sc = add(
            "model.decoder.self_conditioning.",
            {"pre_norm.weight": (d,), "gate_proj.weight": (f, d), "up_proj.weight": (f, d), "down_proj.weight": (d, f)},
        )
        self.final = add("model.decoder.", {"norm.weight": (d,)})
        for i, kind in enumerate(shape.layers):
            full = kind == "full"
            width, kv = (shape.full_width, shape.full_kv_heads) if full else (shape.width, shape.kv_heads)
            sizes: dict[str, tuple[int, ...]] = {
                f"{name}.weight": (d,)
                for name in (
                    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "pre_feedforward_layernorm_2", "post_feedforward_layernorm", "post_feedforward_layernorm_1",
                    "post_feedforward_layernorm_2",
                )
            }  # fmt: skip
            sizes |= {
                "self_attn.q_proj.weight": (shape.heads * width, d),
                "self_attn.k_proj.weight": (kv * width, d),
                "self_attn.o_proj.weight": (d, shape.heads * width),
                "self_attn.q_norm.weight": (width,),
                "self_attn.k_norm.weight": (width,),
                "mlp.gate_proj.weight": (f, d),
                "mlp.up_proj.weight": (f, d),
                "mlp.down_proj.weight": (d, f),
                "router.proj.weight": (shape.experts, d),
                "router.scale": (d,),
                "router.per_expert_scale": (shape.experts,),
                "experts.gate_up_proj": (shape.experts, 2 * shape.expert, d),
                "experts.down_proj": (shape.experts, d, shape.expert),
            }
            if not full:
                sizes["self_attn.v_proj.weight"] = (kv * width, d)
            self.groups.append(add(f"model.decoder.layers.{i}.", sizes))
        self.scalars = nn.ParameterDict(
            {mode: nn.Parameter(torch.ones(len(shape.layers))) for mode in ("decoder", "encoder")}
        )
        self.qkv = torch.compile(qkv, dynamic=False, disable=not compiled)
        self.rest = torch.compile(rest, dynamic=False, disable=not compiled)
        self.combine = torch.compile(combine, dynamic=False, disable=not compiled)

    @torch.no_grad()
    def aim(self, legends: Sequence[list[int]]) -> None:
        """A start that knows what text looks like here; all of it is trained further.

        The words of a legend begin as sums of codes of row, column and box. Heads of the first layer look back by a
        fixed number of rows: by the lengths of the legends, by one token and by three (from a value's first word to its
        key). They write what they find into directions of their own. Three heads of every full layer look at the cells
        of their own row, column and box; two of the second sliding layer copy from where the same tokens stand one and
        three rows before (induction, Olsson et al. 2022).
        """
        shape, d, width = self.shape, self.shape.hidden, self.shape.width
        basis = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1)))[0].T
        common, placed, last, third, named, words = basis.split((1, 27, 20, 20, 27, d - 95))
        own = torch.cat((named, words))  # where embeddings live
        for rows in (self.task, self.other):
            rows.copy_(0.5 * common[0] + 0.87 * unit(rows @ own.T @ own))
        for legend in legends:
            side = math.isqrt(len(legend))
            box = math.isqrt(side)
            for i, word in enumerate(legend):
                row, column = divmod(i, side + 1)
                if column < side:
                    code = named[row] + named[9 + column] + named[18 + row // box * box + column // box]
                    self.task[self.place[word]] = 0.5 * common[0] + 0.5 * code

        def part(layer: int, name: str) -> Tensor:
            return self.params[f"model/decoder/layers/{layer}/self_attn/{name}/weight"]

        half = width // 2
        sharp = torch.zeros(half)
        sharp[:6] = 1.0  # the quick pairs tell neighbours apart
        rates = 1e4 ** (-torch.arange(half) / half)
        part(0, "k_proj").copy_(torch.cat((sharp, torch.zeros(half))).repeat(2)[:, None] * common)
        for head, back in enumerate((*map(len, legends), 1, 3)):
            phase = torch.cat((sharp * (rates * back).cos(), -sharp * (rates * back).sin()))
            part(0, "q_proj")[head * width : (head + 1) * width] = phase[:, None] * common
        part(0, "q_norm").fill_(1.5)
        part(0, "k_norm").fill_(1.5)
        part(0, "v_proj")[:27] = named
        part(0, "o_proj").mul_(0.2)
        part(0, "o_proj")[:, :27] = placed.T
        for head, into in ((2, last), (3, third)):
            part(0, "o_proj")[:, head * width : head * width + 20] = into.T
        slow = [*range(half // 2, half), *range(half + half // 2, width)]  # pairs that hardly turn within a page
        part(2, "o_proj").mul_(0.2)
        for group, found, copied in ((0, last, own[:width]), (1, third, own[-width:])):
            rows = slice(group * width, (group + 1) * width)
            part(2, "v_proj")[rows] = copied
            part(2, "o_proj")[:, 2 * group * width : (2 * group + 1) * width] = copied.T
            key = torch.zeros(width, d)
            key[slow] = found[: len(slow)]
            part(2, "k_proj")[rows] = key
            part(2, "q_proj")[2 * group * width : (2 * group + 1) * width] = key

        width = shape.full_width
        still = [i for i in range(width) if i % (width // 2) >= width // 8][:27]  # what `proportional` does not turn
        for i in (i for i, kind in enumerate(shape.layers) if kind == "full"):
            part(i, "k_proj")[still] = placed
            part(i, "q_norm").fill_(0.65)
            part(i, "k_norm").fill_(0.65)
            for head in range(3):
                q = part(i, "q_proj")[head * width : (head + 1) * width].mul_(0.02)
                q[still[9 * head : 9 * head + 9]] = placed[9 * head : 9 * head + 9]

    def group(self, names: dict[str, str], dtype: torch.dtype) -> dict[str, Tensor]:
        """Parameters of one part: matrices in `dtype`, the rest (scales and norms) in float32."""
        found = {name: self.params[full.replace(".", "/")] for name, full in names.items()}
        return {name: p.to(dtype) if p.dim() > 1 else p for name, p in found.items()}

    def embed(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        place = self.place[ids]
        rows = torch.where((place >= 0)[..., None], self.task[place.clamp(min=0)], self.other + self.texture[ids])
        return (rows * math.sqrt(self.shape.hidden)).to(dtype)

    def table(self, ids: Tensor) -> Tensor:
        """Head rows [tasks + ids, hidden]: every task token, then the given others."""
        return torch.cat((self.task, self.other + self.texture[ids]))

    def layer(
        self, i: int, x: Tensor, stored: tuple[Tensor, Tensor] | None, mask: Tensor | None, mode: str
    ) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
        """[batch, rows, hidden] behind what is stored -> the same, its own keys and values, the router's unevenness."""
        shape, (batch, rows, _) = self.shape, x.shape
        w = self.group(self.groups[i], x.dtype)
        before = stored[0].shape[2] if stored else 0
        table = rotary(shape, shape.layers[i], torch.arange(before, before + rows))
        cos, sin = (t.to(x.dtype).repeat(batch, 1)[:, None] for t in table)
        flat = x.flatten(0, 1)
        fast = batch > 1  # a legend, one for all, is too small to be worth a compilation
        q, k, v = (
            t.unflatten(0, (batch, rows)).transpose(1, 2) for t in (self.qkv if fast else qkv)(flat, w, cos, sin)
        )
        keys, values = k, v
        if stored:
            keys, values = (
                torch.cat((old.expand(batch, -1, -1, -1), new), 2) for old, new in zip(stored, (k, v), strict=True)
            )
        seen = attend(q, keys, values, mask).transpose(1, 2).flatten(2).flatten(0, 1)
        flat, uneven = (self.rest if fast else rest)(flat, seen, w, self.scalars[mode][i], shape.top)
        return flat.unflatten(0, (batch, rows)), (k, v), uneven

    def encode(self, ids: Tensor, hidden: Tensor | None = None, dtype: torch.dtype = torch.float32) -> KeysValues:
        """Causal pass over [batch, rows]; `hidden` marks left padding. Keys and values of each layer."""
        rows = ids.shape[1]
        mask = torch.ones(rows, rows, dtype=torch.bool).tril()[None, None]
        if hidden is not None:
            mask = (mask & ~hidden[:, None, None, :]) | torch.eye(rows, dtype=torch.bool)
        x, stored = self.embed(ids, dtype), []
        for i in range(len(self.shape.layers)):
            x, kv, _ = self.layer(i, x, None, mask, "encoder")
            stored.append(kv)
        return stored

    def decode(
        self, canvas: Tensor, stored: KeysValues, absent: Tensor | None = None, soft: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """[batch, rows] over the prompt's keys and values -> normed rows, and the mean unevenness of the routers.
        `absent` marks rows of prompt and canvas [batch, both] that nobody sees."""
        batch, rows = canvas.shape
        soft = torch.zeros(batch, rows, self.shape.hidden) if soft is None else soft
        x = self.combine(
            self.embed(canvas, dtype).flatten(0, 1), soft.to(dtype).flatten(0, 1), self.group(self.sc, dtype)
        )
        x = x.unflatten(0, (batch, rows))
        mask = None if absent is None else ~absent[:, None, None, :].expand(-1, 1, rows, -1)
        uneven = torch.zeros(())
        for i in range(len(self.shape.layers)):
            x, _, one = self.layer(i, x, stored[i], mask, "decoder")
            uneven = uneven + one / len(self.shape.layers)
        return rms(x, self.group(self.final, dtype)["norm.weight"]), uneven

    def logits(self, x: Tensor, table: Tensor) -> Tensor:
        """Float32, after the softcap."""
        cap = self.shape.softcap
        return cap * torch.tanh(linear(x, table.to(x.dtype)).float() / cap)

    def embedding(self) -> Tensor:
        """Of all tokens."""
        place = self.place[:, None]
        return torch.where(place >= 0, self.task[self.place.clamp(min=0)], self.other + self.texture)

    def export(self) -> dict[str, Tensor]:
        """The checkpoint's tensors, bfloat16."""
        out = {name.replace("/", "."): p for name, p in self.params.items()}
        out["model.decoder.embed_tokens.weight"] = self.embedding()
        for mode, stem in (("decoder", "model.decoder"), ("encoder", "model.encoder.language_model")):
            for i in range(len(self.shape.layers)):
                out[f"{stem}.layers.{i}.layer_scalar"] = self.scalars[mode][i : i + 1]
        return {name: t.detach().to(torch.bfloat16).contiguous().clone() for name, t in out.items()}
