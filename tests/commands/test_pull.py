"""`caesura models pull`, from a hub on loopback: what is taken, what is asked, and how each failure is said."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable

import pytest
from huggingface_hub import constants

from caesura import model_store, paths
from caesura.engine.models import load

from ..support.processes import hub as hubs
from ..support.processes.hub import COMMIT, NAME, Hub, Run

TAKEN = ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_pulled_model_is_used_by_name(hub: Hub, run: Run) -> None:
    code, out, err = run("pull", NAME)
    assert (code, out) == (0, "tiny: use it with `--model tiny`, or by that name in the setting `model`.\n")
    assert re.fullmatch(
        r"org/tiny at c0ffeec0ffee\n  download  0\.\d MB of 0\.\d MB\n"
        r"  memory    0\.\d MB of weights as stored \(GPU\), 0\.1 MB in 8 bits \(CPU\), 0\.\d MB in 4 bits and a "
        r"little more \(convert --to int4\), and its context\n"
        r"  licence   apache-2.0\n",
        err,
    )
    assert sorted(hub.got()) == TAKEN  # each once, and nothing else
    assert all(path.startswith((f"/api/models/{NAME}", f"/{NAME}/")) for _, path, _ in hub.requests)  # no telemetry
    folder = paths.models() / "tiny"
    assert model_store.manifest(folder) == model_store.Manifest(
        {name: hub.hash(hub.folder / name) for name in TAKEN}, "apache-2.0", repository=NAME, revision=COMMIT
    )
    assert all((folder / name).is_symlink() for name in TAKEN)
    assert run("verify", "tiny")[1] == "tiny: 3 files, all whole; every tensor in place; no canary.\n"
    assert re.search(r"^tiny +0 MB +\d+ MiB +apache-2.0", run()[1], re.MULTILINE)
    assert load("tiny").name == "tiny"


def test_a_second_pull_downloads_nothing_and_mends_the_folder(hub: Hub, run: Run) -> None:
    assert run("pull", NAME)[0] == 0
    (paths.models() / "tiny" / "config.json").unlink()
    hub.requests.clear()
    assert json.loads(run("pull", f"{NAME}@v1", "--json")[1]) == {
        "name": "tiny",
        "path": str(paths.models() / "tiny"),
        "repository": NAME,
        "revision": COMMIT,
        "licence": "apache-2.0",
    }
    assert hub.got() == []
    assert model_store.damaged(paths.models() / "tiny") == []
    assert run("add", str(hub.folder), "--name", "other")[0] == 0
    assert "There is a model 'other' already" in run("pull", NAME, "--name", "other")[2]


def test_weights_may_be_larger_than_other_files(hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, tokenizer = ((hub.folder / name).stat().st_size for name in ("model.safetensors", "tokenizer.json"))
    assert tokenizer < weights
    monkeypatch.setattr("caesura.model_store.reading.MAX_LARGE", tokenizer)
    assert run("pull", NAME)[0] == 0


def test_a_broken_connection_goes_on_where_it_broke(hub: Hub, run: Run) -> None:
    hub.cut = 50_000
    assert run("pull", NAME)[0] == 0
    assert [range for _, path, range in hub.requests if path.endswith(".safetensors") and range] == ["bytes=50000-"]
    assert model_store.damaged(paths.models() / "tiny") == []


def test_an_interrupted_pull_goes_on_in_the_next(hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    hub.cut = 50_000
    monkeypatch.setattr("time.sleep", interrupt)  # before it tries again
    code, _, err = run("pull", NAME)
    assert code == 1
    assert err.endswith("caesura: Interrupted; to finish, run the same command again; it resumes.\n")
    hub.requests.clear()
    assert run("pull", NAME)[0] == 0
    assert [range for method, _, range in hub.requests if method == "GET" and range] == ["bytes=50000-"]


def test_a_licence_that_is_not_free_is_asked_about(hub: Hub, run: Run) -> None:
    hub.licence = {"license": "other", "license_name": "apple-amlr\x1b[2J"}
    stated = f"org/tiny has the licence apple-amlr\\x1b[2J, which is not a free one; read {hub.address}/org/tiny"
    code, _, err = run("pull", NAME)
    assert (code, err.splitlines()[-1]) == (1, f"caesura: {stated} and add --yes if you agree.")
    code, _, err = run("pull", NAME, answer="\n")
    assert (code, err.splitlines()[-1]) == (1, f"{stated}. Download it? [y/N] caesura: Nothing was downloaded.")
    assert hub.got() == ["config.json"]
    assert run("pull", NAME, answer="y\n")[0] == 0
    assert run("pull", NAME, "--yes")[0] == 0


def test_a_gated_model_needs_a_token(hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated = True
    code, _, err = run("pull", NAME)
    assert code == 1
    assert err == (
        f"caesura: org/tiny is gated: accept its terms at {hub.address}/org/tiny with your account, then set HF_TOKEN, "
        "and run the same command again.\n"
    )
    monkeypatch.setenv("HF_TOKEN", hubs.TOKEN)
    assert run("pull", NAME)[0] == 0


def test_what_other_tools_have_downloaded_is_used_without_a_network(
    hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, _, err = run("pull", NAME)
    assert (code, hub.requests) == (1, [])
    assert re.fullmatch(r"caesura: org/tiny is not in \S+, and HF_HUB_OFFLINE is set; unset it to download\.\n", err)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert run("pull", NAME)[0] == 0
    shutil.rmtree(paths.models() / "tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run("pull", NAME, "--yes")[0] == 0
    assert model_store.damaged(paths.models() / "tiny") == []


def _wrong_hash(hub: Hub, _: pytest.MonkeyPatch) -> None:
    hub.hash = lambda file: hashlib.sha256(file.name.encode()).hexdigest()  # type: ignore[method-assign]


def _no_network(hub: Hub, _: pytest.MonkeyPatch) -> None:
    hub.server_close()
    hub.shutdown()


def _full_disk(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1_000_000))


def _disk_fills(_: Hub, patch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr("caesura.hub.cache.Partial.append", full)


def _other_family(hub: Hub, _: pytest.MonkeyPatch) -> None:
    (hub.folder / "config.json").write_text('{"model_type": "vision"}')


def _no_safetensors(hub: Hub, _: pytest.MonkeyPatch) -> None:
    (hub.folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("broken", "model", "sentence"),
    [
        (None, "org/none", r"http\S+ has no model org/none; check the name, or set HF_TOKEN if it is private."),
        (None, f"{NAME}@v9", r"org/tiny has no revision 'v9'; leave out `@v9` for the newest."),
        (None, "a--b/c", r"'a--b/c' is not a valid name of a model on a hub; give it as ORG/NAME."),
        (_wrong_hash, NAME, r"model.safetensors of org/tiny arrived damaged .*; run the same command again."),
        (
            _no_network,
            NAME,
            r"http\S+ cannot be reached; check the network and HF_ENDPOINT, then run the same .*; it resumes.",
        ),
        (
            _full_disk,
            NAME,
            r"The download takes 0.\d MB, and \S+ has 1.0 MB free; free some space, or set HF_HOME to .* disk.",
        ),
        (_disk_fills, NAME, r"\S+: No space left on device; free some space .*; it resumes."),
        (_other_family, NAME, r"Models of type 'vision' are not supported yet."),
        (_no_safetensors, NAME, r"org/tiny has no config.json with safetensors, .*; choose another model."),
    ],
)
def test_a_failure_is_one_sentence(
    broken: Callable[[Hub, pytest.MonkeyPatch], None] | None,
    model: str,
    sentence: str,
    hub: Hub,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if broken:
        broken(hub, monkeypatch)
    code, out, err = run("pull", model)
    assert (code, out) == (1, "")
    assert re.fullmatch(f"caesura: {sentence}", err.splitlines()[-1])
    assert list(paths.models().iterdir()) == []
