"""The package list, so that a new sub-package cannot be forgotten (tests/house/test_package.py builds the wheel), and
the library of kernels/cpu, which the package does without where there is no compiler."""

import hashlib
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDERS = {
    "caesura": "caesura",
    "server": "caesura.server",
    "engine": "caesura.engine",
    "kernels": "caesura.kernels",
    "cluster": "caesura.cluster",
}
CPU = Path("kernels", "cpu")
# So that a library that is older than its sources is not used (kernels/cpu/__init__.py).
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(CPU.rglob("*.[ch]")))).hexdigest()
# Products and sums are fused where the code says so; what is not exported is not seen; vectors are no part of the ABI.
FLAGS = ["-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi"]
# Otherwise the library needs MinGW's own DLL for threads, which other machines lack. Microsoft's compiler does not know
# such vectors: with it the package has no library, which is said when a model is loaded.
LINKED = ["-static"] if sys.platform == "win32" else []


class Library(build_ext):
    """A library that ctypes loads, no module of Python's: it has no PyInit function, and any Python may load it."""

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def get_libraries(self, ext: Extension) -> list[str]:
        return []

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.{'dll' if self.plat_name.startswith('win') else 'so'}"


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    packages=[*FOLDERS.values(), *(f"{name}.{p}" for folder, name in FOLDERS.items() for p in find_packages(folder))],
    ext_modules=[
        Extension(
            "caesura.kernels.cpu._library",
            sorted(path.as_posix() for path in CPU.rglob("*.c")),
            depends=sorted(path.as_posix() for path in CPU.rglob("*.h")),
            include_dirs=[CPU.as_posix()],
            extra_compile_args=FLAGS,
            define_macros=[("SOURCES", f'"{SOURCES}"')],
            extra_link_args=LINKED,
            optional=True,
        )
    ],
    cmdclass={"build_ext": Library, "bdist_wheel": AnyPython},
)
