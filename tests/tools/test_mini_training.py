"""The mini model's training at tiny size: its puzzles are what they claim, its texts are tokens as in use, a run learns
and resumes, and what it writes Transformers loads and computes alike. And the trained one in tests/data/mini solves
what it has not seen."""

import argparse
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "training"))

import mini  # noqa: E402
import mini_export  # noqa: E402
import mini_figures  # noqa: E402
import mini_tasks  # noqa: E402
import records  # noqa: E402
import sudoku  # noqa: E402
from mini_net import Shape  # noqa: E402

from caesura.engine import models  # noqa: E402
from caesura.engine.tokens.tokenizer import Tokenizer  # noqa: E402

from ..support.checkpoints.generate import generate  # noqa: E402

MINI = ROOT / "tests" / "data" / "mini"
SMALL = Shape(layers=("sliding", "full", "sliding", "full"), dense=32, expert=8)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_flush_denormal(False)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(mini.TOKENIZER)


@pytest.fixture(scope="module")
def puzzles():
    return sudoku.collection(6, 2, 3)


@pytest.fixture
def trainer(tmp_path, puzzles, monkeypatch):
    """`trainer(run, steps)`: a run in small steps, uncompiled."""
    monkeypatch.setattr(mini, "ROWS", 192)
    np.savez(tmp_path / "puzzles.npz", full=puzzles[0], rounds=puzzles[1])

    def make(run, steps):
        arguments = argparse.Namespace(
            run=tmp_path / run, puzzles=tmp_path / "puzzles.npz", steps=steps, minutes=0, rate=5e-3, seed=0, log_s=60,
            save_s=600, compile=False,
        )  # fmt: skip
        return mini.Trainer(arguments, SMALL)

    return make


def test_a_puzzle_has_one_solution_and_singles_find_it_unless_it_is_said_to_be_minimal(puzzles):
    for solution, rounds in zip(*puzzles, strict=True):
        puzzle = np.where(rounds == 0, solution, 0)
        assert sudoku.solve(puzzle.tolist(), 9) == [solution.tolist()]
    assert (puzzles[1][:6] < sudoku.NEVER).all()
    minimal, solution = puzzles[1][6], puzzles[0][6]
    for cell in np.flatnonzero(minimal == 0)[:5]:
        puzzle = np.where(minimal == 0, solution, 0)
        puzzle[cell] = 0
        assert len(sudoku.solve(puzzle.tolist(), 9)) > 1


def test_a_shuffled_puzzle_is_a_puzzle_of_the_same_difficulty_and_fingerprint(puzzles):
    full, rounds = sudoku.shuffled(*puzzles, 9, np.random.default_rng(0))
    assert (full != puzzles[0]).any(1).all()
    assert (sudoku.singles(np.where(rounds == 0, full, 0), 9)[1] == rounds).all()
    assert sudoku.fingerprints(full, 9) == sudoku.fingerprints(puzzles[0], 9)
    assert len(set(sudoku.fingerprints(full, 9))) == len(full)


def test_no_small_grid_is_both_trained_and_held_out():
    trained, held = ({grid.tobytes() for grid in sudoku.small(held=held)[0]} for held in (False, True))
    assert not trained & held
    assert len(trained | held) == 288


@pytest.mark.parametrize("side", [4, 9])
def test_a_board_is_the_ids_of_its_text(tokenizer, side):
    board = mini_tasks.Boards(tokenizer.encode, side, eos=0)
    full = sudoku.solutions(1, side, "text")
    text = "".join("".join(map(str, row)) + "\n" for row in full.reshape(side, side))
    ids = board.render(full, board.rows)[0].tolist()
    assert ids[: side * (side + 1)] == tokenizer.encode(text)
    assert set(ids[side * (side + 1) :]) == {0}
    assert tokenizer.encode(mini_tasks.LEGENDS[side] + text) == board.legend + tokenizer.encode(text)


def test_a_record_is_the_ids_of_its_text_and_its_values_stand_in_its_prompt(tokenizer):
    made, rng = records.Records(tokenizer.encode), random.Random(0)
    for _ in range(50):
        example = made.example(rng, moved=True)
        prompt = b"".join(tokenizer.pieces[i] for i in example.prompt).decode()
        assert tokenizer.encode(prompt) == example.prompt
        for start, end in example.values:
            assert b"".join(tokenizer.pieces[i] for i in example.canvas[start:end]).decode() in prompt


