"""The documents keep to what is there: every test and file that they name exists, and every cell of ours in
docs/peers.md has a test.
"""

import re
from pathlib import Path

import pytest

from caesura.engine import samplers

ROOT = Path(__file__).parents[2]
PEERS = (ROOT / "docs" / "peers.md").read_text("utf-8")


def rows(title: str, text: str = PEERS, level: str = "##") -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = text.partition(f"\n{level} {title}\n")[2].partition(f"\n{level} ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize(("name", "least"), [("peers.md", 30), ("protocol.md", 20), ("backends.md", 20)])
def test_every_test_that_a_document_names_exists(name: str, least: int) -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", (ROOT / "docs" / name).read_text("utf-8"))
    assert len(named) > least
    files = {file: (ROOT / file).read_text("utf-8") for file, _ in named}
    assert [f"{file}::{test}" for file, test in named if not re.search(rf"def {test}\(", files[file])] == []


def test_every_file_that_the_map_names_exists() -> None:
    named = re.findall(r"`([\w./]+\.(?:py|c|h))`", (ROOT / "docs" / "architecture.md").read_text("utf-8"))
    folders = ("caesura", "server", "engine", "kernels", "cluster", "models", "tests", "training", "gpu", "bench")
    files = [f"/{path.relative_to(ROOT).as_posix()}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    assert [name for name in sorted(set(named)) if not any(file.endswith(f"/{name}") for file in files)] == []


def test_every_cell_of_ours_is_held_by_a_test() -> None:
    held = dict(rows("What holds our column"))
    ours = {row[0]: row[1] for row in rows("Table")}
    assert {feature for feature, cell in ours.items() if cell in ("Y", "P")} == set(held)
    assert [feature for feature, tests in held.items() if "::" not in tests] == []


def test_every_feature_has_a_cell_for_each_peer() -> None:
    for row in rows("Table"):
        assert len(row) == 15, row[0]
        assert all(re.fullmatch(r"[YPN?-]( \*m\*)?", cell) for cell in row[1:]), row[0]


def test_every_sampler_is_in_the_list() -> None:
    table = rows("Samplers", (ROOT / "docs" / "configuration.md").read_text("utf-8"), "###")
    assert sorted(re.findall(r"`(\w+)`", " ".join(row[0] for row in table))) == list(samplers.names())
