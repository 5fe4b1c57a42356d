"""Models damaged at random, and what fuzzing has found. bench/fuzz.py does more of it, in processes of its own."""

import argparse
import importlib
import json
import math
import shutil
import tempfile
from pathlib import Path

import pytest

from caesura.engine import models
from caesura.engine.model import ModelError
from caesura.engine.weights import stored

from ...support.checkpoints import tiny
from ...support.processes.mutants import Folders
from ...support.processes.strangers import visit


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("mutants"))


def try_(folders: Folders, numbers: range) -> None:
    outcomes = {folders.mutant(number).split(" ", 2)[-1] for number in numbers}
    assert {"refused", "loaded, Done"} <= outcomes


def test_a_damaged_model_is_refused_in_a_sentence_or_fills(folders: Folders) -> None:
    try_(folders, range(30))


@pytest.mark.long
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_damaged_models(folders: Folders, thousand: int) -> None:
    try_(folders, range(1000 * thousand, 1000 * (thousand + 1)))


async def test_an_engine_works_on_while_strangers_send_damaged_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tempfile.mkdtemp(prefix="caesura-")  # a short path, for a socket
    monkeypatch.setenv("CAESURA_RUNTIME", folder)
    monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/state")
    monkeypatch.setenv("CAESURA_IDLE_EXIT", "0.5")
    seen = await visit(500, seed=1)
    shutil.rmtree(folder, ignore_errors=True)
    assert seen.wrong == []
    assert seen.served == 10
    assert seen.dropped > 250
    assert seen.grown_mib < 20


def test_a_part_of_the_fuzzing_that_grows_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench"))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # it imports what lies beside it
    fuzz = importlib.import_module("fuzz")
    few = argparse.Namespace(seconds=1, frames=500, sent=0, files=0, seed=0)
    assert fuzz.apart("frames", few)["escapes"] == []
    monkeypatch.setitem(fuzz.BOUNDS, "frames", -1)
    [sentence] = fuzz.apart("frames", few)["escapes"]
    assert sentence.startswith("it grew by")


def test_more_layers_than_memory_has_room_for(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_layers": 2**31}))
    stored.write_manifest(folder, {})
    with pytest.raises(ModelError, match="2147483648 layers"):
        models.load(str(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"num_heads": math.inf},
        {"rope_theta": 10**400},
        {"rope_theta": math.inf},
        {"rms_norm_eps": math.nan},
        {"separator": "\ud800"},
        {"name": ["\udfff"]},
    ],
    ids=str,
)
def test_what_is_no_number_or_no_text_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    folder = tiny.make(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    stored.write_manifest(folder, {})
    with pytest.raises(ModelError, match=r"config\.json is damaged|no readable config\.json"):
        models.load(str(folder))


@pytest.mark.parametrize("change", [{"model_type": "a" * 100_000}, {"sampler": "a\n" * 100_000}])
def test_a_name_of_any_length_makes_no_endless_sentence(tmp_path: Path, change: dict[str, str]) -> None:
    folder = tiny.make(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    stored.write_manifest(folder, {})
    with pytest.raises(ModelError) as refused:
        models.load(str(folder))
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)
