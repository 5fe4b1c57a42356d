"""Which engine a server asks: this machine's own, a paired machine's, or a service that the user has named. A server
calls nothing else of this folder.
"""

from collections.abc import Sequence

from caesura.client.backend import Backend
from caesura.client.backends import named
from caesura.client.backends.named import NamedService
from caesura.client.routed import Routed
from caesura.client.shared import Engine
from caesura.ipc import pairing
from caesura.ipc.consent import Agreement, Consented, named_for
from caesura.ipc.pairing import Remote


def agreement(folders: Sequence[str]) -> Agreement | None:
    """The one that holds for all folders of a workspace; None where this machine's engine is to be used. A folder that
    was named for a paired machine and for a service belongs to the machine."""
    paired, services = pairing.watched(), named.watched()

    def now() -> tuple[Consented, ...]:
        return *paired.now.engines, *services.now

    found = named_for(now(), folders)
    return Agreement(found, now) if found else None


def engine(agreed: Consented | None, *, client: str, model: str, device: str) -> Backend:
    """The engine to ask. `agreed` is that of the agreement."""
    if not isinstance(agreed, NamedService):
        remote = agreed if isinstance(agreed, Remote) else None
        return Engine(client=client, model=model, device=device, remote=remote)
    from caesura.client.backends import kinds  # the HTTP library takes 90 ms to load

    local = Engine(client=client, model=model, device=device)
    return Routed(agreed.name, kinds.backend(agreed), local, fallback=agreed.fallback)
