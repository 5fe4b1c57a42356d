"""Work on a model's files that begins before the engine is imported and goes on during that."""

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
    """Read the tokenizer of a model that has a manifest, and hash its files, but none whose tensors are packed, which
    takes longer anyway. `done` raises their errors."""
    with suppress(model_store.NoModel, UnusableModel):
        folder = model_store.locate(model)
        todo: list[tuple[Callable[[Path], Any], Path]] = [(Tokenizer, folder / "tokenizer.json")]
        files = model_store.manifest(folder).files
        hashed = (
            name for name in files if name.endswith(model_store.TILES) or Path(name).suffix not in model_store.WEIGHTS
        )
        todo += [(model_store.sha256, folder / name) for name in hashed]
        pool = ThreadPoolExecutor(1, "ahead")
        for work, path in todo:
            if path.is_file():
                _begun[work, path] = pool.submit(work, path)
        pool.shutdown(wait=False)


def done(work: Callable[[Path], Result], path: Path) -> Result:
    """The result of `work` for a file; work that was begun is used once. Raises what `work` raises."""
    begun = _begun.pop((work, path), None)
    return begun.result() if begun else work(path)
