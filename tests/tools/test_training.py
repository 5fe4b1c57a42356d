"""Training at tiny size: what an example promises, that losses fall, that a resumed run is the uninterrupted one, that
exports load in the runtime, and the scripts of gpu/ from staging to the joined result. Marked `gpu`: on CUDA."""

import argparse
import functools
import gzip
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._dynamo.testing import CompileCounterWithBackend

from caesura.engine import canary, models
from caesura.engine.canvas.healing import heal
from caesura.engine.model import ModelError, Run
from caesura.engine.models.llama.config import Config
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights import stored as weights
from caesura.engine.weights.tensors import ByName

from ..support.checkpoints import tiny
from ..support.checkpoints.compared import tensor
from ..support.checkpoints.few import few

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "training"))

import batches  # noqa: E402
import export  # noqa: E402
import gaps  # noqa: E402
import net  # noqa: E402
import pack  # noqa: E402
import scratch  # noqa: E402
import train  # noqa: E402

import examples  # noqa: E402

TOKENIZER = ROOT / "models" / "small" / "caesura_small" / "tokenizer.json"
TINY = {
    "model_type": "block_llama", "vocab_size": 16384, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
    "num_kv_heads": 2, "intermediate_size": 96, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "separator": "<file_sep>",
    "sampler": "verify",
}  # fmt: skip
EXPORTS = {"canvas": "adapter", "context": "context", "all": "full"}
MASK, NULL = 16384, 16385
SIDES = TAIL, HEAD = 4, 12  # of a canvas, as TINY has them
TEXTS = [path.read_text() for path in sorted(ROOT.glob("engine/[!gm]*/*.py"))]
HERE = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, HERE])]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(TOKENIZER)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    scratch.write(folder, TINY, TOKENIZER)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for name, texts in (("shard-000", TEXTS[:6]), ("shard-001", TEXTS[6:9]), ("heldout-000", TEXTS[9:])):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", newline="") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return folder


def batch(tokenizer, step=0, mix=examples.PLAIN, contexts=2):
    separator = [tokenizer.special(TINY["separator"])]
    return batches.Batches(TEXTS, tokenizer, separator, (MASK, NULL), SIDES, contexts, mix, "test")[step]


def network(model, trains="canvas", **options):
    torch.manual_seed(0)
    return net.Net(Config.read(TINY), ByName(weights.Stored(model / "base.safetensors")), trains, **options)


def run(model, corpus, folder, *options):
    """training/train.py with its arguments, in this process."""
    argv = ["--model", model, "--corpus", corpus, "--run", folder, "--contexts", 1, "--held", 2, *options]
    train.main(list(map(str, argv)))
    return load_file(folder / "state.safetensors"), [json.loads(line) for line in (folder / "log.jsonl").open()]


# ---- examples


@pytest.fixture(scope="module", params=[examples.PLAIN, examples.Mix(causal=0.3, complement=True)])
def drawn(request, tokenizer):
    separator = [tokenizer.special(TINY["separator"])]
    rng = random.Random(3)
    texts = [*TEXTS, "\tif caf\u00e9:\r\n\t\treturn '\U0001f600'\r\n" * 40]
    pairs = [
        (
            text,
            bucket,
            examples.example(
                text,
                tokenizer,
                separator,
                (MASK, NULL),
                rng,
                bucket=bucket,
                sides=SIDES,
                canvases=14,
                mix=request.param,
            ),
        )
        for text in texts
        for bucket in examples.BUCKETS
    ]
    return [pair for pair in pairs if pair[2] is not None]


def canvases(drawn):
    return [(text, bucket, example, c) for text, bucket, example in drawn for c in example.canvases]


def test_tail_target_and_head_are_a_piece_of_the_text(drawn, tokenizer):
    assert len(canvases(drawn)) > 200
    for text, _, _, c in canvases(drawn):
        tokens = [t for t in c.target if t != NULL]
        head = tokenizer.bytes(c.head)
        assert tokenizer.bytes(c.tail + tokens) + head in text.encode()


def test_targets_begin_with_the_healed_text(drawn, tokenizer):
    """A hole never starts inside a token: what `heal` cuts off the prefix is predicted again."""
    for text, _, _, c in canvases(drawn):
        tail, target = tokenizer.decode(c.tail), tokenizer.decode([t for t in c.target if t != NULL])
        assert tail + target in text
        stable, forced = heal(tokenizer, tail + target[:1])
        assert len(stable) >= len(tail) or (tail + target[:1]).endswith(forced)


