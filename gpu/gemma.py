"""DiffusionGemma at its 26B shape with random weights, as the engine serves it: recorded steps, each launched before
the host has heard of the one before (engine/methods/uniform/graphs.py), next to the same steps not recorded, and
next to the least time that their bytes and FLOP take. Of each precision, in this order:

protocol: the fixed work of vLLM's published figure, 1,024 tokens after 1,024 in canvases of 256, each 16 denoise
    forwards and one that commits it, and no stop. Also with the commit riding along in the next one's first forward,
    and, where this card has block sizes of its own (gpu/tune), with the formulas instead.
infill: a key of four tokens after a warm context, and its whole canvas in few steps, without a suffix and with its
    head pinned in the canvas. 32 slots come before the steps, the rest after them.
race: such a key, and the two steps in which all lengths of a hole of 24 tokens compete, as rows of the same forwards.
steps: a step of each canvas after each context. Transformers come last, where its version has the model.

FP8 rounds activations too, as published files prescribe; NVFP4 is decoded in the kernels that multiply it.
"""

import gc
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from caesura.engine import length, memory
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods.uniform import TRIAL
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform.canvases import Renoising
from caesura.engine.methods.uniform.graphs import Graphs
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.models.diffusion_gemma.model import PINS, Config, DiffusionGemma, kept
from caesura.engine.noise import Uniform
from caesura.kernels import tuned

from counted import floor_ms, work  # isort: skip  (of this folder)
from measuring import Book, Line, Name, clock, command, now, spread, table  # isort: skip
from stand_in import FORMS, model, sizes  # isort: skip

TRANSFORMERS = "transformers"
KEY = 4  # tokens that a key adds to the context
HOLE = 24  # tokens of a hole whose length is not known
WAYS = ("unrecorded", "served", "served, commit rides along")
FORMULAS = "served, with formulas"
VLLM = {"way": "vLLM 0.33, published, FP8", "forwards": 17, "ms_a_forward": 11.3, "tokens_s": 1288.0}
AIM = {"way": "aim", "forwards": 17, "ms_a_forward": 8.5, "tokens_s": 1800.0}


class Plan(NamedTuple):
    """What is measured: tokens, rows, steps. `denoising` are the forwards of a canvas of the protocol."""

    prompt: int = 1024
    canvases: int = 4
    denoising: int = 16
    warm: Sequence[int] = (2048, 8192)
    slots: Sequence[int] = (32, 16, 64)
    pins: Sequence[int] = (0, PINS)
    few: Sequence[int] = (2, 4, 8)
    contexts: Sequence[int] = (2048, 8192, 32768)
    rows: Sequence[int] = (16, 32, 64, 128, 256)
    repeats: int = 20


TINY = Plan(24, 2, 4, (40,), (4,), (0, 2), (2,), (24, 40), (4, 16), 1)


def protocols(form: str) -> list[Name]:
    return [{"measure": "protocol", "form": form, "way": way} for way in WAYS]


def infills(plan: Plan, form: str) -> list[Name]:
    return [
        {"measure": "infill", "form": form, "context": context, "slots": slots, "pins": pins, "steps": steps}
        for slots in plan.slots
        for context in plan.warm
        for pins in plan.pins
        for steps in plan.few
    ]


def races(plan: Plan, form: str) -> list[Name]:
    return [{"measure": "race", "form": form, "context": context} for context in plan.warm]


def steps(plan: Plan, form: str) -> list[Name]:
    shapes = [(context, rows) for context in plan.contexts for rows in plan.rows]
    return [{"measure": "steps", "form": form, "context": context, "canvas": rows} for context, rows in shapes]


