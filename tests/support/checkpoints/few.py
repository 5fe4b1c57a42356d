"""Of many cases of one kind the suite takes a few, and `make slow` the others."""

from collections.abc import Sequence
from typing import Any

import pytest


def few(names: str | tuple[str, ...], cases: Sequence[Any], *kept: int) -> pytest.MarkDecorator:
    """Parameters of a test, of which those at the places `kept` are in the suite."""
    several = not isinstance(names, str)
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(*(case if several else (case,)), marks=() if at in kept else pytest.mark.slow)
            for at, case in enumerate(cases)
        ],
    )
