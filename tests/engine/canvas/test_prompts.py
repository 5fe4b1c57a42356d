"""What a model is shown, in every format: which parts of a job fit its context, in which order, what stays put."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.engine.cache import common
from caesura.engine.canvas.prompts import (
    BESIDE,
    FOLLOWS,
    FORMATS,
    NEIGHBOURS,
    RULE,
    SUFFIX,
    TASK,
    WHOLE,
    Prompt,
    prompt,
    slide,
)
from caesura.engine.model import Model, ModelSpec
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.scheduler import Scheduler
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.turns import QWEN2, QWEN3, TURNS, Turns, turns_of
from caesura.wire import Hole, Neighbour

from ...support.checkpoints import gemma
from ...support.checkpoints.tiny import CODE, Scripted, alone, infill, laid_out, run, train_tokenizer

SHORT = Neighbour("# left.py", "def left(item):\n    return item\n")
OTHER = Neighbour("# right.py", "right = 20")
LONG = Neighbour("# total.py", "".join(f"total_{n} = left({n})\n" for n in range(200)))
PREFIX, SUFFIX_TEXT = "x = 1\nprint(", ")\n"


def shown(model: NativeLlama, *neighbours: Neighbour, prefix: str = PREFIX, suffix: str = SUFFIX_TEXT) -> str:
    return model.tokenizer.decode(prompt(model, prefix, suffix, neighbours).before)


def test_neighbours_stand_before_the_prefix_each_under_its_line_and_above_a_blank_one(tiny: NativeLlama) -> None:
    left = "# left.py\ndef left(item):\n    return item\n\n"
    assert shown(tiny, SHORT, OTHER) == left + "# right.py\nright = 20\n\n" + PREFIX
    assert shown(tiny, OTHER, SHORT).startswith("# right.py\n")
    assert shown(tiny, Neighbour("# a\nb.py", "x = 1")).startswith("# a\\nb.py\nx = 1\n")  # a file may be called so


def test_the_canvas_stands_behind_all_of_it(tiny: NativeLlama) -> None:
    layout = laid_out(tiny, PREFIX, SUFFIX_TEXT, Hole(4), slots=4, neighbours=(SHORT,))
    rows = [*layout.context, *layout.canvas.tail]
    cut = rows.index(tiny.spec.separator[0])
    decode = tiny.tokenizer.decode
    assert decode(rows[:cut]) == SUFFIX_TEXT
    assert decode(rows[cut + 1 :]) + layout.canvas.holes[0].forced.decode() == shown(tiny, SHORT)


def test_a_neighbour_without_a_line_of_its_own_is_only_its_text(tiny: NativeLlama) -> None:
    assert shown(tiny, Neighbour("", "\n\na = 1\n\n\n")) == "a = 1\n\n" + PREFIX


@pytest.mark.parametrize("text", ["", "\n", "   \n"])
def test_an_empty_neighbour_is_not_mentioned(tiny: NativeLlama, text: str) -> None:
    assert shown(tiny, Neighbour("# empty.py", text), OTHER) == "# right.py\nright = 20\n\n" + PREFIX


def test_neighbours_get_a_quarter_of_what_the_suffix_leaves_and_the_prefix_the_rest(tiny: NativeLlama) -> None:
    long = LONG.text * 4
    for suffix in ("", ")\n", long):
        parts = prompt(tiny, long, suffix, [LONG, SHORT, LONG, OTHER] * 8)
        beside = len(tiny.tokenizer.encode(tiny.tokenizer.decode(parts.before).rpartition("\n\n")[0]))
        room = tiny.spec.max_context - len(parts.head) - len(tiny.spec.separator)
        assert len(parts.head) <= tiny.spec.max_context // SUFFIX
        assert room / NEIGHBOURS * 0.8 < beside <= room / NEIGHBOURS
        assert room * 0.7 < len(parts.before) <= room


def test_the_first_neighbour_is_cut_at_a_line_start_and_the_others_are_whole_or_absent(tiny: NativeLlama) -> None:
    first = shown(tiny, LONG).removesuffix("\n\n" + PREFIX)
    assert f"{LONG.name}\n{LONG.text}".startswith(first + "\n")
    assert first.count("\n") > 5
    small = shown(tiny, SHORT, LONG, OTHER)
    assert "total" not in small
    assert "right.py" in small


@pytest.mark.parametrize("text", ["x" * 60_000, "é" * 5000, "\n" * 9999 + "x" * 9999, "a = 1\n" + "b" * 9999])
def test_whatever_a_neighbour_holds_its_share_is_kept(tiny: NativeLlama, text: str) -> None:
    parts = prompt(tiny, PREFIX, SUFFIX_TEXT, [Neighbour("# n.py", text)] * 32)
    own = tiny.tokenizer.encode(PREFIX)
    assert parts.before[-len(own) :] == own
    assert len(parts.before) - len(own) <= tiny.spec.max_context // NEIGHBOURS


def test_typing_beside_neighbours_only_appends(tiny: NativeLlama) -> None:
    scheduler = Scheduler(tiny)
    for end in range(6):
        job = infill("j", PREFIX + "left, "[:end], SUFFIX_TEXT, Hole(4), neighbours=(SHORT, OTHER), sampler="top_k")
        asked, reused = scheduler.cache.asked, scheduler.cache.reused
        run(scheduler, [job])
        new = (scheduler.cache.asked - asked) - (scheduler.cache.reused - reused)
        assert not end or new <= 4


def test_a_neighbour_changes_what_the_model_says(tiny: NativeLlama) -> None:
    without, beside = (
        alone(tiny, infill("j", PREFIX, SUFFIX_TEXT, neighbours=neighbours, sampler="threshold"))
        for neighbours in ((), (SHORT,))
    )
    assert without.holes != beside.holes


# Formats


CONTEXT = 768  # tokens
NAMES = ["plain", "chat", "chat_fence"]  # of DiffusionGemma; the tests above have small's
formats = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def gemma_like(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """What a prompt needs of a model whose tokenizer has Gemma's turns."""
    tokenizer = Tokenizer(gemma.tokenizer(tmp_path_factory.mktemp("gemma") / "tokenizer.json"))
    spec = ModelSpec(None, "uniform", max_context=CONTEXT, chunk=64, tail=0, head=12, prompt="chat")
    return SimpleNamespace(name="gemma", tokenizer=tokenizer, spec=spec)  # type: ignore[return-value]


