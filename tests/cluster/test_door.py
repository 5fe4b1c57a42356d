"""A team's door with real keys, a real relay and real gRPC; replicas are plain servers that can be killed. What a user
sees when one of these parts breaks."""

import os
import socket
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from caesura.client.backend import EngineFailed, EngineUnavailable
from caesura.ipc import pairing

from ..support.clients import READY_S, answer, job, running, status_when, until
from ..support.machines import Machine, client, listens
from ..support.team import LOST_S, Team, served, started, to_its_end

pytestmark = pytest.mark.cluster


async def test_an_invited_user_gets_fills_from_the_first_document_to_the_last(team: Team) -> None:
    async with running(client()) as found:
        welcome = await found.ready(READY_S)
        assert welcome.device == "fake"
        assert [await answer(found, job(document=f"{n}")) for n in range(150)] == ["answer"] * 150


async def test_a_user_who_is_revoked_is_out(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        assert team.run("team", "revoke", "anna") == 0
        await until(lambda: found.state == "unavailable")


async def test_every_cancel_arrives(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        for _ in range(50):
            async with aclosing(found.infill(job("endless"))) as events:
                await started(events)
        assert await answer(found, job(document="other")) == "answer"
        await status_when(found, lambda status: status.live == 0)


async def test_a_replica_that_is_killed_fails_each_job_at_once_and_the_next_one_is_served(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        streams = [found.infill(job("endless", document=name)) for name in "abc"]
        for events in streams:
            await started(events)
        team.kill("replica")
        killed = time.monotonic()
        for events in streams:
            with pytest.raises(EngineFailed, match=r"^The engine's replica was lost in the middle of the job\.$"):
                await to_its_end(events)
        assert time.monotonic() - killed < LOST_S
        with pytest.raises(EngineUnavailable, match=r"^The team's engine cannot be reached"):
            await answer(found, job())
        team.replica()
        port = int(team.engine.rpartition(":")[2])
        await until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, READY_S)
        await served(found, 3.0)


async def test_a_relay_that_is_killed_is_replaced_and_its_jobs_are_answered(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        events = found.infill(job("endless"))
        await started(events)
        os.kill(team.relay(), 9)
        killed = time.monotonic()
        with pytest.raises(EngineFailed, match="stopped in the middle of the job"):
            await to_its_end(events)
        assert time.monotonic() - killed < LOST_S
        assert await answer(found, job()) == "answer"


async def test_a_door_that_is_started_again_is_found_again(team: Team) -> None:
    async with running(client()) as found:
        await found.ready(READY_S)
        events = found.infill(job("endless"))
        await started(events)
        team.kill("door")
        with pytest.raises(EngineFailed):
            await to_its_end(events)
        team.door()
        await until(lambda: listens(team.address), READY_S)
        await served(found, READY_S)


async def test_one_user_gets_so_many_jobs_and_no_log_has_what_they_hold(team: Team) -> None:
    async with running(client()) as found, running(client()) as other:
        await found.ready(READY_S)
        await other.ready(READY_S)
        streams = [found.infill(job("endless", document=name)) for name in ("a_secret", *"bcdefghi")]
        for events in streams:
            await started(events)
        with pytest.raises(Exception, match="too much to do"):
            await answer(other, job("word_of_the_text"))
        for events in streams:
            await events.aclose()
        team.kill("replica")
        with pytest.raises((EngineUnavailable, EngineFailed)) as error:
            await answer(other, job("word_of_the_text"))
        assert not any(part in str(error.value) for part in ("127.0.0.1", "grpc", "Traceback", team.engine))
    for log in team.home.glob("*.log"):
        text = log.read_text()
        assert "word_of_the_text" not in text
        assert "a_secret" not in text


async def test_a_door_that_its_configuration_does_not_fit_says_so(
    laptop: Machine, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / "team.toml"
    path.write_text("listen = 3")
    assert laptop.run("team", "serve", str(path)) == 1
    assert capsys.readouterr().err == f"caesura: {path}: Expected `str`, got `int` - at `$.listen`.\n"
    assert pairing.pairs().clients == ()
