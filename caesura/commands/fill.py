"""`caesura fill` and `caesura holes`: fill gaps of a file, show the text, write it when asked to."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from caesura import wire
from caesura.client.backend import job_id
from caesura.commands import CommandFailed
from caesura.commands.certainty import Filled, filled, kept, least, remarks, withheld
from caesura.commands.common import Gap, ask, at_cursor, gap, nothing, print_json, report, schema_files, shared
from caesura.commands.file import Source
from caesura.schema.dialects import SchemaError
from caesura.server.context.context import Context, context, hole
from caesura.server.fills.fills import HoleBatch, finished, laid_out
from caesura.server.fills.history import FillHistory
from caesura.server.fills.task import Gap as SourceGap
from caesura.server.fills.task import Task, markers
from caesura.server.languages import JSON, language
from caesura.server.options import Options
from caesura.server.text import repair
from caesura.server.text.document import Span

Show = Callable[[wire.Locked | wire.Done], None]


def fill(options: argparse.Namespace) -> None:
    source = Source.read(options.file)
    start, end = source.span(options.at, options.to)
    name = language("", options.file).id
    asked = gap(source.text, start, end, name) if start != end else _at_cursor(options.file, source.text, start, name)
    if options.watch:
        from caesura.commands.watch import watching

        with watching(source, start, end, stderr=options.json) as show:
            done, model = asyncio.run(_run(options, asked.context, asked.segments, asked.schemas, show))
    else:
        done, model = asyncio.run(_run(options, asked.context, asked.segments, asked.schemas))
    task = _task(source.text, name, [(start, end)])
    found = filled(*next((one for one in asked.proposals(done) if task.sound((one[0],))), ("", done.holes[0])))
    shown = kept(found, options)
    if options.write and shown.text:
        source.write([(start, end, shown.text)])
    if options.json:
        print_json({"text": shown.text, **report([shown], done, model)})
    if not found.text:
        raise CommandFailed(f"{nothing(done, options)}{'; nothing was written' if options.write else ''}.")
    if not shown.text:
        raise withheld(f"The fill is {found}", options)
    if not options.json:
        if not options.write:
            print(shown.text)
        print(f"caesura: {shown}{remarks([shown], done)}.", file=sys.stderr)


def _at_cursor(file: str, text: str, at: int, name: str) -> Gap:
    path, schema = Path(file).absolute(), None
    if name in JSON:
        with suppress(SchemaError):  # `caesura edit` says what is wrong with a schema
            schema = schema_files(path).find(path.as_uri(), text).schema
    return at_cursor(text, at, name, schema=schema)


def holes(options: argparse.Namespace) -> None:
    source = Source.read(options.file)
    name = language("", options.file).id
    spans = markers(source.text, (), name, options.marker)
    most = wire.MAX_HOLES
    if not spans:
        raise CommandFailed(f"{options.file} has no marker {options.marker}.")
    if len(spans) > most:
        raise CommandFailed(f"{options.file} has {len(spans)} markers; {most} can be filled together.")
    task = _task(source.text, name, spans)
    text, group = _group(task)
    around, segments = laid_out(text, group)
    done, model = asyncio.run(_run(options, around, segments))
    found = _sound(task, text, group, done)
    shown = [kept(one, options) for one in found]
    edits = [(*span, one.text) for span, one in zip(spans, shown, strict=True) if one.text]
    if options.write and edits:
        source.write(edits)
    if options.json:
        print_json({"texts": [one.text for one in shown], **report(shown, done, model)})
    elif not options.write:
        for start, _, insert in edits:
            print(f"{_place(source, start)}: {insert}")
    _tell(options, [_place(source, start) for start, _ in spans], found, done)


def _task(text: str, name: str, spans: Sequence[Span]) -> Task:
    """As an editor has it for what a person asks for: nobody goes on typing where a fill ends."""
    return Task(text, name, tuple(SourceGap(*span) for span in spans), repair.parsed(text, name))


def _group(task: Task) -> tuple[str, HoleBatch]:
    """The text without its markers, which no model has to read, and the holes in it."""
    text, offsets = task.lay({})
    tree = task.parsed(text)
    group = {}
    for place, at in offsets.items():
        around = context(text, at, at, language=task.language, tree=tree)
        group[place] = at, around, hole(around, Options().max_tokens)
    return text, group


def _sound(task: Task, text: str, group: HoleBatch, done: wire.Done) -> list[Filled]:
    """What comes into each hole: the best candidate that an editor would take, else the best one without one of its
    fills; empty where there is none."""
    answers = (done.holes, *done.alternatives)
    joint = [task.candidate(finished(text, group, fills)) for fills in answers]
    without = [(*joint[0][:n], "", *joint[0][n + 1 :]) for n in range(len(joint[0]))]
    made_of = dict(zip([*without, *joint], [*([done.holes] * len(without)), *answers], strict=True))
    taken = FillHistory("", task, waiting=[*joint, *without]).take(gate=True)
    if taken is None:
        return [Filled("", fill.confidence) for fill in done.holes]
    return list(map(filled, taken, made_of[taken]))


def _place(source: Source, offset: int) -> str:
    line, column = source.position(offset)
    return f"{line}:{column}"


def _tell(options: argparse.Namespace, places: list[str], found: list[Filled], done: wire.Done) -> None:
    """How sure each fill is, and which markers are kept. Raises CommandFailed where all are."""
    shown = {place: one for place, one in zip(places, found, strict=True) if kept(one, options).text}
    unsure = {place: one for place, one in zip(places, found, strict=True) if one.text and place not in shown}
    if not shown and unsure:
        raise withheld(f"The fills are {_list(unsure)}", options)
    if not shown:
        raise CommandFailed(f"{nothing(done, options)}; all markers are kept.")
    if not options.json:
        print(f"caesura: {_list(shown)}{remarks([*shown.values()], done)}.", file=sys.stderr)
    if unsure:
        print(f"caesura: withheld, below {least(options):g}: {_list(unsure)}; kept as it is.", file=sys.stderr)
    if empty := [place for place, one in zip(places, found, strict=True) if not one.text]:
        late = "the deadline passed before there was a fill at"
        why = late if done.stop == "deadline" else "the model proposes nothing that fits at"
        print(f"caesura: {why} {', '.join(empty)}; kept as it is.", file=sys.stderr)


def _list(fills: Mapping[str, Filled]) -> str:
    return ", ".join(f"{place} {one}" for place, one in fills.items())


async def _run(
    options: argparse.Namespace,
    around: Context,
    segments: Sequence[wire.Text | wire.Hole],
    schemas: tuple[str, ...] = (),
    show: Show | None = None,
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
            segments=tuple(segments),
            schemas=schemas,
            candidates=Options().candidates,
            method=options.method,
            sampler=options.sampler,
            prompt=options.prompt_format,
        )
        return await ask(engine, job, show or (lambda event: None)), welcome.model
