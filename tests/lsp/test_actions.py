"""What an editor gets from the code actions and commands that fill: the real server process, with the fake engine of
lsp_server.py."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from .test_lsp import URI, Client, server

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKSPACE = {"workspaceEdit": {"documentChanges": True, "metadataSupport": True}, "applyEdit": True}
LITERALS = {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["refactor", "quickfix"]}}}
RESOLVES = {
    **LITERALS,
    "dataSupport": True,
    "resolveSupport": {"properties": ["edit"]},
    "tagSupport": {"valueSet": [1]},
}


class Editor:
    """A client that has one document, applies what the server asks it to, and tells the server so."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.text = ""
        self.version = 0
        self.before: list[Any] = []  # jobs that are not ours
        self.old = self.seen = len(client.others)  # messages of the server that were looked at

    async def start(self, text: str = "", code_action: Any = RESOLVES, **more: Any) -> Any:
        capabilities = {
            "general": {"positionEncodings": ["utf-16"]},
            "workspace": WORKSPACE,
            "textDocument": {"codeAction": code_action},
            **more,
        }
        typing = {"warm": False}  # no jobs but those that are asked for
        start = {"processId": None, "capabilities": capabilities, "initializationOptions": typing}
        result = await self.client.call("initialize", start)
        self.client.notify("initialized", {})
        self.open(text)
        return result

    def open(self, text: str, language: str = "python") -> None:
        self.text = text
        document = {"uri": URI, "languageId": language, "version": 0, "text": text}
        self.client.notify("textDocument/didOpen", {"textDocument": document})

    def command(self, name: str, *ranges: Any, **more: Any) -> "asyncio.Future[dict[str, Any]]":
        token = {"workDoneToken": more.pop("token")} if "token" in more else {}
        argument = {"uri": URI, "ranges": ranges, **more}
        return self.client.ask("workspace/executeCommand", {"command": name, "arguments": [argument], **token})

    async def actions(self, range: Any, **context: Any) -> list[Any]:
        where = {"textDocument": {"uri": URI}, "range": range}
        return await self.client.call("textDocument/codeAction", {**where, "context": {"diagnostics": [], **context}})  # type: ignore[no-any-return]

    async def engine(self, *choices: list[str], done: bool = True, jobs: int = 1) -> Any:
        """Wait for the job number `jobs`, and let it say this."""
        known = await self.until(lambda known: len(known["jobs"]) >= jobs)
        return await self.tell({"choices": choices, "done": done}) if choices else known

    async def until(self, found: Callable[[Any], bool]) -> Any:
        for _ in range(500):
            if found(known := await self.tell({})):
                return known
        raise AssertionError(f"not found in {known}")

    async def tell(self, order: Any) -> Any:
        known = await self.client.call("test/engine", order)
        return known | {"jobs": known["jobs"][len(self.before) :]}

    async def answer(self, request: "asyncio.Future[dict[str, Any]]", *, applies: bool = True) -> Any:
        """The command's answer, while we do what the server asks for."""
        while not request.done():
            await self.client.call("test/engine", {})
            for message in self.client.others[self.seen :]:
                self.seen += 1
                if message.get("method") == "workspace/applyEdit":
                    if applies:
                        self.apply(message["params"]["edit"])
                    self.client.send({"id": message["id"], "result": {"applied": applies}})
        response = request.result()
        assert "error" not in response, response
        return response["result"]

    def apply(self, edit: Any) -> None:
        [change] = edit["documentChanges"]
        assert change["textDocument"] == {"uri": URI, "version": self.version}
        data = self.text.encode("utf-16-le")
        for one in reversed(change["edits"]):
            start, end = self._byte(one["range"]["start"]), self._byte(one["range"]["end"])
            data = data[:start] + one["newText"].encode("utf-16-le") + data[end:]
        self.edit(data.decode("utf-16-le"))

    def edit(self, text: str) -> None:
        self.text = text
        self.version += 1
        whole = {"textDocument": {"uri": URI, "version": self.version}, "contentChanges": [{"text": text}]}
        self.client.notify("textDocument/didChange", whole)

    def _byte(self, position: Any) -> int:
        lines = self.text.split("\n")[: position["line"]]
        return 2 * position["character"] + sum(len(line.encode("utf-16-le")) + 2 for line in lines)

    def said(self, method: str) -> list[Any]:
        return [message["params"] for message in self.client.others[self.old :] if message.get("method") == method]

    def logged(self) -> list[str]:
        return [params["message"] for params in self.said("window/logMessage")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Client]:
    """One server for all tests that need no other capabilities."""
    async with server() as client:
        await Editor(client).start()
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def editor(shared: Client) -> AsyncIterator[Editor]:
    editor = Editor(shared)
    editor.before = (await editor.tell({}))["jobs"]
    yield editor
    shared.notify("textDocument/didClose", {"textDocument": {"uri": URI}})


