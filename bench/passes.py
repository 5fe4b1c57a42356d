"""A pass over the weights on a CPU: milliseconds for few rows and many, and a prefill, of each of our kernels.

    python bench/passes.py [--model NAME|PATH] [--kernels amx,avx512,avx2,torch] [--vs PEERS] [--rounds 20] [--json]
                           [--out bench/results/passes.json]

All kernels take turns in one process, and the least of all rounds counts: compare within a run. A pass is a token tree
of so many rows behind CONTEXT tokens, logits included; the prefill is CONTEXT tokens in the model's chunks. The bound
is the larger of two times: to read the weights once at the bandwidth that this machine's cores reach, as many of them
as share our work, and to multiply them at the rate of the fastest kernel on a matrix that stays in their caches. With
`--vs` llama.cpp (llama.py) writes a line, a row a pass, and reads a text of as many tokens, with two threads.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from latency import HERE, Report, conditions, save, table
from llama import Peer

sys.path.insert(0, str(HERE.parent))
from caesura import model_store
from caesura.engine import models as engine_models
from caesura.engine.model import Run
from caesura.engine.weights import stored
from caesura.kernels import cpu

CONTEXT = 512
ROWS = (1, 4, 8, 16, 64)
PREFILL = f"prefill {CONTEXT}"
FIRST = 100  # ids from here on are text
BLOCK = 256 << 20  # bytes read for the bandwidth: more than any cache keeps
CACHED = 1024  # rows and columns of the matrix for the rate: 0.6 MB
LINE = 12  # tokens of the line that llama.cpp writes
TEXT = "    total = first(values) + second(values) * third(values)  # as before, and once more\n"


def least(times: int, work: Callable[[], object]) -> float:
    """Seconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def loaded(model: str, kernels: str) -> Any:
    os.environ["CAESURA_CPU"] = kernels
    return engine_models.load(model)


class Timed:
    """A model, and the least milliseconds of each of its passes so far."""

    def __init__(self, model: str, kernels: str) -> None:
        self.kernels, self._model, self.ms = kernels, loaded(model, kernels), dict[str, float]()
        self._kv = self._model.cache().lease([])
        self._prefill()

    def round(self) -> None:
        os.environ["CAESURA_CPU"] = self.kernels
        for rows in ROWS:
            self._record(str(rows), lambda rows=rows: self._pass(rows))
            self._kv.truncate(CONTEXT)
        self._kv.truncate(0)
        self._record(PREFILL, self._prefill)

    def _record(self, name: str, work: Callable[[], object]) -> None:
        self.ms[name] = min(self.ms.get(name, float("inf")), 1000 * least(1, work))

    def _pass(self, rows: int) -> None:
        chain = np.tri(rows, dtype=np.bool_)
        self._model.forward([Run(self._kv, range(FIRST, FIRST + rows), range(CONTEXT, CONTEXT + rows), chain)])

    def _prefill(self) -> None:
        for at in range(0, CONTEXT, self._model.spec.chunk):
            self._model.prefill(range(FIRST + at, FIRST + min(CONTEXT, at + self._model.spec.chunk)), self._kv)


def limits(model: str) -> Report:
    """Bytes and weights of a pass, and what the threads of a call read and multiply in a second."""
    held = loaded(model, next(iter(cpu.variants())))
    matrices = [*(one for one in held._paths[False]._kept if isinstance(one, cpu.Packed)), held._heads[False]]
    packed = [matrix for one in matrices for matrix in one.matrices]
    memory, x = torch.zeros(BLOCK // 8, dtype=torch.int64), torch.randn(64, CACHED).numpy()
    small = cpu.Packed(cpu.Matrix("k4", *stored.k4(torch.randn(CACHED, CACHED).numpy())))
    torch.set_num_threads(min(cpu.THREADS, cpu.cores()))
    bandwidth = BLOCK / least(10, memory.sum)
    torch.set_num_threads(1)
    return {
        "bytes": sum(matrix.tiles.nbytes for matrix in packed),
        "weights": sum(matrix.rows * matrix.columns for matrix in packed),
        "bandwidth": bandwidth,
        "products": len(x) * CACHED**2 / least(200, lambda: small.product(x)),
    }


def bound_ms(rows: int, of: Report) -> float:
    return 1000 * max(of["bytes"] / of["bandwidth"], rows * of["weights"] / of["products"])


def peer_ms(folder: Path, model: str, rounds: int) -> dict[str, float]:
    """Of llama.cpp: a pass of one row, as a token of a line, and reading as many tokens as a prefill has."""
    text, short, long, read = TEXT * (CONTEXT // 12), list[float](), list[float](), list[float]()
    with Peer(folder, model) as peer:
        for _ in range(rounds):
            cold = peer.fill(text, 1, warm=False)
            read.append(cold.ms * CONTEXT / cold.read)
            peer.fill(text + "    total", 1, warm=True)  # reads the words that are new
            short.append(peer.fill(text + "    total", 1, warm=True).ms)
            last = peer.fill(text + "    total", LINE, warm=True)
            long.append(last.ms)
    return {"1": (min(long) - min(short)) / (last.tokens - 1), PREFILL: min(read)}


def measure(model: str, kernels: list[str], peers: Path | None, rounds: int) -> Report:
    report: Report = {"bench": "passes", **conditions(model), "rounds": rounds, "limits": limits(model)}
    timed = [Timed(model, name) for name in kernels]
    for _ in range(rounds):
        for each in timed:
            each.round()
    report["ms"] = {each.kernels: each.ms for each in timed}
    if peers is not None:
        report["ms"]["llama.cpp"] = peer_ms(peers, model, rounds)
    report["ms"]["bound"] = {name: bound_ms(int(name.split()[-1]), report["limits"]) for name in timed[0].ms}
    return report


def picture(report: Report) -> str:
    """The report as a person reads it."""
    names = list(report["ms"]["bound"])
    lines = [(kind, *(round(ms[n], 1) if n in ms else None for n in names)) for kind, ms in report["ms"].items()]
    title = f"{report['model']['name']} at {report['commit']}, {report['machine']}, load {report['load']}"
    return f"{title}\n{table(('ms', *names), lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds of a pass over the weights.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument(
        "--kernels", default="amx,avx512,avxvnni,avx2,torch", help="those that the machine has, and torch"
    )
    parser.add_argument("--vs", type=Path, metavar="PEERS", help="the folder of llama.cpp")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON line on stdout instead of the table")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "passes.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels = [name for name in options.kernels.split(",") if name in (*cpu.variants(), "torch")]
    report = measure(model_store.resolve(options.model), kernels, options.vs, options.rounds)
    save(report, options.out)
    print(json.dumps(report) if options.json else picture(report))


if __name__ == "__main__":
    main()
