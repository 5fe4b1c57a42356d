"""Families of blocks compute what Transformers computes, and fill gaps block by block as the reference loops do."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import models, samplers
from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import blocks
from caesura.engine.methods.blocks import BlockChain
from caesura.engine.model import Model, ModelError, Run
from caesura.engine.models import audit
from caesura.engine.models.llama import trunk
from caesura.engine.scheduler import Scheduler
from caesura.engine.scores.tensors import bias
from caesura.engine.tokens.turns import LLADA, QWEN3, SEED, Turns

from ...support.checkpoints import compared, masked
from ...support.checkpoints.tiny import CODE, alone, done, infill, laid_out, run, train_tokenizer
from ..methods.test_loops import changed, until_again
from ..test_scheduler import JOBS, keeps_the_contract

IDS = torch.randint(0, 400, (90,), generator=torch.Generator().manual_seed(1)).tolist()
BEFORE, AFTER = CODE[:200] + "\nx = ", "\ny = 1\n"
TWO = (wire.Hole(6), wire.Text(", "), wire.Hole(6, "span"))
LOOPS = ("sdar", "dream_reasoner", "fast_dllm")  # blocks of 4, of 32, of 32 with a shift
SURE = 4.0  # times the head, so that some probabilities are above a threshold


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("blocks")
    return {family: masked.published(place / family, family) for family in masked.BLOCKS}


@pytest.fixture(scope="module", params=["sdar", "fast_dllm"])
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Model:
    """One of either shift, with small and with large blocks."""
    return models.load(str(folders[request.param]), "cpu")


# What it computes


@pytest.mark.parametrize("family", masked.BLOCKS)
def test_logits_are_those_of_transformers_and_of_whole_blocks_in_the_context(
    folders: dict[str, Path], family: str
) -> None:
    model = models.load(str(folders[family]), "cpu", exact=True)
    assert (model.spec.block_size, model.spec.shift) == (masked.SIZE[family], masked.SHIFT.get(family, 0))
    theirs = masked.seen_in_blocks(masked.oracle(family), IDS, model.spec.block_size)[:, : model.width]
    for context in (0, 32, 64):
        ours = compared.logits(model, IDS, context)
        assert ours.shape == (len(IDS) - context, model.width)
        assert (ours - theirs[context:]).abs().max() < 1e-5 * theirs.abs().max()


def test_two_threads_share_a_context_in_whole_blocks(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load(str(folders["fast_dllm"]), "cpu", exact=True)
    alone = compared.logits(model, IDS, 64)
    with ThreadPoolExecutor(1) as second:
        monkeypatch.setattr(model, "_second", second)
        monkeypatch.setattr(trunk, "WORTH_TWO", 16)
        for context in (32, 64):
            torch.testing.assert_close(compared.logits(model, IDS, context)[-26:], alone, atol=1e-5, rtol=0)


def test_on_a_cpu_it_is_nearly_the_same_in_8_bits(folders: dict[str, Path]) -> None:
    whole, coarse = (models.load(str(folders["sdar"]), "cpu", exact=exact) for exact in (True, False))
    right, found = compared.logits(whole, IDS), compared.logits(coarse, IDS, 32)
    assert (found - right[32:]).norm() < 0.15 * right.norm()


def test_a_context_that_is_not_whole_blocks_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="33 ids are not whole blocks"):
        compared.logits(model, IDS, 33)


# How it fills


def test_whole_blocks_are_context_and_the_canvas_begins_with_the_rest(model: Model) -> None:
    for prefix in (BEFORE[:cut] for cut in range(120, 200, 4)):
        laid = laid_out(model, prefix, AFTER, wire.Hole(4), slots=4)
        size, rest = model.spec.block_size, laid.canvas.tail
        assert len(laid.context) % size == 0
        assert model.spec.shift <= len(rest) < size + model.spec.shift, "a row is there that predicts the first slot"
        suffix = model.tokenizer.encode(AFTER)
        assert laid.context[: len(suffix)] == suffix, "the prompt shows the suffix"
        assert laid.canvas.head == suffix[: max(4, size - 1)]


@pytest.mark.parametrize(("prefix", "suffix"), JOBS.values(), ids=JOBS)
def test_every_job_keeps_the_contract(model: Model, prefix: str, suffix: str) -> None:
    segments = (wire.Hole(8),) if model.spec.shift else TWO
    events = run(Scheduler(model), [infill("j", prefix, suffix, *segments)])["j"]
    answer = keeps_the_contract(events, len(segments) // 2 + 1)
    assert answer.stop == "complete"
    assert answer.tokens.lookup == answer.tokens.left_to_right == 0


@pytest.mark.parametrize("segments", [(wire.Hole(12, "line"),), TWO], ids=["one", "two"])
def test_what_is_fixed_is_in_every_forward_and_later_blocks_are_in_none(
    model: Model, monkeypatch: pytest.MonkeyPatch, segments: tuple[wire.Text | wire.Hole, ...]
) -> None:
    size, shift, inner, hidden = model.spec.block_size, model.spec.shift, BlockChain.runs, list[int]()

    def watched(chain: BlockChain, mask: int) -> list[Run]:
        runs, canvas = inner(chain, mask), chain.canvas
        rows = [*canvas.tail, *canvas.layout, *canvas.head]
        for one in runs:
            asked = [one.positions[0] + row for row in one.wanted or ()]
            (block,) = {(place - shift) // size for place in asked}
            assert one.positions[0] % size == 0
            assert one.positions[-1] < (block + 1) * size, "no row of a later block"
            for place, token in zip(one.positions, one.ids, strict=True):
                row = rows[place - chain.origin]
                if isinstance(row, int) and token != row:
                    assert (token, place in asked, canvas.open()) == (mask, True, [])
                    hidden.append(place)
        return runs

    monkeypatch.setattr(BlockChain, "runs", watched)
    assert alone(model, infill("j", BEFORE, AFTER, *segments)).stop == "complete"
    assert hidden, "pins were hidden to judge a length"


@pytest.mark.parametrize("segments", [(wire.Hole(24, "line"),), TWO], ids=["one", "two"])
def test_blocks_in_the_context_give_what_they_give_on_the_canvas(
    model: Model, monkeypatch: pytest.MonkeyPatch, segments: tuple[wire.Text | wire.Hole, ...]
) -> None:
    job = infill("j", BEFORE, AFTER, *segments, candidates=2)
    kept = alone(model, job)
    monkeypatch.setattr(blocks, "keep", lambda works: None)
    assert alone(model, job).holes == kept.holes


def test_the_same_job_has_the_same_answer_however_its_context_came_into_the_cache(model: Model) -> None:
    scheduler = Scheduler(model)
    for typed in range(0, 24, 3):
        job = infill("j", BEFORE + CODE[300 : 300 + typed], AFTER, wire.Hole(12, "line"))
        if typed % 2:  # a key cancels the job before
            scheduler.take(b"peer", msgspec.structs.replace(job, job="old"), 0.0)
            scheduler.step(lambda: 0.0)
            scheduler.step(lambda: 0.0)
        warm = done(run(scheduler, [job])["j"])
        assert warm.holes == alone(model, job).holes
        assert all(len(kv.ids) % model.spec.block_size == 0 for kv in scheduler.cache._free)
    assert scheduler.cache.reused > 0.5 * scheduler.cache.asked


def test_text_locks_as_soon_as_all_lengths_agree_on_it(
    surer: dict[str, tuple[Any, Model]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "WEIGHT", 1.0)  # so that random weights drop most lengths early
    _, model = surer["sdar"]
    events = run(Scheduler(model), [infill("j", BEFORE, AFTER, wire.Hole(24, "line"))])["j"]
    answer = keeps_the_contract(events)
    early = [e for e in events[:-1] if isinstance(e, wire.Locked) and e.holes[0].locked]
    assert early
    assert early[0].step < 0.5 * answer.steps
    assert answer.holes[0].text.startswith(early[-1].holes[0].text[: early[-1].holes[0].locked[0][1]])


def test_a_draft_is_one_more_length_and_is_kept_where_the_model_agrees(model: Model) -> None:
    once = alone(model, infill("j", BEFORE, AFTER, wire.Hole(6)))
    again = alone(model, infill("j", BEFORE, AFTER, wire.Hole(6), draft=(once.holes[0].text,)))
    assert again.stop == "complete"


def test_a_grammar_is_kept_across_blocks(model: Model) -> None:
    pattern = wire.Hole(24, "span", grammar=wire.Pattern(r"[a-f]{3}(-[0-9]{3}){4}"))
    answer = alone(model, infill("j", BEFORE, AFTER, pattern, wire.Text(", "), wire.Hole(4, "span")))
    assert re.fullmatch(r"[a-f]{3}(-[0-9]{3}){4}", answer.holes[0].text)


def test_a_cancel_frees_every_length(model: Model) -> None:
    scheduler = Scheduler(model)
    scheduler.take(b"p", infill("a", BEFORE, AFTER, wire.Hole(12)), 0.0)
    scheduler.step(lambda: 0.0)
    ((_, event),) = scheduler.take(b"p", wire.Cancel("a"), 0.0)
    assert isinstance(event, wire.Failed)
    assert not scheduler.busy
    assert not scheduler.cache.full


@pytest.mark.parametrize(("family", "turns"), [("sdar", QWEN3), ("stable_diffcoder", SEED), ("llada", LLADA)])
def test_a_chat_model_is_asked_in_its_turns_and_may_end_its_answer(tmp_path: Path, family: str, turns: Turns) -> None:
    folder = masked.published(tmp_path / family, family)
    train_tokenizer(folder / "tokenizer.json", more=[masked.BOS, masked.MASK, *turns.tokens])
    model = models.load(str(folder), "cpu", 1024)
    assert model.tokenizer.special(turns.end) in model.spec.ends
    for name in ("chat", "chat_fence"):
        layout = laid_out(model, BEFORE, AFTER, wire.Hole(6), slots=6, prompt=name)
        rows = [*layout.context, *layout.canvas.tail]
        assert rows[0] == model.tokenizer.special(turns.tokens[0])
        assert model.tokenizer.special(turns.end) in rows
        keeps_the_contract(run(Scheduler(model), [infill("j", BEFORE, AFTER, wire.Hole(6), prompt=name)])["j"])


# The reference loops


def reference(
    oracle: Any, prompt: list[int], slots: int, model: Model, bans: Tensor, *, threshold: float
) -> list[dict[int, int]]:
    """What each forward accepts, by place: the loops of SDAR, Stable-DiffCoder and Fast-dLLM v2 (without sub-blocks),
    without a cache. Fast-dLLM's forward of a complete block gives the first token of the next one."""
    assert model.spec.noise is not None
    mask, size, shift = model.spec.noise.mask_id, model.spec.block_size, model.spec.shift  # type: ignore[union-attr]
    ids, steps = prompt + [mask] * slots, list[dict[int, int]]()
    for start in range(len(prompt) // size * size, len(ids), size):
        end = min(start + size, len(ids))
        while open := [place for place in range(start, end) if ids[place] == mask]:
            asked = [start] if shift and open[0] == start else open
            seen = ids[: start if shift and asked == [start] else end]
            logits = masked.seen_in_blocks(oracle, seen, size)[[place - shift for place in asked], : model.width]
            best = (logits + bans).softmax(-1).max(-1)
            surest = int(best.values.argmax())
            taken = [n for n, prob in enumerate(best.values.tolist()) if prob >= threshold or n == surest]
            steps.append({asked[n]: int(best.indices[n]) for n in taken})
            for place, token in steps[-1].items():
                ids[place] = token
    return steps


@pytest.mark.parametrize("family", LOOPS)
@pytest.mark.parametrize("prompt", [37, 64])
@pytest.mark.parametrize(("sampler", "threshold"), [("threshold", 0.9), ("top_k", 2.0)])
def test_a_canvas_without_a_suffix_is_filled_as_the_reference_loop_does(
    surer: dict[str, tuple[Any, Model]], family: str, prompt: int, sampler: str, threshold: float
) -> None:
    oracle, model = surer[family]
    bans, slots = bans_of(model), 40
    theirs = reference(oracle, IDS[:prompt], slots, model, bans, threshold=threshold)
    chain = chain_of(model, prompt, slots, sampler)
    canvas, kv, ours = chain.canvas, chain.kv, list[dict[int, int]]()
    while not chain.finished:
        open = {number for number, slot in enumerate(canvas.slots) if slot.token is None}
        blocks.step(model, [chain])
        ours.append(
            {prompt + n: slot.token for n, slot in enumerate(canvas.slots) if n in open and slot.token is not None}
        )
    assert ours == theirs
    assert len(kv.ids) >= prompt + slots - 2 * model.spec.block_size, "blocks became context"
    if sampler == "threshold":
        assert len(ours) < slots, "some steps accept several"


def bans_of(model: Model) -> Tensor:
    """-inf for each token that is not allowed, [width]."""
    return bias(Vocabulary(model).allowed(b"", False), torch.device("cpu"))


def joint(oracle: Any, prompt: list[int], slots: int, model: Model, bans: Tensor) -> list[list[int]]:
    """What the slots hold after every forward: LLaDA2.1's loop (ZHZisZZ/dllm dllm/pipelines/llada21/sampler.py)."""
    mask, size = model.spec.noise.mask_id, model.spec.block_size  # type: ignore[union-attr]
    x, states = torch.tensor(prompt + [mask] * slots), list[list[int]]()
    for start in range(len(prompt) // size * size, len(x), size):
        block, looks = torch.arange(max(start, len(prompt)), min(start + size, len(x))), 0
        while True:
            open = x[block] == mask
            looks += not open.any()
            if looks > 16:
                break
            seen = masked.seen_in_blocks(oracle, x[: int(block[-1]) + 1].tolist(), size)
            prob, best = (seen[block, : model.width] + bans).softmax(-1).max(-1)
            take = open & ((prob > 0.95) | (prob == prob[open].max())) if open.any() else open
            edit = ~open & (prob > 0.9) & (best != x[block])
            x[block[take | edit]] = best[take | edit]
            states.append(x[len(prompt) :].tolist())
            if not open.any() and not edit.any():
                break
    return states


@pytest.mark.parametrize("family", ["sdar", "dream_reasoner"])
@pytest.mark.parametrize("prompt", [36, 37, 38, 50, 64])
def test_tokens_of_a_block_are_replaced_as_in_the_published_loop(
    surer: dict[str, tuple[Any, Model]], family: str, prompt: int
) -> None:
    oracle, model = surer[family]
    assert model.spec.noise is not None
    assert model.spec.noise.absorbing
    slots, mask, bans = 12, model.spec.noise.mask_id, bans_of(model)
    theirs = changed(joint(oracle, IDS[:prompt], slots, model, bans), mask)
    found, chain = list[list[int]](), chain_of(model, prompt, slots, "joint_edit")
    locked = dict[Slot, int | None]()
    while not chain.finished:
        blocks.step(model, [chain])
        blocks.lock([chain])
        found.append([mask if slot.token is None else slot.token for slot in chain.canvas.slots])
        assert all(slot.locked and slot.token == token for slot, token in locked.items())
        locked = {slot: slot.token for slot in chain.canvas.slots if slot.locked}
    same = until_again(theirs, mask)
    assert changed(found, mask)[: len(same)] == same
    assert len(same) > 2
    assert mask not in found[-1]
    assert all(slot.locked for slot in chain.canvas.slots)


def chain_of(model: Model, prompt: int, slots: int, sampler: str) -> BlockChain:
    """A canvas of so many slots after the first of `IDS`, with no suffix."""
    cut = (prompt - model.spec.shift) // model.spec.block_size * model.spec.block_size
    layout, hole = [Slot(0) for _ in range(slots)], HoleState(False, slots)
    canvas, renew = Canvas(IDS[cut:prompt], [*layout], [], [hole], Vocabulary(model)), partial(samplers.begin, sampler)
    kv = model.cache().lease([])
    return BlockChain(canvas, kv, renew(), 99, 0, fresh=IDS[:cut], origin=cut, renew=renew)


@pytest.mark.parametrize("sampler", ["entropy", "klass", "p2", "joint_edit"])
def test_samplers_with_state_keep_the_contract(surer: dict[str, tuple[Any, Model]], model: Model, sampler: str) -> None:
    for one in (model, surer["sdar"][1]):
        events = run(Scheduler(one), [infill("j", BEFORE, AFTER, *TWO, sampler=sampler)])["j"]
        answer = keeps_the_contract(events, 2)
        assert answer.stop == "complete"
        assert all(fill.text for fill in answer.holes)


def test_a_sampler_that_needs_all_rows_is_refused(model: Model) -> None:
    (said,) = run(Scheduler(model), [infill("j", BEFORE, AFTER, sampler="wino")])["j"]
    assert isinstance(said, wire.Failed)
    assert "wino needs all rows at once" in said.message


@pytest.fixture(scope="module")
def surer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Model]]:
    """By family, a model that is sure of some tokens in Transformers and in ours."""
    place, found = tmp_path_factory.mktemp("surer"), {}
    for family in LOOPS:
        oracle = masked.oracle(family)
        oracle.lm_head.weight.data *= SURE
        folder = masked.published(place / family, family, oracle)
        found[family] = oracle, models.load(str(folder), "cpu", exact=True)
    return found


