"""Build the weights of models as wheels of less than 95 MB, since an index takes no larger ones.

    python models/wheels.py OUT [coder] [small]

Needs Caesura with its C library, and setuptools. The wheels hold tiles, which engines map as they are, instead of the
files of this repository. `caesura-coder` has all that is small and needs the others, `caesura-coder-2` and so on, which
put their files next to its own.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from caesura.engine.weights import stored
from caesura.engine.weights.tiles import kept
from caesura.engine.weights.tiles.file import write
from caesura.model_store import MANIFEST, TILES, WEIGHTS, reading

MODELS = Path(__file__).parent
CONTENT = 94_000_000  # most bytes of the files of a wheel, which packing hardly makes smaller
LARGEST = 95_000_000  # bytes of a wheel
LICENCES = ("LICENSE", "NOTICE")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=["coder", "small"])
    options = parser.parse_args(words)
    for name in options.names:
        with tempfile.TemporaryDirectory(dir=options.out.parent) as scratch:  # where there is room for wheels
            for wheel in built(MODELS / name, Path(scratch), options.out):
                print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


def built(model: Path, scratch: Path, out: Path) -> list[Path]:
    """Build the wheels of a folder of `models/`. `scratch` is an empty folder."""
    package, content = f"caesura_{model.name}", scratch / "content"
    fill(content, model / package)
    groups = divided(content)
    for number, files in enumerate(groups, 1):
        project = scratch / f"{number}"
        (project / package).mkdir(parents=True)
        for path in files:
            path.rename(project / package / path.name)
        for name in LICENCES:
            shutil.copy(model / name, project)
        (project / "pyproject.toml").write_text(about(model, number, len(groups)))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    made = scratch / "wheels"  # with no older ones among them
    subprocess.run([*pip, "-w", made, *(scratch / f"{number + 1}" for number in range(len(groups)))], check=True)
    wheels = sorted(made.glob(f"{package}-*.whl")) + sorted(made.glob(f"{package}_[0-9]*.whl"))
    if large := [wheel.name for wheel in wheels if wheel.stat().st_size > LARGEST]:
        sys.exit(f"{', '.join(large)}: more than {LARGEST / 1e6:g} MB.")
    out.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(wheel, out)) for wheel in wheels]


def fill(content: Path, folder: Path) -> None:
    """Make a folder of what is installed: the small files of a model folder, its tiles, and a manifest of these."""
    content.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in WEIGHTS:
            shutil.copy(path, content)
    for name, packing in kept.sources(folder).items():
        write(content, name, packing)
    manifest = reading.fields(folder / MANIFEST)
    stored.write_manifest(content, {key: value for key, value in manifest.items() if key != "files"})


def divided(content: Path) -> list[list[Path]]:
    """The files of each wheel: all that is small in the first, and tiles as far as there is room."""
    tiles = sorted(content.glob(f"*{TILES}"), key=lambda path: path.stat().st_size)
    groups = [sorted(set(content.iterdir()) - set(tiles))]
    for path in tiles:
        if sum(file.stat().st_size for file in (*groups[-1], path)) > CONTENT:
            groups.append([])
        groups[-1].append(path)
    return groups


def about(model: Path, number: int, wheels: int) -> str:
    """The pyproject.toml of a wheel: the model's own, in the first one with the others that it needs, and in those with
    their name."""
    text = (model / "pyproject.toml").read_text()
    name, version = (tomllib.loads(text)["project"][key] for key in ("name", "version"))
    if number == 1:
        others = [f"{name}-{other}=={version}" for other in range(2, wheels + 1)]
        return text.replace("[project]\n", f"[project]\ndependencies = {json.dumps(others)}\n")
    return text.replace(f'name = "{name}"', f'name = "{name}-{number}"')


if __name__ == "__main__":
    sys.exit(main())
