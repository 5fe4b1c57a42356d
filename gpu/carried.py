"""Large files in and out of a machine that takes 64 MiB and gives eight files of 16 MiB a call: split, load, join.

Used by the scripts of this folder; standard library only. A split file `x` is `x.part00`, `x.part01`, ...; every set of
loads has a `contents.json` with the sha256 of all its files.
"""

import argparse
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MIB = 1 << 20
PART = MIB  # small enough to fill loads well
UP = 63 * MIB  # what travels up in a call, the checkout included
BACK, BACK_PARTS = 15 * MIB, 4  # a part of what comes back, and how many of them a call brings
RESULT = "result.tar"


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
            made.append(folder / f"{path.name}.part{number:03}")
            made[-1].write_bytes(file.read(most))
    return made


def join(folder: Path, target: Path) -> None:
    """`target` from its parts in `folder`."""
    with target.open("wb") as file:
        for part in sorted(folder.glob(f"{target.name}.part*")):
            file.write(part.read_bytes())


def loads(paths: Iterable[Path], room: int) -> list[list[Path]]:
    """First fit: whole files before parts of weights, so that the first load brings all that can be begun without them;
    largest first."""
    made: list[list[Path]] = []
    for path in sorted(paths, key=lambda p: (".part" in p.name, -p.stat().st_size, p.name)):
        load = next((m for m in made if sum(map(size, [*m, path])) <= room), None)
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
    """Folders 1, 2, ... of hard links, each one load next to the checkout, which the weights have left already."""
    out: Path = arguments.out
    parts = out / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    weights = [part for path in sorted(arguments.weights) for part in split(path, parts, PART)]
    files = [*weights, *(out / "packs").iterdir(), *out.glob("wheels/*.whl")]
    write_contents(files, out / "contents.json")
    for old in out.glob("[0-9]*"):
        shutil.rmtree(old)
    room = UP - size(out / "contents.json") - sum(size(path) for path in Path.cwd().iterdir())
    assert room > max(map(size, files)), f"next to the checkout there is room for {room / MIB:.0f} MiB: make it smaller"
    for number, load in enumerate(loads(files, room), 1):
        folder = out / str(number)
        folder.mkdir()
        for path in [*load, out / "contents.json"]:
            (folder / path.name).hardlink_to(path)
        print(f".stage/{number}: {len(load)} files, {sum(map(size, load)) / MIB:.1f} MiB")


def unstage(arguments: argparse.Namespace) -> None:
    """corpus/ in the work folder with what is there of it, and model/ once all loads are."""
    staged, model, corpus = arguments.staged, arguments.work / "model", arguments.work / "corpus"
    corpus.mkdir(exist_ok=True)
    for path in [*staged.glob("*.pack"), *staged.glob("pack.json"), *staged.glob("model")]:
        shutil.copy(path, corpus)
    lacking = list(missing(staged))
    if lacking:
        print(f"gpu/unstage: {len(lacking)} files still to come.")
        return
    new = arguments.work / "model.new"
    new.mkdir(exist_ok=True)
    name = (corpus / "model").read_text().strip()
    for path in (arguments.models / name / f"caesura_{name}").glob("*.json"):
        shutil.copy(path, new)
    for whole in {path.name.partition(".part")[0] for path in staged.glob("*.part*")}:
        join(staged, new / whole)
    for file, expected in json.loads((new / "manifest.json").read_text())["files"].items():
        assert sha256(new / file) == expected, f"{file} does not match the manifest"
    new.rename(model)
    print("gpu/unstage: done.")


def take(arguments: argparse.Namespace) -> None:
    """One load of the result: what was trained, its small files, the log of each run."""
    result, run = arguments.work / "result", arguments.work / "run"
    parts = arguments.work / "parts"
    if not parts.is_dir():
        parts.mkdir()
        trained = [path for path in result.glob("*.safetensors") if not path.is_symlink()]
        logs = {run / "log.jsonl": "log.jsonl", run / "light/log.jsonl": "light.jsonl"}
        with tarfile.open(arguments.work / RESULT, "w") as tar:
            for path in (*trained, result / "config.json", result / "manifest.json"):
                tar.add(path, path.name)
            for path, name in logs.items():
                if path.is_file():
                    tar.add(path, name)
        write_contents(split(arguments.work / RESULT, parts, BACK), parts / "contents.json")
    made = sorted(parts.glob("*.part*"))
    first = (arguments.load - 1) * BACK_PARTS
    for path in [*made[first : first + BACK_PARTS], parts / "contents.json"]:
        shutil.copy(path, arguments.out)
    print(f"gpu/take: load {arguments.load} of {-(-len(made) // BACK_PARTS)}.")


def join_model(arguments: argparse.Namespace) -> None:
    """A model folder from all loads; what was not trained is that of the model in the checkout."""
    model: Path = arguments.model
    model.mkdir(parents=True, exist_ok=True)
    for load in arguments.loads:
        for path in (*load.glob(f"{RESULT}.part*"), load / "contents.json"):
            shutil.copy(path, model)
    lacking = list(missing(model))
    assert not lacking, f"missing or damaged: {' '.join(lacking)}"
    join(model, model / RESULT)
    with tarfile.open(model / RESULT) as tar:
        tar.extractall(model, filter="data")
    for path in (*model.glob(f"{RESULT}*"), model / "contents.json"):
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


def keep(arguments: argparse.Namespace) -> None:
    """Documents in bench/results of what a load brought back: everything measured, and each training's evaluations."""
    measured = arguments.load / "measured.jsonl"
    lines = read(measured)
    ((machine, version),) = {(line.pop("machine"), line.pop("torch")) for line in lines}
    at = datetime.fromtimestamp(measured.stat().st_mtime, UTC).isoformat(timespec="seconds")
    conditions = {"at": at, "commit": arguments.commit, "machine": machine, "torch": version}
    name = f"gpu-{machine.removeprefix('NVIDIA ').split()[0].lower()}"
    save({"bench": "gpu", **conditions, "lines": lines}, arguments.out / f"{name}.json")
    logs = {"canvas": "log.jsonl", "light": "light.jsonl"}
    runs = {run: read(arguments.load / name) for run, name in logs.items() if (arguments.load / name).is_file()}
    evaluations = {run: [line for line in of if line.pop("kind") == "eval"] for run, of in runs.items()}
    if runs:
        save(
            {"bench": "gpu training", **conditions, "evaluations": evaluations}, arguments.out / f"{name}-training.json"
        )


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def save(report: dict[str, Any], out: Path) -> None:
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"gpu/carried.py: {out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run, options in (
        (stage, ("--out",)),
        (unstage, ("--staged", "--models", "--work")),
        (take, ("--work", "--out")),
        (join_model, ("--model",)),
        (keep, ("--load", "--out")),
    ):
        command = commands.add_parser(run.__name__.removesuffix("_model"))
        for option in options:
            command.add_argument(option, type=Path, required=True)
        command.set_defaults(run=run)
        if run is stage:
            command.add_argument("weights", type=Path, nargs="+")
        if run is take:
            command.add_argument("--load", type=int, required=True)
        if run is keep:
            command.add_argument("--commit", required=True, help="which code was measured")
        if run is join_model:
            command.add_argument("loads", type=Path, nargs="+")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
