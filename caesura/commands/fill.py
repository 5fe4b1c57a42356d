"""`caesura fill` and `caesura holes`: fill gaps of a file, show the text, write it when asked to."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from caesura import wire
from caesura.characters import shown
from caesura.client.backend import job_id
from caesura.commands import CommandFailed
from caesura.commands.common import (
    Filled,
    ask,
    ask_of,
    filled,
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
from caesura.schema.dialects import SchemaError
from caesura.server.fills.batch import Batch, next_batch, without
from caesura.server.fills.history import FillHistory
from caesura.server.fills.task import Gap, Task, markers
from caesura.server.infill.begun import is_begun
from caesura.server.infill.choose import choice
from caesura.server.infill.job import infill
from caesura.server.infill.site import Site, at_cursor, bare_site
from caesura.server.languages import JSON, language
from caesura.server.options import Options
from caesura.server.text import repair
from caesura.server.text.document import Span
from caesura.source_file import SourceFile

if TYPE_CHECKING:
    from rich.text import Text

Show = Callable[[wire.Locked | wire.Done], None]
ChooseFills = Callable[[wire.Done], tuple[list[Filled], list[str]]]
"""The fills of an answer to insert, an empty one for each hole that gets none, and the members that it invents."""
AROUND = 6  # lines above and below the gap
LOCKED, DRAFT, OPEN, REST = "bold green", "yellow", "bright_black", "dim"  # styles of rich
OPEN_SLOT = "\u2591"


def fill(options: argparse.Namespace) -> None:
    source = SourceFile.read(options.file, anyway=options.anyway, write=options.write)
    start, end = source.span(options.at, options.to)
    name = language("", options.file).id
    asked = _site(options.file, source.text, start, end, name)
    unlikely = least(options) if language(name).prose else 0.0  # in code the end of a line may be as unlikely
    job = asked.job(replace(ask_of(options, "fill"), min_probability=unlikely))
    with _watching(source, start, end, stderr=options.json) if options.watch else nullcontext(_unseen) as show:
        [best], invented, done, model = asyncio.run(_run(options, job, partial(_chosen, asked), show))
    new = f"{source.text[:start]}{best.text}{source.text[end:]}"
    [found] = _judged(new, name, [(start, start + len(best.text))], [best])
    shown = kept(found, done, options)
    if options.write and shown.text:
        source.write([(start, end, shown.text)])
    if options.json:
        print_json({"text": shown.text, **report([shown], done, model)})
    if not found.text and done.stop != "unlikely":
        raise CommandFailed(f"{_nothing(invented, done, options)}{'; nothing was written' if options.write else ''}.")
    if not shown.text:
        raise withheld(f"The fill is {found}", done, options)
    if not options.json:
        if not options.write:
            print(shown.text)
        print(f"caesura: {shown}{remarks([shown], done)}.", file=sys.stderr)


def _chosen(asked: Site, done: wire.Done) -> tuple[list[Filled], list[str]]:
    """The best fill of an answer, else an empty one; and the members that its texts read and a class does not have."""
    texts = (asked.fitted(asked.fill(fills).text) for fills in (done.holes, *done.alternatives))
    invented = [name for text in texts for name in asked.invented(text)]
    return [filled(*choice(asked, done))], [*dict.fromkeys(invented)]


def _site(file: str, text: str, start: int, end: int, name: str) -> Site:
    path, schema = Path(file).absolute(), None
    if start != end:
        return bare_site(text, start, end, name)
    if name in JSON:
        with suppress(SchemaError):  # `caesura edit` says what is wrong with a schema
            schema = schema_files(path).find(path.as_uri(), text).schema
    return at_cursor(text, start, name, schema=schema)


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
    task = Task(source.text, name, tuple(Gap(*span) for span in spans), repair.parsed(source.text, name))
    batch = next_batch(task, {}, Options(), most=inf)
    job = infill(batch.around, batch.segments(), ask_of(options, "fill"))
    taken, invented, done, model = asyncio.run(_run(options, job, partial(_sound, task, batch), _unseen))
    new, placed = task.put([one.text for one in taken])
    found = _judged(new, name, placed, taken)
    shown = [kept(one, done, options) for one in found]
    edits = [(*span, one.text) for span, one in zip(spans, shown, strict=True) if one.text]
    if options.write and edits:
        source.write(edits)
    if options.json:
        print_json({"texts": [one.text for one in shown], **report(shown, done, model)})
    elif not options.write:
        for start, _, insert in edits:
            print(f"{_place(source, start)}: {insert}")
    _tell(options, [_place(source, start) for start, _ in spans], found, invented, done)


def _sound(task: Task, batch: Batch, done: wire.Done) -> tuple[list[Filled], list[str]]:
    """The fill of each hole: from the best candidate that an editor would take, else the fills of the best one that may
    stand. Empty where there is none. Then the members that the candidates read and a class does not have."""
    answers = (done.holes, *done.alternatives)
    candidates = [task.candidate(batch.fitted(fills)) for fills in answers]
    history = FillHistory("", task, waiting=candidates)
    taken = history.take(gate=True) or history.take_part(candidates) or ("",) * len(task.gaps)
    fills = dict(zip(reversed(candidates), reversed(answers), strict=True)).get(taken, done.holes)
    return [filled(*one) for one in zip(taken, fills, strict=True)], [*history.invented]


def _judged(text: str, name: str, spans: Sequence[Span], found: Sequence[Filled]) -> list[Filled]:
    """The fills, which stand at the spans, each with whether it only begins a body."""
    tree = repair.parsed(text, name)
    return [replace(one, begun=is_begun(tree, text, *span)) for one, span in zip(found, spans, strict=True)]


def _place(source: SourceFile, offset: int) -> str:
    line, column = source.position(offset)
    return f"{line}:{column}"


def _tell(
    options: argparse.Namespace, places: list[str], found: list[Filled], invented: list[str], done: wire.Done
) -> None:
    """Say how sure each fill is and which markers are kept. Raises CommandFailed if all are kept."""
    shown = {place: one for place, one in zip(places, found, strict=True) if kept(one, done, options).text}
    unsure = {place: one for place, one in zip(places, found, strict=True) if one.text and place not in shown}
    if not shown and unsure:
        raise withheld(f"The fills are {_list(unsure)}", done, options)
    if not shown:
        raise CommandFailed(f"{_nothing(invented, done, options)}; all markers are kept.")
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


def _nothing(invented: Sequence[str], done: wire.Done, options: argparse.Namespace) -> str:
    """The reason why nothing of an answer can be inserted, without a full stop."""
    if invented and done.stop != "deadline":
        return f"The model's text reads {', '.join(f'`{name}`' for name in invented)}, which its class does not have"
    return nothing(done, options)


async def _run(
    options: argparse.Namespace, job: wire.Infill, judge: ChooseFills, show: Show
) -> tuple[list[Filled], list[str], wire.Done, str]:
    """The fill of each hole, the members that the answer invents, the answer, and the model that gave it. A hole that
    stays empty because of such members is asked for again without them."""
    late = time.monotonic() + options.deadline_ms / 1000
    async with shared(options) as (engine, welcome):
        done = await ask(engine, job, show)
        found, invented = judge(done)
        left = 1000 * (late - time.monotonic())
        if invented and left > 0 and not all(one.text for one in found):
            segments = tuple(without(invented, job.segments))
            job = structs.replace(job, job=job_id(), segments=segments, deadline_ms=left)
            again = await ask(engine, job, show)
            more, names = judge(again)
            if sum(bool(one.text) for one in more) > sum(bool(one.text) for one in found):
                found, invented, done = more, names, again
        return found, invented, done, welcome.model


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
