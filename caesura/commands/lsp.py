"""`caesura lsp`."""

import argparse

from caesura.server import app


def run(options: argparse.Namespace) -> None:
    raise SystemExit(app.main())
