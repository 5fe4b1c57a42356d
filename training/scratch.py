"""A model of any shape that has learnt nothing, in the stored form: the tests' tiny model, and the scratch baseline of
the bake-off.

    python training/scratch.py --like FOLDER --out FOLDER     8M parameters with the tokenizer of another model
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from caesura.engine.models.llama.config import MATRICES, SPECIALS, Config
from caesura.engine.weights import stored
from caesura.engine.weights.tensors import dense, quantised

SMALL = {"num_layers": 8, "intermediate_size": 704, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 4}


def random_tensors(shape: Config, seed: int = 0) -> dict[str, Tensor]:
    """Stored tensors (see weights.py) drawn from N(0, 0.02)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(n: int, k: int) -> Tensor:
        return torch.randn(n, k, generator=generator) * 0.02

    out: dict[str, Tensor] = {"norm": torch.ones(shape.hidden_size)}
    out["embed.q8"], out["embed.scale"] = quantised("q8", normal(shape.vocab_size, shape.hidden_size))
    for i in range(shape.num_layers):
        for matrix in MATRICES:
            stem = f"layers.{i}.{matrix}"
            out[f"{stem}.q4"], out[f"{stem}.scale"], out[f"{stem}.min"] = quantised("q4", normal(*shape.shape(matrix)))
        out[f"layers.{i}.attn_norm"] = torch.ones(shape.hidden_size)
        out[f"layers.{i}.mlp_norm"] = torch.ones(shape.hidden_size)
    return out


def write(folder: Path, config: dict[str, Any], tokenizer: Path, seed: int = 0) -> None:
    """A whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    tensors = random_tensors(Config.read(config), seed)
    save_file(tensors, folder / "base.safetensors")
    embed = dense("q8", (tensors["embed.q8"], tensors["embed.scale"]))
    save_file({"special": embed.mean(0, keepdim=True).repeat(len(SPECIALS), 1)}, folder / "adapter.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    stored.write_manifest(folder, {"name": "scratch"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", type=Path, required=True, help="folder whose tokenizer is used")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = json.loads((arguments.like / "config.json").read_text()) | SMALL
    write(arguments.out, config, arguments.like / "tokenizer.json")


if __name__ == "__main__":
    main()
