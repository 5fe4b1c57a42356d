"""The same gaps with each variant of the C library, chosen by CAESURA_CPU as a user does: the same fills. Portable C
rounds in other places and may take the other of two tokens that are nearly as likely; its bound is in
test_canary.py.
"""

from pathlib import Path

import pytest

from caesura.engine import models
from caesura.kernels import cpu
from caesura.model_store import CODER, SMALL

from ..support.checkpoints.tiny import alone, infill

TEXT = (Path(__file__).parents[2] / "examples" / "files.py").read_text()
GAPS = [TEXT.index(end) for end in ("\n\n\ndef longest_line", "\n\n\ndef rename", "\n    path.rename(")]
GAPS += [TEXT.index(end) + len(end) for end in ("target = path.with_", "for line in ")]


def fills(model: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("CAESURA_CPU", variant)
    loaded = models.load(model)
    return [alone(loaded, infill("fill", TEXT[:at], TEXT[at:])).holes[0].text for at in GAPS]


@pytest.mark.slow
@pytest.mark.skipif(not cpu.variants(), reason="kernels/cpu was not built")
@pytest.mark.parametrize("model", [CODER, SMALL])
def test_every_variant_fills_the_same(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = (name for name in cpu.variants() if name != "portable")
    expected = fills(model, first, monkeypatch)
    assert sum(map(bool, expected)) >= 4
    for variant in others:
        assert fills(model, variant, monkeypatch) == expected, variant