def test_nulls_end_a_hole_and_are_always_hidden(drawn):
    """A canvas has one hole, or two with text between them."""
    joint = 0
    for _, bucket, _, c in canvases(drawn):
        null = [token == NULL for token in c.target]
        ends = [i for i, (one, after) in enumerate(itertools.pairwise(null)) if one and not after]
        assert 0 < len(c.target) <= bucket
        assert not null[0]
        assert all(shown == MASK for shown, one in zip(c.shown, null, strict=True) if one)
        assert len(ends) <= 1
        assert all(c.shown[end + 1] != MASK for end in ends), "text stands after the first hole"
        assert (len(c.tail), len(c.head) <= HEAD) == (TAIL, True)
        joint += len(ends)
    assert joint


def test_a_canvas_sees_the_context_up_to_its_tail(drawn, tokenizer):
    separator = tokenizer.special(TINY["separator"])
    for _, _, example, c in canvases(drawn):
        assert example.context.index(separator) < c.visible
        assert example.context[c.visible : c.visible + TAIL] == c.tail


def test_causal_canvases_show_everything(drawn):
    assert all(c.shown == c.target and NULL not in c.target for *_, c in canvases(drawn) if c.causal)


@pytest.mark.parametrize(("share", "low", "high"), [(0, 0, 0), (0.3, 0.2, 0.4), (1, 1, 1)])
def test_causal_canvases_have_their_share(tokenizer, share, low, high):
    made = batch(tokenizer, mix=examples.Mix(causal=share), contexts=16)
    assert low <= float(made["causal"].float().mean()) <= high


def test_hidden_slots_and_their_complement_cover_the_target_once():
    rng = random.Random(0)
    found = [examples.hide(9, True, rng) for _ in range(400)]
    pairs = [pair for pair in found if len(pair) == 2]
    assert len(pairs) > 50
    assert all(one != other for pair in pairs for one, other in zip(*pair, strict=True))
    assert all(len(pair) == 1 for pair in (examples.hide(9, False, rng) for _ in range(400)))


# ---- batches and packs


def test_a_batch_has_one_shape_and_labels_at_the_predicting_row(tokenizer):
    made = batch(tokenizer, mix=train.FULL)
    rows = made["ids"].shape[2]
    assert made["context"].shape == (2, batches.ROWS)
    assert made["ids"].shape == (2, batches.CANVASES, rows)
    assert rows - TAIL - HEAD in examples.BUCKETS
    where = made["labels"] >= 0
    assert not where[..., : TAIL - 1].any()
    assert made["keys"][where].all()
    shown = made["ids"].roll(-1, 2)
    read = made["causal"][..., None] & where
    assert torch.equal(shown[read], made["labels"][read])
    assert (shown[where & ~read] != made["labels"][where & ~read]).all()
    again = batch(tokenizer, mix=train.FULL)
    assert all(torch.equal(made[name], again[name]) for name in made)


def test_workers_prepare_the_same_batches(tokenizer):
    source = batches.Batches(TEXTS, tokenizer, [0], (MASK, NULL), SIDES, 1, examples.PLAIN, "w")
    here, there = batches.stream(source, 5, 0), batches.stream(source, 5, 2)
    for _ in range(3):
        one, other = next(here), next(there)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_packs_give_the_texts_back(corpus, tokenizer, tmp_path):
    pack.write(corpus, tokenizer, tmp_path, limit=0)
    assert len(list(tmp_path.glob("shard-*.pack"))) > 1
    for split in pack.SPLITS:
        assert list(batches.texts(tmp_path, split, tokenizer)) == list(batches.texts(corpus, split, tokenizer))
    (tmp_path / "shard-000.pack").unlink()
    with pytest.raises(AssertionError, match="lacks packs"):
        batches.texts(tmp_path, "shard", tokenizer)


# ---- the network


