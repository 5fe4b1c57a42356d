"""A decision on a canvas in one kernel is the decision that PyTorch makes."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from caesura.engine.methods.uniform import renoise
from caesura.engine.methods.uniform.renoise import CanvasState, Constraints, Outlook, SlotStatistics, by_entropy
from caesura.engine.noise import Schedule
from caesura.engine.samplers import threshold
from caesura.kernels import decision

from ...support.checkpoints.few import few

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where there is no GPU, Triton interprets
SIZES = [1, 2, 5, 16, 33, 130]
TOKENS = 12  # few, so that slots keep theirs and some end the text


class Embedding:
    """As much of a model as a decision asks for."""

    def __init__(self) -> None:
        self.table = torch.randn(TOKENS, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.table[ids]


def asked(slots: int, seed: int) -> tuple[CanvasState, Outlook, Constraints, renoise.Chances]:
    """Some slots are shut, at rest or new; every second canvas is nearly sure."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(most: int) -> Tensor:
        return torch.randint(most, (slots,), generator=generator).to(DEVICE)

    def some(share: float) -> Tensor:
        return (torch.rand(slots, generator=generator) < share).to(DEVICE)

    def soft() -> Tensor:
        return torch.rand(slots, 3, generator=generator).to(DEVICE)

    open = some((0.0, 0.5, 1.0)[seed % 3])
    best = torch.where(some(0.3) & open, -1, numbers(TOKENS))
    token = torch.where(some(0.7) & (best >= 0), best, numbers(TOKENS))
    entropy = torch.rand(slots, generator=generator).to(DEVICE) * (1e-4 if seed % 2 else 0.3)
    logit = -torch.rand(slots, generator=generator).to(DEVICE)
    scores = SlotStatistics(*(values[None] for values in (token, logit.exp(), logit.exp(), entropy)))

    def pick(uniform: Tensor, wanted: Tensor) -> Tensor:
        return torch.where(wanted, (uniform * TOKENS).long(), 999)

    outlook = Outlook(scores, logit, torch.zeros_like(logit), torch.zeros_like(logit), soft(), pick)
    ends = torch.tensor([3, 7][: seed % 3], dtype=torch.int64, device=DEVICE)
    terms = Constraints(open, some(0.8), some(0.1), ends, torch.full((1,), 0.01, device=DEVICE))
    chances = renoise.Chances(torch.rand(slots, generator=generator).to(DEVICE), numbers(TOKENS))
    return CanvasState(numbers(TOKENS), best, numbers(4), soft()), outlook, terms, chances


