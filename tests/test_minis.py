"""`caesura fill` in real processes, on trained minis, one for each visibility: in their files every line stands twice,
so the text of a hole, and its length, is told by the rest of the file. They are made by training/mini_masked.py.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caesura import rendezvous

DATA = Path(__file__).parent / "data"
MINIS = ("mini_dream",)
START_S = 120.0  # reached only where something is wrong

# Files, with the text of the hole in angle brackets: of one, two or three tokens, in either of the two lines.
WORDS = "winter storm cloud rain\n"
FILES = [
    '{"title": "bridge", "role": "fire engine"}\n{"role": "fire engine", "title": "<bridge>"}\n',
    '{"note": "cold dark street", "tag": "sea"}\n{"tag": "sea", "note": "<cold dark street>"}\n',
    '{"user": "<green bird>", "date": "warm summer"}\n'
    + WORDS
    + '{"date": "warm summer", "user": "green bird"}\n'
    + WORDS,
    '<black wolf> lake\nblack wolf lake\n{"title": "street", "tag": "sea"}\n{"tag": "sea", "title": "street"}\n',
]


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Iterator[None]:
    """Engines of their own, which end with the module."""
    folder = Path(tempfile.mkdtemp(prefix="caesura-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAESURA_RUNTIME", str(folder))
        patch.setenv("CAESURA_IDLE_EXIT", "60")
        yield
        for place in rendezvous.running():
            if holder := place.holder():
                rendezvous.kill(holder)
    shutil.rmtree(folder, ignore_errors=True)  # a killed process may be in the middle of a write


@pytest.mark.parametrize("model", MINIS)
def test_a_gap_gets_its_text_at_its_length_and_no_other_byte_changes(model: str, tmp_path: Path) -> None:
    for marked in FILES:
        before, text, after = re.split("[<>]", marked)
        file = tmp_path / "file.txt"
        file.write_bytes((before + after).encode())
        place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        command = [
            sys.executable,
            "-P",
            "-m",
            "caesura",
            "fill",
            file,
            "--at",
            place,
            "--write",
            "--model",
            DATA / model,
        ]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
        assert ran.returncode == 0, ran.stderr
        assert file.read_bytes() == (before + text + after).encode()
