"""What a person gets who asks for a fill: edits of nothing but the gaps, another one, a part kept, a repair."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from re import fullmatch
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.client.backend import EngineBusy, EngineError
from caesura.schema.document import Schema
from caesura.server.context.secrets import FILLER
from caesura.server.fills.fills import Fills
from caesura.server.fills.history import LastFills
from caesura.server.fills.result import Events, FillResult, Progress
from caesura.server.fills.task import Gap, NoFill, Task, markers
from caesura.server.options import Options, Settings
from caesura.server.text import repair
from caesura.server.text.document import Document

URI = "file:///project/a.py"
Texts = Sequence[str]  # of all holes of a job
PIECE = st.text(st.sampled_from("ab ([\t\r\n\u2028\U0001f600\u0301"), max_size=12)


class FakeEngine:
    """Answers each job with the candidates that `answer` gives for it, best first; says before how it goes on."""

    level = ""

    def __init__(self, *answers: Sequence[Texts] | Callable[[wire.Infill], Sequence[Texts]]) -> None:
        self.answers = list(answers)
        self.jobs: list[wire.Infill] = []
        self.cancelled = 0

    async def infill(self, job: wire.Infill) -> AsyncGenerator[wire.Locked | wire.Done, None]:
        wire.decode_client(wire.encode(job))
        self.jobs.append(job)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        best, *others = [tuple(map(wire.Fill, texts)) for texts in (answer(job) if callable(answer) else answer)]
        self.cancelled += 1
        started = (best[0], *(wire.Fill("", open=8) for _ in best[1:]))
        yield wire.Locked(job=job.job, seq=0, holes=started, step=1, of=2)
        yield wire.Done(
            **{"job": job.job, "seq": 1, "holes": best, "alternatives": tuple(others), "steps": 2, "level": self.level},
            tokens=wire.Tokens(),
            timings=wire.Timings(),
            stop="complete",
        )
        self.cancelled -= 1


def fills(*answers: Any) -> tuple[Fills, FakeEngine]:
    engine = FakeEngine(*answers)
    return Fills(engine, Settings(), LastFills()), engine


def document(text: str, language: str = "python") -> Document:
    return Document(URI, language, 1, text)


async def result(events: Events) -> FillResult:
    *before, last = [event async for event in events]
    assert all(isinstance(event, Progress) for event in before)
    assert isinstance(last, FillResult)
    return last


def apply(document: Document, found: FillResult) -> str:
    """What an editor does: the edits from the last to the first, as one new version."""
    assert found.version == document.version
    text = document.text
    for start, end, new in reversed(found.edits):
        text = text[:start] + new + text[end:]
    document.replace(text)
    document.version += 1
    return text


def at(text: str, part: str) -> tuple[int, int]:
    assert text.count(part) == 1
    return text.index(part), text.index(part) + len(part)


# Selections and holes


async def test_a_selection_is_replaced_and_nothing_else() -> None:
    text = "def add(a, b):\n    # todo\n    return a - b  # sum \U0001f600\n"
    page, (fill, engine) = document(text), fills([["a + b"]])
    found = await result(fill.selection(page, [at(text, "a - b")]))
    assert found.edits == ((*at(text, "a - b"), "a + b"),)
    [job] = engine.jobs
    assert (job.kind, job.priority) == ("fill", "invoked")
    assert job.prefix.endswith("return ")
    assert job.suffix == "  # sum \U0001f600\n"
    assert apply(page, found) == text.replace("a - b", "a + b")


async def test_whole_lines_keep_their_indentation_and_their_line_end() -> None:
    text = "def f(x):\r\n    y = x\r\n    z = y\r\n    return z\r\n"
    page, (fill, engine) = document(text), fills([["y = 1\n    z = 2"]])
    found = await result(fill.selection(page, [at(text, "    y = x\r\n    z = y\r\n")]))
    assert apply(page, found) == "def f(x):\r\n    y = 1\r\n    z = 2\r\n    return z\r\n"
    assert engine.jobs[0].segments == (wire.Hole(wire_tokens(engine.jobs[0]), "block"),)


def wire_tokens(job: wire.Infill) -> int:
    return sum(segment.max_tokens for segment in job.segments if isinstance(segment, wire.Hole))


async def test_all_holes_of_a_document_are_one_job() -> None:
    text = "def f(<FILL>):\n    return <FILL>\n\nf(\U0001f600<FILL>)\n"
    page, (fill, engine) = document(text), fills([["a", "a + 1", "2"]])
    found = await result(fill.holes(page))
    assert apply(page, found) == "def f(a):\n    return a + 1\n\nf(\U0001f6002)\n"
    [job] = engine.jobs
    assert [s.text if isinstance(s, wire.Text) else None for s in job.segments] == [
        *(None, "):\n    return ", None, "\n\nf(\U0001f600", None)
    ]
    assert (job.prefix, job.suffix) == ("def f(", ")\n")
    assert "<FILL>" not in str(job)


async def test_several_selections_are_filled_together() -> None:
    text = "a = 1\nb = 2\nc = 3\n"
    page, (fill, engine) = document(text), fills([["x", "y"]])
    found = await result(fill.selection(page, [at(text, "3"), at(text, "1")]))
    assert apply(page, found) == "a = x\nb = 2\nc = y\n"
    assert len(engine.jobs) == 1


async def test_holes_far_apart_are_filled_in_groups_each_seeing_the_fills_before_it() -> None:
    middle = "".join(f"line_{number} = {number}\n" for number in range(60))
    text = f"first = <FILL>\nmore = <FILL>\n{middle}last = <FILL>\n"
    page, (fill, engine) = document(text), fills([["1", "2"]], [["3"]])
    found = [event async for event in fill.holes(page)]
    assert apply(page, found[-1]) == f"first = 1\nmore = 2\n{middle}last = 3\n"  # type: ignore[arg-type]
    assert [wire_tokens(job) // 32 for job in engine.jobs] == [2, 1]
    assert engine.jobs[0].suffix == f"\n{middle}last = \n"
    assert engine.jobs[1].prefix == f"first = 1\nmore = 2\n{middle}last = "
    assert found[:-1] == [Progress(n, 3) for n in (1, 2, 3, 3)]


@settings(max_examples=25, deadline=None)
@given(pieces=st.lists(PIECE, min_size=2, max_size=6), texts=st.lists(PIECE, min_size=6, max_size=6))
async def test_nothing_outside_the_gaps_changes(pieces: list[str], texts: list[str]) -> None:
    text = "<FILL>".join(pieces)
    page, (fill, _) = document(text, "plaintext"), fills([texts[: len(pieces) - 1]])
    try:
        found = await result(fill.holes(page))
    except NoFill:
        return
    spans = [start for start, _, _ in found.edits]
    assert [text[start:end] for start, end, _ in found.edits] == ["<FILL>"] * len(spans)
    for piece in pieces:
        assert piece in apply(page, found)
        page = document(text, "plaintext")


async def test_more_holes_than_a_job_may_have_take_several() -> None:
    lines = [f"line_{number} = " for number in range(20)]
    page = document("".join(f"{line}<FILL>\n" for line in lines))
    fill, engine = fills(lambda job: [["x"] * (len(job.segments) // 2 + 1)])
    assert apply(page, await result(fill.holes(page))) == "".join(f"{line}x\n" for line in lines)
    assert all(len(job.segments) < 32 for job in engine.jobs)


async def test_a_hole_without_a_proposal_stays_as_it_is() -> None:
    text = "a = (1 + <FILL>)\nb = <FILL>\n"
    page, (fill, _) = document(text), fills([["", "2"]])
    found = await result(fill.holes(page))
    assert found.unfilled == ((9, 15),)
    assert apply(page, found) == "a = (1 + <FILL>)\nb = 2\n"


async def test_nothing_proposed_and_nothing_to_fill_are_said() -> None:
    fill, _ = fills([[""]])
    with pytest.raises(NoFill, match="proposes nothing"):
        await result(fill.holes(document("a = <FILL>\n")))
    with pytest.raises(NoFill, match="no marker <FILL>"):
        fill.holes(document("a = 1\n"))
    with pytest.raises(NoFill, match="longer than"):
        fill.selection(document("x" * 2000), [(0, 2000)])


async def test_a_result_has_the_engines_fills_of_its_texts() -> None:
    page, (fill, _) = document("a = <FILL>\nb = <FILL>\n"), fills([["1 +", "2"], ["3", "4"]])
    assert [one.text for one in (await result(fill.holes(page))).fills] == ["3", "4"]
    page, (fill, _) = document("a = <FILL>\nb = <FILL>\n"), fills([["1 +", "2"]])
    assert [one.text for one in (await result(fill.holes(page))).fills] == ["1 +", "2"]
    middle = "".join(f"line_{number} = {number}\n" for number in range(60))
    page, (fill, _) = document(f"a = <FILL>\n{middle}b = <FILL>\n"), fills([["1"]], [["2"]])
    assert [one.text for one in (await result(fill.holes(page))).fills] == ["1", "2"]


async def test_at_a_cursor_a_text_has_the_grammar_of_the_schema_and_joins_no_word() -> None:
    text, schema = '{"a": }', '{"properties": {"a": {"enum": ["one"]}}}'
    page, (fill, engine) = document(text, "json"), fills([["two"], ['"one"']])
    found = await result(fill.selection(page, [(6, 6)], Schema(json.loads(schema))))
    assert apply(page, found) == '{"a": "one"}'
    assert engine.jobs[0].schemas == (schema,)
    engine = FakeEngine([["3"]])
    await result(
        Fills(engine, Settings(Options(structured=False)), LastFills()).selection(document(text, "json"), [(6, 6)])
    )
    assert engine.jobs[0].segments == (wire.Hole(32, "line"),)
    page, (fill, _) = document("x = y\n"), fills([["a + b"]])
    assert apply(page, await result(fill.selection(page, [(4, 4)]))) == "x = a + y\n"


async def test_a_marker_that_an_editor_has_closed_as_a_tag_is_one_hole() -> None:
    text = "f(<FILL></FILL>, <FILL>)\n"
    page, (fill, _) = document(text, "javascript"), fills([["A", "A"]])
    assert apply(page, await result(fill.holes(page, [(0, len(text))]))) == "f(A, A)\n"


async def test_of_several_candidates_one_that_breaks_nothing_is_taken() -> None:
    text = "x = f(<FILL>)\ny = 2\n"
    page, (fill, _) = document(text), fills([["a +"], ["a + b"]])
    assert apply(page, await result(fill.holes(page))) == "x = f(a + b)\ny = 2\n"
    page, (fill, engine) = document(text), fills([["a +"], ["b +"]], [["c"]])
    assert apply(page, await result(fill.holes(page))) == "x = f(c)\ny = 2\n"
    assert [job.seed for job in engine.jobs] == [0, 1]
    page, (fill, _) = document("if a:\n    <FILL>\nb = 2\n"), fills([["if b:"], ["# b"], ["b = 1"]])
    assert apply(page, await result(fill.holes(page))) == "if a:\n    b = 1\nb = 2\n"
    page, (fill, _) = document('def f():\n    """<FILL>\n    """\n'), fills([["if a:"], ["no"]])  # a text, not a header
    assert apply(page, await result(fill.holes(page))) == 'def f():\n    """if a:\n    """\n'
    page, (fill, _) = document('{"a": 1, <FILL>: 2}\n', "json"), fills([['"a"'], ['"b"']])
    assert apply(page, await result(fill.holes(page))) == '{"a": 1, "b": 2}\n'


async def test_the_holes_whose_text_fits_are_filled_where_another_one_has_none() -> None:
    text = "x = f(<FILL>)\ny = <FILL>\nz = <FILL>\n"
    page, (fill, engine) = document(text), fills([["a", "b +", "c"]])
    found = await result(fill.holes(page))
    assert apply(page, found) == "x = f(a)\ny = <FILL>\nz = c\n"
    assert len(found.unfilled) == 1
    assert len(engine.jobs) == 2, "another seed comes first"


def test_of_many_holes_a_few_that_do_not_fit_cost_a_few_checks() -> None:
    text = "".join(f"def f{n}():\n    a = 1\n    return <FILL>\n\n\n" for n in range(64))
    bad = {5, 6, 40}
    task = Task(text, "python", tuple(Gap(*span) for span in markers(text, ())), repair.parsed(text, "python"))
    part = task.sound_part(tuple("a +" if n in bad else "a" for n in range(64)))
    assert {n for n, each in enumerate(part) if not each} == bad


async def test_keys_that_stand_twice_elsewhere_do_not_refuse_a_fill() -> None:
    page, (fill, _) = document("a: <FILL>\nb: 1\nb: 2\nc: <FILL>\n", "yaml"), fills([["1", "2"]])
    assert apply(page, await result(fill.holes(page))) == "a: 1\nb: 1\nb: 2\nc: 2\n"


async def test_the_start_of_a_text_is_taken_where_no_candidate_fits() -> None:
    text = "def f(a):\n    <FILL>\n"
    for later in (), ([[""]],):  # an engine without time left may propose nothing more
        page, (fill, _) = document(text), fills([["b = a\n    for x in b:"]], *later)
        assert apply(page, await result(fill.holes(page))) == "def f(a):\n    b = a\n"


async def test_a_start_that_may_not_be_shown_gives_way_to_the_next_candidates() -> None:
    text = 'password = "hunter2-hunter2"\ndef f(a):\n    <FILL>\n'
    masked, fit = f'b = "{FILLER}" +', "b = a +"
    page, (fill, _) = document(text), fills([[masked], [fit]])
    assert apply(page, await result(fill.holes(page))) == text.replace("<FILL>", "b = a")


STACK = "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def pop(self):\n        <FILL>\n"


async def test_no_fill_reads_a_member_that_a_class_does_not_have() -> None:
    """Another candidate comes first; without one, the next job's grammar has no text that reads it."""
    page, (fill, engine) = document(STACK), fills([["return self.item"], ["return self.items"]])
    assert apply(page, await result(fill.holes(page))) == STACK.replace("<FILL>", "return self.items")
    page, (fill, engine) = document(STACK), fills([["return self.item"]], [["return self.items"]])
    assert apply(page, await result(fill.holes(page))) == STACK.replace("<FILL>", "return self.items")
    first, second = (job.segments[0] for job in engine.jobs)
    assert isinstance(first, wire.Hole)
    assert isinstance(second, wire.Hole)
    assert first.grammar is None
    assert isinstance(second.grammar, wire.Pattern)
    fits = [
        fullmatch(second.grammar.regex, text) is not None
        for text in ("return self.items", "a\n  self.item.pop()", "self.item")
    ]
    assert fits == [True, False, False]
    page, (fill, _) = document(STACK), fills([["return self.item"]])
    with pytest.raises(NoFill, match="reads `item`, which its class does not have"):
        await result(fill.holes(page))


