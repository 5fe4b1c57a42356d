"""`caesura eval`: complete every case of a benchmark file, one at a time, as ghost text or as a requested fill."""

import argparse
import asyncio
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import IO, Literal, TypeVar

import msgspec

from caesura import model_store, wire
from caesura.client.backend import EngineFailed
from caesura.commands import CommandFailed
from caesura.commands.common import AskedEngine, shared
from caesura.server.fills.result import FillResult
from caesura.server.fills.task import NoFill
from caesura.server.ghost.typed import Proposal
from caesura.server.languages import language
from caesura.server.session import EditorInfo, Session
from caesura.server.text.workspace import OpenDocument

REPORT_S = 10.0
URI = "untitled:case"
SETTINGS = {"stats": False, "speculate": False, "warm": False}  # one request a case, and no record of it

T = TypeVar("T")
EvalRoute = Literal["ghost", "fill"]


class EvalCase(msgspec.Struct, frozen=True):
    """A gap of the benchmark."""

    id: str
    prefix: str
    suffix: str
    lang: str = ""


class Completion(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer, as `route` says. `completion` is the text of the best candidate as it is inserted; ghost text may be
    too unlikely for an editor to draw all of it: `shown` is what it draws. Where ghost text does not ask the engine,
    `stop` is empty. `ms` is the time to the complete answer.
    `confidence` is per token; `chance` is the probability of all tokens of the engine's text, without the one that ends
    it; `steps` and `tokens` count all of its jobs.
    With an `error` there is no answer."""

    id: str
    completion: str
    ms: float
    route: EvalRoute | Literal[""] = msgspec.field(name="as", default="")
    shown: str = ""
    steps: int = 0
    tokens: int = 0
    confidence: float = 0.0
    chance: float | None = None
    tokens_by_source: wire.Tokens | None = None
    stop: str = ""
    error: str = ""
    model: str = ""
    method: str = ""
    sampler: str = ""
    prompt: str = ""
    deadline_ms: float = 0.0

    @property
    def made_with(self) -> tuple[str, str, str, str, str, float]:
        """The options that change an answer; they are the same for all answers of a file."""
        return self.route, self.model, self.method, self.sampler, self.prompt, self.deadline_ms


def run(options: argparse.Namespace) -> None:
    cases = list(_read(Path(options.cases), EvalCase))
    out = Path(options.out)
    known = {completion.id for completion in _done(out, options)} if out.exists() else set()
    left = [case for case in cases if case.id not in known]
    if known:
        print(f"{len(cases) - len(left)} of {len(cases)} cases are done already", file=sys.stderr)
    with out.open("ab") as file:
        asyncio.run(_complete(options, left, file))


def _made_with(options: argparse.Namespace) -> tuple[str, str, str, str, str, float]:
    named = (options.method or "", options.sampler or "", options.prompt_format or "")
    names = [model_store.resolve(name) for name in (options.model, options.draft) if name]
    return options.route, " with drafts of ".join(names), *named, options.deadline_ms


def _done(out: Path, options: argparse.Namespace) -> list[Completion]:
    """The answers in `out`. Removes errors and a line cut by a kill, so that these cases run again."""
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    found = list(_parsed(out, whole.splitlines(), Completion))
    if other := next((one.made_with for one in found if one.made_with != _made_with(options)), None):
        route, model, method, sampler, prompt, deadline_ms = other
        raise CommandFailed(
            f"{out} was made with --as {route or 'unknown'}, --model {model or 'unknown'},"
            f" --method {method or 'the default'}, --sampler {sampler or 'the default'},"
            f" --prompt-format {prompt or 'the default'} and --deadline-ms {deadline_ms:g};"
            " use the same or another --out."
        )
    kept = [one for one in found if not one.error]
    if len(kept) < len(found) or len(whole) < len(data):
        fresh = out.with_name(f".{out.name}.new")
        fresh.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in kept))
        os.replace(fresh, out)
    return kept


async def _complete(options: argparse.Namespace, cases: list[EvalCase], file: IO[bytes]) -> None:
    spent: list[float] = []
    reported = time.monotonic()
    async with shared(options) as (engine, _):
        asked = AskedEngine(engine, options)
        session = Session(EditorInfo("caesura eval", "utf-32", (), (), SETTINGS), lambda *_: asked)
        for number, case in enumerate(cases, 1):
            began = time.perf_counter()
            try:
                found = await _answer(session, asked, case, options.route)
            except EngineFailed as error:  # of this case only; an unavailable engine ends the run, which can be resumed
                found = Completion("", "", 0.0, error=str(error))
            completion = msgspec.structs.replace(found, id=case.id, ms=(time.perf_counter() - began) * 1000)
            completion = _signed(completion, options)
            spent.append(completion.ms)
            file.write(msgspec.json.encode(completion) + b"\n")
            file.flush()
            if number == len(cases) or time.monotonic() - reported > REPORT_S:
                reported = time.monotonic()
                print(f"{number} of {len(cases)} cases, p50 {median(spent):.0f} ms", file=sys.stderr)


async def _answer(session: Session, asked: AskedEngine, case: EvalCase, route: EvalRoute) -> Completion:
    """The answer in a session of an editor, which has the case's text open."""
    session.open(URI, language(case.lang).id, 1, case.prefix + case.suffix)
    opened = session.workspace.get(URI)
    assert opened is not None
    asked.begin()
    try:
        return await (_fill if route == "fill" else _ghost)(session, asked, opened, len(case.prefix))
    finally:
        session.close(URI)


async def _fill(session: Session, asked: AskedEngine, opened: OpenDocument, at: int) -> Completion:
    """The fill that an editor inserts at a cursor."""
    text, fill = "", wire.Fill("")
    try:
        async for event in session.fills.selection(opened.document, [(at, at)]):
            if isinstance(event, FillResult):
                [(_, _, text)], [fill] = event.edits, event.fills
    except NoFill:
        fill = asked.done.holes[0] if asked.done else fill
    return _completion(text, fill, asked.done)


async def _ghost(session: Session, asked: AskedEngine, opened: OpenDocument, at: int) -> Completion:
    """The suggestion, as an editor gets it once the engine's answer is complete."""
    shown = await session.panes.propose(opened, at, invoked=False, on_part=lambda part: None)()
    best = session.panes.best(opened, at)
    if asked.failure:
        raise asked.failure
    assert isinstance(shown, Proposal), "no newer request has come"
    after, found = opened.document.text[at:], Completion("", "", 0.0)
    if best:
        whole, fill = best
        found = _completion(_inserted(whole, after), fill, asked.done)
    return msgspec.structs.replace(found, shown=_inserted(shown, after))


def _inserted(proposal: Proposal, after: str) -> str:
    """The text of a proposal without the brackets `after` the gap that it replaces by the same."""
    return proposal.insert.removesuffix(after[: proposal.eat])


def _completion(text: str, fill: wire.Fill, done: wire.Done | None) -> Completion:
    told = fill.probabilities
    if done is None:
        return Completion("", text, 0.0)
    return Completion(
        id="",
        completion=text,
        ms=0.0,
        steps=done.steps,
        tokens=done.tokens.canvas + done.tokens.lookup + done.tokens.left_to_right,
        confidence=fill.confidence,
        chance=math.prod(probability for _, probability in told) if told else None,
        tokens_by_source=done.tokens,
        stop=done.stop,
    )


def _signed(completion: Completion, options: argparse.Namespace) -> Completion:
    route, model, method, sampler, prompt, deadline_ms = _made_with(options)
    return msgspec.structs.replace(
        completion, route=route, model=model, method=method, sampler=sampler, prompt=prompt, deadline_ms=deadline_ms
    )


def _read(path: Path, kind: type[T]) -> Iterator[T]:
    with path.open("rb") as file:
        yield from _parsed(path, file, kind)


def _parsed(path: Path, lines: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    for number, line in enumerate(lines, 1):
        try:
            yield msgspec.json.decode(line, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{path}, line {number}: {error}.") from error
