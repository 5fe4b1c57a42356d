"""`caesura fill` and `caesura holes`: fill gaps of a file, show the text, write it when asked to."""

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from caesura import wire
from caesura.commands import CommandFailed
from caesura.commands.asking import SLOTS, ask, print_json, shared
from caesura.commands.source import Source
from caesura.server.completion import finish
from caesura.server.context import Context, context
from caesura.server.engine import job_id
from caesura.server.languages import language
from caesura.server.trees import SyntaxTree

Show = Callable[[wire.Locked | wire.Done], None]


@dataclass(frozen=True)
class Gap:
    """A span of the file, and what is known of it."""

    start: int
    end: int
    context: Context

    @property
    def hole(self) -> wire.Hole:
        return wire.Hole(max_tokens=SLOTS[self.context.kind], kind=self.context.kind)


def fill(options: argparse.Namespace) -> None:
    source = Source.read(options.file)
    start = source.offset(*options.at)
    end = source.offset(*options.to) if options.to else start
    if end < start:
        raise CommandFailed("--to lies before --at.")
    gap = Gap(start, end, _context(source.text, start, end, options.file))
    segments = (gap.hole,)
    if options.watch:
        from caesura.commands.watch import watching

        with watching(source, start, end, stderr=options.json) as show:
            done, model = asyncio.run(_run(options, gap.context, segments, show))
    else:
        done, model = asyncio.run(_run(options, gap.context, segments))
    text = finish(done.holes[0].text, gap.context)
    if options.write and text:
        source.write([(start, end, text)])
    if options.json:
        print_json({"text": text, **_report(done, model)})
    if not text:
        raise CommandFailed(f"The model proposes nothing here{'; nothing was written' if options.write else ''}.")
    if not options.json and not options.write:
        print(text)


def holes(options: argparse.Namespace) -> None:
    source = Source.read(options.file)
    spans = [found.span() for found in re.finditer(re.escape(options.marker), source.text)]
    most = wire.Limits().holes
    if not spans:
        raise CommandFailed(f"{options.file} has no marker {options.marker}.")
    if len(spans) > most:
        raise CommandFailed(f"{options.file} has {len(spans)} markers; {most} can be filled together.")
    gaps = _gaps(source.text, spans, options)
    around = replace(gaps[0].context, suffix=gaps[-1].context.suffix)
    segments: list[wire.Text | wire.Hole] = [gaps[0].hole]
    for before, gap in pairwise(gaps):
        if between := source.text[before.end : gap.start]:
            segments.append(wire.Text(between))
        segments.append(gap.hole)
    done, model = asyncio.run(_run(options, around, tuple(segments)))
    texts = [finish(filled.text, gap.context) for filled, gap in zip(done.holes, gaps, strict=True)]
    filled = [(gap, text) for gap, text in zip(gaps, texts, strict=True) if text]
    if options.write and filled:
        source.write([(gap.start, gap.end, text) for gap, text in filled])
    if options.json:
        print_json({"texts": texts, **_report(done, model)})
    elif not options.write:
        for gap, text in filled:
            print(f"{_place(source, gap)}: {text}")
    _tell_unfilled([_place(source, gap) for gap, text in zip(gaps, texts, strict=True) if not text], len(gaps))


def _place(source: Source, gap: Gap) -> str:
    line, column = source.position(gap.start)
    return f"{line}:{column}"


def _tell_unfilled(places: list[str], of: int) -> None:
    if len(places) == of:
        raise CommandFailed("The model proposes nothing for any marker.")
    if places:
        print(f"caesura: the model proposes nothing at {', '.join(places)}; kept as it is.", file=sys.stderr)


def _gaps(text: str, spans: list[tuple[int, int]], options: argparse.Namespace) -> list[Gap]:
    """Each marker's gap, seen in the text without the markers: no model has to read them."""
    gaps, removed = [], 0
    clean = text.replace(options.marker, "")
    for start, end in spans:
        gaps.append(Gap(start, end, _context(clean, start - removed, start - removed, options.file)))
        removed += end - start
    return gaps


def _context(text: str, start: int, end: int, name: str) -> Context:
    row = language("", name)
    tree = SyntaxTree(row)
    tree.parse(text)
    return context(text, start, end, language=row.id, tree=tree.tree)


async def _run(
    options: argparse.Namespace, around: Context, segments: tuple[wire.Text | wire.Hole, ...], show: Show | None = None
) -> tuple[wire.Done, str]:
    async with shared(options) as (engine, welcome):
        job = wire.Infill(
            job=job_id(),
            document=job_id(),
            kind="fill",
            priority="invoked",
            deadline_ms=options.deadline_ms,
            prefix=around.prefix,
            suffix=around.suffix,
            language=around.language,
            segments=segments,
            sampler=options.sampler,
        )
        return await ask(engine, job, show or (lambda event: None)), welcome.model


def _report(done: wire.Done, model: str) -> dict[str, object]:
    """What `--json` says besides the text: the holes as the engine sent them, before they were fitted in."""
    return {
        "holes": msgspec.to_builtins(done.holes),
        "steps": done.steps,
        "tokens": msgspec.to_builtins(done.tokens),
        "timings": msgspec.to_builtins(done.timings),
        "confidence": min(filled.confidence for filled in done.holes),
        "stop": done.stop,
        "model": model,
    }
