"""Several models in one team: who gets which, by the administrator's word, at a real door with a replica that keeps two
of them loaded (test_door.py)."""

from contextlib import aclosing

import pytest

from caesura.client.backend import EngineUnavailable

from ..support.clients import READY_S, answer, job, running
from ..support.machines import Machine, client
from ..support.team import Team, started


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
