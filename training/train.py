"""Train `small` or `coder`: an update of its context path by gaps read left to right, an update of its canvas path by
canvases over the frozen rest (CPU), or every weight by canvases (GPU). Or train a light drafter over its states.

    python training/train.py --model FOLDER --corpus FOLDER --run FOLDER [--trains context|canvas|all|light]
                             [--minutes N] [--total N] [--device cuda] [--compile] [--workers N] [--teacher FOLDER]

Resumable to the step: batches are drawn from (seed, step), and a checkpoint holds parameters, optimizer moments, the
step and what has been spent. `--minutes` is the length of this command, `--total` that of the whole run over several
commands, on which the learning rate is keyed. Checkpoints and logs lie in --run: `state.safetensors`, `log.jsonl`.
Use OMP_WAIT_POLICY=PASSIVE.
"""

import argparse
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from caesura.engine.models.llama.config import SPECIALS, Config
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import stored
from caesura.engine.weights.packing import base_of
from caesura.engine.weights.tensors import ByName

import gaps  # isort: skip  (beside this script)
import light  # isort: skip
from batches import Batch, Batches, stream, texts  # isort: skip
from examples import PLAIN, Mix  # isort: skip
from net import Net, Trains, losses, objective  # isort: skip

AR_WEIGHT = 0.3  # of the left-to-right loss, where the weights of the context rows are trained
FULL = Mix(causal=0.15, complement=True)
BETAS = (0.9, 0.98)
MOMENTS = ("exp_avg", "exp_avg_sq")
LOST = 20  # steps in a row whose gradients are not finite, after which a run ends


class Learner(Protocol):
    """Parameters by their names in a checkpoint."""

    trains: str
    trained: dict[str, nn.Parameter]


class Task(Protocol):
    """What is trained: `batches` by step, and `held` ones that are not. `betas` are AdamW's."""

    net: Any  # a Learner, of a kind that the task knows
    batches: Dataset[Batch]
    held: Sequence[Batch]
    betas: tuple[float, float]

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        """What is minimised, and how many tokens it is made of."""

    def evaluate(self) -> dict[str, float]:
        """Cross-entropies in nats over the held-out batches."""


@dataclass
class Canvases:
    """Slots of canvases (examples.py), and with every weight also the context rows."""

    net: Net
    batches: Batches
    held: Sequence[Batch]
    tokenizer: Tokenizer
    null: int
    teacher: Net | None
    betas = BETAS

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        found = losses(self.net, batch, self.null, self.teacher)
        return objective(found, batch["start"].numel()) + AR_WEIGHT * found.causal, found.ce.numel()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """By token and by byte; nulls apart; of canvases that are all hidden the first token and the later ones."""
        total = count = nulls = null_count = size = 0.0
        blind: dict[str, list[Tensor]] = {"ce_first": [], "ce_later": []}
        tail = self.net.config.tail
        for batch in self.held:
            found = losses(self.net, batch, self.null)
            labels = batch["labels"]
            real = found.ce[~found.null]
            total, count = total + float(real.sum()), count + real.numel()
            size += sum(len(self.tokenizer.pieces[t]) for t in labels[labels >= 0][~found.null].tolist())
            nulls, null_count = nulls + float(found.ce[found.null].sum()), null_count + int(found.null.sum())
            whole = ((labels >= 0).sum(-1) == batch["slots"]).flatten()[found.canvas] & ~found.null
            first = (torch.arange(labels.shape[-1], device=labels.device) == tail - 1).expand_as(labels)[labels >= 0]
            blind["ce_first"].append(found.ce[whole & first])
            blind["ce_later"].append(found.ce[whole & ~first])
        return {
            "ce_token": total / count,
            "ce_byte": total / size,
            "ce_null": nulls / max(1, null_count),
            **{name: float(torch.cat(parts).mean()) for name, parts in blind.items()},
        }


@dataclass
class Reading:
    """Gaps read left to right behind their suffix (gaps.py)."""

    net: Net
    batches: gaps.Gaps
    held: Sequence[Batch]
    betas = BETAS

    def loss(self, batch: Batch) -> tuple[Tensor, int]:
        ce, parts = gaps.nats(self.net, batch)
        return gaps.objective(ce, parts), ce.numel()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """By token of each part."""
        found = [gaps.nats(self.net, batch) for batch in self.held]
        ce, parts = (torch.cat(column) for column in zip(*found, strict=True))
        return {f"ce_{name}": float(ce[parts == gaps.PARTS.index(name)].mean()) for name in gaps.WEIGHTS}


def rate(step: int, spent: float, total: float, peak: float, decay: float = 0.2, warm: int = 40) -> float:
    """Warm-up, constant, linear decay over the last part `decay` of the whole run; `spent` and `total` in one unit."""
    left = (total - spent) / (decay * total)
    return peak * min(1.0, (step + 1) / warm) * min(1.0, max(0.02, left))


