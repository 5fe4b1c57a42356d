"""How long a denoise step of the model `small` takes on a GPU, and how fast it trains there. Random weights and ids.

A step reads every weight once: 2 bytes each over the memory's bandwidth is its floor, printed next to the times. Below
a few hundred rows launches dominate, so each shape is timed plainly and as a captured graph. Training counts rows
(context and canvas, forward and backward) and predicted slots a second, plain and compiled, with peak memory.
The last line is one JSON document.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from caesura.engine.models.llama.config import MATRICES, Config

from batches import CANVASES, PREFIX, SUFFIX, collate  # isort: skip  (training/, on the path by gpu/env)
from examples import BUCKETS, CanvasExample, Example  # isort: skip
from net import Net, losses, objective  # isort: skip
from measuring import BANDWIDTH, Book, Line, Name, captured, clock, command, table, wait  # isort: skip  (of this folder)

SHAPES = list(itertools.product((1, 16), (128, 512, 768), (16, 32, 64, 128)))  # batch, context, canvas


def random_weights(config: Config, device: str) -> dict[str, Tensor]:
    """A base of the shape, N(0, 0.02), norms 1."""
    one = torch.ones(config.hidden_size, device=device)
    out = {"norm": one, "embed": torch.randn(config.vocab_size, config.hidden_size, device=device) * 0.02}
    for i in range(config.num_layers):
        shapes = {f"layers.{i}.{matrix}": config.shape(matrix) for matrix in MATRICES}
        out |= {name: torch.randn(shape, device=device) * 0.02 for name, shape in shapes.items()}
        out |= {f"layers.{i}.attn_norm": one, f"layers.{i}.mlp_norm": one}
    return out


def forward(net: Net, *canvas: Any) -> Tensor:
    return linear(net.canvas(*canvas), net.table())


@torch.no_grad()
def step(net: Net, config: Config, device: str, repeats: int, name: Name) -> Line:
    """Canvas rows, head included, over cached contexts."""
    batch, rows, context = name["batch"], name["canvas"], name["context"]
    _, held = net.context(torch.randint(config.vocab_size, (batch, context), device=device))
    ids = torch.randint(config.vocab_size, (batch, 1, rows), device=device)
    start = torch.full((batch, 1), context, device=device)
    keys = torch.ones(batch, 1, rows, dtype=torch.bool, device=device)
    causal = torch.zeros(batch, 1, dtype=torch.bool, device=device)
    once = partial(forward, net, ids, start, keys, causal, held)
    line = clock(once, device, repeats)
    line |= (
        {f"graph_{n}": ms for n, ms in clock(captured(once), device, repeats).items() if n != "n"}
        if device == "cuda"
        else {}
    )
    return line | {"floor_ms": sum(p.numel() for p in net.trained.values()) * 2 / BANDWIDTH * 1e3}


def steps(book: Book, config: Config, device: str, repeats: int, shapes: Iterable[tuple[int, int, int]]) -> None:
    fields = "batch", "context", "canvas"
    names = [{"measure": "small step", **dict(zip(fields, shape, strict=True))} for shape in shapes]
    if book.plan(names):
        net = Net(config, random_weights(config, device), "all", device=device)
        net.trained = {name: torch.nn.Parameter(p.bfloat16()) for name, p in net.trained.items()}
        for name in names:
            book.measure(name, partial(step, net, config, device, repeats, name))


def synthetic(config: Config, contexts: int, bucket: int) -> dict[str, Tensor]:
    """A batch of full shape with random tokens."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return rng.choices(range(config.vocab_size), k=count)

    def canvas() -> CanvasExample:
        visible = rng.randint(SUFFIX + config.tail, SUFFIX + PREFIX)
        return CanvasExample(visible, ids(config.tail), ids(bucket), [config.vocab_size] * bucket, ids(config.head))

    made = [Example(ids(SUFFIX + 1 + PREFIX), [canvas() for _ in range(CANVASES)]) for _ in range(contexts)]
    return collate(made, bucket, (config.tail, config.head))


def training(config: Config, device: str, contexts: int, repeats: int, *, compiled: bool) -> Line:
    """Two steps, of a batch of each size of canvas."""
    batches = [{n: t.to(device) for n, t in synthetic(config, contexts, b).items()} for b in BUCKETS]
    rows = [batch["context"].numel() + batch["ids"].numel() for batch in batches]
    net = Net(config, random_weights(config, device), "all", device=device, compiled=compiled)
    optimizer = torch.optim.AdamW(net.trained.values(), lr=1e-5, fused=True)

    def both() -> None:
        for batch in batches:
            out = losses(net, batch, config.vocab_size + 1)
            (objective(out, batch["start"].numel()) + out.causal).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    began = time.perf_counter()
    both()
    wait(device)
    first = time.perf_counter() - began
    times = clock(both, device, max(1, repeats))
    line: Line = {**times, "contexts": contexts, "rows_per_s": sum(rows) / times["p50_ms"] * 1e3, "first_s": first}
    return line | ({"peak_gib": torch.cuda.max_memory_allocated() / 2**30} if device == "cuda" else {})


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--contexts", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    sizes = json.loads((Path(__file__).parents[1] / "models" / "small" / "caesura_small" / "config.json").read_text())
    device, contexts, repeats, tiny = arguments.device, arguments.contexts, arguments.repeats, arguments.tiny
    if tiny:
        sizes |= {"vocab_size": 64, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
        sizes, contexts, repeats = sizes | {"intermediate_size": 96}, 1, 1
    config, book = Config.read(sizes), Book(arguments.book, device, arguments.seconds)
    steps(book, config, device, repeats, SHAPES[:1] if tiny else SHAPES)
    for compiled in (False, True)[: 1 if tiny else 2]:
        name = {"measure": "training", "compiled": compiled}
        if book.plan([name]):
            book.measure(name, partial(training, config, device, contexts, repeats // 5, compiled=compiled))
    columns = ("batch", "context", "canvas", "p50_ms", "p95_ms", "graph_p50_ms", "graph_p95_ms", "floor_ms")
    table("A step of small's shape, bf16", columns, book.lines(measure="small step"))
    columns = ("compiled", "contexts", "rows_per_s", "p50_ms", "first_s", "peak_gib")
    table("Two training steps", columns, book.lines(measure="training"))
    return book.report(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