async def test_without_the_gate_what_breaks_the_syntax_is_filled_too() -> None:
    page, engine = document("x = f(<FILL>)\n"), FakeEngine([["a +"]])
    fill = Fills(engine, Settings(Options(syntax_gate=False)), LastFills())
    assert apply(page, await result(fill.holes(page))) == "x = f(a +)\n"


async def test_a_rewrite_is_never_the_text_that_was_selected() -> None:
    page, (fill, _) = document("x = 1\n"), fills([["1"], ["2"]])
    assert apply(page, await result(fill.selection(page, [(4, 5)]))) == "x = 2\n"


async def test_secrets_do_not_reach_the_engine_and_covers_do_not_reach_the_text() -> None:
    text = 'password = "hunter2-hunter2"\nx = "<FILL>"\n'  # where a cover would be no syntax error
    page, (fill, engine) = document(text), fills([[FILLER * 3], ["1"]])
    assert apply(page, await result(fill.holes(page))) == text.replace("<FILL>", "1")
    assert "hunter2" not in str(engine.jobs)
    assert FILLER in engine.jobs[0].prefix


# Ending early


async def test_an_edit_before_the_first_step_is_said() -> None:
    page, (fill, engine) = document("x = <FILL>\n"), fills([["1"]])
    events = fill.holes(page)
    page.replace("y = 1\n")
    page.version += 1
    with pytest.raises(NoFill, match="changed meanwhile; try again"):
        await result(events)
    assert engine.jobs == []


