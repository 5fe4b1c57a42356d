"""The other machines that a listening engine admits, by their keys: the user's own, or those of a team's users."""

from collections.abc import Sequence

from caesura.ipc import pairing
from caesura.ipc.pairing import PairedClient


class PairedMachines:
    """Those of `caesura pair allow`. The sentences are for the log."""

    name = "paired machines"
    nobody = "no machine is paired yet: run `caesura pair` on the other one"
    unknown = "If it is your other machine: caesura pair allow"

    def __init__(self) -> None:
        self._pairs = pairing.watched()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.now)} admitted>"

    @property
    def now(self) -> Sequence[PairedClient]:
        return self._pairs.now.clients

    def admits(self, key: str) -> bool:
        return any(one.key == key for one in self.now)

    def model(self, key: str) -> str | None:
        """The model that this key may use; None stands for the engine's own."""
        return None


class TeamUsers(PairedMachines):
    """Those of `caesura team invite`."""

    name = "users"
    nobody = "nobody is invited yet; run: caesura team invite NAME KEY"
    unknown = "If it is a user of the team: caesura team invite NAME"

    @property
    def now(self) -> Sequence[PairedClient]:
        return self._pairs.now.users

    def model(self, key: str) -> str | None:
        return next((user.model for user in self._pairs.now.users if user.key == key), None)
