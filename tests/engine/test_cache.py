"""Which KV a job gets, and that nothing one job does shows in another's."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from caesura.engine.cache import KV, Cache, HostStore, Kept, Store, common
from caesura.engine.cache.tensors import TensorStore

STORES = {"numpy": HostStore(np.float32), "bits": HostStore(np.uint16), "torch": TensorStore("cpu", torch.bfloat16)}


def put(kv: KV, layer: int, at: int, rows: NDArray[np.float32]) -> None:
    """Keys [heads, n, width], and values that are their opposites."""
    keys, values = kv.get(layer, at, at + rows.shape[1])
    keys[:], values[:] = rows, -rows


def filled(cache: Cache, ids: list[int]) -> KV:
    """Lease and prefill: a row's key is its id."""
    kv = cache.lease(ids)
    missing = np.array(ids[kv.length :], np.float32)
    kv.reserve(len(missing))
    put(kv, 0, kv.length, missing[None, :, None])
    kv.length += len(missing)
    kv.ids += ids[len(ids) - len(missing) :]
    return kv


def rows(kv: KV) -> list[float]:
    found: list[float] = kv.get(0, 0, kv.length)[0][0, :, 0].tolist()
    return found


def test_typing_appends() -> None:
    cache = Cache([Kept(1, 1)])
    first = filled(cache, [1, 2, 3])
    cache.give(first)
    second = cache.lease([1, 2, 3, 4])
    assert second is first
    assert second.length == 3
    assert (cache.reused, cache.asked) == (3, 7)


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_what_was_never_put_is_zero(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention computes with it before it is masked, so it must be finite."""
    monkeypatch.setattr(np, "empty", np.ones)
    monkeypatch.setattr(torch, "empty", torch.ones)
    for turned in (False, True):
        kv = KV([Kept(2, 4, turned=turned)], store)
        kv.reserve(50)
        assert not any(part.any() for part in kv.get(0, 0, 256))


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_keys_that_lie_column_by_column_are_the_same_keys(store: Store) -> None:
    plain, turned = KV([Kept(2, 4)], store), KV([Kept(2, 4, turned=True)], store)
    for kv in (plain, turned):
        for start in range(0, 600, 50):
            kv.reserve(50)
            for part, first in zip(kv.get(0, start, start + 50), (start, start + 7), strict=True):
                numbers = np.arange(first, first + 50)[None, :, None] % 128 + np.arange(8).reshape(2, 1, 4)
                part[:] = numbers if isinstance(part, np.ndarray) else torch.from_numpy(numbers)
            kv.length += 50
    fork = turned.fork()
    fork.truncate(300)
    for kv, length in ((turned, 600), (fork, 300)):
        for one, other in zip(kv.get(0, 0, length), plain.get(0, 0, length), strict=True):
            assert one.tolist() == other.tolist()
        assert kv.get(0, 0, length)[0].tolist() != kv.get(0, 0, length)[1].tolist()
    assert strides(turned.get(0, 0, 600)[0])[1] == 1


def strides(part: Any) -> list[int]:
    """Of rows and columns, in numbers."""
    return [step // part.itemsize for step in part.strides] if isinstance(part, np.ndarray) else list(part.stride())


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_the_addresses_are_those_of_the_buffers(store: Store) -> None:
    kv = KV([Kept(2, 4, turned=True), Kept(1, 2)], store)
    for _ in range(3):
        kv.reserve(kv.buffers[0][0].shape[1] + 1)
        expected = [(store.address(k), store.address(v), k.shape[1], 0) for k, v in kv.buffers]
        assert kv.addresses == expected
        assert all(address for k, v, *_ in kv.addresses for address in (k, v))


def test_deleting_truncates() -> None:
    cache = Cache([Kept(1, 1)])
    cache.give(filled(cache, [1, 2, 3, 4]))
    kv = cache.lease([1, 2, 9])
    assert (kv.length, kv.ids) == (2, [1, 2])


def test_a_short_shared_start_is_forked_and_the_longer_context_survives() -> None:
    cache = Cache([Kept(1, 1)])
    long = filled(cache, list(range(10)))
    cache.give(long)
    fork = filled(cache, [0, 1, 77, 78])
    assert fork is not long
    assert rows(fork) == [0, 1, 77, 78]
    assert rows(long) == list(range(10))
    assert cache.lease(list(range(12))) is long


def test_a_leased_kv_is_nobody_elses() -> None:
    cache = Cache([Kept(1, 1)])
    one, other = filled(cache, [1, 2]), filled(cache, [1, 2])
    assert one is not other
    cache.give(one)
    cache.give(other)
    assert cache.lease([1, 2]) is not cache.lease([1, 2])


def test_rows_that_are_no_context_are_gone_after_a_job() -> None:
    cache = Cache([Kept(1, 1)])
    kv = filled(cache, [1, 2])
    kv.reserve(3)
    kv.length += 3  # a token tree
    cache.give(kv)
    assert cache.lease([1, 2, 3]).length == 2


def test_the_least_recently_used_goes_first_and_the_number_is_bounded() -> None:
    cache = Cache([Kept(1, 1)], entries=2)
    contexts = [[n] * 4 for n in (1, 2, 3)]
    for kv in [filled(cache, ids) for ids in contexts]:
        cache.give(kv)
    assert [cache.lease(ids).length for ids in reversed(contexts)] == [4, 4, 0]


def test_growing_keeps_the_rows() -> None:
    cache = Cache([Kept(1, 1)])
    kv = filled(cache, list(range(200)))
    kv.reserve(1000)
    assert rows(kv) == list(range(200))


def test_common_prefix() -> None:
    assert common([], [1]) == 0
    assert common([1, 2], [1, 2, 3]) == 2
    assert common([1, 9, 3], [1, 2, 3]) == 1


def test_leased_and_free_entries_together_are_bounded() -> None:
    cache = Cache([Kept(1, 1)], entries=2)
    first = filled(cache, [1])
    assert not cache.full
    second = filled(cache, [2])
    assert cache.full
    cache.give(first)
    assert not cache.full
    third = filled(cache, [3])
    assert third is first, "its memory is used again"
    assert cache.full
    cache.give(second)
    cache.give(third)
    assert cache.lease([2]) is second


def test_a_long_context_is_not_copied_again_and_again() -> None:
    kv, copies = KV([Kept(1, 1)]), 0
    for length in range(0, 40_000, 64):
        kv.length = length
        before = kv.nbytes
        kv.reserve(64)
        copies += kv.nbytes != before
    assert copies < 60


def test_a_sliding_layer_keeps_its_window_and_goes_back_as_far_as_its_slack() -> None:
    kv = KV([Kept(1, 1, window=10), Kept(1, 1)])
    for number in range(5000):
        kv.reserve(1)
        for layer in range(2):
            put(kv, layer, number, np.full((1, 1, 1), number, np.float32))
        kv.length += 1
        kv.ids.append(number)
    assert kv.get(0, 4991, 5000)[0][0, :, 0].tolist() == list(range(4991, 5000))
    assert kv.reach(4500) == 4500
    assert kv.reach(1000) == 0
    kv.truncate(1000)
    assert (kv.length, kv.ids) == (0, [])


def test_free_entries_are_bounded_on_their_own() -> None:
    cache = Cache([Kept(1, 1)], entries=9)
    for kv in [filled(cache, [n] * 4) for n in range(5)]:
        cache.give(kv)
    assert [cache.lease([n] * 4).length for n in (4, 3, 2)] == [4, 4, 4]
    assert cache.lease([0] * 4).length == 0


def test_after_memory_ran_out_half_as_many_contexts_are_kept_and_never_too_few() -> None:
    for held, kept in ((200, 100), (20, 14), (3, 14)):
        cache = Cache([Kept(1, 1)], entries=256)
        cache.serve(256)
        for kv in [filled(cache, [n] * 4) for n in range(held)]:
            cache.give(kv)
        cache.clear()
        for kv in [filled(cache, [n] * 4) for n in range(256)][::-1]:
            cache.give(kv)
        assert repr(cache).startswith(f"<Cache 0 leased, {kept} free")


def test_a_job_that_read_nothing_costs_no_other_its_context() -> None:
    cache = Cache([Kept(1, 1)], entries=9)
    for kv in [filled(cache, [n] * 4) for n in range(3)]:
        cache.give(kv)
    for _ in range(5):
        cache.give(cache.lease([9] * 4))
    assert [cache.lease([n] * 4).length for n in (2, 1)] == [4, 4]


def test_more_peers_keep_more_free_entries_as_long_as_they_are_there() -> None:
    cache = Cache([Kept(1, 1)], entries=9)
    cache.serve(3)
    for kv in [filled(cache, [n] * 4) for n in range(9)]:
        cache.give(kv)
    assert repr(cache).startswith("<Cache 0 leased, 5 free")
    cache.serve(1)
    assert repr(cache).startswith("<Cache 0 leased, 3 free")
