"""`caesura fill` and `caesura holes`: fill gaps of a file, show the text, write it when asked to."""

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from caesura import wire
from caesura.commands import CommandFailed
from caesura.commands.asking import Gap, ask, gap, print_json, report, shared
from caesura.commands.source import Source
from caesura.server.context import Context
from caesura.server.engine import job_id
from caesura.server.languages import language
from caesura.server.options import Options

Show = Callable[[wire.Locked | wire.Done], None]


def fill(options: argparse.Namespace) -> None:
    source = Source.read(options.file)
    start, end = source.span(options.at, options.to)
    asked = gap(source.text, start, end, language("", options.file).id)
    segments = (asked.hole,)
    if options.watch:
        from caesura.commands.watch import watching

        with watching(source, start, end, stderr=options.json) as show:
            done, model = asyncio.run(_run(options, asked.context, segments, show))
    else:
        done, model = asyncio.run(_run(options, asked.context, segments))
    text, _ = asked.chosen(done)
    if options.write and text:
        source.write([(start, end, text)])
    if options.json:
        print_json({"text": text, **report(done, model)})
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
    for ((_, before), (after, _)), asked in zip(pairwise(spans), gaps[1:], strict=True):
        if between := source.text[before:after]:
            segments.append(wire.Text(between))
        segments.append(asked.hole)
    done, model = asyncio.run(_run(options, around, tuple(segments)))
    texts = [asked.fitted(filled.text) for filled, asked in zip(done.holes, gaps, strict=True)]
    filled = [(start, end, text) for (start, end), text in zip(spans, texts, strict=True) if text]
    if options.write and filled:
        source.write(filled)
    if options.json:
        print_json({"texts": texts, **report(done, model)})
    elif not options.write:
        for start, _, text in filled:
            print(f"{_place(source, start)}: {text}")
    unfilled = [_place(source, start) for (start, _), text in zip(spans, texts, strict=True) if not text]
    _tell_unfilled(unfilled, len(gaps))


def _place(source: Source, offset: int) -> str:
    line, column = source.position(offset)
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
        gaps.append(gap(clean, start - removed, start - removed, language("", options.file).id))
        removed += end - start
    return gaps


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
            candidates=Options().candidates if len(segments) == 1 else 1,
            sampler=options.sampler,
            prompt=options.prompt_format,
        )
        return await ask(engine, job, show or (lambda event: None)), welcome.model
