"""A door that lets a user in, with one replica; and the networks that a Ray of its own needs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from caesura.cluster import isolation

from ..support.clients import READY_S, until
from ..support.machines import Machine, free_port, listens
from ..support.team import Team


@pytest.fixture(scope="session")
def isolated() -> None:
    """This machine gives a process a network of its own, as most containers do not."""
    try:
        isolation.alone()
    except isolation.NotIsolated as error:
        pytest.skip(str(error))


@pytest.fixture
async def team(home: Path, laptop: Machine) -> AsyncIterator[Team]:
    """A door that lets the laptop in, and that the laptop knows, with one replica."""
    found = Team(home / "desk", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    found.let_in(laptop)
    (found.home / "team.toml").write_text(
        f'listen = "{found.address}"\n[limits]\njobs = 9\n'
        f'[engine]\naddress = "{found.engine}"\nmodel = "fake"\nmodels = ["typed", "empty", "unknown"]\n'
    )
    found.replica()
    found.door()
    await until(lambda: listens(found.address), READY_S)
    yield found
    found.end()
