"""The fault battery, as data: what a broken or hostile client sends, and what must hold afterwards.

Whatever a case sends, it passes only if the server is alive (or has ended with the exit code that the case asks for),
has answered every request exactly once and nothing else, answers a valid request after it in time, has held its memory
and has logged nothing of a document. `play.py` says how that is seen; it plays the same cases to other servers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

URI = "file:///project/notes.txt"
MARK = "CONFIDENTIAL"  # stands in every document, and may stand in no log

RULES = {  # of the protocol, by the name that cases have for them
    "parse error": "what is no JSON is answered with -32700 and the id null",
    "invalid request": "what is no message is answered with -32600",
    "before initialize": "a request before initialize is answered with -32002",
    "initialize once": "a second initialize is answered with -32600",
    "unknown request": "an unknown request is answered with -32601",
    "unknown notification": "an unknown notification has no answer",
    "invalid params": "a request with invalid parameters is answered with -32602",
    "after shutdown": "a request after shutdown is answered with -32600",
    "exit 0": "exit after shutdown ends the process with 0, and without another word",
    "exit 1": "exit without shutdown ends the process with 1",
    "cancel": "a cancelled request is answered once",
    "parent": "the process ends with the one that initialize names",
}

PARSE, INVALID, UNKNOWN, PARAMS, EARLY, INTERNAL, CANCELLED = -32700, -32600, -32601, -32602, -32002, -32603, -32800
ANY, MAYBE, TWICE = "any", "maybe", "twice"  # one response, whichever; or none; one of two refused

Message = dict[str, Any]


class Hang:
    """Steps that are no bytes: the client closes its side, its process ends, or it stops reading for a while."""


CLOSE, ORPHAN, DEAF = Hang(), Hang(), Hang()


@dataclass(frozen=True)
class Case:
    """`wants`: the code of each request's only response, None for a result. `nameless`: the codes of those with the id
    null, in order. `ends`: the exit code. `text`: what the document must be for the server, `lost` if it must know
    that it does not know. `rule`: which of RULES it shows."""

    name: str
    sends: Sequence[bytes | Hang]
    wants: Mapping[int | str, int | str | None] = field(default_factory=dict)
    nameless: Sequence[int] = ()
    ends: int | None = None
    text: str | None = None
    lost: bool = False
    hello: bool = True
    rule: str = ""
    memory: int = 64  # MiB that the process may grow by


def frame(body: bytes, header: bytes = b"Content-Length: %d\r\n\r\n") -> bytes:
    return (header % len(body) if b"%d" in header else header) + body


def say(method: str, params: Any = None, **more: Any) -> bytes:
    content: Message = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}) | more
    return frame(json.dumps(content).encode())


def opened(text: str, uri: str = URI, **more: Any) -> bytes:
    item = {"uri": uri, "languageId": "plaintext", "version": 1, "text": text, **more}
    return say("textDocument/didOpen", {"textDocument": item})


def change(*changes: Any, version: Any = 2, uri: str = URI) -> bytes:
    return say("textDocument/didChange", {"textDocument": {"uri": uri, "version": version}, "contentChanges": changes})


def span(start: tuple[Any, Any], end: tuple[Any, Any], text: Any) -> Message:
    places = ({"line": line, "character": character} for line, character in (start, end))
    return {"range": dict(zip(("start", "end"), places, strict=True)), "text": text}


def hello(**params: Any) -> bytes:
    return say("initialize", {"processId": None, "capabilities": {}, **params}, id="hello")


def cases(method: str) -> list[Case]:
    """`method`: a request at a position that the server knows."""

    def ask(id: int | str, uri: str = URI, line: Any = 0, character: Any = 0) -> bytes:
        where = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        return say(method, {**where, "context": {"triggerKind": 1}}, id=id)

    return [
        *_json(ask),
        *_frames(ask),
        *_messages(method, ask),
        *_lifecycle(ask),
        *_documents(ask),
        *_edits(),
        *_loads(method, ask),
        *_ends(ask),
    ]


def _json(ask: Any) -> list[Case]:
    broken = {
        "JSON that is malformed": b"{nope",
        "JSON that is cut off": b'{"jsonrpc": "2.0", "id": 1, "method": "shut',
        "JSON with something behind it": b'{"jsonrpc": "2.0", "method": "$/x"} {}',
        "NUL bytes": b"\0" * 40,
        "a byte order mark": b'\xef\xbb\xbf{"jsonrpc": "2.0", "method": "$/x"}',
        "a body of no bytes": b"",
        "UTF-8 that is invalid": b'{"jsonrpc": "2.0", "method": "\xff\xfe"}',
        "UTF-8 that is overlong": b'{"jsonrpc": "2.0", "method": "\xc0\xaf"}',
        "UTF-8 of a surrogate": b'{"jsonrpc": "2.0", "method": "\xed\xa0\x80"}',
        "a body in UTF-16": '{"jsonrpc": "2.0", "method": "$/x"}'.encode("utf-16"),
        "100,000 brackets": b"[" * 100_000,
        "100,000 braces": b'{"a":' * 100_000,
        "NaN": b'{"jsonrpc": "2.0", "method": "$/x", "params": {"a": NaN}}',
        "a number of 10,000 digits": b'{"jsonrpc": "2.0", "method": "$/x", "params": [' + b"9" * 10_000 + b"]}",
    }
    return [
        Case(name, [frame(body), ask(1)], {1: None}, [PARSE], rule="parse error") for name, body in broken.items()
    ] + [
        Case("a number beyond all floats", [frame(b'{"jsonrpc": "2.0", "method": "$/x", "params": [1e400]}')]),
        Case("nesting that is valid", [say("$/x", json.loads("[" * 400 + "]" * 400)), ask(1)], {1: None}),
        Case("100,000 keys", [say("caesura/cursor", {f"k{i}": i for i in range(100_000)}), ask(1)], {1: None}),
        Case("a key that names a type", [say("caesura/cursor", {"type_name": "0 (", "self": 1}), ask(1)], {1: None}),
        Case("a text of 20 MB in an unknown place", [say("$/x", ["x" * 20_000_000]), ask(1)], {1: None}, memory=160),
    ]


def _frames(ask: Any) -> list[Case]:
    request = ask(1)
    body = request.partition(b"\r\n\r\n")[2]
    one = {1: None}
    taken = {
        "a header in lower case": b"content-length: %d\r\n\r\n",
        "line feeds alone": b"Content-Length: %d\n\n",
        "blanks around the length": b"Content-Length:   %d  \r\n\r\n",
        "a length without a blank": b"Content-Length:%d\r\n\r\n",
        "a header that nobody knows": b"X-Other: 1\r\nContent-Length: %d\r\nX-More: 2\r\n\r\n",
        "the type before the length": b"Content-Type: application/vscode-jsonrpc\r\nContent-Length: %d\r\n\r\n",
        "a stray line break before the header": b"\n\r\nContent-Length: %d\r\n\r\n",
        "prose before the header": b"Warning: something is odd.\nContent-Length: %d\r\n\r\n",
    }
    skipped = {
        "a length that is no number": b"Content-Length: abc\r\n\r\n{}",
        "a length that is negative": b"Content-Length: -5\r\n\r\n{}",
        "a length of 40 digits": b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
        "no length": b"Content-Type: x\r\n\r\n{}",
        "10,000 header lines": b"X-Y: z\r\n" * 10_000 + b"\r\n",
        "10 MB without a line break": b"x" * 10_000_000,
        "an answer of HTTP": b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n<html></html>\r\n",
    }
    late = b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return (
        [Case(name, [frame(body, header)], one) for name, header in taken.items()]
        + [Case(name, [noise, b"\r\n\r\n", request], one) for name, noise in skipped.items()]
        + [
            Case("a header of HTTP before a request", [late, request], one),
            Case(
                "a length that is too short", [frame(body, b"Content-Length: 20\r\n\r\n"), ask(2)], {2: None}, [PARSE]
            ),
            Case("65,536 bytes of lengths before the right one", [b"Content-Length: 1\r\n" * 3640, request], one),
            Case("a request byte by byte", [request[i : i + 1] for i in range(len(request))], one),
            Case("a header that announces 8 GiB", [b"Content-Length: 8589934592\r\n\r\n" + b"x" * 200_000], ends=1),
            Case("a header that announces 1 TiB", [b"Content-Length: 1099511627776\r\n\r\n", b"x" * 9000], ends=1),
        ]
    )


def _messages(method: str, ask: Any) -> list[Case]:
    valid = {"jsonrpc": "2.0", "method": method}
    invalid = {
        "a batch": [valid | {"id": 5}],
        "a text for a message": "shutdown",
        "null for a message": None,
        "a number for a message": 7,
        "an empty object": {},
        "neither method nor result": {"jsonrpc": "2.0", "id": 5.5},
        "an id that is an object": valid | {"id": {}},
        "an id that is a list": valid | {"id": [1]},
        "an id that is a fraction": valid | {"id": 1.5},
        "an id that is true": valid | {"id": True},
        "an id that is null": valid | {"id": None},
    }
    answered = {
        "another version of JSON-RPC": {"jsonrpc": "1.0", "method": method, "id": 5},
        "no version of JSON-RPC": {"method": method, "id": 5},
        "a method that is a number": {"jsonrpc": "2.0", "method": 5, "id": 5},
        "a method that is null": {"jsonrpc": "2.0", "method": None, "id": 5},
    }
    rule = "invalid request"
    where = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 0}, "context": {"triggerKind": 1}}
    bad = {
        "no parameters": None,
        "a list of parameters": [1, 2],
        "a text for parameters": "abc",
        "parameters without a document": {"position": where["position"]},
        "parameters without a position": {"textDocument": where["textDocument"]},
        "a position that is a text": where | {"position": {"line": "0", "character": 0}},
        "a position that is a fraction": where | {"position": {"line": 0, "character": 1.5}},
        "a position that is negative": where | {"position": {"line": -1, "character": 0}},
        "a position that is null": where | {"position": None},
        "a URI that is a number": where | {"textDocument": {"uri": 5}},
    }
    response = {"jsonrpc": "2.0", "id": 1}
    return (
        [Case(n, [frame(json.dumps(b).encode()), ask(1)], {1: None}, [INVALID], rule=rule) for n, b in invalid.items()]
        + [Case(n, [frame(json.dumps(b).encode()), ask(1)], {1: None, 5: INVALID}) for n, b in answered.items()]
        + [Case(n, [say(method, p, id=5), ask(1)], {1: None, 5: PARAMS}, rule="invalid params") for n, p in bad.items()]
        + [
            Case("a request that nobody knows", [say("no/such", {}, id=5)], {5: UNKNOWN}, rule="unknown request"),
            Case("a request of the protocol's own", [say("$/x", {}, id=5)], {5: UNKNOWN}, rule="unknown request"),
            Case("a notification that nobody knows", [say("no/such", {})], rule="unknown notification"),
            Case("a notification of the protocol's own", [say("$/x", {})], rule="unknown notification"),
            Case(
                "a kind that is a text",
                [say(method, where | {"context": {"triggerKind": MARK}}, id=5), ask(1)],
                {1: None, 5: PARAMS},
            ),
            Case("a notification with an id", [say("initialized", {}, id=5)], {5: INVALID}),
            Case("a request without an id", [say(method, where), ask(1)], {1: None}),
            Case("an id that is a text", [ask("seven")], {"seven": None}),
            Case("an id with half a character", [ask("\ud800")], {"\ud800": None}),
            Case("a response to nobody", [frame(json.dumps(response | {"result": 5}).encode()), ask(1)], {1: None}),
            Case(
                "a response to a request of the client's own",
                [opened(MARK), ask(1), frame(json.dumps(response | {"result": 5}).encode())],
                {1: None},
            ),
            Case(
                "an error without a cause",
                [frame(json.dumps(response | {"id": None, "error": {"code": 1, "message": "x"}}).encode())],
            ),
            Case("a response that is an error of another kind", [frame(json.dumps(response | {"error": 7}).encode())]),
        ]
    )


def _lifecycle(ask: Any) -> list[Case]:
    shutdown, leave = say("shutdown", id="bye"), say("exit")
    return [
        Case(
            "a request before initialize",
            [ask(1), hello()],
            {1: EARLY, "hello": None},
            hello=False,
            rule="before initialize",
        ),
        Case("a document before initialize", [opened(MARK), hello(), ask(1)], {"hello": None, 1: None}, hello=False),
        Case("shutdown before initialize", [shutdown, hello()], {"bye": EARLY, "hello": None}, hello=False),
        Case(
            "initialize with bad parameters, then well",
            [say("initialize", 5, id=1), hello()],
            {1: PARAMS, "hello": None},
            hello=False,
        ),
        Case("initialize twice", [hello(), ask(1)], {"hello": INVALID, 1: None}, rule="initialize once"),
        Case("initialize, and no initialized", [hello(), ask(1)], {"hello": None, 1: None}, hello=False),
        Case(
            "a process id beyond all numbers", [hello(processId=2**70), ask(1)], {"hello": None, 1: None}, hello=False
        ),
        Case("a process id that is negative", [hello(processId=-1), ask(1)], {"hello": None, 1: None}, hello=False),
        Case(
            "odd things in initialize",
            [hello(clientInfo={"name": "x", "version": 9}, rootUri="\ud800", initializationOptions=[1]), ask(1)],
            {"hello": None, 1: None},
            hello=False,
        ),
        Case(
            "a request after shutdown",
            [shutdown, ask(1), leave],
            {"bye": None, 1: INVALID},
            ends=0,
            rule="after shutdown",
        ),
        Case(
            "shutdown twice",
            [shutdown, say("shutdown", id=1), leave],
            {"bye": None, 1: INVALID},
            ends=0,
            rule="after shutdown",
        ),
        Case("a document after shutdown", [shutdown, opened(MARK), leave], {"bye": None}, ends=0),
        Case("shutdown and exit", [shutdown, leave], {"bye": None}, ends=0, rule="exit 0"),
        Case("a request behind exit", [shutdown, leave, ask(1), ask(2)], {"bye": None}, ends=0, rule="exit 0"),
        Case("exit without shutdown", [leave], ends=1, rule="exit 1"),
        Case("exit before initialize", [leave], ends=1, hello=False, rule="exit 1"),
        Case(
            "settings of wrong types",
            [
                say(
                    "workspace/didChangeConfiguration",
                    {"settings": {"caesura": {"deadlineMs": "x", "enable": [], "languages": 5}}},
                ),
                ask(1),
            ],
            {1: None},
        ),
        Case("settings that are none", [say("workspace/didChangeConfiguration", {"settings": 5}), ask(1)], {1: None}),
        Case(
            "folders that are none",
            [
                say(
                    "workspace/didChangeWorkspaceFolders",
                    {"event": {"added": [{"uri": "\0", "name": ""}], "removed": []}},
                ),
                ask(1),
            ],
            {1: None},
        ),
    ]


def _documents(ask: Any) -> list[Case]:
    uris = [
        "untitled:Untitled-1",
        "vscode-notebook-cell:/a.ipynb#X",
        "file:///a%20b%2Fc",
        "file:///C:/A",
        "not a URI",
        "file://host/share/x",
        "file:///\0",
        "file:///%00",
        "file:///\ud800",
        "http://[",
        "",
        "x" * 100_000,
    ]
    closed = say("textDocument/didClose", {"textDocument": {"uri": URI}})
    return [Case(f"a document called {uri[:20]!a}", [opened(MARK, uri), ask(1, uri)], {1: None}) for uri in uris] + [
        Case("a document opened twice", [opened("x"), opened(MARK)], text=MARK),
        Case("a document closed that is not open", [closed, closed, opened(MARK)], text=MARK),
        Case("a change of a document that is not open", [change({"text": MARK})]),
        Case("a change after the close", [opened("x"), closed, change({"text": MARK}), ask(1)], {1: None}),
        Case("a document without a text", [opened(None), ask(1)], {1: None}),  # type: ignore[arg-type]
        Case("a language that is a number", [opened(MARK, languageId=7), ask(1)], {1: None}),
        Case("half a character", [opened(f"{MARK} a\ud83db")], text=f"{MARK} a\ufffdb"),
        Case(
            "line ends that are none",
            [opened(f"{MARK}\x0c\x0b\x85\u2028x"), change(span((0, 16), (0, 16), "!"))],
            text=f"{MARK}\x0c\x0b\x85\u2028!x",
        ),
        Case(
            "line ends of all kinds",
            [opened(f"a\r\nb\rc\n{MARK}"), change(span((3, 0), (3, 0), "!"))],
            text=f"a\r\nb\rc\n!{MARK}",
        ),
        Case(
            "a line feed behind a carriage return",
            [opened(f"{MARK}\rx"), change(span((1, 0), (1, 0), "\n")), change(span((1, 0), (1, 1), "y"))],
            text=f"{MARK}\r\ny",
        ),
        Case("a document of 10 MB", [opened(MARK * 850_000), ask(1)], {1: None}, memory=240),
        Case(
            "a document that grows to 9 MB",
            [opened(MARK), change(span((0, 0), (0, 0), "x" * 9_000_000)), ask(1)],
            {1: None},
            lost=True,
            memory=240,
        ),
    ]


def _edits() -> list[Case]:
    text = f"abcdef\n{MARK}"
    insert = span((0, 0), (0, 0), "Z")
    kept = {
        "a range behind the end of the text": ([span((9, 0), (9, 9), "Z")], f"{text}Z"),
        "a range behind the end of a line": ([span((0, 99), (0, 100), "Z")], f"abcdefZ\n{MARK}"),
        "the greatest number": ([span((2**31 - 1, 2**31 - 1), (2**31 - 1, 2**31 - 1), "Z")], f"{text}Z"),
        "changes one after another": ([insert, span((0, 1), (0, 2), ""), insert], f"ZZbcdef\n{MARK}"),
        "no change at all": ([], text),
        "the whole text deleted": ([span((0, 0), (9, 0), "")], ""),
        "inside of a pair of surrogates": ([{"text": "a😀b"}, span((0, 2), (0, 3), "Z")], "aZb"),
    }
    lost = {
        "an inverted range": span((0, 4), (0, 1), "Z"),
        "an inverted range behind the end of a line": span((0, 99), (0, 98), "Z"),
        "an inverted range of lines": span((1, 0), (0, 5), "Z"),
        "a range that is negative": span((0, -1), (0, 2), "Z"),
        "a range of fractions": span((0, 1.5), (0, 2), "Z"),
        "a range beyond all floats": span((0, float("1e300")), (0, 2), "Z"),
        "a range of true": span((True, 0), (True, 0), "Z"),
        "a text that is null": {"text": None},
        "a text that is a number": {"text": 5},
        "a change without a text": {"range": insert["range"]},
        "a change that is a text": "Z",
    }
    garbled = say("textDocument/didChange", MARK)
    return (
        [Case(f"edit: {n}", [opened(text), change(*edits)], text=found) for n, (edits, found) in kept.items()]
        + [Case(f"edit: {n}", [opened(text), change(edit), change(insert)], lost=True) for n, edit in lost.items()]
        + [
            Case("edit: of nobody knows what", [opened(text), garbled], lost=True),
            Case("edit: a version that is a text", [opened(text), change(insert, version="2")], lost=True),
            Case("edit: a version that is null", [opened(text), change(insert, version=None)], lost=True),
            Case("edit: a version beyond all numbers", [opened(text), change(insert, version=2**70)], lost=True),
            Case("edit: the same version", [opened(text), change(insert, version=1)], text=f"Z{text}"),
            Case(
                "edit: all is well again with the whole text",
                [opened(text), change(lost["an inverted range"]), change({"text": f"{MARK}!"}), change(insert)],
                text=f"Z{MARK}!",
            ),
        ]
    )


def _loads(method: str, ask: Any) -> list[Case]:
    def cancel(id: Any) -> bytes:
        return say("$/cancelRequest", {"id": id})

    typed = [change(span((0, 0), (0, 0), "x"), version=i) + ask(i) + cancel(i) for i in range(400)]
    return [
        Case("a cancel in the same breath", [opened(f"SLOW {MARK}"), ask(1) + cancel(1)], {1: ANY}, rule="cancel"),
        Case(
            "a cancel twice, and of nobody",
            [opened(f"SLOW {MARK}"), ask(1) + cancel(1) + cancel(1) + cancel(77)],
            {1: ANY},
            rule="cancel",
        ),
        Case("a cancel before its request", [cancel(1), ask(1)], {1: None}, rule="cancel"),
        Case(
            "a cancel without an id",
            [say("$/cancelRequest", {}), say("$/cancelRequest", {"id": []}), ask(1)],
            {1: None},
        ),
        Case(
            "an id that is in use",
            [opened(f"SLOW {MARK}"), ask(1) + say(method, {}, id=1) + ask(2)],
            {2: None, 1: TWICE},
        ),
        Case("3,000 requests at once", [opened(MARK), *(ask(i) for i in range(3000))], dict.fromkeys(range(3000))),
        Case("400 edits, each with a request and its cancel", [opened(MARK), *typed], dict.fromkeys(range(400), ANY)),
        Case(
            "a client that does not read",
            [opened(MARK), DEAF, *(ask(i) for i in range(2000))],  # fewer than a server keeps before its client waits
            dict.fromkeys(range(2000)),
        ),
    ]


def _ends(ask: Any) -> list[Case]:
    return [
        Case("the client closes", [ask(1), CLOSE], {1: MAYBE}, ends=1),
        Case("the client closes before it says anything", [CLOSE], ends=1, hello=False),
        Case("the client closes in the middle of a message", [b"Content-Length: 500\r\n\r\n{", CLOSE], ends=1),
        Case("the client's process ends, its pipe stays", [ORPHAN], ends=1, rule="parent", hello=False),
    ]
