"""The devices of models. A GPU's answers come from torch, which is imported for them alone."""

import ctypes
import sys

from caesura.engine.device import Device, Host
from caesura.engine.model import ModelError
from caesura.model_store import extras

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class Gpu:
    """See `Device`. `name` as torch has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<Gpu {self._name}>"

    def free(self) -> int | None:
        import torch

        return int(torch.cuda.mem_get_info(self._name)[0])

    def give_back(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def lost(self, error: Exception) -> bool:
        import torch

        return isinstance(error, torch.AcceleratorError)


def device_of(name: str) -> Device:
    """The device of that name. Weights on `meta`, which have no values, are counted as the host's."""
    return Gpu(name) if name.startswith("cuda") else Host()


def chosen(device: str) -> str:
    """The device to use, for a name or "auto". Raises UnusableModel if there is no such device."""
    if device == "auto":
        return "cuda" if has_gpu() else "cpu"
    if device.startswith("cuda"):
        with extras.pytorch_for(extras.GPU):
            import torch
        if not torch.cuda.is_available():
            raise ModelError("There is no CUDA device that this torch can use; try `--device cpu`.")
    return device


def has_gpu() -> bool:
    """True if torch can use a GPU. It takes a second to import, so it is asked only where there is a driver."""
    try:
        ctypes.CDLL(DRIVER)
        import torch
    except (OSError, ModuleNotFoundError):
        return False
    return torch.cuda.is_available()
