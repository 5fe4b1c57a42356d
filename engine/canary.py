"""The canary of a small model: its answers to one short text, recorded in its manifest and asked again on each load. It
finds a machine that computes something else: a broken kernel, a wrong build, bad memory. `stored.py` finds damaged
files; published checkpoints have a longer canary, asked on request (`audit.py`).
"""

from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np

from caesura.engine.model import Model, ModelError, Run, Verifier
from caesura.engine.noise import Absorbing, Uniform
from caesura.engine.scores import Scores, told
from caesura.model_store import MANIFEST
from caesura.model_store.reading import UnusableModel, decoded

TEXT = "def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result\n"
CONTEXT = 12  # tokens of the text that are context
ROWS = 12  # rows of the canvas after it: its tail from the text, then slots; without a canvas, the text backwards
# Allowed difference of the median row's log-probability, in nats. Between CPUs with and without AVX512, bfloat16
# attention and int8 kernels it is at most 0.11 for `small` and 0.07 for `coder`. Faults of `small` give 0.96 (no
# positions), 2.2 and 8.6 (noise of 0.1 and 0.3 in every product), 11.8 (no attention). A single row may differ by 1 on
# a correct CPU.
TOLERANCE = 0.5

CanaryId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Few = msgspec.Meta(min_length=1, max_length=64)


class Canary(msgspec.Struct, frozen=True):
    """Tokens of the context and of the canvas; of each canvas row, its best token and that one's log-probability."""

    context: Annotated[list[CanaryId], Few]
    canvas: Annotated[list[CanaryId], Few]
    best: Annotated[list[CanaryId], Few]
    logp: Annotated[list[float], Few]


class CanaryManifest(msgspec.Struct, frozen=True):
    """The part of a manifest that is read here."""

    canary: Canary | None = None


def record(model: Model) -> dict[str, Any]:
    """The canary of this model, for its manifest."""
    assert not isinstance(model.spec.noise, Uniform), "a model of uniform noise has the canary of audit.py"
    tail = model.spec.tail if isinstance(model.spec.noise, Absorbing) else ROWS
    ids = model.tokenizer.encode(TEXT)[: CONTEXT + tail]
    context, canvas = ids[:CONTEXT], ids[CONTEXT:]
    if isinstance(model.spec.noise, Absorbing):
        canvas += [model.spec.noise.mask_id] * (ROWS - len(canvas))
    else:
        canvas.reverse()  # predictable text scores well even if positions are broken
    (best,) = told(_asked(model, context, canvas).best(1))
    rounded = [round(value, 3) for value in best.logp[:, 0].tolist()]
    return {"context": context, "canvas": canvas, "best": best.ids[:, 0].tolist(), "logp": rounded}


def check(model: Model, folder: Path) -> None:
    """Raises ModelError if the model does not answer the canary in the folder's manifest as recorded. Without a canary
    nothing is checked."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        return
    damaged = ModelError(f"{manifest} is damaged; install the model again.")
    try:
        canary = decoded(manifest, CanaryManifest).canary
    except UnusableModel as error:
        raise ModelError(str(error)) from error
    if canary is None:
        return
    rows = len(canary.canvas)
    if (len(canary.best), len(canary.logp)) != (rows, rows):
        raise damaged
    if max(*canary.context, *canary.canvas, *canary.best) >= model.width:
        raise damaged
    (found,) = told(_asked(model, canary.context, canary.canvas).logp(range(rows), canary.best))
    off = float(np.quantile(np.abs(found - np.array(canary.logp)), 0.5, method="lower"))
    if not off <= TOLERANCE:  # true for NaN too
        raise ModelError(
            f"The model {model.name} does not give its recorded answers on this machine ({off:.1f} nats apart), though "
            "its files are intact; install Caesura again, and if that does not help, test this machine's memory."
        )


def _asked(model: Model, context: list[int], canvas: list[int]) -> Scores:
    """Scores of a canvas, or of the token after each row if the model has no canvas, from one pass that also reads the
    context."""
    mask = np.tri(len(canvas), dtype=np.bool_) if model.spec.noise is None else None
    kv, positions = model.cache().lease(context), range(len(context), len(context) + len(canvas))
    run = Run(kv, canvas, positions, mask, fresh=context)
    return model.denoise([run]) if model.spec.noise is not None else cast(Verifier, model).forward([run])[0]