async def test_leaving_a_fill_cancels_its_job() -> None:
    fill, engine = fills([["1"]])
    events = fill.holes(document("a = <FILL>\n"))
    await anext(events)
    assert engine.cancelled == 1  # it is under way
    jobs = [job async for job in _closing(events, engine)]
    assert jobs == [1]


async def _closing(events: Events, engine: FakeEngine) -> AsyncGenerator[int, None]:
    await events.aclose()
    yield engine.cancelled  # never came to its end


async def test_a_text_that_changes_meanwhile_is_left_alone() -> None:
    page, (fill, engine) = document("a = <FILL>\n"), fills([["1"]])
    events = fill.holes(page)
    await anext(events)
    page.edit((0, 0), (0, 0), "b")
    page.version += 1
    with pytest.raises(NoFill, match="changed meanwhile; try again"):
        await anext(events)
    assert engine.cancelled == 1


async def test_a_newer_fill_of_a_document_ends_the_older() -> None:
    page, (fill, engine) = document("a = <FILL>\n"), fills([["1"]])
    older = fill.holes(page)
    await anext(older)
    newer = fill.holes(page)
    with pytest.raises(NoFill, match="a newer one has begun"):
        await anext(older)
    assert apply(page, await result(newer)) == "a = 1\n"
    assert engine.cancelled == 1


