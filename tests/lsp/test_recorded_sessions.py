"""What real editors have said in recorded sessions is answered as it was: to the editor, and in the jobs that the
engine is given. tests/support/processes/sessions.py says how an answer that is meant to change is taken for right.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from ..support.processes.sessions import FOLDER, Event, differences

NAMES = [path.name.removesuffix(".jsonl.gz") for path in sorted(FOLDER.glob("*.jsonl.gz"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_session_gets_the_same_answers(name: str) -> None:
    """In a process of its own, where time is that of the recording."""
    command = [sys.executable, "-m", "tests.support.processes.sessions", name]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_answer_is_told_of() -> None:
    asked: Event = {"at": 0, "in": [{"id": 1, "method": "shutdown"}]}
    recorded: list[Event] = [asked, {"out": {"id": 1, "result": None}}, {"job": {"prefix": "key = ******"}}]
    played: list[Event] = [asked, {"job": {"prefix": "key = secret"}}, {"left": 1}]
    assert differences(recorded, recorded) == []
    told = differences(recorded, played)
    assert [one.split("\n")[0] for one in told] == [
        "missing: the answer to shutdown 1",
        "different: job, number 1",
        "new: job 1 is left",
    ]
    assert '- "prefix": "key = ******"\n+ "prefix": "key = secret"' in told[1]
