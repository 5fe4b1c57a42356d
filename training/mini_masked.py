"""Train a mini of absorbing noise, one for each visibility, on one CPU core; write it as its family is published.

    python training/mini_masked.py --family dream --out FOLDER --minutes 8

Files and noise are drawn from (seed, step). Use OMP_NUM_THREADS=1.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from caesura.engine.canvas.prompts import RULE

from mini_files import ROWS, SKIPPED, Batch, Files, Specials, batch  # isort: skip  (beside this script)
from records import KEYS, WORDS  # isort: skip

BATCH = 2048  # rows of all files of a step together
RATE = 1.5e-3
SPECIALS = {"eos_token": "<|endoftext|>", "bos_token": "<|beginoftext|>", "mask_token": "<|mask|>"}
EXPAND = "<|expand|>"
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.09,  # 1 over the root of the hidden size
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Family:
    """The trunk in Transformers' words, and how it is trained. Rows see each other, or with a `block` all rows up to
    the end of their own block of that many."""

    trunk: str
    shift: int
    said: dict[str, Any]  # what config.json says besides
    opens: bool = True  # a text begins with a token of its own
    block: int | None = None
    expand: bool = False


DREAM = {"model_type": "Dream", "architectures": ["DreamModel"]}
SDAR = {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "block_size": 8}
FAMILIES = {
    "dream": Family("qwen2", 1, DREAM),
    "dreamon": Family("qwen2", 1, DREAM, expand=True),
    "sdar": Family("qwen3", 0, SDAR, opens=False, block=8),
}


def tokenizer(expand: bool) -> tokenizers.Tokenizer:
    """Byte-level BPE with GPT-2's pre-tokens, of which each word and each mark of the files is one token."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=[*SPECIALS.values(), *[EXPAND] * expand],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = {*WORDS.split(), *KEYS.split()}
    inner.train_from_iterator([f'{{"{word}": "{word} {word}", "{word}"}}\n{RULE}' for word in sorted(words)], trainer)
    return inner


def seen(rows: int, lengths: Tensor) -> Tensor:
    """[files, 1, rows, rows]: all rows of a file see each other."""
    return among(torch.ones(rows, rows, dtype=torch.bool), torch.arange(rows) < lengths[:, None])


def seen_by_blocks(rows: int, block: int, lengths: Tensor) -> Tensor:
    """[files, 1, 2 rows, 2 rows] of a clean file and, behind it, the same with noise: clean rows see clean blocks up to
    their own; a noisy row sees its own noisy block and the clean ones before it (Arriola et al. 2025)."""
    of = torch.arange(rows) // block
    same, before = of[:, None] == of, of[:, None] > of
    upper = torch.cat((same | before, torch.zeros_like(same)), 1)
    return among(torch.cat((upper, torch.cat((before, same), 1))), (torch.arange(rows) < lengths[:, None]).repeat(1, 2))


def among(mask: Tensor, there: Tensor) -> Tensor:
    """The mask [rows, rows] for files [files, rows] whose last rows are not there: nobody else sees those."""
    return (mask & there[:, None, None, :]) | torch.eye(len(mask), dtype=torch.bool)


SHARP = 6  # pairs of a head that turn quickly enough to tell neighbours apart
CODE = 20  # directions in which a row keeps what stands next to it
COPIED = (-1, -3)  # where the same stands before both of two equal texts: the last word, the key of a value