@pytest.fixture(scope="module")
def biased(model, tmp_path_factory):
    """The same model with biases, as Qwen's."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("biased") / "model"))
    sizes = Config.read(TINY).shape("qkv")[:1]
    biases = {f"layers.{number}.qkv_bias": torch.randn(sizes) * 0.5 for number in range(TINY["num_layers"])}
    save_file({**load_file(folder / "base.safetensors"), **biases}, folder / "base.safetensors")
    weights.write_manifest(folder, {"name": "biased"})
    return folder


@pytest.mark.parametrize("device", DEVICES)
@few(("trains", "made_of", "first"), [("canvas", "model", 0), ("canvas", "biased", 1), ("all", "model", 0)], 0)
def test_logits_are_the_runtimes(request, tokenizer, tmp_path, trains, made_of, first, device):
    """bfloat16 training forward against the int8 runtime, both paths, the adapter or the whole model exported."""
    model, full = request.getfixturevalue(made_of), trains == "all"
    made = network(model, trains, first=first, device=device)
    generator = torch.Generator().manual_seed(1)
    for name, p in made.trained.items():
        noise = torch.randn(p.shape, generator=generator).to(device)
        p.data += noise * (0.02 if name.endswith(".b") or full else 0.01)
    folder = exported(made, model, tmp_path)
    if full:  # both sides from the exported weights: what rounding them to 4 bits costs is not asked here
        made = network(folder, "all", device=device)
        train.begin(folder, made)
    runtime = models.load(str(folder))
    ids = tokenizer.encode("def add(left, right):\n    return left + right\n")[:12]
    canvas = [*ids[-2:], MASK, MASK, 5]
    kv = runtime.cache().lease([])
    order = np.tri(len(ids), dtype=np.bool_)
    expected = {"causal": tensor(runtime.forward([Run(kv, ids, range(len(ids)), order)])[0])}
    kv.truncate(0)
    runtime.prefill(ids[:-2], kv)
    positions = range(len(ids) - 2, len(ids) + 3)
    expected["denoise"] = tensor(runtime.denoise([Run(kv, canvas, positions, wanted=range(1, 5))]))
    with torch.no_grad():
        hidden, held = made.context(torch.tensor([ids], device=device))
        start, keys = (
            torch.tensor([[len(ids) - 2]], device=device),
            torch.ones(1, 1, 5, dtype=torch.bool, device=device),
        )
        rows = made.canvas(torch.tensor([[canvas]], device=device), start, keys, ~keys[..., 0], held)
        found = {"causal": hidden[0] @ made.table()[: TINY["vocab_size"]].T, "denoise": rows[0, 0, :4] @ made.table().T}
        # Left to right, the canvas rows of a full model are the context rows.
        ordered = made.canvas(torch.tensor([[ids[-2:]]], device=device), start, keys[..., :2], keys[..., 0], held)
    if full:
        assert torch.allclose(ordered[0, 0].float(), hidden[0, -2:].float(), atol=0.1)
    for name, logits in expected.items():
        error = (found[name].float().cpu() - logits).norm() / logits.norm()
        assert error < 0.05, name


def exported(made, model, tmp_path):
    """A model folder from a network's parameters, through training/export.py."""
    folder = Path(shutil.copytree(model, tmp_path / "exported"))
    save_file(
        {f"p.{n}": p.detach().cpu().contiguous() for n, p in made.trained.items()}, tmp_path / "state.safetensors"
    )
    command = [sys.executable, ROOT / "training" / "export.py", EXPORTS[made.trains]]
    subprocess.run([*command, "--checkpoint", tmp_path / "state.safetensors", "--out", folder], check=True)
    return folder


@few("trains", ["canvas", "context", "all"], 0)
def test_exports_round_to_their_form(model, tmp_path, trains):
    full = trains == "all"
    made = network(model, trains)
    folder = exported(made, model, tmp_path)
    written = folder / ("context.safetensors" if trains == "context" else "adapter.safetensors")
    stored = dict(ByName(weights.Stored(written)))
    if full:
        assert set(stored) == {"special"}
        stored |= dict(ByName(weights.Stored(folder / "base.safetensors")))
        assert "layers.0.qkv.q4" in load_file(folder / "base.safetensors")
    else:
        assert load_file(written)["layers.0.qkv.a.q8"].dtype == torch.int8
        assert (folder / "base.safetensors").read_bytes() == (model / "base.safetensors").read_bytes()
    assert set(stored) == set(made.trained)
    for name, p in made.trained.items():
        coarse = full and p.ndim == 2 and name not in ("embed", "special")
        assert (stored[name] - p.detach()).norm() <= (0.12 if coarse else 0.01) * p.detach().norm(), name
    weights.verify(folder)


