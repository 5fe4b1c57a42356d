"""An engine that answers by rule: the author's text, and that text as a model may spoil it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

import msgspec

from caesura import wire
from caesura.client.backend import Condition

from ..processes import sessions
from .places import Place

LATE_EVERY = 5  # every fifth answer is cut by its deadline, or says so
LONG, ENDS = 72, 24  # code points of a text that is recorded as it is; else of its ends


class Engine:
    """`author` is the text up to the end of the hole, `at` the place in it; more holes of a job get `others`. `turn`
    chooses the first of the candidates, and goes on by `step` after each job. `jobs` are as they were sent."""

    condition = Condition("ready", "recorded", "cpu")
    state = "ready"

    def __init__(self, **options: object) -> None:
        self.jobs: list[Any] = []
        self.author, self.at, self.others = "", 0, tuple[str, ...]()
        self.turn = self.step = 0
        self.on_change = self.on_job = lambda *_: None

    def begin(self, place: Place, turn: int, step: int = 0) -> None:
        """Answer at a place from now on."""
        self.jobs, self.turn, self.step = [], place.number + turn, step
        self.author, self.at = place.before + place.truths[0], len(place.before)
        self.others = place.truths[1:]

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def ready(self, timeout_s: float) -> wire.Welcome:
        return wire.Welcome(protocol=0, build="", model="recorded", device="cpu", state="ready")

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        wire.decode_client(wire.encode(job))  # raises where a real engine would refuse it
        self.jobs.append({name: value for name, value in plain(job).items() if name not in ("job", "document")})
        turn, self.turn = self.turn + job.seed, self.turn + self.step
        best, *others = candidates(job, [self._text(job.prefix), *self.others], turn)
        for number in (1, 2):
            await asyncio.sleep(sessions.STEP_S)
            shares = [len(text) * number // 3 if job.effort == "ghost" else 0 for text in best]
            yield wire.Locked(job.job, number, tuple(map(sessions.fill, best, shares)), number, 3)
        await asyncio.sleep(sessions.STEP_S)
        yield wire.Done(
            **{"job": job.job, "seq": 3, "steps": 3, "tokens": wire.Tokens(canvas=3), "timings": wire.Timings()},
            holes=fills(best),
            alternatives=tuple(map(fills, others)),
            stop="deadline" if turn % LATE_EVERY == 0 else "complete",
            level="valid" if job.kind == "edit" else "",
        )

    def _text(self, prefix: str) -> str:
        """The author's text after a prefix, which may end a few keys before the place or after it."""
        tail = prefix[-12:]
        found = self.author.rfind(tail, 0, self.at + len(tail))
        return self.author[found + len(tail) if found >= 0 else self.at :]


def fills(texts: Sequence[str]) -> tuple[wire.Fill, ...]:
    return tuple(sessions.fill(text, len(text)) for text in texts)


def candidates(job: wire.Infill, texts: Sequence[str], turn: int) -> list[tuple[str, ...]]:
    """As many as the job may have, each with a text for each hole."""
    holes, segments = list[list[str]](), [*job.segments, wire.Text(job.suffix)]
    for segment, after in pairwise(segments):
        if isinstance(segment, wire.Hole):
            found = spoilt(
                texts[len(holes) % len(texts)], job.prefix, after.text if isinstance(after, wire.Text) else ""
            )
            holes.append([*sessions.shaped(segment.grammar), *found[:2]] if segment.grammar else found)
    return [tuple(one[(turn + row) % len(one)] for one in holes) for row in range(job.candidates)]


def spoilt(text: str, before: str, after: str) -> list[str]:
    """The author's text, and what a model makes of it."""
    line = before.rpartition("\n")[2]
    indent = line[: len(line) - len(line.lstrip())]
    ends = [match.start() for match in re.finditer(r"[])}\"']", text)]
    return [
        text,
        text + "\n".join(after.split("\n")[:2]),  # and the line after it again
        text + "\n".join(after.split("\n")[:4]),
        text[: ends[-1]] + text[ends[-1] + 1 :] if ends else f"{text}(",  # a bracket or quote is missing
        text.replace("\n", "\n    ") if "\n" in text else f"    {text}",  # too deep
        text[: len(text) * 2 // 3],  # cut
        line.lstrip() + text,  # the start of the line again
        f"\n{indent}".join(
            [text, text, text, f"perhaps({text[:3]})"]
        ),  # goes round in circles, and is unsure in the end
        f"{text})",
        "",
        f" {text}  \n\n",
    ]


def plain(value: Any) -> Any:
    """A part of a job as JSON, without empty fields; of a long text its ends, its length and a digest."""
    if isinstance(value, msgspec.Struct):
        named = {one.name: getattr(value, one.name) for one in msgspec.structs.fields(value)}
        return {name: plain(one) for name, one in named.items() if one not in (None, "", (), 0)}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, str) and len(value) > LONG:
        return f"{value[:ENDS]}«{len(value)} {crc32(value.encode()):08x}»{value[-ENDS:]}"
    return value
