"""Sixty recorded jobs get the answers they had (recorded.py). What changes them on purpose records them anew and says
so; everything else must leave them as they are."""

import pytest

from caesura.engine.model import Model
from caesura.kernels import cpu

from ..support.checkpoints import recorded

FEW = {  # of the models that take seconds
    "coder": ("argument", "half a word", "pattern", "candidates", "argument, left to right"),
    "small": ("argument", "two", "inside, threshold", "members, threshold"),
}
EXACT = {"amx", "avx512", "avxvnni", "avx2"}  # kinds of kernels that compute the same to the last bit


@pytest.fixture(params=recorded.jobs())
def model(request: pytest.FixtureRequest) -> tuple[str, Model]:
    name = request.param
    if name in FEW and cpu.chosen() not in EXACT:
        pytest.skip(f"The recording is of other kernels than {cpu.chosen()}'s.")
    return name, recorded.load(name)


def test_there_are_sixty_of_them() -> None:
    assert sum(map(len, recorded.jobs().values())) == 60
    assert {name: list(answers) for name, answers in recorded.recorded().items()} == {
        name: list(asked) for name, asked in recorded.jobs().items()
    }


def answers(model: tuple[str, Model], *, all_of_them: bool) -> None:
    name, loaded = model
    for label, asked in recorded.jobs()[name].items():
        if all_of_them or label in FEW.get(name, (label,)):
            found = recorded.told(recorded.events(loaded, asked))
            assert found == recorded.recorded()[name][label], f"{name}: {label}"


def test_a_few_answers_of_each_model_are_those_recorded(model: tuple[str, Model]) -> None:
    answers(model, all_of_them=False)


@pytest.mark.slow
def test_all_answers_are_those_recorded(model: tuple[str, Model]) -> None:
    answers(model, all_of_them=True)
