"""Slots that expand and go (DreamOn): a hole finds its length while it is denoised."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from caesura import wire
from caesura.engine import length, models
from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.healing import heal
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import _forward
from caesura.engine.methods.absorbing import FEW, Denoising
from caesura.engine.model import MAX_ROWS, Model, Run
from caesura.engine.noise import Absorbing
from caesura.engine.samplers import Selecting, entropy_bound
from caesura.engine.scheduler import Scheduler
from caesura.engine.tokens.tokenizer import Tokenizer

from ...support.checkpoints import masked
from ...support.checkpoints.tiny import Scripted, alone, infill, run, train_tokenizer
from ..test_scheduler import JOBS, keeps_the_contract
from ..tokens.test_parts import in_parts

BUDGET = 9
TEXT = "a0b1c2d3e4f5g6h7i8j9"  # a token each, and each token once
BEFORE, AFTER = "n = (", "\n"


# Against the published loop


def published(net: Any, ids: list[int], model: Model, far: float) -> Iterator[list[int]]:
    """The loop of DreamLM/DreamOn (eval/generator.py, temperature 0), in its own words: the ids of each forward, then
    those of the answer. Besides, masks right of a deleted slot go too where eos is at least as likely as `far`: with 0
    that is its option `pad_eos_to_right`."""
    eos, mask, expand = 0, 3, 4
    banned = [i for i in range(416) if i not in (eos, expand) and not dict(enumerate(model.tokenizer.pieces)).get(i)]
    window, budget = ids.count(mask), BUDGET
    while True:
        yield ids
        masks = [row for row, token in enumerate(ids) if token == mask]
        if not masks:
            return
        logits = masked.seen_by_all(net, ids)[[row - 1 for row in masks]]
        logits[:, banned] = -torch.inf
        if window == BUDGET or budget == 0:
            logits[:, expand] -= 1e9
        probs = logits.softmax(-1)
        entropy = -(probs * (probs + 1e-10).log()).sum(-1)
        at = int(entropy.argmin())
        row, token = masks[at], int(probs[at].argmax())
        new = [*ids[:row], token, *ids[row + 1 :]]
        if token == expand:
            new = [*ids[:row], mask, mask, *ids[row + 1 :]]
            window, budget = window + 1, budget - 1
        if token == eos:
            gone = {row, *(r for r, p in zip(masks, probs[:, eos].tolist(), strict=True) if r > row and p >= far)}
            new = [token for r, token in enumerate(ids) if r not in gone]
            window -= len(gone)
        ids = new


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Model]]:
    """Random networks, and the models that load their checkpoints."""
    place, nets = tmp_path_factory.mktemp("dreamon"), list(map(masked.stretching, range(6)))
    folders = [masked.published(place / str(seed), "dreamon", net) for seed, net in enumerate(nets)]
    return [(net, models.load(str(folder), "cpu", exact=True)) for net, folder in zip(nets, folders, strict=True)]


@pytest.mark.parametrize("far", [2.0, length.NULL, 0.0], ids=["one slot goes", "likely ones go", "all to the right go"])
def test_slots_expand_and_go_as_in_the_published_loop(
    monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[Any, Model]], far: float
) -> None:
    monkeypatch.setattr(length, "NULL", far)
    monkeypatch.setattr(entropy_bound, "BOUND", 0.0)
    before, after = [2, *range(60, 80)], [*range(90, 99), 0]
    changes = set[int]()
    for net, model in pairs:
        theirs = list(published(net, [*before, *[3] * 4, *after], model, far))
        layout: list[Slot | int] = [Slot(0) for _ in range(4)]
        canvas = Canvas(before, layout, after, [HoleState(False, BUDGET)], Vocabulary(model))
        one = Selecting(entropy_bound.select)
        work = Denoising(canvas, model.cache().lease([]), one, 64, 0)
        ours = [canvas.ids([3] * 4)]
        while not work.finished:
            _forward.advance(model, [work])
            ours.append(canvas.ids([3] * len(canvas.slots)))
        assert ours == theirs
        changes |= {len(new) - len(old) for old, new in pairwise(theirs)}
    assert {1, 0, -1} <= changes, "slots expand, are filled and go"


def test_the_expand_token_is_known_by_its_name_in_the_files_of_the_hub(
    tmp_path: Path, pairs: list[tuple[Any, Model]]
) -> None:
    net, model = pairs[0]
    whole = masked.published(tmp_path / "whole", "dreamon", net)
    parts = in_parts(tmp_path / "parts", whole / "tokenizer.json")
    said = json.loads((whole / "tokenizer_config.json").read_text()) | {"tokenizer_class": "DreamTokenizer"}
    (parts / "tokenizer_config.json").write_text(json.dumps(said))
    for name in ("config.json", "model.safetensors"):
        (parts / name).symlink_to(whole / name)
    for found in (model, models.load(str(parts), "cpu")):
        assert (found.spec.lengths, found.spec.expand_id, found.spec.null_id) == ("expand", 4, 0)
    without = models.load(str(masked.published(tmp_path / "dream", "dream", net)), "cpu")
    assert (without.spec.lengths, without.spec.expand_id, without.spec.null_id) == ("race", None, None)


# How a hole finds its length


class Telling(Scripted):
    """Knows the text that stands before some token, and says of each slot what a model that expands slots would."""

    def __init__(self, tokenizer: Tokenizer, texts: dict[str, str]) -> None:
        super().__init__(tokenizer, (), Absorbing(tokenizer.special(masked.MASK)))
        self.texts = {tokenizer.encode(after)[0]: tokenizer.encode(text) for after, text in texts.items()}
        self.spec = replace(
            self.spec,
            visibility="full",
            prompt="inline",
            lengths="expand",
            tail=768,
            head=768,
            null_id=tokenizer.special(masked.EOS),
            expand_id=tokenizer.special(masked.EXPAND),
        )
        self.seen = list[list[int]]()

    def hidden(self, runs: Sequence[Run]) -> Tensor:
        rows = list[Tensor]()
        for asked in runs:
            ids, slots = list(asked.ids), list(asked.wanted or ())
            self.seen.append(ids)
            for start in (row for row in slots if row - 1 not in slots):
                end = next(row for row in range(start, len(ids)) if row not in slots)
                rows += self.told(ids[start:end], self.texts[ids[end]])
        return torch.stack(rows)

    def told(self, slots: list[int], text: list[int]) -> list[Tensor]:
        """The logits of a hole's slots: those that hold a token of the text divide it."""
        rows, at = list[Tensor](), 0
        for is_open, group in groupby(slots, lambda token: token not in text):
            count = len(list(group))
            if not is_open:
                at = text.index(slots[len(rows) + count - 1]) + 1
                rows += [torch.zeros(self.width)] * count
                continue
            right = slots[len(rows) + count :]
            part = text[at : text.index(right[0]) if right else None]
            double = min(count, max(0, len(part) - count))
            best = [self.spec.expand_id] * double + part[2 * double :] + [self.spec.null_id] * count
            second = part + [self.spec.null_id] * count
            for slot in range(count):
                rows.append(torch.zeros(self.width))
                rows[-1][second[slot]], rows[-1][best[slot]] = self.sure / 2, self.sure
        return rows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("telling") / "tokenizer.json"
    return Tokenizer(train_tokenizer(path, more=[masked.BOS, masked.MASK, masked.EXPAND]))


