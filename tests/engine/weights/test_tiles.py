"""Matrices in tiles: those in a file are those in memory, and a cache that fails costs nothing else."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from caesura import model_store, paths
from caesura.engine.weights import forms, stored
from caesura.engine.weights.sources import CodedParts, InMemory
from caesura.engine.weights.stored import WeightsError
from caesura.engine.weights.tiles import Packing, Tiles, file, kept
from caesura.engine.weights.tiles.file import TILES, Mapped, write
from caesura.kernels import cpu
from caesura.kernels.cpu import F32

pytestmark = pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")

FORMS = {"qkv": "k4", "out": "q4", "embed": "q8", "gate": ""}
N, K = 37, 96


def parts_of(form: str, weight: F32) -> tuple[np.ndarray, ...]:
    return forms.quantised(form, weight)


class Made(InMemory):
    """A matrix in each form, some rows that are read as they are, and a norm."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(
            {
                name: torch.randn(*size, generator=torch.Generator().manual_seed(seed + number)).numpy()
                for number, (name, size) in enumerate(
                    {**dict.fromkeys(FORMS, (N, K)), "special": (2, K), "norm": (K,), "up": (N, 8)}.items()
                )
            }
        )

    def form(self, name: str) -> str:
        return FORMS.get(name, "")

    def parts(self, name: str) -> tuple[str, CodedParts]:
        form = self.form(name)
        return (form, forms.quantised(form, self.floats(name))) if form else ("", ())


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write(tmp_path, "base", Packing(Made()))
    return tmp_path / f"base-1{TILES}"


def test_a_file_has_the_tiles_of_memory(written: Path) -> None:
    mapped, packing = Mapped(written), Packing(Made())
    for name in (*FORMS, "special", "up"):
        size = packing.shape(name)
        assert mapped.shape(name) == size
        ours, theirs = (of.matrix(name, (size[0], size[1])) for of in (mapped, packing))
        x = np.random.default_rng(0).standard_normal((3, size[1]), np.float32)
        assert [one.tiles.tobytes() for one in ours.matrices] == [one.tiles.tobytes() for one in theirs.matrices]
        assert np.array_equal(ours.product(x), theirs.product(x))
        assert not any(one.tiles.flags.owndata or one.tiles.flags.writeable for one in ours.matrices)
    for name in ("special", "norm"):
        assert np.array_equal(mapped.floats(name, packing.shape(name)), Made().floats(name))
    assert "qkv" in mapped
    assert "norm" in mapped
    assert "other" not in mapped


def test_a_source_may_have_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LARGEST", 8000)
    write(tmp_path, "base", Packing(Made()))
    files = [tmp_path / f"base-{number}{TILES}" for number in range(1, len([*tmp_path.iterdir()]) + 1)]
    assert len(files) > 2
    assert all(path.stat().st_size < 12_000 for path in files)
    mapped, packing = Mapped(*files), Packing(Made())
    for name in FORMS:
        x = np.ones((1, K), np.float32)
        assert np.array_equal(mapped.matrix(name, (N, K)).product(x), packing.matrix(name, (N, K)).product(x))
    for left in range(len(files)):
        with pytest.raises(WeightsError, match="damaged"):
            everything(Mapped(*files[:left], *files[left + 1 :]))


def everything(tiles: Mapped) -> None:
    for name in FORMS:
        tiles.matrix(name, (N, K))
    for name, size in {"special": (2, K), "norm": (K,)}.items():
        tiles.floats(name, size)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (16, 64), (37, 96), (130, 1120)])