@pytest_asyncio.fixture(loop_scope="module")
async def other() -> AsyncIterator[Editor]:
    """An editor with a server of its own, not yet initialised."""
    async with server() as client:
        yield Editor(client)


def at(line: int, character: int, end_line: int | None = None, end: int | None = None) -> Any:
    last = {"line": line if end_line is None else end_line, "character": character if end is None else end}
    return {"start": {"line": line, "character": character}, "end": last}


async def test_commands_and_kinds_are_advertised(other: Editor) -> None:
    capabilities = (await other.start(""))["capabilities"]
    assert {
        "caesura.fillSelection",
        "caesura.fillHoles",
        "caesura.repair",
        "caesura.another",
        "caesura.keep",
        "caesura.edit",
    } <= set(capabilities["executeCommandProvider"]["commands"])
    kinds = {"codeActionKinds": ["refactor.rewrite", "quickfix"], "resolveProvider": True}
    assert capabilities["codeActionProvider"] == kinds


# Commands


async def test_a_selection_is_filled_by_one_versioned_edit(editor: Editor) -> None:
    editor.open('x = "\U0001f600"; y = old  # \U0001f600\nz = 1\n')
    filling = editor.command("caesura.fillSelection", at(0, 14, 0, 17), version=0)
    assert (await editor.engine(["new + 1"]))["jobs"][0]["texts"] == [None]
    answer = await editor.answer(filling)
    assert editor.text == 'x = "\U0001f600"; y = new + 1  # \U0001f600\nz = 1\n'
    assert (answer["applied"], answer["holes"], answer["unfilled"]) == (True, 1, [])
    [asked] = editor.said("workspace/applyEdit")
    assert asked["label"] == "Caesura: Infill selection"
    assert asked["metadata"] == {"isRefactoring": True}


async def test_holes_of_a_whole_document_and_one_without_a_proposal(editor: Editor) -> None:
    editor.open("def f(<FILL>):\n    return <FILL>\n\nf(<FILL>)\n")
    filling = editor.command("caesura.fillHoles")
    known = await editor.engine(["a", "a", ""])
    assert known["jobs"][0]["texts"] == [None, "):\n    return ", None, "\n\nf(", None]
    answer = await editor.answer(filling)
    assert editor.text == "def f(a):\n    return a\n\nf(<FILL>)\n"
    assert (answer["applied"], answer["holes"], answer["unfilled"]) == (True, 3, [at(3, 2, 3, 8)])
    assert "line 4" in answer["message"]


async def test_a_preview_leaves_the_text_to_the_editor(editor: Editor) -> None:
    editor.open("x = <FILL>\n")
    filling = editor.command("caesura.fillHoles", preview=True)
    await editor.engine(["1"])
    answer = await editor.answer(filling)
    assert answer["applied"] is False
    assert answer["edit"]["documentChanges"][0]["edits"] == [{"range": at(0, 4, 0, 10), "newText": "1"}]
    assert editor.said("workspace/applyEdit") == []
    editor.apply(answer["edit"])
    another = editor.command("caesura.another", id=answer["id"])
    await editor.engine(["2"], jobs=2)
    assert (await editor.answer(another))["applied"]
    assert editor.text == "x = 2\n"


