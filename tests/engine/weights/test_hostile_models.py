"""Model folders that somebody else made: every command that reads one ends soon and says why in one printable line."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from caesura import cli
from caesura.engine.models import audit
from caesura.model_store import reading

from ...support.checkpoints import gemma, qwen
from ...support.processes import hostile_models

EVIL = "\x1b]0;pwn\x07\x1b[31m\u202e\u3164\nready: FAKE" + "x" * 1000
Break = Callable[[Path], object]


def changed(name: str, **changes: Any) -> Break:
    def change(folder: Path) -> None:
        path = folder / name
        said = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(said | changes))

    return change


def stored(folder: Path, **tensors: Any) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **tensors}, path)


def typed(folder: Path) -> None:
    """A dtype that there is not."""
    header = json.dumps({"a": {"dtype": EVIL, "shape": [1], "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0")


def with_token(folder: Path) -> None:
    token = {"content": EVIL[:200], **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)}
    changed("tokenizer.json", added_tokens=[{"id": 3, "special": True, **token}])(folder)


def sharded(folder: Path, place: str) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place, EVIL: place}}))


BROKEN: dict[str, Break] = {
    "a type": changed("config.json", model_type=EVIL),
    "a class": changed("config.json", architectures=[EVIL]),
    "an activation": changed("config.json", hidden_act=EVIL),
    "a size": changed("config.json", hidden_size=EVIL),
    "a rotary scaling": changed("config.json", rope_scaling={"type": EVIL}, rope_parameters=None),
    "an experts' score": changed("config.json", num_experts=2, score_function=EVIL),
    "a tensor": lambda folder: stored(folder, **{EVIL: torch.zeros(1)}),
    "a dtype": typed,
    "a decoder": changed("tokenizer.json", decoder={"type": EVIL}),
    "a kind of tokenizer": changed("tokenizer.json", model={"type": EVIL}),
    "an added token": with_token,
    "a shard": lambda folder: sharded(folder, EVIL),
    "a tensor of a shard": lambda folder: sharded(folder, "model-00001-of-00001.safetensors"),
    "a file of a manifest": changed("manifest.json", files={f"../{EVIL}": ""}),
    "half a character": lambda folder: (folder / "config.json").write_text('{"model_type": "\\ud800"}'),
    "a number without end": lambda folder: (folder / "config.json").write_text('{"hidden_size": ' + "9" * 10**6 + "}"),
    "nesting without end": lambda folder: (folder / "config.json").write_text('{"a":' * 10**5),
}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("case", BROKEN)
def test_no_word_of_a_model_acts_on_the_terminal(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen.published(tmp_path / "model")
    BROKEN[case](folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = "verify" if "manifest" in case else "add"
    assert cli.main(["models", command, str(folder)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.removesuffix("\n").isprintable()
    assert "\u3164" not in err
    assert len(err) < 600 + 2 * len(str(folder))
    assert err.endswith(".\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not list((tmp_path / "data").glob("caesura/models/*"))


def test_nor_do_those_of_one_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen.published(tmp_path / "model")
    assert cli.main(["models", "add", str(folder)]) == 0
    changed("manifest.json", files={}, licence=EVIL, **{EVIL: EVIL})(folder)
    for words in ([], ["show", "model"], ["verify", "model"]):
        cli.main(["models", *words])
        said = "".join(capsys.readouterr())
        assert not set("\x1b\x07\u202e\u3164") & set(said)
        assert "\nready" not in said


@pytest.mark.skipif(sys.platform != "linux", reason="limits and /proc are Linux's")
def test_no_file_of_a_model_is_waited_for_or_read_without_end(tmp_path: Path) -> None:
    """A pipe, an endless device and 8 GB of holes in the place of every file of four models."""
    folders = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, hostile_models.__file__, str(tmp_path)]
    ran = subprocess.run(command, env=os.environ | folders, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    tried = json.loads(ran.stdout)
    assert len(tried) > 120
    refused = set()
    for folder, name, obstacle, word, code, said in tried:
        if code:
            assert said.startswith("caesura: "), (folder, name, obstacle, word)
            assert said.removesuffix("\n").isprintable(), (folder, name, obstacle, word)
            assert name in said, (folder, name, obstacle, word)
            refused.add((folder, name, obstacle))
    assert refused == {tuple(case[:3]) for case in tried}


def test_shards_without_their_index_are_told_by_the_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = gemma.published(tmp_path / "model")
    (folder / "model.safetensors.index.json").unlink()
    for command in ("add", "show", "verify"):
        assert cli.main(["models", command, str(folder)]) == 1
        assert "neither model.safetensors nor model.safetensors.index.json" in capsys.readouterr().err


def test_a_canary_is_not_written_through_a_link(tmp_path: Path) -> None:
    folder, mine = gemma.published(tmp_path / "model"), tmp_path / "mine"
    mine.write_text("of the user")
    (folder / audit.CANARY).symlink_to(mine)
    audit.record(folder, "cpu")
    assert mine.read_text() == "of the user"
    assert audit.canary(folder, "cpu") > 0


@pytest.mark.parametrize("length", [65, 100_000])
def test_a_canary_of_any_length_is_not_computed(length: int, tmp_path: Path) -> None:
    folder = gemma.published(tmp_path / "model")
    audit.record(folder, "cpu")
    changed(audit.CANARY, prompt=[1] * length)(folder)
    with pytest.raises(reading.UnusableModel, match=r"canary\.json is damaged.*--record"):
        audit.canary(folder, "cpu")
