"""What the engine's tests run on instead of a checkpoint: a tiny random model made by code, and one that says what it
is told. Nothing here knows more of the engine than its `Model` protocol.
"""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from caesura import wire
from caesura.engine.cache import KV, Cache, Kept
from caesura.engine.canvas.layout import Layout, lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.device import Host
from caesura.engine.methods.uniform.renoise import statistics
from caesura.engine.model import Drafter, Model, ModelSpec, Run
from caesura.engine.noise import Absorbing, Noise
from caesura.engine.scheduler import Event, Scheduler
from caesura.engine.scores.tensors import TensorScores
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.kernels.head import Rows, Seen

from .trained import CODE as CODE
from .trained import VOCABULARY, train_tokenizer

CONFIG = {
    "model_type": "block_llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "intermediate_size": 96,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "separator": "<file_sep>",
}


def script(name: str) -> ModuleType:
    """A file of training/, which is no package."""
    path = Path(__file__).parents[3] / "training" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(folder: Path, seed: int = 0) -> Path:
    """A whole model folder, under 1 MB."""
    trained = folder.with_suffix(".json")
    train_tokenizer(trained)
    script("scratch").write(folder, {**CONFIG, "name": "tiny"}, trained, seed)
    return folder


class Plain:
    """A model whose hidden rows are its logits, and what a family of uniform noise is asked."""

    drafter: Drafter | None = None
    drafting: Model | None = None

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        raise NotImplementedError

    def denoise(self, runs: Sequence[Run]) -> TensorScores:
        return TensorScores(self.hidden(runs))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def observe(self, rows: Rows) -> Seen:
        z = rows.hidden + rows.bans[rows.which]
        best, *rest = (values[0] for values in statistics(z / rows.temperature[:, None]))
        found = self.score(z, best), z.logsumexp(-1), rows.hidden.logsumexp(-1)
        return Seen(best, *rest, *found, torch.ones(len(z), 1), z.shape[1], torch.zeros(len(z), 1))

    def score(self, hidden: Tensor, ids: Tensor) -> Tensor:
        return hidden.gather(1, ids[:, None])[:, 0]

    def draw(self, rows: Rows, seen: Seen, at: Tensor, wanted: Tensor) -> Tensor:
        p = ((rows.hidden + rows.bans[rows.which]) / rows.temperature[:, None]).softmax(-1)
        return (p.cumsum(-1) < at[:, None]).sum(-1)

    def condition(self, logits: Tensor) -> None:
        """It has said all."""

    def embedded(self, ids: Tensor) -> None:
        """As `condition`."""


class Still(Plain):
    """A `Model` without weights, which only takes context."""

    name, device, machine, kernels = "still", "cpu", Host(), ""
    spec = ModelSpec(None, "verify", max_context=768, chunk=64, tail=4, head=12)

    def cache(self) -> Cache:
        return Cache([Kept(1, 1)])

    def prefill(self, ids: Sequence[int], kv: KV) -> None:
        kv.reserve(len(ids))
        kv.ids += ids
        kv.length += len(ids)


class Scripted(Still):
    """Answers each slot from a list, with logits of `sure` over zero, and null after its end. Left to right it has no
    opinion."""

    name = "scripted"

    def __init__(self, tokenizer: Tokenizer, answer: Sequence[int], noise: Noise | None = None, sure: float = 20.0):
        self.tokenizer, self.answer, self.sure = tokenizer, list(answer), sure
        noise = noise or Absorbing(tokenizer.size)
        self.spec = replace(
            self.spec,
            noise=noise,
            method=noise.method,
            lengths="null" if noise.absorbing else "race",
            null_id=tokenizer.size + 1 if noise.absorbing else None,
            separator=(tokenizer.special("<file_sep>"),),
        )
        self.width = tokenizer.size + (2 if noise.absorbing else 0)

    def forward(self, trees: Sequence[Run], canvases: Sequence[Run] = ()) -> tuple[TensorScores, TensorScores]:
        scores = self.denoise(canvases)
        for run in trees:
            assert run.ids, "a pass without rows"
            self.prefill(run.fresh, run.kv)
            run.kv.reserve(len(run.ids))
            run.kv.length += len(run.ids)
        return TensorScores(torch.zeros(sum(len(run.ids) for run in trees), self.tokenizer.size)), scores

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        rows = [torch.zeros(0, self.width)]
        for run in runs:
            self.prefill(run.fresh, run.kv)
            for slot in range(len(run.wanted if run.wanted is not None else run.ids)):
                rows.append(torch.zeros(1, self.width))
                token = self.answer[slot] if slot < len(self.answer) else self.spec.null_id
                rows[-1][0, 0 if token is None else token] = self.sure
        return torch.cat(rows)


class Clock:
    """Time as the tests will have it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def infill(job: str, prefix: str, suffix: str = "", *segments: wire.Text | wire.Hole, **more: object) -> wire.Infill:
    """A job in a document of its own, unless told otherwise."""
    fields = {"document": job, "segments": segments or (wire.Hole(16),), **more}
    return wire.Infill(job=job, prefix=prefix, suffix=suffix, **fields)  # type: ignore[arg-type]


def laid_out(
    model: Model, prefix: str, suffix: str, *segments: wire.Text | wire.Hole, slots: int, **more: object
) -> Layout:
    """A job's layout, as the scheduler makes it."""
    return lay(model, Vocabulary(model), infill("j", prefix, suffix, *segments, **more), slots)


def run(
    scheduler: Scheduler, jobs: Iterable[wire.Infill], clock: Callable[[], float] | None = None, peer: bytes = b"peer"
) -> dict[str, list[wire.EngineMessage]]:
    """Take the jobs at once, step until nothing is left, and return each job's events."""
    clock = clock or Clock()
    jobs = list(jobs)
    events: list[Event] = [event for job in jobs for event in scheduler.take(peer, job, clock())]
    for _ in range(400):
        if not scheduler.busy:
            break
        events += scheduler.step(clock)
    assert not scheduler.busy, "the jobs do not come to an end"
    assert {to for to, _ in events} <= {peer}
    return {job.job: [e for _, e in events if getattr(e, "job", None) == job.job] for job in jobs}


def done(events: Sequence[wire.EngineMessage]) -> wire.Done:
    """The answer, which comes last."""
    assert isinstance(events[-1], wire.Done), events[-1]
    return events[-1]


def alone(model: Model, job: wire.Infill) -> wire.Done:
    """The answer of a fresh engine."""
    return done(run(Scheduler(model), [job])[job.job])
