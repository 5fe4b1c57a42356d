"""Denoise steps of DiffusionGemma's 26B shape, random weights, beside the least time that its bytes take and beside
Transformers in the same run, where its version has the model.

Every precision that fits is timed, each step launched anew and as a recorded one (a CUDA graph). Matrices of FP8 and
NVFP4 are decoded in the kernels that use them; beyond 512 rows those outside the experts are widened one by one.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from caesura.engine import memory, renoise
from caesura.engine.canvas import Canvas, HoleState, Slot
from caesura.engine.denoise import Denoising
from caesura.engine.graphs import Common, Recording
from caesura.engine.models import Run
from caesura.engine.models._diffusion_gemma_files import Conditioner, Layer, Shape, Weights
from caesura.engine.models.diffusion_gemma import Config, DiffusionGemma, kept
from caesura.engine.noise import Schedule
from caesura.engine.samplers import entropy_bound
from caesura.kernels import fp8, nvfp4
from caesura.kernels.linear import Dense, Linear

from embedded import BANDWIDTH, clock, report  # isort: skip  (beside this script)
from roofline import bound_ms, work  # isort: skip  (bench/, on the path by gpu/env)

HERE = Path(__file__).parent
BYTES = {"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625}  # a weight, scales included
PEAK = 790e12  # FLOP a second in bfloat16: matrix products run in it whatever is stored
CANVASES, CONTEXTS = (16, 32, 64, 128, 256), (2048, 8192, 32768)
Make = Callable[..., Linear]


def maker(form: str, device: str) -> Make:
    """Random matrices in that precision, drawn as they are stored: quantising 26 billion numbers takes too long."""

    def make(*shape: int) -> Linear:
        *outer, rows, columns = shape
        if form == "bf16":
            return Dense(torch.randn(shape, device=device, dtype=torch.bfloat16) * 0.02)
        if form == "fp8":
            codes = torch.randn(shape, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
            return fp8.Linear(codes, torch.full((*outer, rows, 1), 0.02, device=device))
        codes = torch.randint(256, (*outer, rows, columns // 2), dtype=torch.uint8, device=device)
        scale = torch.ones(*outer, rows, columns // nvfp4.GROUP, device=device).to(torch.float8_e4m3fn)
        return nvfp4.Linear(codes, scale, torch.full((*outer, rows, 1), 0.01, device=device))

    return make


def random_weights(c: Config, form: str, device: str) -> Weights:
    make, dense, d = maker(form, device), maker("bf16", device), c.hidden_size
    one = torch.ones(d, device=device)

    def layer(shape: Shape) -> Layer:
        q, kv = c.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        head = torch.ones(shape.head_dim, device=device)
        half = torch.ones(max(d, c.num_experts), device=device, dtype=torch.bfloat16)
        return Layer(
            shape,
            *[one] * 7,
            q=make(q, d),
            k=make(kv, d),
            v=make(kv, d) if shape.sliding else None,
            o=make(d, q),
            q_norm=head,
            k_norm=head,
            gate=make(c.intermediate_size, d),
            up=make(c.intermediate_size, d),
            down=make(d, c.intermediate_size),
            router=dense(c.num_experts, d).dense(torch.bfloat16),
            router_scale=half[:d],
            expert_scale=half[: c.num_experts],
            expert_gate_up=make(c.num_experts, 2 * c.moe_intermediate_size, d),
            expert_down=make(c.num_experts, d, c.moe_intermediate_size),
            scalar=half[:2] * 0.5,
        )

    embed = dense(c.vocab_size, d).dense(torch.bfloat16)
    wide = (c.intermediate_size, d)
    conditioner = Conditioner(one, dense(*wide), dense(*wide), dense(*reversed(wide)))
    return Weights(embed, embed, one, conditioner, [layer(shape) for shape in c.shapes])


def ours(model: DiffusionGemma, context: int, canvas: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A whole step in the middle of a canvas: forward, draw, acceptance, conditioning, and the host told of it;
    launched anew each time, and recorded once."""
    device, schedule = torch.device(model.device), Schedule()
    generator = torch.Generator(device).manual_seed(0)
    kv = model.cache().lease([])
    ids = torch.randint(model.width, (context,), generator=generator, device=device).tolist()
    for start in range(0, context, model.chunk):
        model.prefill(ids[start : start + model.chunk], kv)
    free, stops = torch.zeros(model.width, device=device), torch.tensor([], dtype=torch.int64, device=device)
    row = Canvas([], [Slot(0) for _ in range(canvas)], [], [HoleState(False, canvas)], None)  # type: ignore[arg-type]
    w = Denoising(row, kv, entropy_bound.select, 48, generator, step=24)
    w.state = renoise.start(model, [0] * canvas, generator)
    every = torch.ones(canvas, dtype=torch.bool, device=device)
    terms = renoise.Terms(every, ~every, ~every, stops, schedule.confidence)

    def launched() -> None:
        assert w.state is not None
        at = range(context, context + canvas)
        hidden = model.hidden([Run(kv, w.state.ids.tolist(), at, conditioning=w.state.conditioning)])
        asked = renoise.Asked(hidden, schedule.temperature(24, 48), [free] * canvas, [True] * canvas)
        outlook, chances = renoise.outlooks(model, [asked])[0], renoise.chances(model, canvas, generator)
        w.state, told = renoise.decide(model, schedule, w.state, outlook, entropy_bound.select, 24, 48, terms, chances)
        told.tolist()

    launched()  # makes room for the canvas
    common = Common(model, schedule, entropy_bound.select, free.expand(4, -1).contiguous(), stops)
    recording = Recording(common, kv, canvas)
    recording.capture(None)

    def recorded() -> None:
        following = recording.launch(w, w.step)
        w.state = following.state
        following.receive()

    return launched, recorded


