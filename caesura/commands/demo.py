"""`caesura demo`: the page that shows the canvas."""

import argparse
import asyncio
import os

from caesura.commands import CommandFailed, draft
from caesura.demo.app import Document, examples, serve
from caesura.demo.fills import MAX_TEXT
from caesura.source_file import SourceFile


def run(options: argparse.Namespace) -> None:
    draft(options.draft)
    own = []
    if options.file:
        source = SourceFile.read(options.file)
        if len(source.text) > MAX_TEXT:
            raise CommandFailed(f"{options.file} is longer than the {MAX_TEXT:,} characters that the demo takes.")
        name = os.fsencode(source.path.name).decode(errors="replace")
        own.append(Document.marked(name, source.text))
    asyncio.run(serve(examples(own), options.port, options.model, options.device, browser=not options.no_browser))
