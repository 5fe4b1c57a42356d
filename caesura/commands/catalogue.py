"""`caesura models`: which there are, what their manifests say, whether their files are whole."""

import argparse
import json
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
    models.manifest(folder)
    about = {"folder": str(folder), **json.loads((folder / models.MANIFEST).read_bytes())}
    if options.json:
        print_json(about)
    else:
        for key, value in about.items():
            print(f"{key}: {value if isinstance(value, str) else json.dumps(value)}")


def verify(options: argparse.Namespace) -> None:
    folder = _folder(options.name)
    damaged = models.damaged(folder)
    if options.json:
        print_json({"folder": str(folder), "files": len(models.manifest(folder).files), "damaged": damaged})
    if damaged:
        raise CommandFailed(f"{', '.join(damaged)} of {folder} damaged or missing; install the model again.")
    if not options.json:
        print(f"{options.name}: {len(models.manifest(folder).files)} files, all whole.")


def _folder(name: str) -> Path:
    folder = models.folder(name)
    if folder is None:
        raise CommandFailed(f"There is no model {name!r}; `caesura models` lists those there are.")
    return folder
