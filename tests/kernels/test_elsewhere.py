"""The C library for systems that are not here: it compiles and links for each, and where an emulator is installed its
answers are right. Says nothing of speed.

Needs `pip install ziglang`, a C compiler for every system; `apt-get install qemu-user-static` for ARM, `wine64` for
Windows. What is missing is named in the reasons of the skipped tests.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..audit.calls import unheard

ROOT = Path(__file__).parents[2]
CPU = ROOT / "kernels" / "cpu"
SOURCES = [str(path) for path in sorted(CPU.rglob("*.c"))]
SHAPES = str(ROOT / "tests" / "kernels" / "cpu_shapes.c")
WARNED = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
FLAGS = [f"-I{CPU}", "-O2", "-ffp-contract=off", "-fvisibility=hidden", *WARNED]
SYSTEMS = ("x86_64-linux-gnu", "aarch64-linux-gnu", "x86_64-macos", "aarch64-macos", "x86_64-windows-gnu")
MINGW = "x86_64-w64-mingw32-gcc-posix"

pytestmark = pytest.mark.slow


def zig(system: str) -> list[str]:
    if not importlib.util.find_spec("ziglang"):
        pytest.skip("needs `pip install ziglang`")
    return [sys.executable, "-m", "ziglang", "cc", "-target", system]


def emulator(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"needs {names[0]}")
    return found


def run(*command: str | Path, where: Path | None = None) -> str:
    environment = unheard() | ({"WINEPREFIX": str(where), "WINEDEBUG": "-all"} if where else {})
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_library_compiles_and_links_without_a_warning(system: str, tmp_path: Path) -> None:
    run(*zig(system), *FLAGS, "-shared", "-fPIC", "-o", tmp_path / "library", *SOURCES)
    assert (tmp_path / "library").stat().st_size > 50_000


def test_on_arm_random_shapes_are_what_plain_c_makes_of_them(tmp_path: Path) -> None:
    """NEON with dot products among them, which the emulated CPU has."""
    there, program = emulator("qemu-aarch64-static", "qemu-aarch64"), tmp_path / "shapes"
    run(*zig("aarch64-linux-musl"), *FLAGS, "-o", program, SHAPES, *SOURCES)
    assert run(there, program, "40", "1").split() == ["neon", "portable"]


def test_on_arm_without_dot_products_plain_c_computes(tmp_path: Path) -> None:
    there, program = emulator("qemu-aarch64-static", "qemu-aarch64"), tmp_path / "shapes"
    run(*zig("aarch64-linux-musl"), *FLAGS, "-o", program, SHAPES, *SOURCES)
    assert run(there, "-cpu", "cortex-a53", program, "2", "1").split() == ["portable"]


def test_on_windows_random_shapes_are_what_plain_c_makes_of_them(tmp_path: Path) -> None:
    """By MinGW, which wheels for Windows are made with."""
    compiler, there, program = emulator(MINGW), emulator("wine"), tmp_path / "shapes.exe"
    run(compiler, *FLAGS, "-static", "-o", program, SHAPES, *SOURCES)
    assert run(there, program, "10", "1", where=tmp_path / "wine").split()[-1] == "portable"
