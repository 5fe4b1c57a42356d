"""The side by side of language servers: our side of it, with the engine that answers at once."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def servers() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("servers")
    sys.path.remove(str(BENCH))


def test_every_key_gets_the_text_of_an_engine_that_answers_at_once(
    servers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "PAUSE_S", 0.0)
    monkeypatch.setattr(servers, "WARM_UP", 1)
    with servers.caesura(5) as peer:
        spent, texts, resident = servers.keys(peer)
    assert len(spent) == texts == 5
    assert max(spent) < 5_000
    assert 10 < resident < 500
