"""Parts of Caesura that are installed only on request, and the sentence for a user who lacks one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import caesura
from caesura.model_store.reading import UnusableModel

PYTORCH = ("torch", "safetensors")  # packages of the extra `torch`


class TorchUse(NamedTuple):
    """Something that computes in PyTorch: `what` begins a sentence, `instead` is another way, if there is one."""

    what: str
    instead: str = ""


GPU = TorchUse("A GPU", "use `--device cpu`")
CONVERT = TorchUse("`caesura models convert`")
ASKED_KERNELS = TorchUse("CAESURA_CPU=torch", "unset it")
NO_LIBRARY = TorchUse("Without its C library, Caesura", "install gcc 11 or clang and then Caesura again (faster)")
OTHERS = "use `coder` or a dense model of the Llama kind"


class NoTorch(UnusableModel):
    """PyTorch is not installed, and something needs it."""


def model(name: str) -> TorchUse:
    """A model whose form or layers our C does not compute."""
    return TorchUse(f"The model {name}", OTHERS)


def family(model_type: str) -> TorchUse:
    """All models of a type."""
    return TorchUse(f"A model of type {model_type}", OTHERS)


@contextmanager
def pytorch_for(use: TorchUse) -> Iterator[None]:
    """Imports inside may need PyTorch. Raises NoTorch if they do and it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PYTORCH:
            raise
        instead = f", or {use.instead}" if use.instead else ""
        raise NoTorch(f"{use.what} needs PyTorch: {install('torch')}{instead}.") from error


def install(extra: str) -> str:
    """How an extra is installed, as a part of a sentence."""
    clone = Path(caesura.__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"run `{sys.executable} -m pip install -e '{clone}[{extra}]'`"
    return f"run `pip install 'caesura[{extra}]'`"