async def test_another_and_a_part_that_is_kept(editor: Editor) -> None:
    editor.open("x = <FILL>  # \U0001f600\n")
    filling = editor.command("caesura.fillHoles")
    await editor.engine(["a * b"], ["a + b"])
    await editor.answer(filling)
    await editor.answer(editor.command("caesura.another"))
    assert editor.text == "x = a + b  # \U0001f600\n"
    keeping = editor.command("caesura.keep", at(0, 6, 0, 7))
    assert (await editor.engine(["c ", " d"], jobs=2))["jobs"][1]["texts"] == [None, "+", None]
    assert (await editor.answer(keeping))["applied"]
    assert editor.text == "x = c + d  # \U0001f600\n"


async def test_a_broken_region_is_repaired(editor: Editor) -> None:
    editor.open("def f(x):\n    for i in range(10)\n        print(i)\n")
    repairing = editor.command("caesura.repair", at(1, 8))
    await editor.engine([":"])
    assert (await editor.answer(repairing))["applied"]
    assert editor.text == "def f(x):\n    for i in range(10):\n        print(i)\n"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("caesura.fillHoles", {"version": 7}, "changed meanwhile; try again"),
        ("caesura.fillHoles", {"marker": "???"}, "no marker ???"),
        ("caesura.fillHoles", {"uri": "file:///project/b.py"}, "not open here"),
        ("caesura.fillHoles", {"ranges": 3}, "ranges"),
        ("caesura.fillSelection", {}, "No ranges"),
        ("caesura.another", {}, "no longer known"),
        ("caesura.repair", {"ranges": [at(0, 0)]}, "Nothing is broken"),
        ("caesura.nothing", {}, "no command caesura.nothing"),
    ],
)
async def test_what_cannot_be_done_is_an_answer_with_a_reason(
    editor: Editor, name: str, arguments: Any, reason: str
) -> None:
    editor.open("x = '<FILL>'\n")
    answer = await editor.answer(editor.command(name, **arguments))
    assert answer["applied"] is False
    assert reason in answer["message"]
    assert len([line for line in editor.logged() if reason in line]) == 1
    assert editor.said("window/showMessage") == []
    assert (await editor.engine(jobs=0))["jobs"] == []


async def test_an_edit_meanwhile_means_that_nothing_is_applied(editor: Editor) -> None:
    editor.open("x = <FILL>\n")
    filling = editor.command("caesura.fillHoles")
    await editor.engine()
    editor.edit("y = <FILL>\n")
    known = await editor.engine(["1"])
    answer = await editor.answer(filling)
    assert (answer["applied"], answer["message"]) == (False, "The text has changed meanwhile; try again.")
    assert editor.said("workspace/applyEdit") == []
    assert editor.text == "y = <FILL>\n"
    assert len(known["jobs"]) == 1


async def test_an_edit_that_the_editor_refuses_is_said(editor: Editor) -> None:
    editor.open("x = <FILL>\n")
    filling = editor.command("caesura.fillHoles")
    await editor.engine(["1"])
    answer = await editor.answer(filling, applies=False)
    assert answer["applied"] is False
    assert "did not apply" in answer["message"]


async def test_progress_counts_the_holes_and_its_cancel_frees_the_job(editor: Editor) -> None:
    editor.open("x = <FILL>\ny = <FILL>\n")
    filling = editor.command("caesura.fillHoles", token="bar")
    await editor.engine(["1", ""], done=False)
    await editor.until(lambda _: len(editor.said("$/progress")) == 2)
    editor.client.notify("window/workDoneProgress/cancel", {"token": "bar"})
    answer = await editor.answer(filling)
    assert (answer["applied"], answer["message"]) == (False, "The fill was cancelled.")
    known = await editor.until(lambda known: known["live"] == 0)
    assert known["cancelled"][-1] == known["jobs"][0]["id"]
    values = [(p["value"]["kind"], p["value"].get("percentage")) for p in editor.said("$/progress")]
    assert values == [("begin", 0), ("report", 50), ("end", None)]
    assert editor.said("workspace/applyEdit") == []


