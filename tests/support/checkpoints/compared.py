"""Logits of a loaded model, to compare them with a reference's, and models in PyTorch to compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from caesura.engine.model import Model, Run, Verifier
from caesura.engine.models import load
from caesura.engine.models.llama import published
from caesura.engine.models.llama.memory import FloatType
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scores import Scores
from caesura.engine.scores.host import HostScores
from caesura.engine.scores.tensors import TensorScores

from . import qwen


def logits(model: Model, ids: Sequence[int], context: int = 0) -> Tensor:
    """Logits to compare with a reference, float32 [rows, width], one row for each id after the first `context`. The
    first `context` ids are read left to right; the others see them and each other. A model of full visibility has no
    context; an autoregressive one reads all ids left to right. In a model of blocks every id sees its block and the
    blocks before it; the context is whole blocks. Raises ValueError if it is not."""
    if context % model.spec.block_size:
        raise ValueError(
            f"{context} ids are not whole blocks of {model.spec.block_size}; give {model.name} a multiple as context."
        )
    kv, rows = model.cache().lease([]), ids[context:]
    model.prefill(ids[:context], kv)
    positions = range(context, len(ids))
    if model.spec.noise is None:
        mask = np.tri(len(rows), dtype=np.bool_)
        return tensor(cast(Verifier, model).forward([Run(kv, rows, positions, mask)])[0])
    wanted = range(
        model.spec.shift, model.spec.shift + len(rows)
    )  # a row predicts the next position, also after the last row
    return tensor(model.denoise([Run(kv, rows, positions, wanted=wanted)]))


def tensor(scores: Scores) -> Tensor:
    """The logits of scores, wherever they were computed."""
    return torch.as_tensor(cast(TensorScores | HostScores, scores).logits)


def qwen_in(floats: FloatType, folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> BlockLlama:
    """The tiny Qwen2 checkpoint on a device with matrices in such floats, which on a CPU nobody has."""
    monkeypatch.setitem(published.FLOATS, device, floats)
    model = load(str(qwen.published(folder)), device)
    assert isinstance(model, BlockLlama)
    return model
