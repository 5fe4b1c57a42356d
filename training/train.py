"""Train the embedded model: an adapter on canvas rows over a frozen base (CPU), or every weight (GPU).

    python training/train.py --model FOLDER --corpus FOLDER --run FOLDER [--minutes N] [--total N]
                             [--full] [--device cuda] [--compile] [--workers N]

Resumable to the step: batches are drawn from (seed, step), and a checkpoint holds parameters, optimizer moments, the
step and what has been spent. `--minutes` is the length of this command, `--total` that of the whole run over several
commands, on which the learning rate is keyed. Checkpoints and logs lie in --run: `state.safetensors`, `log.jsonl`.
Use OMP_WAIT_POLICY=PASSIVE.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from caesura.engine import weights
from caesura.engine.models.block_llama import SPECIALS, Config
from caesura.engine.tokenizer import Tokenizer

from batches import Batch, Batches, texts  # isort: skip  (beside this script)
from examples import PLAIN, TAIL, Mix  # isort: skip
from net import Net, losses, objective  # isort: skip

AR_WEIGHT = 0.3  # of the left-to-right loss, where the weights of the context rows are trained
FULL = Mix(causal=0.15, complement=True)
MOMENTS = ("exp_avg", "exp_avg_sq")


@torch.no_grad()
def evaluate(net: Net, held: Iterable[Batch], tokenizer: Tokenizer, null: int) -> dict[str, float]:
    """Cross-entropy in nats by token and by byte over the held-out batches, all-masked canvases apart."""
    total = count = whole = whole_count = nulls = null_count = size = 0.0
    for batch in held:
        found = losses(net, batch, null)
        labels = batch["labels"]
        real = found.ce[~found.null]
        total, count = total + float(real.sum()), count + real.numel()
        size += sum(len(tokenizer.pieces[t]) for t in labels[labels >= 0][~found.null].tolist())
        nulls, null_count = nulls + float(found.ce[found.null].sum()), null_count + int(found.null.sum())
        first = (labels[..., TAIL - 1] >= 0).flatten()
        blind = found.ce[first[found.canvas] & ~found.null]
        whole, whole_count = whole + float(blind.sum()), whole_count + blind.numel()
    return {
        "ce_token": total / count,
        "ce_byte": total / size,
        "ce_blind": whole / max(1, whole_count),
        "ce_null": nulls / max(1, null_count),
    }


def rate(step: int, spent: float, total: float, peak: float, warm: int = 40) -> float:
    """Warm-up, constant, linear decay over the last fifth of the whole run; `spent` and `total` in one unit."""
    left = (total - spent) / (0.2 * total)
    return peak * min(1.0, (step + 1) / warm) * min(1.0, max(0.02, left))


@dataclass
class Progress:
    """Where a run is: steps done, slots predicted, and how much of its budget (seconds, or steps) is gone."""

    step: int = 0
    positions: int = 0
    spent: float = 0.0


def save(run: Path, net: Net, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write the state beside the old one, then replace it."""
    tensors = {f"p.{name}": p.detach() for name, p in net.trained.items()}
    for name, p in net.trained.items():
        tensors |= {f"{key}.{name}": t for key, t in optimizer.state[p].items() if key in MOMENTS}
    new = run / "state.new"
    save_file({n: t.contiguous() for n, t in tensors.items()}, new, {n: str(v) for n, v in vars(progress).items()})
    new.replace(run / "state.safetensors")


def restore(run: Path, net: Net, optimizer: torch.optim.Optimizer) -> Progress:
    """Load the checkpoint in `run`, if there is one."""
    path = run / "state.safetensors"
    if not path.is_file():
        return Progress()
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    tensors = load_file(path)
    progress = Progress(int(about["step"]), int(about["positions"]), float(about.get("spent", 0)))
    for name, p in net.trained.items():
        p.data.copy_(tensors[f"p.{name}"])
        if f"{MOMENTS[0]}.{name}" in tensors:
            moments = {key: tensors[f"{key}.{name}"].to(p.device) for key in MOMENTS}
            optimizer.state[p] = {"step": torch.tensor(float(progress.step), device=p.device), **moments}
    return progress


def begin(model: Path, net: Net) -> None:
    """Start from the adapter in the model's folder, if there is one: a new run goes on from what was shipped. Every
    weight of a full run but the special embeddings comes from the base."""
    path = model / "adapter.safetensors"
    if not path.is_file():
        return
    adapter = weights.Stored(path)
    for name in adapter.keys() & (net.trained.keys() if not net.full else {"special"}):
        net.trained[name].data.copy_(adapter[name])


