"""The connected clients and the jobs that are owed an answer. Pure: time is an argument, and nothing is sent here."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from caesura import wire

MAX_PEERS = 128  # 64 editors, each with a lost connection whose lease has not ended yet
MAX_JOBS = 64  # unanswered jobs of all peers
ELSEWHERE = 4  # paired machines have quotas of their own, by default the ones above divided by this
MAX_JOBS_OF_PEER = 8
OVERDUE_S = 30.0  # a worker takes and ends a job between two steps of ten seconds at most (process.Patience)
SUSPECT_S = 600.0  # how long a crash is held against the jobs that were live
MAX_SUSPECTS = 256
CRASHES_OF_A_POISON = 2


@dataclass
class Job:
    """A job without a final answer. `frame` holds the bytes it came in until the worker has them. `steps`: the most
    reported so far."""

    peer: bytes
    request: wire.Infill
    frame: bytes | None
    arrived: float
    steps: int = 0

    @property
    def forwarded(self) -> bool:
        return self.frame is None

    def remaining_ms(self, now: float) -> float:
        return self.request.deadline_ms - (now - self.arrived) * 1000


@dataclass(frozen=True)
class Places:
    """How many peers of a kind may be connected, the unanswered jobs of all of them and of one, and the peers of one
    user."""

    peers: int = MAX_PEERS
    jobs: int = MAX_JOBS
    jobs_of_peer: int = MAX_JOBS_OF_PEER
    peers_of_user: int = MAX_PEERS // ELSEWHERE


HERE = Places()
PAIRED = Places(MAX_PEERS // ELSEWHERE, MAX_JOBS // ELSEWHERE)


@dataclass
class Peer:
    """`user`: the key of a client on another machine."""

    client: str
    heard: float
    user: str = ""
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def paired(self) -> bool:
        return bool(self.user)


class Suspects:
    """The texts of jobs that were live at a crash."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, tuple[int, float]] = OrderedDict()  # fingerprint -> crashes, last one

    def __repr__(self) -> str:
        return f"<Suspects {len(self._found)} texts>"

    def add(self, request: wire.Infill, now: float, apart_s: float = 0.0) -> None:
        """Losses of a text that are less than `apart_s` apart are of one crash."""
        mark = _fingerprint(request)
        crashes, last = self._found.pop(mark, (0, float("-inf")))
        if now - last >= apart_s:
            crashes = crashes + 1 if now - last < SUSPECT_S else 1
        self._found[mark] = crashes, now
        if len(self._found) > MAX_SUSPECTS:
            self._found.popitem(last=False)

    def refusal(self, request: wire.Infill, now: float) -> wire.Failed | None:
        """The answer to a text that was live at two crashes."""
        if not self._found:
            return None
        crashes, last = self._found.get(_fingerprint(request), (0, now))
        if crashes < CRASHES_OF_A_POISON or now - last >= SUSPECT_S:
            return None
        return wire.Failed(request.job, "invalid", "This text stopped the engine twice; it is refused for 10 minutes.")


class Ledger:
    """Leases, the bounded queue, and the memory of which jobs were live at a crash. `paired` are the places of other
    machines."""

    def __init__(self, paired: Places = PAIRED) -> None:
        self.peers: dict[bytes, Peer] = {}
        self._paired = paired
        self._suspects = Suspects()

    def __repr__(self) -> str:
        jobs = list(self.jobs())
        return f"<Ledger {len(self.peers)} peers, {len(jobs)} jobs, {sum(j.forwarded for j in jobs)} forwarded>"

    def jobs(self) -> Iterator[Job]:
        for peer in self.peers.values():
            yield from peer.jobs.values()

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs() if not job.forwarded]

    def live(self) -> list[Job]:
        return [job for job in self.jobs() if job.forwarded]

    def overdue(self, now: float) -> bool:
        """True if a job is so long past its deadline that the worker must have lost it."""
        return any(job.remaining_ms(now) < -1000 * OVERDUE_S for job in self.live())

    # Peers

    def greet(self, peer: bytes, client: str, now: float, *, user: str = "") -> bool:
        """Begin or renew a lease. False if there are too many clients of its kind, or of its user."""
        if known := self.peers.get(peer):
            known.heard = now
        elif len(self._like(bool(user))) < self._places(bool(user)).peers and self._has_place(user):
            self.peers[peer] = Peer(client, now, user)
        else:
            return False
        return True

    def hear(self, peer: bytes, now: float) -> bool:
        """Renew a lease. False for a peer that has sent no Hello since its last lease ended."""
        if known := self.peers.get(peer):
            known.heard = now
        return known is not None

    def silent(self, now: float, lease_s: float) -> list[bytes]:
        return [key for key, peer in self.peers.items() if now - peer.heard > lease_s]

    def leave(self, peer: bytes) -> bool:
        """Forget a peer and its jobs. True if it was known: then the worker may hold a context for it."""
        return self.peers.pop(peer, None) is not None

    # Jobs

    def admit(self, peer: bytes, request: wire.Infill, frame: bytes, now: float) -> wire.Busy | wire.Failed | None:
        """Take a job, or return the refusal. A job that this one replaces (same document and kind) does not count."""
        if refusal := self._suspects.refusal(request, now):
            return refusal
        own, paired = self.peers[peer].jobs, self.peers[peer].paired
        replaced = sum(_same_place(job.request, request) for job in own.values())
        taken = sum(len(other.jobs) for other in self._like(paired))
        places = self._places(paired)
        if len(own) - replaced >= places.jobs_of_peer or taken - replaced >= places.jobs:
            return wire.Busy(request.job)
        own[request.job] = Job(peer, request, frame, now)
        return None

    def supersede(self, peer: bytes, request: wire.Infill) -> list[Job]:
        """End the waiting jobs that `request` replaces; the scheduler ends those that the worker has."""
        own = self.peers[peer].jobs
        old = [
            job
            for job in own.values()
            if job.request.job != request.job and not job.forwarded and _same_place(job.request, request)
        ]
        for job in old:
            del own[job.request.job]
        return old

    def find(self, peer: bytes, job: str) -> Job | None:
        known = self.peers.get(peer)
        return known.jobs.get(job) if known else None

    def settle(self, peer: bytes, job: str) -> None:
        """Forget a job that has its final answer."""
        if known := self.peers.get(peer):
            known.jobs.pop(job, None)

    def crash(self, now: float) -> list[Job]:
        """Settle the jobs that a dead worker had, and suspect each of them. Returns them."""
        lost = self.live()
        for job in lost:
            self.settle(job.peer, job.request.job)
            self._suspects.add(job.request, now)
        return lost

    def _like(self, paired: bool) -> list[Peer]:
        """The peers of other machines, or those of this one."""
        return [peer for peer in self.peers.values() if peer.paired == paired]

    def _has_place(self, user: str) -> bool:
        """False if one user of many has as many clients as one may have."""
        return not user or sum(peer.user == user for peer in self.peers.values()) < self._paired.peers_of_user

    def _places(self, paired: bool) -> Places:
        return self._paired if paired else HERE


def _same_place(one: wire.Infill, other: wire.Infill) -> bool:
    return one.document == other.document and one.kind == other.kind


def _fingerprint(request: wire.Infill) -> bytes:
    """A hash of a job's text, without name, document, deadline, priority, seed, draft and `min_probability`."""
    bare = msgspec.structs.replace(
        request, job="-", document="-", deadline_ms=0.0, priority="automatic", seed=0, draft=None, min_probability=0.0
    )
    return hashlib.sha256(wire.encode(bare)).digest()