@dataclass
class Progress:
    """Where a run is: steps done, slots predicted, and how much of its budget (seconds, or steps) is gone."""

    step: int = 0
    positions: int = 0
    spent: float = 0.0


def save(run: Path, net: Learner, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write the state beside the old one, then replace it."""
    tensors = {f"p.{name}": p.detach() for name, p in net.trained.items()}
    for name, p in net.trained.items():
        tensors |= {f"{key}.{name}": t for key, t in optimizer.state[p].items() if key in MOMENTS}
    new = run / "state.new"
    save_file({n: t.contiguous() for n, t in tensors.items()}, new, {n: str(v) for n, v in vars(progress).items()})
    new.replace(run / "state.safetensors")


def restore(run: Path, net: Learner, optimizer: torch.optim.Optimizer) -> Progress:
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


def stood_on(model: Path, trains: str) -> Mapping[str, Tensor]:
    """The weights that a run begins from or leaves as they are. An update of the context path is over the bare base."""
    return ByName(stored.Stored(*stored.bases(model)) if trains == "context" else base_of(model))


def begin(model: Path, net: Learner, start: Path | None = None) -> None:
    """Start from the update `start`, or else from that in the model's folder, if there is one: a new run goes on from
    what was shipped. Every weight of a full run but the special embeddings comes from the base."""
    own = model / (f"{net.trains}.safetensors" if net.trains in ("context", "light") else "adapter.safetensors")
    path = start or own
    if start is None and not own.is_file():
        return
    update = ByName(stored.Stored(path))
    for name in update.keys() & (net.trained.keys() if net.trains != "all" else {"special"}):
        net.trained[name].data.copy_(update[name])


def teacher_of(arguments: argparse.Namespace) -> Net:
    """The model of `--teacher`: its context path, and its canvas path with the update it may have. Nothing learns."""
    folder, device = arguments.teacher, arguments.device
    if not (folder / "adapter.safetensors").is_file():
        raise SystemExit(
            f"train: {folder} has no adapter.safetensors: its canvases would teach noise; take a whole model."
        )
    config = Config.read(json.loads((folder / "config.json").read_text()))
    net = Net(config, ByName(base_of(folder)), "canvas", device=device, compiled=arguments.compile)
    begin(folder, net)
    for parameter in net.trained.values():
        parameter.requires_grad_(False)
    return net


def task_of(arguments: argparse.Namespace) -> Task:
    """The net with what it learns from."""
    raw = json.loads((arguments.model / "config.json").read_text())
    config, trains = Config.read(raw), arguments.trains
    tokenizer = Tokenizer(arguments.model / "tokenizer.json")
    separator = [tokenizer.special(raw["separator"])]
    base, first = stood_on(arguments.model, trains), arguments.first
    learnt, held = (texts(arguments.corpus, split, tokenizer) for split in ("shard", "heldout"))
    size, seed = arguments.contexts, str(arguments.seed)
    count = range(-(-arguments.held // size))
    if trains == light.LightNet.trains:
        drawn_blocks = light.Blocks(learnt, tokenizer, separator, size, seed)
        drafter = light.LightNet(config, base, drawn_blocks[0], arguments.device)
        begin(arguments.model, drafter, arguments.begin)
        tested_blocks = light.Blocks(held, tokenizer, separator, size, "held", light.TESTED)
        return light.Drafting(drafter, drawn_blocks, [tested_blocks[n * light.USES] for n in count])
    net = Net(config, base, trains, first=first, device=arguments.device, compiled=arguments.compile)
    begin(arguments.model, net, arguments.begin)
    if trains == "context":
        tested = gaps.Gaps(held, tokenizer, separator, size, "held")
        return Reading(net, gaps.Gaps(learnt, tokenizer, separator, size, seed), [tested[n] for n in count])
    special = (config.vocab_size, config.vocab_size + SPECIALS.index("null"))
    sides = config.tail, config.head
    drawn = Batches(learnt, tokenizer, separator, special, sides, size, FULL if trains == "all" else PLAIN, seed)
    plain = Batches(held, tokenizer, separator, special, sides, size, PLAIN, "held")
    taught = teacher_of(arguments) if arguments.teacher else None
    return Canvases(net, drawn, [plain[n] for n in count], tokenizer, special[1], taught)


class Trainer:
    """One command's part of a run."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        # On an H100 cuDNN's attention under a mask has NaN gradients in torch 2.11 (pytorch issue 196678).
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.arguments = arguments
        self.task = task_of(arguments)
        self.net = self.task.net
        self.task.held = [self.to_device(batch) for batch in self.task.held]
        self.optimizer = torch.optim.AdamW(
            self.net.trained.values(), lr=arguments.rate, betas=self.task.betas, weight_decay=0.01, fused=True
        )
        arguments.run.mkdir(parents=True, exist_ok=True)
        self.progress = restore(arguments.run, self.net, self.optimizer)
        self.before, self.steps, self.parts, self.compiled = self.progress.spent, 0, 1, arguments.compile
        self.lost = 0  # steps without an update up to now, in a row
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

    def evaluate(self) -> None:
        """Without compiled code: to build it for passes without gradients takes longer than they do."""
        with torch.compiler.set_stance("force_eager"):
            self.note("eval", **self.task.evaluate())

    def checkpoint(self) -> None:
        self.progress.spent = self.before + self.spent()
        save(self.arguments.run, self.net, self.optimizer, self.progress)
        self.evaluate()

    def gradients(self, batch: Batch) -> tuple[Tensor, int]:
        """Add up the gradients of a batch's parts; returns the mean loss, and how many tokens it is made of."""
        losses, total = list[Tensor](), 0
        for number in range(self.parts):
            loss, count = self.task.loss({name: t.chunk(self.parts)[number] for name, t in batch.items()})
            (loss / self.parts).backward()
            losses, total = [*losses, loss.detach()], total + count
        return torch.stack(losses).mean(), total

    def learnt(self, batch: Batch) -> tuple[Tensor, int]:
        """`gradients`, whatever the machine lacks: where memory runs out in smaller parts, and where compiled code
        fails without it. A short GPU run must not end because of either."""
        while True:
            try:
                return self.gradients(batch)
            except torch.OutOfMemoryError as error:
                if any(len(t) % (2 * self.parts) for t in batch.values()):
                    raise
                self.parts, reason = 2 * self.parts, str(error)
            except Exception as error:
                if not self.compiled:
                    raise
                self.compiled, reason = False, f"{type(error).__name__}: {error}"
                torch.compiler.set_stance("force_eager")
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.note("trouble", reason=reason[:2000], parts=self.parts, compiled=self.compiled)

    def step(self, batch: Batch, total: float) -> Tensor:
        for group in self.optimizer.param_groups:
            spent, peak, decay = self.before + self.spent(), self.arguments.rate, self.arguments.decay
            group["lr"] = rate(self.progress.step, spent, total, peak, decay)
        loss, count = self.learnt(batch)
        if bool(nn.utils.clip_grad_norm_(self.net.trained.values(), 1.0).isfinite()):
            self.lost = 0
            self.optimizer.step()
        else:
            self.lose()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.positions += count
        return loss

    def lose(self) -> None:
        """A step without an update, because its gradients are not finite. Ends the run after LOST in a row."""
        self.lost += 1
        self.note("trouble", reason="The gradients are not finite; the step teaches nothing.", in_a_row=self.lost)
        if self.lost == LOST:
            raise SystemExit(f"train: the gradients of {LOST} steps in a row are not finite; nothing is learnt.")

    def train(self) -> None:
        arguments = self.arguments
        budget = float(arguments.steps or arguments.minutes * 60)
        total = arguments.total * (1 if arguments.steps else 60) or self.before + budget
        drawn = stream(self.task.batches, self.progress.step, arguments.workers)
        self.evaluate()
        last_saved = last_logged = time.monotonic()
        recent: list[Tensor] = []
        for batch in itertools.takewhile(lambda _: self.spent() < min(budget, total - self.before), drawn):
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
    parser.add_argument("--model", type=Path, required=True, help="folder with its base")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of shards or of packs")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--begin", type=Path, help="an exported update to begin a new run from, not the model's own")
    parser.add_argument("--minutes", type=float, default=60, help="of this command")
    parser.add_argument("--steps", type=int, default=0, help="count the budget in steps instead (reproducible)")
    parser.add_argument("--total", type=float, default=0, help="minutes (or steps) of the whole run; 0: this command")
    parser.add_argument("--cpu-time", action="store_true", help="count the minutes in CPU time (for fair comparisons)")
    parser.add_argument("--save-s", type=float, default=300)
    parser.add_argument("--log-s", type=float, default=60)
    parser.add_argument("--trains", choices=(*get_args(Trains), light.LightNet.trains), default="canvas")
    parser.add_argument(
        "--first", type=int, default=0, help="layer at which an update begins; those below stay the base's"
    )
    parser.add_argument("--teacher", type=Path, help="folder of a model of the same vocabulary to learn canvases from")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="fuse what lies between the matrix products (GPU)",
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that prepare batches; 0: this one")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.2, help="last part of the whole run in which the rate decays")
    parser.add_argument("--contexts", type=int, default=4, help="contexts of a step, or gaps")
    parser.add_argument("--held", type=int, default=32, help="held-out contexts, or gaps")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    if arguments.teacher and arguments.trains in ("context", "light"):
        parser.error(f"--teacher teaches canvases; it has nothing to say to --trains {arguments.trains}.")
    if arguments.compile and arguments.trains == light.LightNet.trains:
        parser.error("--compile is not for --trains light.")
    if arguments.first and arguments.trains in ("all", "light"):
        parser.error(f"--first is for an update; --trains {arguments.trains} trains every layer.")
    Trainer(arguments).train()


if __name__ == "__main__":
    main()