def theirs(config: dict[str, Any], device: str) -> Callable[[int, int], Callable[[], object]] | str:
    """Transformers on the same shape, or why not."""
    try:
        from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
    except ImportError as error:
        return f"not measured: {error}"
    with torch.device("meta"):
        model = DiffusionGemmaForBlockDiffusion(DiffusionGemmaConfig(**config)).to(torch.bfloat16)
    model = model.to_empty(device=device).eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.normal_(0, 0.02) if tensor.is_floating_point() else tensor.zero_()

    def step(context: int, canvas: int) -> Callable[[], object]:
        cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        ids = torch.randint(100, (1, context), device=device)
        rows = torch.randint(100, (1, canvas), device=device)
        with torch.no_grad():
            model(input_ids=ids, decoder_input_ids=rows, past_key_values=cache)
        before: list[Tensor | None] = [None]

        @torch.no_grad()
        def forward() -> None:
            out = model(decoder_input_ids=rows, past_key_values=cache, self_conditioning_logits=before[0])
            cooled = out.logits / 0.6
            torch.multinomial(cooled.softmax(-1)[0], 1)
            torch.distributions.Categorical(logits=cooled).entropy()
            before[0] = cooled.to(torch.bfloat16)

        return forward

    return step


def measure(
    config: dict[str, Any], device: str, forms: Sequence[str], shapes: Iterable[tuple[int, int]], repeats: int
) -> list[dict[str, Any]]:
    """One line for each precision, context and canvas."""
    c, text = Config.read(config), config["text_config"]
    shapes, lines = list(shapes), list[dict[str, Any]]()
    for form in forms:
        model = DiffusionGemma("random", c, random_weights(c, form, device), None, CONTEXTS[-1])  # type: ignore[arg-type]
        held = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        for context, canvas in shapes:
            floor = bound_ms(work(text, canvas, context, BYTES[form]), BANDWIDTH, PEAK)
            line = {"form": form, "context": context, "canvas": canvas, "floor_ms": round(floor, 3)}
            launched, recorded = ours(model, context, canvas)
            line |= clock(launched, device, repeats)
            line |= {f"graph_{name}": ms for name, ms in clock(recorded, device, repeats).items()}
            lines.append(line | {"weights_gib": round(held / memory.GIB, 1)})
            print(lines[-1], flush=True)
        del model
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    peer = theirs(config, device)
    for context, canvas in shapes if callable(peer) else ():
        lines.append({"form": "transformers bf16", "context": context, "canvas": canvas})
        lines[-1] |= clock(peer(context, canvas), device, repeats)  # type: ignore[operator]
        print(lines[-1], flush=True)
    if isinstance(peer, str):
        lines.append({"form": "transformers bf16", "note": peer})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--config", type=Path, default=HERE / "diffusiongemma-26b.json")
    parser.add_argument("--forms", nargs="+", default=list(BYTES), choices=list(BYTES))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="one shape (for the tests)")
    parser.add_argument("--out", type=Path, help="file for the JSON document")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text())
    device: str = arguments.device
    shapes = [(64, 16)] if arguments.tiny else [(n, c) for n in CONTEXTS for c in CANVASES]
    document = {
        "kv_gib": {n: round(memory.of_context(kept(Config.read(config)), n, 2) / memory.GIB, 2) for n in CONTEXTS},
        "steps": measure(config, device, arguments.forms, shapes, arguments.repeats),
    }
    report(document, device, arguments.out)


if __name__ == "__main__":
    main()
