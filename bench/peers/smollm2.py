"""The left-to-right peer: SmolLM2-135M as published, greedy, with its own 49k vocabulary and the prefix alone.

    python bench/peers/smollm2.py CASES.jsonl --out COMPLETIONS.jsonl --model FOLDER

FOLDER comes from `python training/export.py base --gguf GGUF --vocab 0 --out FOLDER`. Files as of `caesura eval`. No
straw man: the text is healed at the cursor (the last pre-token is generated again, held to what was typed), a line
break is refused until something stands in the line, and blanks that only deepen the indentation are dropped.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

for _name, _value in (("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "0"), ("OMP_NUM_THREADS", "1")):
    os.environ.setdefault(_name, _value)  # as the engine's worker; torch reads these when it is imported

from caesura.engine.canvas.healing import heal  # noqa: E402
from caesura.engine.canvas.vocabulary import Vocabulary  # noqa: E402
from caesura.engine.model import Model, Run  # noqa: E402
from caesura.engine.models import load  # noqa: E402
from caesura.engine.scores import told  # noqa: E402

MOST = 32  # tokens of a line, as in `caesura eval`
CONTEXT = 1536  # tokens of prefix
START = "<|im_start|>"  # before the prefix; on 120 cases 29 exact with it, 26 without, 25 with <|endoftext|>


class Line(NamedTuple):
    text: str
    forwards: int  # one a token, after the prefix


def complete(model: Model, vocabulary: Vocabulary, prefix: str) -> Line:
    """The rest of the line at the end of `prefix`."""
    stable, rest = heal(model.tokenizer, prefix)
    ids = [model.tokenizer.special(START), *model.tokenizer.encode(stable)[-CONTEXT:]]
    kv = model.cache().lease(())
    if ids[:-1]:
        model.prefill(ids[:-1], kv)
    token, pending, line, forwards = ids[-1], rest.encode(), b"", 0
    while forwards < MOST and b"\n" not in line and b"\r" not in line:
        scores, _ = model.forward([Run(kv, [token], [kv.length])])
        (best,) = told(scores.best(1, [vocabulary.allowed(pending, not line.strip())]))
        token = int(best.ids[0, 0])
        piece = model.tokenizer.pieces[token]
        line += piece[len(pending) :]
        pending = pending[len(piece) :]
        forwards += 1
    text = line.decode("utf-8", errors="ignore").replace("\r", "\n").partition("\n")[0].rstrip()
    in_line = prefix.rpartition("\n")[2]
    return Line(text if in_line.strip() else text.lstrip(" \t"), forwards)


def main() -> None:
    parser = argparse.ArgumentParser(description="SmolLM2-135M, left to right.")
    parser.add_argument("cases", type=Path, metavar="CASES.jsonl")
    parser.add_argument("--out", type=Path, required=True, metavar="COMPLETIONS.jsonl")
    parser.add_argument("--model", required=True, metavar="FOLDER")
    options = parser.parse_args()
    model = load(options.model, "cpu")
    vocabulary = Vocabulary(model)
    cases = [json.loads(line) for line in options.cases.read_text("utf-8").splitlines()]
    for rest in {heal(model.tokenizer, case["prefix"])[1] for case in cases}:
        vocabulary.allowed(rest.encode(), True)  # made once and kept: not what is measured
    complete(model, vocabulary, cases[0]["prefix"])  # likewise
    with options.out.open("w", encoding="utf-8") as out:
        for case in cases:
            began = time.perf_counter()
            line = complete(model, vocabulary, case["prefix"])
            ms = (time.perf_counter() - began) * 1000
            tokens = len(model.tokenizer.encode(line.text))
            done = {"id": case["id"], "completion": line.text, "ms": ms, "steps": line.forwards, "tokens": tokens}
            out.write(json.dumps({**done, "tokens_by_source": {"left_to_right": tokens}}) + "\n")


if __name__ == "__main__":
    main()
