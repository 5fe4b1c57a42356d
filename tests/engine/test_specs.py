"""What each kind of visibility makes of a config and a tokenizer, without weights."""

from dataclasses import FrozenInstanceError, replace

import pytest

from caesura.engine import methods
from caesura.engine.model import MAX_ROWS, ModelSpec
from caesura.engine.models import blocks, causal, full
from caesura.engine.models.families import Traits
from caesura.engine.models.llama import stored
from caesura.engine.models.llama.config import Config
from caesura.engine.models.llama.native import NativeLlama
from caesura.engine.noise import Absorbing
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.stored import WeightsError

from ..support.checkpoints.tiny import CONFIG, VOCABULARY, train_tokenizer

END, SEPARATOR, MASK, EXPAND, BEGIN = 0, 1, 2, 3, 4
MORE = ("<mask>", "<expand>", "<begin>")  # after <|endoftext|> and <file_sep>
NAMED = {"bos_token": "<begin>", "eos_token": "<|endoftext|>"}
SHAPE = Config.read({**CONFIG, "vocab_size": VOCABULARY})
LEFT_TO_RIGHT = ModelSpec(
    None,
    "verify",
    max_context=768,
    chunk=128,
    tail=4,
    head=12,
    shift=1,
    separator=(SEPARATOR,),
    ends=frozenset({END, SEPARATOR, 9}),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(train_tokenizer(tmp_path_factory.mktemp("words") / "tokenizer.json", more=MORE))


def test_an_autoregressive_model_has_its_tokens_for_a_gap_and_for_ends(tokenizer: Tokenizer) -> None:
    said = {"eos_token_id": [9, -1, True, VOCABULARY]}
    assert causal.spec(said, tokenizer, SHAPE, "cpu", 768) == LEFT_TO_RIGHT
    assert causal.spec(said, tokenizer, SHAPE, "cuda", 768) == replace(LEFT_TO_RIGHT, chunk=512)


def test_all_rows_of_a_masked_model_lie_on_its_canvas(tokenizer: Tokenizer) -> None:
    traits, rows = Traits(shift=1, opens=True, closes=True), 4096
    made = full.spec(64, full.MaskedFiles(traits, {}, NAMED, tokenizer, MASK), SHAPE, "cuda", 2048, rows)
    assert made == ModelSpec(
        Absorbing(MASK),
        "absorbing",
        max_context=2048,
        chunk=512,
        tail=2048,
        head=2048,
        rows=rows,
        shift=1,
        visibility="full",
        radius=64,
        start=(BEGIN,),
        finish=(END,),
        ends=frozenset({END}),
        prompt="inline",
    )
    expanding = full.spec(
        64, full.MaskedFiles(replace(traits, expand="<expand>"), {}, NAMED, tokenizer, MASK), SHAPE, "cuda", 2048, rows
    )
    assert expanding == replace(made, lengths="expand", expand_id=EXPAND, null_id=END, ends=frozenset())


def test_a_model_of_blocks_reads_left_to_right_and_draws_block_by_block(tokenizer: Tokenizer) -> None:
    traits = Traits(shift=0, opens=True, closes=False)
    made = blocks.spec(48, full.MaskedFiles(traits, {}, NAMED, tokenizer, MASK), SHAPE, "cpu", 768, MAX_ROWS)
    assert made == replace(
        LEFT_TO_RIGHT,
        noise=Absorbing(MASK, "blocks"),
        method="blocks",
        chunk=96,
        tail=0,
        head=47,
        shift=0,
        visibility="blocks",
        block_size=48,
        start=(BEGIN,),
        ends=frozenset({END, SEPARATOR}),
    )


def test_our_own_form_names_a_sampler_or_a_method(tokenizer: Tokenizer) -> None:
    said = {"separator": "<file_sep>", "ends": ["<|endoftext|>"]}
    drawn = stored.spec(said, SHAPE, tokenizer, drawn=True)
    assert drawn == replace(
        LEFT_TO_RIGHT,
        noise=Absorbing(VOCABULARY),
        method="absorbing",
        lengths="null",
        null_id=VOCABULARY + 1,
        ends=frozenset({END}),
    )
    assert stored.spec({**said, "sampler": "margin"}, SHAPE, tokenizer, drawn=True) == replace(drawn, sampler="margin")
    assert stored.spec({**said, "sampler": "verify"}, SHAPE, tokenizer, drawn=True) == replace(drawn, method="verify")
    alone = stored.spec(said, SHAPE, tokenizer, drawn=False)
    assert (alone.noise, alone.method, alone.null_id) == (None, "verify", None)
    for named, has_canvas in (("margin", False), ("absorbing", False), ("uniform", True)):
        with pytest.raises(WeightsError, match=f"'{named}', which is neither a sampler nor a method"):
            stored.spec({**said, "sampler": named}, SHAPE, tokenizer, drawn=has_canvas)


def test_the_methods_that_our_own_form_may_name_are_those_that_take_it(tiny: NativeLlama) -> None:
    served = {name for name in methods.names() if not methods.refusal(name, tiny)}
    assert served == {*stored.VERIFYING, *stored.DRAWING, "judge"}


def test_a_spec_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        LEFT_TO_RIGHT.chunk = 1  # type: ignore[misc]