def test_every_layer_is_trained_with_every_weight(model, corpus, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(model, corpus, tmp_path / "run", "--trains", "all", "--first", 1)
    assert "--first is for an update" in capsys.readouterr().err


@pytest.mark.parametrize("device", DEVICES)
@few(("trains", "first"), [("canvas", 0), ("canvas", 1), ("all", 0)], 0)
def test_losses_fall_on_one_batch(model, tokenizer, trains, first, device):
    full = trains == "all"
    made = network(model, trains, first=first, device=device)
    mix = train.FULL if full else examples.PLAIN
    data = {n: t.to(device) for n, t in batch(tokenizer, mix=mix, contexts=1).items()}
    optimizer = torch.optim.AdamW(made.trained.values(), lr=1e-2, fused=True)
    values = []
    for _ in range(20):
        found = net.losses(made, data, NULL)
        value = net.objective(found, batches.CANVASES)
        values.append((float(value.detach()), float(found.causal.detach())))
        (value + found.causal).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert values[-1][0] < values[0][0] - 0.5
    assert (values[-1][1] < values[0][1] - 0.5) if full else values[0][1] == 0


def test_the_nulls_of_a_canvas_weigh_as_one_token():
    ce = torch.tensor([1.0, 3.0, 4.0, 6.0, 2.0])
    null = torch.tensor([False, False, True, True, False])
    one = net.Losses(ce[:4], null[:4], torch.zeros(4, dtype=torch.int64), torch.zeros(()))
    assert float(net.objective(one, 1)) == pytest.approx((1 + 3 + 5) / 3)  # (sum of tokens + mean of nulls) / (n + 1)
    two = net.Losses(ce, null, torch.tensor([0, 0, 0, 0, 1]), torch.zeros(()))
    assert float(net.objective(two, 2)) == pytest.approx((1 + 3 + 5 + 2) / 4)


def shallower(model, folder):
    """A model of the first layer of two."""
    export.export_layers(argparse.Namespace(model=model, layers="0", out=folder))
    weights.verify(folder)
    return folder


def test_half_of_what_is_learnt_is_what_the_teacher_expects():
    target = net.softened(torch.tensor([1, 0]), torch.tensor([[0.0, 0.0], [0.0, 3.0]]).log_softmax(-1))
    expected = torch.tensor([0.0, 3.0]).softmax(-1) / 2
    assert torch.allclose(target, torch.stack((torch.tensor([0.25, 0.75]), expected + torch.tensor([0.5, 0.0]))))


@pytest.mark.slow
@pytest.mark.parametrize("trains", ["canvas", "all"])
def test_the_teacher_is_the_model_as_it_fills(model, tokenizer, tmp_path, trains):
    """With the update of its canvas path, or with every weight fine-tuned."""
    made = network(model, trains)
    for name, p in made.trained.items():
        p.data += torch.randn(p.shape) * (0.02 if name.endswith(".b") or trains == "all" else 0.01)
    folder = exported(made, model, tmp_path)
    teacher = train.teacher_of(argparse.Namespace(teacher=folder, device="cpu", compile=False))
    runtime = models.load(str(folder))
    data = batch(tokenizer, contexts=1)
    with torch.no_grad():
        found = net.read(teacher, data, ordered=False)
    one = (data["labels"] >= 0).nonzero()[0]
    kv = runtime.cache().lease([])
    runtime.prefill(data["context"][0, : data["start"][0, one[1]]].tolist(), kv)
    rows = data["ids"][0, one[1]][data["keys"][0, one[1]]].tolist()
    start = int(data["start"][0, one[1]])
    expected = tensor(runtime.denoise([Run(kv, rows, range(start, start + len(rows)), wanted=[int(one[2]) + 1])]))
    assert (found.slots[0] - expected[0]).norm() < 0.05 * expected[0].norm()


@pytest.mark.slow
def test_a_taught_model_is_nearer_to_its_teacher_than_one_left_alone(model, corpus, tokenizer, tmp_path):
    deep = exported(network(model, "canvas"), model, tmp_path)
    lively = {name: t * 20 if name == "norm" else t for name, t in load_file(model / "base.safetensors").items()}
    save_file(lively, deep / "base.safetensors")
    weights.write_manifest(deep, {})
    student = shallower(deep, tmp_path / "student")
    teacher = train.teacher_of(argparse.Namespace(teacher=deep, device="cpu", compile=False))
    several = [batch(tokenizer, step=step, contexts=1) for step in range(8)]

    def distance(name, *options):
        """Mean divergence from the teacher, in nats a slot, after a few steps."""
        run(student, corpus, tmp_path / name, "--trains", "all", "--steps", 12, "--rate", 5e-3, *options)
        result = Path(shutil.copytree(student, tmp_path / f"{name}.model"))
        export.export_full(argparse.Namespace(checkpoint=tmp_path / name / "state.safetensors", out=result))
        learnt = train.teacher_of(argparse.Namespace(teacher=result, device="cpu", compile=False))
        found = []
        for data in several:
            with torch.no_grad():
                ours, theirs = (net.read(one, data, ordered=False).slots.log_softmax(-1) for one in (learnt, teacher))
            found.append((theirs.exp() * (theirs - ours)).sum(-1))
        return float(torch.cat(found).mean())

    taught, alone = distance("taught", "--teacher", deep), distance("alone")
    assert taught < 0.9 * alone


@HERE
@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_on_cuda_is_the_step_on_the_cpu(model, tokenizer, compiled):
    gradients = []
    for device in ("cpu", "cuda"):
        made = network(model, "all", device=device, compiled=compiled and device == "cuda")
        data = {n: t.to(device) for n, t in batch(tokenizer, mix=train.FULL).items()}
        found = net.losses(made, data, NULL)
        (net.objective(found, 28) + found.causal).backward()
        gradients.append({name: p.grad.cpu() for name, p in made.trained.items()})
    for name, expected in gradients[0].items():
        assert (gradients[1][name] - expected).norm() < 0.05 * expected.norm() + 1e-6, name


@pytest.mark.slow
def test_compiled_layers_are_built_once(model, tokenizer):
    """One graph a shape and grad mode, whatever the number of layers (traced only: nothing is generated)."""
    made = network(model, "all")
    counted = CompileCounterWithBackend("aot_eager")
    made.before = torch.compile(net.before, dynamic=False, fullgraph=True, backend=counted)
    data = batch(tokenizer, mix=train.FULL)
    plain = net.losses(network(model, "all"), data, NULL)
    compiled = net.losses(made, data, NULL)
    assert counted.frame_count == 2  # context and canvas
    assert torch.allclose(plain.ce, compiled.ce, atol=0.05)


@pytest.mark.slow
def test_as_many_layers_are_built_as_a_student_and_its_teacher_take(model, tokenizer):
    """Contexts, and canvases of both sizes, with gradients and without, and of the teacher without."""
    torch._dynamo.reset()
    student, teacher = network(model, "all"), network(model, "canvas")
    counted = CompileCounterWithBackend("eager")
    for one in (student, teacher):
        one.before = torch.compile(net.before, dynamic=False, fullgraph=True, backend=counted)
    sizes = {data["ids"].shape[-1]: data for data in (batch(tokenizer, step=step) for step in range(8))}
    assert len(sizes) == 2
    for data in sizes.values():
        net.losses(student, data, NULL, teacher)
        with torch.no_grad():
            net.losses(student, data, NULL)
    assert counted.frame_count == 9


# ---- gaps read left to right


@pytest.fixture(scope="module")
def chains(tokenizer):
    separator, rng = [tokenizer.special(TINY["separator"])], random.Random(5)
    made = [(text, gaps.chain(text, tokenizer, separator, rng, 160, 96)) for text in TEXTS * 3]
    return [(text, chain) for text, chain in made if chain is not None]


def part(tokenizer, chain, name):
    number = gaps.PARTS.index(name)
    return [t for t, p in zip(chain.ids, chain.parts, strict=True) if p == number]


def test_a_gap_stands_between_its_prefix_and_the_start_of_its_suffix(chains, tokenizer):
    separator = tokenizer.special(TINY["separator"])
    assert len(chains) > 50
    for text, chain in chains:
        *suffix, last = part(tokenizer, chain, "suffix")
        assert last == separator
        before, gap, end, head = (tokenizer.bytes(part(tokenizer, chain, n)) for n in ("prefix", "gap", "end", "head"))
        assert before
        assert before + gap + end + head in text.encode()
        assert len(part(tokenizer, chain, "end")) <= 1
        front = tokenizer.bytes(suffix)[: len(head)]
        assert not head or front in end + head  # the suffix in front begins inside the end, or with it


def test_reading_gaps_lowers_every_part(model, tokenizer):
    made = network(model, "context")
    source = gaps.Gaps(TEXTS, tokenizer, [tokenizer.special(TINY["separator"])], 4, "test")
    optimizer = torch.optim.AdamW(made.trained.values(), lr=1e-2, fused=True)
    found = []
    for _ in range(12):
        ce, parts = gaps.nats(made, source[0])
        found.append([float(ce.detach()[parts == gaps.PARTS.index(name)].mean()) for name in gaps.WEIGHTS])
        gaps.objective(ce, parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(after < before for before, after in zip(found[0], found[-1], strict=True))


def test_every_part_of_a_gap_counts_by_its_mean():
    ce = torch.tensor([1.0, 3.0, 4.0, 6.0])
    parts = torch.tensor([1, 1, 2, 3])
    assert float(gaps.objective(ce, parts)) == pytest.approx(0.5 * 2 + 1.0 * 4 + 0.5 * 6)


@pytest.mark.slow
def test_the_update_of_the_context_is_what_the_runtime_reads_with(model, tokenizer, tmp_path):
    """And both the canvas path and a later training stand on it."""
    made = network(model, "context")
    generator = torch.Generator().manual_seed(2)
    for name, p in made.trained.items():
        p.data += torch.randn(p.shape, generator=generator) * (0.02 if name.endswith(".b") else 0.01)
    folder = exported(made, model, tmp_path)
    ids = tokenizer.encode("def add(left, right):\n    return left + right\n")[:12]
    runtime, bare = models.load(str(folder)), models.load(str(model))
    order = np.tri(len(ids), dtype=np.bool_)
    read, unread = (
        tensor(m.forward([Run(m.cache().lease([]), ids, range(len(ids)), order)])[0]) for m in (runtime, bare)
    )
    with torch.no_grad():
        hidden, _ = made.context(torch.tensor([ids]))
    expected = hidden[0].float() @ made.table().float().T
    assert (read - expected).norm() < 0.05 * expected.norm()
    assert (read - unread).norm() > 0.1 * expected.norm()
    drawn, undrawn = (tensor(m.denoise([Run(m.cache().lease([]), ids, range(len(ids)))])) for m in (runtime, bare))
    assert not torch.allclose(drawn, undrawn, atol=0.1)
    stood = train.stood_on(folder, "canvas")
    assert not torch.equal(stood["layers.0.qkv"], train.stood_on(folder, "context")["layers.0.qkv"])


# ---- runs


@few("trains", ["canvas", "context", "all", "light"], 1)
def test_a_resumed_run_is_the_uninterrupted_one(model, corpus, tmp_path, trains):
    whole, _ = run(model, corpus, tmp_path / "whole", "--steps", 4, "--total", 4, "--trains", trains)
    run(model, corpus, tmp_path / "parts", "--steps", 2, "--total", 4, "--trains", trains)
    parts, log = run(model, corpus, tmp_path / "parts", "--steps", 9, "--total", 4, "--trains", trains)
    assert log[-1]["step"] == 4
    assert set(whole) == set(parts)
    assert any(name.startswith("exp_avg_sq.") for name in whole)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    figures = {
        "context": {"ce_prefix", "ce_gap", "ce_end", "ce_head"},
        "light": {"accepted", "accepted_text", "ce_1", "ce_2", "ce_3"},
    }
    canvas = {"ce_token", "ce_byte", "ce_first", "ce_later", "ce_null"}
    assert set(log[-1]) >= {"step", "positions", "cpu_s", "wall_s"} | figures.get(trains, canvas)


@pytest.mark.parametrize("trains", ["canvas", "light"])
def test_where_memory_runs_out_a_step_is_taken_in_parts(model, corpus, tmp_path, monkeypatch, trains):
    """From then on, and where each part weighs the same, the gradients are those of the whole batch."""
    task = {"canvas": train.Canvases, "light": train.light.Drafting}[trains]
    for module in (net, train.light):
        monkeypatch.setattr(module, "fastest", lambda _: torch.float32)
    stream = train.stream
    monkeypatch.setattr(train, "stream", lambda *options: map(even, stream(*options)))
    monkeypatch.setattr(train.nn.utils, "clip_grad_norm_", lambda *_: torch.zeros(()))
    whole, log = run(model, corpus, tmp_path / "whole", "--steps", 2, "--trains", trains, "--contexts", 4)
    loss = task.loss

    def small(self, data):
        if max(map(len, data.values())) > 2:
            raise torch.OutOfMemoryError("no room")
        return loss(self, data)

    monkeypatch.setattr(task, "loss", small)
    parts, log_of_parts = run(model, corpus, tmp_path / "parts", "--steps", 2, "--trains", trains, "--contexts", 4)
    (trouble,) = (line for line in log_of_parts if line["kind"] == "trouble")
    assert (trouble["step"], trouble["parts"], trouble["reason"]) == (0, 2, "no room")
    assert log_of_parts[-1]["positions"] == log[-1]["positions"]
    means = [name for name in whole if name.startswith("exp_avg.")]  # of the gradients of both steps
    assert means
    assert all(torch.allclose(parts[name], whole[name], rtol=1e-3, atol=1e-8) for name in means)


def even(batch):
    """Of four contexts, the last two ask for what the first two ask for, over each other's text: both halves weigh the
    same. Blocks of a light drafter always do."""
    if "labels" not in batch:
        return batch
    halves = {name: (t[:2], t[:2].flip(0) if name == "context" else t[:2]) for name, t in batch.items()}
    return {name: torch.cat(half) for name, half in halves.items()}


def test_where_compiling_fails_a_run_goes_on_without(model, corpus, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler here")

    plain, _ = run(model, corpus, tmp_path / "plain", "--steps", 2)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=broken))
    with torch.compiler.set_stance("default"):  # and back to it after the test
        compiled, log = run(model, corpus, tmp_path / "compiled", "--steps", 2, "--compile")
    (trouble,) = (line for line in log if line["kind"] == "trouble")
    assert "no compiler here" in trouble["reason"]
    assert all(torch.equal(plain[name], compiled[name]) for name in plain)


def test_a_batch_without_a_finite_loss_does_not_end_a_run(model, corpus, tmp_path, monkeypatch):
    loss, scales = train.Canvases.loss, iter((1.0, torch.nan, 1.0))

    def scaled(self, data):
        value, count = loss(self, data)
        return value * next(scales), count

    monkeypatch.setattr(train.Canvases, "loss", scaled)
    state, log = run(model, corpus, tmp_path, "--steps", 3)
    assert all(t.isfinite().all() for t in state.values())
    assert log[-1]["ce_token"] < log[0]["ce_token"]
    (trouble,) = (line for line in log if line["kind"] == "trouble")
    assert (trouble["step"], trouble["in_a_row"]) == (1, 1)


def test_a_run_whose_gradients_stay_without_a_number_is_ended(model, corpus, tmp_path, monkeypatch):
    loss, scales = train.Canvases.loss, iter((torch.nan, 1.0, *[torch.inf] * 3))

    def scaled(self, data):
        value, count = loss(self, data)
        return value * next(scales), count

    monkeypatch.setattr(train.Canvases, "loss", scaled)
    monkeypatch.setattr(train, "LOST", 3)
    with pytest.raises(SystemExit, match="3 steps in a row"):
        run(model, corpus, tmp_path, "--steps", 9)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").open()]
    assert [line["in_a_row"] for line in lines if line["kind"] == "trouble"] == [1, 1, 2, 3]


def test_checkpoints_of_the_first_version_resume(model, corpus, tmp_path):
    """They lack what has been spent."""
    state, _ = run(model, corpus, tmp_path, "--steps", 2)
    save_file(state, tmp_path / "state.safetensors", {"step": "2", "positions": "57"})
    _, log = run(model, corpus, tmp_path, "--steps", 1)
    assert log[-1]["step"] == 3
    assert log[-1]["positions"] > 57


def test_an_export_has_a_canary_of_its_own(model, tmp_path):
    made = network(model, "canvas")
    for p in made.trained.values():
        p.data += torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    folder = exported(made, model, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    canary.check(models.load(str(folder)), folder)
    with pytest.raises(ModelError, match="nats apart"):
        canary.check(models.load(str(model)), folder)
    export.export_canary(argparse.Namespace(out=folder))
    assert json.loads((folder / "manifest.json").read_text()) == manifest


def test_a_new_run_begins_from_the_shipped_adapter(model, corpus, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    run(tmp_path / "model", corpus, tmp_path / "first", "--steps", 2)
    export.export_adapter(
        argparse.Namespace(checkpoint=tmp_path / "first" / "state.safetensors", out=tmp_path / "model")
    )
    shipped = ByName(weights.Stored(tmp_path / "model" / "adapter.safetensors"))
    config = Config.read(json.loads((model / "config.json").read_text()))
    for trains in ("canvas", "all"):
        fresh = net.Net(config, ByName(weights.Stored(model / "base.safetensors")), trains)
        train.begin(tmp_path / "model", fresh)
        assert torch.equal(fresh.trained["special"], shipped["special"])
        assert trains == "all" or all(torch.equal(fresh.trained[name], shipped[name]) for name in shipped)


def test_a_new_run_begins_from_an_update_that_is_named(model, corpus, tmp_path):
    start = Path(shutil.copytree(model, tmp_path / "start"))
    trained, _ = run(model, corpus, tmp_path / "first", "--steps", 1)
    export.export_adapter(argparse.Namespace(checkpoint=tmp_path / "first" / "state.safetensors", out=start))
    update = start / "adapter.safetensors"
    _, log = run(model, corpus, tmp_path / "second", "--steps", 1, "--begin", update)
    _, other = run(model, corpus, tmp_path / "third", "--steps", 1)
    assert log[0]["ce_token"] != other[0]["ce_token"]
    special = ByName(weights.Stored(update))["special"]
    assert torch.allclose(special, trained["p.special"], atol=1e-3)


def test_the_rate_is_keyed_on_the_whole_run():
    assert train.rate(0, 0, 100, 1.0) == pytest.approx(1 / 40)
    assert train.rate(500, 50, 100, 1.0) == 1.0
    assert train.rate(500, 90, 100, 1.0) == pytest.approx(0.5)
    assert train.rate(500, 500, 100, 1.0) == pytest.approx(0.02)
    assert train.rate(500, 70, 100, 1.0, decay=0.6) == pytest.approx(0.5)


# ---- gpu/


def script(checkout, name, *arguments, **environment):
    command = [checkout / "gpu" / name, *map(str, arguments)]
    bare = {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "tests" / "support" / "bare"), "OMP_NUM_THREADS": "1"}
    env = os.environ | bare | {k: str(v) for k, v in environment.items()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


STEPS = ["--steps", 2, "--total", 2, "--contexts", 1, "--held", 1, "--workers", 0, "--no-compile"]


@pytest.fixture
def checkout(tmp_path):
    """As much of one as gpu/ needs; the weights are the test's."""
    folder = tmp_path / "checkout"
    for name in ("gpu", "training", "caesura", "kernels", "typings"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    shutil.copytree(ROOT / "engine", folder / "engine", ignore=shutil.ignore_patterns("embedded"))
    (folder / "server").mkdir()
    (folder / "engine" / "embedded").mkdir()
    return folder


@pytest.mark.slow
def test_a_canvas_for_coder_is_staged_trained_taken_and_joined(model, corpus, checkout, tmp_path):
    """The road of gpu/README.md on a tiny model, both machines in two folders."""
    work, out, joined = tmp_path / "work", tmp_path / "out", tmp_path / "joined"
    coder = Path(shutil.copytree(model, checkout / "models" / "coder" / "caesura_coder"))
    (coder / "adapter.safetensors").unlink()
    (coder / "config.json").write_text(json.dumps(TINY | {"name": "coder"}))
    tensors = load_file(coder / "base.safetensors")
    for number in (1, 2):
        part = {name: t for name, t in tensors.items() if name.startswith("layers.1.") == (number == 1)}
        save_file(part, coder / f"base-{number}.safetensors")
    (coder / "base.safetensors").unlink()
    weights.write_manifest(coder, {"name": "coder"})
    before = {path.name: path.read_bytes() for path in coder.glob("base-*")}

    script(checkout, "stage", corpus, NO_WHEELS=1)
    assert not list(coder.glob("base*"))
    assert "done" in script(checkout, "unstage", CAESURA_WORK=work)
    script(checkout, "idle", CAESURA_WORK=work, DEVICE="cpu", WORKERS=0)
    assert (work / "queue" / "warm.done").exists(), (work / "idle" / "warm.log").read_text()
    short = {"LIGHT_MINUTES": 0.02, "WORKERS": 0}
    assert "done;" in script(checkout, "train", *STEPS, CAESURA_WORK=work, DEVICE="cpu", WAIT=90, **short)
    out.mkdir()
    assert "load 1 of 1" in script(checkout, "take", 1, CAESURA_WORK=work, OUT=out)
    assert sum(path.stat().st_size for path in out.iterdir()) < 8 << 20, "what was not trained does not travel back"
    script(checkout, "stage", "--undo")
    script(checkout, "join", joined, out)
    weights.verify(joined)
    assert {path.name: path.read_bytes() for path in joined.glob("base-*")} == before
    assert {"log.jsonl", "light.jsonl"} <= {path.name for path in joined.iterdir()}
    made = models.load(str(joined))
    assert made.spec.noise is not None, "it has a canvas"
    assert made.drafter is not None, "it has a light drafter"


@pytest.mark.slow
def test_small_is_staged_trained_taken_and_joined(model, corpus, checkout, tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    embedded = checkout / "engine" / "embedded"
    small = Path(shutil.copytree(model, checkout / "models" / "small" / "caesura_small"))
    (small / "base.safetensors").rename(embedded / "base.safetensors")
    (small / "base.safetensors").symlink_to("../../../engine/embedded/base.safetensors")

    script(checkout, "stage", corpus, "small", NO_WHEELS=1)
    assert not (embedded / "base.safetensors").exists()
    assert "done" in script(checkout, "unstage", CAESURA_WORK=work)
    assert "done;" in script(checkout, "train", *STEPS, CAESURA_WORK=work, DEVICE="cpu", WAIT=90)
    assert "done;" in script(checkout, "train", CAESURA_WORK=work, DEVICE="cpu")
    out.mkdir()
    assert "load 1 of 1" in script(checkout, "take", 1, CAESURA_WORK=work, OUT=out)
    (out / "queue.log").touch()
    script(checkout, "join", tmp_path / "joined", out)
    assert not (tmp_path / "joined" / "queue.log").exists()
    script(checkout, "stage", "--undo")
    weights.verify(tmp_path / "joined")
    assert (embedded / "base.safetensors").read_bytes() == (model / "base.safetensors").read_bytes()
    trained = ByName(weights.Stored(tmp_path / "joined" / "base.safetensors"))
    assert not torch.equal(trained["embed"], ByName(weights.Stored(model / "base.safetensors"))["embed"])

    assert "done;" in script(checkout, "shallow", *STEPS, CAESURA_WORK=work, DEVICE="cpu", WAIT=90, LAYERS="1")
    back = tmp_path / "back"
    back.mkdir()
    script(checkout, "take", 1, CAESURA_WORK=work / "shallow", OUT=back)
    script(checkout, "join", tmp_path / "shallow", back)
    weights.verify(tmp_path / "shallow")
    kept, whole = (ByName(weights.Stored(tmp_path / n / "base.safetensors")) for n in ("shallow", "joined"))
    assert kept.keys() == {name for name in whole if not name.startswith("layers.1.")}
    assert (kept["layers.0.out"] - whole["layers.1.out"]).norm() < 0.5 * whole["layers.1.out"].norm()
    assert json.loads((tmp_path / "shallow" / "config.json").read_text())["num_layers"] == 1
    models.load(str(tmp_path / "shallow"))


def test_the_tests_tiny_model_is_made_by_code(tmp_path: Path) -> None:
    """It is kept so that the suite has it without PyTorch."""
    made, kept = tiny.make(tmp_path / "tiny"), ROOT / "tests" / "data" / "tiny"
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {
        path.name: path.read_bytes() for path in kept.iterdir()
    }
