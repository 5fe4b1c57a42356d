"""Tell those who watch a supervisor what happens. The calls come in the supervisor's loop and must not wait."""

from dataclasses import dataclass

from caesura import wire
from caesura.engine.supervisor import link
from caesura.engine.supervisor.ledger import Job, Ledger

LEFT = "left"  # the outcome of a job whose client has gone
REFUSED = "refused"


@dataclass(frozen=True)
class JobEnd:
    """The end of a job at `now`, on the clock of its arrival. `outcome` is `done`, a code of wire.Failed, REFUSED for a
    `refusal`, or LEFT. `head` is of the worker's answer; there is none where the supervisor has answered."""

    job: Job
    now: float
    outcome: str
    refusal: link.Refusal = ""
    head: wire.EventHead | None = None

    @property
    def seconds(self) -> float:
        """From the job's arrival to here."""
        return self.now - self.job.arrived

    @property
    def first_locked_s(self) -> float | None:
        """From the job's arrival to its first locked text, if it was answered: the worker says how long before the end
        that was."""
        timings = self.head.timings if self.head else None
        if timings is None or timings.first_lock_ms is None:
            return None
        return max(0.0, self.seconds - (timings.total_ms - timings.first_lock_ms) / 1000)

    @property
    def steps(self) -> int:
        return max(self.job.steps, self.head.taken if self.head else 0)


class Observer:
    """Sees nothing yet: override what is wanted."""

    def looked(self, state: str, device: str, ledger: Ledger) -> None:
        """At each turn of the loop. `state`: that of the worker, or `stopping`."""

    def ended(self, end: JobEnd) -> None:
        """A job has had its last answer, or needs none."""

    def told(self, news: link.Upstream) -> None:
        """A team's relay has said how it stands with its replicas."""
