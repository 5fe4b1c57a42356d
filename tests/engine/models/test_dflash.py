"""A DFlash drafter reads the states of the base it was trained for: its logits are those of the published rule, and
whatever it drafts, the answer is the base's own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from caesura import wire
from caesura.engine.device import Host
from caesura.engine.methods.verify import search
from caesura.engine.model import LoadChoice, Model, ModelError, Run
from caesura.engine.models import load
from caesura.engine.models.drafters.dflash import DFlash
from caesura.engine.models.folder import read
from caesura.engine.scheduler import Scheduler

from ...support.checkpoints.tiny import CODE, alone, done, infill, run, train_tokenizer

MASK, ROWS, TAPS, HIDDEN, HEADS, GROUPS, WIDTH = 410, 6, (0, 2), 64, 4, 2, 32  # the tokenizer lacks the mask token
SIZES: dict[str, Any] = {
    "vocab_size": 416,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": WIDTH,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
DRAFTER: dict[str, Any] = SIZES | {
    "model_type": "qwen3",
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 2,
    "num_target_layers": 4,
    "num_attention_heads": 6,
    "rope_theta": 1e4,
    "block_size": ROWS,
    "dflash_config": {"target_layer_ids": list(TAPS), "mask_token_id": MASK},
}
GAPS = (
    ("def area(a, b):\n    ", "\n\nclass Place:\n", wire.Hole(12, "block")),
    ("def area(a, b):\n    c[", "\n", wire.Hole(6), wire.Text(" = "), wire.Hole(6)),
)


def based(folder: Path) -> Path:
    """A random Qwen3."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("qwen3", **SIZES))
    for name, parameter in model.named_parameters():
        parameter.data = torch.randn_like(parameter) * 0.1 + ("norm.weight" in name)
    model.save_pretrained(folder)
    train_tokenizer(folder / "tokenizer.json")
    return folder


def published(folder: Path, **said: object) -> Path:
    """A random drafter; `said` are other settings of config.json."""
    folder.mkdir()
    draw, heads, keys = torch.Generator().manual_seed(1), 6 * WIDTH, GROUPS * WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (HIDDEN, len(TAPS) * HIDDEN),
        "hidden_norm": (HIDDEN,),
        "norm": (HIDDEN,),
    }
    for at in (f"layers.{number}." for number in range(2)):
        rows = {"q": heads, "k": keys, "v": keys}
        shapes |= {f"{at}self_attn.{part}_proj": (size, HIDDEN) for part, size in rows.items()}
        shapes |= {f"{at}self_attn.o_proj": (HIDDEN, heads), f"{at}mlp.down_proj": (HIDDEN, 96)}
        shapes |= {f"{at}self_attn.{part}_norm": (WIDTH,) for part in "qk"}
        shapes |= {f"{at}mlp.{part}_proj": (96, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{at}{place}_layernorm": (HIDDEN,) for place in ("input", "post_attention")}
    noise = {name: torch.randn(shape, generator=draw) * 0.15 for name, shape in shapes.items()}
    save_file({f"{name}.weight": x + ("norm" in name) for name, x in noise.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(DRAFTER | said))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return based(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("drafter") / "drafter")


def loaded(base: Path, drafter: Path, **choice: Any) -> DFlash:
    model = load(str(base), "cpu", draft=str(drafter), **choice)
    assert isinstance(model, DFlash)
    assert model.drafter is model
    return model


def drafted(base: Path, drafter: Path, ids: list[int]) -> Tensor:
    """The logits [rows - 1, vocabulary] of a block that begins with the last id, by the published rule."""
    native = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    states = native(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
    weights = load_file(drafter / "model.safetensors")

    def norm(x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], 1e-6)

    def times(x: Tensor, name: str) -> Tensor:
        return linear(x, weights[f"{name}.weight"])

    def turned(x: Tensor, first: int) -> Tensor:
        lengths = 1e4 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        angles = (torch.arange(first, first + len(x))[:, None] / lengths).repeat(1, 2)[:, None]
        left, right = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-right, left), -1) * angles.sin()

    context = norm(times(torch.cat([states[layer + 1][0] for layer in TAPS], -1), "fc"), "hidden_norm")
    x = embedding(torch.tensor([ids[-1], *[MASK] * (ROWS - 1)]), native.get_input_embeddings().weight)
    for at in ("layers.0", "layers.1"):
        own = norm(x, f"{at}.input_layernorm")
        both = torch.cat((context, own))
        q = norm(times(own, f"{at}.self_attn.q_proj").unflatten(-1, (-1, WIDTH)), f"{at}.self_attn.q_norm")
        k = norm(times(both, f"{at}.self_attn.k_proj").unflatten(-1, (-1, WIDTH)), f"{at}.self_attn.k_norm")
        v = times(both, f"{at}.self_attn.v_proj").unflatten(-1, (-1, WIDTH))
        q, k, v = turned(q, len(context)), turned(k, 0).repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        seen = (torch.einsum("qhd,khd->hqk", q, k) * WIDTH**-0.5).softmax(-1)
        x = x + times(torch.einsum("hqk,khd->qhd", seen, v).flatten(1), f"{at}.self_attn.o_proj")
        own = norm(x, f"{at}.post_attention_layernorm")
        x = x + times(silu(times(own, f"{at}.mlp.gate_proj")) * times(own, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
    logits: Tensor = native.lm_head(norm(x, "norm"))[1:]
    return logits


@torch.inference_mode()
def test_it_drafts_by_the_published_rule(base: Path, drafter: Path) -> None:
    """Behind a row of a token tree, whose other branches it does not see."""
    model = loaded(base, drafter, exact=True)
    *context, first, second, token = ids = torch.randint(
        0, 400, (90,), generator=torch.Generator().manual_seed(2)
    ).tolist()
    kv, at = model.cache().lease([]), len(context)
    model.prefill(context, kv)
    order = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]], np.bool_)
    judged = model.forward([Run(kv, [7, first, 9, second], [at, at, at + 1, at + 1], order)])[0].logits
    assert judged.shape == (4, model.tokenizer.size), "the mask token is no answer"
    asked = [Run(kv, [token], [at + 2], np.array([[False, True, False, True, True]]))]
    ours, theirs = model.block(asked)[0], drafted(base, drafter, ids)[:, : model.width]
    assert ours.shape == (ROWS - 1, model.tokenizer.size)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    tokens, chances = model.draft(asked)
    assert tokens[0].tolist() == theirs.argmax(-1).tolist()
    torch.testing.assert_close(torch.from_numpy(chances[0]), theirs.softmax(-1).max(-1).values)


