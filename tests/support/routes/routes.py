"""The routes from a place to inserted text, each as an editor, an HTTP client or a shell takes it. A function plays one
at a place and returns what comes out. Only in a process whose time is that of a Clock.
"""

import asyncio
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import httpx2

from .editor import AUTOMATIC, INVOKED, Editor
from .engine import Engine, spoilt
from .places import KEY, ROOT, Place

MODEL = str(ROOT / "tests" / "data" / "mini")  # a model that is always there; it is not loaded
NEIGHBOUR = f"def total(cart):\n    return sum(cart)\n\n\nSECRET_KEY = '{KEY}'\n"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "port": {"type": "integer"}, "on": {"type": "boolean"}},
    "required": ["name", "port"],
}
REST_S = 0.4  # after which a typist looks
KEYS, EVERY = 90, 6  # of a stretch: so many are played, and the editor asks after so many

Texts = dict[str, Any]  # what came out, by what was asked


async def ghost(editor: Editor, place: Place) -> Texts:
    """While the last keys before the place are typed, when the user asks, and while they type along."""
    keys = place.before[-3:].rpartition("\n")[2]
    start, texts = len(place.before) - len(keys), Texts()
    await editor.open("cart.py", NEIGHBOUR)
    await editor.open(place.name, place.before[:start] + place.after, start)
    for key in keys:
        await editor.type(key)
    texts["typed"] = await editor.ghost(AUTOMATIC)
    await asyncio.sleep(REST_S)
    texts["asked"] = await editor.ghost(INVOKED)
    await editor.type(place.truths[0][:2])
    texts["typed along"] = await editor.ghost(AUTOMATIC)
    await asyncio.sleep(REST_S)
    return texts


async def typing(engine: Engine, editor: Editor, stretch: dict[str, Any]) -> Texts:
    """Every few keys the editor asks, and in a new line the user."""
    texts, lines = Texts(), stretch["end"].split("\n")
    await editor.open(stretch["file"], stretch["start"])
    for number, (ms, what, *words) in enumerate(stretch["events"][:KEYS]):
        match what:
            case "key" | "pair":
                await editor.type(*words, wait_s=ms / 1000)
            case "back":
                await editor.type("", erase=words[0], wait_s=ms / 1000)
            case "over":
                editor.cursor += len(words[0])
            case "to":
                editor.cursor = sum(len(line) + 1 for line in editor.text.split("\n")[: words[0]]) + words[1]
        engine.turn, engine.at = number // EVERY, editor.cursor
        engine.author = "\n".join(lines[: editor.text[: editor.cursor].count("\n") + 3])
        new_line = what == "key" and "\n" in words[0]
        if what == "key" and (number % EVERY == 0 or new_line):
            texts[f"key {number:02}"] = await editor.ghost(INVOKED if new_line else AUTOMATIC)
    return texts


async def fills(editor: Editor, place: Place) -> Texts:
    """A fill of the selected text, another one, one of all markers, and a repair where a bracket is missing."""
    start, text = len(place.before), place.truths[0]
    broken = spoilt(text, place.before, "")[2]
    await editor.open(f"fills.{place.name}", place.text)
    texts = {"selection": await editor.command("fillSelection", [(start, start + len(text))])}
    texts["another"] = await editor.command("another")
    await editor.open(f"holes.{place.name}", place.marked)
    texts["holes"] = await editor.command("fillHoles")
    await editor.open(f"broken.{place.name}", place.before + broken + place.after)
    texts["repair"] = await editor.command("repair", [(start, start + len(broken))])
    return texts


async def edits(editor: Editor, place: Place) -> Texts:
    """The first structured edits at the place, and the first one of the author's value."""
    start = len(place.before)
    await editor.open(place.name, place.text)
    texts = {f"offer {n}": await editor.command("edit", [(start, start)], offer=n) for n in range(3)}
    texts["selection"] = await editor.command("edit", [(start, start + len(place.truths[0]))])
    return texts