def spelled(model: Model, parts: Prompt) -> str:
    """All of the context as text, control tokens by name."""
    names = {model.tokenizer.special(token): token for token in gemma.CONTROL}
    rows = [*parts.opening, *parts.before]
    return b"".join(names[i].encode() if i in names else model.tokenizer.pieces[i] for i in rows).decode()


def test_a_chat_has_suffix_neighbours_and_task_and_the_prefix_begins_the_answer(gemma_like: Model) -> None:
    parts = prompt(gemma_like, PREFIX, SUFFIX_TEXT, [SHORT])
    assert spelled(gemma_like, parts) == (
        f"<bos><|turn>user\n{FOLLOWS}{SUFFIX_TEXT}\n\n{BESIDE}{SHORT.name}\n{SHORT.text}\n{TASK}<turn|>\n"
        f"<|turn>model\n<|channel>thought\n<channel|>{PREFIX}"
    )
    assert gemma_like.tokenizer.decode(parts.before) == PREFIX
    assert gemma_like.tokenizer.decode(parts.head) == SUFFIX_TEXT
    assert BESIDE not in spelled(gemma_like, prompt(gemma_like, PREFIX, SUFFIX_TEXT))


@pytest.mark.parametrize(("language", "label"), [("python", "python"), ("c++", "c++"), ("", ""), ("a\nb ```", "")])
def test_a_fenced_chat_names_the_language_and_leaves_the_answer_open(
    gemma_like: Model, language: str, label: str
) -> None:
    text = spelled(gemma_like, prompt(gemma_like, PREFIX, SUFFIX_TEXT, (), "chat_fence", language))
    assert f"{FOLLOWS}```{label}\n{SUFFIX_TEXT}\n```\n\n{TASK}" in text
    assert text.endswith(f"<channel|>```{label}\n{PREFIX}")


def test_a_plain_prompt_has_no_turns(gemma_like: Model, tiny: NativeLlama) -> None:
    text = spelled(gemma_like, prompt(gemma_like, PREFIX, SUFFIX_TEXT, [OTHER], "plain"))
    assert text == f"<bos>{SUFFIX_TEXT}{RULE}{OTHER.name}\n{OTHER.text}\n\n{PREFIX}"
    without_bos = prompt(tiny, PREFIX, SUFFIX_TEXT, [], "plain")
    assert tiny.tokenizer.decode([*without_bos.opening, *without_bos.before]) == f"{SUFFIX_TEXT}{RULE}{PREFIX}"


