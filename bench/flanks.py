"""Steps of a model whose rows all see each other, with frozen flanks and without, and Transformers' forward.

    python bench/flanks.py [--text 512 2048] [--holes 16 64] [--rounds 3] [--json] [--out bench/results/flanks.json]

Random weights of Open-dCoder's shape (Qwen2 0.5B), two threads for both sides. A step asks for the logits of the slots
of one hole in the middle of a text. `all rows` is the step without flanks and the forward that refreshes them; `near`
computes the rows near the hole. Transformers has the same weights and all rows visible, in bfloat16, and makes logits
of the slots only. The least of the rounds counts. Then, for a text of each length, the time from a job to its first
locked token: every length of the hole competes, as many as a step has rows for.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from latency import HERE, Report, conditions, save, table
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(HERE.parent))
from caesura import wire
from caesura.engine import models
from caesura.engine.methods._flanks import Flanks
from caesura.engine.model import Model, Run
from caesura.engine.models.full import RADIUS
from caesura.engine.scheduler import Scheduler
from tests.support.checkpoints.masked import MASK
from tests.support.checkpoints.tiny import CODE, infill, train_tokenizer

CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "mask_token_id": 151_665,
}
THREADS = 2


def folder(place: Path) -> Path:
    """Random weights under the names of the hub, in bfloat16."""
    with torch.device("meta"):
        shapes = Qwen2ForCausalLM(Qwen2Config(**CONFIG)).state_dict()
    torch.manual_seed(0)
    tensors = {
        name: torch.ones(like.shape) if "norm" in name else 0.02 * torch.randn(like.shape)
        for name, like in shapes.items()
        if name != "lm_head.weight"
    }
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(CONFIG))
    train_tokenizer(place / "tokenizer.json", more=[MASK])
    (place / "tokenizer_config.json").write_text(json.dumps({"mask_token": MASK}))
    return place


def least(rounds: int, work: Callable[[], object]) -> float:
    """Milliseconds."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    return round(min(found), 1)


def steps(model: Model, peer: Any, text: int, hole: int, rounds: int) -> Report:
    """A hole in the middle of a text. `text` counts the tokens around it."""
    before, rows = text // 2, text + hole
    ids = torch.randint(5, 400, (rows,), generator=torch.Generator().manual_seed(1)).tolist()
    slots = list(range(before, before + hole))
    for row in slots:
        ids[row] = CONFIG["mask_token_id"]
    flanks = Flanks(RADIUS, model.spec.shift)
    vicinity = flanks.vicinity(Run(model.cache().lease([]), ids, range(rows), wanted=slots), slots)
    whole = Run(model.cache().lease([]), ids, range(rows), wanted=slots)
    flanks.refresh(model, vicinity)
    told = {"attention_mask": torch.zeros(1, 1, rows, rows, dtype=peer.dtype), "use_cache": False}
    asked = torch.tensor([row - model.spec.shift for row in slots])

    @torch.inference_mode()
    def theirs() -> None:
        peer(torch.tensor([ids]), logits_to_keep=asked, **told)

    return {
        "text": text,
        "hole": hole,
        "near rows": len(vicinity.near),
        "ms": {
            "near": least(3 * rounds, lambda: model.denoise([flanks.narrowed(vicinity)])),
            "all rows": least(rounds, lambda: model.denoise([whole])),
            "transformers": least(rounds, theirs),
        },
    }


def first_lock(place: Path, text: int, radius: int) -> Report:
    """A job in a text of so many tokens, from its arrival to its first locked token."""
    model = models.load(str(place), "cpu", text, radius=radius)
    job = infill("j", CODE + "    total = ", "\n" + CODE, wire.Hole(16, "line"), deadline_ms=600_000.0)
    scheduler, lengths, denoise = Scheduler(model), list[int](), model.denoise

    def counted(runs: Any) -> Any:
        lengths.append(len(runs))
        return denoise(runs)

    model.denoise = counted  # type: ignore[method-assign]
    began = time.perf_counter()
    scheduler.take(b"p", job, began)
    while not any(fill.locked for fill in fills(scheduler.step(time.perf_counter))):
        pass
    return {"text": text, "radius": radius, "lengths": max(lengths), "s": round(time.perf_counter() - began, 2)}


def fills(events: Any) -> Iterator[wire.Fill]:
    for _, event in events:
        assert isinstance(event, wire.Locked | wire.Done), event
        yield from event.holes


def measure(place: Path, texts: list[int], holes: list[int], rounds: int) -> Report:
    report: Report = {"bench": "flanks", **conditions("random weights"), "threads": THREADS}
    model = models.load(str(place), "cpu", max(texts))
    peer = Qwen2ForCausalLM.from_pretrained(place, dtype=torch.bfloat16).eval()
    torch.set_num_threads(THREADS)
    report["steps"] = [steps(model, peer, text, hole, rounds) for text in texts for hole in holes]
    del model, peer
    report["first lock"] = [first_lock(place, text, radius) for text in texts for radius in (RADIUS, 0)]
    return report


def show(report: Report) -> str:
    names = ["near", "all rows", "transformers"]
    rows = [[f"{r['hole']} in {r['text']}", r["near rows"], *(r["ms"][n] for n in names)] for r in report["steps"]]
    locks = [[r["text"], r["radius"], r["lengths"], r["s"]] for r in report["first lock"]]
    heads = ["hole in text, ms a step", "near rows", *names], ["text", "radius", "lengths", "s to first lock"]
    return "\n\n".join((table(heads[0], rows), table(heads[1], locks)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--holes", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "flanks.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        report = measure(folder(Path(place)), options.text, options.holes, options.rounds)
    save(report, options.out)
    print(json.dumps(report) if options.json else show(report))


if __name__ == "__main__":
    main()