async def test_the_engines_troubles_come_through() -> None:
    def busy(job: wire.Infill) -> Sequence[Texts]:
        raise EngineBusy("The engine has too much to do.")

    fill, _ = fills(busy)
    with pytest.raises(EngineError, match="too much"):
        await result(fill.holes(document("a = <FILL>\n")))


# Another one


async def test_another_never_repeats_and_goes_on_to_new_seeds() -> None:
    page = document("x = <FILL>\n")
    fill, engine = fills([["1"], ["2"], ["1"]], [["2"], ["3"]], [["1"]])
    texts = [apply(page, await result(fill.holes(page)))]
    for _ in range(2):
        texts.append(apply(page, await result(fill.another(page))))
    assert texts == ["x = 1\n", "x = 2\n", "x = 3\n"]
    assert [job.seed for job in engine.jobs] == [0, 1]
    with pytest.raises(NoFill, match="nothing else"):
        await result(fill.another(page))
    assert page.text == "x = 3\n"


async def test_another_works_after_undo_and_not_after_other_edits() -> None:
    page, (fill, _) = document("x = <FILL>\n"), fills([["1"], ["2"], ["3"]])
    first = await result(fill.holes(page))
    apply(page, first)
    page.replace("x = <FILL>\n")
    assert apply(page, await result(fill.another(page, first.id))) == "x = 2\n"
    page.replace("x = 2\ny = 1\n")
    with pytest.raises(NoFill, match="has changed since"):
        await result(fill.another(page))
    with pytest.raises(NoFill, match="no longer known"):
        fill.another(page, "some other fill")
    fill._last.close(URI)
    with pytest.raises(NoFill, match="no longer known"):
        fill.another(page)


