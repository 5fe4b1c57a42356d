"""Why there is no suggestion at the cursor: one sentence for each kind of reason, and the held-back text."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from caesura.client.backend import Condition, EngineUnavailable
from caesura.server.context.secrets import FILLER
from caesura.server.ghost.why import Reason

from ..support.editor import Editor, turns, written

UNLIKELY = "The model's proposal is too unlikely."


async def why(editor: Editor, *said: Any) -> Reason:
    """The reason at the cursor, after the engine has answered each job with the next of `said`."""
    asked = asyncio.ensure_future(editor.typing.why(editor.opened, editor.cursor))
    await turns()
    for answer in said:
        await (editor.engine.tell(answer) if isinstance(answer, Exception) else editor.engine.say(**answer))
    return await asked


@pytest.mark.parametrize(
    ("marked", "language", "options", "sentence"),
    [
        ("x = |", "python", {"enable": False}, "The setting 'enable' turns suggestions off."),
        ("x = |", "python", {"mode": "manual"}, "The mode 'manual' suggests only if you ask."),
        ("x = |", "python", {"languages": {"*": False}}, "The setting 'languages' turns suggestions in python off."),
        ("x = 1  # a|", "python", {"in_comments": False}, "The setting 'inComments' turns suggestions in comments"),
        ("x = |word", "python", {}, "The cursor stands in front of a word; a manual request may give text"),
        ("Some |", "markdown", {}, "In prose, suggestions begin after the first 3 letters of a word."),
    ],
)
async def test_a_place_that_gets_none(marked: str, language: str, options: dict[str, Any], sentence: str) -> None:
    editor = written(marked, language, **options)
    assert (await why(editor)).sentence.startswith(sentence)
    assert not editor.engine.jobs


async def test_a_hidden_file_is_named_with_its_rule() -> None:
    assert await why(Editor("x = |", uri="file:///secret.py")) == Reason("This file is hidden by a rule.")


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        (Condition("unavailable", message="Start it with: caesura engine"), "There is no engine: Start it with"),
        (Condition("loading", progress="packing weights"), "The engine is not ready yet: packing weights."),
        (Condition("connecting"), "The engine is not ready yet: connecting."),
    ],
)
async def test_the_engine_is_not_there(condition: Condition, sentence: str) -> None:
    editor = Editor("x = |")
    editor.engine.condition = condition
    assert (await why(editor)).sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("marked", "options", "said", "sentence", "text"),
    [
        ("x = |", {}, {"text": ""}, "The model proposes nothing here.", ""),
        (
            "x = |",
            {"min_confidence": 0.95, "least_keys": 4},
            {"text": "alpha(beta)", "sure": ((5, 0.8), (11, 0.5))},
            f"{UNLIKELY} Its best start of at least 4 keys has probability 0.80; 0.95 is needed.",
            "alpha(beta)",
        ),
        (
            "x = f(|, 1)\n",
            {"min_confidence": 0.9, "least_keys": 4},
            {"text": "a", "sure": ((1, 0.95),)},
            "The model's proposal saves fewer than 4 keys",
            "a",
        ),
        (
            "x = |",
            {"min_confidence": 0.0, "least_keys": 4},
            {"text": "alpha", "sure": ((5, 0.1),)},
            f"{UNLIKELY} Its best start of at least 4 keys has probability 0.10; it would save too few keys.",
            "alpha",
        ),
        ("x = f(|, 1)\n", {"least_keys": 4}, {"text": "a"}, "The model's proposal saves fewer than 4 keys", "a"),
        ("x = 1 |\n", {}, {"text": "def f"}, "The model's proposal adds a syntax error", "def f"),
        ("x = |\ny = 1\n", {}, {"text": "\ny = 1\n"}, "The model's proposal repeats the text around the", "\ny = 1\n"),
        ("x = |", {}, {"text": "alpha"}, "There is a suggestion; the editor may hide it", "alpha"),
    ],
)
async def test_what_the_model_said(
    marked: str, options: dict[str, Any], said: dict[str, Any], sentence: str, text: str
) -> None:
    reason = await why(Editor(marked, **options), said)
    assert reason.sentence.startswith(sentence)
    assert reason.text == text


async def test_what_stands_for_a_secret_is_not_quoted() -> None:
    reason = await why(Editor("x = |"), {"text": f'"{FILLER * 7}"'})
    assert reason == Reason("The model's proposal refers to a secret, which is hidden from it.")


async def test_an_engine_that_fails_is_quoted() -> None:
    assert await why(Editor("x = |"), EngineUnavailable("It has stopped.")) == Reason("It has stopped.")


async def test_the_raised_bar_is_told() -> None:
    editor = Editor("x =|", mode="balanced")
    for _ in range(9):
        editor.typing._feedback._backoff.rejected(asyncio.get_running_loop().time())
    reason = await why(editor, {"text": " 1 + 1", "sure": ((2, 0.7), (6, 0.8))})
    assert "0.70; 0.75 is needed, more than usual for a while, since some were rejected" in reason.sentence


async def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caesura.server.ghost.why.WAIT_S", 0.01)
    assert (await why(Editor("x = |"))).sentence == "The model is still computing, after 0 steps."


async def test_an_edit_meanwhile_ends_it() -> None:
    editor = Editor("x = |")
    asked = asyncio.ensure_future(editor.typing.why(editor.opened, editor.cursor))
    await turns()
    await editor.type("1")
    assert await asked == Reason("The text has changed meanwhile; ask again.")


async def test_asking_takes_nothing_from_the_screen() -> None:
    editor = Editor("x = |")
    request = await editor.ask()
    await editor.engine.say("alpha")
    shown = await request
    await why(editor)
    assert replace(await editor.answer(), id="") == replace(shown, id="")  # type: ignore[type-var]