async def test_a_token_used_twice_cancels_the_newer_fill(editor: Editor) -> None:
    editor.open("f(<FILL>)\n")
    first = editor.command("caesura.fillHoles", token="bar")
    number = editor.client._next
    await editor.engine(jobs=1)
    second = editor.command("caesura.fillHoles", token="bar")
    await editor.engine(jobs=2)
    editor.client.send({"method": "$/cancelRequest", "params": {"id": number}})
    await editor.until(lambda known: known["live"] == 1)
    editor.client.notify("window/workDoneProgress/cancel", {"token": "bar"})
    assert (await editor.answer(second))["message"] == "The fill was cancelled."
    await asyncio.wait([first])


async def test_a_document_that_is_opened_again_gives_up_its_fill(editor: Editor) -> None:
    editor.open("f(<FILL>)\n")
    filling = editor.command("caesura.fillHoles")
    await editor.engine([""], done=False)
    editor.open("g(<FILL>)\n")
    await editor.tell({"choices": [[""]], "done": False})
    assert "the document was closed" in (await editor.answer(filling))["message"]
    assert (await editor.tell({}))["live"] == 0


async def test_progress_of_our_own_where_the_editor_draws_it(other: Editor) -> None:
    await other.start("x = <FILL>\n", window={"workDoneProgress": True})
    filling = other.command("caesura.fillHoles")
    await other.until(lambda _: bool(other.said("window/workDoneProgress/create")))
    [create] = [m for m in other.client.others if m.get("method") == "window/workDoneProgress/create"]
    other.client.send({"id": create["id"], "result": None})
    await other.until(lambda _: bool(other.said("$/progress")))
    await other.engine(["1"])
    assert (await other.answer(filling))["applied"]
    assert {p["token"] for p in other.said("$/progress")} == {create["params"]["token"]}
    assert [p["value"]["kind"] for p in other.said("$/progress")][-1] == "end"


async def test_a_request_that_is_cancelled_frees_its_job(editor: Editor) -> None:
    editor.open("x = <FILL>\n")
    filling = editor.command("caesura.fillHoles", token="bar")
    await editor.engine()
    editor.client.notify("$/cancelRequest", {"id": editor.client._next - 1})
    await editor.until(lambda known: known["live"] == 0)
    response = await asyncio.wait_for(filling, 20)
    assert response["error"]["code"] == -32800
    assert editor.said("$/progress")[-1]["value"]["kind"] == "end"
    again = editor.command("caesura.fillHoles")
    await editor.engine(["1"], jobs=2)
    assert (await editor.answer(again))["applied"]


async def test_an_engine_that_is_missing_is_said() -> None:
    async with server("--missing") as client:
        editor = Editor(client)
        await editor.start("x = <FILL>\n")
        answer = await editor.answer(editor.command("caesura.fillHoles"))
        assert answer == {"applied": False, "message": "There is no engine here."}


# Code actions


async def test_actions_are_offered_where_they_make_sense(editor: Editor) -> None:
    editor.open("x = old\ny = <FILL>\nz = (1\n")
    assert [a["title"] for a in await editor.actions(at(0, 4, 0, 7))] == ["Infill selection"]
    both = await editor.actions(at(1, 0, 1, 10), only=["refactor"])
    assert [action["title"] for action in both] == ["Infill the hole", "Infill selection"]
    assert await editor.actions(at(0, 4, 0, 7), only=["source"]) == []
    for _ in range(200):
        found = await editor.actions(at(2, 3), only=["quickfix"])
        if found:  # once the tree is parsed
            break
    [action] = found
    assert (action["title"], action["kind"], action["tags"]) == ("Repair this region", "quickfix", [1])
    assert "edit" not in action
    assert "command" not in action


