"""The programs of a kernel, which a GPU runs in no particular order."""

import pytest


def run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on Triton's interpreter begins with the last program of a launch. On a GPU nothing changes."""
    from triton.runtime.interpreter import interpreter_builder

    def turned(x: int, y: int, z: int) -> None:
        sizes = interpreter_builder.grid_dim
        interpreter_builder.grid_idx = tuple(size - 1 - at for size, at in zip(sizes, (x, y, z), strict=True))

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", turned)
