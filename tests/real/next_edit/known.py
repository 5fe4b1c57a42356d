"""A language server with nothing but next edits, which are known: each `old` becomes `new`, from the cursor on; a line
that ends with `# more` is followed by two new ones.

Not a test: test_vscode.py has VS Code start it. What the editor reports of the edits stands in REPORTS.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from caesura import paths

REPORTS = "next-edit-reports"  # a file of the runtime folder: the method and the edit's id, a line each
CAPABILITIES = {"textDocumentSync": 1, "experimental": {"caesura": {"nextEdit": True}}}
REPORTED = ("textDocument/didShowInlineEdit", "caesura/didDismissInlineEdit")


def read() -> Any:
    """The next message; None at the end."""
    length = 0
    while line := sys.stdin.buffer.readline():
        if line == b"\r\n":
            return json.loads(sys.stdin.buffer.read(length))
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return None


def send(**message: object) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    sys.stdout.buffer.flush()


def report(method: str, item: Mapping[str, Any]) -> None:
    with (paths.runtime() / REPORTS).open("a", encoding="utf-8") as reports:
        reports.write(f"{method} {item['arguments'][0]}\n")


def edits(document: Mapping[str, Any], text: str, line: int) -> list[object]:
    """The edit for a cursor in that line, in a list, or an empty list. Its id is its line, from 1."""
    lines = text.splitlines()
    places = [number for number, old in enumerate(lines) if "old" in old]
    if not places:
        return []
    place = next((number for number in places if number > line), places[0])
    new = lines[place].replace("old", "new")
    more = "\n    one()\n    two()" if new.endswith("# more") else ""
    end = {"line": place, "character": len(lines[place])}
    command = {"title": "taken", "command": "caesura.nextEdit.accepted", "arguments": [str(place + 1)]}
    where = {"start": {"line": place, "character": 0}, "end": end}
    why = "like your edit in line 1"
    return [{"text": new + more, "textDocument": document, "range": where, "command": command, "why": why}]


def serve() -> None:
    texts: dict[str, str] = {}
    while (message := read()) is not None:
        method, params = message.get("method"), message.get("params") or {}
        document, result = params.get("textDocument", {}), None
        if method == "initialize":
            result = {"capabilities": CAPABILITIES}
        elif method == "initialized":
            send(method="caesura/status", params={"state": "ready", "model": "next edits", "device": "cpu"})
        elif method == "textDocument/didOpen":
            texts[document["uri"]] = document["text"]
        elif method == "textDocument/didChange":
            texts[document["uri"]] = params["contentChanges"][-1]["text"]
        elif method == "textDocument/copilotInlineEdit":
            result = {"edits": edits(document, texts[document["uri"]], params["position"]["line"])}
        elif method in REPORTED:
            report(method, params["item"]["command"])
        elif method == "workspace/executeCommand":
            report(params["command"], params)
        elif method == "exit":
            return
        if "id" in message and method:
            send(id=message["id"], result=result)


if __name__ == "__main__":
    serve()
