"""The real language server with the engine of the recorded sessions. It keeps every message, with its time, in the file
that it is given.

Not a test: record.py has the editors start it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[3]))  # an editor starts it anywhere

from caesura.server.app import App
from caesura.server.lsp.framing import Framer
from caesura.server.lsp.transport import from_stdin, to_stdout

from ..processes.sessions import Engine


class Scribe:
    """Reads and writes as a server does."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._framers = {"in": Framer(), "out": Framer()}
        self._began = time.monotonic()

    def read(self) -> bytes:
        data = from_stdin()
        at = round(1000 * (time.monotonic() - self._began), 2)
        if messages := self._messages("in", data):
            self._keep({"at": at, "in": messages})
        return data

    def write(self, data: bytes) -> None:
        for message in self._messages("out", data):
            self._keep({"out": message})
        to_stdout(data)

    def _messages(self, direction: str, data: bytes) -> list[Any]:
        return [json.loads(body) for body in self._framers[direction].feed(data)]

    def _keep(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._file.flush()


if __name__ == "__main__":
    scribe = Scribe(Path(sys.argv[1]))
    engine = Engine(lambda event: None)
    app = App(lambda options, client, remote: engine)
    sys.exit(app.server.serve(scribe.read, scribe.write))
