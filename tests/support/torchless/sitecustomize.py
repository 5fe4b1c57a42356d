"""On PYTHONPATH this makes PyTorch and what comes with it impossible to import, as where they are not installed."""

import sys
from collections.abc import Sequence
from types import ModuleType

MISSING = ("torch", "safetensors", "triton", "transformers")


class NotInstalled:
    """A finder of modules."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())  # type: ignore[arg-type]
