"""The decoder of a CPU without PyTorch gives the logits of the one with it, to the last bit."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from caesura import paths
from caesura.engine.cache import KV
from caesura.engine.model import LoadChoice, Run
from caesura.engine.models.llama import native, stored
from caesura.engine.models.llama.config import Config
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.models.llama.trunk import BlockLlama
from caesura.engine.scores import Scores
from caesura.engine.weights.packing import Merged, base_of
from caesura.engine.weights.sources import InMemory
from caesura.engine.weights.stored import Stored, WeightsError, write_manifest
from caesura.engine.weights.stored import q8 as stored_q8
from caesura.engine.weights.tiles import Packing, Tiles, kept
from caesura.engine.weights.tiles.file import write
from caesura.kernels import cpu, rotary
from caesura.model_store import CODER, SMALL, locate

from ....support.checkpoints import compared, tiny

pytestmark = pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")


def in_torch(folder: Path) -> BlockLlama:
    """The decoder with torch, over the C library's layers."""
    config = json.loads((folder / "config.json").read_text())
    model = stored.in_torch(folder, config, folder.name, Config.read(config))
    assert isinstance(model, BlockLlama)
    return model


def native_of(model: BlockLlama, tiles: Mapping[str, Tiles]) -> NativeLlama:
    given = tiles["base"], tiles.get("adapter")
    return NativeLlama(model.name, model.config, model.tokenizer, model.spec, *given)


