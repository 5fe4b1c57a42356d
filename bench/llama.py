"""llama.cpp as a peer while somebody types: a process that is asked for lines in turn with ours.

Its folder, PEERS, is set up as README.md says.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from caesura import model_store

SCRIPT = Path(__file__).resolve().parent / "peers" / "llamacpp_typing.mjs"
SMOLLM2, QWEN = "smollm2-135m-q4_0.gguf", "qwen2.5-coder-0.5b-q4_0.gguf"
WEIGHTS = {model_store.CODER: QWEN, model_store.SMALL: SMOLLM2}  # what ours are made of
CHARACTERS = 2000  # before the cursor: some 650 tokens, where our model sees 768 of both sides
THREADS = 2  # as a step of our engine has


class Line(NamedTuple):
    """`ms` is the peer's own count, without the pipes; `read` are tokens of context."""

    text: str
    tokens: int
    read: int
    ms: float


class Peer:
    """The weights that our `model` is made of, at Q4_0; greedy, without a suffix. It keeps the context of the line
    before. Exits where `model` is neither coder nor small."""

    def __init__(self, folder: Path, model: str) -> None:
        weights = WEIGHTS.get(model_store.named(model))
        if weights is None:
            sys.exit(f"--vs has no weights to compare {model} with; it compares {' and '.join(WEIGHTS)}.")
        command = ["node", str(SCRIPT), str(folder / weights), str(folder), str(THREADS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        package = folder / "node_modules" / "node-llama-cpp" / "package.json"
        self.name = f"{weights}, node-llama-cpp {json.loads(package.read_text('utf-8'))['version']}"

    def __repr__(self) -> str:
        return f"<Peer {self.name}, process {self.pid}>"

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fill(self, before: str, most: int, *, warm: bool) -> Line:
        """At most `most` tokens, to the end of the line. `warm`: only what differs from the text before is read."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # its answer is missing then
            self._process.stdin.write(json.dumps({"before": before, "most": most, "warm": warm}) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("The peer has ended; see its message above and the setup of PEERS in bench/README.md.")
        return Line(**json.loads(answer))