async def test_in_code_a_dollar_is_no_hole(editor: Editor) -> None:
    editor.open("SELECT * FROM t WHERE id = $1 AND k = $2;\n", "sql")
    assert [action["title"] for action in await editor.actions(at(0, 0, 0, 41))] == ["Infill selection"]
    filling = editor.command("caesura.fillHoles", at(0, 0, 0, 41))
    assert "no marker" in (await editor.answer(filling))["message"]


async def test_a_client_has_a_snippet_filled_and_learns_what_was_left(editor: Editor) -> None:
    editor.open("for ${1:item} in f(${2/a/b/}):\n    print($1)\n", "plaintext")
    filling = editor.command("caesura.fillHoles", at(0, 0, 1, 13), snippet=True)
    await editor.engine(["row"])
    answer = await editor.answer(filling)
    assert editor.text == "for row in f(${2/a/b/}):\n    print(row)\n"
    assert answer["message"].startswith("Left as it is: ${2/a/b/};")


async def test_an_action_gets_its_edit_when_it_is_chosen(editor: Editor) -> None:
    editor.open("x = old\n")
    [action] = await editor.actions(at(0, 4, 0, 7))
    assert (await editor.engine(jobs=0))["jobs"] == []
    resolving = editor.client.ask("codeAction/resolve", action)
    await editor.engine(["new"])
    resolved = (await asyncio.wait_for(resolving, 20))["result"]
    editor.apply(resolved["edit"])
    assert editor.text == "x = new\n"
    another = editor.command("caesura.another")
    await editor.engine(["newer"], jobs=2)
    await editor.answer(another)
    assert editor.text == "x = newer\n"


async def test_an_action_for_an_older_text_gets_no_edit(editor: Editor) -> None:
    editor.open("x = old\n")
    [action] = await editor.actions(at(0, 4, 0, 7))
    editor.edit("x = other\n")
    assert "edit" not in await editor.client.call("codeAction/resolve", action)
    assert any("changed meanwhile" in line for line in editor.logged())
    assert (await editor.engine(jobs=0))["jobs"] == []


async def test_an_editor_that_cannot_resolve_gets_commands(other: Editor) -> None:
    await other.start("x = old\n", LITERALS)
    [action] = await other.actions(at(0, 4, 0, 7))
    assert "tags" not in action
    call = action["command"]
    filling = other.client.ask("workspace/executeCommand", {"command": call["command"], "arguments": call["arguments"]})
    await other.engine(["new"])
    await other.answer(filling)
    assert other.text == "x = new\n"


async def test_an_editor_without_literals_gets_bare_commands(other: Editor) -> None:
    await other.start("x = old\n", {})
    [call] = await other.actions(at(0, 4, 0, 7))
    assert call["command"] == "caesura.fillSelection"


# Structured edits


async def test_a_structured_edit_is_one_versioned_edit_with_what_is_sure_of_it(editor: Editor) -> None:
    editor.open('{\n  "a": 1, // \U0001f600\n  "b": null,\n}\n', "jsonc")
    editing = editor.command("caesura.edit", at(2, 7), version=0)
    known = await editor.engine(["[true]"])
    assert known["jobs"][0]["prefix"].endswith('"b": ')
    answer = await editor.answer(editing)
    assert editor.text == '{\n  "a": 1, // \U0001f600\n  "b": [true],\n}\n'
    assert (answer["applied"], answer["level"], answer["holes"]) == (True, "valid", 1)