def test_a_board_is_mostly_shown_as_in_use_and_a_record_is_padded_on_the_left(trainer):
    run = trainer("batch", 1)
    full, rounds = (a.repeat(50, 0) for a in run.puzzles[9])
    board = run.boards[9]
    hidden = board.batch(full, rounds, board.rows, np.random.default_rng(1)).hidden
    lines = torch.arange(board.side, board.side * (board.side + 1), board.side + 1)
    pinned = ~hidden[:, lines].any(1)
    assert 0.7 < pinned.float().mean() < 0.95
    given = hidden.sum(1) == torch.from_numpy(rounds > 0).sum(1)
    assert 0.25 < (given & pinned).float().mean() < 0.5
    record = run.batch("json", np.random.default_rng(1))
    assert (record.padding.int().diff() <= 0).all()
    assert not record.padding[:, -1].any()
    assert (record.beyond.int().diff() >= 0).all()


@pytest.mark.slow
def test_a_run_learns(trainer):
    run = trainer("learns", 40)
    run.train()
    log = (run.arguments.run / "log.jsonl").read_text()
    assert '"step": 40' in log
    fresh = trainer("fresh", 40)
    batch = run.batch("4", np.random.default_rng(5))

    def ce(net):
        draw = torch.Generator().manual_seed(0)
        return mini.losses(net, batch, draw, torch.float32, conditioned=True, prompt_learns=False)["ce"].item()

    assert ce(run.net) < 0.5 * ce(fresh.net)


def test_a_resumed_run_is_the_uninterrupted_one(trainer):
    torch.set_flush_denormal(True)  # as in a run
    whole = trainer("whole", 16)
    whole.train()
    part = trainer("part", 16)
    while part.step < 7:
        part.once(16)
        part.spent = part.step
    part.save()
    resumed = trainer("part", 16)
    assert resumed.step == 7
    resumed.train()
    for (name, a), b in zip(whole.net.named_parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_written_model_reads_back_and_transformers_computes_the_same(trainer, tmp_path):
    transformers = pytest.importorskip("transformers")
    run = trainer("written", 1)
    for scalars in run.net.scalars.values():
        scalars.data.uniform_(0.5, 1.0)
    mini_export.write(run.net, mini.TOKENIZER, tmp_path / "model")
    net = mini_export.read(tmp_path / "model", SMALL)
    theirs, about = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(
        tmp_path / "model", attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not about["unexpected_keys"]
    assert all("vision" in name for name in about["missing_keys"])
    board = run.boards[4]
    prompt = torch.tensor([board.legend])
    canvas = torch.randint(16384, (1, 24))
    conditioning = torch.randn(1, 24, 16384)
    with torch.no_grad():
        soft = conditioning.softmax(-1) @ net.embedding() * SMALL.hidden**0.5
        x, _ = net.decode(canvas, net.encode(prompt), None, soft)
        found = theirs(input_ids=prompt, decoder_input_ids=canvas, self_conditioning_logits=conditioning).logits
    torch.testing.assert_close(net.logits(x, net.embedding()), found, atol=5e-4, rtol=0)


@pytest.mark.parametrize(("side", "givens"), [(4, 7), (9, 42)])
def test_the_trained_mini_solves_boards_it_has_not_seen_in_few_forwards(side, givens):
    model = models.load(str(MINI), "cpu")
    board = mini_tasks.Boards(model.tokenizer.encode, side, eos=0)
    full, rounds = (a[::8][:8] for a in sudoku.small(held=True))
    if side == 9:
        full = sudoku.solutions(8, 9, "not seen")
        rounds = sudoku.dig(full, 9, np.full(8, givens), 0)
    true, hidden = board.render(full, board.rows), board.hide(rounds > 0, board.rows)
    found = mini_figures.infill(model, board.legend, list(zip(true.tolist(), hidden.tolist(), strict=True)), steps=8)
    solved = sum(ids == answer for (ids, _), answer in zip(found, true.tolist(), strict=True))
    assert solved >= 7
    assert sum(forwards for _, forwards in found) < hidden.sum() / 3


def test_the_trained_mini_gives_the_tokens_that_transformers_gives(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(MINI, tmp_path / "mini")
    wide = {name: t.float() for name, t in load_file(MINI / "model.safetensors").items()}
    save_file(wide, folder / "model.safetensors", {"format": "pt"})
    theirs = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )
    ours = models.load(str(folder), "cpu")
    prompt = ours.tokenizer.encode('{"name": "red fish", "size": "snow"}\n')
    torch.manual_seed(0)
    said = theirs.generate(torch.tensor([prompt]), max_new_tokens=96).sequences[0, len(prompt) :].tolist()
    assert generate(ours, prompt, max_new=96, seed=0).ids == said
    assert ours.tokenizer.decode(said).startswith('{"name": "')
