"""A model's folder or file: where it is, what its config.json says, and the family that loads it."""

from pathlib import Path
from typing import Any, cast

from caesura.engine.model import LoadChoice, Model, ModelError
from caesura.engine.models.families import family
from caesura.model_store import NoModel, locate
from caesura.model_store.reading import fields


def read(name: str, choice: LoadChoice) -> Model:
    """A model by name or path. Raises UnusableModel or NoVariant."""
    path = folder_of(name)
    if path.is_file():
        return load_file(path, choice)
    config = read_config(path)
    return cast(Model, family(path, config).loader("load")(path, config, choice))


def load_file(path: Path, choice: LoadChoice) -> Model:
    """A model in a GGUF file, and the other parts of a split one. Raises UnusableModel or NoVariant."""
    from caesura.engine.weights.gguf.open import opened

    file = opened(path)
    return cast(Model, family(path, file.config).loader("load_gguf")(file, choice))


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises UnusableModel."""
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder} has no readable config.json; it is not a model folder.")
    return fields(path)


def folder_of(name: str) -> Path:
    """The folder or the file of a model. Raises ModelError."""
    try:
        return locate(name)
    except NoModel as error:
        raise ModelError(str(error)) from error