class Served:
    """A model with its recordings, as the scheduler has them, and its contexts."""

    def __init__(self, model: DiffusionGemma, plan: Plan) -> None:
        assert isinstance(model.spec.noise, Uniform)
        self.model, self.plan, self.vocabulary = model, plan, Vocabulary(model)
        self.graphs = Graphs(model, model.spec.noise.schedule, by_entropy, self.vocabulary)
        self.generator = torch.Generator(model.device).manual_seed(0)
        self.replayed = 0  # steps
        self._seeds = itertools.count()
        self._contexts = dict[int, KV]()
        if model.device.startswith("cuda"):
            self.graphs.rehearse()

    def __repr__(self) -> str:
        return f"<Served {self.model} {self.replayed} steps replayed>"

    def replay(self, work: Sequence[Renoising]) -> Sequence[Renoising]:
        left = self.graphs.step(work)
        self.replayed += len(work) - len(left)
        return left

    def text(self, count: int) -> list[int]:
        ids: list[int] = torch.randint(
            self.model.width, (count,), generator=self.generator, device=self.model.device
        ).tolist()
        return ids

    def read(self, ids: Sequence[int], kv: KV) -> None:
        for start in range(0, len(ids), self.model.spec.chunk):
            self.model.prefill(ids[start : start + self.model.spec.chunk], kv)

    def after(self, context: int) -> KV:
        """That much context, with room for any canvas, warmed by one fill. One is kept."""
        if context not in self._contexts:
            self._contexts.clear()
            kv = self._contexts[context] = self.model.cache().lease([])
            self.read(self.text(context), kv)
            kv.reserve(KEY + max(self.plan.rows) + PINS)
            self.fill(self.canvas(kv, min(self.plan.rows), 2), self.replay)
        return self._contexts[context]

    def canvas(self, kv: KV, slots: int, of: int, *, pins: int = 0, fresh: Sequence[int] = ()) -> Renoising:
        row = Canvas([], [Slot(0) for _ in range(slots)], self.text(pins), [HoleState(False, slots)], self.vocabulary)
        return Renoising(row, kv, by_entropy, of, next(self._seeds), fresh=fresh)

    def fill(self, w: Renoising, replay: uniform.Replay | None) -> list[float]:
        """All its steps, whatever comes of them: the ms of each until the host had heard of it."""
        found = []
        for _ in range(w.of):
            began = time.perf_counter()
            uniform.step(self.model, [w], replay)
            found.append((time.perf_counter() - began) * 1e3)
        return found

    # What is measured

    def protocol(self, way: str) -> Line:
        """Times are of one canvas with its commit, each the mean of those of a run."""
        plan, model, rows = self.plan, self.model, self.model.config.canvas_length
        rides, replay = way == WAYS[2], None if way == WAYS[0] else self.replay
        kv = model.cache().lease([])
        kv.reserve(plan.prompt + (plan.canvases + 1) * rows)  # nothing moves on the way
        prompts, canvases = [], []
        for number in range(2 + plan.repeats // 4):
            kv.truncate(0)
            began = now(model.device)
            self.read(self.text(plan.prompt), kv)
            prompts.append(now(model.device) - began)
            best, before, began = list[int](), self.replayed, now(model.device)
            for _ in range(plan.canvases):
                w = self.canvas(kv, rows, plan.denoising, fresh=best if rides else ())
                self.fill(w, replay)
                best = [slot.draft or 0 for slot in w.canvas.slots]
                if not rides:
                    model.prefill(best, kv)
            canvases += [(now(model.device) - began) / plan.canvases] if number else []  # the first one recorded
        times, forwards = spread(canvases), plan.denoising + (not rides)
        each = [floor_ms(model, rows, plan.prompt + at * rows) for at in range(plan.canvases)]
        commit = 0.0 if rides else floor_ms(model, rows, plan.prompt, canvas=False)
        floor = plan.denoising * sum(each) / len(each) + commit
        ms, whole = times["p50_ms"], plan.canvases * times["p50_ms"] + spread(prompts)["p50_ms"]
        return {
            **times,
            "forwards": forwards,
            "ms_a_forward": ms / forwards,
            "tokens_s": rows / ms * 1e3,
            "prompt_ms": spread(prompts)["p50_ms"],
            "tokens_s_with_prompt": plan.canvases * rows / whole * 1e3,
            "floor_ms": floor,
            "of_floor": floor / ms,
            "replayed": (self.replayed - before) // plan.canvases,
        }

    def infill(self, context: int, slots: int, pins: int, steps: int) -> Line:
        kv, times, rows = self.after(context), [], slots + pins
        for _ in range(3 + self.plan.repeats):
            w, before = self.canvas(kv, slots, steps, pins=pins, fresh=self.text(KEY)), self.replayed
            began = now(self.model.device)
            self.fill(w, self.replay)
            times.append(now(self.model.device) - began)
            kv.truncate(context)
        floor = steps * floor_ms(self.model, rows, context)
        found = spread(times[3:])
        return {**found, "floor_ms": floor, "of_floor": floor / found["p50_ms"], "replayed": self.replayed - before}

    def race(self, context: int) -> Line:
        """Nobody knows how long the hole is, so what comes first takes these steps."""
        kv, lengths, before = self.after(context), length.tried(HOLE, one_line=True), self.replayed

        def key(replay: uniform.Replay | None) -> None:
            works = [self.canvas(kv, slots, 2 * TRIAL, pins=PINS) for slots in lengths]
            works[0].fresh = self.text(KEY)
            for w in works:
                w.judged = True
            for _ in range(TRIAL):
                uniform.step(self.model, works, replay)
            kv.truncate(context)

        served, unrecorded = (
            clock(partial(key, way), self.model.device, self.plan.repeats) for way in (self.replay, None)
        )
        rows = sum(lengths) + PINS * len(lengths)
        floor = TRIAL * floor_ms(self.model, rows, context)
        return {
            **served,
            **{f"unrecorded_{name}": ms for name, ms in unrecorded.items() if name != "n"},
            "rows": rows,
            "floor_ms": floor,
            "of_floor": floor / served["p50_ms"],
            "replayed": self.replayed - before,
        }

    def step(self, context: int, canvas: int) -> Line:
        """In the middle of a canvas: the first steps wait for the compiler and the recording, the last one has no next
        one to launch."""
        kv, of, before = self.after(context), 5 + self.plan.repeats, self.replayed
        unrecorded = spread(self.fill(self.canvas(kv, canvas, of), None)[4:-1])
        served = spread(self.fill(self.canvas(kv, canvas, of), self.replay)[4:-1])
        parts = work(self.model, canvas, context).values()
        moved, floor = sum(part.bytes for part in parts), floor_ms(self.model, canvas, context)
        return {
            **served,
            **{f"unrecorded_{name}": ms for name, ms in unrecorded.items() if name != "n"},
            "gb": moved / 1e9,
            "gflop": sum(part.flops for part in parts) / 1e9,
            "gb_s": moved / served["p50_ms"] / 1e6,
            "floor_ms": floor,
            "of_floor": floor / served["p50_ms"],
            "replayed": self.replayed - before,
            **held(self.model.device),
        }


def held(device: str) -> Line:
    """All that is in the device's memory: weights, a context, recorded steps."""
    return {"held_gib": torch.cuda.memory_allocated() / memory.GIB} if device.startswith("cuda") else {}


def theirs(config: dict[str, Any], device: str) -> Callable[[int, int], Callable[[], object]]:
    """Transformers on the same shape: what a step calls after that context, with that canvas."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DynamicCache
    from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig

    sees = Gemma4VisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )  # unused
    with torch.device("meta"):
        full = DiffusionGemmaConfig(**config, vision_config=sees)  # 5.17 builds no model without one
        model = DiffusionGemmaForBlockDiffusion(full).to(torch.bfloat16)
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


def measure(book: Book, plan: Plan, config: dict[str, Any], form: str, device: str) -> None:
    if form == TRANSFORMERS:
        if book.plan(names := steps(plan, form)):
            try:
                peer = theirs(config, device)
            except Exception as error:  # of another version, or too large
                book.fail(names, error)
            for name in names:
                book.measure(name, lambda n=name: clock(peer(n["context"], n["canvas"]), device, plan.repeats // 2 + 1))
        return
    first = [name for name in infills(plan, form) if name["slots"] == plan.slots[0]]
    others = [name for name in infills(plan, form) if name not in first]
    formulas = {"measure": "protocol", "form": form, "way": FORMULAS}
    plain = [formulas] if tuned.has_table(torch.device(device)) else []
    names = [*protocols(form), *plain, *first, *races(plan, form), *steps(plan, form), *others]
    if not book.plan(names):
        return
    try:
        served = Served(model(config, form, device, max(plan.contexts)), plan)
    except Exception as error:
        return book.fail(names, error)
    ways = {"protocol": served.protocol, "infill": served.infill, "race": served.race, "steps": served.step}
    for name in names:
        fields = {n: v for n, v in name.items() if n not in ("measure", "form")}
        way = partial(ways[name["measure"]], **fields)
        book.measure(name, partial(by_formulas, served.model, plan) if name == formulas else way)


def by_formulas(model: DiffusionGemma, plan: Plan) -> Line:
    """The protocol as served, without the block sizes that were measured on this card."""
    with tuned.using([]):
        return Served(model, plan).protocol(WAYS[1])


def show(book: Book, form: str) -> None:
    times = ("p50_ms", "p95_ms", "n", "floor_ms", "of_floor", "replayed")
    if form == TRANSFORMERS:
        return table("A step of Transformers, bf16", ("context", "canvas", *times[:3]), book.lines(form=form))
    columns = ("way", "forwards", "ms_a_forward", "tokens_s", "tokens_s_with_prompt", "prompt_ms", *times)
    lines = [*book.lines(measure="protocol", form=form), VLLM, AIM]
    table(f"{form}: canvases of fixed work; times of one with its commit", columns, lines)
    columns = ("context", "pins", "slots", "steps", *times)
    table(f"{form}: a key after a warm context, and its whole canvas", columns, book.lines(measure="infill", form=form))
    columns = ("context", "rows", *times, "unrecorded_p50_ms", "unrecorded_p95_ms")
    table(f"{form}: a key, and all lengths of a hole of {HOLE} tokens", columns, book.lines(measure="race", form=form))
    columns = ("context", "canvas", "gb", "gflop", *times, "gb_s", "unrecorded_p50_ms", "unrecorded_p95_ms", "held_gib")
    table(f"{form}: a step", columns, book.lines(measure="steps", form=form))


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("forms", nargs="*", default=[*FORMS, TRANSFORMERS], help="of bf16, fp8, nvfp4, transformers")
    arguments = parser.parse_args()
    if unknown := set(arguments.forms) - {*FORMS, TRANSFORMERS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    config, plan = sizes(tiny=arguments.tiny), TINY if arguments.tiny else Plan()
    book = Book(arguments.book, arguments.device, arguments.seconds)
    for form in arguments.forms:
        measure(book, plan, config, form, arguments.device)
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
    for form in arguments.forms:
        show(book, form)
    layers = kept(Config.read(config))
    for context in plan.contexts:
        print(f"keys and values of {context:,} tokens: {memory.of_context(layers, context, 2) / memory.GIB:.2f} GiB")
    return book.report(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