@formats
def test_every_format_is_suffix_first_and_ends_with_the_prefix(gemma_like: Model, name: str) -> None:
    text = spelled(gemma_like, prompt(gemma_like, "PREFIX", "SUFFIX", [Neighbour("# n", "NEIGHBOUR")], name))
    assert text.index("SUFFIX") < text.index("NEIGHBOUR") < text.index("PREFIX")
    assert text.endswith("PREFIX")


@formats
def test_there_is_always_a_row_before_the_hole(gemma_like: Model, name: str) -> None:
    parts = prompt(gemma_like, "", "", (), name)
    assert parts.opening
    assert parts.before == parts.head == []


@formats
def test_text_of_the_buffer_never_becomes_a_turn(gemma_like: Model, name: str) -> None:
    hostile = "".join(gemma.CONTROL) + "\n"
    control = {gemma_like.tokenizer.special(token) for token in gemma.CONTROL}

    def turns(prefix: str, suffix: str, neighbours: list[Neighbour], language: str = "") -> list[int]:
        parts = prompt(gemma_like, prefix, suffix, neighbours, name, language)
        return [i for i in [*parts.opening, *parts.before] if i in control]

    harmless = turns("x", "x", [Neighbour("# x", "x")])
    assert turns(hostile, hostile, [Neighbour(hostile.strip(), hostile)], "<turn|>") == harmless
    assert not control & set(prompt(gemma_like, hostile, hostile, (), name).head)


@formats
@pytest.mark.parametrize("neighbours", [(), (SHORT, OTHER), (LONG,) * 8])
@pytest.mark.parametrize("prefix", ["", "x = 1\n", CODE])
@pytest.mark.parametrize("suffix", ["", "\n", CODE])
def test_every_format_fits_the_context(
    gemma_like: Model, name: str, neighbours: tuple[Neighbour, ...], prefix: str, suffix: str
) -> None:
    parts = prompt(gemma_like, prefix, suffix, neighbours, name, "python")
    rows = len(parts.opening) + len(parts.before)
    assert rows <= CONTEXT
    assert len(parts.head) <= CONTEXT // SUFFIX
    if prefix is CODE:
        assert rows > CONTEXT * 0.7  # the window moves in strides


STROKES = st.sampled_from(["value", " = ", "\n    ", "\n", "(", "]", "é", "▁", "<turn|>", "0x1", "```"])


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(NAMES), begun=st.integers(0, len(CODE)), strokes=st.lists(STROKES, max_size=12))
def test_typing_only_appends_in_every_format(gemma_like: Model, name: str, begun: int, strokes: list[str]) -> None:
    prefix = CODE[:begun]
    rows, before, moved = 0, list[int](), 0
    for stroke in ["", *strokes]:
        prefix += stroke
        parts = prompt(gemma_like, prefix, CODE, (SHORT, OTHER), name, "python")
        now = [*parts.opening, *parts.before]
        kept = common(before, now)
        assert kept >= len(parts.opening) or not before
        moved += bool(before) and kept < rows - 8  # but for the few strokes at which the window moves
        rows, before = len(now), now
    assert moved <= 1


def test_a_format_that_does_not_exist_or_that_the_model_cannot_be_shown_is_one_sentence(
    gemma_like: Model, tiny: NativeLlama
) -> None:
    for model, name, reason in (
        (tiny, "nope", "no prompt format named 'nope'; there are suffix_first, fim, plain, chat"),
        (tiny, "chat", "has no tokens for the turns of a chat; try suffix_first"),
        (tiny, "chat_fence", "has no tokens for the turns of a chat"),
        (gemma_like, "suffix_first", "has no separator"),
        (gemma_like, "edits", "has no separator"),
        (tiny, "fim", "has no tokens for fill-in-the-middle; try plain"),
        (tiny, "inline", "as suffix_first; the prompt format inline is for models that see it another way"),
    ):
        with pytest.raises(ValueError, match=reason):
            prompt(model, PREFIX, SUFFIX_TEXT, (), name)
    assert set(FORMATS) == {"suffix_first", "fim", "inline", "edits", *NAMES}


def test_a_model_of_full_visibility_is_shown_the_text_as_it_stands(tiny: NativeLlama) -> None:
    model = Scripted(tiny.tokenizer, [])
    model.spec = replace(model.spec, visibility="full", start=(7,), finish=(0,))
    found, encode = prompt(model, PREFIX, SUFFIX_TEXT, [SHORT], "inline"), tiny.tokenizer.encode
    assert (found.opening, found.closing, found.head) == ([], [0], encode(SUFFIX_TEXT))
    assert found.before == [7, *encode("# left.py\ndef left(item):\n    return item\n\n"), *encode(PREFIX)]
    assert prompt(model, PREFIX, LONG.text * 9, (), "inline").closing == [], "what is cut goes on"


