"""The mini DiffusionGemma of tests/data/mini: small, in the published format, and trained, so that sampler, pins, locks
and the choice of a length are tested on weights that mean something. It is made by training/mini.py.
"""

import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from caesura.engine import models
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods.uniform import canvases as uniform
from caesura.engine.methods.uniform.renoise import by_entropy
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.engine.noise import Schedule

from ...support.checkpoints.generate import generate
from ...support.checkpoints.oracle import Oracle

ROOT = Path(__file__).parents[3]
MINI = ROOT / "tests" / "data" / "mini"
sys.path.insert(0, str(ROOT / "training"))

import mini_figures  # noqa: E402
import sudoku  # noqa: E402
from mini_tasks import Boards  # noqa: E402
from records import Records  # noqa: E402


@pytest.fixture(scope="module")
def mini() -> DiffusionGemma:
    found = models.load(str(MINI), "cpu")
    assert isinstance(found, DiffusionGemma)
    return found


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in float32: in bfloat16 two ways to compute differ by more than a draw allows."""
    folder = Path(shutil.copytree(MINI, tmp_path_factory.mktemp("exact") / "mini"))
    path = folder / "model.safetensors"
    save_file({name: tensor.float() for name, tensor in load_file(path).items()}, path, {"format": "pt"})
    return folder


def boards(model: DiffusionGemma, side: int, count: int) -> tuple[Boards, list[mini_figures.Blank]]:
    """Puzzles that it was not trained on, solvable by singles; of 9x9 those with 40 givens or more."""
    if side == 4:
        full, rounds = sudoku.small(held=True)
        pick = np.random.default_rng(5).permutation(len(full))[:count]
    else:
        full, rounds = sudoku.collection(4 * count, 1, 987654, most=50)
        pick = np.flatnonzero(((rounds == 0).sum(1) >= 40) & (rounds != sudoku.NEVER).all(1))[:count]
    board = Boards(model.tokenizer.encode, side, min(model.spec.ends))
    true, hidden = board.render(full[pick], board.rows), board.hide(rounds[pick] > 0, board.rows)
    return board, list(zip(true.tolist(), hidden.tolist(), strict=True))


@pytest.mark.parametrize(("side", "count", "least"), [(4, 20, 20), (9, 10, 9)])
def test_it_solves_boards_it_has_never_seen_in_a_few_forwards(
    mini: DiffusionGemma, side: int, count: int, least: int
) -> None:
    board, blanks = boards(mini, side, count)
    assert len(blanks) == count
    found = mini_figures.infill(mini, board.legend, blanks, steps=16)
    assert sum(ids == true for (ids, _), (true, _) in zip(found, blanks, strict=True)) >= least
    assert sum(steps for _, steps in found) / count < 6, "forwards of a board"


def test_no_given_changes_and_no_locked_digit_is_taken_back(mini: DiffusionGemma) -> None:
    board, blanks = boards(mini, 9, 2)
    kv = mini.cache().lease(board.legend)
    mini.prefill(board.legend, kv)
    for true, hidden in blanks:
        canvas = mini_figures.canvas_of(Vocabulary(mini), (true, hidden))
        w = uniform.Renoising(canvas, kv, by_entropy, 16, 0)
        locked: dict[int, int] = {}
        givens = [token for token, blank in zip(true, hidden, strict=True) if not blank]
        while not w.finished:
            uniform.step(mini, [w])
            assert [row for row in canvas.layout if isinstance(row, int)] == givens
            now = {i: s.token for i, s in enumerate(canvas.slots) if s.locked and s.token is not None}
            assert now.items() >= locked.items()
            locked = now
        answer = [s.draft if s.token is None else s.token for s in canvas.slots]
        assert all(answer[i] == token for i, token in locked.items())


def test_what_is_known_of_a_board_costs_fewer_forwards(mini: DiffusionGemma) -> None:
    """A warm start with the right digits is confirmed in one step; one from noise takes two at least."""
    board, blanks = boards(mini, 9, 1)
    kv = mini.cache().lease(board.legend)
    mini.prefill(board.legend, kv)
    steps = []
    for warm in (False, True):
        canvas = mini_figures.canvas_of(Vocabulary(mini), blanks[0])
        solution = [token for token, blank in zip(*blanks[0], strict=True) if blank]
        for slot, token in zip(canvas.slots, solution, strict=True):
            slot.shown = token if warm else None
        w = uniform.Renoising(canvas, kv, by_entropy, 16, 0)
        while not w.finished:
            uniform.step(mini, [w])
        steps.append(w.step)
    assert steps[1] == 1 < steps[0]


@pytest.mark.slow
def test_the_length_of_a_value_is_found_by_what_is_pinned_behind_it(mini: DiffusionGemma) -> None:
    made, rng = Records(mini.tokenizer.encode), random.Random(3)
    right = 0
    for _ in range(20):
        example = made.example(rng, moved=True)
        start, end = rng.choice(example.values)
        best = max(mini_figures.of_every_length(mini, example, start, end), key=lambda w: w.score)
        right += len(best.canvas.slots) == end - start
    assert right >= 15


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("kind", ["board", "record"])
def test_transformers_writes_the_same_with_it(exact: Path, kind: str, seed: int) -> None:
    model, oracle = models.load(str(exact), "cpu"), Oracle.load(exact)
    prompt = Boards(model.tokenizer.encode, 9, min(model.spec.ends)).legend
    if kind == "record":
        prompt = Records(model.tokenizer.encode).example(random.Random(seed), moved=False).prompt
    schedule = Schedule(steps=12)
    ours = generate(model, prompt, max_new=1, seed=seed, schedule=schedule)
    assert ours.ids == list(oracle.write(prompt, max_new=1, seed=seed, schedule=schedule))
