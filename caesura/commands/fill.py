"""`caesura fill` and `caesura holes`: fill gaps of a file, show the text, write it when asked to."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from caesura import wire
from caesura.characters import shown
from caesura.commands import CommandFailed
from caesura.commands.common import (
    Filled,
    ask,
    filled,
    job_options,
    kept,
    least,
    nothing,
    print_json,
    remarks,
    report,
    schema_files,
    shared,
    withheld,
)
from caesura.gaps import TextGap, at_cursor, gap, infill
from caesura.schema.dialects import SchemaError
from caesura.server.answers.begun import is_begun
from caesura.server.context.context import context, hole
from caesura.server.fills.fills import HoleBatch, finished, laid_out
from caesura.server.fills.history import FillHistory
from caesura.server.fills.task import Gap, Task, markers
from caesura.server.languages import JSON, language
from caesura.server.options import Options
from caesura.server.text import repair
from caesura.server.text.document import Span
from caesura.source_file import SourceFile

if TYPE_CHECKING:
    from rich.text import Text

Show = Callable[[wire.Locked | wire.Done], None]
AROUND = 6  # lines above and below the gap
LOCKED, DRAFT, OPEN, REST = "bold green", "yellow", "bright_black", "dim"  # styles of rich
OPEN_SLOT = "\u2591"


def fill(options: argparse.Namespace) -> None:
    source = SourceFile.read(options.file, anyway=options.anyway, write=options.write)
    start, end = source.span(options.at, options.to)
    name = language("", options.file).id
    asked = gap(source.text, start, end, name) if start != end else _at_cursor(options.file, source.text, start, name)
    unlikely = least(options) if language(name).prose else 0.0  # in code the end of a line may be as unlikely
    job = asked.job(replace(job_options(options), least=unlikely), "fill")
    with _watching(source, start, end, stderr=options.json) if options.watch else nullcontext(_unseen) as show:
        done, model = asyncio.run(_run(options, job, show))
    task = fill_task(source.text, name, [(start, end)])
    best = filled(*next((one for one in asked.proposals(done) if task.sound((one[0],))), ("", done.holes[0])))
    [found] = _judged(task, [best])
    shown = kept(found, done, options)
    if options.write and shown.text:
        source.write([(start, end, shown.text)])
    if options.json:
        print_json({"text": shown.text, **report([shown], done, model)})
    if not found.text and done.stop != "unlikely":
        raise CommandFailed(f"{nothing(done, options)}{'; nothing was written' if options.write else ''}.")
    if not shown.text:
        raise withheld(f"The fill is {found}", done, options)
    if not options.json:
        if not options.write:
            print(shown.text)
        print(f"caesura: {shown}{remarks([shown], done)}.", file=sys.stderr)


def _at_cursor(file: str, text: str, at: int, name: str) -> TextGap:
    path, schema = Path(file).absolute(), None
    if name in JSON:
        with suppress(SchemaError):  # `caesura edit` says what is wrong with a schema
            schema = schema_files(path).find(path.as_uri(), text).schema
    return at_cursor(text, at, name, schema=schema)


def holes(options: argparse.Namespace) -> None:
    """Fill all markers in one job.

    It shares task, layout and choice of candidates with an editor's `Fills`, but not the loop around them. `Fills`
    takes several jobs, tries other seeds and returns edits without probabilities, and in the end all holes are filled
    or the user gets an error. Here there is one answer, whose certainty, steps and timings are reported for each hole;
    a hole whose fill breaks the text keeps its marker, and the others are filled.
    """
    source = SourceFile.read(options.file, anyway=options.anyway, write=options.write)
    name = language("", options.file).id
    spans = markers(source.text, (), options.marker)
    most = wire.MAX_HOLES
    if not spans:
        raise CommandFailed(f"{options.file} has no marker {options.marker}.")
    if len(spans) > most:
        raise CommandFailed(f"{options.file} has {len(spans)} markers; {most} can be filled together.")
    task = fill_task(source.text, name, spans)
    text, group = _group(task)
    around, segments = laid_out(text, group)
    done, model = asyncio.run(_run(options, infill(around, segments, job_options(options), "fill"), _unseen))
    found = _judged(task, _sound(task, text, group, done))
    shown = [kept(one, done, options) for one in found]
    edits = [(*span, one.text) for span, one in zip(spans, shown, strict=True) if one.text]
    if options.write and edits:
        source.write(edits)
    if options.json:
        print_json({"texts": [one.text for one in shown], **report(shown, done, model)})
    elif not options.write:
        for start, _, insert in edits:
            print(f"{_place(source, start)}: {insert}")
    _tell(options, [_place(source, start) for start, _ in spans], found, done)


def fill_task(text: str, name: str, spans: Sequence[Span]) -> Task:
    """The task as an editor makes it for a fill that the user asks for: nobody types on at the end of the fill."""
    return Task(text, name, tuple(Gap(*span) for span in spans), repair.parsed(text, name))


def _group(task: Task) -> tuple[str, HoleBatch]:
    """The text without its markers, and the holes in it."""
    text, offsets = task.lay({})
    tree = task.parsed(text)
    group = {}
    for place, at in offsets.items():
        around = context(text, at, at, language=task.language, tree=tree)
        group[place] = at, around, hole(around, Options().max_tokens)
    return text, group


def _sound(task: Task, text: str, group: HoleBatch, done: wire.Done) -> list[Filled]:
    """The fill of each hole: from the best candidate that an editor would take, else from the best one without one of
    its fills. Empty if there is none."""
    answers = (done.holes, *done.alternatives)
    joint = [task.candidate(finished(text, group, fills)) for fills in answers]
    without = [(*joint[0][:n], "", *joint[0][n + 1 :]) for n in range(len(joint[0]))]
    made_of = dict(zip([*without, *joint], [*([done.holes] * len(without)), *answers], strict=True))
    taken = FillHistory("", task, waiting=[*joint, *without]).take(gate=True)
    if taken is None:
        return [Filled("", fill.confidence) for fill in done.holes]
    return list(map(filled, taken, made_of[taken]))


def _judged(task: Task, found: Sequence[Filled]) -> list[Filled]:
    """The fills, each with whether it only begins a body."""
    text, spans = task.put([one.text for one in found])
    tree = task.parsed(text)
    return [replace(one, begun=is_begun(tree, text, *span)) for one, span in zip(found, spans, strict=True)]


def _place(source: SourceFile, offset: int) -> str:
    line, column = source.position(offset)
    return f"{line}:{column}"


def _tell(options: argparse.Namespace, places: list[str], found: list[Filled], done: wire.Done) -> None:
    """Say how sure each fill is and which markers are kept. Raises CommandFailed if all are kept."""
    shown = {place: one for place, one in zip(places, found, strict=True) if kept(one, done, options).text}
    unsure = {place: one for place, one in zip(places, found, strict=True) if one.text and place not in shown}
    if not shown and unsure:
        raise withheld(f"The fills are {_list(unsure)}", done, options)
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


async def _run(options: argparse.Namespace, job: wire.Infill, show: Show) -> tuple[wire.Done, str]:
    """The answer, and the model that gave it."""
    async with shared(options) as (engine, welcome):
        return await ask(engine, job, show), welcome.model


def _unseen(event: wire.Locked | wire.Done) -> None:
    pass


# --watch


@contextmanager
def _watching(source: SourceFile, start: int, end: int, *, stderr: bool) -> Iterator[Show]:
    """Give a function that shows an event: in a terminal the canvas as it resolves, elsewhere a line for each event."""
    from rich.console import Console
    from rich.live import Live
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=stderr)
    began = time.monotonic()

    if not console.is_terminal:

        def write(event: wire.Locked | wire.Done) -> None:
            console.out(f"{_corner(event, began)}  {_canvas(event.holes[0]).plain!r}", highlight=False)

        yield write
        return

    before = "".join(source.text[:start].splitlines(keepends=True)[-AROUND:])
    after = "".join(source.text[end:].splitlines(keepends=True)[:AROUND])

    def picture(middle: Text, corner: str) -> Panel:
        body = Text().append(before, REST).append_text(middle).append(after, REST)
        return Panel(body, title=Text(shown(source.path)), title_align="left", subtitle=corner, subtitle_align="right")

    with Live(picture(Text(), "waiting for the engine"), console=console, auto_refresh=False) as live:
        yield lambda event: live.update(picture(_canvas(event.holes[0]), _corner(event, began)), refresh=True)


def _canvas(fill: wire.Fill) -> "Text":
    """The hole: locked text, the draft of the rest, and a block for each open slot."""
    from rich.text import Text

    shown = Text().append(fill.text, DRAFT)
    for start, end in fill.locked:
        shown.stylize(LOCKED, start, end)
    return shown.append(OPEN_SLOT * fill.open, OPEN)


def _corner(event: wire.Locked | wire.Done, began: float) -> str:
    if isinstance(event, wire.Done):
        return f"done in {event.steps} steps, {event.timings.total_ms:.0f} ms"
    return f"step {event.step} of {event.of}, {(time.monotonic() - began) * 1000:.0f} ms"
