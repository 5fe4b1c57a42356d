"""FreeDave's answers are those of one token a step, in fewer forwards."""

from dataclasses import replace

import msgspec
import pytest

from caesura import wire
from caesura.engine import models
from caesura.engine.methods import absorbing
from caesura.engine.methods.freedave import WIDTH
from caesura.engine.model import Model
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.samplers import names
from caesura.engine.scheduler import Scheduler

from ...support.checkpoints import masked
from ...support.checkpoints.tiny import CODE, Scripted, alone, infill, run

TWO = (wire.Hole(6), wire.Text(", "), wire.Hole(6, "span"))
PATTERN = wire.Hole(16, grammar=wire.Pattern("[a-z]+(, [a-z]+)*"))
PLACES = {  # prefix, suffix, segments
    "line": (CODE[:300] + "x = ", "\n", (wire.Hole(12, "line"),)),
    "block": (CODE[:120] + ":\n", "\n\n", (wire.Hole(40, "block"),)),
    "healed": ("def total(a, b):\n    retu", "\n\n", (wire.Hole(8),)),
    "healed twice": (
        CODE[:200] + "\nself._cou",
        ")\n",
        (wire.Hole(8), wire.Text(" + self._tot"), wire.Hole(8, "span")),
    ),
    "two holes": ("print(", ")\n", TWO),
    "nothing around": ("", "", (wire.Hole(8),)),
    "pattern": ("names = [", "]\n", (PATTERN,)),
}


@pytest.fixture(scope="module")
def loaded(tiny: NativeLlama, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """A model with a null token, two whose lengths compete, of either shift, and one that expands slots."""
    place, nets = tmp_path_factory.mktemp("freedave"), {"llada": None, "dream": None, "dreamon": masked.stretching()}
    folders = {family: masked.published(place / family, family, net) for family, net in nets.items()}
    return {"tiny": tiny, **{family: models.load(str(folder), radius=0) for family, folder in folders.items()}}


def both(model: Model, job: wire.Infill, monkeypatch: pytest.MonkeyPatch) -> tuple[wire.Done, wire.Done]:
    """The answers of one step after the other, with steps for every token, and of FreeDave."""
    monkeypatch.setattr(absorbing, "STEPS", 400)
    sampler = job.sampler or "top_k"
    return tuple(  # type: ignore[return-value]
        alone(model, msgspec.structs.replace(job, method=method, sampler=sampler))
        for method in ("absorbing", "freedave")
    )


@pytest.mark.parametrize("name", ["tiny", "llada", "dream", "dreamon"])
@pytest.mark.parametrize("place", PLACES)
def test_its_answer_is_that_of_one_token_a_step(
    loaded: dict[str, Model], name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, suffix, segments = PLACES[place]
    for start in (0, 7, 31):  # other texts, and so other logits
        right, found = both(loaded[name], infill("j", prefix[start:], suffix, *segments), monkeypatch)
        assert (found.holes, found.tokens, found.stop) == (right.holes, right.tokens, "complete")
        assert found.steps <= right.steps


# WINO needs other rows; what P2 takes back and when `ancestral` accepts depends on the number of steps, which the two
# methods bound differently.
@pytest.mark.parametrize("sampler", sorted({*names()} - {"p2", "wino", "ancestral"}))
def test_with_a_sampler_its_answer_is_that_of_the_sampler(
    loaded: dict[str, Model], sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, suffix, segments = PLACES["line"]
    job = infill("j", prefix, suffix, *segments, sampler=sampler)
    for model in loaded.values():
        right, found = both(model, job, monkeypatch)
        assert found.holes == right.holes
        assert found.steps <= right.steps


def test_a_sampler_that_adds_rows_is_refused(tiny: NativeLlama) -> None:
    (said,) = run(Scheduler(tiny), [infill("j", "x = ", "\n", sampler="wino", method="freedave")])["j"]
    assert isinstance(said, wire.Failed)
    assert said.message.startswith("The method freedave has no rows")


@pytest.mark.parametrize(("rows", "width"), [(512, WIDTH), (70, 2), (40, 1)])
def test_right_guesses_save_forwards_as_far_as_a_step_has_rows(
    tiny: NativeLlama, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Scripted(tiny.tokenizer, tiny.tokenizer.encode("self._count = left + right\n")[:12])
    monkeypatch.setattr(model, "spec", replace(model.spec, rows=rows))
    right, found = both(model, infill("j", CODE[:300] + "x = ", "\ny = total + count\n", wire.Hole(16)), monkeypatch)
    assert found.holes == right.holes
    assert found.steps == 1 + -(-(right.steps - 1) // width)
