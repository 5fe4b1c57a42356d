"""Large files in and out of a machine that takes 64 MiB and gives eight files of 16 MiB a call: split, load, join.

Used by the scripts beside it; standard library only. A split file `x` is `x.part00`, `x.part01`, ...; every set of
loads has a `contents.json` with the sha256 of all its files.
"""

import argparse
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

MIB = 1 << 20
PART = 4 * MIB  # small enough to fill loads well
UP, UP_FILES = 63 * MIB, 10_000  # what travels up in a call, the checkout included
BACK, BACK_FILES = 60 * MIB, 6  # of eight: gpu/queue brings two of its own


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size(path: Path) -> int:
    """Bytes of a file, or of a folder without what is hidden in it; of a link none."""
    if path.name.startswith(".") or path.name == "__pycache__" or path.is_symlink():
        return 0
    return sum(map(size, path.iterdir())) if path.is_dir() else path.stat().st_size


def split(path: Path, folder: Path, most: int) -> list[Path]:
    made = []
    with path.open("rb") as file:
        for number in range(-(-path.stat().st_size // most)):
            made.append(folder / f"{path.name}.part{number:02}")
            made[-1].write_bytes(file.read(most))
    return made


def join(folder: Path, target: Path) -> None:
    """`target` from its parts in `folder`."""
    with target.open("wb") as file:
        for part in sorted(folder.glob(f"{target.name}.part*")):
            file.write(part.read_bytes())


def loads(paths: Iterable[Path], room: int, most: int) -> list[list[Path]]:
    """First fit, largest first."""
    made: list[list[Path]] = []
    for path in sorted(paths, key=lambda p: (-p.stat().st_size, p.name)):
        fitting = (m for m in made if len(m) < most and sum(map(size, [*m, path])) <= room)
        load = next(fitting, None)
        if load is None:
            made.append(load := [])
        load.append(path)
    return made


def missing(folder: Path) -> Iterator[str]:
    """Files of contents.json that are not in the folder, or damaged."""
    contents: dict[str, str] = json.loads((folder / "contents.json").read_text())
    for name, expected in contents.items():
        if not (folder / name).is_file() or sha256(folder / name) != expected:
            yield name


def write_contents(paths: Iterable[Path], target: Path) -> None:
    target.write_text(json.dumps({p.name: sha256(p) for p in paths}, indent=1) + "\n")


def stage(arguments: argparse.Namespace) -> None:
    """Folders 1, 2, ... of hard links, each one load next to the checkout, which the base has left already."""
    out: Path = arguments.out
    parts = out / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    bases = [part for base in sorted(arguments.base.glob("base*")) for part in split(base, parts, PART)]
    files = [*bases, *(out / "packs").iterdir(), *out.glob("wheels/*.whl")]
    write_contents(files, out / "contents.json")
    for old in out.glob("[0-9]*"):
        shutil.rmtree(old)
    room = UP - sum(size(path) for path in Path.cwd().iterdir())
    assert room > max(map(size, files)), f"beside the checkout there is room for {room / MIB:.0f} MiB: make it smaller"
    for number, load in enumerate(loads(files, room, UP_FILES), 1):
        folder = out / str(number)
        folder.mkdir()
        for path in [*load, out / "contents.json"]:
            (folder / path.name).hardlink_to(path)
        print(f".stage/{number}: {len(load)} files, {sum(map(size, load)) / MIB:.1f} MiB")


def unstage(arguments: argparse.Namespace) -> None:
    """model/ and corpus/ in the work folder, once all loads are there."""
    staged: Path = arguments.staged
    lacking = list(missing(staged))
    if lacking:
        print(f"gpu/unstage: {len(lacking)} files still to come: {' '.join(lacking)}")
        return
    model, corpus = arguments.work / "model", arguments.work / "corpus"
    model.mkdir(exist_ok=True)
    corpus.mkdir(exist_ok=True)
    name = (staged / "model").read_text().strip()
    for path in (arguments.models / name / f"caesura_{name}").iterdir():
        if path.suffix in (".json", ".safetensors") and not path.name.startswith("base"):
            shutil.copy(path, model)
    for base, expected in json.loads((model / "manifest.json").read_text())["files"].items():
        if base.startswith("base"):
            join(staged, model / base)
            assert sha256(model / base) == expected, f"{base} does not match the manifest"
    for path in [*staged.glob("*.pack"), staged / "pack.json", staged / "model"]:
        shutil.copy(path, corpus)
    print("gpu/unstage: done.")


def take(arguments: argparse.Namespace) -> None:
    """One load of the result: the parts of the weights that were trained, the small files, the log of each run."""
    result, run = arguments.work / "result", arguments.work / "run"
    parts = arguments.work / "parts"
    if not parts.is_dir():
        parts.mkdir()
        trained = sorted(path for path in result.glob("*.safetensors") if not path.is_symlink())
        files = [part for path in trained for part in split(path, parts, 15 * MIB)]
        files += [Path(shutil.copy(result / name, parts)) for name in ("config.json", "manifest.json")]
        logs = {run / "log.jsonl": "log.jsonl", run / "light/log.jsonl": "light.jsonl"}
        files += [Path(shutil.copy(log, parts / name)) for log, name in logs.items() if log.is_file()]
        write_contents(files, parts / "contents.json")
    made = loads((p for p in parts.iterdir() if p.name != "contents.json"), BACK, BACK_FILES - 1)
    for path in [*made[arguments.load - 1], parts / "contents.json"]:
        shutil.copy(path, arguments.out)
    print(f"gpu/take: load {arguments.load} of {len(made)}.")


def join_model(arguments: argparse.Namespace) -> None:
    """A model folder from all loads; what was not trained is that of the model in the checkout."""
    model: Path = arguments.model
    model.mkdir(parents=True, exist_ok=True)
    for load in arguments.loads:
        for name in ("contents.json", *json.loads((load / "contents.json").read_text())):
            if (load / name).is_file():  # in this load; what gpu/queue brought besides stays out
                shutil.copy(load / name, model)
    lacking = list(missing(model))
    assert not lacking, f"missing or damaged: {' '.join(lacking)}"
    for whole in {path.stem for path in model.glob("*.part*")}:
        join(model, model / whole)
    for path in model.iterdir():
        if re.search(r"\.part\d+$", path.name) or path.name == "contents.json":
            path.unlink()
    name = json.loads((model / "config.json").read_text()).get("name", "small")
    shipped = Path(__file__).parents[1] / "models" / name / f"caesura_{name}"
    listed: dict[str, str] = json.loads((model / "manifest.json").read_text())["files"]
    for path in model.glob("*.safetensors"):
        if path.name not in listed:  # an update that is merged into what came back
            path.unlink()
    for file, expected in listed.items():
        if not (model / file).exists():
            shutil.copy(shipped / file, model)
        assert sha256(model / file) == expected, f"{file} does not match the manifest"
    print(f"gpu/join: {model} is complete.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run, options in (
        (stage, ("--base", "--out")),
        (unstage, ("--staged", "--models", "--work")),
        (take, ("--work", "--out")),
        (join_model, ("--model",)),
    ):
        command = commands.add_parser(run.__name__.removesuffix("_model"))
        for option in options:
            command.add_argument(option, type=Path, required=True)
        command.set_defaults(run=run)
        if run is take:
            command.add_argument("--load", type=int, required=True)
        if run is join_model:
            command.add_argument("loads", type=Path, nargs="+")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
