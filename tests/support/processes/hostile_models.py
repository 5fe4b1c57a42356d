"""Model folders with a pipe, an endless device or 8 GB of holes in the place of a file, given to all that reads one. In
a process of its own, which ends if it waits for a pipe or reads without a bound: test_hostile_models.py of the engine.

    python hostile_models.py FOLDER    # prints [folder, file, obstacle, command, exit code, output] of each, as JSON
"""

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

MEMORY = 1 << 30  # bytes that the process may add; mapped weights do not count
STUCK_S = 60  # of one command
LARGE = 8 << 30  # bytes
OBSTACLES: dict[str, Callable[[Path], object]] = {
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "holes": lambda path: holes(path),
}


def holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(LARGE)


def folders(where: Path) -> Iterator[Path]:
    """Whole models that have every kind of file between them."""
    from caesura.engine.models import audit
    from tests.support.checkpoints import dits, gemma, qwen, tiny

    yield tiny.make(where / "tiny")
    yield gemma.published(where / "gemma")
    audit.record(where / "gemma", "cpu")
    yield dits.published(where / "mdlm", "mdlm")
    (where / "mdlm" / "added_tokens.json").write_text("{}")
    yield qwen.published(where / "qwen")
    for name in ("mdlm", "qwen"):
        (where / name / "tokenizer_config.json").write_text("{}")


def command(*words: str) -> tuple[int, str]:
    """The exit code of `caesura models`, and all that it printed."""
    from caesura import cli

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(["models", *words])
    return code, said.getvalue()


def load(folder: Path) -> tuple[int, str]:
    """What the engine says of a model."""
    from caesura.engine import models
    from caesura.engine.model import ModelError

    try:
        models.load(str(folder), "cpu")
    except ModelError as error:
        return 1, f"caesura: {error}\n"
    return 0, ""


def tried(folder: Path, *, hashed: bool = True) -> Iterator[tuple[str, int, str]]:
    """Each command's name, exit code and output. A folder that has hashes is `hashed`, which is slow if it is large."""
    asked: dict[str, Callable[[], tuple[int, str]]] = {
        "add": lambda: command("add", str(folder), "--name", f"hostile-{os.urandom(4).hex()}")
    }
    if hashed and folder.name in ("tiny", "gemma"):  # a manifest and a canary, which no other command reads
        asked["verify"] = lambda: command("verify", str(folder))
    if hashed:
        asked["load"] = lambda: load(folder)
    for word, ask in asked.items():
        signal.alarm(STUCK_S)
        yield word, *ask()
        signal.alarm(0)


def main() -> None:
    import resource  # which Windows lacks

    where, found = Path(sys.argv[1]), list[list[object]]()
    wholes = list(folders(where))
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    for folder in wholes:
        assert all(code == 0 for _, code, _ in tried(folder)), folder.name
        for path in sorted(folder.iterdir()):
            away = path.rename(where / "away")
            for obstacle, put in OBSTACLES.items():
                put(path)
                large = path.suffix == ".safetensors" and obstacle == "holes"
                found += [[folder.name, path.name, obstacle, *said] for said in tried(folder, hashed=not large)]
                path.unlink()
            away.rename(path)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    main()
