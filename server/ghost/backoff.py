"""Local back-off: each rejected suggestion raises the probability required of the next. Pure; time is an argument."""

from dataclasses import dataclass

GROWS = 1.15  # factor on the level for each rejected suggestion
SHRINKS = 0.7  # factor for each accepted one; the level is stable if one in four is accepted
MOST = 2.0  # the highest level
HALF_LIFE_S = 600.0  # time in which the level's distance from 1 halves


@dataclass
class Backoff:
    """At `level` 1 the required probability is the mode's; at level n its distance from certainty is divided by n."""

    level: float = 1.0
    _at: float = 0.0

    def rejected(self, now: float) -> None:
        self._fade(now)
        self.level = min(MOST, self.level * GROWS)

    def accepted(self, now: float) -> None:
        self._fade(now)
        self.level = max(1.0, self.level * SHRINKS)

    def chance(self, base: float, now: float) -> float:
        """The probability required now, if the mode requires `base`."""
        self._fade(now)
        return 1 - (1 - base) / self.level

    def _fade(self, now: float) -> None:
        self.level = 1 + (self.level - 1) * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S)
        self._at = now
