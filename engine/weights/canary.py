"""The canary of a small model: what it said of one short text when it was made, kept in its manifest and asked again
where it is loaded. It finds a machine that computes something else: a broken kernel, a wrong build, bad memory. Damaged
files are for `stored.py`; published checkpoints have a longer canary, asked on request: `audit.py`.
"""

from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import torch
from torch import Tensor

from caesura.engine.models import Model, ModelError, Run, Verifier
from caesura.engine.noise import Absorbing, Uniform
from caesura.models import MANIFEST

TEXT = "def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result\n"
CONTEXT = 12  # tokens of the text that are read
ROWS = 12  # of the canvas after them: its tail from the text, then slots; without a canvas, the text backwards
# Nats by which the middle row's probability may differ. Between CPUs with and without AVX512, bfloat16 attention and
# int8 kernels it is 0.11 at most for `small`, 0.07 for `coder`; of `small` 0.96 without positions, 2.2 and 8.6 where
# every product has noise of a tenth and of three tenths, 11.8 without attention. A single row may differ by 1 on a CPU
# that is right.
TOLERANCE = 0.5

CanaryId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Few = msgspec.Meta(min_length=1, max_length=64)


class Canary(msgspec.Struct, frozen=True):
    """Tokens of the context and of the canvas; of each canvas row, its best token and that one's log-probability."""

    context: Annotated[list[CanaryId], Few]
    canvas: Annotated[list[CanaryId], Few]
    best: Annotated[list[CanaryId], Few]
    logp: Annotated[list[float], Few]


class Manifest(msgspec.Struct, frozen=True):
    """What is read of a manifest here."""

    canary: Canary | None = None


def record(model: Model) -> dict[str, Any]:
    """The canary of this model, for its manifest."""
    assert not isinstance(model.noise, Uniform), "a model of uniform noise has the canary of audit.py"
    tail = model.tail if isinstance(model.noise, Absorbing) else ROWS
    ids = model.tokenizer.encode(TEXT)[: CONTEXT + tail]
    context, canvas = ids[:CONTEXT], ids[CONTEXT:]
    if isinstance(model.noise, Absorbing):
        canvas += [model.noise.mask_id] * (ROWS - len(canvas))
    else:
        canvas.reverse()  # predictable text scores well even if positions are broken
    logp, best = _asked(model, context, canvas).max(-1)
    rounded = [round(value, 3) for value in logp.tolist()]
    return {"context": context, "canvas": canvas, "best": best.tolist(), "logp": rounded}


def check(model: Model, folder: Path) -> None:
    """Raises ModelError where the canary in the folder's manifest is not answered as recorded. A model without one is
    not asked."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return
    damaged = ModelError(f"{manifest} is damaged; install the model again.")
    try:
        canary = msgspec.json.decode(manifest.read_bytes(), type=Manifest).canary
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged from error
    if canary is None:
        return
    rows = len(canary.canvas)
    if (len(canary.best), len(canary.logp)) != (rows, rows):
        raise damaged
    if max(*canary.context, *canary.canvas, *canary.best) >= model.width:
        raise damaged
    found = _asked(model, canary.context, canary.canvas).gather(1, torch.tensor(canary.best)[:, None])[:, 0]
    off = float((found - torch.tensor(canary.logp)).abs().median())
    if not off <= TOLERANCE:  # of NaN too
        raise ModelError(
            f"The model {model.name} does not say here what it said when it was made ({off:.1f} nats apart), though "
            "its files are whole; reinstall torch, and if that does not help, test this machine's memory."
        )


def _asked(model: Model, context: list[int], canvas: list[int]) -> Tensor:
    """Log-probabilities [rows, width] of a canvas, or of what follows each row where the model has none, from one pass
    over the weights that reads the context too."""
    mask = torch.ones(len(canvas), len(canvas), dtype=torch.bool).tril() if model.noise is None else None
    kv, positions = model.cache().lease(context), range(len(context), len(context) + len(canvas))
    run = Run(kv, canvas, positions, mask, fresh=context)
    logits = model.denoise([run]) if model.noise is not None else cast(Verifier, model).forward([run])[0]
    return logits.float().cpu().log_softmax(-1)
