"""What the embedded family is shown: which parts of a job fit its context, in which order, and what stays put."""

import pytest

from caesura.engine.canvas import Vocabulary, lay
from caesura.engine.models.block_llama import BlockLlama
from caesura.engine.prompts import NEIGHBOURS, SUFFIX, prompt, slide
from caesura.engine.scheduler import Scheduler
from caesura.wire import Hole, Neighbour

from .tiny import alone, infill, run

SHORT = Neighbour("# left.py", "def left(item):\n    return item\n")
OTHER = Neighbour("# right.py", "right = 20")
LONG = Neighbour("# total.py", "".join(f"total_{n} = left({n})\n" for n in range(200)))
PREFIX, SUFFIX_TEXT = "x = 1\nprint(", ")\n"


def shown(model: BlockLlama, *neighbours: Neighbour, prefix: str = PREFIX, suffix: str = SUFFIX_TEXT) -> str:
    return model.tokenizer.decode(prompt(model, prefix, suffix, neighbours).before)


def test_neighbours_stand_before_the_prefix_each_under_its_line_and_above_a_blank_one(tiny: BlockLlama) -> None:
    left = "# left.py\ndef left(item):\n    return item\n\n"
    assert shown(tiny, SHORT, OTHER) == left + "# right.py\nright = 20\n\n" + PREFIX
    assert shown(tiny, OTHER, SHORT).startswith("# right.py\n")


def test_the_canvas_stands_behind_all_of_it(tiny: BlockLlama) -> None:
    layout = lay(tiny, Vocabulary(tiny), PREFIX, SUFFIX_TEXT, [Hole(4)], [SHORT], slots=4)
    rows = [*layout.context, *layout.canvas.tail]
    cut = rows.index(tiny.separator[0])
    decode = tiny.tokenizer.decode
    assert decode(rows[:cut]) == SUFFIX_TEXT
    assert decode(rows[cut + 1 :]) + layout.canvas.holes[0].forced.decode() == shown(tiny, SHORT)


def test_a_neighbour_without_a_line_of_its_own_is_only_its_text(tiny: BlockLlama) -> None:
    assert shown(tiny, Neighbour("", "\n\na = 1\n\n\n")) == "a = 1\n\n" + PREFIX


@pytest.mark.parametrize("text", ["", "\n", "   \n"])
def test_an_empty_neighbour_is_not_mentioned(tiny: BlockLlama, text: str) -> None:
    assert shown(tiny, Neighbour("# empty.py", text), OTHER) == "# right.py\nright = 20\n\n" + PREFIX


def test_neighbours_get_a_quarter_of_what_the_suffix_leaves_and_the_prefix_the_rest(tiny: BlockLlama) -> None:
    long = LONG.text * 4
    for suffix in ("", ")\n", long):
        parts = prompt(tiny, long, suffix, [LONG, SHORT, LONG, OTHER] * 8)
        beside = len(tiny.tokenizer.encode(tiny.tokenizer.decode(parts.before).rpartition("\n\n")[0]))
        room = tiny.max_context - len(parts.suffix) - len(tiny.separator)
        assert len(parts.suffix) <= tiny.max_context // SUFFIX
        assert room / NEIGHBOURS * 0.8 < beside <= room / NEIGHBOURS
        assert room * 0.7 < len(parts.before) <= room


def test_the_first_neighbour_is_cut_at_a_line_start_and_the_others_are_whole_or_absent(tiny: BlockLlama) -> None:
    first = shown(tiny, LONG).removesuffix("\n\n" + PREFIX)
    assert f"{LONG.name}\n{LONG.text}".startswith(first + "\n")
    assert first.count("\n") > 5
    small = shown(tiny, SHORT, LONG, OTHER)
    assert "total" not in small
    assert "right.py" in small


@pytest.mark.parametrize("text", ["x" * 60_000, "é" * 5000, "\n" * 9999 + "x" * 9999, "a = 1\n" + "b" * 9999])
def test_whatever_a_neighbour_holds_its_share_is_kept(tiny: BlockLlama, text: str) -> None:
    parts = prompt(tiny, PREFIX, SUFFIX_TEXT, [Neighbour("# n.py", text)] * 32)
    own = tiny.tokenizer.encode(PREFIX)
    assert parts.before[-len(own) :] == own
    assert len(parts.before) - len(own) <= tiny.max_context // NEIGHBOURS


def test_typing_beside_neighbours_only_appends(tiny: BlockLlama) -> None:
    scheduler = Scheduler(tiny)
    for end in range(6):
        job = infill("j", PREFIX + "left, "[:end], SUFFIX_TEXT, Hole(4), neighbours=(SHORT, OTHER), sampler="top_k")
        asked, reused = scheduler.cache.asked, scheduler.cache.reused
        run(scheduler, [job])
        new = (scheduler.cache.asked - asked) - (scheduler.cache.reused - reused)
        assert not end or new <= 4


def test_a_neighbour_changes_what_the_model_says(tiny: BlockLlama) -> None:
    without, beside = (
        alone(tiny, infill("j", PREFIX, SUFFIX_TEXT, neighbours=neighbours, sampler="threshold"))
        for neighbours in ((), (SHORT,))
    )
    assert without.holes != beside.holes


# The window


def test_the_window_stays_put_while_keys_are_typed() -> None:
    starts = [slide(list(range(n)), 400)[0] for n in range(400, 800)]
    assert all(len(slide(list(range(n)), 400)) <= 400 for n in range(300, 1200))
    assert starts == sorted(starts)
    assert len(set(starts)) <= 6
    assert slide([1, 2], 2) == [1, 2]


@pytest.mark.parametrize("neighbours", [(), (SHORT, OTHER)])
def test_a_long_file_fits_and_typing_only_appends(tiny: BlockLlama, neighbours: tuple[Neighbour, ...]) -> None:
    prefix = "".join(f"value_{n} = {n} + total\n" for n in range(300))
    suffix = "print(total)\n" * 300
    first = prompt(tiny, prefix, suffix, neighbours)
    assert len(first.suffix) + len(first.before) > tiny.max_context // 2
    for n in range(40):
        now = prompt(tiny, prefix + "item = 1\n"[: n % 10] + "x + " * (n // 10), suffix, neighbours)
        assert len(now.suffix) + len(tiny.separator) + len(now.before) <= tiny.max_context
        assert now.suffix == first.suffix
        assert now.before[: len(first.before) - 8] == first.before[:-8]
