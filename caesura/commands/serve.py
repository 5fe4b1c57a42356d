"""`caesura lsp`, `caesura serve` and `caesura demo`: what editors, their plugins and a browser connect to."""

import argparse
import asyncio
import os

from caesura import model_store
from caesura.commands import CommandFailed, draft
from caesura.server import app as language_server
from caesura.server.lsp.loopback import NoClient


def lsp(options: argparse.Namespace) -> None:
    try:
        raise SystemExit(language_server.main(options.tcp))
    except NoClient as problem:
        raise CommandFailed(str(problem)) from None


def demo(options: argparse.Namespace) -> None:
    from caesura.demo import app
    from caesura.demo.fills import MAX_TEXT
    from caesura.source_file import SourceFile

    model_store.locate(options.model)
    draft(options.draft)
    own = []
    if options.file:
        source = SourceFile.read(options.file, anyway=options.anyway)
        if len(source.text) > MAX_TEXT:
            raise CommandFailed(f"{options.file} is longer than the {MAX_TEXT:,} characters that the demo accepts.")
        name = os.fsencode(source.path.name).decode(errors="replace")
        own.append(app.DemoDocument.marked(name, source.text))
    documents = app.examples(own)
    asyncio.run(app.serve(documents, options.port, options.model, options.device, browser=not options.no_browser))


def http(options: argparse.Namespace) -> None:
    from caesura.serve import app

    model_store.locate(options.model)
    draft(options.draft)
    asyncio.run(app.serve(options.port, options.model, options.device))
