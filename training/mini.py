"""Train the mini DiffusionGemma: Sudoku of 4x4 and 9x9 and JSON records, uniform noise over the whole vocabulary,
self-conditioning, on one CPU core; write it in the checkpoint's own format.

    python training/sudoku.py --out PUZZLES.npz
    python training/mini.py --run FOLDER --puzzles PUZZLES.npz --minutes 58
    python training/mini.py --run FOLDER --puzzles PUZZLES.npz --export FOLDER

Resumable: a checkpoint holds parameters, moments, the step and what has been spent; batches are drawn from (seed,
step). Use OMP_NUM_THREADS=1.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from caesura.engine.canvas.prompts import RULE

import mini_export  # isort: skip  (beside this script)
import mini_tasks  # isort: skip
import sudoku  # isort: skip
from mini_net import Net, Shape  # isort: skip
from mini_tasks import Batch, Boards, record_batch  # isort: skip
from records import Records  # isort: skip

TOKENIZER = Path(__file__).parents[1] / "models" / "small" / "caesura_small" / "tokenizer.json"
OTHERS = 64  # sampled tokens of no task in the loss, weighted up to all of them
ROWS = 1536  # of every batch, so that few shapes are compiled; small enough for a core's share of the cache
CLEAN = 0.1  # weight of a row that is shown as it is
EVEN = 0.01  # weight of the routers' unevenness
PLAIN = 0.15  # of the run, at first, without self-conditioning
BOUND = 0.1  # nats, of the sampler
ORDER = ("9", "json", "9", "9", "json", "9", "4", "9", "json", "9", "9", "json", "9", "9", "json", "9")  # task by step
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def step_of(net: Net, p: Tensor, hidden: Tensor, others: Tensor, draw: torch.Generator) -> Tensor:
    """What the hidden rows hold after a step of the sampler: samples where the entropy bound accepts them, noise
    elsewhere. So training sees the model's own slips, as fixed as they look to it in use."""
    entropy = -(p * p.clamp(min=1e-30).log()).sum(-1)
    order = entropy.masked_fill(~hidden, 1e9).argsort(-1)
    ranked = entropy.gather(-1, order)
    accepted = torch.zeros_like(hidden).scatter(-1, order, ranked.cumsum(-1) - ranked <= BOUND)
    sample = torch.cat((net.tasks, others))[torch.multinomial(p.flatten(0, 1), 1, generator=draw)].view(hidden.shape)
    return torch.where(accepted, sample, torch.randint(net.shape.vocabulary, hidden.shape, generator=draw))


def losses(
    net: Net, batch: Batch, draw: torch.Generator, dtype: torch.dtype, *, conditioned: bool, prompt_learns: bool
) -> dict[str, Tensor]:
    """`loss`: cross-entropy of hidden or wrongly shown rows and, lightly, of the others; `ce`, `right`: of the former.
    `conditioned`: a first pass without gradients gives self-conditioning and, to most rows, the step it would take."""
    n, rows = batch.canvas.shape
    noise = torch.randint(net.shape.vocabulary, (n, rows), generator=draw)
    shown = torch.where(batch.hidden, noise, batch.canvas)
    if batch.wrong is not None:
        shown = torch.where((batch.wrong >= 0) & ~batch.hidden, batch.wrong, shown)
    others = net.others[torch.randint(len(net.others), (OTHERS,), generator=draw)]
    table = net.table(others)
    weight = torch.zeros(len(table))
    weight[len(net.tasks) :] = math.log(len(net.others) / OTHERS)
    with torch.set_grad_enabled(prompt_learns):
        stored = net.encode(batch.prompt, batch.padding, dtype)
    soft = absent = None
    if batch.padding is not None and batch.beyond is not None:
        absent = torch.cat((batch.padding, batch.beyond), 1)
    if conditioned:
        with torch.no_grad():
            x, _ = net.decode(shown, stored, absent, None, dtype)
            temperature = 0.4 + 0.4 * torch.rand(n, 1, 1, generator=draw)
            p = softmax(net.logits(x, table) / temperature + weight, -1)
            soft = (p.to(dtype) @ table.to(dtype)) * net.shape.hidden**0.5
            soft *= (torch.rand(n, 1, 1, generator=draw) < 0.75).to(dtype)  # the rest sees a first step
            stepped = (torch.rand(n, 1, generator=draw) < 0.6) & batch.hidden
            shown = torch.where(stepped, step_of(net, p, batch.hidden, others, draw), shown)
    x, uneven = net.decode(shown, stored, absent, soft, dtype)
    logits, labels = net.logits(x, table) + weight, net.place[batch.canvas]
    ce = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(n, rows)
    changed = shown != batch.canvas
    if batch.beyond is not None:
        changed &= ~batch.beyond
    weights = torch.where(changed, 1.0, CLEAN)
    if batch.beyond is not None:
        weights = weights.masked_fill(batch.beyond, 0.0)
    return {
        "loss": (ce * weights).sum() / weights.sum() + EVEN * uneven,
        "ce": (ce * changed).sum() / changed.sum(),
        "right": ((logits.argmax(-1) == labels) & changed).sum() / changed.sum(),
        "uneven": uneven,
    }


def rate(spent: float, total: float, step: int, peak: float) -> float:
    """Warm-up over 100 steps, constant, linear decay over the last 40 % of the run; `spent` and `total` in one unit."""
    return peak * min(1.0, (step + 1) / 100) * min(1.0, max(0.01, (total - spent) / (0.4 * total)))