# Keeping a part


async def test_what_is_kept_stays_exactly_and_the_rest_is_denoised_again() -> None:
    text = "def f(a):\n    return <FILL>\n"
    page, (fill, engine) = document(text), fills([["g(a)  + h(a)"]], [["k(a) "]])
    apply(page, await result(fill.holes(page)))
    kept = at(page.text, "  + h(a)")
    found = await result(fill.keep(page, [(kept[0] + 2, kept[1])]))
    assert apply(page, found) == "def f(a):\n    return k(a) + h(a)\n"
    job = engine.jobs[1]
    assert (job.prefix, job.suffix) == ("def f(a):\n    return ", "+ h(a)\n")


async def test_a_pin_in_the_middle_has_a_hole_on_each_side() -> None:
    page, (fill, engine) = document("x = <FILL>\n"), fills([["a + b"]], [["c ", " d"]])
    apply(page, await result(fill.holes(page)))
    assert apply(page, await result(fill.keep(page, [at(page.text, "+")]))) == "x = c + d\n"
    assert engine.jobs[1].segments[1] == wire.Text("+")


async def test_the_rest_of_an_import_line_is_filled_without_the_grammar_of_whole_lines() -> None:
    page, (fill, engine) = document("import re\n\nos.getcwd()\n"), fills([["import os"]], [["sys"]])
    apply(page, await result(fill.selection(page, [(10, 10)])))
    found = await result(fill.keep(page, [(10, 17)]))
    [hole] = engine.jobs[1].segments
    assert isinstance(hole, wire.Hole)
    assert hole.grammar is None
    assert apply(page, found) == "import re\nimport sys\nos.getcwd()\n"


