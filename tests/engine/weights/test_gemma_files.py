"""A DiffusionGemma folder whose small files are not what they should be: one sentence, and nothing is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caesura.engine import models, worker
from caesura.engine.model import ModelError

from ...support.checkpoints import gemma

Break = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return gemma.published(tmp_path_factory.mktemp("whole") / "tiny")


def text(**changes: Any) -> Break:
    return lambda folder: rewrite(folder / "config.json", "text_config", changes)


def generation(**changes: Any) -> Break:
    return lambda folder: rewrite(folder / "generation_config.json", None, changes)


def rewrite(path: Path, section: str | None, changes: dict[str, Any]) -> None:
    stored = json.loads(path.read_text())
    (stored[section] if section else stored).update(changes)
    path.write_text(json.dumps(stored))


def rope(**changes: Any) -> Break:
    kinds = json.loads(json.dumps(gemma.TEXT["rope_parameters"]))
    kinds["full_attention"].update(changes)
    return text(rope_parameters=kinds)


CASES: dict[str, tuple[Break, str]] = {
    "a size missing": (lambda f: rewrite(f / "config.json", None, {"text_config": {}}), "damaged or of another kind"),
    "no text model": (lambda f: (f / "config.json").write_text('{"model_type": "diffusion_gemma"}'), "damaged or of"),
    "an infinite size": (text(vocab_size=float("inf")), "damaged"),
    "a size of nothing": (text(hidden_size=0), "every size must be above 0"),
    "no number for a norm": (text(rms_norm_eps=float("nan")), "every size must be above 0"),
    "a huge size": (text(hidden_size=2**40), "every size must be above 0"),
    "heads that do not divide": (text(num_attention_heads=3), "key heads must divide"),
    "more experts than there are": (text(top_k_experts=9), "more experts"),
    "another activation": (text(hidden_activation="relu"), "activation or a bias"),
    "a context that is not causal": (text(use_bidirectional_attention="all"), "not causal"),
    "layers without a kind": (text(layer_types=["sliding_attention"]), "does not name every layer"),
    "another kind of positions": (rope(rope_type="yarn"), "rope_type"),
    "more than a whole turn": (rope(partial_rotary_factor=5), "partial_rotary_factor must be at most 1"),
    "no room for context": (text(max_position_embeddings=600), "1,024 are needed"),
    "a canvas beyond all positions": (
        lambda f: rewrite(f / "config.json", None, {"canvas_length": 10**6}),
        "are needed",
    ),
    "config.json that nests without end": (lambda f: (f / "config.json").write_text("[" * 200_000), "is damaged"),
    "generation_config.json that nests without end": (
        lambda f: (f / "generation_config.json").write_text("[" * 200_000),
        "is damaged",
    ),
    "generation_config.json of another shape": (
        lambda f: (f / "generation_config.json").write_text("[]"),
        "is damaged",
    ),
    "endless steps": (generation(max_denoising_steps=float("inf")), "is damaged"),
    "no steps": (generation(max_denoising_steps=0), "outside the possible range"),
    "no temperature": (generation(t_min=1e-300), "outside the possible range"),
    "boundless heat": (generation(t_max=1e300), "outside the possible range"),
    "a bound that is no number": (
        generation(sampler_config={"entropy_bound": float("nan")}),
        "outside the possible range",
    ),
    "an end that is no token": (generation(eos_token_id=[1, 999_999]), "end token that does not exist"),
    "an end below all tokens": (generation(eos_token_id=-1), "end token that does not exist"),
    "a tokenizer too large for it": (text(vocab_size=500), "tokenizer.json has 592 tokens"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_is_not_whole_is_refused_in_one_sentence(whole: Path, tmp_path: Path, case: str) -> None:
    damage, sentence = CASES[case]
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    damage(folder)
    with pytest.raises(ModelError, match=sentence) as error:
        models.load(str(folder))
    assert "\n" not in str(error.value)


def test_a_token_far_beyond_the_others_is_noticed(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["model"]["vocab"]["zz"] = 1_000_000
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(ModelError, match="has 1000001 tokens"):
        models.load(str(folder))


def test_a_folder_without_a_schedule_has_the_published_one(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    (folder / "generation_config.json").unlink()
    schedule = models.load(str(folder)).spec.noise.schedule  # type: ignore[union-attr]
    found = schedule.steps, schedule.t_min, schedule.t_max, schedule.entropy_bound, schedule.confidence
    assert found == (48, 0.4, 0.8, 0.1, 0.005)


@pytest.mark.parametrize(("said", "meant"), [(None, None), ("", None), ("4096", 4096)])
def test_the_context_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, said: str | None, meant: int | None
) -> None:
    monkeypatch.delenv("CAESURA_CONTEXT", raising=False)
    if said is not None:
        monkeypatch.setenv("CAESURA_CONTEXT", said)
    assert worker._number("CAESURA_CONTEXT", "tokens") == meant


@pytest.mark.parametrize("said", ["many", "-1", "1e4", "9" * 5000])
def test_a_context_that_is_no_number_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("CAESURA_CONTEXT", said)
    with pytest.raises(worker.CannotLoad, match="must be a number of tokens"):
        worker._number("CAESURA_CONTEXT", "tokens")
