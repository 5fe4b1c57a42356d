"""Text -> gaps read left to right behind their suffix, as the verifier reads them: `[suffix] separator [prefix][gap]
[head]`, where the head is the suffix's start again. What is trained by them is the context path.

The base has never seen a suffix in front of its prefix; that it uses it at all is what these rows teach.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from caesura.engine.canvas.healing import heal
from caesura.engine.tokens.tokenizer import Tokenizer

from batches import Batch  # isort: skip  (beside this script)
from examples import spans  # isort: skip
from net import Net, logits_of  # isort: skip

PARTS = ("suffix", "prefix", "gap", "end", "head")  # of a token, by number; the end has the first byte of the head
WEIGHTS = {"prefix": 0.5, "gap": 1.0, "end": 0.5, "head": 0.15}  # of the mean loss of each
GAP, HEAD = 48, 6  # tokens at most; the head as engine/methods/verify/search.py judges by it
PREFIX, SUFFIX = (48, 96, 192), (0, 24, 64, 128)  # tokens at most; a batch draws one of each
BYTES = 4  # that a token is taken to have, before it is known


@dataclass(frozen=True)
class Chain:
    """Tokens, and the part that each belongs to."""

    ids: list[int]
    parts: list[int]


def chain(
    text: str, tokenizer: Tokenizer, separator: Sequence[int], rng: random.Random, prefix: int, suffix: int
) -> Chain | None:
    """A gap of a text with at most `prefix` and `suffix` tokens around it, cut and healed as in use, or None where the
    text is too short for one. Gap and head are tokenised together, as the search ends a fill inside a token."""
    if len(text) < 200:
        return None
    a, b = spans(text, 40, len(text), rng)
    stable, forced = heal(tokenizer, text[max(0, a - prefix * BYTES) : a])
    before = tokenizer.encode(stable)[-prefix:]
    gap = len((forced + text[a:b]).encode())
    behind = tokenizer.encode(forced + text[a : b + HEAD * BYTES * 2])  # the gap's last token may go on into the head
    ends = itertools.accumulate(len(tokenizer.pieces[token]) for token in behind)
    inside = sum(end <= gap for end in ends)
    if b <= a or not before or not inside <= GAP:
        return None
    after = tokenizer.encode(text[b : b + suffix * BYTES * 2])[:suffix]
    behind = behind[: inside + HEAD]
    pieces = ([*after, *separator], before, behind[:inside], behind[inside : inside + 1], behind[inside + 1 :])
    parts = [part for part, tokens in enumerate(pieces) for _ in tokens]
    return Chain([token for tokens in pieces for token in tokens], parts)


@dataclass
class Gaps(Dataset[Batch]):
    """Batch number `step` of `chains` gaps; longer files are drawn more often. Fixed by seed and step."""

    texts: Sequence[str]
    tokenizer: Tokenizer
    separator: list[int]
    chains: int
    seed: str

    def __getitem__(self, step: int) -> Batch:
        rng = random.Random(f"{self.seed}/{step}")
        prefix, suffix = rng.choice(PREFIX), rng.choice(SUFFIX)
        made: list[Chain] = []
        while len(made) < self.chains:
            text = max(rng.choices(self.texts, k=2), key=len)
            one = chain(text, self.tokenizer, self.separator, rng, prefix, suffix)
            if one is not None:
                made.append(one)
        return collate(made)


def collate(chains: Sequence[Chain]) -> Batch:
    """`ids` [chains, rows], padded behind; `labels`, the token behind each row, and `parts`, what it is, -1 where there
    is none."""
    rows = max(len(c.ids) for c in chains)
    out = {
        "ids": torch.zeros(len(chains), rows, dtype=torch.int64),
        "labels": torch.full((len(chains), rows), -1),
        "parts": torch.full((len(chains), rows), -1),
    }
    for number, c in enumerate(chains):
        out["ids"][number, : len(c.ids)] = torch.tensor(c.ids)
        out["labels"][number, : len(c.ids) - 1] = torch.tensor(c.ids[1:])
        out["parts"][number, : len(c.ids) - 1] = torch.tensor(c.parts[1:])
    return out


def nats(net: Net, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Cross-entropy [n] of every token behind the separator, and the part [n] that each belongs to."""
    hidden, _ = net.context(batch["ids"])
    picked = batch["parts"] > PARTS.index("suffix")
    logits = logits_of(hidden[picked], net.table())
    return cross_entropy(logits, batch["labels"][picked], reduction="none"), batch["parts"][picked]


def objective(ce: Tensor, parts: Tensor) -> Tensor:
    """The weighted sum of each part's mean: a gap of few tokens counts as much as the long prefix before it."""
    means = [weight * ce[parts == PARTS.index(name)].mean() for name, weight in WEIGHTS.items()]
    return torch.stack([m for m in means if torch.isfinite(m.detach())]).sum()  # a batch may lack heads
