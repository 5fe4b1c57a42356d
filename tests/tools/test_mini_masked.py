"""The training of the minis of absorbing noise: what they are shown, which rows see each other, and that the engine
computes what was trained. What the trained ones can do is in test_minis.py.
"""

import random
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import mini_files
import mini_masked
from mini_files import SKIPPED

from caesura.engine import models

from ..support.checkpoints import compared


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trainers():
    return {name: mini_masked.Trainer(family, seed=0) for name, family in mini_masked.FAMILIES.items()}


def test_every_line_of_a_file_stands_twice_and_its_ids_are_those_of_its_text(trainers):
    trainer, rng = trainers["dream"], random.Random(0)
    for _ in range(50):
        ids, spans = trainer.files.draw(rng, 62)
        text = trainer.tokenizer.decode(ids)
        assert trainer.tokenizer.encode(text).ids == ids
        lines = [frozenset(line.strip("{}").split(", ")) for line in text.splitlines()]  # fields in any order
        assert all(lines.count(line) % 2 == 0 for line in lines)
        assert all(trainer.tokenizer.decode(ids[start:end]).replace(" ", "").isalpha() for start, end in spans)
        assert len(ids) <= 62


def test_half_of_a_batch_has_values_hidden_and_hidden_rows_say_what_stood_there(trainers):
    trainer = trainers["dream"]
    drawn = trainer.draw(0)
    hidden = drawn.labels != SKIPPED
    assert (drawn.shown[hidden] == trainer.specials.mask).all()
    assert (drawn.labels[hidden] == drawn.clean[hidden]).all()
    assert (drawn.shown[~hidden] == drawn.clean[~hidden]).all()
    assert not hidden[:, 0].any(), "the first token of a text is never in doubt"
    assert 0.3 < (hidden.sum(1) < 12).float().mean() < 0.9


def test_a_hole_of_another_length_can_be_mended_by_expanding_and_deleting(trainers):
    """A row that says `expand` stands for two tokens or more; those that say the end of the text are too many."""
    special, kinds = trainers["dreamon"].specials, set()
    text = list(range(100, 130))
    for seed in range(200):
        clean, shown, labels = mini_files.stretched(random.Random(seed), text, (10, 16), 64, special)
        said = [token for token in clean if token not in (special.expand, special.end)]
        expands, ends, merged = clean.count(special.expand), clean.count(special.end), len(text) - len(said)
        assert said == [token for token in text if token in said]
        assert {*range(100, 109), *range(116, 130)} <= set(said), "only the hole is another one"
        assert merged >= 2 * expands
        assert (merged > 0) == (expands > 0)
        kinds.add((expands > 0, ends > 0))
        assert all(label in (SKIPPED, token) for label, token in zip(labels, clean, strict=True))
        assert all(token == special.mask for token, label in zip(shown, labels, strict=True) if label != SKIPPED)
    assert kinds == {(False, False), (True, False), (False, True)}, "never both"


def test_a_noisy_row_sees_its_noisy_block_and_the_clean_ones_before_it():
    [[mask]] = mini_masked.seen_by_blocks(6, 2, torch.tensor([5]))
    clean, noisy = mask[:, :6].int().tolist(), mask[:, 6:].int().tolist()
    assert clean[2] == [1, 1, 1, 1, 0, 0]
    assert clean[4] == [1, 1, 1, 1, 1, 0], "the last row is not there"
    assert noisy[2] == [0] * 6, "nothing clean sees noise"
    assert clean[6 + 2] == [1, 1, 0, 0, 0, 0]
    assert noisy[6 + 2] == [0, 0, 1, 1, 0, 0]
    assert noisy[6 + 4] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("family", ["dream", "dreamon", "sdar"])
def test_the_engine_computes_what_was_trained(trainers, family, tmp_path):
    trainer = trainers[family]
    trainer.write(tmp_path / family)
    for parameter in trainer.net.parameters():
        parameter.data = parameter.data.bfloat16().float()
    drawn, block = trainer.draw(1), trainer.family.block
    length = int(drawn.lengths[0])
    start = 0 if block is None else (length - 1) // block * block  # the last block has noise, the others are context
    with torch.no_grad():
        expected = trainer.net.lm_head(trainer.hidden(drawn)[0, start + trainer.family.shift : length])
    model = models.load(str(tmp_path / family), "cpu", exact=True)
    ids = torch.cat((drawn.clean[0, :start], drawn.shown[0, start:length])).tolist()
    found = compared.logits(model, ids, start)[: len(expected)]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.slow
def test_a_run_learns():
    trainer = mini_masked.Trainer(mini_masked.FAMILIES["dream"], seed=1)
    losses = [loss for _, loss, _ in trainer.train(seconds=0, steps=200)]
    assert losses[-1] < 0.8 * losses[0]
