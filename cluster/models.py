"""The models that a replica has loaded, loads next and lets go. Pure: time is an argument, in seconds.

Ray Serve has `@serve.multiplexed` for this (2.60). It does not fit: it drops the least recently used model even in the
middle of its jobs, and loads one model at a time, for which all others that are not loaded wait.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

RETRY_S = 60.0  # after this a model that could not be loaded is tried again, perhaps at the cost of another one
TURN_S = 20.0  # seconds a busy model keeps its place while others wait


class Load(NamedTuple):
    model: str


class Unload(NamedTuple):
    """Let go of a model that has no jobs."""

    model: str


@dataclass
class Held:
    """A model in memory, or on its way in or out: `closing` takes no new jobs and has some to end, `leaving` is being
    let go. `since`: the time of its load. `used`: when it last had a job."""

    state: Literal["loading", "ready", "closing", "leaving"]
    since: float
    used: float
    device: str = ""


class LoadedModels:
    """At most `most` models at a time; the least recently used one makes room. A model with jobs is not let go before
    they have ended; if others wait, it takes no more after its turn."""

    def __init__(self, most: int, first: str) -> None:
        self._most = most
        self._held = {first: Held("loading", 0.0, 0.0)}
        self._failed: dict[str, tuple[str, float]] = {}  # the sentence, and when to try again

    def __repr__(self) -> str:
        return f"<LoadedModels {', '.join(f'{model} {held.state}' for model, held in self._held.items())}>"

    def ready(self, model: str) -> bool:
        """True if its jobs can run."""
        held = self._held.get(model)
        return held is not None and held.state == "ready"

    def loading(self, model: str) -> bool:
        held = self._held.get(model)
        return held is not None and held.state == "loading"

    def device(self, model: str) -> str:
        """Its device and kernels; empty if it is not loaded."""
        held = self._held.get(model)
        return held.device if held else ""

    def trouble(self, model: str, now: float) -> str:
        """Why the model cannot be loaded, in a sentence; empty if that is not known."""
        sentence, until = self._failed.get(model, ("", now))
        return sentence if now < until else ""

    def look(self, running: Collection[str], waiting: Iterable[str], now: float) -> list[Load | Unload]:
        """The next orders. `running` models have jobs, `waiting` ones have jobs that wait for them, oldest first."""
        for model in running:
            self._held[model].used = now
        orders: list[Load | Unload] = [
            self._unload(model)
            for model, held in self._held.items()
            if held.state == "closing" and model not in running
        ]
        freed = sum(held.state in ("closing", "leaving") for held in self._held.values())
        for model in [model for model in waiting if model not in self._held]:
            if len(self._held) < self._most:
                self._failed.pop(model, None)
                self._held[model] = Held("loading", now, now)
                orders.append(Load(model))
            elif freed:
                freed -= 1  # this room will be its own
            elif (victim := self._victim(running, now)) is None:
                break
            elif victim in running:
                self._held[victim].state = "closing"
            else:
                orders.append(self._unload(victim))
        return orders

    def loaded(self, model: str, device: str, now: float) -> None:
        self._held[model] = Held("ready", now, now, device)

    def refused(self, model: str, why: str, now: float) -> None:
        """The model cannot be loaded."""
        del self._held[model]
        self._failed[model] = (why, now + RETRY_S)

    def gone(self, model: str) -> None:
        """The memory of a model is free."""
        del self._held[model]

    def _victim(self, running: Collection[str], now: float) -> str | None:
        """The model that has gone without a job for longest, else the one that was loaded first."""
        ready = {model: held for model, held in self._held.items() if held.state == "ready"}
        if idle := [model for model in ready if model not in running]:
            return min(idle, key=lambda model: ready[model].used)
        tired = [model for model, held in ready.items() if now - held.since > TURN_S]
        return min(tired, key=lambda model: ready[model].since, default=None)

    def _unload(self, model: str) -> Unload:
        self._held[model].state = "leaving"
        return Unload(model)
