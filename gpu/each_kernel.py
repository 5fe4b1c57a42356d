"""Every kernel at DiffusionGemma's 26B shape: the bytes and FLOP it has to move and compute, what it gets of the
device's bandwidth and arithmetic, the least time these allow, and the same work in PyTorch as its reference has it.
`--peers` takes PyTorch's own kernels instead, which are fast enough for a loan: they do the work with other weights or
less exactly. In FP8 rows come in e4m3, as a norm gives them; `decoded` is our kernel for rows as they come.

Kernels and peers are timed as CUDA graphs: launches cost nothing there, as in a step. What a call reads is more than
the L2 cache holds, or it goes through as many copies as are.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from caesura.engine.models.diffusion_gemma.model import Config
from caesura.kernels import attention, experts, fp8, gated, head, matmul, norms, nvfp4, rotary
from caesura.kernels.linear import Dense, Linear

from counted import peak  # isort: skip  (of this folder)
from measuring import BANDWIDTH, PEAK, Book, Line, Name, captured, clock, command, table  # isort: skip
from stand_in import FORMS, maker, matrices, sizes  # isort: skip

ROWS, CONTEXTS = (16, 32, 64, 128, 256), (2048, 8192, 32768)
FEW_ROWS, FEW_CONTEXTS = (32, 256), (2048,)  # with peers
MEASURES = ("kernel", "peers")  # names in the book, without and with them
PEERS = ("cublas_bf16_ms", "decoded_ms", "scaled_grouped_mm_ms", "grouped_mm_ms", "sdpa_ms")
CACHE = 256 << 20  # bytes; more than any L2


Calls = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One piece of work, `copies` of it in a call of any way; `peers` makes what is wanted to measure them."""

    name: str
    kernel: Callable[[], object]
    plain: Callable[[], object]
    bytes: float
    flops: float
    copies: int = 1
    peers: Callable[[], Calls] = dict
    peak: float = PEAK


def cases(
    c: Config, form: str, device: str, rows: Sequence[int], contexts: Sequence[int], cache: int
) -> Iterator[Case]:
    """`cache` is how many bytes a call reads at least."""
    for count in rows:
        if form == "bf16":  # none of these has a stored precision of its own
            yield from of_head(c, device, count)
            yield of_norms(c, device, count)
            yield from of_rotary(c, device, count)
            for context in contexts:
                yield from of_attention(c, device, count, context, cache)
        else:  # in bf16 a linear layer is cuBLAS
            for matrix in matrices(c):
                yield of_linear(matrix, maker(form, device), device, count, cache)
        yield of_gated(c, maker(form, device), device, count, cache)
        yield of_experts(c, maker(form, device), device, count)


