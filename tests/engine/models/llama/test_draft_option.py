"""`--draft` in real processes: the engine loads both models, and a pair has an engine of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ....support.checkpoints import masked, qwen

START_S = 120.0  # reached only where something is wrong


pytestmark = pytest.mark.usefixtures("own_engines")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An autoregressive model and a diffusion model, with one tokenizer."""
    place = tmp_path_factory.mktemp("pair")
    base, dream = qwen.published(place / "base"), masked.published(place / "dream", "dream")
    shutil.copy(dream / "tokenizer.json", base)
    return base, dream


def caesura(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "caesura", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)


def test_fill_loads_both_models_and_the_status_names_them(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, dream = pair
    file = tmp_path / "file.py"
    file.write_text("def area(a, b):\n    \n")
    asked = ("fill", file, "--at", "2:5", "--model", base, "--json", "--least", "0", "--device", "cpu")
    drafted, plain = (caesura(*asked, *more) for more in (("--draft", dream), ()))
    assert (drafted.returncode, plain.returncode) == (0, 0), drafted.stderr + plain.stderr
    assert json.loads(drafted.stdout)["steps"] > json.loads(plain.stdout)["steps"], "steps of the other model count"
    models = {engine["model"] for engine in json.loads(caesura("status", "--json").stdout)["engines"]}
    assert models == {str(base), f"{base} with drafts of {dream}"}


def test_models_that_are_no_pair_are_refused_in_a_sentence(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = pair
    refused = caesura("engine", "--model", base, "--draft", base, "--device", "cpu")
    assert refused.returncode == 1
    assert "has no canvas and cannot draft" in refused.stderr
    missing = caesura("engine", "--model", base, "--draft", tmp_path / "nothing")
    assert missing.returncode == 1
    assert str(tmp_path / "nothing") in missing.stderr