def test_code_models_are_shown_a_gap_by_their_own_tokens_and_typing_only_appends(tmp_path: Path) -> None:
    tokens = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    train_tokenizer(tmp_path / "tokenizer.json", more=tokens)
    model = Scripted(Tokenizer(tmp_path / "tokenizer.json"), [])
    first, second, middle = map(model.tokenizer.special, tokens)
    encode = model.tokenizer.encode
    found = prompt(model, PREFIX, SUFFIX_TEXT, (), "fim")
    assert found.opening == [first, second, *encode(SUFFIX_TEXT), middle]
    assert found.before == encode(PREFIX)


def test_a_text_begins_as_the_family_was_trained(tiny: NativeLlama) -> None:
    model = Scripted(tiny.tokenizer, [])
    model.spec = replace(model.spec, start=(7,))
    for name in ("suffix_first", "plain"):
        assert prompt(model, PREFIX, SUFFIX_TEXT, (), name).opening[0] == 7


def test_a_job_names_its_format_and_is_refused_for_one_that_does_not_exist(tiny: NativeLlama) -> None:
    refused = run(Scheduler(tiny), [infill("j", PREFIX, SUFFIX_TEXT, prompt="nope")])["j"]
    assert [(type(event), getattr(event, "code", "")) for event in refused] == [(wire.Failed, "invalid")]
    assert "no prompt format named 'nope'" in refused[0].message
    own, other = (alone(tiny, infill("j", PREFIX, SUFFIX_TEXT, prompt=name)) for name in (None, "plain"))
    assert own.holes != other.holes


# Turns of a chat


PUBLISHED = {  # what the templates make of the user's message `TEXT`, up to the answer
    "gemma": "<bos><|turn>user\nTEXT<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
    "llada": (
        "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nTEXT<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "llada2": (
        "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>TEXT<|role_end|><role>ASSISTANT</role>"
    ),
    "seed": (
        "<[begin▁of▁sentence]>system\nYou are an AI programming assistant, utilizing the Seed-Coder model, developed "
        "by ByteDance Seed, and you only answer questions related to computer science. For politically sensitive "
        "questions, security and privacy issues, and other non-computer science questions, you will refuse to answer."
        "\n\n<[end▁of▁sentence]><[begin▁of▁sentence]>user\nTEXT<[end▁of▁sentence]><[begin▁of▁sentence]>assistant\n"
    ),
    "sdar": "<|im_start|>user\nTEXT<|im_end|>\n<|im_start|>assistant\n",
    "dream": (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nTEXT<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
}
ROWS = dict(zip(PUBLISHED, TURNS, strict=True))


def with_turns(folder: Path, row: Turns, flagged: bool = True) -> Scripted:
    """A model whose tokenizer has the tokens of a template; its file calls them special if `flagged`."""
    path = train_tokenizer(folder / "tokenizer.json", more=row.tokens)
    file = json.loads(path.read_text())
    for token in file["added_tokens"]:
        token["special"] = flagged or token["content"] not in row.tokens
    path.write_text(json.dumps(file))
    return Scripted(Tokenizer(path), [])


@pytest.fixture(scope="module", params=list(ROWS)[1:])  # the tests above have Gemma's
def chatty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Scripted]:
    return request.param, with_turns(tmp_path_factory.mktemp("turns"), ROWS[request.param])


def named(model: Scripted, name: str, rows: list[int]) -> str:
    """Rows as text, control tokens by name."""
    tokens = {model.tokenizer.special(token): token for token in ROWS[name].tokens}
    return b"".join(tokens[i].encode() if i in tokens else model.tokenizer.pieces[i] for i in rows).decode()


def test_a_chat_is_written_as_the_template_of_the_model_writes_it(chatty: tuple[str, Scripted]) -> None:
    name, model = chatty
    parts = prompt(model, PREFIX, SUFFIX_TEXT, [SHORT], "chat")
    message = f"{FOLLOWS}{SUFFIX_TEXT}\n\n{BESIDE}{SHORT.name}\n{SHORT.text}\n{TASK}"
    assert named(model, name, parts.opening) == PUBLISHED[name].replace("TEXT", message)
    assert named(model, name, parts.before) == PREFIX
    fenced = prompt(model, PREFIX, SUFFIX_TEXT, (), "chat_fence", "python")
    message = f"{FOLLOWS}```python\n{SUFFIX_TEXT}\n```\n\n{TASK}"
    assert named(model, name, fenced.opening) == PUBLISHED[name].replace("TEXT", message) + "```python\n"


