"""Whether half an hour of bench/soak.py would tell a leak from a level line with noise."""

import importlib
import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
KILLED = {"mib": 0.0, "descriptors": 0.0, "threads": 0.0}  # what each kill of a minute leaves behind


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks are scripts that import what lies beside them."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("soak")


def samples(minutes: float, leaks: dict[str, float], seed: int) -> list[tuple[float, float, int, int]]:
    """Every five seconds, as a language server's are: memory to and fro by half a MiB and more in the first minutes,
    and up to six descriptors more while a connection is made anew."""
    random, found, mib = Random(seed), [], 53.0
    for second in range(5, round(60 * minutes), 5):
        kills = {name: leak * (second // 60) for name, leak in leaks.items()}
        mib += 0.05 * (second < 180) + random.gauss(0, 0.01)
        spike = random.choice((0, 0, 0, 0, 0, 0, 0, 2, 6)) if second % 60 < 15 else 0
        memory = mib + random.gauss(0, 0.1) + kills["mib"]
        found.append((float(second), memory, 15 + spike + int(kills["descriptors"]), 5 + int(kills["threads"])))
    return found


@pytest.mark.parametrize("minutes", [5, 30])
@pytest.mark.parametrize("seed", range(5))
def test_a_level_line_with_noise_passes(soak: ModuleType, minutes: int, seed: int) -> None:
    assert soak.growing(soak.trend([samples(minutes, KILLED, seed)])) == []


@pytest.mark.parametrize("minutes", [10, 30])
@pytest.mark.parametrize("leak", [{"mib": 1.0}, {"descriptors": 1.0}, {"threads": 1.0}], ids=str)
def test_a_leak_at_each_kill_is_found(soak: ModuleType, minutes: int, leak: dict[str, float]) -> None:
    for seed in range(5):
        assert soak.growing(soak.trend([samples(minutes, KILLED | leak, seed)])) == list(leak)


def test_a_descriptor_left_by_each_supervisor_that_dies_is_found(soak: ModuleType) -> None:
    leaks = samples(30, KILLED | {"descriptors": 0.2}, seed=1)
    assert soak.growing(soak.trend([leaks])) == ["descriptors"]


@pytest.mark.parametrize(
    ("minute", "grows"), [((0.0, 0, 0), []), ((1.0, 0, 0), ["mib"]), ((0.0, 6, 6), ["descriptors", "threads"])]
)
def test_a_worker_that_grows_until_it_is_killed_is_found(
    soak: ModuleType, minute: tuple[float, int, int], grows: list[str]
) -> None:
    """Each begins anew, and with more or less memory than the one before."""
    lives = [[worker(life, second, *minute) for second in range(5, 60, 5)] for life in range(28)]
    assert soak.growing(soak.trend([*lives, lives[0][:2]])) == grows


def worker(life: int, second: int, mib: float, descriptors: int, threads: int) -> tuple[float, float, int, int]:
    noise, part = Random(60 * life + second).gauss(life % 3, 0.05), second / 60
    return 60.0 * life + second, 80 + noise + mib * part, 20 + int(descriptors * part), 4 + int(threads * part)


def test_one_that_leaks_ends_the_run_with_a_failure(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")  # whose version a report names

    async def soaked(runtime: Path, minutes: float) -> dict[str, object]:
        counts = dict.fromkeys(("kills", "keys", "fills", "crossed", "stale", "orphans"), 0)
        level, leaks = (soak.trend([samples(minutes, KILLED | leak, 0)]) for leak in ({}, {"threads": 1.0}))
        return {**counts, "minutes": minutes, "server": leaks, "supervisor": level, "worker": level}

    monkeypatch.setattr(soak, "soak", soaked)
    monkeypatch.setattr(sys, "argv", ["soak.py", "--minutes", "5", "--out", str(tmp_path / "soak.json")])
    with pytest.raises(SystemExit) as ended:
        soak.main()
    assert ended.value.code == 1
    assert "server: threads grow" in capsys.readouterr().out