async def serve(engine: Engine, place: Place) -> Texts:
    """What plugins for llama-server and for OpenAI's completions get, whole and in pieces."""
    from caesura.serve.app import application

    named = {"language": place.language} if place.number % 2 else {}
    extra = [{"filename": "src/cart.py", "text": NEIGHBOUR}]
    infill = {"input_prefix": place.before, "input_suffix": place.after, "input_extra": extra, **named}
    completion = {"prompt": place.before, "suffix": place.after, "stop": ["\n\n", ";"], **named}
    texts = Texts()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(application(engine)), verify=False) as client:  # type: ignore[arg-type]
        for name, path, body in (
            ("infill", "infill", {**infill, "n_cmpl": 3}),
            ("completion", "v1/completions", {**completion, "n": 2, "max_tokens": 20}),
            ("stream", "v1/completions", {**completion, "stream": True}),
        ):
            answer = await client.post(f"http://local/{path}", json=body)
            lines = [line.removeprefix("data: ") for line in answer.text.split("\n")]
            parts = [json.loads(line) for line in lines if line not in ("", "[DONE]")]
            choices = [one for part in parts for one in (part if isinstance(part, list) else part["choices"])]
            texts[name] = [
                f"{one.get('finish_reason', one.get('stop_type'))}: {one.get('text', one.get('content'))}"
                for one in choices
            ]
    return texts


async def demo(engine: Engine, place: Place) -> Texts:
    from caesura.demo import fills

    start, sampler = len(place.before), ("verify", "threshold")[place.number % 2]
    wanted = fills.Wanted(place.text, start, start + len(place.truths[0]), place.language, sampler, seed=1)  # type: ignore[arg-type]
    events = [event async for event in fills.fill(engine, wanted)]  # type: ignore[arg-type]
    return {event.run: event.inserted for event in events if isinstance(event, fills.Ended)}


def command(name: str, place: Place, folder: Path, text: str, *words: str) -> Texts:
    """One of the commands whose answer is JSON, at the place in a file with this text."""
    (folder / place.name).write_text(text, newline="")
    (folder / "person.schema.json").write_text(json.dumps(SCHEMA))
    code, said, told = shell(name, str(folder / place.name), *words, "--json", "--model", MODEL)
    answer = json.loads(said or "{}")
    found = {key: answer[key] for key in ("text", "holes", "offer") if key in answer}
    return found | {"code": code, "told": told.replace(str(folder), ".")}


def fill(place: Place, folder: Path) -> Texts:
    at, to = line_column(place.before), line_column(place.before + place.truths[0])
    return {
        "selection": command("fill", place, folder, place.text, "--at", at, "--to", to),
        "cursor": command("fill", place, folder, place.before + place.after, "--at", at, "--least", "0"),
    }


def holes(place: Place, folder: Path) -> Texts:
    return command("holes", place, folder, place.marked)


def edit(place: Place, folder: Path) -> Texts:
    return command("edit", place, folder, place.text, "--at", line_column(place.before))


def evaluate(place: Place, folder: Path) -> Texts:
    case = {"prefix": place.before, "suffix": place.after, "lang": place.language}
    return evaluated("fill", [{"id": "filled", **case}], folder) | evaluated("ghost", [{"id": "shown", **case}], folder)


def evaluated(route: str, given: list[dict[str, str]], folder: Path) -> Texts:
    cases, out = folder / "cases.jsonl", folder / f"{route}.jsonl"
    cases.write_text("".join(f"{json.dumps(case)}\n" for case in given))
    out.unlink(missing_ok=True)
    code, _, told = shell("eval", str(cases), "--as", route, "--out", str(out), "--model", MODEL)
    assert code == 0, told
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {
        row["id"]: [row.get("shown", "") if route == "ghost" else row["completion"], row.get("chance", 0.0)]
        for row in rows
    }


def shell(*words: str) -> tuple[int, str, str]:
    from caesura import cli

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    said, told = (one.buffer.getvalue().decode() for one in (out, err))  # type: ignore[attr-defined]
    return code, said, told


def line_column(before: str) -> str:
    return f"{before.count(chr(10)) + 1}:{len(before.rpartition(chr(10))[2]) + 1}"


EDITOR = {"ghost": ghost, "fills": fills, "edits": edits}
HTTP = {"serve": serve, "demo": demo}
COMMANDS = {"caesura fill": fill, "caesura holes": holes, "caesura edit": edit, "caesura eval": evaluate}
STRUCTURED = {"edits", "caesura edit"}  # only in the languages that have structured edits
LANGUAGES = {"json", "jsonc", "markdown", "yaml", "toml"}


def routes(table: dict[str, Any], place: Place) -> dict[str, Any]:
    """Those of a table that a place has."""
    return {name: play for name, play in table.items() if name not in STRUCTURED or place.language in LANGUAGES}
