"""Fill the six gaps of examples/cart.py together, by the real command: the picture at the top of the README.

    python bench/holes.py [--model NAME|PATH] [--out bench/results/holes.json]

`make plots` then draws docs/pictures/holes.svg. One fill with a cold context, after the engine has loaded its model.
The deadline is long, so that a busy machine shows the same fills as a quiet one. The file was chosen: the model fills
all of its gaps well. It does not do that in every file.
"""

import argparse
import json
import subprocess
from pathlib import Path

from caesura import model_store

from latency import CAESURA, HERE, Report, conditions, engine_starts, own_engine, save  # isort: skip  (next to this)

FILE = "examples/cart.py"
DEADLINE_MS = "60000"


def measure(model: str) -> Report:
    """The text with its markers, and what the command says of each: the fill, how likely it is, in a word too."""
    with own_engine():
        engine_starts(model, 1)
        about = conditions(model)
        name = model_store.resolve(model)
        command = [*CAESURA, "holes", FILE, "--json", "--deadline-ms", DEADLINE_MS, "--model", name]
        said = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = json.loads(said)
    told = {name: found[name] for name in ("holes", "steps", "timings", "stop")}
    return {"bench": "holes", **about, "file": FILE, "text": (HERE.parent / FILE).read_text("utf-8"), **told}


def main() -> None:
    parser = argparse.ArgumentParser(description="Six gaps of one file, filled together.")
    parser.add_argument("--model", default=model_store.DEFAULT, metavar="NAME|PATH")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "holes.json")
    options = parser.parse_args()
    report = measure(options.model)
    save(report, options.out)
    for hole in report["holes"]:
        print(f"{hole['word']} ({hole['confidence']:.2f}): {hole['text']}")
    print(f"{report['timings']['total_ms']:,.0f} ms, load {report['load']}, {report['machine']}, {report['commit']}")


if __name__ == "__main__":
    main()
