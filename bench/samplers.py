"""Samplers on one model: tokens per forward, and how often the fill is that of one token per forward.

    python bench/samplers.py --model NAME|PATH --cases FILE [--count 100] [--share 2]

A case is a line of JSON, {"prefix", "answer", "suffix"}. The hole has as many slots as the answer has tokens, so that
lengths play no part. One token per forward means the surest open slot each time. Samplers with a schedule get the steps
for `--share` tokens per forward. Rows count what a sampler adds to a forward (WINO: a row more for each slot).
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caesura import model_store, wire
from caesura.engine import models as engine_models
from caesura.engine import samplers
from caesura.engine.canvas.layout import lay
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.methods import _forward
from caesura.engine.methods.absorbing import Denoising
from caesura.engine.model import Model
from caesura.engine.samplers._scheduled import Scheduled

from latency import table  # isort: skip  (next to this script)


@dataclass(frozen=True)
class Ended:
    """A canvas at its end."""

    tokens: list[int | None]
    right: bool
    forwards: int
    rows: int


def ended(model: Model, vocabulary: Vocabulary, case: dict[str, str], name: str, share: float) -> Ended:
    """Fill the hole of a case; `share` tokens per forward where a sampler has a schedule."""
    slots = len(model.tokenizer.encode(case["answer"]))
    hole = wire.Hole(slots, "block")
    job = wire.Infill(job="j", document="d", prefix=case["prefix"], suffix=case["suffix"], segments=(hole,))
    layout = lay(model, vocabulary, job, slots)
    canvas = layout.canvas.resized([slots])
    canvas.tail += model.tokenizer.encode(canvas.holes[0].forced.decode())  # no healing: the answer begins at a token
    canvas.holes[0].forced, found = b"", canvas.slots
    of = max(1, round(slots / share)) if scheduled(name) else 4 * slots
    kv = model.cache().lease(layout.context)
    model.prefill(layout.context, kv)
    w, rows = Denoising(canvas, kv, samplers.begin(name), of, 0), 0
    while not w.finished:
        rows += w.rows
        _forward.advance(model, [w])
    tokens = [slot.draft if slot.token is None else slot.token for slot in found]
    return Ended(tokens, canvas.fills()[0].text == case["answer"], w.step, rows)


def scheduled(name: str) -> bool:
    return name in ("top_k", "p2") or isinstance(samplers.begin(name), Scheduled)


def measured(model: Model, cases: Sequence[dict[str, str]], share: float) -> list[tuple[object, ...]]:
    """A row of the table for each sampler; the first one is one token per forward."""
    vocabulary = Vocabulary(model)
    single = [ended(model, vocabulary, case, "top_k", 1) for case in cases]
    ways = {"one token": single}
    for name in samplers.names():
        ways[name] = [ended(model, vocabulary, case, name, share) for case in cases]
    return [(name, *figures(found, single)) for name, found in ways.items()]


def figures(found: Sequence[Ended], single: Sequence[Ended]) -> tuple[str, ...]:
    slots = sum(len(one.tokens) for one in single)
    pairs = [(one.tokens, other.tokens) for one, other in zip(found, single, strict=True)]
    agreed = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=True))
    return (
        f"{slots / sum(one.forwards for one in found):.2f}",
        f"{sum(one.rows for one in found) / slots:.0f}",
        f"{agreed / slots:.1%}",
        f"{sum(one.right for one in found) / len(found):.1%}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--share", type=float, default=2.0)
    options = parser.parse_args()
    model = engine_models.load(model_store.resolve(options.model), "cpu")
    cases = [json.loads(line) for line in options.cases.read_text("utf-8").splitlines()[: options.count]]
    head = ("sampler", "tokens per forward", "rows per token", "tokens as by one per forward", "fills as the text")
    print(f"{model.name}, {len(cases)} holes of {sum(len(model.tokenizer.encode(c['answer'])) for c in cases)} tokens")
    print(table(head, measured(model, cases, options.share)))


if __name__ == "__main__":
    main()