def test_rows_gathered_from_tiles_are_those_of_the_codes(rows: int, columns: int) -> None:
    codes, scale = parts_of("q8", torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).numpy())
    ids = np.array([0, rows - 1, rows // 2, 0])
    found = cpu.Matrix("q8", codes, scale).restored(ids)
    assert np.array_equal(found, stored.restored("q8", codes, scale)[ids])


@pytest.mark.parametrize("form", stored.FORMS)
def test_a_number_of_the_layout_means_these_bytes(form: str) -> None:
    """Whoever changes the tiles in cpu.h counts LAYOUT up, so that no file of older ones is mapped."""
    codes = np.arange(N * K, dtype=np.int64).reshape(N, K) * 7919 % 251
    half, byte = (codes[:, : K // 32] / 512).astype(np.float16), codes[:, : K // 2].astype(np.uint8)
    parts = {
        "q8": ((codes - 125).astype(np.int8), half),
        "q4": (byte, half, -half),
        "k4": (byte, byte[:, : K // 32], byte[:, 3 : 3 + K // 32], half[:, :2]),
    }
    found = hashlib.sha256(cpu.Matrix(form, *parts[form]).tiles.tobytes()).hexdigest()[:16]
    assert (cpu.LAYOUT, found) == (1, BYTES[form])


BYTES = {"q8": "bfdb89ea9e068405", "q4": "4a2dc0629291edda", "k4": "db6111eff6793b6a"}


def test_weights_that_are_missing_or_have_another_size_are_said_when_they_are_packed() -> None:
    packing = Packing(Made())
    for ask in (packing.matrix, packing.rows, packing.floats):
        with pytest.raises(WeightsError, match="lack the tensor other"):
            ask("other", (N, K))
        with pytest.raises(WeightsError, match=r"embed has shape \[37, 96\], not \[38, 96\]"):
            ask("embed", (N + 1, K))


def test_parts_that_do_not_fit_together_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, scales = parts_of("q8", Made().floats("embed"))
    monkeypatch.setattr(Made, "parts", lambda *_: ("q8", (codes, scales[:-1])))
    with pytest.raises(WeightsError, match="qkv is damaged"):
        Packing(Made()).matrix("qkv", (N, K))


@pytest.mark.parametrize("missing", [np.s_[:-1], np.s_[:, :-1]], ids=["rows", "columns"])
def test_an_embedding_whose_parts_do_not_fit_together_is_said_before_a_pass(tmp_path: Path, missing: Any) -> None:
    codes, scales = parts_of("q8", Made().floats("embed"))
    parts = {"embed.q8": codes, "embed.scale": np.ascontiguousarray(scales[missing])}
    save_file(parts, tmp_path / "base.safetensors")
    with pytest.raises(WeightsError, match="embed is damaged"):
        Packing(stored.Stored(tmp_path / "base.safetensors")).rows("embed", (N, K))


def test_a_file_that_is_cut_or_of_another_layout_is_refused(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = written.read_bytes()
    for count in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        written.write_bytes(whole[:count])
        with pytest.raises(WeightsError, match="damaged"):
            Mapped(written)
    written.write_bytes(whole)
    monkeypatch.setattr(file, "LAYOUT", cpu.LAYOUT + 1)
    with pytest.raises(WeightsError, match="another layout"):
        Mapped(written)


def test_a_tensor_of_another_size_is_refused(written: Path) -> None:
    mapped = Mapped(written)
    for name, size in (("qkv", (N + 1, K)), ("qkv", (N, K + 32)), ("other", (N, K)), ("norm", (N, K))):
        with pytest.raises(WeightsError, match="damaged"):
            mapped.matrix(name, size)
    with pytest.raises(WeightsError, match="damaged"):
        mapped.floats("norm", (K + 1,))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"\"k4\",37,96", rb"\"q8\",37,96"),
        (rb"\"k4\",37,96", rb"\"k4\",99,96"),
        (rb'"dtype":"U8"', rb'"dtype":"U9"'),
        (rb'"data_offsets":[0,', rb'"data_offsets":[8,'),
    ],
)
def test_a_header_that_lies_is_refused(written: Path, old: bytes, new: bytes) -> None:
    whole = written.read_bytes()
    assert old in whole
    written.write_bytes(whole.replace(old, new, 1))

    def read() -> None:
        for name in FORMS:
            Mapped(written).matrix(name, (N, K))

    with pytest.raises(WeightsError, match="damaged"):
        read()


def parts_in(folder: Path, name: str, *forms_of: str) -> Mapped:
    """A file with one matrix [2 N, K] in parts of these forms, or [N, K] in one."""
    matrices = [cpu.Matrix(form, *parts_of(form, Made().floats("embed"))) for form in forms_of]
    tensors = {f"{name}.{number}": matrix.tiles for number, matrix in enumerate(matrices)}
    path = folder / f"base-1{TILES}"
    file.write_file(path, tensors, {name: [(form, N, K) for form in forms_of]})
    return Mapped(path)


def test_a_matrix_without_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"damaged .*no parts"):
        parts_in(tmp_path, "layers.0.qkv.a")


@pytest.mark.parametrize("in_forms", [("q8", "q8"), ("q4",), ("k4",)], ids=str)
def test_an_embedding_in_another_form_is_refused(tmp_path: Path, in_forms: tuple[str, ...]) -> None:
    with pytest.raises(WeightsError, match=r"damaged .*embed is not one matrix of 8 bits"):
        parts_in(tmp_path, "embed", *in_forms).rows("embed", (len(in_forms) * N, K))


def test_floats_at_an_odd_address_are_refused(tmp_path: Path) -> None:
    path = tmp_path / f"base-1{TILES}"
    file.write_file(path, {"odd": np.zeros(1, np.uint8), "norm": np.ones(K, np.float32)}, {})
    with pytest.raises(WeightsError, match=r"damaged .*begins within a number"):
        Mapped(path)


HUGE = 2**61 + 16  # rows or columns whose tiles have few bytes, modulo 2^64


@pytest.mark.parametrize(("rows", "columns", "count"), [(HUGE, 896, 15_232), (1152, HUGE, 41_472), (2**70, 32, 64)])
def test_a_size_that_overflows_is_refused(rows: int, columns: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"its tiles have {count} bytes"):
        cpu.Matrix.over("q8", rows, columns, cpu.aligned(count))


# ---- the cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder, and a cache of its own."""
    monkeypatch.setattr(paths, "tiles", lambda: tmp_path / "cache" / "tiles")
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    stored.write_manifest(made, {})
    return made


def sources() -> dict[str, Packing]:
    return {"base": Packing(Made()), "adapter": Packing(Made(1))}


def nothing() -> dict[str, Packing]:
    raise AssertionError("the model's own files are not read")


def loaded(folder: Path, asked: Callable[[], dict[str, Packing]]) -> dict[str, Tiles]:
    """The tiles that a model is built of."""
    return kept.loaded(folder, asked, dict)


def entries() -> list[Path]:
    return [*paths.tiles().iterdir()]


def test_the_second_start_maps_what_the_first_made(folder: Path) -> None:
    for asked in (sources, nothing):
        found = loaded(folder, asked)
        assert isinstance(found["base"], Mapped)
        assert sorted(found) == ["adapter", "base"]
        x = np.ones((1, K), np.float32)
        for name, packing in sources().items():
            ours, theirs = (of.matrix("qkv", (N, K)).product(x) for of in (found[name], packing))
            assert np.array_equal(ours, theirs)
    assert (paths.tiles().stat().st_mode & 0o777) == 0o700
    assert entries() == [kept.place(folder)]


def other(folder: Path, name: str) -> Path:
    """A folder of the same name elsewhere, with another model or an equal one."""
    made = folder.parent / "elsewhere" / folder.name
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}")
    stored.write_manifest(made, {"name": name} if name else {})
    return made


def test_models_of_the_same_name_keep_their_tiles(folder: Path) -> None:
    loaded(folder, sources)
    loaded(other(folder, "other"), sources)
    assert isinstance(loaded(folder, nothing)["base"], Mapped)
    assert len(entries()) == 2


def test_equal_models_share_their_tiles(folder: Path) -> None:
    loaded(folder, sources)
    loaded(other(folder, ""), nothing)


def test_two_layouts_keep_their_tiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(folder, sources)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "LAYOUT", kept.LAYOUT + 1)
        loaded(folder, sources)
    loaded(folder, nothing)


def test_no_name_of_a_folder_leaves_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    bystander = paths.tiles().parent / "bystander"
    bystander.mkdir(parents=True)
    loaded(Path(".."), sources)
    assert bystander.is_dir()
    assert kept.place(Path("..")).parent == paths.tiles()


def test_tiles_go_a_month_after_their_last_use(folder: Path) -> None:
    loaded(folder, sources)
    ours, unused = kept.place(folder), paths.tiles() / "unused"
    unused.mkdir()
    for entry, days in ((ours, 31), (unused, 29)):
        os.utime(entry, (time.time() - days * 24 * 3600,) * 2)
    loaded(folder, nothing)  # a use
    assert sorted(entries()) == sorted([ours, unused])
    os.utime(unused, (time.time() - 31 * 24 * 3600,) * 2)
    loaded(folder, nothing)
    assert entries() == [ours]


def test_a_cache_that_cannot_be_written_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert isinstance(loaded(folder, sources)["base"], Packing)
    assert not entries()


def test_a_cache_that_others_can_write_is_not_used(folder: Path) -> None:
    loaded(folder, sources)
    paths.tiles().chmod(0o777)
    os.utime(kept.place(folder), (0, 0))
    assert isinstance(loaded(folder, sources)["base"], Packing)
    assert len(entries()) == 1


def test_of_two_processes_that_make_them_one_is_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other has finished between the look and the end."""
    where, packings = kept.place(folder), sources()
    kept.made(where, packings)
    kept.made(where, packings)
    monkeypatch.setattr(kept, "write", lambda folder, *_: shutil.rmtree(folder, ignore_errors=True))
    kept.made(where, packings)
    assert isinstance(loaded(folder, nothing)["base"], Mapped)
    shutil.rmtree(where)
    with pytest.raises(OSError, match="making"):
        kept.made(where, packings)


def test_tiles_that_another_process_removes_are_made_again_in_the_same_start(folder: Path) -> None:
    loaded(folder, sources)
    builds = list[dict[str, Tiles]]()

    def build(tiles: Mapping[str, Tiles]) -> dict[str, Tiles]:
        builds.append({**tiles})
        return builds[-1]

    with pytest.MonkeyPatch.context() as patch:

        def removed(folder: Path, found: Callable[[Path], list[str]] = model_store.damaged) -> list[str]:
            patch.undo()
            shutil.rmtree(folder)
            return found(folder)

        patch.setattr(model_store, "damaged", removed)
        kept.loaded(folder, sources, build)
    assert [type(tiles["base"]) for tiles in builds] == [Mapped, Mapped]
    assert isinstance(loaded(folder, nothing)["base"], Mapped)


DAMAGES = [lambda whole: whole[:-1] + b"x", lambda whole: whole[:-1], lambda whole: b""]


@pytest.mark.parametrize("change", DAMAGES)
@pytest.mark.parametrize("name", [f"base-1{TILES}", "manifest.json"])
def test_damaged_tiles_are_made_again_in_the_same_start(
    folder: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    loaded(folder, sources)
    path = kept.place(folder) / name
    path.write_bytes(change(path.read_bytes()))
    assert isinstance(loaded(folder, sources)["base"], Mapped)
    assert isinstance(loaded(folder, nothing)["base"], Mapped)


@pytest.mark.parametrize("change", DAMAGES)
def test_damaged_tiles_that_cannot_be_removed_are_packed_in_memory(
    folder: Path, change: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(folder, sources)
    path = kept.place(folder) / f"base-1{TILES}"
    path.write_bytes(change(path.read_bytes()))
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert isinstance(loaded(folder, sources)["base"], Packing)


def test_a_model_that_cannot_be_built_keeps_its_tiles(folder: Path) -> None:
    """They are not what is wrong."""
    loaded(folder, sources)

    def build(_: Mapping[str, Tiles]) -> None:
        raise WeightsError("Its sizes differ.")

    with pytest.raises(WeightsError, match="Its sizes differ"):
        kept.loaded(folder, nothing, build)
    loaded(folder, nothing)


# ---- a model folder that has tiles


@pytest.fixture
def installed(folder: Path) -> Path:
    """As a distribution of weights is installed."""
    for name, packing in sources().items():
        write(folder, name, packing)
    stored.write_manifest(folder, {})
    return folder


def test_the_tiles_of_a_folder_are_mapped_there_without_a_cache(installed: Path) -> None:
    found = loaded(installed, nothing)
    assert sorted(found) == ["adapter", "base"]
    assert np.array_equal(found["adapter"].floats("norm", (K,)), Made(1).floats("norm"))
    assert not kept.place(installed).exists()


def test_damaged_tiles_of_a_folder_stay_and_are_said(installed: Path) -> None:
    path = installed / f"base-1{TILES}"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(WeightsError, match=r"base-1\.tiles\.safetensors is damaged .*; install the model again"):
        loaded(installed, nothing)
    assert path.is_file()
