"""Frozen flanks: in a long text a step computes the rows near the slots, and the others again where a rule says so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import length, models, worker
from caesura.engine.cache import KV
from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.methods._flanks import DOUBT, EVERY, Flanks, frozen, narrowed
from caesura.engine.model import Model, Run
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores.tensors import TensorScores

from ...support.checkpoints import masked
from ...support.checkpoints.tiny import CODE, Clock, alone, done, infill
from ...support.checkpoints.tiny import run as run_jobs

IDS = torch.randint(5, 400, (90,), generator=torch.Generator().manual_seed(1)).tolist()
SLOTS = [40, 41, 42, 43]
NEAR, MASK = 8, 3
JOB = infill("j", CODE[:600] + "\nx = ", "\n" + CODE[600:1200], wire.Hole(12, "line"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("flanks")
    return {family: masked.published(place / family, family) for family in ("llada", "dream")}


@pytest.fixture(params=["llada", "dream"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> str:
    """A model of either shift."""
    return str(folders[request.param])


def laid(slots: Sequence[int] = SLOTS, rows: int = len(IDS)) -> Canvas:
    layout: list[Slot | int] = [Slot(0) if row in slots else token for row, token in enumerate(IDS[:rows])]
    return Canvas([], layout, [], [HoleState(one_line=True, max_tokens=9)], None)  # type: ignore[arg-type]


def run(kv: KV, canvas: Canvas, *accepted: int) -> Run:
    """A forward of a canvas, whose slots are masked but for those that were accepted."""
    ids = [MASK if row in canvas.slot_rows() and row not in accepted else token for row, token in enumerate(IDS)]
    return Run(kv, ids[: canvas.rows], range(canvas.rows), wanted=canvas.slot_rows())


class Counting:
    """A model, and the rows of its forwards."""

    def __init__(self, model: Model | None = None) -> None:
        self.model, self.rows = model, list[int]()

    def denoise(self, runs: Sequence[Run]) -> TensorScores:
        self.rows += [len(run.ids) for run in runs]
        return TensorScores(torch.zeros(0, 1)) if self.model is None else self.model.denoise(runs)

    def step(self, flanks: Flanks, *runs: tuple[Run, Canvas]) -> Tensor:
        """The logits of canvases that share flanks."""
        runs_now = narrowed(self, [one for one, _ in runs], [(flanks, one) for _, one in runs])  # type: ignore[arg-type]
        return self.denoise(runs_now).logits


# What it computes


@pytest.mark.parametrize("slots", [SLOTS, [0, 1], [88, 89], [5, 6, 70, 71]], ids=["mid", "start", "end", "two holes"])
def test_while_nothing_changes_near_rows_have_the_logits_of_a_whole_forward(folder: str, slots: list[int]) -> None:
    model = models.load(folder, "cpu", exact=True)
    kv, other, canvas = model.cache().lease([]), model.cache().lease([]), laid(slots)
    flanks, counting = Flanks(NEAR, model.spec.shift), Counting(model)
    right = model.denoise([run(other, canvas)]).logits
    for _ in range(2):
        found = counting.step(flanks, (run(kv, canvas), canvas))
        torch.testing.assert_close(found, right, atol=1e-5 * float(right.abs().max()), rtol=0)
    near = flanks.rows(canvas)
    assert near < 45
    assert counting.rows == [len(IDS), near, near]


def test_what_is_accepted_is_seen_at_once_and_the_flanks_follow_at_the_next_whole_forward(folder: str) -> None:
    model, canvas = models.load(folder, "cpu", exact=True), laid()
    kv, other, flanks = model.cache().lease([]), model.cache().lease([]), Flanks(NEAR, model.spec.shift)
    before = Counting(model).step(flanks, (run(kv, canvas), canvas))
    found = Counting(model).step(flanks, (run(kv, canvas, 40), canvas))
    right = model.denoise([run(other, canvas, 40)]).logits
    assert (found - right).norm() < 0.5 * (before - right).norm(), "near rows do see the new token"
    assert not torch.allclose(found, right, atol=1e-5), "this is an approximation"
    found = Counting(model).step(flanks, (run(kv, canvas, 40, 41), canvas))
    right = model.denoise([run(other, canvas, 40, 41)]).logits
    torch.testing.assert_close(found, right, atol=1e-5 * float(right.abs().max()), rtol=0)


def test_a_radius_that_covers_the_text_changes_no_bit(folder: str) -> None:
    whole, covered = (alone(models.load(folder, "cpu", radius=radius), JOB) for radius in (0, 4096))
    assert not covered.approximate
    assert (covered.holes, covered.steps) == (whole.holes, whole.steps)


# When it computes all rows


def test_every_eighth_step_computes_all_rows_first() -> None:
    flanks, kv, canvas, counting = Flanks(NEAR, 0), KV([]), laid(), Counting()
    for step in range(2 * EVERY):
        counting.step(flanks, (run(kv, canvas), canvas))
        assert counting.rows.count(len(IDS)) == 1 + step // EVERY
        assert flanks.approximate == (step > 0)


def test_once_half_of_the_hole_has_changed_all_rows_are_computed() -> None:
    flanks, kv, canvas, counting = Flanks(NEAR, 0), KV([]), laid(), Counting()
    for accepted, whole in enumerate((1, 1, 2, 2, 3)):
        counting.step(flanks, (run(kv, canvas, *SLOTS[:accepted]), canvas))
        assert counting.rows.count(len(IDS)) == whole


@pytest.mark.parametrize("change", ["far token", "length", "place"])
def test_no_edit_keeps_the_flanks(change: str) -> None:
    flanks, kv, canvas, counting = Flanks(NEAR, 0), KV([]), laid(), Counting()
    counting.step(flanks, (run(kv, canvas), canvas))
    other = {"far token": canvas, "length": laid(rows=89), "place": laid([row + 1 for row in SLOTS])}[change]
    edited = run(kv, other)
    if change == "far token":
        edited = replace(edited, ids=[7, *edited.ids[1:]])
    counting.step(flanks, (edited, other))
    assert counting.rows[2] == other.rows


def test_lengths_that_compete_share_the_flanks_of_one_and_the_last_has_its_own() -> None:
    flanks, kv, counting = Flanks(NEAR, 0), KV([]), Counting()
    lengths = [Canvas([], [*IDS[:40], *(Slot(0) for _ in range(n)), *IDS[50:]], [], [], None) for n in (1, 2, 3)]  # type: ignore[arg-type]
    asked = [(Run(kv, one.ids([MASK] * 3), range(one.rows), wanted=one.slot_rows()), one) for one in lengths]
    counting.step(flanks, *asked)
    near = [flanks.rows(one) for one in lengths]
    assert counting.rows == [lengths[1].rows, *near]
    counting.step(flanks, *asked[:2])
    assert counting.rows[4:] == near[:2]
    counting.step(flanks, asked[2])
    assert counting.rows[6:] == [lengths[2].rows, near[2]]


def test_a_doubtful_last_accept_waits_once_for_a_forward_of_all_rows() -> None:
    flanks, kv, canvas, counting = Flanks(NEAR, 0), KV([]), laid(), Counting()
    counting.step(flanks, (run(kv, canvas), canvas))
    assert not flanks.doubt([DOUBT / 2]), "all rows have just been computed"
    counting.step(flanks, (run(kv, canvas), canvas))
    assert not flanks.doubt([DOUBT, 0.9])
    assert flanks.doubt([DOUBT / 2, 0.9])
    counting.step(flanks, (run(kv, canvas), canvas))
    assert counting.rows.count(len(IDS)) == 2
    assert not flanks.doubt([DOUBT / 2])


def test_a_short_text_has_no_flanks(folder: str) -> None:
    for radius, least in ((20, False), (22, True)):  # 4 slots and 44 rows are more than half of 90
        assert (frozen(models.load(folder, "cpu", radius=radius), laid()) is None) == least


# How it fills


def watched(model: Model, patch: pytest.MonkeyPatch) -> list[tuple[int, Sequence[Run]]]:
    """The forwards of a model from now on, each with the number of frozen rows that it sees."""
    found, denoise = list[tuple[int, Sequence[Run]]](), model.denoise

    def noted(runs: Sequence[Run]) -> TensorScores:
        found.append((runs[0].kv.length, runs))
        return denoise(runs)

    patch.setattr(model, "denoise", noted)
    return found


def forwards(
    model: Model, monkeypatch: pytest.MonkeyPatch, job: wire.Infill = JOB
) -> tuple[wire.Done, list[tuple[int, Sequence[Run]]]]:
    """The answer of a job, and its forwards."""
    with monkeypatch.context() as patch:
        found = watched(model, patch)
        return alone(model, job), found


@pytest.fixture
def model(folder: str, monkeypatch: pytest.MonkeyPatch) -> Model:
    """It tries one length only."""
    monkeypatch.setattr(length, "LINE", ())
    return models.load(folder, "cpu", radius=NEAR)


def test_a_fill_ends_is_called_approximate_and_leaves_the_text_as_it_is(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, found = forwards(model, monkeypatch)
    assert answer.stop == "complete"
    assert answer.approximate
    assert wire.decode_engine(wire.encode(answer)) == answer
    text = dict[int, int]()
    for before, (one,) in found:
        assert before + len(one.ids) == len(found[0][1][0].ids), "all rows are seen"
        fixed = {place: token for place, token in zip(one.positions, one.ids, strict=True) if token != MASK}
        assert all(text.setdefault(place, token) == token for place, token in fixed.items())
    assert [len(one.ids) < 60 for _, (one,) in found] == [before > 0 for before, _ in found]
    assert sum(before > 0 for before, _ in found) > len(found) // 2


def test_a_typed_key_starts_from_a_forward_of_all_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = msgspec.structs.replace(JOB, job="k", prefix=JOB.prefix + "n")
    right, _ = forwards(model, monkeypatch, typed)
    found, scheduler = watched(model, monkeypatch), Scheduler(model)
    scheduler.take(b"p", JOB, 0.0)
    while not (found and found[-1][0]):
        scheduler.step(Clock())
    del found[:]
    events = run_jobs(scheduler, [typed], peer=b"p")["k"]
    before, (first, *_) = found[0]
    assert before == 0
    assert len(first.ids) > model.spec.max_context // 2
    assert done(events).holes == right.holes


def test_a_race_has_all_lengths_in_a_long_text(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[list[int]]()
    for radius in (NEAR, 0):
        model = models.load(folder, "cpu", radius=radius)
        monkeypatch.setattr(model, "spec", replace(model.spec, rows=model.spec.max_context + 200))
        answer, found = forwards(model, monkeypatch)
        assert answer.stop == "complete"
        counts.append([len(runs) for _, runs in found])
    assert counts[0][:3] == [1, 10, 4], "the text, then every length, then a third"
    assert counts[1][0] == 1, "whole canvases do not fit"


# What a user may choose


def test_exact_models_have_no_flanks_and_zero_turns_them_off(folder: str) -> None:
    assert models.load(folder, "cpu").spec.radius == 64
    assert models.load(folder, "cpu", radius=0).spec.radius == 0
    assert models.load(folder, "cpu", radius=9, exact=True).spec.radius == 0


def test_a_radius_that_is_no_number_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAESURA_RADIUS", "far")
    with pytest.raises(worker.CannotLoad, match="CAESURA_RADIUS is 'far'; it must be a number of rows"):
        worker._number("CAESURA_RADIUS", "rows")