class Trainer:
    """One command's part of a run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        raw = json.loads((arguments.model / "config.json").read_text())
        config = Config.read(raw)
        self.tokenizer = Tokenizer(arguments.model / "tokenizer.json")
        self.null = config.vocab_size + SPECIALS.index("null")
        self.net = Net(
            config,
            weights.Stored(arguments.model / "base.safetensors"),
            full=arguments.full,
            device=arguments.device,
            compiled=arguments.compile,
        )
        self.optimizer = torch.optim.AdamW(
            self.net.trained.values(), lr=arguments.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        arguments.run.mkdir(parents=True, exist_ok=True)
        begin(arguments.model, self.net)
        self.progress = restore(arguments.run, self.net, self.optimizer)
        self.before, self.steps = self.progress.spent, 0
        separator = [self.tokenizer.special(raw["separator"])]

        def batches(split: str, mix: Mix, seed: str) -> Batches:
            found = texts(arguments.corpus, split, self.tokenizer)
            special = (config.vocab_size, self.null)
            return Batches(found, self.tokenizer, separator, special, arguments.contexts, mix, seed)

        held = batches("heldout", PLAIN, "held")
        self.held = [self.to_device(held[n]) for n in range(-(-arguments.held // arguments.contexts))]
        self.batches = batches("shard", FULL if arguments.full else PLAIN, str(arguments.seed))
        self.began, self.cpu = time.monotonic(), time.process_time()

    def to_device(self, batch: Batch) -> Batch:
        return {name: t.to(self.arguments.device, non_blocking=True) for name, t in batch.items()}

    def spent(self) -> float:
        """What this command has used of the run's budget."""
        clock = time.process_time() - self.cpu if self.arguments.cpu_time else time.monotonic() - self.began
        return self.steps if self.arguments.steps else clock

    def note(self, kind: str, **figures: Any) -> None:
        """A line of the log, also to the terminal."""
        line = {"kind": kind, "step": self.progress.step, "positions": self.progress.positions}
        line |= {"cpu_s": round(time.process_time() - self.cpu, 1), "wall_s": round(time.monotonic() - self.began, 1)}
        with (self.arguments.run / "log.jsonl").open("a") as log:
            log.write(json.dumps(line | figures) + "\n")
        print(line | figures, flush=True)

    def checkpoint(self) -> None:
        self.progress.spent = self.before + self.spent()
        save(self.arguments.run, self.net, self.optimizer, self.progress)
        self.note("eval", **evaluate(self.net, self.held, self.tokenizer, self.null))

    def step(self, batch: Batch, total: float) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.progress.step, self.before + self.spent(), total, self.arguments.rate)
        found = losses(self.net, batch, self.null)
        loss = objective(found, batch["start"].numel()) + AR_WEIGHT * found.causal
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.trained.values(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.positions += found.ce.numel()
        return loss.detach()

    def train(self) -> None:
        arguments = self.arguments
        budget = float(arguments.steps or arguments.minutes * 60)
        total = arguments.total * (1 if arguments.steps else 60) or self.before + budget
        self.note("eval", **evaluate(self.net, self.held, self.tokenizer, self.null))
        last_saved = last_logged = time.monotonic()
        recent: list[Tensor] = []
        stream = self.batches.stream(self.progress.step, arguments.workers)
        for batch in itertools.takewhile(lambda _: self.spent() < min(budget, total - self.before), stream):
            recent.append(self.step(self.to_device(batch), total))
            self.steps += 1
            now = time.monotonic()
            if now - last_logged > arguments.log_s:
                self.note("train", loss=round(float(torch.stack(recent).mean()), 4))
                recent, last_logged = [], now
            if now - last_saved > arguments.save_s:
                self.checkpoint()
                last_saved = now
        self.checkpoint()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with base.safetensors")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of shards or of packs")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60, help="of this command")
    parser.add_argument("--steps", type=int, default=0, help="count the budget in steps instead (reproducible)")
    parser.add_argument("--total", type=float, default=0, help="minutes (or steps) of the whole run; 0: this command")
    parser.add_argument("--cpu-time", action="store_true", help="count the minutes in CPU time (for fair comparisons)")
    parser.add_argument("--save-s", type=float, default=300)
    parser.add_argument("--log-s", type=float, default=60)
    parser.add_argument("--full", action="store_true", help="train every weight, the context path too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="fuse what lies between the matrix products (GPU)",
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare batches; 0: this one")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--contexts", type=int, default=4, help="contexts of a step")
    parser.add_argument("--held", type=int, default=32, help="held-out contexts")
    parser.add_argument("--seed", type=int, default=0)
    Trainer(parser.parse_args(argv)).train()


if __name__ == "__main__":
    main()
