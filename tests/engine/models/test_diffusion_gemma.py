"""DiffusionGemma computes what Transformers computes: step by step on its own inputs, then whole generations; and a
context gives the same logits however it came into the cache.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import kl_div

from caesura.engine import cache, models
from caesura.engine.cache import KV
from caesura.engine.methods.uniform.renoise import by_entropy, statistics
from caesura.engine.model import Run
from caesura.engine.models.diffusion_gemma.model import DiffusionGemma
from caesura.engine.noise import Schedule
from caesura.kernels import rotary

from ...support.checkpoints.generate import generate
from ...support.checkpoints.oracle import CANVAS, VOCABULARY, WINDOW, Gains, Oracle, Step, build

CLOSE = 5e-4  # of logits, keys and values; Transformers' own ways to attend differ by 2e-4
CLEAR = 1e-3  # a choice between entropies or logits that lie closer may go either way
GENTLE = Gains(embedding=0.6, branch=0.1)
CALM = Gains(embedding=0.6, branch=0.05)
LENGTHS = [1, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW]
SHORT = Schedule(steps=6, entropy_bound=2.0)


def load(folder: Path) -> DiffusionGemma:
    torch.set_num_threads(1)  # as the worker does
    model = models.load(str(folder), "cpu")
    assert isinstance(model, DiffusionGemma)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("diffusion-gemma") / "tiny")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle.load(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> DiffusionGemma:
    return load(folder)


@pytest.fixture(scope="module")
def gentle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, DiffusionGemma]:
    """Weights with which no draw and no acceptance hangs on the last bit of a logit."""
    folder = build(tmp_path_factory.mktemp("diffusion-gemma") / "gentle", gains=GENTLE, seed=4)
    return Oracle.load(folder), load(folder)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, DiffusionGemma]:
    """A model that believes its canvas, so that canvases come to rest."""
    folder = build(tmp_path_factory.mktemp("diffusion-gemma") / "calm", gains=CALM)
    return Oracle.load(folder), load(folder)


def ids(count: int, seed: int = 1) -> list[int]:
    """Random text; no image tokens, which are the last three."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(3, VOCABULARY - 4, (count,), generator=generator).tolist()
    return drawn


def prompt(count: int, seed: int = 1) -> list[int]:
    """Random text behind <bos>."""
    return [2, *ids(count - 1, seed)]


def noise(rows: int) -> Tensor:
    """Logits to be conditioned on."""
    return 3 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(rows))


def encoded(model: DiffusionGemma, context: Sequence[int]) -> KV:
    kv = model.cache().lease(list(context))
    if context:
        model.prefill(context, kv)
    return kv


def ahead(kv: KV, canvas: Sequence[int], *, fresh: Sequence[int] = (), conditioning: Tensor | None = None) -> Run:
    start = kv.length + len(fresh)
    return Run(kv, canvas, range(start, start + len(canvas)), fresh=fresh, conditioning=conditioning)


