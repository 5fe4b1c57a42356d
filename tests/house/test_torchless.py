"""The suite without PyTorch: what needs it is left out, and nothing but the engine's own tests may."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
TORCH = ("engine", "kernels", "tools", "cluster")  # as in conftest.py


def collected(*paths: Path) -> str:
    """What pytest prints at the end of a collection where PyTorch cannot be imported."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *map(str, paths)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "support" / "torchless")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def test_a_file_that_needs_it_is_left_out() -> None:
    said = collected(TESTS / "kernels" / "test_norms.py", TESTS / "house" / "test_fresh.py")
    assert "test_growth_by_more_than_a_tenth_fails" in said or "test_fresh.py: " in said
    assert "1 test files were left out: they need PyTorch, which is not here." in said


def test_no_test_of_other_folders_needs_it() -> None:
    others = [path for path in sorted(TESTS.iterdir()) if path.is_dir() and path.name not in TORCH]
    assert "left out" not in collected(*others)
