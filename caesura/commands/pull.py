"""`caesura models pull`: show the size of a hub's model, download it, and make it available by name."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from caesura import hub, model_store
from caesura.commands import CommandFailed
from caesura.commands.models import added, called, check, check_family, link, place, taken
from caesura.model_store.reading import UnusableModel

SPARE = 100_000_000  # bytes of disk that stay free after a download
FREE = frozenset(  # the hub's identifiers of licences that allow any use
    {
        *("apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "unlicense", "cc0-1.0", "wtfpl"),
        *("cc-by-4.0", "cc-by-sa-4.0", "mpl-2.0", "gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "ms-pl"),
    }
)


def pull(options: argparse.Namespace) -> None:
    name, _, revision = options.model.partition("@")
    target = place(options.name or called(name.partition("/")[2]))
    if target.is_symlink() or (target.exists() and not _is_of(target, name)):
        raise taken(target)
    try:
        model = hub.find(name, revision or None)
        _supported(model)
        _show(model)
        _agreed(model, options.yes)
        hashes = _download(model)
        hub.remember(model, revision or None)
    except hub.HubError as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        raise CommandFailed(f"Interrupted; to finish, {hub.AGAIN}.") from None
    check(model.folder)
    _install(model, hashes, target)
    about = {"path": str(target), "repository": name, "revision": model.commit, "licence": model.licence}
    added(target, about if options.json else None)


def _is_of(folder: Path, name: str) -> bool:
    """True if a folder comes from a repository; a pull may then replace it."""
    try:
        return model_store.manifest(folder).repository == name
    except UnusableModel:
        return False


def _supported(model: hub.Repository) -> None:
    """Fetch the small file that names the family first, so that nobody downloads gigabytes that cannot be loaded."""
    hub.fetch(model, next(file for file in model.files if file.name == hub.CONFIG), lambda _: None)
    check_family(model.folder)


def _show(model: hub.Repository) -> None:
    """Print size, memory and licence. Raises CommandFailed if the disk is too small."""
    memory = f"{_size(model.weights)} of weights as stored (GPU)"
    if 0 < model.parameters < model.weights / 1.5:  # stored in 16 bits or more
        eight, four = (_size(int(model.parameters * bits / 8)) for bits in (8.5, 4.5))
        memory += f", {eight} in 8 bits (CPU), {four} in 4 bits and a little more (convert --to int4)"
    rows = {
        "download": f"{_size(model.missing)} of {_size(sum(file.size for file in model.files))}",
        "memory": f"{memory}, and its context",
        "licence": model.licence or "not stated",
    }
    print(f"{model.name} at {model.commit[:12]}", file=sys.stderr)
    for word, text in rows.items():
        print(f"  {word:10}{text}", file=sys.stderr)
    if (free := hub.cache.room()) < model.missing + SPARE:
        what = f"The download takes {_size(model.missing)}, and {hub.cache.root()} has {_size(free)} free"
        raise CommandFailed(f"{what}; free some space, or set HF_HOME to a folder on a larger disk.")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _agreed(model: hub.Repository, yes: bool) -> None:
    """Ask about a licence that is not free. Raises CommandFailed unless the user agrees."""
    if yes or model.licence.lower() in FREE:
        return
    stated = f"has the licence {model.licence}, which is not a free one" if model.licence else "states no licence"
    if not sys.stdin.isatty():
        raise CommandFailed(f"{model.name} {stated}; read {model.page} and add --yes if you agree.")
    print(f"{model.name} {stated}; read {model.page}. Download it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was downloaded.")


def _download(model: hub.Repository) -> Mapping[str, str]:
    """Download all files. Returns their sha256 by name."""
    hashes, done = dict[str, str](), 0
    with _bar(sum(file.size for file in model.files)) as bar:
        for file in model.files:
            bar.update(bar.task_ids[0], description=file.name)
            hashes[file.name] = hub.fetch(model, file, partial(_seen, bar, done))
            done += file.size
    return hashes


def _seen(bar: Progress, before: int, size: int) -> None:
    bar.update(bar.task_ids[0], completed=before + size)


@contextmanager
def _bar(total: int) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        bar.add_task("", total=total)
        yield bar


def _install(model: hub.Repository, hashes: Mapping[str, str], target: Path) -> None:
    """Make the new folder (links into the cache and a manifest) next to the old one, then exchange them."""
    about = {"repository": model.name, "revision": model.commit, "licence": model.licence, "files": dict(hashes)}
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as work:
        made = Path(work, target.name)
        made.mkdir()
        for name in hashes:
            link(model.folder / name, made / name, shutil.copy)
        (made / model_store.MANIFEST).write_text(json.dumps(about, indent=1) + "\n")
        if target.exists():
            os.replace(target, Path(work, "former"))
        os.replace(made, target)
