"""Record what a real llama-server says, byte by byte, for tests that replay it:

    python -m tests.real.backends.record          writes tests/data/backends/llama_server/

NAME.http is one response as it came over the wire, head and chunks included; `requests.json` has what was asked.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .llama_server import FOLDER, WEIGHTS, Exchange, LlamaServer, request, running, starting, wait

OUT = Path(__file__).parents[2] / "data" / "backends" / "llama_server"
PREFIX = """class Stack:
    def push(self, item):
        self.items.append(item)

    def pop(self):
        return"""
SUFFIX = "\n\n    def __len__(self):\n        return len(self.items)\n"
NEIGHBOUR = {"filename": "units.py", "text": "INCH_MM = 25.4\n\n\ndef inches(mm):\n    return mm / INCH_MM\n"}
SCHEMA = {"type": "object", "properties": {"born": {"type": "integer"}}, "required": ["born"]}
HEALED = 'root ::= "turn" [^\\n]* "\\n"'  # what was typed of the last word, written again by the model
FIELDS = ["content", "stop_type", "stopping_word", "tokens_cached", "tokens_evaluated", "tokens_predicted", "timings"]
FIM = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 24, "temperature": 0, "cache_prompt": False}
LINE = {**FIM, "stop": ["\n"], "response_fields": FIELDS}
LONG = {**LINE, "input_prefix": "total += 1\n" * 400}
DONE_S = 60.0
CUT = 3  # events, after which a client has heard enough


class Recording:
    """The responses of one server, written as they come."""

    def __init__(self, server: LlamaServer, asked: dict[str, Any]) -> None:
        self.server, self._asked = server, asked

    def infill(self, name: str, **body: Any) -> Exchange:
        return self.ask(name, "POST", "/infill", body)

    def ask(self, name: str, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> Exchange:
        found = self.server.ask(method, path, body)
        self.keep(name, found.raw, method, path, body)
        return found

    def keep(self, name: str, raw: bytes, method: str, path: str, body: dict[str, Any] | bytes | None) -> None:
        shown = body.decode() if isinstance(body, bytes) else body
        self._asked[name] = {"method": method, "path": path, **({} if body is None else {"body": shown})}
        (OUT / f"{name}.http").write_bytes(raw)


def answers(to: Recording) -> None:
    to.ask("health", "GET", "/health")
    to.ask("props", "GET", "/props")
    to.ask("slots", "GET", "/slots")
    to.infill("whole", **LINE)
    to.infill("whole_all_fields", **FIM)
    to.infill("stream", **LINE, stream=True)
    to.infill("stream_all_fields", **{**FIM, "n_predict": 2}, stream=True)
    to.infill("stream_limit", **{**LINE, "n_predict": 4}, stream=True)
    to.infill("stream_time_limit", **{**LINE, "stop": [], "n_predict": 200, "t_max_predict_ms": 1}, stream=True)
    to.infill("stream_neighbours", **LINE, input_extra=[NEIGHBOUR], stream=True)
    to.infill("stream_nothing", **{**LINE, "n_predict": 0}, stream=True)
    to.infill("stream_chances", **{**LINE, "n_predict": 3, "response_fields": []}, n_probs=2, stream=True)
    to.infill("stream_unicode", **{**LINE, "input_prefix": 'EURO = "€"\nMORE = "€€"\nMOST = "'}, stream=True)
    value = {**LINE, "input_prefix": "ADA = ", "input_suffix": "\n", "stop": [], "json_schema": SCHEMA}
    to.infill("stream_schema", **{**LINE, **value}, stream=True)
    to.infill("stream_grammar", **{**LINE, "input_prefix": PREFIX[:-4], "grammar": HEALED}, stream=True)
    kept = {**LINE, "cache_prompt": True, "id_slot": 0}
    to.infill("stream_first_key", **kept, stream=True)
    to.infill("stream_second_key", **{**kept, "input_prefix": PREFIX + " "}, stream=True)


def refusals(to: Recording) -> None:
    to.ask("bad_json", "POST", "/infill", b'{"input_prefix": ')
    to.infill("no_prefix", input_suffix=SUFFIX)
    to.infill("bad_type", **{**LINE, "n_predict": "many"})
    to.infill("bad_extra", **LINE, input_extra=[{"filename": "units.py"}])
    to.infill("bad_schema", **LINE, json_schema={"type": "nonsense"})
    to.infill("bad_slot", **{**LINE, "id_slot": 7}, stream=True)
    to.ask("not_found", "GET", "/nothing")


def cancelled(to: Recording) -> None:
    """A client that leaves in the middle of a stream."""
    body = {**LINE, "stop": [], "n_predict": 200, "stream": True}
    with to.server.connect() as connection:
        connection.sendall(request("POST", "/infill", body))
        raw = b""
        while raw.count(b"data: ") < CUT:
            raw += connection.recv(1 << 16)
    wait(lambda: not to.server.busy, DONE_S)
    to.keep("stream_left", raw, "POST", "/infill", body)


def loading(to: Recording) -> None:
    """Before the model is there."""
    to.ask("health_loading", "GET", "/health")
    to.infill("loading", **LINE, stream=True)


@contextmanager
def without_infill() -> Iterator[Path]:
    """The folder of a model that has no tokens for infill."""
    with tempfile.TemporaryDirectory() as folder:
        data = (FOLDER / WEIGHTS).read_bytes().replace(b"<|fim_", b"<|gim_")
        Path(folder, "plain.gguf").write_bytes(data)
        yield Path(folder)


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    asked: dict[str, Any] = {}
    with starting() as server:
        loading(Recording(server, asked))
    with running() as server:
        for part in (answers, refusals, cancelled):
            part(Recording(server, asked))
    with running("--ctx-size", "256") as server:
        Recording(server, asked).infill("too_long", **LONG, stream=True)
    with running("--api-key", "sesame") as server:
        Recording(server, asked).infill("unauthorised", **LINE, stream=True)
    with without_infill() as folder, running(weights="plain.gguf", folder=folder) as server:
        Recording(server, asked).infill("no_infill", **LINE, stream=True)
    (OUT / "requests.json").write_text(json.dumps(asked, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
