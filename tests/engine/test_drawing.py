"""Samplers that draw, on a process small enough to enumerate: texts of two tokens out of three, and a mask."""

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from caesura.engine import samplers
from caesura.engine.draws import Draws
from caesura.engine.samplers import Reading
from caesura.engine.samplers.drawing.ancestral import chances
from caesura.engine.scores import told
from caesura.engine.scores.tensors import TensorScores

TOKENS, MASK, STEPS, TIMES = 3, 3, 24, 800
DATA = torch.tensor([[0.30, 0.02, 0.08], [0.05, 0.20, 0.01], [0.04, 0.10, 0.20]], dtype=torch.float64)
Text = tuple[int, int]
TEXTS = list(itertools.product(range(TOKENS), repeat=2))
NOISED = list(itertools.product(range(TOKENS + 1), repeat=2))


def kept(sigma: float) -> Tensor:
    """The transition of a token over noise sigma, [from, to]: exp(sigma Q), where all flow into the mask at rate 1."""
    rates = torch.zeros(TOKENS + 1, TOKENS + 1, dtype=torch.float64)
    rates[:TOKENS, :TOKENS], rates[:TOKENS, MASK] = -torch.eye(TOKENS), 1
    return torch.linalg.matrix_exp(sigma * rates)


def marginal(text: Text, sigma: float) -> float:
    """The probability of a noised text, summed over all texts of the data."""
    move = kept(sigma)
    return float(sum(DATA[x] * move[x[0], text[0]] * move[x[1], text[1]] for x in TEXTS))


@cache
def predicted(text: Text) -> Tensor:
    """What an exact model says of each slot, [slots, tokens and mask]: log-probabilities given the known tokens."""
    found = torch.full((2, TOKENS + 1), -torch.inf, dtype=torch.float64)
    for slot, token in itertools.product(range(2), range(TOKENS)):
        fits = [
            x for x in TEXTS if x[slot] == token and all(held in (MASK, y) for held, y in zip(text, x, strict=True))
        ]
        found[slot, token] = math.log(sum(float(DATA[x]) for x in fits) or 1e-300)
    return found.log_softmax(-1)


def seen(text: Text, seed: int, step: int) -> Reading:
    scores = TensorScores(predicted(text))
    token, nothing = np.array([-1 if held == MASK else held for held in text], np.int32), np.zeros(2, np.bool_)
    (statistics,) = told(scores.statistics())
    return Reading((0, 1), statistics, scores, token < 0, nothing, token, None, step, STEPS, Draws(seed, step))


@pytest.mark.parametrize("text", [(MASK, MASK), (MASK, 1), (2, MASK)])
@pytest.mark.parametrize("left", [48, 7, 2])
def test_the_step_of_ancestral_is_the_posterior_of_the_process(text: Text, left: int) -> None:
    """By Bayes over all texts: what a slot holds at time s, given all at time t."""
    t, s = (-math.log(1 - share) for share in (left / 49, (left - 1) / 49))
    first, then = kept(s), kept(t - s)
    chance = chances(seen(text, 0, 0), left)
    for slot, token in itertools.product([at for at in range(2) if text[at] == MASK], range(TOKENS)):
        joint = sum(
            DATA[x] * math.prod(first[x[at], now[at]] * then[now[at], text[at]] for at in range(2))
            for x, now in itertools.product(TEXTS, NOISED)
            if now[slot] == token
        )
        ours = float(chance[slot]) * predicted(text).exp()[slot, token]
        assert float(joint / marginal(text, t)) == pytest.approx(float(ours), abs=1e-12)


@pytest.mark.parametrize("wrong", [1.0, 0.7, 1.2])
def test_of_score_ratios_it_is_the_step_of_staggered_scores(wrong: float) -> None:
    """As in the paper: exp(-dsigma Q) ratios, times the transition from each token to the mask. Also for a model whose
    ratios are `wrong` by a factor."""
    left = 9
    t, s = (-math.log(1 - share) for share in (left / 49, (left - 1) / 49))
    ratios = torch.tensor([marginal((y, MASK), t) / marginal((MASK, MASK), t) for y in range(TOKENS)] + [1.0]).double()
    ratios[:MASK] *= wrong
    theirs = (torch.linalg.inv(kept(t - s)).T @ ratios) * kept(t - s)[:, MASK]
    logits = ratios[None].log() + math.log(math.expm1(t))  # as SEDD's family has them
    logits[:, MASK] = -torch.inf
    asked = seen((MASK, MASK), 0, 0)._replace(scores=TensorScores(logits), open=np.array([True]), ratios=True)
    ours = float(chances(asked, left)[0]) * logits.softmax(-1)[0]
    torch.testing.assert_close(ours[:MASK], theirs[:MASK], atol=1e-12, rtol=0)
    assert float(1 - ours.sum()) == pytest.approx(float(theirs[MASK]), abs=1e-12)


@pytest.mark.parametrize(("name", "ratios"), [("ancestral", False), ("ancestral", True), ("first_hitting", False)])
def test_texts_come_as_often_as_in_the_data(name: str, ratios: bool) -> None:
    found = Counter(filled(name, seed, ratios=ratios) for seed in range(TIMES))
    for text in TEXTS:
        expected = float(DATA[text])
        assert abs(found[text] / TIMES - expected) < 4 * math.sqrt(expected * (1 - expected) / TIMES), text


def filled(name: str, seed: int, *, ratios: bool) -> Text:
    sampler, text = samplers.begin(name), (MASK, MASK)
    for step in range(STEPS):
        if MASK not in text:
            break
        decision = sampler(seen(text, seed, step)._replace(ratios=ratios))
        assert decision.drawn is not None
        assert decision.accept.any()
        assert np.array_equal(decision.accept, decision.drawn >= 0)
        new = decision.drawn.tolist()
        text = (new[0] if decision.accept[0] else text[0], new[1] if decision.accept[1] else text[1])
    return text
