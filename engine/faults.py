"""The engine's response to its own faults: how many jobs run together after memory has run out, and when a process has
failed so often that a new one takes over. Pure: time is an argument.
"""

from collections import deque

FAULTS = 3  # faults of the model or of memory within FAULTY_S, after which a new process takes over
FAULTY_S = 60.0
SHORT = {"MemoryError", "OutOfMemoryError"}  # errors of Python and of PyTorch, by name
NO_ROOM = ("can't allocate memory", "std::bad_alloc")  # what others of no such type say
STEADY = 1000  # steps at the limit of jobs, after which the limit rises by one


class Broken(Exception):
    """The engine has failed too often to go on in this process."""


class Faults:
    """Counts faults; `live` jobs may run together."""

    def __init__(self, live: int) -> None:
        self.live = self._most = live
        self._steady = 0  # steps since `live` has changed or memory has run out
        self._when = deque[float](maxlen=FAULTS)

    def __repr__(self) -> str:
        return f"<Faults {len(self._when)} lately, {self.live} of {self._most} live>"

    def stepped(self, jobs: int) -> None:
        """Record a step of `jobs` jobs. Steps below the limit do not count."""
        if self.live == self._most or jobs < self.live:
            return
        self._steady += 1
        if self._steady == STEADY:
            self.live, self._steady = self.live + 1, 0

    def out_of_memory(self, jobs: int, now: float) -> None:
        """Record that a step of `jobs` jobs ran out of memory: halve the limit. A single job that does not fit is a
        fault. Raises Broken."""
        self._steady = 0
        if jobs == 1:
            self.count("The engine ran out of memory.", now)
        else:
            self.live = jobs // 2

    def count(self, message: str, now: float) -> None:
        """Record a fault. Raises Broken if there were too many."""
        self._when.append(now)
        if len(self._when) == FAULTS and now - self._when[0] < FAULTY_S:
            raise Broken(f"{message} That was {FAULTS} faults in a minute.")


def sentence(error: Exception) -> str:
    """An error of a model or its device as a sentence for a person. Not for errors that may quote a job's text."""
    if short_of_memory(error):
        return "There is not enough memory."
    lines = str(error).strip().splitlines() or [""]
    first = lines[-1 if "TorchScript" in lines[0] else 0]  # TorchScript puts its traceback first
    return f"{type(error).__name__}: {first[:120]}".rstrip(":. ") + "."


def short_of_memory(error: Exception) -> bool:
    """True if the GPU or the host has run out of memory; PyTorch has no single type for that, and may not be there."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & SHORT) or any(words in str(error) for words in NO_ROOM)
