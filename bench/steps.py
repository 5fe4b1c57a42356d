"""One denoise step of DiffusionGemma, ours beside Transformers', on the same weights in one process.

    python bench/steps.py [--vocabulary 8192 262144] [--canvas 64 256] [--threads 1 2] [--rounds 15] [--json]
                          [--out bench/results/steps.json]

Random weights of about 30 million parameters besides the embedding, a prompt of 512 tokens in the cache, float32. A
step is what the generation loop does for each: forward, sampler, stop rule, self-conditioning for the next. The two
are timed in turn; Transformers as it comes (sdpa, grouped experts) and as the oracle of the tests has it (eager). Both
must find the same best tokens before anything is timed. Beside it: where our time goes, by the shapes of the
operators, and the least time that this machine's measured bandwidth and matmul peak allow.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

# As in worker.py, and for its reason: threads that spin while they wait cost ten times the time on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from latency import HERE, Report, conditions, save, spread, table
from roofline import PARTS, bound_ms, parameters, work
from torch import Tensor
from transformers import DiffusionGemmaForBlockDiffusion

sys.path.insert(0, str(HERE.parent))
from caesura.engine import models
from caesura.engine.draws import Draws
from caesura.engine.methods.uniform import renoise
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.model import Run
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.kernels import head
from tests.support.checkpoints.oracle import Gains, Oracle, build

TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 12,  # ten sliding, two full
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 2,
    "num_experts": 32,
    "top_k_experts": 4,
    "moe_intermediate_size": 72,
    "sliding_window": 256,
    "max_position_embeddings": 4096,
}
PROMPT = 512  # tokens
STEP = 24  # of 48: the middle of the schedule
WARM = 2  # rounds that are not counted


# The machine


def machine_limits() -> tuple[float, float]:
    """Bytes a second that a matrix-vector product reads, and FLOP a second of a matrix product, at the threads set."""
    matrix, vector = torch.randn(8192, 4096), torch.randn(4096)  # 128 MiB, more than a cache holds
    bandwidth = matrix.nbytes / min(_timed(lambda: matrix @ vector) for _ in range(7))
    square = matrix[:1024, :1024].contiguous()
    return bandwidth, 2 * 1024**3 / min(_timed(lambda: square @ square) for _ in range(7))


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


# The two sides


class Ours:
    """Our engine in the middle of a canvas."""

    def __init__(self, folder: Path, prompt: Sequence[int], canvas: int) -> None:
        model = models.load(str(folder), "cpu")
        assert isinstance(model, DiffusionGemma)
        self.model, self.draws = model, Draws(1)
        self.schedule = model.spec.noise.schedule
        self.kv = model.cache().lease(list(prompt))
        model.prefill(prompt, self.kv)
        self.state = renoise.start(model, [None] * canvas, renoise.first_noise(model, canvas, self.draws))
        self.free = torch.zeros(model.width)

    def __repr__(self) -> str:
        return f"<Ours {self.model} behind {self.kv}>"

    def run(self, ids: Sequence[int], conditioning: Tensor | None) -> Run:
        return Run(self.kv, ids, range(PROMPT, PROMPT + len(ids)), conditioning=conditioning)

    def step(self) -> None:
        hidden = self.model.hidden([self.run(self.state.ids.tolist(), self.state.conditioning)])
        asked = renoise.Asked(
            hidden, torch.tensor(self.schedule.temperature(STEP, 48)), [self.free] * len(hidden), [True] * len(hidden)
        )
        outlook = renoise.outlooks(self.model, [asked])[0]
        chances = renoise.chances(self.model, len(hidden), self.draws)
        every = torch.ones(len(hidden), dtype=torch.bool)
        ends, enough = torch.tensor([], dtype=torch.int64), torch.tensor([self.schedule.confidence])
        terms = renoise.Constraints(every, ~every, ~every, ends, enough)
        self.state, told = renoise.decide(
            self.model, self.schedule, self.state, outlook, by_entropy, STEP, 48, terms, chances
        )
        told.tolist()


class Theirs:
    """Transformers in the middle of a canvas."""

    def __init__(self, model: Any, prompt: Sequence[int], canvas: int) -> None:
        self.model, ids = model, torch.tensor([list(prompt)])
        model.config.canvas_length = canvas
        config, _ = model._prepare_generation_config(None)
        _, self.cache = Oracle.encode(model, prompt)
        sampler = model._prepare_sampler(config)
        self.state = (sampler.initialize_canvas(1, ids.device), None, None, torch.zeros(1, dtype=torch.bool))
        self.fixed = {
            "decoder_forward": model.forward,
            "input_ids": ids,
            "decoder_position_ids": torch.arange(PROMPT, PROMPT + canvas)[None],
            "mask_mapping": {"full_attention": None, "sliding_attention": None},
            "past_key_values": self.cache,
            "cur_step": STEP,
            "sampler": sampler,
            "logits_processor": model._prepare_logits_processor(config),
            "diffusion_stopping_criteria": model._prepare_diffusion_stopping_criteria(config),
        }

    def __repr__(self) -> str:
        return f"<Theirs {self.model.config._attn_implementation}, {self.model.config._experts_implementation}>"

    @torch.no_grad()
    def step(self) -> None:
        canvas, best, conditioning, _ = self.state
        self.state = self.model._denoising_step(
            current_canvas=canvas,
            argmax_canvas=best,
            self_conditioning_logits=conditioning,
            finished_denoising=torch.zeros(1, dtype=torch.bool),
            **self.fixed,
        )


def agreement(ours: Ours, theirs: Theirs, canvas: int, vocabulary: int) -> dict[str, float]:
    """Of one conditioned forward: the largest difference of a logit, and the share of rows with the same best token."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(vocabulary, (canvas,), generator=generator).tolist()
    before = torch.randn(canvas, vocabulary, generator=generator) * 3
    mine = ours.model.denoise([ours.run(ids, ours.model.condition(before))]).logits
    its = Oracle.decode(theirs.model, ids, theirs.cache, before)
    return {
        "apart": round((mine - its).abs().max().item(), 5),
        "same best": round((mine.argmax(-1) == its.argmax(-1)).float().mean().item(), 3),
    }