@torch.no_grad()
def aim(net: Any, shift: int) -> None:
    """A start that knows how to copy; all of it is trained further. The heads of the first layer look at rows nearby,
    whatever stands there, and write a code of each into directions of its own. Two of the second look for the place
    that follows the same code as what they predict, and copy from there (induction, Olsson et al. 2022)."""
    embed = net.model.embed_tokens.weight
    first, second = (net.model.layers[layer].self_attn for layer in (0, 1))
    width, half, group = first.head_dim, first.head_dim // 2, first.num_key_value_groups
    sharp = [*range(SHARP), *range(half, half + SHARP)]
    slow = [*range(half - CODE // 2, half), *range(width - CODE // 2, width)]  # pairs that hardly turn in a file
    rates = SIZES["rope_theta"] ** (-torch.arange(SHARP) / half)
    near = (*COPIED, -2 if shift else 1, 2)
    basis = torch.linalg.qr(torch.randn(embed.shape[1], embed.shape[1]))[0].T
    common, own, *codes = basis.split((1, len(basis) - 1 - len(near) * CODE, *[CODE] * len(near)))
    code = {0: own[:CODE], **dict(zip(near, codes, strict=True))}
    embed.copy_(0.5 * common + 0.87 * normalize(embed @ own.T) @ own)
    for layer in net.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)
    for attention, scale in ((first, 2.5), (second, 1.3)) if hasattr(first, "q_norm") else ():
        attention.q_norm.weight.fill_(scale)
        attention.k_norm.weight.fill_(scale)

    def place(part: nn.Linear, head: int, rows: list[int], values: Tensor) -> None:
        block = part.weight[head * width : (head + 1) * width]
        block.zero_()
        block[rows] = values

    for head, to in enumerate(near):
        turned = torch.cat(((rates * to).cos(), (rates * to).sin()))[:, None]
        place(first.q_proj, head, sharp, turned * common)
        first.o_proj.weight[:, head * width :][:, :CODE] = 0.2 * code[to].T
    for head in range(first.config.num_key_value_heads):
        place(first.k_proj, head, sharp[:SHARP], common.expand(SHARP, -1))
        first.v_proj.weight[head * width :][:CODE] = own[:CODE]
        place(second.k_proj, head, slow, 1.5 * code[COPIED[head]])
        place(second.q_proj, head * group, slow, 1.5 * code[COPIED[head] + shift])
        second.v_proj.weight[head * width : (head + 1) * width] = own[:width]
        second.o_proj.weight[:, head * group * width : (head * group + 1) * width] = 0.5 * own[:width].T


class Trainer:
    def __init__(self, family: Family, seed: int) -> None:
        torch.manual_seed(seed)
        self.family, self.seed, self.tokenizer = family, seed, tokenizer(family.expand)
        find = self.tokenizer.token_to_id
        end, begin, mask = map(find, SPECIALS.values())
        self.specials = Specials(begin if family.opens else None, end, mask, find(EXPAND))
        self.files = Files(lambda text: list(self.tokenizer.encode(text).ids))
        self.config = {**SIZES, "vocab_size": self.tokenizer.get_vocab_size()}
        native = transformers.AutoConfig.for_model(family.trunk, **self.config)
        self.net: Any = transformers.AutoModelForCausalLM.from_config(native, attn_implementation="sdpa")
        aim(self.net, family.shift)
        self.optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def hidden(self, drawn: Batch) -> Tensor:
        """[files, rows, hidden] for the head, of what stands at each row itself."""
        rows, block = drawn.shown.shape[1], self.family.block
        if block is None:
            found = self.net.model(drawn.shown, attention_mask=seen(rows, drawn.lengths)).last_hidden_state
        else:
            places = torch.arange(rows).repeat(2)[None]
            both = torch.cat((drawn.clean, drawn.shown), 1)
            mask = seen_by_blocks(rows, block, drawn.lengths)
            found = self.net.model(both, attention_mask=mask, position_ids=places).last_hidden_state[:, rows:]
        return torch.cat((found[:, :1], found[:, :-1]), 1) if self.family.shift else found

    def draw(self, step: int) -> Batch:
        rng = random.Random(f"{self.seed} {step}")
        rows = ROWS[step % len(ROWS)]
        blocks = self.family.block is not None
        return batch(self.files, rng, BATCH // rows // (1 + blocks), rows, self.specials, suffix_first=blocks)

    def once(self, step: int, part: float) -> tuple[float, float]:
        """A step, at `part` of the run: the loss, and how many hidden rows were right."""
        for group in self.optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 100) * min(1.0, max(0.01, (1 - part) / 0.4))
        drawn = self.draw(step)
        taught = drawn.labels != SKIPPED
        logits, labels = self.net.lm_head(self.hidden(drawn)[taught]), drawn.labels[taught]
        loss = cross_entropy(logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), (logits.argmax(-1) == labels).float().mean().item()

    def train(self, seconds: float, steps: int) -> Iterator[tuple[int, float, float]]:
        """For so many steps, or else seconds of CPU time. Yields steps, loss and what was right, every 100 steps."""
        began, step, lately = time.process_time(), 0, list[tuple[float, float]]()
        while (part := step / steps if steps else (time.process_time() - began) / seconds) < 1:
            lately.append(self.once(step, part))
            step += 1
            if step % 100 == 0:
                loss, right = torch.tensor(lately).mean(0).tolist()
                yield step, loss, right
                lately = []

    def write(self, folder: Path) -> None:
        """As the hub has the family: config.json, tokenizer files, model.safetensors in bfloat16."""
        folder.mkdir(parents=True, exist_ok=True)
        found = self.specials
        special = {"bos_token_id": found.begin, "eos_token_id": found.end, "mask_token_id": found.mask}
        config = {**self.family.said, **self.config, **special}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps(SPECIALS, indent=1) + "\n")
        self.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        stored = {name: p.detach().bfloat16().contiguous() for name, p in self.net.named_parameters()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8, help="of CPU time")
    parser.add_argument("--steps", type=int, default=0, help="count the run in steps instead (reproducible)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    trainer = Trainer(FAMILIES[arguments.family], arguments.seed)
    for step, loss, right in trainer.train(arguments.minutes * 60, arguments.steps):
        print(f"step {step}: loss {loss:.3f}, right {right:.1%}", flush=True)
        if step % 500 == 0:
            trainer.write(arguments.out)
    trainer.write(arguments.out)


if __name__ == "__main__":
    main()
