"""Secrets in all that a user of a team writes, and a search for them in all that the team leaves."""

import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from caesura import wire
from caesura.client.backend import EngineError, job_id
from caesura.client.shared import Engine

from .clients import answer
from .team import Team


def planted() -> tuple[list[str], list[str]]:
    """Two for the names of a user and of an editor, 48 for jobs."""
    found = [secrets.token_hex(16) for _ in range(50)]
    return found[:2], found[2:]


async def secrets_sent(found: Engine, planted: Sequence[str]) -> list[str]:
    """Jobs in which all that a user may write is secret, one answered, one refused by the engine and one by the door.
    Returns what the user is told."""
    told = list[str]()
    for text, path, name, draft, inside, after in zip(*[iter(planted)] * 6, strict=True):
        asked = wire.Infill(
            job=job_id(),
            document=f"/home/{path}/main.py",
            prefix=f"key = {text!r}\n",
            suffix=f"# {after}\n",
            neighbours=(wire.Neighbour(f"src/{name}.py", f"token = {inside!r}"),),
            segments=(wire.Hole(),),
            draft=(draft,),
        )
        assert await answer(found, asked)
        for refused in ({"prefix": f"refuse {text}", "prompt": "none"}, {"prefix": text * 8000}):
            with pytest.raises(EngineError) as error:
                await answer(found, msgspec.structs.replace(asked, job=job_id(), **refused))
            told.append(str(error.value))
    return told


def written(found: Team) -> list[Path]:
    """The files that a team leaves, without the keys and names that it has to keep."""
    folders, kept = [Path(found.environment["CAESURA_RUNTIME"]), found.home], found.home / "config"
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if kept not in path.parents]


def leaked(planted: Sequence[str], files: Sequence[Path], told: Sequence[str]) -> list[str]:
    """The secrets that a file or a sentence has."""
    texts = [*(path.read_bytes() for path in files), *(sentence.encode() for sentence in told)]
    return [secret for secret in planted if any(secret.encode() in text for text in texts)]
