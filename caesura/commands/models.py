"""`caesura models`: list, add, show, verify and convert models.

Only functions that read a published checkpoint import the engine, so that the others start fast.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from caesura import model_store, paths, speeds
from caesura.characters import shown
from caesura.commands import CommandFailed
from caesura.commands.common import print_json
from caesura.model_store import extras, reading
from caesura.model_store.reading import UnusableModel

UNITS = {"size": " bytes", "bytes": " of tensors", "memory_mb": " MiB"}  # of the values that `show` prints
HEAD = ("name", "on disk", "memory", "licence", "speed on this machine")
# The user's own models cannot have these names.
RESERVED = (model_store.DEFAULT, model_store.FORMER, *model_store.PACKAGES)


class ModelEntry(msgspec.Struct, frozen=True):
    """A model with a name. `memory_mb` (MiB) is measured here, or else from its manifest, or else counted from its
    shapes: weights, a step and one context."""

    name: str
    path: str
    bytes: int
    memory_mb: float | None
    licence: str
    speed: speeds.Speed | None
    default: bool


def listing(options: argparse.Namespace) -> None:
    found = list(_entries())
    if options.json:
        print_json({"models": found})
        return
    if model_store.default() is None:
        print(model_store.none_installed())
    if found:
        print(*_table([_row(one) for one in found]), sep="\n")


def _entries() -> Iterator[ModelEntry]:
    default = model_store.default()
    for name in model_store.names():
        path, speed = model_store.locate(name), speeds.of(model_store.identity(name))
        about = _manifest(path)
        yield ModelEntry(
            name=name,
            path=str(path),
            bytes=sum(file.stat().st_size for file in model_store.files(path)),
            memory_mb=speed.memory_mb if speed else about.memory_mb or _counted(path),
            licence=about.licence or about.license,
            speed=speed,
            default=name == default,
        )


def _counted(path: Path) -> float | None:
    """The MiB that a published model needs; None if they are not known."""
    if not (path.is_file() or model_store.published(path)):
        return None
    from caesura.engine.models import audit

    size = audit.needed(path)
    return None if size is None else round(size / 2**20, 1)


def _manifest(path: Path) -> model_store.Manifest:
    """The manifest of a model; an empty one if it has none."""
    try:
        return model_store.manifest(path)
    except UnusableModel:
        return model_store.Manifest({})


def _row(one: ModelEntry) -> Sequence[str]:
    name = reading.short(one.name)
    return (
        f"{name} (default)" if one.default else name,
        f"{one.bytes / 1e6:,.0f} MB",
        f"{one.memory_mb:,.0f} MiB" if one.memory_mb else "not known",
        reading.short(one.licence) or "not stated",
        f"{one.speed.token_ms:.0f} ms a token" if one.speed else "not measured: caesura doctor",
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    for row in (HEAD, *rows):
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def add(options: argparse.Namespace) -> None:
    path = model_store.locate(options.path)
    target = place(options.name or called(model_store.title(path) if path.is_file() else path.name))
    if target.exists() or target.is_symlink():
        raise taken(target)
    check(path)
    if path.is_dir():
        link(path, target, shutil.copytree)
    else:
        target.mkdir()
        for part in model_store.parts(path):
            link(part, target / part.name, shutil.copy)
    added(target, {"path": str(model_store.locate(target.name))} if options.json else None)


def check(path: Path) -> None:
    """Check from the headers that a model can be loaded. Raises UnusableModel."""
    from caesura.engine.models import audit

    audit.check(path)


def check_family(folder: Path) -> None:
    """Check from config.json alone that there is code for such a model. Raises UnusableModel."""
    from caesura.engine.models.families import family
    from caesura.engine.models.folder import read_config

    family(folder, read_config(folder))


def added(target: Path, about: Mapping[str, object] | None) -> None:
    """Print the name by which a model can now be used, or everything known `about` it as JSON."""
    if about is not None:
        print_json({"name": target.name, **about})
    else:
        print(f"{target.name}: use it with `--model {target.name}`, or by that name in the setting `model`.")


def place(name: str) -> Path:
    """The folder of a model that the user adds, in a folder that exists. Raises CommandFailed for a reserved name."""
    if name in RESERVED or name.startswith("."):
        raise CommandFailed(f"A model of yours cannot be called {name!r}; choose another name with --name.")
    return paths.private(paths.models()) / name


def taken(target: Path) -> CommandFailed:
    return CommandFailed(f"There is a model {target.name!r} already, {target}; choose another name with --name.")


def called(name: str) -> str:
    """The name of a model after its file, folder or repository. Raises CommandFailed."""
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise CommandFailed(f"{name!r} cannot be the name of a model; choose one with --name.")
    return name


def link(source: Path, target: Path, copy: Callable[[Path, Path], object]) -> None:
    """Link a file or folder; copy it where links are not allowed, as on Windows without that right."""
    try:
        target.symlink_to(source.resolve(), target_is_directory=source.is_dir())
    except (OSError, NotImplementedError):
        copy(source, target)


def show(options: argparse.Namespace) -> None:
    folder = model_store.locate(options.name)
    about = _place(folder)
    about["size"] = sum(file.stat().st_size for file in model_store.files(folder))
    if _hashed(folder):
        about |= reading.fields(folder / model_store.MANIFEST)
    if folder.is_file() or model_store.published(folder):
        from caesura.engine.models import audit

        about |= audit.summary(folder)
    if options.json:
        print_json(about)
    else:
        for key, value in about.items():
            print(shown(f"{key}: {_short(value)}{UNITS.get(key, '')}"))


def _place(path: Path) -> dict[str, object]:
    return {"file" if path.is_file() else "folder": str(path)}


def _short(value: object) -> str:
    """A value in one line: for lists and objects, which `--json` prints in full, their size or names."""
    if isinstance(value, Mapping) and all(isinstance(part, str) for part in value.values()):
        return ", ".join(value)  # the names of files, without hashes
    if isinstance(value, Mapping):
        return "recorded"  # the canary's input and answers
    if isinstance(value, list):
        return f"{len(value)}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def verify(options: argparse.Namespace) -> None:
    folder = model_store.locate(options.name)
    about = _place(folder)
    found, damaged = ["no manifest: hashes not checked"], list[str]()
    if _hashed(folder):
        files, damaged = len(model_store.manifest(folder).files), model_store.damaged(folder)
        about |= {"files": files, "damaged": damaged}
        found = [f"{files} files, all whole"]
    if not damaged and (folder.is_file() or model_store.published(folder) or options.record):
        rows = _computed(folder, options.record)
        about |= {"tensors": "whole", "canary": rows}
        found += ["every tensor in place", "no canary" if rows is None else f"{rows} rows of the canary as recorded"]
    if options.json:
        print_json(about)
    if damaged:
        raise CommandFailed(f"{', '.join(damaged)} of {folder} damaged or missing; install the model again.")
    if not options.json:
        print(shown(f"{options.name}: {'; '.join(found)}."))


def _computed(folder: Path, record: bool) -> int | None:
    """Check the tensors against the family's loader, then the answers. Returns the rows that are as recorded."""
    from caesura.engine.models import audit

    audit.check(folder)
    if record:
        audit.record(folder)
    return audit.canary(folder) if (folder / audit.CANARY).exists() else None


def convert(options: argparse.Namespace) -> None:
    with extras.pytorch_for(extras.CONVERT):
        from caesura.engine.models import audit
        from caesura.engine.models.convert import convert

    source = model_store.locate(options.path)
    target = Path(options.out) if options.out else source.with_name(f"{source.name}-{options.to}")
    convert(source, target.absolute(), options.to, _progress if sys.stderr.isatty() else lambda *_: None)
    about = audit.summary(target)
    if options.json:
        print_json({"folder": str(target.absolute()), **about})
    else:
        print(shown(f"{target}: {about['bytes'] / 1e9:.2f} GB, {about['format']}."))


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done / 1e9:.1f} of {total / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)


def _hashed(folder: Path) -> bool:
    """True if a model must have hashes: files and published checkpoints may have none."""
    return (folder / model_store.MANIFEST).exists() or not (folder.is_file() or model_store.published(folder))