def other(folder: Path, kind: str) -> None:
    """Give the tiny model what another kind has."""
    config = tiny.CONFIG | MORE[kind]
    (folder / "config.json").write_text(json.dumps(config))
    d, inner, base = 64, 96, load_file(folder / "base.safetensors")
    rng = torch.Generator().manual_seed(3)

    def random(*size: int) -> torch.Tensor:
        return (torch.randn(*size, generator=rng) / 8).half()

    if kind == "qwen3":  # norms of heads, and a head of its own
        base["head"] = random(tiny.VOCABULARY, d)
    for layer in range(2):
        name = f"layers.{layer}"
        if kind == "qwen3":
            base |= {f"{name}.{part}_norm": 1 + random(d // 2) for part in "qk"}
        else:  # layer norms, no gate, biases
            for stem in [key for key in base if key.startswith(f"{name}.gate_up.")]:
                del base[stem]
            base[f"{name}.gate_up"] = random(inner, d)
            sizes = {"qkv": 2 * d, "out": d, "gate_up": inner, "down": d, "attn_norm": d, "mlp_norm": d}
            base |= {f"{name}.{part}_bias": random(size) for part, size in sizes.items()}
    if kind == "starcoder2":
        base["norm_bias"] = random(d)
        (folder / "adapter.safetensors").unlink()  # which is one for a gate
    save_file(base, folder / "base.safetensors")


MORE: dict[str, dict[str, object]] = {"qwen3": {}, "starcoder2": {"gated": False}}


@pytest.fixture(scope="module", params=["tiny", "verifier", "qwen3", "starcoder2", SMALL, CODER])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model with torch, and the same without it."""
    if request.param in (SMALL, CODER):
        folder = locate(request.param)
    else:
        folder = tiny.make(tmp_path_factory.mktemp("made") / "tiny")
    if request.param == "verifier":  # a model without a canvas
        (folder / "adapter.safetensors").unlink()
    if request.param in MORE:
        other(folder, request.param)
    if request.param != "tiny" and request.param not in (SMALL, CODER):
        write_manifest(folder, {})
    model = in_torch(folder)
    return model, native_of(model, kept.sources(folder))


@pytest.mark.parametrize("shape", [(65, 64), (0, 64), (32, 2, 32), ()], ids=str)
def test_an_update_of_an_impossible_rank_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Without torch, with it, and where it is added to the base."""
    folder = tiny.make(tmp_path / "tiny")
    model, base, adapter = in_torch(folder), base_of(folder), Stored(folder / "adapter.safetensors")
    changed = {name: adapter.floats(name) for name in adapter if "layers.0.out." not in name}
    changed |= {"layers.0.out.a": np.ones(shape, np.float32), "layers.0.out.b": np.ones((64, 65), np.float32)}
    update, given = InMemory(changed), (model.name, model.config, model.tokenizer, model.spec)
    for load in (
        lambda: NativeLlama(*given, Packing(base), Packing(update)),
        lambda: BlockLlama(*given, base, update),
        lambda: Merged(base, update).floats("layers.0.out"),
    ):
        with pytest.raises(WeightsError, match=r"low-rank update of layers\.0\.out, which is \[64, 64\]"):
            load()


@pytest.mark.parametrize("part", ["a", "b"])
def test_an_update_in_several_matrices_is_refused(part: str, tmp_path: Path) -> None:
    model = in_torch(folder := tiny.make(tmp_path / "tiny"))
    adapter = Stored(folder / "adapter.safetensors")
    update = {
        f"layers.0.out.{each}": np.ones(size, np.float32) for each, size in {"a": (32, 64), "b": (64, 32)}.items()
    }
    tiles = {
        "base": Packing(base_of(folder)),
        "adapter": Packing(InMemory({name: adapter.floats(name) for name in adapter} | update)),
    }
    half = cpu.Matrix("q8", *stored_q8(update[f"layers.0.out.{part}"][::2]))
    tiles["adapter"]._held[f"layers.0.out.{part}"] = cpu.Packed(half, half)
    with pytest.raises(WeightsError, match=r"update of layers\.0\.out lies in several"):
        native_of(model, tiles)


def test_a_manifest_without_a_base_is_refused(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny")
    stored_files = [*folder.glob("*.safetensors")]
    write(folder, "adapter", kept.sources(folder)["adapter"])
    for path in stored_files:
        path.unlink()
    write_manifest(folder, {})
    with pytest.raises(WeightsError, match="names no base"):
        stored.load(folder, tiny.CONFIG, LoadChoice())


def ids(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(5, 390, count).tolist()


def tree(kv: KV, count: int, seed: int, fresh: Sequence[int] = ()) -> Run:
    """A token tree in which each row sees its parent's rows, after a context."""
    rng, mask = np.random.default_rng(seed), np.eye(count, dtype=np.bool_)
    for row in range(1, count):
        mask[row] |= mask[rng.integers(row)]
    at = kv.length + len(fresh)
    return Run(kv, ids(count, seed), [at + int(row.sum()) - 1 for row in mask], mask, fresh=fresh)


def canvas(model: Any, kv: KV, count: int, seed: int, fresh: Sequence[int] = (), **more: Any) -> Run:
    """Tokens, masks and null tokens."""
    rows = ids(count, seed)
    rows[2::3] = [model.config.vocab_size] * len(rows[2::3])
    rows[4::5] = [model.config.vocab_size + 1] * len(rows[4::5])
    at = kv.length + len(fresh)
    return Run(kv, rows, range(at, at + count), fresh=fresh, **more)


def bits(scores: Scores) -> Any:
    return compared.tensor(scores).numpy()


def compare(both: tuple[Any, Any], kvs: Sequence[Sequence[KV]], trees: Any, canvases: Any) -> int:
    """Runs, made for the KVs of each, through both; returns how many rows were compared."""
    (theirs, ours), found = both, list[tuple[Any, Any]]()
    for model, own in zip(both, kvs, strict=True):
        runs = [[make(own) for make in some] for some in (trees, canvases)]
        found.append(model.forward(*runs))
    rows = 0
    for theirs_, ours_ in zip(*found, strict=True):
        a, b = bits(theirs_), bits(ours_)
        assert a.shape == b.shape
        assert np.array_equal(a, b)
        assert np.isfinite(a).all()
        rows += len(a)
    assert ours.width == theirs.width
    return rows


def read(both: tuple[Any, Any], count: int, seed: int = 1) -> list[KV]:
    """A context of so many tokens, in both."""
    kvs = [model.cache().lease([]) for model in both]
    for model, kv in zip(both, kvs, strict=True):
        model.prefill(ids(count, seed), kv)
        assert (kv.length, len(kv.ids)) == (count, count)
    assert_same(*kvs)
    return kvs


def assert_same(theirs: KV, ours: KV) -> None:
    """The same keys and values, in bfloat16."""
    for layer in range(len(ours.buffers)):
        for a, b in zip(theirs.get(layer, 0, theirs.length), ours.get(layer, 0, ours.length), strict=True):
            assert np.array_equal(a.view(torch.int16).numpy().view(np.uint16), b)


@pytest.mark.parametrize("count", [1, 37, 300])
def test_trees_after_a_context(both: tuple[Any, Any], count: int) -> None:
    kvs = [[kv] for kv in read(both, count)]
    for size, fresh in ((1, []), (8, ids(3, 9)), (40, [])):
        assert compare(both, kvs, [lambda own, n=size, f=fresh: tree(own[0], n, n, f)], []) == size
        for (kv,) in kvs:
            kv.truncate(len(kv.ids))
    assert_same(*(kv for (kv,) in kvs))


def test_a_kv_that_was_cut_and_read_on(both: tuple[Any, Any]) -> None:
    kvs = read(both, 90)
    for model, kv in zip(both, kvs, strict=True):
        kv.truncate(41)
        model.prefill(ids(200, 7), kv)
    assert_same(*kvs)
    compare(both, [[kv] for kv in kvs], [lambda own: tree(own[0], 5, 3)], [])


@pytest.mark.parametrize("both", ["tiny", "qwen3", SMALL, CODER], indirect=True)  # all with a canvas
def test_canvases_and_trees_of_several_kvs(both: tuple[Any, Any]) -> None:
    kvs = [list(pair) for pair in zip(read(both, 50), read(both, 7, 2), read(both, 20, 3), strict=True)]
    draw = partial(canvas, both[0])
    seen = np.ones((11, 11), np.bool_)
    seen[:, 3] = False
    many = [
        lambda own: draw(own[0], 12, 1),
        lambda own: draw(own[0], 30, 2, wanted=[1, 5, 5, 29]),
        lambda own: draw(own[1], 17, 3, fresh=ids(9, 4)),
        lambda own: draw(own[2], 11, 5, mask=seen),
    ]
    assert compare(both, kvs, [], many) == 12 + 4 + 17 + 11
    rows = compare(both, kvs, [lambda own: tree(own[0], 6, 8), lambda own: tree(own[1], 1, 9, ids(2, 1))], many[:2])
    assert rows == 6 + 1 + 12 + 4
    for model, own in zip(both, kvs, strict=True):
        assert len(bits(model.denoise([make(own) for make in many]))) == 44


def test_scores_outlive_the_next_pass(both: tuple[Any, Any]) -> None:
    _, ours = both
    kv = ours.cache().lease([])
    first = ours.forward([tree(kv, 4, 1)])[0]
    before = first.logits.copy()
    kv.truncate(0)
    ours.forward([tree(kv, 4, 2)])
    assert np.array_equal(first.logits, before)


def test_a_row_has_the_same_numbers_alone(both: tuple[Any, Any]) -> None:
    _, ours = both
    kv = ours.cache().lease([])
    ours.prefill(ids(20, 1), kv)
    together = ours.forward([tree(kv, 16, 5)])[0].logits
    kv.truncate(20)
    for row, token in enumerate(ids(4, 6)):
        alone = ours.forward([Run(kv, [token], [20], np.ones((1, 1), np.bool_))])[0].logits
        kv.truncate(20)
        pair = [Run(kv, [token, 9], [20, 20], np.eye(2, dtype=np.bool_))]
        assert np.array_equal(ours.forward(pair)[0].logits[0], alone[0]), row
        kv.truncate(20)
    assert len(together) == 16


@pytest.mark.parametrize("name", [SMALL, "tiny"])
def test_mapped_tiles_give_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "tiles", lambda: tmp_path / "cache")
    folder = locate(SMALL) if name == SMALL else tiny.make(tmp_path / "tiny")
    model = in_torch(folder)
    kept.loaded(folder, lambda: kept.sources(folder), dict)
    ours = kept.loaded(folder, dict, partial(native_of, model))
    assert not any(matrix.tiles.flags.writeable for matrix in ours._heads[True].matrices)
    kvs = [[kv] for kv in read((model, ours), 60)]
    compare((model, ours), kvs, [lambda own: tree(own[0], 9, 1)], [lambda own: canvas(model, own[0], 20, 2)])


@pytest.mark.parametrize(("width", "theta"), [(64, 10_000.0), (64, 1_000_000.0), (128, 500_000.0), (96, 100_000.0)])
def test_positions_turn_as_in_torch(width: int, theta: float) -> None:
    expected = rotary.frequencies(width, theta, width // 2, torch.device("cpu"))
    of = native.frequencies(width, theta)
    assert np.array_equal(of, expected.numpy())
    positions = range(0, 40_000, 3)
    found, table = native.turns(of, positions), rotary.cos_sin(torch.tensor(positions)[:, None] * expected)
    for ours, theirs in zip(found, table, strict=True):
        assert np.array_equal(ours, theirs.repeat(1, 2).numpy())
