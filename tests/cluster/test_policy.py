"""An administrator's policy in a user's editor: from the first key on, nothing that it forbids leaves the machine. And
what a user is told of the door: nothing of the others, of its processes or of its folders."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from caesura.client.shared import Engine
from caesura.ipc import rendezvous
from caesura.ipc.consent import Agreement
from caesura.ipc.pairing import Remote
from caesura.server.context.files import Files
from caesura.server.options import Options, without

from ..supervisor.test_remote import Desk, Editor
from ..support.clients import FAKE, READY_S, running, until
from ..support.machines import Machine, client, free_port, listens


@pytest.fixture
async def door(home: Path, laptop: Machine, tmp_path: Path) -> AsyncIterator[Desk]:
    """A door with a policy: `private/` and `*.key.py` are never sent, `speculate` is off."""
    found = Desk(home / "desk", f"127.0.0.1:{free_port()}")
    assert found.run("team", "invite", "anna", laptop.key()) == 0
    assert laptop.run("pair", "with", found.address, found.key(), "--name", "team") == 0
    (tmp_path / "private").mkdir()
    assert laptop.run("pair", "use", str(tmp_path)) == 0
    command = [sys.executable, str(FAKE), "ruled", found.address]
    process = subprocess.Popen(command, env=os.environ | found.environment, stdin=subprocess.DEVNULL)
    await until(lambda: listens(found.address), READY_S)
    yield found
    process.kill()
    process.wait()


async def test_what_the_policy_forbids_is_not_sent_even_by_the_first_request(door: Desk, tmp_path: Path) -> None:
    async with Editor(tmp_path) as editor:
        assert await editor.complete((tmp_path / "private" / "a.py").as_uri(), "mark_of_a_folder = ") == []
        deadline = time.monotonic() + READY_S
        while not await editor.complete((tmp_path / "main.py").as_uri(), "allowed = "):
            assert time.monotonic() < deadline, "a document that no rule forbids gets fills"
        assert await editor.complete((tmp_path / "a.key.py").as_uri(), "mark_of_a_kind = ") == []
    assert b"allowed = " in door.recorded
    for forbidden in (b"mark_of_a_folder", b"mark_of_a_kind"):
        assert forbidden not in door.recorded


def test_status_shows_the_policy(door: Desk, laptop: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert laptop.run("status") == 0
    said = capsys.readouterr().out
    assert "  never sent: private/, *.key.py; off: speculate\n" in said
    assert "process" not in said
    assert "MiB" not in said


async def test_a_user_is_told_nothing_of_others_and_their_administrator_all(
    door: Desk, laptop: Machine, home: Path
) -> None:
    other = Machine(home / "other")
    assert door.run("team", "invite", "anna", laptop.key(), "--model", "/srv/models/payments") == 0
    assert door.run("team", "invite", "bert", other.key()) == 0
    assert other.run("pair", "with", door.address, door.key()) == 0
    with other.at():
        bert = client("bert's editor")
        await bert.start()
        await bert.ready(READY_S)
    async with running(client("anna's editor")) as anna:
        assert (await anna.ready(READY_S)).model == "payments"
        told = await anna.status()
    with door.at():
        (place,) = rendezvous.running()
        async with running(Engine(client="administrator", spawn=False, place=place)) as own:
            known = await own.status()
    await bert.close()
    assert (told.model, told.clients, told.peers) == ("payments", ("anna's editor",), 2)
    assert (told.pid, told.worker_pid, told.memory_mb, told.worker_memory_mb) == (0, None, 0.0, None)
    assert "bert's editor" in known.clients
    assert all((known.pid, known.worker_pid, known.memory_mb, known.worker_memory_mb))


@pytest.mark.parametrize(
    ("pattern", "path", "hidden"),
    [
        ("private/", "private/a.py", True),
        ("private/", "src/private/a.py", True),
        ("private/", "private.py", False),
        ("*.pem", "src/a.pem", True),
        ("/src", "src/a.py", True),
        ("src/gen", "src/gen/a.py", True),
        ("work/", "main.py", True),  # the folder of the workspace itself
    ],
)
def test_a_pattern_means_what_it_does_in_gitignore(tmp_path: Path, pattern: str, path: str, hidden: bool) -> None:
    folder = tmp_path / "work"
    engine = Remote("team", "a:1", "ab" * 32, (str(folder),))
    agreement = Agreement(engine, lambda: [engine])
    agreement.never = (pattern,)
    assert Files([str(folder)], agreement=agreement).hides((folder / path).as_uri()) is hidden


def test_more_patterns_than_can_be_matched_hide_all(tmp_path: Path) -> None:
    engine = Remote("team", "a:1", "ab" * 32, (str(tmp_path),))
    agreement = Agreement(engine, lambda: [engine])
    agreement.never = tuple(f"a{n}" for n in range(2000))
    assert Files([str(tmp_path)], agreement=agreement).hides((tmp_path / "b.py").as_uri())


def test_a_setting_that_is_off_by_the_policy_is_off() -> None:
    found = without(
        Options(speculate=True, in_comments=True),
        ("speculate", "inComments", "nextEdit", "mode", "a setting of another version"),
    )
    assert (found.next_edit, found.mode) == ("off", "balanced")
    assert (found.speculate, found.in_comments, found.in_strings) == (False, False, True)