def apart(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return (ours - theirs).abs().max().item()


@pytest.fixture
def their_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Angles, cosines and sines in float32, as in Transformers. Some differ from ours in the last bit
    (tests/kernels/test_rotary.py), of which these weights make 6e-4 of a logit."""

    def single(angles: Tensor) -> Tensor:
        return torch.stack((angles.float().cos(), angles.float().sin()))

    monkeypatch.setattr(rotary, "cos_sin", single)


# Against Transformers


@pytest.mark.usefixtures("their_cosines")
@pytest.mark.parametrize("length", LENGTHS)
def test_every_step_is_the_step_of_transformers(oracle: Oracle, model: DiffusionGemma, length: int) -> None:
    oracle.write(prompt(length), max_new=2 * CANVAS, seed=length, schedule=SHORT)
    assert len(oracle.steps) == 12
    for step in oracle.steps:
        conditioning = None if step.conditioning is None else model.condition(step.conditioning)
        logits = model.denoise([ahead(encoded(model, step.context), step.canvas, conditioning=conditioning)]).logits
        assert apart(logits, step.logits) <= CLOSE
        assert_same_choice(logits, step, SHORT)


def assert_same_choice(logits: Tensor, step: Step, schedule: Schedule) -> None:
    """The same entropies, and the same best tokens and accepted slots where they are clear."""
    first, second = step.logits.topk(2).values.unbind(-1)
    clear = first - second > CLEAR
    assert torch.equal(logits.argmax(-1)[clear], step.best[clear])
    scores = statistics(logits / float(schedule.temperature(schedule.steps - step.remaining, schedule.steps)))
    assert apart(scores.entropy[0], step.entropy) <= CLEAR
    every = torch.ones(1, len(logits), dtype=torch.bool)
    accepted = by_entropy(scores, every, 0, 1, bound=schedule.entropy_bound)[0]
    entropy, order = step.entropy.sort()
    spent = torch.empty_like(entropy).scatter(0, order, entropy.cumsum(0) - entropy)
    gaps = (step.entropy - step.entropy[:, None]).abs().fill_diagonal_(torch.inf).min(0).values
    clear = ((spent - schedule.entropy_bound).abs() > CLEAR) & (gaps > CLEAR)
    assert clear.any()
    assert torch.equal(accepted[clear], step.accepted[clear])


@pytest.mark.parametrize("length", LENGTHS)
def test_the_cache_holds_the_keys_and_values_of_transformers(
    oracle: Oracle, model: DiffusionGemma, length: int
) -> None:
    text = prompt(length)
    _, theirs = oracle.encode(text)
    kv = encoded(model, text)
    for at, layer in enumerate(theirs.layers):
        held = layer.keys.shape[2]
        assert held == (min(length, WINDOW - 1) if layer.is_sliding else length)
        k, v = kv.get(at, length - held, length)
        assert apart(k, layer.keys[0]) <= CLOSE
        assert apart(v, layer.values[0]) <= CLOSE


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 12))])
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(steps=8, entropy_bound=4.0, confidence=5.0),
        Schedule(steps=12),
        pytest.param(Schedule(steps=48, entropy_bound=10.0, confidence=3.0, stability=2), marks=pytest.mark.slow),
    ],
    ids=["greedy", "careful", "long"],
)
def test_a_generation_is_token_for_token_that_of_transformers(
    gentle: tuple[Oracle, DiffusionGemma], seed: int, schedule: Schedule
) -> None:
    assert_same_text(*gentle, seed, schedule, 3 * CANVAS)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(steps=48),
        Schedule(steps=12, stability=0, confidence=1.0),
        Schedule(steps=16, entropy_bound=4.0, confidence=0.5, stability=2),
    ],
    ids=["published", "at once", "twice"],
)
def test_a_generation_that_comes_to_rest_ends_at_the_same_step(
    calm: tuple[Oracle, DiffusionGemma], schedule: Schedule
) -> None:
    steps = assert_same_text(*calm, 0, schedule, 2 * CANVAS)
    assert min(steps) < schedule.steps


def assert_same_text(
    oracle: Oracle, model: DiffusionGemma, seed: int, schedule: Schedule, max_new: int
) -> Sequence[int]:
    """The steps of each canvas."""
    text = prompt(3 * WINDOW + 1)
    theirs = oracle.write(text, max_new=max_new, seed=seed, schedule=schedule)
    ours = generate(model, text, max_new=max_new, seed=seed, schedule=schedule)
    assert ours.ids == theirs
    assert sum(ours.steps) == len(oracle.steps)
    return ours.steps


def test_an_end_token_ends_the_text_and_what_follows_is_padding(
    folder: Path, model: DiffusionGemma, tmp_path: Path
) -> None:
    text, schedule = prompt(3 * WINDOW + 1), Schedule(steps=4, entropy_bound=4.0)
    endless = generate(model, text, max_new=3 * CANVAS, seed=0, schedule=schedule).ids
    end = next(id_ for id_ in endless[CANVAS + 3 :] if id_ not in endless[:CANVAS])
    shutil.copytree(folder, tmp_path / "ending")
    generation = json.loads((tmp_path / "ending" / "generation_config.json").read_text())
    (tmp_path / "ending" / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": [1, end]}))
    ending = load(tmp_path / "ending")
    ours = generate(ending, text, max_new=3 * CANVAS, seed=0, schedule=schedule).ids
    theirs = Oracle.load(tmp_path / "ending").write(text, max_new=3 * CANVAS, seed=0, schedule=schedule)
    assert ours == theirs
    at = ours.index(end)
    assert ours[: at + 1] == endless[: at + 1]
    assert set(ours[at + 1 : 2 * CANVAS]) == {0}
    assert len(ours) == 2 * CANVAS


# However the context came


@pytest.mark.parametrize("length", LENGTHS)
def test_context_and_first_denoise_in_one_forward_give_what_two_give(model: DiffusionGemma, length: int) -> None:
    text, canvas = prompt(length), ids(CANVAS, 2)
    apart_kv, joint_kv = encoded(model, text), encoded(model, [])
    separate = model.denoise([ahead(apart_kv, canvas)]).logits
    joint = model.denoise([ahead(joint_kv, canvas, fresh=text)]).logits
    assert apart(joint, separate) <= CLOSE
    assert joint_kv.ids == text
    assert_same_context(model, joint_kv, apart_kv)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_finished_canvas_and_the_next_in_one_forward_give_what_two_give(
    oracle: Oracle, model: DiffusionGemma, length: int
) -> None:
    text, finished, canvas = prompt(length), ids(CANVAS, 2), ids(CANVAS, 3)
    kv = encoded(model, text)
    conditioning = noise(CANVAS)
    joint = model.denoise([ahead(kv, canvas, fresh=finished, conditioning=model.condition(conditioning))]).logits
    _, theirs = oracle.encode(text)
    _, theirs = oracle.encode(finished, theirs)
    assert apart(joint, oracle.decode(canvas, theirs, conditioning)) <= CLOSE
    assert kv.ids == [*text, *finished]
    assert_same_context(model, kv, encoded(model, [*text, *finished]))


@pytest.mark.parametrize("chunk", [1, 5, WINDOW, 2 * WINDOW])
def test_context_in_pieces_gives_what_it_gives_at_once(model: DiffusionGemma, chunk: int) -> None:
    text, canvas = prompt(3 * WINDOW + 1), ids(CANVAS, 2)
    kv = encoded(model, [])
    for at in range(0, len(text), chunk):
        model.prefill(text[at : at + chunk], kv)
    whole = encoded(model, text)
    assert_same_context(model, kv, whole)
    assert apart(model.denoise([ahead(kv, canvas)]).logits, model.denoise([ahead(whole, canvas)]).logits) <= CLOSE


@pytest.mark.parametrize("slack", [0, 4, 1024])
@pytest.mark.parametrize("kept", [1, WINDOW - 1, WINDOW, 2 * WINDOW, 3 * WINDOW])
def test_a_cache_cut_back_or_forked_gives_the_logits_of_a_cold_one(
    model: DiffusionGemma, monkeypatch: pytest.MonkeyPatch, kept: int, slack: int
) -> None:
    monkeypatch.setattr(cache, "SLACK", slack)
    monkeypatch.setattr(cache, "GROWTH", 4)
    first, canvas = prompt(3 * WINDOW + 1), ids(CANVAS, 2)
    second = [*first[:kept], *ids(WINDOW, 3)]
    kv = encoded(model, first[:5])
    for at in range(5, len(first), 7):
        model.prefill(first[at : at + 7], kv)
    twin = kv.fork()
    kv.truncate(kept)
    model.prefill(second[kv.length :], kv)
    assert kv.ids == second
    assert_same_context(model, kv, encoded(model, second))
    for warm, text in ((kv, second), (twin, first)):
        cold = model.denoise([ahead(encoded(model, text), canvas)]).logits
        assert apart(model.denoise([ahead(warm, canvas)]).logits, cold) <= CLOSE


def assert_same_context(model: DiffusionGemma, ours: KV, theirs: KV) -> None:
    """What the next row can see of both."""
    assert ours.ids == theirs.ids
    length = theirs.length
    for at, shape in enumerate(model.config.shapes):
        low = max(0, length - (WINDOW - 1)) if shape.sliding else 0
        for mine, its in zip(ours.get(at, low, length), theirs.get(at, low, length), strict=True):
            assert apart(mine, its) <= CLOSE


def test_keys_of_a_full_layer_are_its_values_scaled_and_turned(folder: Path, model: DiffusionGemma) -> None:
    length = 3 * WINDOW
    kv = encoded(model, prompt(length))
    at = next(at for at, shape in enumerate(model.config.shapes) if not shape.sliding)
    k, v = kv.get(at, 0, length)
    with safe_open(folder / "model.safetensors", framework="pt") as stored:
        scaled = v * stored.get_tensor(f"model.decoder.layers.{at}.self_attn.k_norm.weight")
    width = v.shape[-1]
    frequencies = torch.zeros(width // 2)
    turning = width // 8  # a quarter of the dimensions turns, in pairs
    frequencies[:turning] = 1e6 ** (-2 * torch.arange(turning) / width)
    angles = torch.arange(length)[:, None] * frequencies
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    left, right = scaled.chunk(2, -1)
    assert apart(k, scaled * cos + torch.cat((-right, left), -1) * sin) <= 1e-5


def test_a_batch_gives_each_canvas_what_it_gets_alone(model: DiffusionGemma) -> None:
    texts = [prompt(length, length) for length in LENGTHS]
    canvases = [ids(width, width) for width in (CANVAS, 4, 1, CANVAS, 7, 2 * CANVAS)]
    signals = [noise(len(canvas)) if len(canvas) > 4 else None for canvas in canvases]
    fresh = [[], ids(3, 5), [], ids(WINDOW, 6), ids(1, 7), []]

    def runs() -> list[Run]:
        return [
            ahead(
                encoded(model, text),
                canvas,
                fresh=new,
                conditioning=None if signal is None else model.condition(signal),
            )
            for text, canvas, new, signal in zip(texts, canvases, fresh, signals, strict=True)
        ]

    together = model.denoise(runs()).logits.split([len(canvas) for canvas in canvases])
    for run, joint in zip(runs(), together, strict=True):
        alone = model.denoise([run]).logits
        assert apart(joint, alone) <= CLOSE
        assert torch.equal(joint.argmax(-1), alone.argmax(-1))


def test_canvases_of_several_lengths_may_share_a_context(model: DiffusionGemma) -> None:
    text, fresh = prompt(2 * WINDOW), ids(5, 3)
    canvases = [ids(width, width) for width in (4, 8, CANVAS)]
    kv = encoded(model, text)
    together = model.denoise([ahead(kv, canvas, fresh=fresh) for canvas in canvases]).logits.split([4, 8, CANVAS])
    assert kv.ids == [*text, *fresh]
    for canvas, joint in zip(canvases, together, strict=True):
        alone = model.denoise([ahead(encoded(model, [*text, *fresh]), canvas)]).logits
        assert apart(joint, alone) <= CLOSE


def test_only_the_rows_that_are_wanted_come_back(model: DiffusionGemma) -> None:
    kv, canvas = encoded(model, prompt(WINDOW)), ids(CANVAS, 2)
    positions = range(WINDOW, WINDOW + CANVAS)
    whole = model.denoise([Run(kv, canvas, positions)]).logits
    some = model.denoise([Run(kv, canvas, positions, wanted=[0, 3, CANVAS - 1])]).logits
    assert apart(some, whole[[0, 3, CANVAS - 1]]) <= 1e-4


# However the checkpoint is written


def resaved(source: Path, target: Path) -> None:
    """By Transformers, in its own spelling."""
    from transformers import DiffusionGemmaForBlockDiffusion

    DiffusionGemmaForBlockDiffusion.from_pretrained(source).save_pretrained(target)
    shutil.copy(source / "tokenizer.json", target)
    assert "per_layer_config" in json.loads((target / "config.json").read_text())["text_config"]


def without_defaults(source: Path, target: Path) -> None:
    """No generation_config.json, and no softcap named."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("generation_config.json"))
    config = json.loads((target / "config.json").read_text())
    del config["text_config"]["final_logit_softcapping"]
    (target / "config.json").write_text(json.dumps(config))


def in_shards(source: Path, target: Path) -> None:
    build(target, shard="300KB")
    assert len(list(target.glob("*.safetensors"))) > 3


@pytest.mark.parametrize("write", [resaved, without_defaults, in_shards])
def test_the_same_weights_written_otherwise_give_the_same_logits(
    folder: Path, model: DiffusionGemma, tmp_path: Path, write: object
) -> None:
    assert callable(write)
    write(folder, tmp_path / "other")
    other = load(tmp_path / "other")
    text, canvas = prompt(3 * WINDOW), ids(CANVAS, 2)
    ours, theirs = (m.denoise([ahead(encoded(m, text), canvas)]).logits for m in (other, model))
    assert apart(ours, theirs) <= 1e-4  # memory that a file maps elsewhere is multiplied in another order
    assert 1 in other.spec.ends


def test_a_checkpoint_in_half_precision_says_the_same(tmp_path: Path) -> None:
    """With weak branches only: elsewhere bfloat16 flips tiny random routers, in Transformers against itself too."""
    half = build(tmp_path / "half", gains=GENTLE, dtype=torch.bfloat16)
    oracle, model = Oracle.load(half), load(half)
    text, canvas = prompt(3 * WINDOW), ids(CANVAS, 2)
    _, context = oracle.encode(text)
    theirs = oracle.decode(canvas, context)
    ours = model.denoise([ahead(encoded(model, text), canvas)]).logits
    assert model.dtype == torch.bfloat16
    assert ours.dtype == torch.float32
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9
    assert kl_div(ours.log_softmax(-1), theirs.log_softmax(-1), reduction="batchmean", log_target=True) < 0.05