async def test_keeping_all_or_nothing_of_a_fill_is_said() -> None:
    page, (fill, _) = document("x = <FILL>\n"), fills([["a + b"]])
    apply(page, await result(fill.holes(page)))
    with pytest.raises(NoFill, match="outside of the fill"):
        fill.keep(page, [(0, 2)])
    with pytest.raises(NoFill, match="All of the fill is kept"):
        fill.keep(page, [(0, len(page.text))])


# Repair


def broken(text: str, language: str = "python") -> int:
    tree = repair.parsed(text, language)
    assert tree is not None
    return repair.faults(tree).nodes


async def test_a_repair_fills_the_smallest_broken_region_and_parses() -> None:
    text = "def f(x):\n    for i in range(10)\n        print(i)\n    return x\n"
    page, (fill, engine) = document(text), fills([[":"]])
    cursor = at(text, "range")[0]
    assert broken(apply(page, await result(fill.repair(page, cursor, cursor)))) == 0
    assert page.text == text.replace("range(10)", "range(10):")
    assert len(engine.jobs) == 1


async def test_a_repair_goes_on_to_larger_regions_and_another_seed() -> None:
    text = "if x ==:\n    y = 2\nz = [1, 2, 3]\n"
    answers = [[["# no"]], [[""]], [["# no"]], [["# no"]], [["# no"], ["# no no"]], [["== 2"]]]
    page, (fill, engine) = document(text), fills(*answers)
    assert apply(page, await result(fill.repair(page, 3, 3))) == text.replace("==:", "== 2:")
    assert engine.jobs[0].seed == 0
    assert engine.jobs[-1].seed == 1
    assert all(job.prefix + "".join(job.draft or ()) + job.suffix == text for job in engine.jobs if job.seed == 0)


async def test_of_several_repairs_the_smallest_is_taken() -> None:
    page, (fill, _) = document('{"a": 1, "b": , "c": 3}\n', "json"), fills([[' 2, "d": 4'], [" 2"]])
    assert apply(page, await result(fill.repair(page, 3, 3))) == '{"a": 1, "b": 2, "c": 3}\n'


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ('const api_token = "Xk29fjQ81mZp7LwQ8s";\nlet x = = 1;\n', "javascript"),
        ('const api_token = "Xk29fjQ81mZp7LwQ8s\nlet x = 1;\n', "javascript"),
        ('{"api_token": "Xk29fjQ81mZp7LwQ8s", "b": }\n', "json"),
    ],
)
async def test_a_repair_tells_the_engine_no_secret(text: str, language: str) -> None:
    fill, engine = fills([("1",)])
    for at in range(0, len(text), 5):
        try:
            await result(fill.repair(document(text, language), at, at))
        except NoFill:
            continue
    assert engine.jobs
    assert not [job for job in engine.jobs if "Xk29" in str(job)]


async def test_a_repair_that_takes_code_away_is_none() -> None:
    text = "def f(a, b:\n    return a\n"
    page, (fill, _) = document(text), fills([[""]])
    with pytest.raises(NoFill, match="No repair"):
        await result(fill.repair(page, 0, 0))
    stray, (fill, _) = document("f(1));\nlet y = 2;\n", "javascript"), fills([[""]])
    assert apply(stray, await result(fill.repair(stray, 0, 0))) == "f(1);\nlet y = 2;\n"


async def test_a_repair_of_what_is_whole_is_said() -> None:
    fill, _ = fills([["x"]])
    with pytest.raises(NoFill, match="Nothing is broken here"):
        fill.repair(document("x = 1\n\ny = (\n"), 0, 0)
    with pytest.raises(NoFill, match="no syntax tree"):
        fill.repair(document("x", "plaintext"), 0, 0)
