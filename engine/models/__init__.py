"""The families of models; `load` finds a checkpoint's in a table (families.py) and returns a `Model`.

What the families share (canvas, samplers, locks, lengths, cache policy) lives outside this folder.
"""

from collections.abc import Callable

from caesura.engine.model import LoadChoice, Model, ModelError, Quantise
from caesura.engine.models.folder import read
from caesura.engine.models.pairing import pair
from caesura.engine.weights.forms import OF as FORMS
from caesura.kernels.cpu import NoVariant
from caesura.model_store.reading import UnusableModel, quoted


def load(
    name: str,
    device: str = "auto",
    context: int | None = None,
    *,
    exact: bool = False,
    radius: int | None = None,
    quantise: Quantise | None = None,
    draft: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Model:
    """A model by name or path (`caesura/model_store`), with the choices of `LoadChoice`, and another one, `draft`,
    whose canvas drafts for it, or a drafter that was trained for it. Raises ModelError with one sentence for the user.
    """
    if quantise is not None and quantise not in FORMS:
        raise ModelError(f"Weights cannot be kept as {quoted(quantise)}; choose {', '.join(FORMS)}.")
    choice = LoadChoice(device, context, exact, radius, quantise, progress=progress)
    try:
        if draft is None:
            return read(name, choice)
        return pair(name, draft, choice)
    except (UnusableModel, NoVariant) as error:
        raise ModelError(" ".join(str(error).split())) from error