def test_usual_weights_draft_nearly_the_same(base: Path, drafter: Path) -> None:
    ids = list(range(20, 80))
    found = list[Tensor]()
    for exact in (True, False):
        model = loaded(base, drafter, exact=exact)
        kv = model.cache().lease([])
        model.prefill(ids[:-2], kv)
        model.forward([Run(kv, ids[-2:-1], [58], np.ones((1, 1), np.bool_))])
        found.append(model.block([Run(kv, ids[-1:], [59], np.ones((1, 2), np.bool_))]))
    assert (found[1] - found[0]).norm() < 0.1 * found[0].norm()


def test_wrong_drafts_change_no_answer(base: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "LIKELY", 0.0)  # a random drafter is never sure
    pair, plain = loaded(base, drafter, exact=True), load(str(base), "cpu", exact=True)
    drafts = list[int]()
    monkeypatch.setattr(pair, "block", lambda runs: (drafts.append(len(runs)), DFlash.block(pair, runs))[1])
    jobs = [infill(f"j{number}", *gap) for number, gap in enumerate(GAPS)]
    together = run(Scheduler(pair), jobs)
    for job in jobs:
        found, expected = done(together[job.job]), alone(plain, job)
        assert [fill.text for fill in found.holes] == [fill.text for fill in expected.holes]
    assert max(drafts) > 1, "it drafted for both jobs at once"


def test_a_draft_is_the_same_where_the_context_is_reused(
    base: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "LIKELY", 0.0)
    first, second = infill("a", CODE[:900], CODE[900:1000]), infill("b", CODE[:700], CODE[900:1000])
    warm = Scheduler(loaded(base, drafter, exact=True))
    found = [done(run(warm, [job])[job.job]) for job in (first, second)][1]
    assert warm.cache.reused > 0
    expected = alone(loaded(base, drafter, exact=True), second)
    assert (found.holes, found.tokens, found.steps) == (expected.holes, expected.tokens, expected.steps)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"hidden_size": 32}, "it was trained for 4 layers of 32 columns, not for 4 of 64."),
    "layers": ({"num_target_layers": 36}, "it was trained for 36 layers of 64 columns, not for 4 of 64."),
    "taps": (
        {"dflash_config": {"target_layer_ids": [0, 3], "mask_token_id": MASK}},
        "it reads the layers [0, 3], and the last that can be read is 2.",
    ),
    "vocabulary": ({"vocab_size": 500}, "it was trained on a vocabulary of another size."),
    "no taps": ({"dflash_config": {"mask_token_id": MASK}}, "is damaged: its drafter lacks 'target_layer_ids'."),
    "no order": ({"dflash_config": {"target_layer_ids": [2, 0], "mask_token_id": MASK}}, "in ascending order."),
    "rows": ({"block_size": 1}, "a drafter has 2 to"),
    "sliding": ({"layer_types": ["sliding_attention"] * 2}, "has sliding layers, which is not supported in a drafter."),
    "softcap": ({"final_logit_softcapping": 20.0}, "has final_logit_softcapping, which is not supported in a drafter."),
    "tensors": ({"num_hidden_layers": 1}, "tensors have no place in this model"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_drafter_is_refused_in_a_sentence(base: Path, tmp_path: Path, case: str) -> None:
    said, sentence = WRONG[case]
    with pytest.raises(ModelError) as error:
        load(str(base), "cpu", draft=str(published(tmp_path / "drafter", **said)))
    assert sentence in str(error.value)


def test_a_wrong_base_is_refused_in_a_sentence(base: Path, drafter: Path, tiny_folder: Path) -> None:
    cases: list[tuple[Callable[[], Model], str]] = [
        (lambda: load(str(base), "meta", draft=str(drafter)), "drafts only for an autoregressive model"),
        (lambda: load(str(tiny_folder), "cpu", draft=str(drafter)), "a vocabulary of another size"),
        (lambda: load(str(drafter), "cpu"), "is a drafter of another model and cannot be used by itself"),
        (lambda: load(str(drafter), "cpu", draft=str(drafter)), "is a drafter of another model"),
    ]
    for refused, sentence in cases:
        with pytest.raises(ModelError) as error:
            refused()
        assert sentence in str(error.value)


def test_both_are_counted_before_either_is_read(base: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = list[int]()
    read(str(base), LoadChoice("cpu", 512, tokens=MASK + 1, beside=needs.append))
    monkeypatch.setattr(Host, "free", lambda self: needs[0])
    monkeypatch.setattr("caesura.engine.weights.mapped.raw", lambda entry: pytest.fail("it was read"))
    with pytest.raises(ModelError, match=r"^drafter needs .* GiB"):
        load(str(base), "cpu", 512, draft=str(drafter))
