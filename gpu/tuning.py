"""Block sizes of kernels, measured on this card at DiffusionGemma's 26B shape: CAESURA_TUNED/DEVICE.json, which the
launchers read (kernels/tuned). Experts are in FP8, activations too; attention and head have one form. The other
matrices are in NVFP4: in bf16, and in FP8 with such activations, PyTorch multiplies them.

Candidates are those of kernels/tuned/candidates.json. All are replayed three times, the faster half twenty times, each
through more weights than the L2 cache holds. A candidate counts only if it gives what the formula's block sizes give,
within a hundredth, on new random rows and into memory that was filled with NaN. An entry is made where one takes 2 %
less time than the formula. The table is written after every measurement.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caesura.engine.models.diffusion_gemma.model import EVERYTHING, Config
from caesura.kernels import attention, experts, fp8, gated, head, matmul, tuned
from caesura.kernels.jit import triton
from caesura.kernels.linear import Rows8

from measuring import Book, Line, captured, clock, command, table, wait  # isort: skip  (of this folder)
from stand_in import maker, matrices, sizes  # isort: skip

CANDIDATES = Path(tuned.__file__).with_name("candidates.json")
GAIN = 0.98  # of the formula's time; more is noise
NEAR = 1e-2  # relative, and of the spread of the results


class Plan(NamedTuple):
    """What is measured: rows of a canvas after that many tokens, by reading at least `cache` bytes."""

    rows: Sequence[int] = (32, 256, 16, 64, 128)  # those of the protocol and of a hole first
    context: int = 2048
    cache: int = 256 << 20
    replays: tuple[int, int] = (3, 20)
    candidates: int = 1000
    dtype: torch.dtype = torch.bfloat16


TINY = Plan((4,), 40, 1, (1, 1), 2, torch.float16)  # Triton's interpreter multiplies float16


class Work(NamedTuple):
    """A launcher at one of the model's shapes: what its block sizes are found by, and how new rows are drawn."""

    kernel: str
    shape: tuple[int, ...]
    rows: int  # of a mixture its pairs
    tensors: tuple[Tensor, ...]
    launch: Callable[[], Tensor]
    draw: Callable[[], object]
    copies: int = 1  # launches of a call

    def entry(self, blocks: tuned.Blocks) -> tuned.TunedEntry:
        return tuned.entry(self.kernel, self.shape, self.rows, self.tensors, blocks)


def works(c: Config, device: str, plan: Plan) -> Iterator[Work]:
    """Everything that is tuned, what the published protocol takes first; matrices are shared."""
    make, width = maker("fp8", device), c.moe_intermediate_size
    stacks = make(c.num_experts, 2 * width, c.hidden_size), make(c.num_experts, c.hidden_size, width)
    embed = torch.randn(c.vocab_size, c.hidden_size, device=device, dtype=plan.dtype)
    for rows in plan.rows:
        x = fp8.quantised(torch.randn(rows, c.hidden_size, device=device, dtype=torch.bfloat16))
        logits = torch.randn(rows, c.num_experts, device=device)
        weights, chosen = logits.softmax(-1).topk(c.top_k_experts, -1)

        def draw(x: Rows8 = x, logits: Tensor = logits, weights: Tensor = weights, chosen: Tensor = chosen) -> None:
            new = fp8.quantised(torch.randn(x.shape, device=device, dtype=torch.bfloat16))
            x.codes.copy_(new.codes)
            x.scale.copy_(new.scale)
            for into, found in zip((weights, chosen), logits.normal_().softmax(-1).topk(chosen.shape[1]), strict=True):
                into.copy_(found)

        launch = partial(experts.launch, x, weights, chosen, *stacks)
        for kernel, stack in zip((experts.UP, experts.DOWN), stacks, strict=True):
            yield Work(kernel, stack.shape, chosen.numel(), (x.codes, stack.operands[0]), launch, draw)
        yield from of_attention(c, device, plan, rows)
        yield from of_head(head.Head(embed, embed, c.softcap), rows)
    for matrix in matrices(c):
        yield from of_matrix(matrix, c, device, plan)


