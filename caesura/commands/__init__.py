"""The commands, a module for each subject. They take the parsed options and fail with an exception of one sentence."""

import os


class CommandFailed(Exception):
    """The command failed; the message is a sentence for the user."""


class Unsure(CommandFailed):
    """Every fill is less likely than the user asked for."""


def draft(model: str | None) -> None:
    """Choose the model that drafts in the engine of this command. Raises model_store.NoModel."""
    from caesura import model_store

    if model:
        os.environ["CAESURA_DRAFT"] = model_store.resolve(model)
    if drafting := model_store.drafting():
        model_store.locate(drafting)


def explain(error: Exception) -> str | None:
    """The sentence of a failure that the user can act on; None for a bug, which keeps its traceback."""
    from caesura import model_store, paths
    from caesura.client.backend import EngineError, EngineFailed
    from caesura.client.backends.named import NoKey
    from caesura.ipc import rendezvous
    from caesura.model_store.reading import UnusableModel

    if isinstance(error, EngineFailed) and error.code == "expired":
        return f"{error} Allow more time with --deadline-ms."
    expected = (CommandFailed, EngineError, NoKey, UnusableModel, model_store.NoModel, rendezvous.NoPlace)
    if isinstance(error, (*expected, paths.UnsafeFolder, paths.DamagedFile)):
        return str(error)
    return paths.reason(error) if isinstance(error, OSError) else None