def test_where_all_rows_see_each_other_the_answer_is_the_whole_file(
    chatty: tuple[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model = chatty
    monkeypatch.setattr(model, "spec", replace(model.spec, visibility="full"))
    for format_name, opened, closed in (("chat", "", ""), ("chat_fence", "```python\n", "\n```")):
        parts = prompt(model, PREFIX, SUFFIX_TEXT, [SHORT], format_name, "python")
        message = f"{BESIDE}{SHORT.name}\n{SHORT.text}\n{WHOLE}"
        shown = PUBLISHED[name].replace("TEXT", message) + opened + PREFIX
        assert (parts.opening, named(model, name, parts.before)) == ([], shown)
        assert named(model, name, parts.head + parts.closing) == SUFFIX_TEXT + closed + ROWS[name].end
        long = prompt(model, CODE, CODE, [LONG], format_name, "python")
        assert long.closing == [], "what is cut goes on"
        assert CONTEXT * 0.7 < len(long.before) + len(long.head) <= CONTEXT


@pytest.mark.parametrize("neighbours", [(), (SHORT, OTHER), (LONG,) * 8])
def test_a_chat_of_any_model_fits_the_context_and_typing_only_appends(
    chatty: tuple[str, Scripted], neighbours: tuple[Neighbour, ...]
) -> None:
    _, model = chatty
    for prefix in ("", CODE):
        first, moved = prompt(model, prefix, CODE, neighbours, "chat"), 0
        before = first.before
        for end in range(1, 9):
            now = prompt(model, prefix + "x + y + z"[:end], CODE, neighbours, "chat")
            assert len(now.opening) + len(now.before) <= CONTEXT
            assert now.opening == first.opening
            moved += common(before, now.before) < len(before) - 8
            before = now.before
        assert moved <= 1, "the window moves in strides"


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("name", list(ROWS)[1:])
def test_text_never_becomes_a_turn_of_any_model(tmp_path: Path, name: str, flagged: bool) -> None:
    model = with_turns(tmp_path, ROWS[name], flagged)
    turns = [token for token in ROWS[name].tokens if token != "<think>"]  # which is text where its file says so
    hostile, control = "".join(turns) + "\n", set(map(model.tokenizer.special, turns))

    def marks(text: str) -> list[int]:
        parts = prompt(model, text, text, [Neighbour(text.strip(), text)], "chat_fence", "<role>")
        return [i for i in [*parts.opening, *parts.before] if i in control]

    assert marks(hostile) == marks("x\n")


def test_the_tokens_of_a_tokenizer_tell_its_template(tmp_path: Path, tiny: NativeLlama) -> None:
    for row in TURNS:
        assert turns_of(with_turns(tmp_path, row).tokenizer) is row
    assert QWEN3.tokens[:2] == QWEN2.tokens, "so the row with more tokens has to come first"
    assert turns_of(tiny.tokenizer) is None


def test_a_context_that_a_chat_alone_would_fill_is_refused(
    chatty: tuple[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = chatty
    monkeypatch.setattr(model, "spec", replace(model.spec, max_context=64))
    with pytest.raises(ValueError, match=r"has 64 tokens, too few for the \d+ that a chat takes by itself; try"):
        prompt(model, PREFIX, SUFFIX_TEXT, (), "chat")


# The window


def test_the_window_stays_put_while_keys_are_typed() -> None:
    starts = [slide(list(range(n)), 400)[0] for n in range(400, 800)]
    assert all(len(slide(list(range(n)), 400)) <= 400 for n in range(300, 1200))
    assert starts == sorted(starts)
    assert len(set(starts)) <= 6
    assert slide([1, 2], 2) == [1, 2]


@pytest.mark.parametrize("neighbours", [(), (SHORT, OTHER)])
def test_a_long_file_fits_and_typing_only_appends(tiny: NativeLlama, neighbours: tuple[Neighbour, ...]) -> None:
    prefix = "".join(f"value_{n} = {n} + total\n" for n in range(300))
    suffix = "print(total)\n" * 300
    first = prompt(tiny, prefix, suffix, neighbours)
    assert len(first.opening) + len(first.before) > tiny.spec.max_context // 2
    for n in range(40):
        now = prompt(tiny, prefix + "item = 1\n"[: n % 10] + "x + " * (n // 10), suffix, neighbours)
        assert len(now.opening) + len(now.before) <= tiny.spec.max_context
        assert now.opening == [*first.head, *tiny.spec.separator]
        assert now.before[: len(first.before) - 8] == first.before[:-8]
