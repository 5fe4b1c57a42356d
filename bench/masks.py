"""The grammar without a model, as MaskBench measures it: along valid instances, token by token, what may come next.

TTFM is from the schema to the first mask, TBM from one mask to the next, both in microseconds, in one thread.
"""

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caesura import wire
from caesura.engine.grammar import constraint
from caesura.engine.grammar.tokens import Tree
from caesura.engine.tokens.tokenizer import Tokenizer

from latency import HERE, Report  # isort: skip  (next to this script)

# guidance-ai/jsonschemabench at ba103c73, maskbench/README.md (MIT): all 11,306 schemas, Llama 3's 128k tokens, one
# thread of an AMD EPYC 7V13; 900 s at most a schema. Another machine, another vocabulary, another sample than ours.
PUBLISHED = {
    "llguidance 0.7.10": {"TTFM": (1_037, 5_457), "TBM": (46, 119, 533), "passing_percent": 78.8},
    "xgrammar 0.1.17": {"TTFM": (919_459, 35_854_415), "TBM": (9, 499, 5_687), "passing_percent": 71.8},
    "llama.cpp 0.3.8": {"TTFM": (312, 3_649), "TBM": (17_021, 29_722, 60_371), "passing_percent": 57.5},
    "outlines-core 0.2.3": {"TTFM": (587_900, 58_638_471), "TBM": (34, 6_572, 7_184), "passing_percent": 62.4},
}
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass
class Masks:
    """What was found: microseconds, and schemas by what became of them."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    schemas: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def report(self) -> Report:
        passing = self.schemas["passing"] + self.schemas["passing, to be checked"]
        return {
            "schemas": dict(self.schemas),
            "passing_percent": round(100 * passing / self.schemas.total(), 1),
            "refusals": dict(self.refusals.most_common(12)),
            "failures": self.failures[:20],
            "TTFM_us": percentiles(self.first),
            "TBM_us": percentiles(self.between),
            "TBM_again_us": percentiles(self.again),
            "published": PUBLISHED,
        }


def percentiles(values: Sequence[float]) -> Report:
    ordered = sorted(values) or [float("nan")]
    at = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in SHARES.items()}
    return {"n": len(values), "mean": round(sum(ordered) / len(ordered), 1)} | {k: round(v, 1) for k, v in at.items()}


def measure(folder: Path, tokenizer: Tokenizer, draw: random.Random, until: float) -> Masks:
    """Schemas of MaskBench in random order, with all their instances, until the time is up (of perf_counter)."""
    tree, found = Tree(tokenizer.pieces), Masks()
    files = sorted(folder.glob("*.json"))
    for file in draw.sample(files, len(files)):
        if time.perf_counter() > until:
            break
        bench = json.loads(file.read_bytes())
        schema = json.dumps(bench["schema"], ensure_ascii=False)
        began = time.perf_counter()
        try:
            grammar = constraint.load(wire.Json(schema=0, loose=True), (schema,), tree)
            state = grammar.start(b"")
            grammar.allowed(state, tokenizer.size)
        except ValueError as error:
            found.schemas["refused"] += 1
            found.refusals[str(error)] += 1
            continue
        found.first.append(1e6 * (time.perf_counter() - began))
        found.schemas[_verdict(grammar, tokenizer, bench["tests"], found, file.stem)] += 1
    return found


def _verdict(
    grammar: constraint.Grammar, tokenizer: Tokenizer, tests: Sequence[Report], found: Masks, name: str
) -> str:
    """By the grammar alone; what an instance is that it should not take is for the check where it is not exact."""
    kind = "passing" if grammar.exact else "passing, to be checked"
    for test in tests:
        text = json.dumps(test["data"], ensure_ascii=False)
        accepted = walk(grammar, tokenizer, text, found.between if test["valid"] else [])
        if test["valid"]:
            walk(grammar, tokenizer, text, found.again)
        if test["valid"] and not accepted:
            kind = "a valid instance is not generated"
        elif accepted and not test["valid"] and not grammar.exact:
            kind = "left to the check"
        elif accepted and not test["valid"]:
            found.failures.append(f"{name}: {text[:200]}")
            return "an invalid instance is taken"
    return kind


def peer(python: Path, folder: Path, tokenizer: Path) -> Report:
    """llguidance's figures on this machine, all schemas, by an interpreter that has it."""
    script = HERE / "peers" / "llguidance_masks.py"
    said = subprocess.run([python, script, folder, tokenizer, "0"], capture_output=True, check=True).stdout
    found = json.loads(said)
    schemas = found["schemas"]
    return {
        "version": found["version"],
        "schemas": schemas,
        "passing_percent": round(100 * schemas["passing"] / sum(schemas.values()), 1),
        "TTFM_us": percentiles(found["first"]),
        "TBM_us": percentiles(found["between"]),
    }


def walk(grammar: constraint.Grammar, tokenizer: Tokenizer, text: str, us: list[float]) -> bool:
    """Whether the grammar takes a text; microseconds from each token to the next mask."""
    state = grammar.start(b"")
    for token in tokenizer.encode(text):
        began = time.perf_counter()
        state = grammar.after(state, token)
        if not state:
            return False
        grammar.allowed(state, tokenizer.size)
        us.append(1e6 * (time.perf_counter() - began))
    return grammar.ends(state)
