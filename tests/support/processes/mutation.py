"""Mutation testing of the modules that admit clients, keep their jobs, read their messages and cover secrets: mutmut
changes one expression after another, and a test has to fail each time. Part of `make long`.

    python tests/support/processes/mutation.py [MODULE...] [--children N] [--folder FOLDER]

mutmut derives a module's import name from its path, and here the two differ (pyproject.toml maps the folders), so it
runs in a copy that lies as the package is installed. It changes what functions do; the bounds in the types of the wire
are for tests/shared/test_wire.py. Tests that start processes do not count: those processes run the installed tree.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULES = {  # and the tests that have to notice
    "caesura/wire.py": ["shared/test_wire.py"],
    "caesura/engine/supervisor/ledger.py": ["supervisor/test_ledger.py"],
    "caesura/engine/supervisor/admission.py": ["supervisor/test_supervisor.py", "supervisor/test_remote.py"],
    "caesura/engine/supervisor/clients.py": [
        "supervisor/test_supervisor.py",
        "supervisor/test_processes.py",
        "supervisor/test_remote.py",
    ],
    "caesura/characters.py": ["shared/test_characters.py"],
    "caesura/server/context/secrets.py": ["context/test_privacy.py", "context/test_files.py"],
}
MUTMUT = [sys.executable, "-m", "mutmut"]
SETTINGS = """
[tool.mutmut]
source_paths = ["caesura"]
only_mutate = ["{module}"]
process_isolation = "forkserver"
pytest_add_cli_args = ["-m", "not asyncio and not slow and not real and not long", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = {tests}
"""


def lay_out(folder: Path, module: str) -> None:
    """Copy the tree as it is installed, with the settings of a run over one module."""
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for source, target in (("caesura", "caesura"), ("tests", "tests")):
        shutil.copytree(ROOT / source, folder / target, ignore=ignored)
    for name in ("server", "engine", "kernels"):
        shutil.copytree(ROOT / name, folder / "caesura" / name, ignore=ignored)
    tests = [f"tests/{test}" for test in MODULES[module]]
    settings = SETTINGS.format(module=module, tests=tests)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)


def survivors(folder: Path) -> list[str]:
    """What mutmut changed and no test noticed: MODULE.FUNCTION__mutmut_NUMBER of each."""
    listed = subprocess.run([*MUTMUT, "results"], cwd=folder, capture_output=True, text=True, check=True).stdout
    return [
        line.strip().partition(":")[0] for line in listed.splitlines() if not line.endswith((": killed", ": timeout"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/support/processes/mutation.py")
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; all of them by default")
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the copy lies, for `mutmut show`; else it is removed")
    options = parser.parse_args()
    for module in options.modules or MODULES:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary) / "caesura"
            lay_out(folder, module)
            subprocess.run([*MUTMUT, "run", f"--max-children={options.children}"], cwd=folder, check=True)
            left = survivors(folder)
        print(f"{module}: {len(left)} changes that no test notices", *left, sep="\n  ")


if __name__ == "__main__":
    main()