class Trainer:
    """A run: the net, what it learns from, and where it stands."""

    def __init__(self, arguments: argparse.Namespace, shape: Shape | None = None) -> None:
        self.arguments, shape = arguments, shape or Shape()
        inner = tokenizers.Tokenizer.from_file(str(TOKENIZER))

        def encode(text: str) -> list[int]:
            ids: list[int] = inner.encode(text, add_special_tokens=False).ids
            return ids

        self.boards = {side: Boards(encode, side, shape.eos) for side in (4, 9)}
        self.records, self.rule = Records(encode), encode(RULE)
        tasks = mini_tasks.tokens(list(self.boards.values()), self.records, shape.eos)
        self.net = Net(shape, tasks, arguments.seed, compiled=arguments.compile)
        self.net.aim([self.boards[side].legend for side in (9, 4)])
        matrices = [p for p in self.net.params.values() if p.dim() > 1]
        rest = [p for p in self.net.parameters() if not any(p is m for m in matrices)]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
            lr=arguments.rate, betas=(0.9, 0.98), fused=True,
        )  # fmt: skip
        data = np.load(arguments.puzzles)
        self.puzzles = {9: (data["full"], data["rounds"]), 4: sudoku.small(held=False)}
        arguments.run.mkdir(parents=True, exist_ok=True)
        self.step, self.spent = 0, 0.0
        self.restore()

    def __repr__(self) -> str:
        return f"Trainer({self.arguments.run.name}, step {self.step}, spent {self.spent:.0f})"

    def batch(self, task: str, rng: np.random.Generator) -> Batch:
        """One in seven canvases of a small task is as long as the checkpoint's, as in free generation."""
        whole, shape = rng.random() < 0.15, self.net.shape
        if task == "json":
            rows = shape.canvas if whole else mini_tasks.RECORD
            return record_batch(
                self.records, ROWS // rows, rows, shape.eos, self.rule, random.Random(int(rng.integers(1 << 60)))
            )
        board, (full, rounds) = self.boards[int(task)], self.puzzles[int(task)]
        rows = shape.canvas if whole else board.rows
        pick = rng.integers(len(full), size=ROWS // rows)
        return board.batch(full[pick], rounds[pick], rows, rng)

    def save(self) -> None:
        """Write the state beside the old one, then replace it."""
        tensors = {f"p.{name}": p.detach() for name, p in self.net.named_parameters()}
        for name, p in self.net.named_parameters():
            tensors |= {f"{key}.{name}": t for key, t in self.optimizer.state[p].items()}
        new = self.arguments.run / "state.new"
        save_file(tensors, new, {"step": str(self.step), "spent": str(self.spent)})
        new.replace(self.arguments.run / "state.safetensors")

    def restore(self) -> None:
        """Load the checkpoint of the run, if there is one."""
        path = self.arguments.run / "state.safetensors"
        if not path.is_file():
            return
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
        self.step, self.spent = int(about["step"]), float(about["spent"])
        tensors = load_file(path)
        for name, p in self.net.named_parameters():
            p.data.copy_(tensors[f"p.{name}"])
            self.optimizer.state[p] = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}

    def once(self, total: float) -> tuple[str, dict[str, Tensor]]:
        """A step, and what it found."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.spent, total, self.step, self.arguments.rate)
        rng = np.random.default_rng((self.arguments.seed, self.step))
        draw = torch.Generator().manual_seed(int(rng.integers(1 << 60)))
        task = ORDER[self.step % len(ORDER)]
        found = losses(
            self.net, self.batch(task, rng), draw, torch.bfloat16,
            conditioned=self.spent > PLAIN * total and rng.random() < 0.5,
            prompt_learns=task == "json" or self.step % 4 == 0,  # a legend changes slowly
        )  # fmt: skip
        found["loss"].backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return task, {name: t.detach() for name, t in found.items()}

    def train(self) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # a sharp softmax leaves many
        arguments = self.arguments
        total, before = float(arguments.steps or arguments.minutes * 60), self.spent
        began = logged = saved = time.monotonic()
        cpu = time.process_time()
        seen: dict[str, list[dict[str, Tensor]]] = {}
        while self.spent < total:
            task, found = self.once(total)
            seen.setdefault(task, []).append(found)
            now = time.monotonic()
            self.spent = self.step if arguments.steps else before + now - began
            if now - logged > arguments.log_s or self.spent >= total:
                line = {"step": self.step, "s": round(now - began), "cpu_s": round(time.process_time() - cpu)}
                for name, rows in sorted(seen.items()):
                    line |= {f"{name}.{m}": round(float(torch.stack([r[m] for r in rows]).mean()), 4) for m in rows[0]}
                print(json.dumps(line), flush=True)
                with (arguments.run / "log.jsonl").open("a") as log:
                    log.write(json.dumps(line) + "\n")
                seen, logged = {}, now
            if now - saved > arguments.save_s:
                self.save()
                saved = now
        self.save()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--puzzles", type=Path, required=True, help="made by sudoku.py")
    parser.add_argument("--minutes", type=float, default=60, help="of the whole run")
    parser.add_argument("--steps", type=int, default=0, help="count the run in steps instead (reproducible)")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-s", type=float, default=30)
    parser.add_argument("--save-s", type=float, default=180)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--export", type=Path, help="write the run's model to this folder instead of training")
    arguments = parser.parse_args(argv)
    trainer = Trainer(arguments)
    if arguments.export:
        mini_export.write(trainer.net, TOKENIZER, arguments.export)
    else:
        trainer.train()


if __name__ == "__main__":
    main()