@few("slots", SIZES, 1, 4)
def test_a_decision_in_one_kernel_is_the_decision(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = set[float]()
    for seed in range(30):
        state, outlook, terms, chances = asked(slots, seed)
        sampler = renoise.on_host(threshold.select) if seed % 5 == 0 else by_entropy
        given = Embedding(), Schedule(stability=seed % 2), state, outlook, sampler, 0, 1, terms, chances
        with monkeypatch.context() as patch:
            patch.setattr(renoise, "fused", lambda _: False)
            after, told = renoise.decide(*given)  # type: ignore[arg-type]
            patch.setattr(renoise, "fused", lambda _: True)
            found, numbers = renoise.decide(*given)  # type: ignore[arg-type]
        for one, other in zip(found.tensors, after.tensors, strict=True):
            assert torch.equal(one, other)
        assert numbers.dtype == torch.float64
        torch.testing.assert_close(numbers, told, atol=1e-7, rtol=1e-6)
        done.add(float(told[3, 0]))
    assert done == {0.0, 1.0}


@few("slots", SIZES, 1, 4)
def test_slots_are_accepted_in_the_order_of_their_entropy(slots: int) -> None:
    generator = torch.Generator().manual_seed(slots)
    entropy = (torch.rand(7, slots, generator=generator) * 8).round() / 64  # sums are exact, and some are equal
    open = torch.rand(7, slots, generator=generator) < torch.linspace(0, 1, 7)[:, None]
    entropy, open = entropy.to(DEVICE), open.to(DEVICE)
    for bound in (0.0, 0.0625, 0.5, 100.0):
        found = decision.launch_accept(entropy, open, bound)
        assert torch.equal(found, decision.reference_accept(entropy, open, bound))
        assert (found.any(1) == open.any(1)).all()


def test_a_slot_whose_entropy_is_no_number_is_not_accepted() -> None:
    entropy, open = (
        torch.tensor([[0.1, torch.nan, 0.2]], device=DEVICE),
        torch.ones(1, 3, dtype=torch.bool, device=DEVICE),
    )
    for accept in (decision.launch_accept, decision.reference_accept):
        assert accept(entropy, open, 1.0).tolist() == [[True, False, True]]


def part(outlook: Outlook, mine: Tensor) -> Outlook:
    """What a forward says of some slots."""
    scores = SlotStatistics(*(values[:, mine] for values in outlook.scores))
    assert outlook.soft is not None
    own = outlook.logit[mine], outlook.allowed[mine], outlook.total[mine], outlook.soft[mine]
    return Outlook(scores, *own, outlook.pick)


def canvases_of(slots: int, count: int, generator: torch.Generator) -> Tensor:
    """Which slots belong to each canvas, bool [count, slots]; some have none."""
    return (torch.randint(count, (slots,), generator=generator) == torch.arange(count)[:, None]).to(DEVICE)


@few("slots", SIZES, 1, 4)
def test_canvases_that_are_decided_together_are_decided_as_each_alone(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(10):
        state, outlook, terms, chances = asked(slots, seed)
        canvases = canvases_of(slots, 3, torch.Generator().manual_seed(seed))
        enough = torch.tensor([0.01, 0.0, 0.2], device=DEVICE)
        for kernel in (False, True):
            monkeypatch.setattr(renoise, "fused", lambda _, kernel=kernel: kernel)
            together = Constraints(*terms[:4], enough, canvases)
            model, schedule, sampler = Embedding(), Schedule(stability=seed % 2), by_entropy
            found, told = renoise.decide(model, schedule, state, outlook, sampler, 0, 1, together, chances)  # type: ignore[arg-type]
            for number, mine in enumerate(canvases):
                if not mine.any():
                    continue
                own = renoise.CanvasState(*(values[mine] for values in state.tensors))
                drawn = renoise.Chances(*(values[mine] for values in chances))
                of_slots = (values[mine] for values in terms[:3])
                alone = Constraints(*of_slots, terms.ends, enough[number : number + 1])
                given = model, schedule, own, part(outlook, mine), sampler, 0, 1, alone, drawn
                after, expected = renoise.decide(*given)  # type: ignore[arg-type]
                for one, other in zip(found.tensors, after.tensors, strict=True):
                    assert torch.equal(one[mine], other)
                torch.testing.assert_close(told[:, mine], expected, atol=1e-7, rtol=1e-6)


@few("rows", SIZES, 1, 4)
def test_a_text_may_end_after_its_last_locked_slot(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    for share in (0.0, 0.1, 0.9):
        may_end, locked, is_slot = (
            torch.rand(3, rows, generator=generator) < torch.tensor([[0.7], [share], [0.7]])
        ).to(DEVICE)
        bias = torch.randint(3, (rows,), generator=generator).to(DEVICE)
        for count in (1, 3):
            canvases = canvases_of(rows, count, generator)
            given = bias, may_end, locked, is_slot, canvases, 3
            (found, open), expected = decision.launch_biases(*given), decision.reference_biases(*given)
            assert torch.equal(found, expected[0])
            assert torch.equal(open, expected[1])
            for mine in canvases:
                last = max((mine & locked & is_slot).nonzero().flatten().tolist(), default=-1)
                ending = mine & may_end & (torch.arange(rows, device=DEVICE) > last)
                assert torch.equal(found[mine] == 3, ending[mine])
