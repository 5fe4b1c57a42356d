"""Connects to an engine on another machine.

Only `caesura pair use` names the folders that may be sent there; a setting cannot, since it may come with a project.
"""

import logging

import zmq
import zmq.asyncio

from caesura import __version__, paths
from caesura.client.connection import Connection, Unanswered
from caesura.client.launch import GaveUp
from caesura.ipc.endpoints import Endpoint
from caesura.ipc.keys import Keys, own_keys
from caesura.ipc.pairing import Remote

REACH_S = 2.0  # timeout of connection and Welcome, over a slow network

log = logging.getLogger(__name__)


async def reach(context: zmq.asyncio.Context, remote: Remote, client: str) -> Connection:
    """Connect. Raises launch.GaveUp with the next step."""
    try:
        keys = own_keys()
        endpoint = Endpoint(f"tcp://{remote.address}", bytes.fromhex(remote.key), keys)
        connection = await Connection.open(context, endpoint, client, REACH_S)
    except Unanswered as error:
        raise GaveUp(_why(remote, error, keys)) from None
    except (zmq.ZMQError, paths.DamagedFile, paths.UnsafeFolder) as error:
        raise GaveUp(f"The engine {remote.name} cannot be used: {error}") from error
    theirs = connection.welcome.build.partition("+")[0]
    if theirs != __version__:
        connection.close()
        raise GaveUp(f"The engine {remote.name} is Caesura {theirs}, this is {__version__}; install the same on both.")
    return connection


def _why(remote: Remote, error: Unanswered, keys: Keys) -> str:
    where = f"{remote.name} ({remote.address})"
    if error.refused:
        allow = f"caesura pair allow {keys.public.hex()}"
        invite = "caesura team invite NAME, with the same key"
        return f"The engine {where} does not know this machine; run there: {allow} (at a team's door: {invite})"
    if error.strange:
        return f"{where} is not the paired engine; compare its key with `caesura pair` there."
    return f"The engine {where} does not answer; check that `caesura engine --listen {remote.address}` runs there."
