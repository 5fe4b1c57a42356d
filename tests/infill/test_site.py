"""A place as the command line fills it: what is inserted for an answer."""

from caesura import wire
from caesura.server.infill.choose import choice
from caesura.server.infill.job import Ask
from caesura.server.infill.site import at_cursor

TEXT = "def f(a):\n    \n    return rate\n"


def answered(*texts: str) -> wire.Done:
    holes = [(wire.Fill(text, ((0, len(text)),)),) for text in texts]
    common = {"job": "j", "seq": 0, "steps": 1, "tokens": wire.Tokens(), "timings": wire.Timings()}
    return wire.Done(holes=holes[0], alternatives=tuple(holes[1:]), stop="complete", **common)  # type: ignore[arg-type]


def test_a_whole_fill_precedes_a_half_one() -> None:
    place = at_cursor(TEXT, len("def f(a):\n    "), "python", "line")
    assert choice(place, answered("# ---", "rate = a + 1"))[0] == "rate = a + 1"
    assert choice(place, answered("rate = a", "rate = a + 1"))[0] == "rate = a"
    assert choice(place, answered("# ---"))[0] == "# ---"


def test_the_job_names_what_the_gap_must_bind() -> None:
    job = at_cursor(TEXT, len("def f(a):\n    "), "python", "line").job(Ask())
    assert job.missing is not None
    assert (job.missing.name, job.effort) == ("rate", "full")