# What it refuses


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no mask token": ("sdar", {"mask_token_id": None}, "names no valid mask token"),
    "blocks of one row": ("sdar", {"block_size": 1}, "has blocks of 1 rows"),
    "huge blocks": ("fast_dllm", {"bd_size": 4096}, "has blocks of 4096 rows"),
    "blocks of no number": ("sdar", {"block_size": "4"}, "has blocks of 4 rows; only 2 to 128"),
    "fewer layers": ("stable_diffcoder", {"num_hidden_layers": 2}, "have no place in this model"),
}


@pytest.mark.parametrize(("family", "change", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_compute_is_refused_in_a_sentence(
    folders: dict[str, Path], tmp_path: Path, family: str, change: dict[str, Any], sentence: str
) -> None:
    for file in folders[family].iterdir():
        if file.name != "config.json":
            (tmp_path / file.name).symlink_to(file)
    config = json.loads((folders[family] / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    if "mask_token_id" in change:
        (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match=sentence):
        models.load(str(tmp_path), "meta")


def test_a_name_may_tell_the_size_of_its_blocks(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "SDAR-4B-Chat-b16"
    folder.mkdir()
    for file in folders["sdar"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    del config["block_size"]
    (folder / "config.json").write_text(json.dumps(config))
    assert models.load(str(folder), "cpu").spec.block_size == 16


def test_what_it_cannot_do_is_refused_in_a_sentence(model: Model) -> None:
    for fields, sentence in (
        ({"method": "verify"}, "cannot verify drafts"),
        ({"method": "absorbing"}, "name the method blocks"),
        ({"prompt": "inline"}, "for models that see it another way"),
    ):
        (said,) = run(Scheduler(model), [infill("j", "a", "b", **fields)])["j"][-1:]
        assert isinstance(said, wire.Failed)
        assert sentence in said.message


def test_a_checkpoint_is_shown_and_checked(folders: dict[str, Path]) -> None:
    for family, folder in folders.items():
        audit.check(folder)
        found = audit.summary(folder)
        assert (found["model_type"], found["layers"], found["skipped"]) == (
            masked.BLOCKS[family][2]["model_type"],
            3,
            [],
        )
