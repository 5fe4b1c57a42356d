"""The logits of a step stay where the model is: each search or canvas takes one copy of a few numbers from there. A
fake GPU counts the copies, and refuses operations of two devices as a GPU does."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from caesura.engine import models
from caesura.engine.model import Model, Verifier
from caesura.engine.scores import Scores
from caesura.engine.scores.tensors import TensorScores
from caesura.wire import Hole, Infill, Json

from ...support.checkpoints import compared, masked, qwen
from ...support.checkpoints.tiny import CODE, VOCABULARY, alone, infill

READS = {
    *(Tensor.cpu, Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__array__, Tensor.__contains__),
    *(Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__),
}
CUDA = torch.device("cuda")


class Far(Tensor):
    """On the GPU, with all that is computed of it. `copies`: how many numbers each copy to the CPU took."""

    copies: list[int]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return CUDA
        if func in READS or (func is Tensor.to and "cpu" in map(str, args)):
            cls.copies.append(args[0].numel())
            with torch._C.DisableTorchFunctionSubclass():
                return func(args[0].as_subclass(Tensor), *args[1:], **(kwargs or {}))
        parts = [part for arg in args for part in (arg if isinstance(arg, list | tuple) else (arg,))]
        near = [part for part in parts if type(part) is Tensor and part.ndim]
        assert not near or func in (Tensor.__getitem__, Tensor.__setitem__), f"{func.__name__} of two devices"
        return super().__torch_function__(func, types, args, kwargs or {})


class Gpu(TorchFunctionMode):
    """What is made on the GPU or moved there is far."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.to and "cuda" in map(str, args[1:]):
            return args[0].as_subclass(Far)
        if str(kwargs.get("device")) == "cuda":
            return func(*args, **{**kwargs, "device": "cpu"}).as_subclass(Far)
        return func(*args, **kwargs)


class InTensors:
    """A model whose scores are in torch."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, *runs: Any) -> tuple[TensorScores, ...]:
        return tuple(map(self.scores, cast(Verifier, self.model).forward(*runs)))

    def denoise(self, runs: Any) -> TensorScores:
        return self.scores(self.model.denoise(runs))

    def scores(self, found: Scores) -> TensorScores:
        return TensorScores(compared.tensor(found))


class Away(InTensors):
    """The same on the GPU. `asked`: the searches and canvases of its forwards."""

    device, asked = "cuda", 0

    def forward(self, *runs: Any) -> tuple[TensorScores, ...]:
        self.asked += sum(map(len, runs))
        return super().forward(*runs)

    def denoise(self, runs: Any) -> TensorScores:
        self.asked += len(runs)
        return super().denoise(runs)

    def scores(self, found: Scores) -> TensorScores:
        return TensorScores(compared.tensor(found).as_subclass(Far))  # type: ignore[arg-type]


def copied(model: Model, job: Infill) -> tuple[list[int], int]:
    """The copies of a job whose answer is that of the CPU, and how many searches and canvases its forwards had."""
    here, away, Far.copies = alone(InTensors(model), job), Away(model), []  # type: ignore[arg-type]
    with Gpu():
        there = alone(away, job)  # type: ignore[arg-type]
    assert there.holes == here.holes
    return Far.copies, away.asked


SEARCHED: dict[str, dict[str, Any]] = {
    "search": {},
    "another answer": {"seed": 3},
    "left to right": {"sampler": "left_to_right"},
    "grammar": {"segments": (Hole(32, "block", Json(schema=0)),), "schemas": ('{"required": ["name"]}',)},
}


@pytest.mark.parametrize("fields", SEARCHED.values(), ids=SEARCHED)
def test_a_search_copies_a_few_numbers_a_pass(tmp_path: Path, fields: dict[str, Any]) -> None:
    model = models.load(str(qwen.published(tmp_path)), "cpu")
    job = infill("a", "def total(x):\n    retu", "\n\nprint(1)\n", **{"segments": (Hole(6),)} | fields)
    copies, passes = copied(model, job)
    assert len(copies) == passes
    assert max(copies) < VOCABULARY, "less than the log-probabilities of one row"


@pytest.mark.parametrize("sampler", ["entropy", "threshold", "wino", "p2"])
def test_a_canvas_copies_a_few_numbers_a_step(tmp_path: Path, sampler: str) -> None:
    model = models.load(str(masked.published(tmp_path, "dream")), "cpu")
    copies, canvases = copied(model, infill("a", "", "\ny = 1\n", Hole(12), sampler=sampler))
    assert len(copies) == canvases
    assert max(copies) < VOCABULARY, "less than the logits of one slot"
    copies, canvases = copied(model, infill("a", CODE[:200] + "\nx =", "\ny = 1\n", Hole(12), sampler=sampler))
    best = 3  # numbers of a best token
    assert len([count for count in copies if count > best]) == canvases, "and the tokens of a healed start, one by one"


@pytest.mark.parametrize("sampler", ["ancestral", "first_hitting"])
def test_a_sampler_that_draws_from_whole_distributions_draws_there(tmp_path: Path, sampler: str) -> None:
    model = models.load(str(masked.published(tmp_path, "dream")), "cpu")
    copies, _ = copied(model, infill("a", CODE[:200] + "\nx =", "\ny = 1\n", Hole(12), sampler=sampler))
    assert max(copies) < VOCABULARY
