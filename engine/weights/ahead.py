"""Work on a model's files that begins before torch is imported and goes on during that. Imports no torch itself."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from caesura import model_store
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.model_store.reading import UnusableModel

Result = TypeVar("Result")

_begun = dict[tuple[Callable[[Path], Any], Path], Future[Any]]()


def begin(model: str) -> None:
    """Read the tokenizer of a model that has a manifest, and hash its files. `done` raises their errors."""
    with suppress(model_store.NoModel, UnusableModel):
        folder = model_store.locate(model)
        todo: list[tuple[Callable[[Path], Any], Path]] = [(Tokenizer, folder / "tokenizer.json")]
        todo += [(model_store.sha256, folder / name) for name in model_store.manifest(folder).files]
        pool = ThreadPoolExecutor(1, "ahead")
        for work, path in todo:
            if path.is_file():
                _begun[work, path] = pool.submit(work, path)
        pool.shutdown(wait=False)


def done(work: Callable[[Path], Result], path: Path) -> Result:
    """The result of `work` for a file; work that was begun is used once. Raises what `work` raises."""
    begun = _begun.pop((work, path), None)
    return begun.result() if begun else work(path)
