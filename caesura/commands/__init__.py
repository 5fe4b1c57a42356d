"""The commands, one module a subject. Each takes the parsed options; a failure is an exception with one sentence."""

import os


class CommandFailed(Exception):
    """The command cannot do what was asked; the message is a sentence for the user."""


class Unsure(CommandFailed):
    """All that is proposed is less likely than what was asked for."""


def draft(model: str | None) -> None:
    """Have a model draft in the engine that this command uses. Raises model_store.NoModel."""
    from caesura import model_store

    if model:
        os.environ["CAESURA_DRAFT"] = model_store.resolve(model)
    if drafting := model_store.drafting():
        model_store.locate(drafting)


def explain(error: Exception) -> str | None:
    """The sentence of a failure that a user can act on; None for a fault of our own, which deserves its traceback."""
    from caesura import model_store, paths
    from caesura.client.backend import EngineError, EngineFailed
    from caesura.ipc import rendezvous

    if isinstance(error, EngineFailed) and error.code == "expired":
        return f"{error} Allow more time with --deadline-ms."
    expected = (CommandFailed, EngineError, model_store.NoManifest, model_store.NoModel, rendezvous.NoPlace)
    if isinstance(error, (*expected, paths.UnsafeFolder, paths.DamagedFile)):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}."
    return None
