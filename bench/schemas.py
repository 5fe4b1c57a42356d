"""What of JSON Schema the grammar of a hole holds: by keyword, by published set, and against what instances are valid.

    python bench/schemas.py --data FOLDER [--every 1] [--out FILE]

FOLDER holds `JSON-Schema-Test-Suite` (required tests of draft 7, 2019-09 and 2020-12) and `jsonschemabench` (its
`schemas` and `maskbench`). A schema is exact when everything that its grammar generates is valid, else it is checked:
a validator has the last word. Instances are written as `json.dumps` does, keys in the order of the schema.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from caesura import wire
from caesura.engine.grammar.automaton import Automaton
from caesura.engine.grammar.cases import Cases
from caesura.engine.grammar.keywords import Terms
from caesura.engine.grammar.schema import language
from caesura.schema.dialects import SchemaError
from caesura.schema.reader import read_schema

from latency import commit, machine, spread, table  # isort: skip  (next to this)

DIALECTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
COUNTS = ("schemas", "exact", "checked", "refused", "impossible", "valid, taken", "valid, not generated")
COUNTS = (*COUNTS, "invalid, refused", "invalid, taken, exact", "invalid, taken, checked")
ROOT: Terms = (("", True),)
SPEC = wire.Json(schema=0)

Report = dict[str, Any]
Instances = list[tuple[Any, bool]]


class Tally:
    """What is counted of one set of schemas; milliseconds from the text of a schema to its automaton."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.ms: list[float] = []
        self.undecided: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []

    def add(self, name: str, text: str, instances: Instances) -> None:
        self.counts["schemas"] += 1
        began = time.perf_counter()
        try:
            schema = read_schema(text)
            made = language(SPEC, schema)
            automaton = Automaton(made)
        except ValueError as error:
            self.counts["refused"] += 1
            kind = "schema" if isinstance(error, SchemaError) else "grammar"
            self.refused[f"{kind}: {str(error).partition('(')[0][-60:]}"] += 1
            return
        self.ms.append((time.perf_counter() - began) * 1000)
        self.counts["exact" if made.exact else "checked"] += 1
        self.counts["impossible"] += automaton.shortest(automaton.start) is None
        cases = Cases(schema)
        if not made.exact:
            self.undecided.update(cases.undecided(ROOT))
        for value, valid in instances:
            written = json.dumps(arranged(cases, ROOT, value), ensure_ascii=False).encode("utf-8", "surrogatepass")
            taken = any(map(automaton.ends, automaton.read([automaton.start], written)))
            if valid:
                self.counts["valid, taken" if taken else "valid, not generated"] += 1
            elif not taken:
                self.counts["invalid, refused"] += 1
            else:
                self.counts[f"invalid, taken, {'exact' if made.exact else 'checked'}"] += 1
                if made.exact:
                    self.wrong.append(f"{name}: {written.decode(errors='replace')[:200]}")

    @property
    def report(self) -> Report:
        return {
            **{name: self.counts[name] for name in COUNTS},
            "ms": spread(self.ms),
            "undecided": dict(self.undecided.most_common()),
            "refused_by": dict(self.refused.most_common()),
            "wrong": self.wrong,
        }


def arranged(cases: Cases, terms: Terms, value: Any) -> Any:
    """The same value with its keys in the order in which they are generated."""
    found = cases.of(terms)
    if isinstance(value, dict):
        order = {key: place for place, key in enumerate(dict.fromkeys(key for case in found for key in case.named))}
        keys = sorted(value, key=lambda key: order.get(key, len(order)))
        return {key: arranged(cases, found[0].child(key) if found else (), value[key]) for key in keys}
    if isinstance(value, list):
        return [arranged(cases, found[0].item(i) if found else (), one) for i, one in enumerate(value)]
    return value


def suite(folder: Path) -> Iterator[tuple[str, str, str, Instances]]:
    for dialect, uri in DIALECTS.items():
        for file in sorted((folder / "tests" / dialect).glob("*.json")):
            for group in json.loads(file.read_text()):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri, **schema}
                instances = [(test["data"], test["valid"]) for test in group["tests"]]
                yield dialect, f"{file.stem}: {group['description']}", json.dumps(schema), instances


def sets(folder: Path) -> Iterator[tuple[str, str, str, Instances]]:
    for file in sorted((folder / "schemas").glob("*/*.json")):
        yield file.parent.name, file.stem, file.read_text(), []


def maskbench(folder: Path) -> Iterator[tuple[str, str, str, Instances]]:
    for file in sorted((folder / "maskbench").glob("*.json")):
        content = json.loads(file.read_text())
        instances = [(test["data"], test["valid"]) for test in content["tests"]]
        yield "maskbench", file.stem, json.dumps(content["schema"]), instances


def measure(found: Iterator[tuple[str, str, str, Instances]], every: int) -> Report:
    """A report for each set, and one for all of them."""
    tallies = {"all": Tally()}
    for number, (name, *rest) in enumerate(found):
        if number % every == 0:
            tallies.setdefault(name, Tally()).add(*rest)
    for name, tally in tallies.items():
        if name != "all":
            for field in ("counts", "undecided", "refused"):
                getattr(tallies["all"], field).update(getattr(tally, field))
            tallies["all"].ms += tally.ms
            tallies["all"].wrong += tally.wrong
    return {name: tally.report for name, tally in tallies.items()}


def picture(report: Report) -> str:
    rows = [
        [f"{part}, {name}", *(one[count] for count in COUNTS), one["ms"]["p50"], one["ms"]["p95"]]
        for part in ("suite", "sets", "maskbench")
        for name, one in report[part].items()
    ]
    wrong = [line for part in ("suite", "maskbench") for line in report[part]["all"]["wrong"]]
    return "\n".join([table(["", *COUNTS, "ms p50", "ms p95"], rows), *wrong])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth schema (1)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append one line of JSON")
    arguments = parser.parse_args()
    bench = arguments.data / "jsonschemabench"
    report = {
        "commit": commit(),
        "machine": machine(),
        "suite": measure(suite(arguments.data / "JSON-Schema-Test-Suite"), arguments.every),
        "sets": measure(sets(bench), arguments.every),
        "maskbench": measure(maskbench(bench), arguments.every),
    }
    print(picture(report))
    if arguments.out:
        with arguments.out.open("a") as out:
            out.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