def healed(tokenizer: Tokenizer, text: str) -> str:
    """The text of the first hole as the model sees it: the end of the prefix first."""
    return heal(tokenizer, BEFORE)[1] + text


def slots(model: Telling) -> list[int]:
    """Rows between prefix and suffix in each forward."""
    encode = model.tokenizer.encode
    fixed = len(encode(heal(model.tokenizer, BEFORE)[0])) + len(encode(AFTER))
    return [len(ids) - fixed for ids in model.seen]


@pytest.mark.parametrize("size", [0, 1, 4, 9, 20])
@pytest.mark.parametrize("sampler", ["threshold", "top_k", "entropy_bound"])
def test_a_hole_gets_the_length_of_its_text(tokenizer: Tokenizer, size: int, sampler: str) -> None:
    model = Telling(tokenizer, {AFTER: healed(tokenizer, TEXT[:size])})
    answer = alone(model, infill("j", BEFORE, AFTER, wire.Hole(20), sampler=sampler))
    assert answer.holes[0].text == TEXT[:size]
    assert answer.stop == "complete"
    start = len(tokenizer.encode(healed(tokenizer, "")))
    assert slots(model)[0] == start + FEW


def test_sure_slots_expand_together(tokenizer: Tokenizer) -> None:
    model = Telling(tokenizer, {AFTER: healed(tokenizer, TEXT)})
    alone(model, infill("j", BEFORE, AFTER, wire.Hole(32)))
    assert len(slots(model)) <= 6, "8, 16, 20"


