"""A gap as the command line fills it: what is inserted for an answer."""

from caesura import wire
from caesura.gaps import JobOptions, at_cursor

TEXT = "def f(a):\n    \n    return rate\n"


def answered(*texts: str) -> wire.Done:
    holes = [(wire.Fill(text, ((0, len(text)),)),) for text in texts]
    common = {"job": "j", "seq": 0, "steps": 1, "tokens": wire.Tokens(), "timings": wire.Timings()}
    return wire.Done(holes=holes[0], alternatives=tuple(holes[1:]), stop="complete", **common)  # type: ignore[arg-type]


def test_a_whole_fill_precedes_a_half_one() -> None:
    gap = at_cursor(TEXT, len("def f(a):\n    "), "python", "line")
    assert gap.chosen(answered("# ---", "rate = a + 1"))[0] == "rate = a + 1"
    assert gap.chosen(answered("rate = a", "rate = a + 1"))[0] == "rate = a"
    assert gap.chosen(answered("# ---"))[0] == "# ---"


def test_the_job_names_what_the_gap_must_bind() -> None:
    job = at_cursor(TEXT, len("def f(a):\n    "), "python", "line").job(JobOptions(), "complete")
    assert job.missing is not None
    assert (job.missing.name, job.effort) == ("rate", "full")
