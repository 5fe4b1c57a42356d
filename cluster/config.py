"""The files that an administrator writes: the team's configuration and its policy. TOML; errors are one sentence."""

import re
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from pathspec import GitIgnoreSpec

from caesura import wire
from caesura.cluster.router import Limits
from caesura.ipc import pairing

Word = Annotated[str, Meta(min_length=1, max_length=256)]
Amount = Annotated[int, Meta(ge=1, le=2**31)]
Share = Annotated[float, Meta(ge=0, le=1024)]
ENCRYPTED = "https://"
# Settings of the language server.
MAY_BE_OFF = ("structured", "speculate", "warm", "nextEdit", "inComments", "inStrings")


class BadConfig(Exception):
    """A file of the administrator cannot be used; the message is a sentence with its name."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ReplicaSettings(_Part, frozen=True):
    """Each replica has `gpus` and `cpus`; a GPU may be shared. `model` is that of every user who was not invited with
    another one of `models`; a replica keeps `models_per_replica` of them loaded."""

    model: Word = "default"
    models: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    models_per_replica: Amount = 2
    device: Word = "auto"
    gpus: Share = 0
    cpus: Share = 1

    def __post_init__(self) -> None:
        if self.device.startswith("cuda") and not self.gpus:  # Ray hides all GPUs from a replica that asks for none
            raise ValueError(
                f"`device` is {self.device!r} and `gpus` is 0; say how many each replica gets, as 1 or 0.5"
            )

    @property
    def offered(self) -> tuple[str, ...]:
        """The models, the default first."""
        return tuple(dict.fromkeys((self.model, *self.models)))


class Fleet(ReplicaSettings, frozen=True):
    """There are `replicas` of the engine, and up to `most` where jobs wait.

    `address` is the HOST:PORT of a Ray Serve that runs already, with `examples/team/serve.yaml`; without one, the door
    starts a Ray of its own that no other machine can reach.
    """

    replicas: Amount = 1
    most: Annotated[int, Meta(ge=0, le=2**31)] = 0
    address: str = ""


class Watch(_Part, frozen=True):
    """Where metrics and `/health` are answered, as ADDRESS:PORT of this machine, and the HOST:PORT of an OpenTelemetry
    collector; with `https://` before it, traces go there encrypted. Nowhere, by default."""

    listen: str = ""
    traces: str = ""


class Team(_Part, frozen=True):
    """The whole configuration. `clients` and `jobs` are at most connected, and unanswered, of all users together; a
    replica takes 64 of the jobs (`MAX_JOBS` of ledger.py), however many are allowed."""

    listen: Word
    policy: str = ""
    clients: Amount = 256
    jobs: Amount = 256
    engine: Fleet = Fleet()
    limits: Limits = Limits()
    watch: Watch = Watch()


Written = TypeVar("Written", Team, wire.Policy)


def read(path: Path) -> Team:
    """Raises BadConfig."""
    team = _decoded(path, Team)
    try:
        pairing.own_address(team.listen)
        if team.watch.listen:
            pairing.own_address(team.watch.listen)
        if team.engine.address:
            pairing.address(team.engine.address)
        if team.watch.traces:
            pairing.address(team.watch.traces.removeprefix(ENCRYPTED))
    except pairing.BadAddress as error:
        raise BadConfig(f"{path}: {error}.") from error
    for model in team.engine.offered:
        if not re.match(pairing.MODEL, model):
            raise BadConfig(f"{path}: `engine` names the model {model!r}; give a name or path of ASCII characters.")
    if 0 < team.engine.most < team.engine.replicas:
        raise BadConfig(f"{path}: `engine.most` is {team.engine.most}, fewer than the {team.engine.replicas} replicas.")
    return team


def policy(path: Path, team: Team) -> wire.Policy:
    """The policy that the configuration at `path` names. Raises BadConfig."""
    if not team.policy:
        return wire.Policy()
    named = path.parent / team.policy
    found = _decoded(named, wire.Policy)
    for pattern in found.never:
        if problem := _problem(pattern):
            raise BadConfig(f"{named}: the pattern {pattern!r} {problem}.")
    if unknown := [name for name in found.off if name not in MAY_BE_OFF]:
        raise BadConfig(f"{named}: `off` cannot name {unknown[0]!r}; it may name {', '.join(MAY_BE_OFF)}.")
    return found


def _problem(pattern: str) -> str:
    """Why clients could not obey a pattern. One that they skipped would let text out."""
    if pattern.startswith("!"):
        return "reveals files; a policy only hides them"
    if not pattern.strip() or pattern.startswith("#"):
        return "matches nothing"
    try:
        GitIgnoreSpec.from_lines([pattern], backend="re2")
    except Exception:  # of re2, pathspec or Python's re
        return "is no gitignore pattern"
    return ""


def _decoded(path: Path, kind: type[Written]) -> Written:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}.") from error