async def test_several_places_are_edited_as_one_and_shown_first_on_request(editor: Editor) -> None:
    editor.open("[1, 2, 3]\n", "json")
    editing = editor.command("caesura.edit", at(0, 1, 0, 2), at(0, 7, 0, 8), preview=True)
    await editor.engine(["10"])
    await editor.engine(["30"], jobs=2)
    answer = await editor.answer(editing)
    assert (answer["applied"], answer["level"]) == (False, "valid")
    assert editor.said("workspace/applyEdit") == []
    editor.apply(answer["edit"])
    assert editor.text == "[10, 2, 30]\n"


async def test_structured_edits_are_offered_by_title_and_resolved_when_chosen(editor: Editor) -> None:
    editor.open('{"a": 1}\n', "json")
    found = await editor.actions(at(0, 7))
    assert 0 < len(found) <= 3
    action = next(one for one in found if one["title"] == "Add a member")
    assert (action["kind"], "edit" in action) == ("refactor.rewrite", False)
    resolving = editor.client.ask("codeAction/resolve", action)
    await editor.engine(['"b": 2'])
    editor.apply((await asyncio.wait_for(resolving, 20))["result"]["edit"])
    assert editor.text == '{"a": 1, "b": 2}\n'
    assert any("Add a member: valid form, guessed values." in line for line in editor.logged())


@pytest.mark.parametrize(
    ("text", "language", "more", "reason"),
    [
        ('{"a": 1]', "json", {}, "broken at 1:8"),
        ('{"a": 1}', "json", {"offer": "Add a row"}, "There is no such edit here"),
        ('{"a": 1}', "json", {"schema": "none.json"}, "does not exist"),
        ("x = (old)", "python", {}, "JSON, Markdown, YAML and TOML only"),
    ],
)
async def test_what_cannot_be_edited_is_said_and_offered_by_nobody(
    editor: Editor, text: str, language: str, more: Any, reason: str
) -> None:
    editor.open(text, language)
    answer = await editor.answer(editor.command("caesura.edit", at(0, 6, 0, 7), **more))
    assert answer["applied"] is False
    assert reason in answer["message"]
    if not more:
        others = ["Infill selection"] if language == "python" else []
        assert [one["title"] for one in await editor.actions(at(0, 6, 0, 7), only=["refactor"])] == others
    assert editor.text == text


@pytest.mark.parametrize("column", [1, 4, 7])
async def test_a_block_cursor_on_a_bracket_or_a_quote_is_a_cursor(editor: Editor, column: int) -> None:
    editor.open('{"a": 1}', "json")
    titles = [one["title"] for one in await editor.actions(at(0, column, 0, column + 1))]
    assert len(titles) > 0
    assert "Infill selection" not in titles


async def test_a_schema_that_is_named_and_not_there_is_told_with_the_edit(editor: Editor) -> None:
    editor.open('{"$schema": "https://example.org/s", "a": 1}', "json")
    editing = editor.command("caesura.edit", at(0, 42, 0, 43))
    await editor.engine(["2"])
    answer = await editor.answer(editing)
    assert "https://example.org/s is not fetched" in answer["message"]
    assert (answer["applied"], answer["level"]) == (True, "valid")


async def test_without_the_setting_there_are_no_structured_edits(other: Editor) -> None:
    capabilities = {"workspace": WORKSPACE, "textDocument": {"codeAction": RESOLVES}}
    options = {"structured": False}
    start = {"processId": None, "capabilities": capabilities, "initializationOptions": options}
    await other.client.call("initialize", start)
    other.client.notify("initialized", {})
    other.open('{"a": 1}', "json")
    assert await other.actions(at(0, 7)) == []
    answer = await other.answer(other.command("caesura.edit", at(0, 6, 0, 7)))
    assert "setting 'structured'" in answer["message"]


async def test_in_a_large_document_edits_are_offered_only_to_a_person_who_asks(editor: Editor) -> None:
    editor.open("[" + "1, " * 40_000 + "1]", "json")
    assert await editor.actions(at(0, 1), triggerKind=2) == []
    assert len(await editor.actions(at(0, 1), triggerKind=1)) > 0
