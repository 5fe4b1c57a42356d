"""What a fresh installation takes. .ci/run calls this after README's first command, in the environment that it made:

    python .ci/fresh.py [--write]

Compares the megabytes and the number of the packages that Caesura needs, without weights, and the seconds of a fill
without an engine with .ci/fresh.json. Fails if one has grown by more than a tenth; `--write` records them instead. The
seconds are counted in starts of Python with a few of those packages, so that the speed of a machine cancels.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
RECORD = ROOT / ".ci" / "fresh.json"
PROGRAM = "caesura"
LIMIT = 1.1  # most of what is recorded
TIMES = 5  # starts of each kind; the fastest counts, since other work only delays
UNIT = (sys.executable, "-c", "import msgspec, numpy, tokenizers, zmq")
CAESURA = (sys.executable, "-m", PROGRAM)
STOP = (*CAESURA, "stop")
FILL = (*CAESURA, "fill", "examples/files.py", "--at", "22:11")


def needed(name: str, found: dict[str, Distribution]) -> None:
    """Add the packages that one needs here, without extras that nobody asked for, and what they need."""
    for requirement in map(Requirement, distribution(name).requires or []):
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            needed(requirement.name, found)


def size(package: Distribution) -> int:
    """Bytes of the files that pip installed and compiled."""
    paths = (Path(str(file.locate())) for file in package.files or [])
    return sum(path.stat().st_size for path in paths if path.is_file())


def seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def times() -> tuple[float, float]:
    """Seconds of a start of Python and of a fill without an engine. They have folders of their own: no engine of the
    user's is stopped, and the first fill, which does not count, makes the tiles that the others map."""
    starts, fills = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        environment = {**os.environ, "CAESURA_RUNTIME": f"{own}/runtime", "XDG_CACHE_HOME": f"{own}/cache"}
        for _ in range(TIMES + 1):  # by turns, so that both meet the same load
            starts.append(seconds(UNIT, environment))
            try:
                fills.append(seconds(FILL, environment))
            finally:
                seconds(STOP, environment)
    return min(starts), min(fills[1:])


def measured() -> dict[str, float]:
    found = dict[str, Distribution]()
    needed(PROGRAM, found)
    packages = {package.metadata["Name"]: package for package in found.values()}  # some are named in two spellings
    start, fill = times()
    print(f"A fill without an engine takes {fill:.2f} s, a start of Python {start:.3f} s.")
    return {
        "megabytes": round(sum(map(size, packages.values())) / 1e6, 1),
        "packages": len(packages),
        "fill in starts": round(fill / start, 2),
    }


def grown(found: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """A sentence for each measure that is above its limit."""
    return [
        f"{name}: {value:g}, more than {LIMIT:g} times the recorded {recorded[name]:g}."
        for name, value in found.items()
        if value > LIMIT * recorded[name]
    ]


def main(words: Sequence[str]) -> int:
    found = measured()
    print("A fresh installation:", ", ".join(f"{name} {value:g}" for name, value in found.items()))
    if "--write" in words:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    failures = grown(found, json.loads(RECORD.read_text()))
    print(*failures, sep="\n", end="\n" if failures else "", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
