"""Train the embedded model: an adapter on canvas rows over a frozen base (CPU), or every weight (GPU).

    python training/train.py --model FOLDER --corpus FOLDER --run FOLDER [--minutes N] [--full] [--device cuda]

Resumable to the step: batches are drawn from (seed, step), and a checkpoint holds parameters, optimizer moments and
the step. Checkpoints and logs lie in --run: `state.safetensors`, `log.jsonl`. Use OMP_WAIT_POLICY=PASSIVE.
"""

import argparse
import gzip
import json
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from caesura.engine import weights
from caesura.engine.models.block_llama import MATRICES, SPECIALS, Config, Layer, rotary, stack
from caesura.engine.tokenizer import Tokenizer

from examples import BUCKETS, HEAD, SHARES, TAIL, Example, example  # isort: skip  (beside this script)

RANK = 32
AR_WEIGHT = 0.3  # of the left-to-right loss on context rows, where those are trained


class Net(nn.Module):
    """The two paths of `block_llama` with gradients: frozen base + low-rank updates, or one set of full weights."""

    def __init__(self, config: Config, base: Mapping[str, Tensor], *, full: bool) -> None:
        super().__init__()
        self.config, self.full = config, full
        self.base = {name: t.to(torch.bfloat16) for name, t in base.items()}
        special = base["embed"].mean(0, keepdim=True).repeat(len(SPECIALS), 1)
        trained = {"special": special}
        for i in range(config.num_layers):
            for matrix in () if full else MATRICES:
                n, k = config.shape(matrix)
                trained[f"layers.{i}.{matrix}.a"] = torch.randn(RANK, k) / math.sqrt(k)
                trained[f"layers.{i}.{matrix}.b"] = torch.zeros(n, RANK)
            for norm in ("attn_norm", "mlp_norm"):
                trained[f"layers.{i}.{norm}"] = base[f"layers.{i}.{norm}"].clone()
        trained["norm"] = base["norm"].clone()
        if full:
            trained |= {name: t.clone() for name, t in base.items() if name not in trained}
        self.trained = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(t) for name, t in trained.items()})

    def to_device(self, device: str) -> "Net":
        self.base = {} if self.full else {name: t.to(device) for name, t in self.base.items()}
        return self.to(device)

    def parameter(self, name: str) -> Tensor:
        return self.trained[name.replace(".", "/")]

    def layers(self, *, canvas: bool) -> tuple[list[Layer], Tensor]:
        """Layers and final norm of the canvas path or of the context path."""

        def matrix(name: str) -> Any:
            if self.full:
                return lambda x: linear(x, self.parameter(name).to(x.dtype))
            frozen = self.base[name]
            if not canvas:
                return lambda x: linear(x, frozen)
            a, b = self.parameter(f"{name}.a"), self.parameter(f"{name}.b")
            return lambda x: linear(x, frozen) + linear(linear(x, a.to(x.dtype)), b.to(x.dtype))

        def norm(name: str) -> Tensor:
            return (self.parameter(name) if canvas or self.full else self.base[name]).to(torch.bfloat16)

        made = [
            Layer(
                norm(f"layers.{i}.attn_norm"),
                matrix(f"layers.{i}.qkv"),
                matrix(f"layers.{i}.out"),
                norm(f"layers.{i}.mlp_norm"),
                matrix(f"layers.{i}.gate_up"),
                matrix(f"layers.{i}.down"),
            )
            for i in range(self.config.num_layers)
        ]
        return made, norm("norm")

    def table(self) -> Tensor:
        """Embedding and head, [vocabulary + specials, hidden]."""
        embed = self.parameter("embed") if self.full else self.base["embed"]
        return torch.cat((embed.to(torch.bfloat16), self.parameter("special").to(torch.bfloat16)))

    def context(self, ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """ids [contexts, S], right-padded -> hidden rows and (k, v) [contexts, kv_heads, S, width] of each layer."""
        held: list[tuple[Tensor, Tensor]] = []

        def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            held.append((k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)

        turn = tuple(t.to(ids.device, torch.bfloat16) for t in rotary(self.config, torch.arange(ids.shape[1])))
        layers, norm = self.layers(canvas=False)
        return stack(self.table()[ids], layers, norm, attend, (turn[0], turn[1]), self.config), held

    def canvas(self, ids: Tensor, start: Tensor, keys: Tensor, held: list[tuple[Tensor, Tensor]], of: Tensor) -> Tensor:
        """ids [C, R]; start [C] visible context rows; keys [C, R] real rows; of [C] index of the context.
        Returns hidden rows [C, R, hidden]."""
        count, rows = ids.shape
        size = held[0][0].shape[2]
        seen = torch.arange(size, device=ids.device)[None] < start[:, None]
        mask = torch.cat((seen, keys), 1)[:, None, None, :]

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            context_k, context_v = (t[of] for t in held[i])
            k, v = torch.cat((context_k, k.transpose(1, 2)), 2), torch.cat((context_v, v.transpose(1, 2)), 2)
            folded = q.view(count, rows, k.shape[1], -1, q.shape[3]).permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = scaled_dot_product_attention(folded, k, v, attn_mask=mask)
            return out.view(count, k.shape[1], -1, rows, q.shape[3]).permute(0, 3, 1, 2, 4).flatten(2)

        positions = start[:, None] + torch.arange(rows, device=ids.device)[None]
        turn = tuple(t.to(ids.device, torch.bfloat16) for t in rotary(self.config, positions.cpu()))
        layers, norm = self.layers(canvas=True)
        return stack(self.table()[ids], layers, norm, attend, (turn[0], turn[1]), self.config)


def collate(batch: list[Example], device: str) -> dict[str, Tensor]:
    """Right-padded tensors of several examples; labels are -1 where nothing is predicted, at the predicting row."""
    size = max(len(e.context) for e in batch)
    canvases = [(number, c) for number, e in enumerate(batch) for c in e.canvases]
    rows = max(TAIL + len(c.target) + HEAD for _, c in canvases)
    out = {
        "context": torch.zeros(len(batch), size, dtype=torch.int64),
        "ids": torch.zeros(len(canvases), rows, dtype=torch.int64),
        "keys": torch.zeros(len(canvases), rows, dtype=torch.bool),
        "labels": torch.full((len(canvases), rows), -1),
        "start": torch.tensor([c.visible for _, c in canvases]),
        "of": torch.tensor([number for number, _ in canvases]),
        "lengths": torch.tensor([len(e.context) for e in batch]),
    }
    for number, e in enumerate(batch):
        out["context"][number, : len(e.context)] = torch.tensor(e.context)
    for row, (_, c) in enumerate(canvases):
        ids = c.tail + c.shown + c.head
        out["ids"][row, : len(ids)] = torch.tensor(ids)
        out["keys"][row, : len(ids)] = True
        for slot, (token, shown) in enumerate(zip(c.target, c.shown, strict=True)):
            if token != shown:  # hidden or corrupted
                out["labels"][row, TAIL + slot - 1] = token
    return {name: t.to(device) for name, t in out.items()}


def losses(net: Net, batch: dict[str, Tensor], null: int) -> tuple[Tensor, Tensor, Tensor]:
    """Canvas cross-entropy of every predicted slot [n], which of them are null [n], and the left-to-right loss."""
    with torch.set_grad_enabled(net.full and torch.is_grad_enabled()):
        hidden, held = net.context(batch["context"])
    causal = torch.zeros((), device=hidden.device)
    if net.full:
        real = torch.arange(1, hidden.shape[1], device=hidden.device)[None] < batch["lengths"][:, None]
        logits = linear(hidden[:, :-1][real], net.table())
        causal = cross_entropy(logits.float(), batch["context"][:, 1:][real])
    rows = net.canvas(batch["ids"], batch["start"], batch["keys"], held, batch["of"])
    labels = batch["labels"]
    picked = labels >= 0
    logits = linear(rows[picked], net.table())
    return cross_entropy(logits.float(), labels[picked], reduction="none"), labels[picked] == null, causal


def objective(ce: Tensor, is_null: Tensor, canvases: int) -> Tensor:
    """Flat over tokens; the nulls of a canvas together weigh as one token (DreamOn), else they would dominate."""
    tokens = (~is_null).sum()
    null_mean = ce[is_null].mean() if bool(is_null.any()) else ce.new_zeros(())
    return (ce[~is_null].sum() + canvases * null_mean) / (tokens + canvases)


def files(corpus: Path, pattern: str, languages: set[str] | None = None) -> list[str]:
    """All texts of the matching shards."""
    found = []
    for shard in sorted(corpus.glob(pattern)):
        with gzip.open(shard, "rt", encoding="utf-8", newline="") as lines:
            rows = (json.loads(line) for line in lines)
            found += [row["text"] for row in rows if languages is None or row["lang"] in languages]
    return found


def draw(
    texts: list[str], tokenizer: Tokenizer, separator: list[int], special: tuple[int, int], seed: str, count: int
) -> list[Example]:
    """`count` examples determined by the seed, longer files more often; one bucket, so that rows are not padded."""
    rng = random.Random(seed)
    bucket = rng.choices(BUCKETS, SHARES)[0]
    out: list[Example] = []
    while len(out) < count:
        text = max(rng.choices(texts, k=2), key=len)
        made = example(text, tokenizer, separator, special, rng, bucket=bucket)
        if made is not None:
            out.append(made)
    return out


@torch.no_grad()
def evaluate(net: Net, batches: list[dict[str, Tensor]], tokenizer: Tokenizer, null: int) -> dict[str, float]:
    """Cross-entropy in nats by token and by byte over the held-out batches, all-masked canvases apart."""
    total = count = whole = whole_count = nulls = null_count = size = 0.0
    for batch in batches:
        ce, is_null, _ = losses(net, batch, null)
        labels = batch["labels"]
        picked = labels >= 0
        real = ce[~is_null]
        total, count = total + float(real.sum()), count + real.numel()
        size += sum(len(tokenizer.pieces[t]) for t in labels[picked][~is_null].tolist())
        nulls, null_count = nulls + float(ce[is_null].sum()), null_count + int(is_null.sum())
        first = batch["labels"][:, TAIL - 1] >= 0
        rows = torch.arange(labels.shape[0], device=labels.device)[:, None].expand_as(labels)[picked]
        blind = first[rows] & ~is_null
        whole, whole_count = whole + float(ce[blind].sum()), whole_count + int(blind.sum())
    return {
        "ce_token": total / count,
        "ce_byte": total / size,
        "ce_blind": whole / max(1, whole_count),
        "ce_null": nulls / max(1, null_count),
    }


def rate(step: int, elapsed: float, budget: float, peak: float) -> float:
    """Warm-up over 40 steps, constant, linear decay over the last fifth of the time budget."""
    warm = min(1.0, (step + 1) / 40)
    left = (budget - elapsed) / (0.2 * budget)
    return peak * warm * min(1.0, max(0.02, left))


def save(run: Path, net: Net, optimizer: torch.optim.Optimizer, step: int, seen: int) -> None:
    """Write the state beside the old one, then replace it."""
    names = {id(p): n.replace("/", ".") for n, p in net.trained.items()}
    tensors = {f"p.{names[id(p)]}": p.detach().contiguous() for p in net.trained.values()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            tensors |= {f"{key}.{names[id(p)]}": state[key] for key in ("exp_avg", "exp_avg_sq") if key in state}
    new = run / "state.new"
    save_file(tensors, new, {"step": str(step), "positions": str(seen)})
    new.replace(run / "state.safetensors")


def restore(run: Path, net: Net, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """(step, positions) of the checkpoint in `run`, (0, 0) where there is none."""
    path = run / "state.safetensors"
    if not path.is_file():
        return 0, 0
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    step = int(about["step"])
    for name, p in net.trained.items():
        stem = name.replace("/", ".")
        p.data.copy_(tensors[f"p.{stem}"])
        if f"exp_avg.{stem}" in tensors:
            moments = {key: tensors[f"{key}.{stem}"].to(p.device) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[p] = {"step": torch.tensor(float(step)), **moments}
    return step, int(about["positions"])


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    raw = json.loads((arguments.model / "config.json").read_text())
    config = Config.read(raw)
    tokenizer = Tokenizer(arguments.model / "tokenizer.json")
    separator = [tokenizer.special(raw["separator"])]
    special = (config.vocab_size, config.vocab_size + SPECIALS.index("null"))
    net = Net(config, weights.Stored(arguments.model / "base.safetensors"), full=arguments.full)
    net = net.to_device(arguments.device)
    optimizer = torch.optim.AdamW(net.trained.values(), lr=arguments.rate, betas=(0.9, 0.98), weight_decay=0.01)
    arguments.run.mkdir(parents=True, exist_ok=True)
    step, seen = restore(arguments.run, net, optimizer)
    texts = files(arguments.corpus, "shard-*.jsonl.gz")
    held_texts = files(arguments.corpus, "heldout-*.jsonl.gz")
    held_batches = [
        collate(draw(held_texts, tokenizer, separator, special, f"held/{n}", arguments.contexts), arguments.device)
        for n in range(arguments.held // arguments.contexts)
    ]
    log = (arguments.run / "log.jsonl").open("a")
    began, cpu = time.monotonic(), time.process_time()
    budget = arguments.minutes * 60
    last_saved, last_logged, recent = began, began, []

    def note(kind: str, **figures: Any) -> None:
        line = {"kind": kind, "step": step, "positions": seen, "cpu_s": round(time.process_time() - cpu, 1)}
        line |= {"wall_s": round(time.monotonic() - began, 1), **figures}
        log.write(json.dumps(line) + "\n")
        log.flush()
        print(line, flush=True)

    note("eval", **evaluate(net, held_batches, tokenizer, special[1]))
    while (elapsed := (time.process_time() - cpu if arguments.cpu_time else time.monotonic() - began)) < budget:
        drawn = draw(texts, tokenizer, separator, special, f"{arguments.seed}/{step}", arguments.contexts)
        batch = collate(drawn, arguments.device)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, elapsed, budget, arguments.rate)
        ce, is_null, causal = losses(net, batch, special[1])
        loss = objective(ce, is_null, batch["ids"].shape[0]) + AR_WEIGHT * causal
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(net.trained.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + ce.numel()
        recent.append(float(loss.detach()))
        now = time.monotonic()
        if now - last_logged > 60:
            note("train", loss=round(sum(recent) / len(recent), 4))
            recent, last_logged = [], now
        if now - last_saved > arguments.save_s:
            save(arguments.run, net, optimizer, step, seen)
            note("eval", **evaluate(net, held_batches, tokenizer, special[1]))
            last_saved = now
    save(arguments.run, net, optimizer, step, seen)
    note("eval", **evaluate(net, held_batches, tokenizer, special[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with base.safetensors")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cpu-time", action="store_true", help="count the minutes in CPU time (for fair comparisons)")
    parser.add_argument("--save-s", type=float, default=300)
    parser.add_argument("--full", action="store_true", help="train every weight, the context path too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--contexts", type=int, default=4, help="contexts of a step")
    parser.add_argument("--held", type=int, default=32, help="held-out contexts")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
