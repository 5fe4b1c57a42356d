"""`caesura demo` and `caesura serve`: a page and an interface for programs, on loopback."""

import argparse
import asyncio
import os

from caesura import model_store
from caesura.commands import CommandFailed, draft


def demo(options: argparse.Namespace) -> None:
    from caesura.demo import app
    from caesura.demo.fills import MAX_TEXT
    from caesura.source_file import SourceFile

    draft(options.draft)
    own = []
    if options.file:
        source = SourceFile.read(options.file)
        if len(source.text) > MAX_TEXT:
            raise CommandFailed(f"{options.file} is longer than the {MAX_TEXT:,} characters that the demo accepts.")
        name = os.fsencode(source.path.name).decode(errors="replace")
        own.append(app.DemoDocument.marked(name, source.text))
    documents = app.examples(own)
    asyncio.run(app.serve(documents, options.port, options.model, options.device, browser=not options.no_browser))


def serve(options: argparse.Namespace) -> None:
    from caesura.serve import app

    model_store.locate(options.model)
    draft(options.draft)
    asyncio.run(app.serve(options.port, options.model, options.device))
