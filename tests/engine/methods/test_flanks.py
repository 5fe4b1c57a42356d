"""Frozen flanks: in a long text a step computes the rows near the slots, and the others again where a rule says so."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import models, worker
from caesura.engine.cache import KV
from caesura.engine.methods._flanks import DOUBT, EVERY, Flanks
from caesura.engine.models import Model, Run
from caesura.engine.scheduler import Scheduler

from ... import masked
from ...tiny import CODE, Clock, alone, done, infill
from ...tiny import run as run_jobs

IDS = torch.randint(5, 400, (90,), generator=torch.Generator().manual_seed(1)).tolist()
SLOTS = [40, 41, 42, 43]
NEAR, MASK = 8, 3
JOB = infill("j", CODE[:600] + "\nx = ", "\n" + CODE[600:1200], wire.Hole(12, "line"))
DRAFTED = msgspec.structs.replace(JOB, draft=("total + self._count(left)",))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("flanks")
    return {family: masked.published(place / family, family) for family in ("llada", "dream")}


@pytest.fixture(params=["llada", "dream"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> str:
    """A model of either shift."""
    return str(folders[request.param])


def run(kv: KV, *accepted: int, slots: Sequence[int] = SLOTS) -> Run:
    """A forward over IDS, whose slots are masked but for those that were accepted."""
    ids = [MASK if row in slots and row not in accepted else token for row, token in enumerate(IDS)]
    return Run(kv, ids, range(len(ids)), wanted=slots)


def computed(flanks: Flanks, asked: Run) -> int:
    """Rows that a forward computes."""
    return len(flanks.narrowed(asked).ids)


# What it computes


@pytest.mark.parametrize(
    "slots", [SLOTS, [0, 1], [88, 89], [5, 6, 70, 71]], ids=["middle", "start", "end", "two holes"]
)
def test_while_nothing_changes_near_rows_have_the_logits_of_a_whole_forward(folder: str, slots: list[int]) -> None:
    model = models.load(folder, "cpu", exact=True)
    kv, other, flanks = model.cache().lease([]), model.cache().lease([]), Flanks(NEAR, model.shift)
    right = model.denoise([run(other, slots=slots)])
    for rows in (len(IDS), len(flanks._near(run(kv, slots=slots)))):
        asked = flanks.narrowed(run(kv, slots=slots))
        assert len(asked.ids) == rows
        torch.testing.assert_close(model.denoise([asked]), right, atol=1e-5 * float(right.abs().max()), rtol=0)


def test_what_is_accepted_is_seen_at_once_and_the_flanks_follow_at_the_next_whole_forward(folder: str) -> None:
    model = models.load(folder, "cpu", exact=True)
    kv, other, flanks = model.cache().lease([]), model.cache().lease([]), Flanks(NEAR, model.shift)
    before = model.denoise([flanks.narrowed(run(kv))])
    found, right = model.denoise([flanks.narrowed(run(kv, 40))]), model.denoise([run(other, 40)])
    assert (found - right).norm() < 0.5 * (before - right).norm(), "near rows do see the new token"
    assert not torch.allclose(found, right, atol=1e-5), "this is an approximation"
    again = model.denoise([flanks.narrowed(run(kv, 40, 41))])
    torch.testing.assert_close(again, model.denoise([run(other, 40, 41)]), atol=1e-5 * float(again.abs().max()), rtol=0)


def test_a_radius_that_covers_the_text_changes_no_bit(folder: str) -> None:
    whole, covered = (alone(models.load(folder, "cpu", radius=radius), JOB) for radius in (0, 4096))
    assert not covered.approximate
    assert (covered.holes, covered.steps) == (whole.holes, whole.steps)


# When it computes all rows


def test_every_eighth_forward_computes_all_rows() -> None:
    flanks, kv = Flanks(NEAR, 0), KV([])
    rows = [computed(flanks, run(kv)) for _ in range(2 * EVERY)]
    assert [at for at, count in enumerate(rows) if count == len(IDS)] == [0, EVERY]
    assert flanks.approximate


def test_once_half_of_the_hole_has_changed_all_rows_are_computed() -> None:
    flanks, kv = Flanks(NEAR, 0), KV([])
    rows = [computed(flanks, run(kv, *SLOTS[:accepted])) for accepted in range(5)]
    assert [count == len(IDS) for count in rows] == [True, False, True, False, True]


@pytest.mark.parametrize("change", ["far token", "length", "place"])
def test_no_edit_keeps_the_flanks(change: str) -> None:
    flanks, kv = Flanks(NEAR, 0), KV([])
    flanks.narrowed(run(kv))
    ids = list(run(kv).ids)
    edited = {
        "far token": Run(kv, [7, *ids[1:]], range(90), wanted=SLOTS),
        "length": Run(kv, [*ids, 7], range(91), wanted=SLOTS),
        "place": Run(kv, ids, range(90), wanted=[row + 1 for row in SLOTS]),
    }[change]
    assert computed(flanks, edited) == len(edited.ids)


def test_a_doubtful_last_accept_waits_once_for_a_forward_of_all_rows() -> None:
    flanks, kv = Flanks(NEAR, 0), KV([])
    flanks.narrowed(run(kv))
    assert not flanks.doubt([DOUBT / 2]), "all rows have just been computed"
    flanks.narrowed(run(kv))
    assert not flanks.doubt([DOUBT, 0.9])
    assert flanks.doubt([DOUBT / 2, 0.9])
    assert computed(flanks, run(kv)) == len(IDS)
    assert not flanks.doubt([DOUBT / 2])


def test_a_short_text_has_no_flanks() -> None:
    flanks = Flanks(22, 0)  # 4 slots and 44 rows are more than half of 90
    assert flanks.narrowed(asked := run(KV([]))) is asked
    assert not flanks.approximate


# How it fills


def watched(model: Model, patch: pytest.MonkeyPatch) -> list[tuple[int, Sequence[Run]]]:
    """The forwards of a model from now on, each with the number of frozen rows that it sees."""
    found, denoise = list[tuple[int, Sequence[Run]]](), model.denoise

    def noted(runs: Sequence[Run]) -> Tensor:
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
    """It has rows for one canvas in a step, so that a draft tells the length."""
    found = models.load(folder, "cpu", radius=NEAR)
    monkeypatch.setattr(found, "rows", found.max_context + 32)
    return found


def test_a_fill_ends_is_called_approximate_and_leaves_the_text_as_it_is(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, found = forwards(model, monkeypatch, DRAFTED)
    assert answer.stop == "complete"
    assert answer.approximate
    assert wire.decode_engine(wire.encode(answer)) == answer
    text = dict[int, int]()
    for frozen, (one,) in found[1:]:  # the first one shows the draft
        assert frozen + len(one.ids) == len(found[0][1][0].ids), "all rows are seen"
        fixed = {place: token for place, token in zip(one.positions, one.ids, strict=True) if token != MASK}
        assert all(text.setdefault(place, token) == token for place, token in fixed.items())
    assert sum(frozen > 0 for frozen, _ in found) >= len(found) // 2


def test_a_typed_key_starts_from_a_forward_of_all_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = msgspec.structs.replace(DRAFTED, job="k", prefix=DRAFTED.prefix + "n")
    right, _ = forwards(model, monkeypatch, typed)
    found, scheduler = watched(model, monkeypatch), Scheduler(model)
    scheduler.take(b"p", DRAFTED, 0.0)
    while not (found and found[-1][0]):
        scheduler.step(Clock())
    del found[:]
    events = run_jobs(scheduler, [typed], peer=b"p")["k"]
    frozen, (first, *_) = found[0]
    assert frozen == 0
    assert len(first.ids) > model.max_context // 2
    assert done(events).holes == right.holes


def test_lengths_that_compete_compute_all_rows(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = forwards(models.load(folder, "cpu", radius=NEAR), monkeypatch)
    racing = [(frozen, runs) for frozen, runs in found if len(runs) > 1]
    assert racing
    assert all(frozen == 0 and min(len(one.ids) for one in runs) > 200 for frozen, runs in racing)


# What a user may choose


def test_exact_models_have_no_flanks_and_zero_turns_them_off(folder: str) -> None:
    assert models.load(folder, "cpu").radius == 64
    assert models.load(folder, "cpu", radius=0).radius == 0
    assert models.load(folder, "cpu", radius=9, exact=True).radius == 0


def test_a_radius_that_is_no_number_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAESURA_RADIUS", "far")
    with pytest.raises(worker.CannotLoad, match="CAESURA_RADIUS is 'far'; it must be a number of rows"):
        worker._number("CAESURA_RADIUS", "rows")
