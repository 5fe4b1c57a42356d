"""Open a GGUF file, whatever its architecture."""

from pathlib import Path

from caesura.engine.weights.gguf import reader
from caesura.engine.weights.gguf.file import GEMMA, GGUF
from caesura.model_store import extras


def opened(path: Path) -> GGUF:
    """A model in the words of the hub, by its architecture. Raises WeightsError or NoTorch."""
    parts = reader.parts(path)
    if reader.value(path, parts[0], "general.architecture") != GEMMA:
        return GGUF(path, parts)
    with extras.pytorch_for(extras.family("diffusion_gemma")):
        from caesura.engine.weights.gguf.gemma import GemmaGGUF
    return GemmaGGUF(path, parts)
