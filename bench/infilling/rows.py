"""The rows: who completes the cases. Ours go through the command `caesura eval`, peers through scripts of `peers/`.
`fill:NAME` is our row `fill` with the model NAME, so that one run compares models.

`fill` is what people get where they ask. `ghost` is what an editor draws by itself. It finds the kind of a gap from the
text, draws only what is likely enough, and does not ask the model where a word follows the cursor.

A peer of llama.cpp sees what our engine sees of a text (`server/context/context.py`), generates as many tokens as ours
may, and what it says is fitted into the text by the server's own rules, as ours is.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from caesura import model_store
from caesura.engine.canvas.healing import heal
from caesura.engine.methods.verify.lookup import lookup as occurrences
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.weights.gguf.file import GGUF
from caesura.server.infill.site import bare_site

from infilling.cases import Case  # isort: skip  (next to this)
from latency import CAESURA, HERE  # isort: skip
from llama import SMOLLM2  # isort: skip

PEERS = HERE / "peers"
OURS = {  # options of `caesura eval`
    "canvas": ("--as", "fill", "--sampler", "threshold"),
    "left-to-right": ("--as", "fill", "--method", "left_to_right"),
    "fill": ("--as", "fill"),  # by the model's own method, as is `ghost`
    "ghost": ("--as", "ghost"),
}
QWEN = "qwen2.5-coder-0.5b-q4_k_m.gguf"
LLAMA = {  # weights, prompt of peers/llamacpp.mjs
    "smollm2-q4": (SMOLLM2, "prefix"),
    "qwen": (QWEN, "fim"),
    "qwen-separator": (QWEN, "separator"),
    "qwen-append": (QWEN, "append"),
}
ROWS = ("empty", "lookup", "smollm2", *LLAMA, "left-to-right", "canvas", "fill", "ghost")
SOURCES = ("canvas", "lookup", "left_to_right")


def kind(row: str) -> str:
    """A row without the model that it names."""
    return row.partition(":")[0]


def label(row: str) -> str:
    """A row as files and tables name it: without the folder that its model lies in."""
    found, _, model = row.partition(":")
    return f"{found}:{Path(model).name}" if model else found


def place(row: str) -> tuple[int, str]:
    """The position of a row in the order of rows."""
    return ROWS.index(kind(row)), row


@dataclass(frozen=True)
class Completion:
    """`chance` is how likely the model holds the whole of it to be; `late`: the deadline ended it. Of ghost text `text`
    is drawn by an editor; `best` is the whole best candidate, drawn or not, and None where the model was not asked."""

    text: str
    ms: float | None = None
    steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    error: str = ""
    chance: float | None = None
    late: bool = False
    best: str | None = None


@dataclass(frozen=True)
class Means:
    """What rows need: our model, the uncut base for `smollm2`, the folder for those of llama.cpp."""

    model: str
    deadline_ms: float
    base: Path | None = None
    peers: Path | None = None

    def model_of(self, row: str) -> str:
        return model_store.resolve(row.partition(":")[2]) if ":" in row else self.model

    def missing(self, row: str) -> str:
        """The option that a row lacks, or ""."""
        if row == "smollm2" and self.base is None:
            return "--base"
        return "--peers" if row in LLAMA and self.peers is None else ""


def empty(case: Case) -> Completion:
    return Completion("")


def lookup(case: Case) -> Completion:
    """What stands elsewhere in the buffer between texts that agree most with those around the gap."""
    found = occurrences(case.prefix, case.suffix, most=1)
    text = found[0].strip() if found else ""
    return Completion(text, tokens={"lookup": 1} if text else {})


TRIVIAL: dict[str, Callable[[Case], Completion]] = {"empty": empty, "lookup": lookup}


def complete(row: str, cases: Sequence[Case], means: Means, folder: Path) -> list[Completion]:
    """The completions of a row, in the order of the cases; files of it lie in `folder`."""
    if row in TRIVIAL:
        return [TRIVIAL[row](case) for case in cases]
    asked, answered = folder / f"{label(row)}.cases.jsonl", folder / f"{label(row)}.jsonl"
    question = partial(_prompted, weights=_weights(row, means)) if row in LLAMA else _question
    asked.write_text("".join(json.dumps(question(case)) + "\n" for case in cases), encoding="utf-8")
    answered.unlink(missing_ok=True)
    subprocess.run(command(row, asked, answered, means), check=True)
    answers = {answer["id"]: answer for answer in map(json.loads, answered.read_text("utf-8").splitlines())}
    read = _drawn if kind(row) == "ghost" else _completion
    found = [read(answers[case.id]) for case in cases]
    return [_fitted(*pair) for pair in zip(cases, found, strict=True)] if row in LLAMA else found


def command(row: str, asked: Path, answered: Path, means: Means) -> list[str]:
    if row in LLAMA:
        script, (_, prompt) = str(PEERS / "llamacpp.mjs"), LLAMA[row]
        return ["node", script, str(asked), str(answered), str(_weights(row, means)), prompt, str(means.peers)]
    files = [str(asked), "--out", str(answered)]
    if row == "smollm2":
        return [sys.executable, str(PEERS / "smollm2.py"), "--model", str(means.base), *files]
    deadline = ["--deadline-ms", str(means.deadline_ms)]
    return [*CAESURA, "eval", "--model", means.model_of(row), *deadline, *OURS[kind(row)], *files]


def _weights(row: str, means: Means) -> Path:
    assert means.peers is not None, "a row is only asked for where its means are"
    return means.peers / LLAMA[row][0]


def _question(case: Case) -> dict[str, str]:
    return {"id": case.id, "prefix": case.prefix, "suffix": case.suffix, "lang": case.lang}


@cache
def _tokenizer(weights: Path) -> Tokenizer:
    return GGUF(weights, "meta").tokenizer()


def _prompted(case: Case, weights: Path) -> dict[str, str | int]:
    """The prefix is cut by the peer's own pre-tokens."""
    asked = _gap(case)
    stable, rest = heal(_tokenizer(weights), asked.context.prefix)
    told = {"id": case.id, "stable": stable, "rest": rest, "suffix": asked.context.suffix, "kind": case.kind}
    return {**told, "indent": len(asked.context.indent), "most": asked.hole.max_tokens}


def _fitted(case: Case, completion: Completion) -> Completion:
    gap = _gap(case)
    return replace(completion, text=gap.sound_start(gap.fitted(completion.text)))


def _gap(case: Case) -> Any:
    start = len(case.prefix)
    return bare_site(case.prefix + case.suffix, start, start, case.lang, case.kind)


def _completion(answer: dict[str, Any]) -> Completion:
    sources = answer.get("tokens_by_source") or {}
    error, chance, late = answer.get("error", ""), answer.get("chance"), answer.get("stop") == "deadline"
    return Completion(answer["completion"], answer["ms"], answer.get("steps", 0), sources, error, chance, late)


def _drawn(answer: dict[str, Any]) -> Completion:
    """The completion of a row of ghost text. A place where the model is not asked has no time."""
    whole = _completion(answer)
    if not answer.get("stop"):
        return Completion("", error=whole.error)
    return replace(whole, text=answer.get("shown", ""), chance=None, best=whole.text)