# Measuring


def interleaved(steps: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each, in turn; the order turns too."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(WARM + rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            ms = 1000 * _timed(steps[name])
            if number >= WARM:
                spent[name].append(ms)
    return spent


def shares(step: Callable[[], None], text: Mapping[str, Any], canvas: int) -> dict[str, float]:
    """The part of the time of our operators that goes where, by their shapes."""
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(3):
            step()
    spent = dict.fromkeys(PARTS, 0.0)
    for event in profile.key_averages(group_by_input_shape=True):
        spent[part_of(event.key, event.input_shapes, text, canvas)] += event.self_cpu_time_total
    total = sum(spent.values())
    return {name: round(of / total, 3) for name, of in spent.items()}


def part_of(name: str, shapes: Sequence[Any], text: Mapping[str, Any], canvas: int) -> str:
    """The part of a step to which an operator with inputs of these shapes belongs."""
    tensors = [tuple(shape) for shape in shapes if shape and isinstance(shape[0], int)]
    sizes = {size for shape in tensors for size in shape}
    multiplies = name.removeprefix("aten::") in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear")
    tile = head.breadth(text["hidden_size"])  # of the vocabulary; our step holds no more of it at once
    if text["vocab_size"] in sizes or tile in sizes:
        if not multiplies:
            return "sampler"
        return "self-conditioning" if tensors[0][-1] in (tile, text["vocab_size"]) else "head"
    if text["moe_intermediate_size"] in sizes or 2 * text["moe_intermediate_size"] in sizes:
        return "experts"
    if canvas * text["top_k_experts"] in {shape[0] for shape in tensors if len(shape) == 2} and not multiplies:
        return "experts"  # rows sorted by expert
    if text["intermediate_size"] in sizes:
        return "dense"
    if any(len(shape) > (2 if multiplies or "softmax" in name else 3) for shape in tensors):
        return "attention"
    if multiplies:
        return "rest" if text["num_experts"] in sizes else "projections"
    return "rest"


def case(folder: Path, text: Mapping[str, Any], canvas: int, threads: Sequence[int], rounds: int) -> list[Report]:
    """A vocabulary and a canvas, at each number of threads."""
    vocabulary = text["vocab_size"]
    prompt = [2, *torch.randint(5, vocabulary - 4, (PROMPT - 1,), generator=torch.Generator().manual_seed(3)).tolist()]
    ours = Ours(folder, prompt, canvas)
    eager = Theirs(Oracle.load(folder), prompt, canvas)
    stock = Theirs(DiffusionGemmaForBlockDiffusion.from_pretrained(folder).eval(), prompt, canvas)
    rows: list[Report] = []
    for count in threads:
        torch.set_num_threads(count)
        agrees = agreement(ours, eager, canvas, vocabulary)
        spent = interleaved({"ours": ours.step, "transformers": stock.step, "eager": eager.step}, rounds)
        bandwidth, peak = machine_limits()
        parts = work(text, canvas, PROMPT)
        least = bound_ms(parts, bandwidth, peak)
        medians = {name: statistics.median(values) for name, values in spent.items()}
        rows.append(
            {
                "vocabulary": vocabulary,
                "canvas": canvas,
                "threads": count,
                "ms": {name: spread(values) for name, values in spent.items()},
                "ratio": round(medians["transformers"] / medians["ours"], 2),
                "ratio to eager": round(medians["eager"] / medians["ours"], 2),
                "agreement": agrees,
                "shares": shares(ours.step, text, canvas),
                "gb": round(sum(part.bytes for part in parts.values()) / 1e9, 3),
                "gflop": round(sum(part.flops for part in parts.values()) / 1e9, 2),
                "gb_s": round(bandwidth / 1e9, 1),
                "gflop_s": round(peak / 1e9, 1),
                "bound_ms": round(least, 2),
                "of bound": round(least / medians["ours"], 3),
            }
        )
    return rows


def measure(
    text: Mapping[str, Any], vocabularies: Sequence[int], canvases: Sequence[int], threads: Sequence[int], rounds: int
) -> Report:
    report: Report = {"bench": "steps", **conditions("random weights")}
    report["model"] = {"name": "random weights", "parameters": parameters(text), **text}
    report |= {"transformers": metadata.version("transformers"), "prompt": PROMPT, "rounds": rounds, "rows": []}
    with tempfile.TemporaryDirectory(prefix="caesura-") as scratch:
        for vocabulary in vocabularies:
            sizes = {**text, "vocab_size": vocabulary}
            folder = build(Path(scratch) / str(vocabulary), text=sizes, gains=Gains(branch=0.3))
            for canvas in canvases:
                print(f"vocabulary {vocabulary}, canvas {canvas}", file=sys.stderr, flush=True)
                report["rows"] += case(folder, sizes, canvas, threads, rounds)
    return report


def picture(report: Report) -> str:
    """The report as a person reads it."""
    rows = report["rows"]
    names = [f"V {row['vocabulary']}, C {row['canvas']}, {row['threads']} thr" for row in rows]
    times = [
        (
            name,
            *(row["ms"][side]["p50"] for side in ("ours", "transformers", "eager")),
            *(f"{row[ratio]:.2f}" for ratio in ("ratio", "ratio to eager")),
            *(row[value] for value in ("bound_ms", "gb", "gflop", "gb_s", "gflop_s")),
            100 * row["of bound"],
        )
        for name, row in zip(names, rows, strict=True)
    ]
    spent = [(name, *(100 * row["shares"][part] for part in PARTS)) for name, row in zip(names, rows, strict=True)]
    head = ("ms a step", "ours", "hf", "eager", "hf/ours", "eager/ours", "bound", "GB", "GFLOP", "GB/s", "GFLOP/s", "%")
    parts = [
        f"{report['model']['parameters'] / 1e6:.1f} M parameters and the embedding at {report['commit']}, "
        f"{report['machine']}, load {report['load']}, Transformers {report['transformers']}",
        table(head, times),
        table(("% of our time", *PARTS), spent),
    ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="A denoise step, ours and Transformers', on the same CPU.")
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[8192, 262144])
    parser.add_argument("--canvas", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "steps.json")
    options = parser.parse_args()
    report = measure(TEXT, options.vocabulary, options.canvas, options.threads, options.rounds)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
