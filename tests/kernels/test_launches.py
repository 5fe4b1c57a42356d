"""A recorded step of DiffusionGemma's real shape, and a recorded pass of a 7B code model, launch as many kernels as
gpu/README.md and docs/models.md say. Launched singly, the launches are their time.

The step runs on meta tensors, which have shapes and no memory. Triton's kernels are counted where they are launched,
PyTorch's where an operator is dispatched. cuBLAS and PyTorch may launch several kernels in one call; that is not seen.
"""

import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from caesura.engine.methods.uniform import renoise
from caesura.engine.models.llama import config, trunk
from caesura.engine.models.llama.gpu.passes import ROWS as ROWS_OF_PASSES
from caesura.kernels import attention, decision, experts, fp8, gated, head, matmul, norms, rotary

pytest.importorskip("triton")

GPU = Path(__file__).parents[2] / "gpu"
FORMS = {"bf16": "bf16", "FP8": "fp8", "FP8, activations as they come": "fp8-exact", "NVFP4": "nvfp4"}
ROWS = (256, 64, 32)
PROCESSORS = 132  # of an H100 or H200
ALLOCATIONS = ("empty", "empty_like", "new_empty", "empty_strided")


class Launches(TorchDispatchMode):
    """Counts by name what a GPU would have to launch."""

    def __init__(self) -> None:
        super().__init__()
        self.names = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:
            made = func.decompose(*args, **kwargs or {})  # inference mode hides what a composite operator calls
        if made is not NotImplemented:
            return made
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in (*ALLOCATIONS, "_unsafe_view"):
            self.names[name] += 1
        return func(*args, **kwargs or {})


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """With every kernel on, as on a GPU, and none of them run."""
    from triton.runtime.jit import KernelInterface

    found = Launches()
    for module in (attention, decision, experts, fp8, gated, head, matmul, norms, renoise, rotary):
        monkeypatch.setattr(module, "fused", lambda *_, **__: True)
    for splitting in (attention, matmul):
        monkeypatch.setattr(splitting, "capacity", lambda _: (PROCESSORS, True))
    count = found.names.update
    monkeypatch.setattr(KernelInterface, "__getitem__", lambda kernel, _: lambda *_, **__: count([kernel.fn.__name__]))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_recorded_step_has_the_launches_that_are_documented(
    launches: Launches, form: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it has fewer now, write the new number into both pages."""
    monkeypatch.syspath_prepend(str(GPU))
    stand_in = import_module("stand_in")
    model = stand_in.model(stand_in.sizes(tiny=False), FORMS[form], "meta", 8192)
    step, found = stand_in.step(model, rows), launches.names
    step()  # as before a capture: what is computed once for all steps is there then
    found.clear()
    with launches:
        step()
    assert found.total() == documented("launches")[form][ROWS.index(rows)], found.most_common()


def test_a_recorded_pass_of_a_code_model_has_the_launches_that_are_documented(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, of any size."""
    for folder in (GPU, GPU.with_name("bench")):
        monkeypatch.syspath_prepend(str(folder))
    for module in (trunk, config):
        monkeypatch.setattr(module, "on_gpu", lambda device: True)
    causal = import_module("causal")
    every = causal.recorded(causal.model("7B", "meta", tiny=False))
    assert len(every) == len(ROWS_OF_PASSES)
    for recorded in every:
        launches.names.clear()
        with launches:
            recorded.replay()
        assert launches.names.total() == documented("passes")["bf16"][0], launches.names.most_common()


def test_the_page_about_models_has_the_same_numbers() -> None:
    steps, passes = documented("launches"), documented("passes")
    page = " ".join((GPU.with_name("docs") / "models.md").read_text().split())
    found = re.search(
        r"step launches (\d+) kernels in FP8 and bf16, (\d+) in NVFP4 and in FP8 with activations as", page
    )
    assert found
    for forms, number in zip(
        (("FP8", "bf16"), ("NVFP4", "FP8, activations as they come")), found.groups(), strict=True
    ):
        assert {count for form in forms for count in steps[form]} == {int(number)}, "for all rows alike"
    assert f"pass of the 7B code model launches {passes['bf16'][0]} kernels in bf16" in page


def documented(table: str) -> dict[str, list[int]]:
    """The launches in a table, by form: of a step of ROWS, or of any pass."""
    text = (GPU / "README.md").read_text()
    found = re.search(rf"<!-- table: {table} -->\n(.*?)<!-- end -->", text, re.S)
    assert found
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in found[1].splitlines()]
    assert table != "launches" or lines[0][1:] == [f"{rows} rows" for rows in ROWS]
    return {name: [int(number.replace(",", "")) for number in numbers] for name, *numbers in lines[2:]}
