"""The real language server with the real client of the fake engine. Not a test: kills.py starts it."""

import sys
from pathlib import Path

from caesura.client.shared import Engine
from caesura.server.app import App

FAKE = Path(__file__).with_name("fake_engine.py")

if __name__ == "__main__":
    app = App(
        lambda options, client, remote: Engine(
            client=client, model="typed", command=[sys.executable, "-P", str(FAKE), "typed"]
        )
    )
    sys.exit(app.server.serve())
