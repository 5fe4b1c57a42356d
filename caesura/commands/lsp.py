"""`caesura lsp`."""

import argparse

from caesura.commands import CommandFailed
from caesura.server import app
from caesura.server.lsp.loopback import NoClient


def run(options: argparse.Namespace) -> None:
    try:
        raise SystemExit(app.main(options.tcp))
    except NoClient as problem:
        raise CommandFailed(str(problem)) from None
