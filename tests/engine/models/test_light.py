"""The light drafter at tiny size: it learns, its export drafts in the runtime what it drafted in training, and what it
adds to the KV cache is reused as the rest."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, linear

from caesura.engine.methods.verify import search
from caesura.engine.model import Run
from caesura.engine.models import load
from caesura.engine.models.llama.config import Config
from caesura.engine.models.llama.light import LightLlama, copied, taps
from caesura.engine.scheduler import Scheduler
from caesura.engine.weights import stored
from caesura.engine.weights.tensors import ByName

from ...support.checkpoints.tiny import CODE, done, infill, run

sys.path.insert(0, str(Path(__file__).parents[3] / "training"))

import export
import light
import train


@pytest.fixture(scope="module")
def blocks(tiny):
    return light.Blocks([CODE], tiny.tokenizer, list(tiny.spec.separator), 2, "test")


def drafter(folder, blocks):
    torch.manual_seed(0)
    config = Config.read(json.loads((folder / "config.json").read_text()))
    return light.LightNet(config, ByName(stored.Stored(folder / "base.safetensors")), blocks[0])


@pytest.fixture(scope="module")
def lively(tiny_folder, tmp_path_factory):
    """The tiny model, surer of what it says."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path_factory.mktemp("lively") / "model"))
    tensors = load_file(folder / "base.safetensors")
    save_file({name: t * 20 if name == "norm" else t for name, t in tensors.items()}, folder / "base.safetensors")
    stored.write_manifest(folder, {"name": "lively"})
    return folder


@pytest.fixture(scope="module")
def made(lively, blocks, tmp_path_factory):
    """A drafter as if trained, and its model folder, through training/export.py; it stands on what was exported."""
    net = drafter(lively, blocks)
    generator = torch.Generator().manual_seed(1)
    for name, p in net.trained.items():
        if name != "scale":
            p.data += torch.randn(p.shape, generator=generator) * (0.2 if name == "place" else 0.02)
    work = tmp_path_factory.mktemp("made")
    folder = Path(shutil.copytree(lively, work / "model"))
    save_file({f"p.{name}": p.detach().contiguous() for name, p in net.trained.items()}, work / "state.safetensors")
    export.export_light(argparse.Namespace(checkpoint=work / "state.safetensors", out=folder))
    train.begin(folder, net)
    return net, folder


def test_it_reads_the_base_all_over_its_depth():
    assert (taps(24), copied(24)) == ([3, 8, 13, 18, 22], [15, 19, 23])
    assert all(0 <= tap < max(1, layers - 1) for layers in range(1, 40) for tap in taps(layers))
    assert all(0 <= layer < layers for layers in range(2, 40) for layer in copied(layers))


def test_an_export_is_small_and_loads(made):
    _, folder = made
    stored.verify(folder)
    assert load_file(folder / "light.safetensors")["layers.2.gate_up.k4"].dtype == torch.uint8
    model = load(str(folder))
    assert isinstance(model, LightLlama)
    assert model.drafter is model


@torch.no_grad()
def test_it_drafts_as_in_training(made, blocks):
    """Behind a row of a token tree: from the states of the context and of that row's ancestors alone."""
    net, folder = made
    model = load(str(folder))
    ids, anchors = blocks[0]["context"][:1], blocks[0]["anchors"][:1, 40:44]
    for at, rows in zip(anchors[0].tolist(), net.block(net.read(ids), ids, anchors)[0], strict=True):
        *context, first, second, token = ids[0, : at + 1].tolist()
        kv = model.cache().lease([])
        model.prefill(context, kv)
        tree = [7, first, 9, second]  # 7 and 9 are of other hypotheses
        order = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]], np.bool_)
        model.forward([Run(kv, tree, [at - 2, at - 2, at - 1, at - 1], order)])
        asked = [Run(kv, [token], [at], np.array([[False, True, False, True, True]]))]
        assert (model.block(asked)[0] - rows).norm() < 0.05 * rows.norm()
        (chosen,), (chances,) = map(torch.from_numpy, model.draft(asked))
        chosen = chosen.long()
        judged = net.corrected(rows, torch.tensor([token, *chosen[:-1]]))
        expected = linear(judged, net.base["embed"]).float().softmax(-1)
        assert torch.allclose(expected.gather(1, chosen[:, None])[:, 0], chances, rtol=0.2, atol=0.01)
        assert (expected.max(-1).values < 1.25 * chances + 0.01).all(), "the best token, but for rounding"


def test_several_runs_are_drafted_as_each_alone(made, tiny):
    _, folder = made
    model = load(str(folder))
    runs = []
    for text in ("def left(right):\n    return", "value = left"):
        kv = model.cache().lease([])
        ids = tiny.tokenizer.encode(text)
        model.prefill(ids[:-2], kv)
        model.forward([Run(kv, ids[-2:-1], [len(ids) - 2], np.ones((1, 1), np.bool_))])
        runs.append(Run(kv, ids[-1:], [len(ids) - 1], np.ones((1, 2), np.bool_)))
    together = model.draft(runs)
    for number, one in enumerate(runs):
        assert all(np.array_equal(a[number], b[0]) for a, b in zip(together, model.draft([one]), strict=True))


def test_a_draft_is_the_same_where_the_context_is_reused(made, monkeypatch):
    """What the drafter keeps of a context is cut and taken up again with the rest of it."""
    monkeypatch.setattr(search, "LIKELY", 0.0)  # every guess is scored, so another one would show
    first, second = infill("a", CODE[:900], CODE[900:1000]), infill("b", CODE[:700], CODE[900:1000])
    warm = Scheduler(load(str(made[1])))
    found = [done(run(warm, [job])[job.job]) for job in (first, second)]
    assert warm.cache.reused > 0
    alone = done(run(Scheduler(load(str(made[1]))), [second])["b"])
    assert (found[1].holes, found[1].tokens, found[1].steps) == (alone.holes, alone.tokens, alone.steps)
    assert found[1].tokens.canvas > 0


def test_the_gradient_is_that_of_the_cross_entropy():
    generator = torch.Generator().manual_seed(3)
    rows, others = (torch.randn(light.CHUNK + 5, 16, generator=generator) for _ in range(2))
    head, tokens = torch.randn(40, 16, generator=generator), torch.arange(light.CHUNK + 5) % 40
    weight = torch.rand(len(rows), generator=generator)
    target = linear(others, head).softmax(-1) * 0.5
    target = target.scatter_add(1, tokens[:, None], torch.full((len(rows), 1), 0.5))
    found = []
    for loss in (
        lambda x: light.Distilled.apply(x, head, tokens, others, weight),
        lambda x: cross_entropy(linear(x, head), target, reduction="none") * weight,
    ):
        x = rows.clone().requires_grad_()
        values = loss(x)
        values.sum().backward()
        found.append((values.detach(), x.grad))
    for ours, plain in zip(*found, strict=True):
        assert torch.allclose(ours, plain, atol=1e-4)


def test_it_learns_what_the_base_would_say(lively, blocks):
    task = light.Drafting(drafter(lively, blocks), blocks, [blocks[0]])
    optimizer = torch.optim.AdamW(task.net.trained.values(), lr=5e-3, fused=True)
    before = task.evaluate()
    for step in range(40):
        task.loss(blocks[step % 4])[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    after = task.evaluate()
    assert after["ce_3"] < before["ce_3"] - 0.5
    assert after["accepted_text"] > before["accepted_text"] + 0.2
