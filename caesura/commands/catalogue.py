"""`caesura models`: which there are, what they hold, whether they are whole, and smaller forms of them.

The engine is imported by what looks at a published checkpoint; all else stays quick.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caesura import models
from caesura.commands import CommandFailed
from caesura.commands.asking import print_json


def names(options: argparse.Namespace) -> None:
    found = models.names()
    if options.json:
        print_json({"models": found})
    else:
        print("\n".join(found) or "There are no models.")


def show(options: argparse.Namespace) -> None:
    folder = _folder(options.name)
    about: dict[str, object] = {"folder": str(folder)}
    if _hashed(folder):
        models.manifest(folder)
        about |= json.loads((folder / models.MANIFEST).read_bytes())
    if models.published(folder):
        with _sentences():
            from caesura.engine import audit

            about |= audit.summary(folder)
    if options.json:
        print_json(about)
    else:
        for key, value in about.items():
            print(f"{key}: {value if isinstance(value, str) else json.dumps(value)}")


def verify(options: argparse.Namespace) -> None:
    folder = _folder(options.name)
    about: dict[str, object] = {"folder": str(folder)}
    found, damaged = ["no manifest: hashes not checked"], list[str]()
    if _hashed(folder):
        files, damaged = len(models.manifest(folder).files), models.damaged(folder)
        about |= {"files": files, "damaged": damaged}
        found = [f"{files} files, all whole"]
    if not damaged and (models.published(folder) or options.record):
        rows = _computed(folder, options.record)
        about |= {"tensors": "whole", "canary": rows}
        found += ["every tensor in place", "no canary" if rows is None else f"{rows} rows of the canary as recorded"]
    if options.json:
        print_json(about)
    if damaged:
        raise CommandFailed(f"{', '.join(damaged)} of {folder} damaged or missing; install the model again.")
    if not options.json:
        print(f"{options.name}: {'; '.join(found)}.")


def _computed(folder: Path, record: bool) -> int | None:
    """Check the tensors against the family's loader, then the answers: the rows that are as recorded."""
    with _sentences():
        from caesura.engine import audit

        audit.check(folder)
        if record:
            audit.record(folder)
        return audit.canary(folder) if (folder / audit.CANARY).is_file() else None


def convert(options: argparse.Namespace) -> None:
    source = _folder(options.path)
    target = Path(options.out) if options.out else source.with_name(f"{source.name}-{options.to}")
    with _sentences():
        from caesura.engine import audit
        from caesura.engine.convert import convert

        convert(source, target.absolute(), options.to, _progress if sys.stderr.isatty() else lambda *_: None)
        about = audit.summary(target)
    if options.json:
        print_json({"folder": str(target.absolute()), **about})
    else:
        print(f"{target}: {about['bytes'] / 1e9:.2f} GB, {about['format']}.")


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done / 1e9:.1f} of {total / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)


def _hashed(folder: Path) -> bool:
    """Whether there are hashes: a published checkpoint may come without, our own models do not."""
    return (folder / models.MANIFEST).is_file() or not models.published(folder)


@contextmanager
def _sentences() -> Iterator[None]:
    """What the engine finds wrong with a model, as the sentence of this command."""
    from caesura.engine.models import ModelError
    from caesura.engine.weights import WeightsError

    try:
        yield
    except (ModelError, WeightsError) as error:
        raise CommandFailed(str(error)) from error


def _folder(name: str) -> Path:
    folder = models.folder(name)
    if folder is None:
        raise CommandFailed(f"There is no model {name!r}; `caesura models` lists those there are.")
    return folder