@pytest.mark.parametrize("budget", [1, 2, 5, 12])
def test_a_hole_never_outgrows_its_budget(tokenizer: Tokenizer, budget: int) -> None:
    model = Telling(tokenizer, {AFTER: healed(tokenizer, TEXT)})
    answer = alone(model, infill("j", BEFORE, AFTER, wire.Hole(budget)))
    assert len(answer.holes[0].text) == budget
    assert answer.stop == "complete"
    assert max(slots(model)) == budget + len(tokenizer.encode(healed(tokenizer, "")))


def test_each_of_several_holes_grows_and_what_is_fixed_moves_with_it(tokenizer: Tokenizer) -> None:
    texts = dict(zip((";", "]", AFTER), (TEXT[:9], "", TEXT), strict=True))
    model = Telling(tokenizer, {after: healed(tokenizer, text) for after, text in texts.items()})
    holes = (wire.Hole(12), wire.Text("; x = ("), wire.Hole(12), wire.Text("] = ("), wire.Hole(24))
    answer = alone(model, infill("j", BEFORE, AFTER, *holes))
    assert [fill.text for fill in answer.holes] == [TEXT[:9], "", TEXT]
    before, after = tokenizer.encode(heal(tokenizer, BEFORE)[0]), tokenizer.encode(AFTER)
    for ids in model.seen:
        assert ids[: len(before)] == before
        assert ids[-len(after) :] == after
        assert sum(ids[at : at + 1] == tokenizer.encode(";") for at in range(len(ids))) == 1


def test_a_hole_within_a_line_stays_there(tokenizer: Tokenizer) -> None:
    model = Telling(tokenizer, {")": healed(tokenizer, "a0\nb1c2d3e4")})
    answer = alone(model, infill("j", BEFORE, ")", wire.Hole(20, "span")))
    assert "\n" not in answer.holes[0].text
    assert answer.stop == "complete"


def test_a_hole_with_a_grammar_beside_one_without(tokenizer: Tokenizer) -> None:
    model = Telling(tokenizer, {";": healed(tokenizer, TEXT), AFTER: healed(tokenizer, "0123456789")})
    holes = (wire.Hole(32), wire.Text("; x = ("), wire.Hole(12, grammar=wire.Pattern("[0-9]{2,10}")))
    answer = alone(model, infill("j", BEFORE, AFTER, *holes))
    assert [fill.text for fill in answer.holes] == [TEXT, "0123456789"]
    assert answer.stop == "complete"


@pytest.mark.parametrize("draft", [TEXT, TEXT[:9], "a0" + TEXT[9:], "zz", TEXT + "zz"])
def test_a_draft_is_kept_where_it_is_right(tokenizer: Tokenizer, draft: str) -> None:
    model = Telling(tokenizer, {AFTER: healed(tokenizer, TEXT)})
    answer = alone(model, infill("j", BEFORE, AFTER, wire.Hole(32), draft=(draft,)))
    assert answer.holes[0].text == TEXT
    assert tokenizer.decode(model.seen[0]).startswith(BEFORE + draft[:2]), "it is shown"


def test_all_holes_together_stay_within_the_rows_of_a_canvas(tokenizer: Tokenizer) -> None:
    fixed, vocabulary = [7] * (MAX_ROWS - 12), Vocabulary(Telling(tokenizer, {}))
    holes = [HoleState(False, 64), HoleState(False, 64)]
    canvas = Canvas([2], [*(Slot(0) for _ in range(4)), *fixed, *(Slot(1) for _ in range(4))], [0], holes, vocabulary)
    for slot in canvas.slots:
        slot.token = vocabulary.expand_id
    canvas.expand()
    assert [len(canvas.of_hole(number)) for number in (0, 1)] == [8, 4]
    assert len(canvas.layout) == MAX_ROWS
    assert len(canvas.open()) == 12, "a slot that has no room to expand is open again"


# On a random model


def test_every_job_keeps_the_contract_and_no_control_token_is_text(pairs: list[tuple[Any, Model]]) -> None:
    for (_, model), (prefix, suffix) in product(pairs[1:2], JOBS.values()):
        holes = (wire.Hole(8), wire.Text(", "), wire.Hole(8, "span"))
        answer = keeps_the_contract(run(Scheduler(model), [infill("j", prefix, suffix, *holes)])["j"], 2)
        assert answer.stop == "complete"
        assert not any("|>" in fill.text for fill in answer.holes)
    allowed = Vocabulary(pairs[0][1]).allowed(b"", False)
    assert not any(token in allowed for token in (2, 3, 4))