def of_attention(c: Config, device: str, plan: Plan, rows: int) -> Iterator[Work]:
    """As in a recorded step: the addresses of the buffers and the columns that each row sees are on the device."""
    for shape in sorted(set(c.shapes)):
        seen = (min(plan.context, c.sliding_window - 1) if shape.sliding else plan.context) + rows
        like = (shape.kv_heads, seen, shape.head_dim)
        copies = max(1, -(-plan.cache // (4 * torch.Size(like).numel())))
        kv = torch.randn(copies, 2, *like, device=device, dtype=plan.dtype)
        q = torch.empty(rows, c.num_heads, shape.head_dim, device=device, dtype=plan.dtype)
        draw = partial(q.normal_, 0, 3 / shape.head_dim**0.5)  # scores of a spread of three: many columns count
        draw()
        spans = torch.tensor([[0, seen - rows, seen - rows, seen]] * rows, dtype=torch.int32, device=device)
        places = [[keys.data_ptr(), values.data_ptr(), seen, 0] for keys, values in kv]
        given = kv, torch.tensor(places, device=device), spans, c.sliding_window if shape.sliding else EVERYTHING

        def launch(q: Tensor = q, given: Any = given) -> Tensor:
            kv, tables, spans, window = given
            every = zip(kv, tables, strict=True)
            return [attention.launch(q, *both, None, window, spans, table) for both, table in every][-1]

        of = (c.num_heads, shape.kv_heads, shape.head_dim)
        yield Work(attention.NAME, of, rows, (q,), launch, draw, copies)


def of_head(of: head.Head, rows: int) -> Iterator[Work]:
    """The pass over the vocabulary, of rows that are sure enough to be gathered; and the mean of rows that are not."""
    (vocabulary, size), like = of.embed.shape, of.embed.new_empty
    hidden, p, flat = like(rows, size), like(rows, vocabulary), like(rows, dtype=torch.bool).fill_(1)
    draw = partial(hidden.normal_, 0, 8 / size**0.5)  # logits of a spread of eight
    draw()
    p.uniform_()
    bans, which = like(1, vocabulary, dtype=torch.float32).zero_(), like(rows, dtype=torch.int64).zero_()
    asked = head.Rows(hidden, like(rows, dtype=torch.float32).fill_(0.6), bans, which, ~flat)

    def scan() -> Tensor:
        seen = head.launch(of, asked)
        return torch.cat((torch.stack((seen.entropy, seen.best, seen.told, seen.raw), 1), seen.soft), 1)

    def mean() -> Tensor:
        soft = like(rows, size)
        head.launch_mean(of, p, flat, soft)
        return soft

    yield Work(head.SCAN, of.matrix.shape, rows, (hidden,), scan, draw)
    yield Work(head.MEAN, of.embed.shape, rows, (p,), mean, p.uniform_)


def of_matrix(shape: tuple[int, int], c: Config, device: str, plan: Plan) -> Iterator[Work]:
    """A matrix outside the experts in NVFP4; with the sum of its splits, which in a model the next kernel makes."""
    make = maker("nvfp4", device)
    first = make(*shape)
    weights = [first, *(make(*shape) for _ in range(plan.cache // first.nbytes))]
    is_gated = shape == (2 * c.intermediate_size, c.hidden_size)
    for rows in plan.rows:
        x = torch.randn(rows, shape[1], device=device, dtype=plan.dtype)

        def launch(x: Tensor = x) -> Tensor:
            if is_gated:
                return [gated.launch_product(x, weight, "gelu") for weight in weights][-1]
            return [matmul.launch(x, weight) for weight in weights][-1]

        kernel = gated.NAME if is_gated else matmul.NAME
        yield Work(kernel, shape, rows, (x, first.operands[0]), launch, x.normal_, len(weights))


@cache
def listed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CANDIDATES.read_text())
    return found


def stale(device: torch.device) -> Iterator[str]:
    """Why the candidates may not be those for this device. Each is tested before it counts, so they are tried."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (found := 10 * major + minor) != listed()["capability"]:
            yield f"for capability {listed()['capability']}, and this card has {found}"
    if listed()["triton"] != tuned.version():
        yield f"for Triton {listed()['triton']}, and this is {tuned.version()}"
    if listed()["kernels"] != tuned.digest():
        yield "for other code of the kernels"


def candidates(work: Work, plan: Plan) -> list[tuned.Blocks]:
    """Those of the kernel at this shape, or at another where it has none; cut to the width of tiny heads."""
    found = [of for of in listed()["lists"] if of["kernel"] == work.kernel]
    found = [of for of in found if of["shape"] == [*work.shape]] or found[:1]
    every = [dict(zip(of["fields"], values, strict=True)) for of in found for values in of["values"]]
    width = {"BLOCK_V": work.shape[-1]} if plan is TINY and work.kernel == attention.NAME else {}
    return [blocks | width for blocks in every[: plan.candidates]]


def likely(work: Work, blocks: tuned.Blocks) -> bool:
    """False for a block of more rows than there are, and for more than four blocks, each of which reads the matrix from
    L2. An expert's rows and the rows of query heads are not counted by `rows`."""
    other = work.kernel in (experts.UP, experts.DOWN, attention.NAME)
    return other or work.rows <= 4 * blocks["BLOCK_R"] <= 4 * max(16, work.rows)


def tried(work: Work, plan: Plan) -> list[tuned.Blocks]:
    """The candidates that are launched, by `tune` and by gpu/compile."""
    return [blocks for blocks in candidates(work, plan) if likely(work, blocks)]


def launched(work: Work, blocks: tuned.Blocks | None) -> Tensor:
    """What a work gives with these block sizes, or with the formula's."""
    with tuned.using([work.entry(blocks)] if blocks else []):
        return work.launch()


def poisoned(launch: Callable[[], Tensor]) -> Tensor:
    """What a launch gives into memory that was filled with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what torch.empty gives
    try:
        return launch().float()
    finally:
        torch.use_deterministic_algorithms(False)


def equal(work: Work, blocks: tuned.Blocks) -> bool:
    """True if these block sizes give what the formula's give, on new rows."""
    work.draw()
    right, found = (poisoned(partial(launched, work, sizes)) for sizes in (None, blocks))
    return torch.allclose(found, right, rtol=NEAR, atol=NEAR * float(right.std()))


def ms(work: Work, blocks: tuned.Blocks | None, device: str, replays: int) -> float:
    call = partial(launched, work, blocks)
    return clock(captured(call) if device == "cuda" else call, device, replays)["p50_ms"] / work.copies


def tune(work: Work, device: str, plan: Plan) -> Line:
    """The fastest of the right ones, next to the formula."""
    few, many = plan.replays
    every, times, wrong = tried(work, plan), list[tuple[float, int]](), 0
    for number, blocks in enumerate(every):
        try:
            if equal(work, blocks):
                times.append((ms(work, blocks, device, few), number))
            else:
                wrong += 1
        except triton.TritonError:  # this version does not compile it, or it needs more than a processor has
            wrong += 1
    half = [number for _, number in sorted(times)[: (len(times) + 1) // 2]]
    plain = ms(work, None, device, many)
    best = min(((ms(work, every[number], device, many), number) for number in half), default=(plain, 0))
    wins = bool(half) and best[0] < GAIN * plain and equal(work, every[best[1]])
    return {
        "formula_ms": plain,
        "best_ms": best[0],
        "of_formula": best[0] / plain,
        "tried": len(every),
        "wrong": wrong,
        "blocks": every[best[1]] if half else None,
        "wins": wins,
        "entry": work.entry(every[best[1]]) if wins else None,
    }


def write(book: Book, device: str) -> None:
    entries = [line["entry"] for line in book.lines() if line.get("entry")]
    name = tuned.device_name(torch.device(device))
    path = tuned.folder() / tuned.file_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(tuned.document(name, entries))
    new.replace(path)


def main() -> int:
    parser = command(__doc__)
    arguments = parser.parse_args()
    config, plan = Config.read(sizes(tiny=arguments.tiny)), TINY if arguments.tiny else Plan()
    book = Book(arguments.book, arguments.device, arguments.seconds)
    for reason in stale(torch.device(arguments.device)):
        print(f"gpu/tune: the candidates are {reason}; gpu/README.md says how they are made again.", flush=True)
    for work in works(config, arguments.device, plan):
        shape = "x".join(map(str, work.shape))
        name = {"measure": "tune", "kernel": work.kernel, "shape": shape, "rows": work.rows}
        if book.plan([name]):
            book.measure(name, partial(tune, work, arguments.device, plan))
            wait(arguments.device)
            write(book, arguments.device)
    columns = ("kernel", "shape", "rows", "formula_ms", "best_ms", "of_formula", "tried", "wrong", "blocks")
    table("Block sizes", columns, book.lines())
    return book.report(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
