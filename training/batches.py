"""Corpus -> tensors of fixed shapes, batch by batch, in this process or in workers.

A batch is determined by its seed and step alone, so a resumed run goes on with the batches it would have seen.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from caesura.engine.tokens.tokenizer import Tokenizer

import pack  # isort: skip  (beside this script)
from examples import BUCKETS, SHARES, Example, Mix, example  # isort: skip

CANVASES, PREFIX, SUFFIX = 40, 416, 95  # of a context; tokens
ROWS = -(-(SUFFIX + 1 + PREFIX) // 16) * 16  # of a context, with its separator, padded

Batch = dict[str, Tensor]


def texts(corpus: Path, split: str, tokenizer: Tokenizer) -> Sequence[str]:
    """All texts of `shard` or `heldout`, from packs where the folder holds packs."""
    if pack.is_packed(corpus):
        return pack.Packed(corpus, split, tokenizer)
    return [text for shard in sorted(corpus.glob(f"{split}-*.jsonl.gz")) for text in pack.shard_texts(shard)]


@dataclass
class Batches(Dataset[Batch]):
    """Batch number `step` of `contexts` contexts; longer files are drawn more often. One bucket a batch."""

    texts: Sequence[str]
    tokenizer: Tokenizer
    separator: list[int]
    special: tuple[int, int]  # mask id, null id
    sides: tuple[int, int]  # rows of a canvas before and after its slots
    contexts: int
    mix: Mix
    seed: str

    def __getitem__(self, step: int) -> Batch:
        rng = random.Random(f"{self.seed}/{step}")
        bucket = rng.choices(BUCKETS, SHARES)[0]
        made: list[Example] = []
        while len(made) < self.contexts:
            text = max(rng.choices(self.texts, k=2), key=len)
            one = example(
                text,
                self.tokenizer,
                self.separator,
                self.special,
                rng,
                bucket=bucket,
                sides=self.sides,
                canvases=CANVASES,
                prefix_tokens=PREFIX,
                suffix_tokens=SUFFIX,
                mix=self.mix,
            )
            if one is not None:
                made.append(one)
        return collate(made, bucket, self.sides)


def stream(batches: Dataset[Batch], start: int, workers: int) -> Iterator[Batch]:
    """Batches from step `start` on, without an end, prepared ahead by `workers` processes (0: here, when asked)."""
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=range(start, 1 << 40),
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        multiprocessing_context="fork" if workers else None,  # the corpus is shared, not copied
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


def collate(examples: Sequence[Example], bucket: int, sides: tuple[int, int]) -> Batch:
    """[contexts, CANVASES, rows] tensors; canvases that are missing predict nothing. A label stands at the row that
    predicts it, -1 elsewhere: every slot that does not show its token, or, left to right, every slot and head row.
    `slots` are how many a canvas has."""
    shape = len(examples), CANVASES
    tail = sides[0]
    rows = tail + bucket + sides[1]
    out = {
        "context": torch.zeros(len(examples), ROWS, dtype=torch.int64),
        "lengths": torch.tensor([len(e.context) for e in examples]),
        "ids": torch.zeros(*shape, rows, dtype=torch.int64),
        "keys": torch.arange(rows).eq(0).repeat(*shape, 1),
        "labels": torch.full((*shape, rows), -1),
        "start": torch.ones(shape, dtype=torch.int64),
        "slots": torch.zeros(shape, dtype=torch.int64),
        "causal": torch.zeros(shape, dtype=torch.bool),
    }
    for number, e in enumerate(examples):
        out["context"][number, : len(e.context)] = torch.tensor(e.context)
        for place, c in enumerate(e.canvases):
            at = number, place
            ids = torch.tensor(c.tail + c.shown + c.head)
            out["start"][at], out["slots"][at], out["causal"][at] = c.visible, len(c.target), c.causal
            out["ids"][at][: len(ids)] = ids
            out["keys"][at][: len(ids)] = True
            target = torch.tensor(c.target)
            hidden = target != ids[tail : tail + len(target)]
            out["labels"][at][tail - 1 : tail - 1 + len(target)] = torch.where(hidden, target, -1)
            if c.causal:
                out["labels"][at][tail - 1 : len(ids) - 1] = ids[tail:]
    return out
