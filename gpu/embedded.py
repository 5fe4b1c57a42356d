"""How long a denoise step of the embedded model takes on a GPU, and how fast it trains there. Random weights and ids.

A step reads every weight once: 2 bytes each over the memory's bandwidth is its floor, printed beside the times. Below a
few hundred rows launches dominate, so each shape is timed plainly and as a captured graph. Training counts rows
(context and canvas, forward and backward) and predicted slots a second, plain and compiled, with peak memory.
The last line is one JSON document.
"""

import argparse
import dataclasses
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from caesura.engine.models.block_llama import MATRICES, Config

from batches import CANVASES, PREFIX, SUFFIX, collate  # isort: skip  (training/, on the path by gpu/env)
from examples import BUCKETS, HEAD, TAIL, CanvasExample, Example  # isort: skip
from net import Net, losses, objective  # isort: skip

SHAPES = list(itertools.product((1, 16), (128, 512, 768), (16, 32, 64, 128)))  # batch, context, canvas
BANDWIDTH = 4.3e12  # bytes a second: a device-to-device copy on one H200


def random_weights(config: Config, device: str) -> dict[str, Tensor]:
    """A base of the shape, N(0, 0.02), norms 1."""
    one = torch.ones(config.hidden_size, device=device)
    out = {"norm": one, "embed": torch.randn(config.vocab_size, config.hidden_size, device=device) * 0.02}
    for i in range(config.num_layers):
        shapes = {f"layers.{i}.{matrix}": config.shape(matrix) for matrix in MATRICES}
        out |= {name: torch.randn(shape, device=device) * 0.02 for name, shape in shapes.items()}
        out |= {f"layers.{i}.attn_norm": one, f"layers.{i}.mlp_norm": one}
    return out


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def clock(call: Callable[[], object], device: str, repeats: int) -> dict[str, float]:
    """p50 and p95 in ms, after three calls that do not count."""
    times = []
    for _ in range(repeats + 3):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        times.append((time.perf_counter() - began) * 1e3)
    ordered = sorted(times[3:])
    return {"p50_ms": ordered[len(ordered) // 2], "p95_ms": ordered[int(len(ordered) * 0.95)]}


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The same work as one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def forward(net: Net, *canvas: Any) -> Tensor:
    return linear(net.canvas(*canvas), net.table())


@torch.no_grad()
def steps(config: Config, device: str, repeats: int, shapes: Iterable[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Canvas rows, head included, over cached contexts."""
    net = Net(config, random_weights(config, device), "all", device=device)
    net.trained = {name: torch.nn.Parameter(p.bfloat16()) for name, p in net.trained.items()}
    found = []
    for batch, context, rows in shapes:
        _, held = net.context(torch.randint(config.vocab_size, (batch, context), device=device))
        ids = torch.randint(config.vocab_size, (batch, 1, rows), device=device)
        start = torch.full((batch, 1), context, device=device)
        keys = torch.ones(batch, 1, rows, dtype=torch.bool, device=device)
        causal = torch.zeros(batch, 1, dtype=torch.bool, device=device)

        step = partial(forward, net, ids, start, keys, causal, held)

        line: dict[str, Any] = {"context": context, "canvas": rows, "batch": batch}
        line |= {"plain": clock(step, device, repeats)}
        line |= {"graph": clock(captured(step), device, repeats)} if device == "cuda" else {}
        floor = sum(p.numel() for p in net.trained.values()) * 2 / BANDWIDTH * 1e3
        print(f"context {context:4} canvas {rows:4} batch {batch:3}: {line} (floor {floor:.3f} ms)", flush=True)
        found.append(line | {"floor_ms": floor})
    return found


def synthetic(config: Config, contexts: int, bucket: int) -> dict[str, Tensor]:
    """A batch of full shape with random tokens."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return rng.choices(range(config.vocab_size), k=count)

    def canvas() -> CanvasExample:
        visible = rng.randint(SUFFIX + TAIL, SUFFIX + PREFIX)
        return CanvasExample(visible, ids(TAIL), ids(bucket), [config.vocab_size] * bucket, ids(HEAD))

    made = [Example(ids(SUFFIX + 1 + PREFIX), [canvas() for _ in range(CANVASES)]) for _ in range(contexts)]
    return collate(made, bucket)


def training(config: Config, device: str, contexts: int, repeats: int, *, compile: bool) -> list[dict[str, Any]]:
    found = []
    batches = [{n: t.to(device) for n, t in synthetic(config, contexts, b).items()} for b in BUCKETS]
    rows = [batch["context"].numel() + batch["ids"].numel() for batch in batches]
    for compiled in (False, True)[: 1 + compile]:
        net = Net(config, random_weights(config, device), "all", device=device, compiled=compiled)
        optimizer = torch.optim.AdamW(net.trained.values(), lr=1e-5, fused=True)

        def both(net: Net = net, optimizer: torch.optim.Optimizer = optimizer) -> None:
            for batch in batches:
                out = losses(net, batch, config.vocab_size + 1)
                (objective(out, batch["start"].numel()) + out.causal).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        began = time.perf_counter()
        both()
        wait(device)
        first = time.perf_counter() - began
        ms = clock(both, device, max(1, repeats))["p50_ms"]
        line: dict[str, Any] = {"compiled": compiled, "contexts": contexts, "rows_per_s": round(sum(rows) / ms * 1e3)}
        line |= {"first_s": round(first, 1), "two_steps_ms": round(ms, 1)}
        line |= {"peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)} if device == "cuda" else {}
        print(f"training: {line}", flush=True)
        found.append(line)
    return found


def report(document: dict[str, Any], device: str, out: Path | None) -> None:
    """One JSON line on stdout, and in `out` where that is wanted, with the machine it is from."""
    machine = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    text = json.dumps({"machine": machine, "torch": torch.__version__, **document})
    if out:
        out.write_text(text + "\n")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--config", type=Path, default=Path(__file__).parents[1] / "engine" / "embedded" / "config.json"
    )
    parser.add_argument("--contexts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--tiny", action="store_true", help="one shape, nothing compiled (for the tests)")
    parser.add_argument("--out", type=Path, help="file for the JSON document")
    arguments = parser.parse_args()
    config = Config.read(json.loads(arguments.config.read_text()))
    device: str = arguments.device
    document = {
        "shape": dataclasses.asdict(config),
        "steps": steps(config, device, arguments.repeats, SHAPES[:1] if arguments.tiny else SHAPES),
        "training": training(config, device, arguments.contexts, arguments.repeats // 5, compile=not arguments.tiny),
    }
    report(document, device, arguments.out)


if __name__ == "__main__":
    main()
