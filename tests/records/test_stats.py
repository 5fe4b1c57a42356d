"""The counts of `caesura stats`, in a file that several servers write."""

import asyncio
import json
import stat
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from caesura import paths
from caesura.server.records import stats
from caesura.server.records.stats import Counts, Stats

DAY = date(2026, 3, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stats.json"


def counting(path: Path, day: date = DAY, delay_s: float = 60) -> Stats:
    return Stats(lambda: path, lambda: day, delay_s)


async def test_what_was_shown_and_taken_is_counted_by_day_and_language(path: Path) -> None:
    found = counting(path)
    found.shown("python", 10)
    found.shown("python", 20)
    found.accepted("python", 10)
    found.partly("python", 5)
    found.rejected("python", 15)
    found.shown("go", 3)
    await found.close()
    python = Counts(shown=2, accepted=1, partly=1, rejected=1, shown_characters=30, accepted_characters=15)
    assert stats.read(path) == {"2026-03-02": {"python": python, "go": Counts(shown=1, shown_characters=3)}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_file_can_be_read_by_people(path: Path) -> None:
    found = counting(path)
    found.shown("python", 10)
    await found.close()
    assert json.loads(path.read_text())["2026-03-02"]["python"]["shown"] == 1
    assert len(path.read_text().splitlines()) > 5


async def test_counts_are_written_without_being_asked(path: Path) -> None:
    found = counting(path, delay_s=0.01)
    found.shown("python", 10)
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_nothing_is_counted_while_it_is_off(path: Path) -> None:
    found = counting(path)
    found.shown("python", 10)
    found.enable(False)
    found.shown("python", 10)
    await found.close()
    assert not path.exists()


async def test_days_long_past_are_forgotten(path: Path) -> None:
    for day in (date(2024, 1, 1), date(2026, 1, 1), DAY):
        found = counting(path, day)
        found.shown("python", 1)
        await found.close()
    assert list(stats.read(path)) == ["2026-01-01", "2026-03-02"]


def test_several_servers_add_to_one_file(path: Path) -> None:
    code = f"""
import asyncio
from datetime import date
from pathlib import Path
from caesura.server.records.stats import Stats
async def main():
    for _ in range(20):
        found = Stats(lambda: Path({str(path)!r}), lambda: date(2026, 3, 2))
        found.shown("python", 1)
        await found.close()
asyncio.run(main())
"""
    servers = [subprocess.Popen([sys.executable, "-P", "-c", code]) for _ in range(3)]
    assert [server.wait(60) for server in servers] == [0, 0, 0]
    assert stats.read(path)["2026-03-02"]["python"].shown == 60


@pytest.mark.parametrize("damage", [b"not what we wrote", b'{"\xff": {}}'], ids=["no JSON", "no UTF-8"])
async def test_a_damaged_file_is_kept_aside(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    with pytest.raises(paths.DamagedFile, match="caesura stats --reset"):
        stats.read(path)
    found = counting(path)
    found.shown("python", 1)
    await found.close()
    assert stats.read(path)["2026-03-02"]["python"].shown == 1
    assert path.with_name("stats.json.damaged").read_bytes() == damage


async def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    found = counting(tmp_path / "file" / "stats.json")
    for _ in range(2):
        found.shown("python", 1)
        await found.close()
    assert len(caplog.messages) == 1
    assert "not recorded: " in caplog.text
    assert "Errno" not in caplog.text


def test_a_total_is_over_both_ends_and_the_most_shown_comes_first() -> None:
    days = {
        "2026-02-23": {"python": Counts(shown=100)},
        "2026-02-24": {"python": Counts(shown=1), "go": Counts(shown=5)},
        "2026-03-02": {"python": Counts(shown=2)},
        "2026-03-03": {"python": Counts(shown=100)},
    }
    found = stats.total(days, date(2026, 2, 24), DAY)
    assert [(language, counts.shown) for language, counts in found.items()] == [("go", 5), ("python", 3)]


def test_reset_forgets_everything(path: Path) -> None:
    path.write_text("{}")
    stats.reset(path)
    stats.reset(path)
    assert stats.read(path) == {}
