"""Several models in one team: who gets which, by the administrator's word, at a real door with a replica that keeps two
of them loaded (test_door.py)."""

import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from caesura.client.backend import EngineUnavailable
from caesura.ipc import pairing
from caesura.ipc.pairing import PairedClient, Pairs

from ..support.clients import READY_S, answer, job, running
from ..support.machines import Machine, client
from ..support.team import Team, started

KEY = "ab" * 32


@pytest.fixture
def door(home: Path) -> Iterator[Machine]:
    found = Machine(home / "desk")
    with found.at():
        yield found


def test_the_administrator_chooses_the_model_of_a_user_and_may_choose_again(
    door: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert door.run("team", "invite", "anna", KEY, "--model", "small") == 0
    capsys.readouterr()
    assert door.run("team", "list") == 0
    assert capsys.readouterr().out == f"anna: {KEY}, model small\n"
    assert pairing.pairs().model(KEY) == "small"
    assert door.run("team", "invite", "anna", KEY) == 0
    assert pairing.pairs() == Pairs((PairedClient("anna", KEY),))
    assert pairing.pairs().model(KEY) is None
    with pytest.raises(SystemExit):
        door.run("team", "invite", "anna", KEY, "--model", "ein großes")
    assert "ASCII" in capsys.readouterr().err


def test_invitations_of_before_are_read_and_those_without_a_model_are_written_as_before(door: Machine) -> None:
    before = {"clients": [{"name": "anna", "key": KEY}], "engines": []}
    pairing.save(Pairs((PairedClient("anna", KEY),)))
    (file,) = door.keys.glob("pairs.json")
    assert json.loads(file.read_bytes()) == before
    assert pairing.pairs().clients == (PairedClient("anna", KEY),)


@pytest.mark.cluster
async def test_each_user_gets_the_model_of_the_invitation_from_the_next_job_on(
    team: Team,
    laptop: Machine,
) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        assert (await found.status()).model == "fake"
        assert await answer(found, job("x")) == "answer"
        assert team.run("team", "invite", "anna", laptop.key(), "--model", "typed") == 0
        text = await answer(found, job("x"))
        assert text.startswith("w"), "the model `typed`"
        assert (await found.status()).model == "typed"
        async with running(client()) as other:
            assert (await other.ready(READY_S)).model == "typed"
        assert team.run("team", "invite", "anna", laptop.key(), "--model", "empty") == 0
        assert await answer(found, job("x")) == "", "a third model, for which one made room"
        assert team.run("team", "invite", "anna", laptop.key()) == 0
        assert await answer(found, job("x")) == "answer"
        for model, why in (("unknown", "There is no model 'unknown'"), ("another", "does not offer the model another")):
            assert team.run("team", "invite", "anna", laptop.key(), "--model", model) == 0
            with pytest.raises(EngineUnavailable, match=why):
                await answer(found, job("x"))


@pytest.mark.cluster
async def test_a_running_job_keeps_its_model_while_another_one_waits_for_room(
    team: Team,
    laptop: Machine,
) -> None:
    """Two endless jobs hold the two models that are kept, until one is cancelled."""
    async with running(client()) as found, running(client()) as other:
        await found.ready(READY_S)
        await other.ready(READY_S)
        streams = []
        for model in ("fake", "typed"):
            assert team.run("team", "invite", "anna", laptop.key(), "--model", model) == 0
            streams.append(found.infill(job("endless", document=model)))
            await started(streams[-1])
        assert team.run("team", "invite", "anna", laptop.key(), "--model", "empty") == 0
        with pytest.raises(Exception, match="not ready in time"):
            await answer(other, job("x", document="late", deadline_ms=300.0))
        for events in streams:
            await started(events)
        async with aclosing(streams[0]):
            pass
        assert await answer(other, job("x", document="late")) == ""
        await started(streams[1])
        await streams[1].aclose()
