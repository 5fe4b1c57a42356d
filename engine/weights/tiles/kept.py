"""Tiles of a model: in its own folder, as an installed distribution has them, or in the user's cache. There they are
made when a model folder is first loaded, and mapped from then on: a start reads less, and engines share the memory.
Nothing depends on the cache: tiles that are missing, damaged or cannot be written are made again, or packed in memory.
"""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from caesura import model_store, paths
from caesura.engine.weights import stored
from caesura.engine.weights.packing import base_of
from caesura.engine.weights.stored import WeightsError
from caesura.engine.weights.tiles import Packing, Tiles
from caesura.engine.weights.tiles.file import NAMED, Mapped, write
from caesura.kernels.cpu import LAYOUT
from caesura.model_store import MANIFEST, TILES, sha256
from caesura.model_store.reading import UnusableModel

log = logging.getLogger(__name__)

M = TypeVar("M")

UNUSED = 30 * 24 * 3600  # seconds after its last use for which an entry of the cache is kept
VARIABLE = "XDG_CACHE_HOME"  # chooses the cache


class NoTiles(Exception):
    """The cache has no tiles of a model, or not what was written."""


def sources(folder: Path) -> dict[str, Packing]:
    """The sources of a model folder in our stored form: the base of both paths, and the adapter of the canvas if it has
    one. Raises UnusableModel."""
    found, adapter = {"base": Packing(base_of(folder))}, folder / "adapter.safetensors"
    return found | ({"adapter": Packing(stored.Stored(adapter))} if adapter.is_file() else {})


def place(folder: Path) -> Path:
    """Where the tiles of a model folder are, or would be: folders with equal files share them. LAYOUT has to be raised
    when the C library begins to make other tiles of the same files, by another layout or another rounding. Raises
    UnusableModel."""
    return paths.tiles() / f"{sha256(folder / MANIFEST)[:32]}-{LAYOUT}"


def loaded(folder: Path, sources: Callable[[], Mapping[str, Packing]], build: Callable[[Mapping[str, Tiles]], M]) -> M:
    """What `build` makes of a model folder's tiles: mapped from it or from the cache, or made now from its verified
    `sources`, which are asked for only then; or packed in memory. Files are hashed during `build`, which runs again if
    the cache's are damaged. Raises UnusableModel."""
    where = place(folder)
    used(where)
    if any(folder.glob(f"*{TILES}")):
        return checked(mapped(folder), build, partial(stored.verify, folder))
    with suppress(NoTiles):
        return from_cache(where, build)
    packings = sources()
    try:
        made(where, packings)
    except (OSError, paths.UnsafeFolder, WeightsError) as error:
        log.info("The tiles of %s are not kept (%s).", folder.name, error)
        return build(packings)
    with suppress(NoTiles):
        return from_cache(where, build)
    return build(packings)


def from_cache(where: Path, build: Callable[[Mapping[str, Tiles]], M]) -> M:
    """Raises NoTiles, or what `build` does."""
    try:
        paths.checked(where.parent, VARIABLE)
    except (OSError, paths.UnsafeFolder) as error:
        raise NoTiles from error
    try:
        tiles = mapped(where)
    except UnusableModel as error:
        raise removed(where) from error
    return checked(tiles, build, partial(check, where))


def checked(tiles: Mapping[str, Tiles], build: Callable[[Mapping[str, Tiles]], M], check: Callable[[], object]) -> M:
    """Build while a thread runs the check, whose error comes first: it may be why nothing can be built."""
    with ThreadPoolExecutor(1, "tiles") as pool:
        checking = pool.submit(check)
        try:
            return build(tiles)
        finally:
            checking.result()


def mapped(where: Path) -> dict[str, Tiles]:
    """The tiles of each source that the manifest of a folder names. Raises UnusableModel."""
    files = dict[str, dict[int, Path]]()
    for name in model_store.manifest(where).files:
        if found := NAMED.fullmatch(name):
            files.setdefault(found[1], {})[int(found[2])] = where / name
    return {source: Mapped(*(parts[number] for number in sorted(parts))) for source, parts in files.items()}


def made(where: Path, packings: Mapping[str, Packing]) -> None:
    """Write the tiles of the sources into a new folder, all or nothing. Two processes may do so at once: the first
    wins. Raises OSError, UnsafeFolder or WeightsError."""
    paths.private(where.parent, VARIABLE)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=where.parent))
    try:
        for name, packing in packings.items():
            write(making, name, packing)
        stored.write_manifest(making, {})
        making.rename(where)
    except OSError:
        if not where.is_dir():  # another process was first
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def used(where: Path) -> None:
    """Note that a start uses an entry of the cache, and remove those that none has used for long."""
    oldest = time.time() - UNUSED
    with suppress(OSError):
        os.utime(where)
    with suppress(OSError, paths.UnsafeFolder):
        for entry in paths.checked(where.parent, VARIABLE).iterdir():
            if entry.stat().st_mtime < oldest:
                shutil.rmtree(entry, ignore_errors=True)


def check(where: Path) -> None:
    """Raises NoTiles if files of an entry are missing or differ from its manifest."""
    try:
        differ = bool(model_store.damaged(where))
    except UnusableModel as error:
        raise removed(where) from error
    if differ:
        raise removed(where)


def removed(where: Path) -> NoTiles:
    """Remove what is left of an entry, so that it can be made again."""
    shutil.rmtree(where, ignore_errors=True)
    return NoTiles()
