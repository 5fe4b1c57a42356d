"""What a person gets who asks for a structured edit: the first candidate that passes the check, and what is sure of it,
in one versioned edit; nothing but the span of the offer changes, and without a good candidate nothing at all."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.server.context.secrets import FILLER
from caesura.server.fills.history import LastFills
from caesura.server.fills.result import FillResult, Progress
from caesura.server.fills.structured import LEAST, Find, StructuredEdits, Unlikely
from caesura.server.fills.task import NoFill
from caesura.server.options import Settings
from caesura.server.structured.offer import NoOffer, Offer

from .test_fill import FakeEngine, apply, at, document, result

SCHEMA = '{"type": "integer"}'


def hole(**grammar: Any) -> wire.Hole:
    return wire.Hole(8, "span", wire.Json(**grammar))


def value(text: str, start: int, end: int, **more: Any) -> Offer:
    """The number at a place, in brackets; odd ones are refused."""

    def check(new: str) -> str | None:
        assert new.startswith(text[:start])
        assert new.endswith(text[end:])
        inner = new[start : len(new) - len(text) + end]
        return None if inner.strip("[]") in ("0", "2", "4") else "It is odd."

    return Offer("Fill the value", start, end, (wire.Text("["), hole(), wire.Text("]")), check=check, **more)


def finding(*, note: str = "", **more: Any) -> Find:
    def find(text: str, start: int, end: int) -> tuple[Sequence[Offer], str]:
        if text[start:end] == "(":
            raise NoOffer("Here is a bracket; select a number.")
        return [value(text, start, end, **more), Offer("Empty it", start, end, (hole(),), check=lambda new: None)], note

    return find


def structured(*answers: Any, level: str = "valid") -> tuple[StructuredEdits, FakeEngine, LastFills]:
    engine, last = FakeEngine(*answers), LastFills()
    engine.level = level
    return StructuredEdits(engine, Settings(), last), engine, last


async def test_the_span_of_the_offer_is_replaced_by_a_job_with_its_grammar() -> None:
    text = 'x\r\n{"a": 1, "b": \U0001f600}\n'
    page, (edits, engine, _) = document(text, "json"), structured([["2"]])
    found = await result(edits.edit(page, [at(text, "1")], finding(schemas=(SCHEMA,))))
    assert found.edits == ((*at(text, "1"), "[2]"),)
    assert (found.level, found.holes, found.unfilled) == ("valid", 1, ())
    assert apply(page, found) == text.replace("1", "[2]")
    [job] = engine.jobs
    assert (job.kind, job.priority, job.language, job.schemas) == ("edit", "invoked", "json", (SCHEMA,))
    assert job.segments == (wire.Text("["), hole(), wire.Text("]"))
    assert (job.prefix, job.suffix) == ('x\r\n{"a": ', ', "b": \U0001f600}\n')


@settings(max_examples=25, deadline=None)
@given(before=st.text(max_size=9), after=st.text(max_size=9), fill=st.text(max_size=5))
async def test_whatever_is_filled_in_the_text_outside_is_the_same(before: str, after: str, fill: str) -> None:
    page, (edits, _, _) = document(before + "1" + after, "json"), structured([[fill]])
    outside = page.text[: len(before)], page.text[len(before) + 1 :]
    try:
        text = apply(page, await result(edits.edit(page, [(len(before), len(before) + 1)], finding(), 1)))
    except NoFill:
        text = page.text
    assert (text[: len(before)], text[len(text) - len(after) :]) == outside


async def test_a_candidate_that_fails_the_check_gives_way_to_the_next_and_then_to_another_seed() -> None:
    page, (edits, engine, _) = document("1", "json"), structured([["3"], ["4"]])
    assert (await result(edits.edit(page, [(0, 1)], finding()))).edits == ((0, 1, "[4]"),)
    edits, engine, _ = structured([["3"], ["5"]], [["2"]])
    assert (await result(edits.edit(page, [(0, 1)], finding()))).edits == ((0, 1, "[2]"),)
    assert [job.seed for job in engine.jobs] == [0, 1]
    assert 10_000 >= engine.jobs[0].deadline_ms > engine.jobs[1].deadline_ms > 0  # both together


@pytest.mark.parametrize(("language", "least"), [("markdown", LEAST), ("json", 0.0), ("yaml", 0.0)])
async def test_in_prose_an_unlikely_edit_is_not_made(language: str, least: float) -> None:
    """The engine of these tests gives its answers no chance."""
    page, (edits, engine, _) = document("1", language), structured([["2"]], [["4"]])
    if least:
        with pytest.raises(Unlikely, match="too unlikely"):
            await result(edits.edit(page, [(0, 1)], finding()))
    else:
        assert apply(page, await result(edits.edit(page, [(0, 1)], finding()))) == "[2]"
    assert [job.min_probability for job in engine.jobs] == [least]  # no second job either


async def test_all_tries_of_a_place_have_the_time_that_is_asked_for() -> None:
    page, engine = document("1", "json"), structured([["2"]])[1]
    edits = StructuredEdits(engine, Settings(), LastFills(), deadline_s=0.5)
    await result(edits.edit(page, [(0, 1)], finding()))
    assert 0 < engine.jobs[0].deadline_ms <= 500


async def test_without_a_candidate_that_passes_nothing_changes_and_the_reason_is_said() -> None:
    page, (edits, engine, _) = document("1", "json"), structured([["3"]])
    with pytest.raises(NoFill, match=r"text stays as it is: It is odd\.$"):
        await result(edits.edit(page, [(0, 1)], finding()))
    assert len(engine.jobs) == 2
    page, (edits, _, _) = document("[4]", "json"), structured([["4"]])
    with pytest.raises(NoFill, match="nothing else"):
        await result(edits.edit(page, [(0, 3)], finding()))


@pytest.mark.parametrize(
    ("engine", "offer", "schemas", "told"),
    [
        ("valid", "valid", (SCHEMA,), "valid"),
        ("checked", "valid", (SCHEMA,), "checked"),
        ("", "valid", (), "parses"),
        ("valid", "parses", (), "parses"),
    ],
)
async def test_the_user_is_told_what_is_sure(engine: str, offer: str, schemas: tuple[str, ...], told: str) -> None:
    page, (edits, _, _) = document("1", "json"), structured([["2"]], level=engine)
    find = finding(level=offer, schemas=schemas, note="The schema is not used.")
    found = await result(edits.edit(page, [(0, 1)], find))
    assert (found.level, found.note) == (told, "The schema is not used.")


async def test_invisible_characters_are_left_out_which_the_grammar_cannot_vouch_for() -> None:
    page, (edits, _, _) = document("1", "json"), structured([["2\u200b"]])
    found = await result(edits.edit(page, [(0, 1)], finding(schemas=(SCHEMA,))))
    assert (found.edits, found.level) == (((0, 1, "[2]"),), "checked")


async def test_several_places_are_one_edit_each_seeing_those_before_it() -> None:
    text = "1 x 3 y 5"
    page, (edits, engine, _) = document(text, "json"), structured([["2"]], [["4"]], [["0"]])
    spans = [at(text, part) for part in "531"]

    def find(text: str, start: int, end: int) -> tuple[Sequence[Offer], str]:
        return finding(note="" if text[start] == "5" else "A schema is missing.")(text, start, end)

    *_, found = [event async for event in edits.edit(page, spans, find)]
    assert isinstance(found, FillResult)
    assert (apply(page, found), found.note) == ("[2] x [4] y [0]", "A schema is missing.")
    assert [(job.prefix, job.suffix) for job in engine.jobs] == [
        ("", " x 3 y 5"),
        ("[2] x ", " y 5"),
        ("[2] x [4] y ", ""),
    ]


async def test_places_that_share_an_edit_are_refused() -> None:
    def whole(text: str, start: int, end: int) -> tuple[Sequence[Offer], str]:
        return [Offer("Fill all", 0, len(text), (hole(),), check=lambda new: None)], ""

    page, (edits, _, _) = document("1 2", "json"), structured([["3"]])
    with pytest.raises(NoFill, match="one after the other"):
        await result(edits.edit(page, [(0, 1), (2, 3)], whole))


async def test_an_offer_is_chosen_by_title_or_number_and_what_is_not_there_is_said() -> None:
    page, (edits, engine, _) = document("1 (", "json"), structured([["7"]])
    assert (await result(edits.edit(page, [(0, 1)], finding(), "Empty it"))).edits == ((0, 1, "7"),)
    assert (await result(edits.edit(page, [(0, 1)], finding(), 1))).edits == ((0, 1, "7"),)
    for chosen in ("Add a row", 2):
        with pytest.raises(NoFill, match="only: Fill the value; Empty it"):
            await result(edits.edit(page, [(0, 1)], finding(), chosen))
    with pytest.raises(NoFill, match="select a number"):
        await result(edits.edit(page, [(2, 3)], finding()))
    assert len(engine.jobs) == 2


async def test_secrets_are_covered_beside_the_hole_and_in_what_the_grammar_says_of_it() -> None:
    text = '{"password": "hunter2-hunter2'

    def find(text: str, start: int, end: int) -> tuple[Sequence[Offer], str]:
        far = wire.Neighbour("", 'password = "correct-horse-battery1"')
        typed = hole(typed=text[13:], then="")
        return [Offer("Go on", start, end, (typed,), evidence=(far,), check=lambda new: None)], ""

    page, (edits, engine, _) = document(text, "json"), structured([[FILLER], ["!"]])
    found = await result(edits.edit(page, [(len(text), len(text))], find))
    assert found.edits == ((len(text), len(text), "!"),)
    [job] = engine.jobs
    assert "hunter2" not in str(job)
    assert "horse" not in str(job)
    [segment] = job.segments
    assert segment == hole(typed='"' + FILLER * 15)


async def test_secrets_of_a_schema_are_covered() -> None:
    page, (edits, engine, _) = document("1", "json"), structured([["2"]])
    schema = '{"default": {"password": "hunter2-hunter2"}}'
    await result(edits.edit(page, [(0, 1)], finding(schemas=(schema,))))
    [job] = engine.jobs
    assert job.schemas == (schema.replace("hunter2-hunter2", FILLER * 15),)


async def test_progress_counts_the_holes_and_leaving_early_cancels_the_job() -> None:
    page, (edits, engine, _) = document("1 3", "json"), structured([["2"]])
    events = edits.edit(page, [(0, 1), (2, 3)], finding())
    assert await anext(events) == Progress(1, 2)
    await events.aclose()
    assert engine.cancelled == 1


async def test_a_text_that_changes_or_a_newer_fill_ends_an_edit() -> None:
    page, (edits, _, last) = document("1", "json"), structured([["2"]])
    events = edits.edit(page, [(0, 1)], finding())
    await anext(events)
    page.version += 1
    with pytest.raises(NoFill, match="changed meanwhile"):
        await anext(events)
    events = edits.edit(page, [(0, 1)], finding())
    await anext(events)
    last.begin(page)
    with pytest.raises(NoFill, match="a newer one has begun"):
        await anext(events)
