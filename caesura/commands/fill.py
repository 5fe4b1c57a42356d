"""`caesura fill` and `caesura holes`: fill gaps of a file, show the text, write it when asked to."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from caesura import wire
from caesura.characters import shown
from caesura.commands import CommandFailed
from caesura.commands.common import (
    AskedEngine,
    Filled,
    Show,
    filled,
    kept,
    least,
    nothing,
    print_json,
    remarks,
    report,
    schema_files,
    shared,
    unseen,
    withheld,
)
from caesura.schema.dialects import SchemaError
from caesura.schema.document import Schema
from caesura.server.fills.fills import MAX_SELECTION, MOST_HOLES, Fills
from caesura.server.fills.history import LastFills
from caesura.server.fills.result import Events, FillResult
from caesura.server.fills.structured import applied
from caesura.server.fills.task import Invented, NoFill, markers, trimmed
from caesura.server.infill.begun import is_begun
from caesura.server.languages import JSON, language
from caesura.server.options import Settings
from caesura.server.text.document import Document, Span
from caesura.server.text.repair import parsed
from caesura.source_file import SourceFile

if TYPE_CHECKING:
    from rich.text import Text

AROUND = 6  # lines above and below the gap
LOCKED, DRAFT, OPEN, REST = "bold green", "yellow", "bright_black", "dim"  # styles of rich
OPEN_SLOT = "\u2591"


@dataclass(frozen=True)
class FileFills:
    """The fill of each span, empty where there is none; `why` there is none at all, without a full stop."""

    found: Mapping[Span, Filled]
    done: wire.Done
    model: str
    why: str = ""


def fill(options: argparse.Namespace) -> None:
    source, document = _read(options)
    start, end = trimmed(source.text, *source.span(options.at, options.to))
    if end - start > MAX_SELECTION:
        raise CommandFailed(f"The text to replace is longer than {MAX_SELECTION} characters; give a smaller part.")
    unlikely = least(options) if language(document.language).prose else 0.0  # in code a line's end may be as unlikely
    schema = _schema(options, document)

    def begin(fills: Fills) -> Events:
        return fills.selection(document, [(start, end)], schema)

    with _watching(source, start, end, stderr=options.json) if options.watch else nullcontext(unseen) as show:
        answer = asyncio.run(_run(options, document, [(start, end)], begin, show, unlikely))
    [found], [shown] = answer.found.values(), _put(options, source, answer)
    if options.json:
        print_json({"text": shown.text, **report([shown], answer.done, answer.model)})
    if not found.text and answer.done.stop != "unlikely":
        raise CommandFailed(f"{answer.why}{'; nothing was written' if options.write else ''}.")
    if not shown.text:
        raise withheld(f"The fill is {found}", answer.done, options)
    if not options.json:
        if not options.write:
            print(shown.text)
        print(f"caesura: {shown}{remarks([shown], answer.done)}.", file=sys.stderr)


def holes(options: argparse.Namespace) -> None:
    source, document = _read(options)
    spans = markers(source.text, (), options.marker)
    if not spans:
        raise CommandFailed(f"{options.file} has no marker {options.marker}.")
    if len(spans) > MOST_HOLES:
        raise CommandFailed(f"{options.file} has {len(spans)} markers; {MOST_HOLES} can be filled together.")
    answer = asyncio.run(_run(options, document, spans, lambda fills: fills.holes(document, (), options.marker)))
    shown, places = _put(options, source, answer), [_place(source, start) for start, _ in spans]
    if options.json:
        print_json({"texts": [one.text for one in shown], **report(shown, answer.done, answer.model)})
    elif not options.write:
        print(end="".join(f"{place}: {one.text}\n" for place, one in zip(places, shown, strict=True) if one.text))
    _tell(options, dict(zip(places, answer.found.values(), strict=True)), answer)


def _read(options: argparse.Namespace) -> tuple[SourceFile, Document]:
    source = SourceFile.read(options.file, anyway=options.anyway, write=options.write)
    uri = Path(options.file).absolute().as_uri()
    return source, Document(uri, language("", options.file).id, 1, source.text, "utf-32")


def _schema(options: argparse.Namespace, document: Document) -> Schema | None:
    if document.language in JSON:
        with suppress(SchemaError):  # `caesura edit` says what is wrong with a schema
            return schema_files(Path(options.file).absolute()).find(document.uri, document.text).schema
    return None


async def _run(
    options: argparse.Namespace,
    document: Document,
    spans: Sequence[Span],
    begin: Callable[[Fills], Events],
    show: Show = unseen,
    bar: float = 0.0,
) -> FileFills:
    """The answer for these spans of the document, which a fill replaces as it does in an editor."""
    async with shared(options) as (engine, welcome):
        asked = AskedEngine(engine, options, show, bar)
        try:
            async with aclosing(begin(Fills(asked, Settings(), LastFills()))) as events:
                *_, result = [event async for event in events]
            assert isinstance(result, FillResult), "the last event, or there is NoFill"
            found, why = _judged(document, spans, result), ""
        except NoFill as error:
            found, why = dict.fromkeys(spans, Filled("", 0.0)), str(error).removesuffix(".")
            if asked.done and (asked.done.stop == "deadline" or not isinstance(error, Invented)):
                why = nothing(asked.done, options)
            old = {document.text[start:end] for start, end in spans if start < end}
            if asked.done and old & {one.text for one in asked.done.holes}:
                why = "The model proposes the text that is there already"
        if not asked.done:
            raise CommandFailed(f"{why}.")
        return FileFills(found, asked.done, welcome.model, why)


def _judged(document: Document, spans: Sequence[Span], result: FillResult) -> dict[Span, Filled]:
    """The fill of each span, with whether it only begins a body."""
    texts = {(start, end): text for start, end, text in result.edits}
    edits = [(*span, texts.get(span, "")) for span in spans]
    new, found, grown = applied(document.text, edits), dict[Span, Filled](), 0
    tree = parsed(new, document.language)
    for (start, end, text), made in zip(edits, result.fills, strict=True):
        begun = is_begun(tree, new, start + grown, start + grown + len(text))
        found[start, end] = replace(filled(text, made), begun=begun)
        grown += len(text) - (end - start)
    return found


def _put(options: argparse.Namespace, source: SourceFile, answer: FileFills) -> list[Filled]:
    """The fills as they are shown, which are in the file now if that was asked for."""
    shown = [kept(one, answer.done, options) for one in answer.found.values()]
    edits = [(*span, one.text) for span, one in zip(answer.found, shown, strict=True) if one.text]
    if options.write and edits:
        source.write(edits)
    return shown


def _place(source: SourceFile, offset: int) -> str:
    line, column = source.position(offset)
    return f"{line}:{column}"


def _tell(options: argparse.Namespace, found: Mapping[str, Filled], answer: FileFills) -> None:
    """Say how sure the fill at each place is and which markers are kept. Raises CommandFailed if all are kept."""
    done = answer.done
    shown = {place: one for place, one in found.items() if kept(one, done, options).text}
    unsure = {place: one for place, one in found.items() if one.text and place not in shown}
    if not shown and unsure:
        raise withheld(f"The fills are {_list(unsure)}", done, options)
    if not shown:
        raise CommandFailed(f"{answer.why}; all markers are kept.")
    if not options.json:
        print(f"caesura: {_list(shown)}{remarks([*shown.values()], done)}.", file=sys.stderr)
    if unsure:
        print(f"caesura: withheld, below {least(options):g}: {_list(unsure)}; kept as it is.", file=sys.stderr)
    if empty := [place for place, one in found.items() if not one.text]:
        late = "the deadline passed before there was a fill at"
        why = late if done.stop == "deadline" else "the model proposes nothing that fits at"
        print(f"caesura: {why} {', '.join(empty)}; kept as it is.", file=sys.stderr)


def _list(fills: Mapping[str, Filled]) -> str:
    return ", ".join(f"{place} {one}" for place, one in fills.items())


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
