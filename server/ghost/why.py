"""Why there is no suggestion at a place: what the engine, the settings, the place and the model say of it, in words."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from caesura.client.backend import Condition
from caesura.server.ghost.canvas import WarmCanvas
from caesura.server.ghost.pane import Pane, Services, Start
from caesura.server.options import Options

WAIT_S = 3.0  # longest wait for the canvas of the place


@dataclass(frozen=True)
class Reason:
    """`sentence` says why there is no suggestion, or that there is one; `text` is what the model proposes, if that is
    known."""

    sentence: str
    text: str = ""


async def why(pane: Pane, services: Services, at: int) -> Reason:
    """The reason at the offset `at`, as if the user were typing there. Starts a canvas if the place has none."""
    if refusal := pane.refusal(invoked=False):
        return Reason(refusal)
    if sentence := _of_engine(services.engine.condition):
        return Reason(sentence)
    start = Start(at, "automatic", services.feedback.threshold(invoked=False))
    canvas, _ = pane.canvas_for(start)
    text = pane.opened.document.text
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while not canvas.over and pane.opened.document.text == text:
                await pane.changed.wait()
                canvas = pane.canvases.current or canvas
    if pane.opened.document.text != text:
        return Reason("The text has changed meanwhile; ask again.")
    return _of_canvas(canvas, pane, services.settings.options, at)


def _of_engine(condition: Condition) -> str:
    """The sentence on an engine that cannot answer; empty if it can."""
    if condition.state == "ready":
        return ""
    if condition.state == "unavailable":
        return f"There is no engine: {condition.message}"
    return f"The engine is not ready yet: {condition.progress or condition.state}."


def _of_canvas(canvas: WarmCanvas, pane: Pane, options: Options, at: int) -> Reason:
    if canvas.refusal:
        return Reason(canvas.refusal)
    if not canvas.over:
        return Reason(f"The model is still computing, after {canvas.steps} steps.")
    text = canvas.fills[0].text if canvas.fills else ""
    if not text.strip():
        return Reason("The model proposes nothing here.")
    place = pane.place(canvas)
    if proposal := canvas.propose(at, place, pane.shown_at(at, canvas)).insert:
        return Reason("There is a suggestion; the editor may hide it, for example while a menu is open.", proposal)
    threshold = canvas.threshold
    match canvas.fault(at, place):
        case "secret":
            return Reason("The model's proposal refers to a secret, which is hidden from it.")
        case "unlikely" if (chance := canvas.chance(at)) is not None:
            start = f"Its best start of at least {threshold.keys} keys" if threshold.keys else "Its best start"
            raised = (
                ", more than usual for a while, since some were rejected" if threshold.chance > options.chance else ""
            )
            needed = (
                f"{threshold.chance:.2f} is needed{raised}"
                if chance < threshold.chance
                else "it would save too few keys"
            )
            found = f"{start} has probability {chance:.2f}; {needed}."
            return Reason(f"The model's proposal is too unlikely. {found}", text)
        case "short" | "unlikely":
            return Reason(
                f"The model's proposal saves fewer than {threshold.keys} keys (the setting 'leastKeys').", text
            )
        case "unsound":
            wrong = "adds a syntax error, or reads a member that its class does not have"
            return Reason(f"The model's proposal {wrong} (the setting 'syntaxGate').", text)
        case "typed over":
            return Reason("The model's proposal differs from what you typed.", text)
        case _:
            return Reason("The model's proposal repeats the text around the cursor, or cannot end there.", text)
