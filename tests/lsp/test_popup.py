"""The completion popup of editors that draw no ghost text: the same proposals, as items that survive their filters."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from lsprotocol.types import CompletionItem

from caesura.server.ghost.typed import Proposal
from caesura.server.lsp.popup import LABEL, WORD, fenced, item
from caesura.server.text.document import Document

from .test_lsp import LATER, URI, Client, server

GHOST = {"textDocument": {"inlineCompletion": {"dynamicRegistration": False}}}
PATIENT = {"deadlineMs": 10_000}


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with server() as client:
        yield client


def popup(client: Client, line: int, character: int, kind: int = 1) -> "asyncio.Future[dict[str, Any]]":
    where = {"textDocument": {"uri": URI}, "position": {"line": line, "character": character}}
    return client.ask("textDocument/completion", {**where, "context": {"triggerKind": kind}})


async def shown(request: "asyncio.Future[dict[str, Any]]") -> list[str]:
    """What the items would put into the text. The list is always to be asked for again."""
    response = await asyncio.wait_for(request, 20)
    assert response["result"]["isIncomplete"] is True
    return [item["textEdit"]["newText"] for item in response["result"]["items"]]


# Who gets it


@pytest.mark.parametrize(
    ("setting", "capabilities", "offered"),
    [
        ("auto", {}, True),
        ("auto", GHOST, False),
        ("on", GHOST, True),
        ("off", {}, False),
    ],
)
async def test_completion_is_offered_where_there_is_no_ghost_text_or_as_the_setting_says(
    client: Client, setting: str, capabilities: dict[str, Any], offered: bool
) -> None:
    result = await client.start(capabilities=capabilities, initializationOptions=PATIENT | {"popup": setting})
    assert ("completionProvider" in result["capabilities"]) is offered
    client.open("x = ")
    if not offered:
        assert (await popup(client, 0, 4))["error"]["code"] == -32601
        return
    request = popup(client, 0, 4)
    await client.engine("1")
    assert await shown(request) == ["1"]


@pytest.mark.parametrize("method", ["textDocument/inlineCompletion", "caesura/inlineCompletionStream"])
async def test_an_editor_that_asks_for_ghost_text_without_saying_so_gets_no_item_from_then_on(
    client: Client, method: str
) -> None:
    await client.start(initializationOptions=PATIENT)
    client.open("x = ")
    where = {"textDocument": {"uri": URI}, "position": {"line": 0, "character": 4}, "context": {"triggerKind": 2}}
    ghost = client.ask(method, where | {"partialResultToken": "t"})
    await client.engine("1")
    assert (await asyncio.wait_for(ghost, 20))["result"]["items"]
    assert await shown(popup(client, 0, 4)) == []


async def test_ghost_text_beside_the_popup_where_the_setting_says_so(client: Client) -> None:
    await client.start(initializationOptions=PATIENT | {"popup": "on"})
    client.open("x = ")
    ghost = client.complete(0, 4)
    await client.engine("1")
    assert (await ghost)["result"]["items"]
    assert await shown(popup(client, 0, 4)) == ["1"]


# What it says


async def test_an_item_replaces_the_word_before_the_cursor_by_that_word_and_more(client: Client) -> None:
    await client.start(initializationOptions=PATIENT)
    client.open("def f(a):\n    ret\n")
    request = popup(client, 1, 7)
    await client.engine("urn a + 1")
    [item] = (await asyncio.wait_for(request, 20))["result"]["items"]
    start, end = item["textEdit"]["range"]["start"], item["textEdit"]["range"]["end"]
    assert (item["textEdit"]["newText"], start["character"], end["character"]) == ("return a + 1", 4, 7)
    assert (item["label"], item["filterText"], item["detail"]) == ("return a + 1", "return a + 1", "Caesura")
    assert item["documentation"] == {"kind": "markdown", "value": "```python\nreturn a + 1\n```"}
    assert (item["insertTextFormat"], item["insertTextMode"]) == (1, 1)
    assert not item.get("preselect")
    assert item["command"]["command"] == "caesura.accepted"
    assert await client.call("workspace/executeCommand", item["command"]) is None


async def test_what_a_language_server_knows_comes_first(client: Client) -> None:
    await client.start(initializationOptions=PATIENT)
    client.open("ret")
    request = popup(client, 0, 3)
    await client.engine("urn")
    [item] = (await asyncio.wait_for(request, 20))["result"]["items"]
    theirs = ["09.9999.return", "ffffffef", "zzzz", "return"]  # as pyright, rust-analyzer and others sort
    assert sorted([*theirs, item["sortText"]])[-1] == item["sortText"]


async def test_typing_an_item_costs_no_job_and_keeps_it(client: Client) -> None:
    await client.start(initializationOptions=PATIENT)
    client.open("")
    client.type(0, 0, "x")
    await client.engine(" = compute(1)")
    assert await shown(popup(client, 0, 1)) == ["x = compute(1)"]
    for column, key in enumerate(" = com", start=1):
        client.type(0, column, key)
        assert await shown(popup(client, 0, column + 1, kind=3))
    assert await shown(popup(client, 0, 7, kind=3)) == ["compute(1)"]
    assert len((await client.engine())["jobs"]) == 1


async def test_a_bracket_that_the_editor_closed_is_replaced(client: Client) -> None:
    await client.start(initializationOptions=PATIENT)
    client.open("")
    client.type(0, 0, "f")
    await client.engine("(a, b) + 1")
    assert await shown(popup(client, 0, 1)) == ["f(a, b) + 1"]
    client.type(0, 1, "()")
    [item] = (await asyncio.wait_for(popup(client, 0, 2), 20))["result"]["items"]
    assert item["textEdit"]["newText"] == "a, b) + 1"
    assert item["textEdit"]["range"]["end"]["character"] == 3


@pytest.mark.parametrize(("encoding", "start", "end"), [("utf-8", 5, 9), ("utf-16", 4, 6), ("utf-32", 4, 6)])
async def test_positions_in_every_encoding(client: Client, encoding: str, start: int, end: int) -> None:
    await client.start([encoding], initializationOptions=PATIENT)
    client.open("é = ñé\n")
    request = popup(client, 0, end)
    await client.engine("y")
    [item] = (await asyncio.wait_for(request, 20))["result"]["items"]
    where = item["textEdit"]["range"]
    assert item["textEdit"]["newText"] == "ñéy"
    assert (where["start"]["character"], where["end"]["character"]) == (start, end)


async def test_plain_documentation_where_the_editor_reads_no_markdown(client: Client) -> None:
    able = {"textDocument": {"completion": {"completionItem": {"documentationFormat": ["plaintext"]}}}}
    await client.start(capabilities=able, initializationOptions=PATIENT)
    client.open("x = ")
    request = popup(client, 0, 4)
    await client.engine("1")
    [item] = (await asyncio.wait_for(request, 20))["result"]["items"]
    assert item["documentation"] == "1"


# When it says nothing


async def test_an_item_that_is_not_there_by_the_deadline_is_not_waited_for(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 100})
    client.open("x = ")
    assert await shown(popup(client, 0, 4)) == []
    assert (await client.engine("1"))["live"] == 1  # the canvas goes on
    assert await shown(popup(client, 0, 4)) == ["1"]


async def test_at_the_deadline_the_words_that_are_locked_are_the_item(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": 1500})
    client.open("x = ")
    request = popup(client, 0, 4)
    await client.engine("first_value + sec", locked=13, done=False)
    assert await shown(request) == ["first_value"]


async def test_an_edit_or_a_newer_request_empties_the_list_and_is_no_error(client: Client) -> None:
    await client.start(initializationOptions={"deadlineMs": LATER / 10})
    client.open("x = ")
    first = popup(client, 0, 4)
    second = popup(client, 0, 4)
    assert await shown(first) == []
    client.type(0, 4, "y")
    assert await shown(second) == []


async def test_a_document_that_is_not_open_and_an_unsure_model_give_none(client: Client) -> None:
    await client.start(initializationOptions=PATIENT | {"minConfidence": 1})
    assert await shown(popup(client, 0, 0)) == []
    client.open("x = ")
    request = popup(client, 0, 4)
    await client.engine("1")
    assert await shown(request) == []


@pytest.mark.parametrize(("kind", "texts"), [(1, ["1"]), (2, []), (3, [])])
async def test_in_manual_mode_only_a_request_that_may_be_a_key_is_answered(
    client: Client, kind: int, texts: list[str]
) -> None:
    await client.start(initializationOptions=PATIENT | {"mode": "manual"})
    client.open("x = ")
    request = popup(client, 0, 4, kind)
    if texts:
        await client.engine("1")
    assert await shown(request) == texts


async def test_switched_off_while_it_runs(client: Client) -> None:
    await client.start(initializationOptions=PATIENT)
    client.notify("workspace/didChangeConfiguration", {"settings": {"caesura": {"popup": "off"}}})
    client.open("x = ")
    assert await shown(popup(client, 0, 4)) == []
    [report] = [m for m in client.others if m.get("method") == "window/logMessage"]
    assert "'popup'" in report["params"]["message"]


# How an item looks


def made(text: str, insert: str) -> CompletionItem:
    """The item for a proposal at the end of `text`."""
    return item(Document(URI, "python", 0, text), len(text), Proposal(insert), markdown=True)


def test_a_label_is_short_and_says_that_there_is_more() -> None:
    assert made("ret", "urn a").label == "return a"
    assert made("", "a" * 200).label == "a" * (LABEL - 1) + "…"


def test_an_item_of_several_lines_is_filtered_by_its_first() -> None:
    found = made("if", " a:\n    b")
    assert (found.filter_text, found.label) == ("if a:", "if a:…")
    assert found.text_edit
    assert found.text_edit.new_text == "if a:\n    b"


def test_an_item_that_begins_with_a_line_break_can_be_filtered_too() -> None:
    found = made("def f():", "\n    return 1")
    assert (found.filter_text, found.label) == ("return 1", "return 1")


def test_an_item_in_a_file_of_dos_has_no_carriage_return_in_its_label() -> None:
    found = made("if", " a:\r\n    b")
    assert (found.filter_text, found.label) == ("if a:", "if a:…")


@pytest.mark.parametrize("word", ["cafe\u0301", "नमस्ते", "x_1"])
def test_marks_that_combine_are_of_the_word(word: str) -> None:
    found = made(f"x = {word}", "y")
    assert found.filter_text == word + "y"


def test_an_endless_word_before_the_cursor_is_not_repeated_whole() -> None:
    found = made("x" * 1_000_000, "y")
    assert found.text_edit
    assert found.text_edit.new_text == "x" * WORD + "y"


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("````\na\n````", "markdown").value == "`````markdown\n````\na\n````\n`````"
