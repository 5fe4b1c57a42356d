"""Models as a user names, lists and adds them. Distributions are folders on Python's path, as pip leaves them."""

import hashlib
import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from caesura import cli, model_store, paths, speeds
from caesura.client.backend import EngineUnavailable
from caesura.client.shared import Engine
from caesura.engine.models import audit
from caesura.engine.tokens.tokenizer_file import QWEN
from caesura.engine.weights.stored import WeightsError
from caesura.ipc import rendezvous
from caesura.server.options import Options, parse

from ..engine.weights import test_gguf

Install = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing is installed and nothing was measured."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(model_store, "PACKAGES", {name: f"test_only_{name}" for name in model_store.PACKAGES})
    model_store._say_renamed.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A distribution with one file of weights, or another model folder of our form elsewhere."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)

    def made(name: str, weights: bytes = b"weights", **about: object) -> Path:
        folder = site / f"test_only_{name}"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise AssertionError('a model is looked at, not imported')\n")
        (folder / "base.safetensors").write_bytes(weights)
        hashes = {"base.safetensors": hashlib.sha256(weights).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps({**about, "files": hashes}))
        return folder

    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def ask(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["models", *map(str, arguments)])
        return code, *capsys.readouterr()

    return ask


def split(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    files = [folder / f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for file in files:
        file.write_bytes(b"GGUF")
    return files


@pytest.fixture
def any_file_loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What the engine was asked to check."""
    asked = list[Path]()
    monkeypatch.setattr(audit, "check", asked.append)
    return asked


# Names


def test_the_default_is_coder_where_it_is_installed_else_small(install: Install) -> None:
    install("small")
    assert model_store.resolve("default") == "small"
    coder = install("coder")
    assert model_store.resolve("default") == "coder"
    assert model_store.locate("default") == coder
    (coder / "base.safetensors").unlink()  # as in a clone that has no weights of it
    assert model_store.resolve("default") == "small"
    assert model_store.names() == ["small"]


def test_where_nothing_is_installed_one_sentence_says_what_to_run(run: Run) -> None:
    with pytest.raises(model_store.NoModel) as refused:
        model_store.resolve("default")
    assert re.fullmatch(r"No model is installed: run `\S+ -m pip install \S+/models/coder`\.", str(refused.value))
    assert run() == (0, f"{refused.value}\n", "")
    code, out, err = run("show", "small")
    assert (code, out) == (1, "")
    assert re.fullmatch(r"caesura: The model small is not installed: run `\S+ -m pip install \S+/small`\.\n", err)


async def test_a_server_without_a_model_says_so_and_finds_one_that_is_installed_later(install: Install) -> None:
    engine = Engine(client="test", model="default", command=[sys.executable, "-c", ""])
    await engine.start()
    try:
        with pytest.raises(EngineUnavailable):
            await engine.ready(0.2)
        assert engine.condition.message.startswith("No model is installed: run ")
    finally:
        await engine.close()


def test_an_old_setting_means_small_and_is_told_once(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    folder = install("small")
    settings, problems = parse({"model": "embedded"})
    assert problems == []
    with caplog.at_level(logging.WARNING):
        assert model_store.resolve(settings.model) == "small"
        assert model_store.locate("embedded") == folder
        assert rendezvous.place("embedded", "cuda") == rendezvous.place("small", "auto")
    assert [record.getMessage() for record in caplog.records] == [
        "The model `embedded` is called `small` now; change your setting to that, or to `default`."
    ]
    assert Options().model == "default"


def test_a_file_is_named_by_its_path_and_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert model_store.resolve("x.gguf") == model_store.resolve(str(file)) == str(file)
    before = model_store.identity("x.gguf")
    assert before.startswith(str(file))
    file.write_bytes(b"GGUF, longer")
    assert model_store.identity(str(file)) != before
    (tmp_path / "main.py").touch()
    with pytest.raises(model_store.NoModel, match=r"^There is no model 'main.py'; `caesura models` lists"):
        model_store.locate("main.py")


# The list


def test_the_list_says_what_a_model_takes_and_how_fast_it_was(install: Install, run: Run) -> None:
    install("small", b"x" * 2_000_000, licence="Apache-2.0", memory_mb=650)
    install("coder", b"y" * 3_000_000, license="MIT")
    speeds.record(model_store.identity("coder"), speeds.Speed("2026-11-25", "cpu", 41.2, 300.0, 712.4))
    out = run()[1]
    assert out == run("list")[1]
    assert [re.split(r"  +", line) for line in out.splitlines()] == [
        ["name", "on disk", "memory", "licence", "speed on this machine"],
        ["coder (default)", "3 MB", "712 MiB", "MIT", "41 ms a token"],
        ["small", "2 MB", "650 MiB", "Apache-2.0", "not measured: caesura doctor"],
    ]
    coder, small = json.loads(run("--json")[1])["models"]
    assert (coder["name"], coder["default"], coder["speed"]["token_ms"]) == ("coder", True, 41.2)
    assert (small["default"], small["speed"], small["memory_mb"]) == (False, None, 650)
    assert 2_000_000 < small["bytes"] < 2_001_000


def test_a_speed_is_of_the_model_that_was_measured(install: Install, run: Run) -> None:
    folder = install("small")
    speeds.record(model_store.identity("small"), speeds.Speed("2026-11-25", "cpu", 41.2, 300.0, 712.4))
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text() + "\n")  # another version
    assert "not measured" in run()[1]
    speeds.file().write_text("{")
    assert "not measured" in run()[1]


def test_a_model_is_shown_without_its_hashes_and_answers(install: Install, run: Run) -> None:
    folder = install("small", base="SmolLM2", canary={"context": list(range(12)), "logp": [-0.5]})
    out = run("show", "small")[1]
    assert out.splitlines()[0] == f"folder: {folder}"
    assert "base: SmolLM2\n" in out
    assert "canary: recorded\n" in out
    assert "files: base.safetensors\n" in out
    assert not re.search(r"[0-9a-f]{64}|\[", out)
    shown = json.loads(run("show", "small", "--json")[1])
    assert len(shown["files"]["base.safetensors"]) == 64
    assert shown["canary"]["context"] == list(range(12))


@pytest.mark.parametrize("name", ["small", "coder"])
def test_a_distribution_is_verified(name: str, install: Install, run: Run) -> None:
    folder = install(name)
    assert run("verify", name)[1] == f"{name}: 1 files, all whole.\n"
    (folder / "base.safetensors").write_bytes(b"weightz")
    assert "base.safetensors of" in run("verify", name)[2]


# Models of one's own


def test_a_folder_is_added_by_name(tiny_folder: Path, run: Run) -> None:
    assert run("add", tiny_folder, "--name", "mine")[:2] == (
        0,
        "mine: use it with `--model mine`, or by that name in the setting `model`.\n",
    )
    assert model_store.names() == ["mine"]
    assert model_store.identity("mine") == model_store.identity(str(tiny_folder))
    assert run("verify", "mine")[0] == 0
    assert (paths.models() / "mine").is_symlink()


def test_a_file_is_added_under_its_own_name(tmp_path: Path, any_file_loads: list[Path], run: Run) -> None:
    file = tmp_path / "Qwen2.5-Q4_0.gguf"
    test_gguf.write(file, vocabulary=(QWEN, "qwen2"))
    code, out, _ = run("add", file, "--json")
    link = paths.models() / "Qwen2.5-Q4_0" / file.name
    assert (code, json.loads(out)) == (0, {"name": "Qwen2.5-Q4_0", "path": str(link)})
    assert any_file_loads == [file]
    assert model_store.resolve("Qwen2.5-Q4_0") == str(link)
    assert model_store.identity("Qwen2.5-Q4_0") == model_store.identity(str(file))
    assert "Qwen2.5-Q4_0  0 MB" in run()[1]
    (about,) = json.loads(run("--json")[1])["models"]
    assert about["memory_mb"] > 0.1  # by its shapes
    shown = run("show", "Qwen2.5-Q4_0")[1]
    assert shown.startswith(f"file: {link}\nsize: {link.stat().st_size:,} bytes\n")
    assert "model_type: qwen2\nformat: F16, F32\nlayers: 2\n" in shown


def test_a_file_that_is_gone_hides_no_other_model(
    tmp_path: Path, install: Install, any_file_loads: list[Path], run: Run
) -> None:
    install("small")
    file = tmp_path / "gone.gguf"
    file.write_bytes(b"GGUF")
    assert run("add", file)[0] == 0
    file.unlink()
    code, out, _ = run()
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["small"]


def test_all_parts_of_a_split_file_are_added(tmp_path: Path, any_file_loads: list[Path], run: Run) -> None:
    first, second = split(tmp_path / "parts")
    assert run("add", second)[0] == 0
    assert model_store.locate("big").name == first.name
    assert {path.name for path in (paths.models() / "big").iterdir()} == {first.name, second.name}
    assert run("add", tmp_path / "parts", "--name", "again")[0] == 0
    assert any_file_loads == [second, first]
    assert run()[1].count("not known") == 2  # nothing that can be loaded


def test_where_there_are_no_links_a_model_is_copied(
    tmp_path: Path, tiny_folder: Path, any_file_loads: list[Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("a required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refused)
    split(tmp_path / "parts")
    assert run("add", tmp_path / "parts" / "big-00001-of-00002.gguf")[0] == 0
    assert run("add", tiny_folder, "--name", "mine")[0] == 0
    assert model_store.locate("big").read_bytes() == b"GGUF"
    assert model_store.damaged(paths.models() / "mine") == []


def test_what_cannot_be_loaded_is_not_added(
    tmp_path: Path, tiny_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for path, sentence in ((tmp_path / "empty", "is not a model folder"), (tmp_path / "nothing", "There is no model")):
        code, _, err = run("add", path)
        assert code == 1
        assert sentence in err
        assert err.count("\n") == 1

    def check(path: Path) -> None:
        raise WeightsError("x.gguf is a vision model, which Caesura cannot run.")

    monkeypatch.setattr(audit, "check", check)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert run("add", tmp_path / "x.gguf")[2] == "caesura: x.gguf is a vision model, which Caesura cannot run.\n"
    assert model_store.names() == []


@pytest.mark.parametrize("damage", ["base.safetensors", "manifest.json", "tokenizer.json"])
def test_a_folder_with_a_file_missing_is_not_added(damage: str, tiny_folder: Path, tmp_path: Path, run: Run) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_folder.iterdir():
        if file.name != damage:
            (broken / file.name).write_bytes(file.read_bytes())
    assert damage in run("add", broken)[2]


@pytest.mark.parametrize("name", ["default", "embedded", "coder", "small", ".hidden"])
def test_a_name_that_means_something_else_is_refused(name: str, tiny_folder: Path, run: Run) -> None:
    assert run("add", tiny_folder, "--name", name)[2].endswith("choose another name with --name.\n")


def test_a_name_is_given_once(tiny_folder: Path, run: Run) -> None:
    assert run("add", tiny_folder)[0] == 0
    assert "There is a model 'tiny' already" in run("add", tiny_folder)[2]
