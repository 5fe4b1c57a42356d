"""`caesura edit`: a structured edit of a file, which leaves it valid; show the text, write it when asked to."""

import argparse
import asyncio
import math
import sys
from contextlib import aclosing
from functools import cache
from pathlib import Path

from caesura import wire
from caesura.commands import CommandFailed
from caesura.commands.common import (
    AskedEngine,
    Filled,
    filled,
    least,
    nothing,
    print_json,
    remarks,
    report,
    schema_files,
    shared,
    withheld,
)
from caesura.server.fills.history import LastFills
from caesura.server.fills.result import FillResult, Level
from caesura.server.fills.structured import Find, StructuredEdits, Unlikely, choose, finder
from caesura.server.fills.task import NoFill
from caesura.server.languages import language
from caesura.server.options import Settings
from caesura.server.structured.offer import NoOffer, Offer
from caesura.server.text.document import Document, Span
from caesura.source_file import SourceFile


def edit(options: argparse.Namespace) -> None:
    source = SourceFile.read(options.file, anyway=options.anyway, write=options.write)
    span = source.span(options.at, options.to)
    path = Path(options.file).absolute()
    document = Document(path.as_uri(), language("", options.file).id, 1, source.text, "utf-32")
    schema = str(Path(options.schema).absolute()) if options.schema else None
    find = cache(finder(document.uri, document.language, schema_files(path), schema))
    try:
        if options.list:
            _list(find, document, span, options)
            return
        offer, _ = choose(find, document.text, *span, options.offer)  # what cannot be edited needs no engine
        result, done, model = asyncio.run(_run(options, document, span, find))
    except (NoFill, NoOffer) as error:
        raise CommandFailed(str(error)) from error
    level: Level = ""
    if isinstance(result, Unlikely):
        found, start, end, note = Filled("", result.chance), offer.start, offer.end, ""
    else:
        [(start, end, text)], level, note = result.edits, result.level, result.note
        found = _filled(offer, text, done)
    if options.write and found.text:
        source.write([(start, end, found.text)])
    if options.json:
        what = {"offer": offer.title, "start": start, "end": end, "level": level, "note": note}
        print_json({"text": found.text, **what, **report([found], done, model)})
    if not found.text:
        raise withheld(f"The edit is {found}", done, options)
    if options.json:
        return
    if not options.write:
        print(found.text)
    told = f"{_guaranteed(offer, level)} Its values are the model's guess: {found}{remarks([found], done)}."
    print(" ".join(["caesura:", told, note]).strip(), file=sys.stderr)


def _filled(offer: Offer, text: str, done: wire.Done) -> Filled:
    """The edit's text, as likely as all of the fills that it was made of."""
    answers = (done.holes, *done.alternatives)
    fills = next((fills for fills in answers if offer.text([fill.text for fill in fills]) == text), done.holes)
    return Filled(text, math.prod(filled(fill.text, fill).chance for fill in fills))


def _guaranteed(offer: Offer, level: Level) -> str:
    """What is certain of the edit, in a sentence."""
    if level == "parses":
        return "The edit adds no syntax error."
    return "The edit parses and matches the schema." if offer.schemas else "The edit parses."


def _list(find: Find, document: Document, span: Span, options: argparse.Namespace) -> None:
    offers, note = find(document.text, *span)
    if options.json:
        print_json([{"offer": offer.title, "start": offer.start, "end": offer.end} for offer in offers])
        return
    for number, offer in enumerate(offers, 1):
        print(f"{number}  {offer.title}")
    if note:
        print(f"caesura: {note}", file=sys.stderr)


async def _run(
    options: argparse.Namespace, document: Document, span: Span, find: Find
) -> tuple[FillResult | Unlikely, wire.Done, str]:
    """The result, or why it is withheld; the last answer, and the model that gave it."""
    result: object = None
    async with shared(options) as (engine, welcome):
        asked = AskedEngine(engine, options)
        deadline_s = options.deadline_ms / 1000
        structured = StructuredEdits(
            asked, Settings(), LastFills(), deadline_s=deadline_s, min_probability=least(options)
        )
        try:
            async with aclosing(structured.edit(document, [span], find, options.offer)) as events:
                *_, result = [event async for event in events]
        except Unlikely as unlikely:
            result = unlikely
        except NoFill as error:
            if asked.done and asked.done.stop == "deadline" and not any(fill.text for fill in asked.done.holes):
                raise CommandFailed(f"{nothing(asked.done, options)}.") from error
            raise
        assert isinstance(result, FillResult | Unlikely)
        assert asked.done
        return result, asked.done, welcome.model
