"""Each route from a place in a text to inserted text gives the engine the jobs it gave, and inserts what it inserted:
ghost text, fills and structured edits of an editor, `caesura fill`, `holes`, `edit`, `eval`, `serve` and the demo.
tests/support/routes/recorded.py says how an answer that is meant to change is taken for right.
"""

import subprocess
import sys

from ..support.routes.places import ROOT, places, stretches
from ..support.routes.recorded import differences, read


def test_the_routes_give_the_same_jobs_and_texts() -> None:
    """In a process of its own, where time is that of the engine."""
    command = [sys.executable, "-m", "tests.support.routes.recorded"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_job_or_text_is_told_by_place_route_and_field() -> None:
    recorded = read()
    assert {row["place"] for row in recorded} == {place.name for place in places()} | {*stretches()}
    assert differences(recorded, recorded) == []
    before = {"place": "a.py", "route": "ghost", "jobs": [{"least": 0.2}], "texts": {"typed": ["0:1 x"]}}
    after = {**before, "jobs": [{"least": 0.5}], "texts": {"typed": []}}
    assert differences([before, recorded[0]], [after]) == [
        "a.py, ghost, jobs.0.least\n  recorded: 0.2\n  today:    0.5",
        'a.py, ghost, texts.typed.0\n  recorded: "0:1 x"\n  today:    nothing',
        "a.py, ghost, texts.typed\n  recorded: nothing\n  today:    []",
        f"{recorded[0]['place']}, {recorded[0]['route']}, is missing",
    ]
