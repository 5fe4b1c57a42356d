"""A user's budget of denoise steps: a token bucket. Pure: time is an argument, in seconds."""

from dataclasses import dataclass


@dataclass
class Bucket:
    """Holds at most `most` steps and gains `rate` a second. Steps are charged after they ran, so the level may fall
    below zero; then no job starts until it is at least one."""

    rate: float
    most: float
    level: float
    at: float

    def refill(self, now: float) -> None:
        self.level = min(self.most, self.level + self.rate * max(0.0, now - self.at))
        self.at = max(self.at, now)

    def take(self, steps: int, now: float) -> None:
        self.refill(now)
        self.level -= steps

    def wait_s(self, now: float) -> float:
        """Seconds until a job may begin; 0 if it may now."""
        self.refill(now)
        return max(0.0, (1 - self.level) / self.rate)