def of_head(c: Config, device: str, rows: int) -> Iterator[Case]:
    embed = torch.randn(c.vocab_size, c.hidden_size, device=device, dtype=torch.bfloat16)
    of = head.Head(embed, embed, c.softcap)
    # Logits of a spread of some 10: most rows are sure enough to be gathered, as on real text.
    hidden = torch.randn(rows, c.hidden_size, device=device, dtype=torch.bfloat16) * 10 / c.hidden_size**0.5
    which = torch.zeros(rows, dtype=torch.int64, device=device)
    warm, bans = torch.full((rows,), 0.6, device=device), torch.zeros(1, c.vocab_size, device=device)
    asked = head.Rows(hidden, warm, bans, which, torch.ones(rows, dtype=torch.bool, device=device))
    moved = 2 * embed.numel() + 2 * rows * c.vocab_size
    yield Case(
        f"head, {rows} rows",
        lambda: head.launch(of, asked),
        lambda: head.reference(of, asked),
        moved,
        2 * rows * embed.numel(),
        peers=lambda: {"cublas_bf16": lambda: functional.linear(hidden, embed)},
    )
    kept = torch.zeros(rows, c.vocab_size, device=device, dtype=embed.dtype)
    level = torch.full((rows, -(-c.vocab_size // head.TILE)), -9.0, device=device)
    soft = torch.empty_like(hidden)
    yield Case(
        f"mean embedding, {rows} rows",
        lambda: head.replace_flat(of, kept, level, asked.open, soft, head.TILE),
        lambda: (kept.float() + level[:, :1]).exp().to(embed.dtype) @ embed,
        moved,
        2 * rows * embed.numel(),
        peers=lambda: {"cublas_bf16": lambda: kept @ embed},
    )
    seen, at, tile = head.observe(of, asked), torch.rand(rows, device=device), rows * c.hidden_size * head.TILE
    given = of, asked, seen, at, asked.open  # all rows are wanted, which is the most that a step asks for
    yield Case(
        f"draw, {rows} rows",
        lambda: head.launch_draw(*given),
        lambda: head.reference_draw(*given),
        2 * tile,
        2 * tile,
    )


def of_norms(c: Config, device: str, rows: int) -> Case:
    """All between the products of a layer but rotary: two sums with their norms, and the router."""
    x = torch.randn(rows, c.hidden_size, device=device, dtype=torch.bfloat16)
    router = torch.randn(c.num_experts, c.hidden_size, device=device, dtype=torch.bfloat16)
    weight, scale = torch.ones(c.hidden_size, device=device), router.new_ones(c.num_experts)
    mode, top_k, eps = torch.zeros(rows, dtype=torch.int64, device=device), c.top_k_experts, c.rms_norm_eps

    def layer(first: Callable[..., object], route: Callable[..., object], last: Callable[..., object]) -> None:
        first(x, x, (weight,) * 3, x[0], eps)
        route(x, router, scale, top_k)
        last(x, x, x, (weight,) * 4, scale[:2], mode, eps)

    return Case(
        f"norms and router, {rows} rows",
        lambda: layer(norms.launch_add_attention, norms.launch_route, norms.launch_add_experts),
        lambda: layer(norms.reference_add_attention, norms.reference_route, norms.reference_add_experts),
        22 * x.numel() + 2 * router.numel(),
        2 * rows * router.numel(),
    )


def of_rotary(c: Config, device: str, rows: int) -> Iterator[Case]:
    for shape in sorted(set(c.shapes)):
        width, groups = shape.head_dim, shape.kv_heads
        theta, part = (c.sliding_theta, 1.0) if shape.sliding else (c.full_theta, c.full_rotary)
        turn = rotary.rotary(torch.arange(rows, device=device), width, theta, part, torch.bfloat16)
        q = torch.randn(rows, c.num_heads * width, device=device, dtype=torch.bfloat16)
        k = torch.randn(rows, groups * width, device=device, dtype=torch.bfloat16)
        keys, values = torch.zeros(2, groups, rows, width, device=device, dtype=torch.bfloat16)
        norm = torch.ones(width, device=device)
        given = (q, k, k if shape.sliding else None, norm, norm, turn, c.rms_norm_eps, keys, values)
        yield Case(
            f"rotary {width}, {rows} rows",
            lambda given=given: rotary.launch(*given),  # type: ignore[misc]
            lambda given=given: rotary.reference(*given),  # type: ignore[misc]
            2 * 2 * rows * (c.num_heads + 2 * groups) * width,
            10 * rows * (c.num_heads + 2 * groups) * width,
        )


def of_attention(c: Config, device: str, rows: int, context: int, cache: int) -> Iterator[Case]:
    for shape in sorted(set(c.shapes)):
        seen = (min(context, c.sliding_window - 1) if shape.sliding else context) + rows
        moved = 2 * 2 * seen * shape.kv_heads * shape.head_dim
        copies = max(1, -(-cache // moved))
        kv = torch.randn(copies, 2, shape.kv_heads, seen, shape.head_dim, device=device, dtype=torch.bfloat16)
        q = torch.randn(rows, c.num_heads, shape.head_dim, device=device, dtype=torch.bfloat16)

        def through(way: Callable[..., object], q: torch.Tensor = q, kv: torch.Tensor = kv) -> None:
            for keys, values in kv:
                way(q, keys, values, None, 1)

        yield Case(
            f"attention {shape.head_dim}, {rows} rows, {context} columns",
            lambda go=through: go(attention.launch),  # type: ignore[misc]
            lambda go=through: go(attention.reference),  # type: ignore[misc]
            moved + 2 * 2 * q.numel(),
            4 * rows * c.num_heads * seen * shape.head_dim,
            copies,
            lambda go=through: {"sdpa": lambda: go(attention.reference)},  # type: ignore[misc]
        )


def of_linear(shape: tuple[int, int], make: Callable[..., Linear], device: str, rows: int, cache: int) -> Case:
    """Next to cuBLAS on a bfloat16 matrix."""
    first = make(*shape)
    assert isinstance(first, fp8.Fp8Linear | nvfp4.Nvfp4Linear)
    weights = [first, *(make(*shape) for _ in range(cache // first.nbytes))]
    x = torch.randn(rows, shape[1], device=device, dtype=torch.bfloat16)
    given = experts.rows_of(x, first)

    def peers() -> Calls:
        dense = [weight.dense(torch.bfloat16) for weight in weights]
        found: dict[str, Callable[[], object]] = {"cublas_bf16": lambda: [functional.linear(x, w) for w in dense]}
        if first.rounds:
            found["decoded"] = lambda: [matmul.launch(x, weight) for weight in weights]
        return found

    return Case(
        f"linear {shape[0]} x {shape[1]}, {rows} rows",
        lambda: [matmul.products(given, weight) for weight in weights],
        lambda: [weight.reference(x) for weight in weights],
        first.nbytes + 2 * rows * sum(shape),
        2 * rows * shape[0] * shape[1],
        len(weights),
        peers,
        peak(first),
    )


def of_gated(c: Config, make: Callable[..., Linear], device: str, rows: int, cache: int) -> Case:
    width, d = c.intermediate_size, c.hidden_size
    first = make(2 * width, d)
    weights = [first, *(make(2 * width, d) for _ in range(cache // first.nbytes))]
    x = experts.rows_of(torch.randn(rows, d, device=device, dtype=torch.bfloat16), first)
    return Case(
        f"gate and up, {rows} rows",
        lambda: [gated.launch(x, weight, first.rounds) for weight in weights],
        lambda: [gated.reference(x, weight, first.rounds) for weight in weights],
        first.nbytes + 2 * rows * (d + width),
        4 * rows * d * width,
        len(weights),
        peak=peak(first),
    )


def of_experts(c: Config, make: Callable[..., Linear], device: str, rows: int) -> Case:
    width = c.moe_intermediate_size
    gate_up, down = make(c.num_experts, 2 * width, c.hidden_size), make(c.num_experts, c.hidden_size, width)
    x = torch.randn(rows, c.hidden_size, device=device, dtype=torch.bfloat16)
    weights, chosen = torch.randn(rows, c.num_experts, device=device).softmax(-1).topk(c.top_k_experts, -1)
    touched, expert = len(chosen.unique()), 3 * c.hidden_size * width
    stored = touched / c.num_experts * (gate_up.nbytes + down.nbytes)
    given = experts.rows_of(x, gate_up)
    return Case(
        f"experts, {rows} rows",
        lambda: experts.launch(given, weights, chosen, gate_up, down),
        lambda: experts.reference(given, weights, chosen, gate_up, down),
        stored + 4 * rows * c.top_k_experts * (c.hidden_size + width),
        2 * rows * c.top_k_experts * expert,
        peers=lambda: grouped(x, weights, chosen, gate_up, down),
        peak=peak(gate_up),
    )


def grouped(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, gate_up: Linear, down: Linear) -> Calls:
    """PyTorch's grouped products of both stacks, over rows that are sorted and rounded already."""
    ends = chosen.flatten().bincount(minlength=gate_up.shape[0]).cumsum(0).to(torch.int32)
    stacks = [(x.new_empty(chosen.numel(), stack.shape[-1]).normal_(), stack) for stack in (gate_up, down)]
    if isinstance(gate_up, Dense):
        return {
            "grouped_mm": lambda: [
                torch._grouped_mm(rows, stack.weight.transpose(1, 2), offs=ends)  # type: ignore[attr-defined]
                for rows, stack in stacks
            ]
        }
    if not isinstance(gate_up, fp8.Fp8Linear):
        return {}
    rounded = [(*fp8.quantize(rows), stack) for rows, stack in stacks]
    decoded = [fp8.Fp8Linear(*stack.tensors) for stack in (gate_up, down)]
    return {
        "decoded": lambda: experts.launch(x, weights, chosen, *decoded),
        "scaled_grouped_mm": lambda: [
            torch._scaled_grouped_mm(
                codes, stack.codes.transpose(1, 2), scale.flatten(), stack.scale.squeeze(-1), ends, out_dtype=x.dtype
            )
            for codes, scale, stack in rounded
        ],
    }


def measure(case: Case, device: str, repeats: int, *, peers: bool) -> Line:
    def timed(call: Callable[[], object]) -> float:
        return clock(call, device, repeats)["p50_ms"] / case.copies

    def as_graph(call: Callable[[], object]) -> float:
        return timed(captured(call) if device == "cuda" else call)

    def of_peer(call: Callable[[], object]) -> float | None:
        try:
            return as_graph(call)
        except (AttributeError, RuntimeError):  # a product that this torch does not have says nothing of the kernel
            return None

    ms = as_graph(case.kernel)
    floor = 1000 * max(case.bytes / BANDWIDTH, case.flops / case.peak)
    return {
        "ms": ms,
        **(
            {f"{name}_ms": of_peer(call) for name, call in case.peers().items()}
            if peers
            else {"pytorch_ms": timed(case.plain)}
        ),
        "floor_ms": floor,
        "of_floor": floor / ms,
        "gb_s": case.bytes / ms / 1e6,
        "tflop_s": case.flops / ms / 1e9,
    }


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--peers", action="store_true", help="next to PyTorch's own kernels, and at fewer sizes")
    arguments = parser.parse_args()
    config, repeats = Config.read(sizes(tiny=arguments.tiny)), 1 if arguments.tiny else arguments.repeats
    rows, contexts, cache = (FEW_ROWS, FEW_CONTEXTS, CACHE) if arguments.peers else (ROWS, CONTEXTS, CACHE)
    if arguments.tiny:
        rows, contexts, cache = (3,), (40,), 1
    book, measured = Book(arguments.book, arguments.device, arguments.seconds), MEASURES[arguments.peers]
    for form in arguments.forms:
        for case in cases(config, form, arguments.device, rows, contexts, cache):
            name: Name = {"measure": measured, "form": form, "kernel": case.name}
            book.plan([name])
            book.measure(name, partial(measure, case, arguments.device, repeats, peers=arguments.peers))
    columns = ("form", "kernel", "ms", "floor_ms", "of_floor", "gb_s", "tflop_s")
    table("Kernels", (*columns, *(PEERS if arguments.peers else ("pytorch_ms",))), book.lines())
    return book.report(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
