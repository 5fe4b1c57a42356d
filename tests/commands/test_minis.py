"""`caesura fill` in real processes, on trained minis, one for each visibility: context, full and blocks. In their files
every line stands twice, so the text of a hole, and its length, is told by the rest of the file. They are made by
training/mini.py and training/mini_masked.py.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
START_S = 120.0  # reached only where something is wrong

# Files, with the text of the hole in angle brackets: one, two or three tokens.
RECORDS = [
    '{"tag": "circle", "user": "new"}\n{"user": "<new>", "tag": "circle"}\n',
    '{"name": "land side", "type": "large deep", "tag": "ground dog"}\n'
    '{"tag": "<ground dog>", "name": "land side", "type": "large deep"}\n',
    '{"size": "place long cloud", "title": "wall"}\n{"title": "wall", "size": "<place long cloud>"}\n',
]
WORDS = "winter storm cloud rain\n"
FIRST = [  # the hole comes before the line that tells it
    '<black wolf> lake\nblack wolf lake\n{"title": "street", "tag": "sea"}\n{"tag": "sea", "title": "street"}\n',
    f'{WORDS}{{"size": "<green circle>", "date": "snow"}}\n{{"date": "snow", "size": "green circle"}}\n{WORDS}',
]
MINIS = {"mini": RECORDS, "mini_dream": RECORDS + FIRST, "mini_sdar": RECORDS + FIRST[1:]}


pytestmark = pytest.mark.usefixtures("own_engines")


@pytest.mark.parametrize("model", MINIS)
def test_a_gap_gets_its_text_at_its_length_and_no_other_byte_changes(model: str, tmp_path: Path) -> None:
    if model == "mini":
        pytest.importorskip("torch")  # a DiffusionGemma
    for marked in MINIS[model]:
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
