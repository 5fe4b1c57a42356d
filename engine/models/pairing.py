"""Two models that are loaded together: the canvas of one drafts for the other, which verifies
(methods/verify/drafting.py)."""

from dataclasses import replace
from typing import cast

from caesura.engine import memory
from caesura.engine.model import LoadChoice, Model, ModelError, Verifier
from caesura.engine.models.families import is_drafter
from caesura.engine.models.folder import folder_of, read, read_config
from caesura.engine.noise import Uniform


def pair(name: str, draft: str, choice: LoadChoice) -> Model:
    """The model `name`, for which the model or the drafter `draft` drafts. Both are counted before either is read.
    Raises UnusableModel or NoVariant."""
    folder = folder_of(draft)
    if folder.is_dir() and is_drafter(folder, config := read_config(folder)):
        from caesura.engine.models.drafters import dflash  # it stands on BlockLlama

        return dflash.pair(name, folder, config, choice)
    found = list[Model]()

    def load(need: int) -> None:
        with memory.taken(need):
            found.append(read(draft, choice))

    model = read(name, replace(choice, beside=load))
    if not found:  # the shipped models are small and are not counted
        load(0)
    if problem := refusal(model, found[0]):
        raise ModelError(problem)
    cast(Verifier, model).drafting = found[0]
    return model


def refusal(base: Model, drafting: Model) -> str:
    """One sentence if the second model cannot draft for the first, else an empty string."""
    if isinstance(base.spec.noise, Uniform) or base.spec.visibility != "context":
        return f"The model {base.name} cannot verify drafts; take an autoregressive one as --model."
    if drafting.spec.noise is None:
        return f"The model {drafting.name} has no canvas and cannot draft; take a diffusion model as --draft."
    # Ids may differ, since drafts are text: `coder` has a part of Qwen's tokens.
    if not set(base.tokenizer.pieces) <= set(drafting.tokenizer.pieces):
        return f"{drafting.name} cannot draft for {base.name}: they have different tokenizers; take models of one kind."
    return ""
