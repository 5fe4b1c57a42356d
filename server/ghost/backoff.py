"""Local back-off: suggestions that are not taken raise what the next ones must be worth. Pure; time is an argument."""

from dataclasses import dataclass

GROWS = 1.15  # by a suggestion that was typed over
SHRINKS = 0.7  # by one that was taken: with one in four taken it stays as it is
MOST = 2.0
HALF_LIFE_S = 600.0  # after which half of it is forgotten


@dataclass
class Backoff:
    """`level` 1 asks what the mode asks; level n leaves an n-th of the distance to certainty."""

    level: float = 1.0
    _at: float = 0.0

    def rejected(self, now: float) -> None:
        self._fade(now)
        self.level = min(MOST, self.level * GROWS)

    def accepted(self, now: float) -> None:
        self._fade(now)
        self.level = max(1.0, self.level * SHRINKS)

    def chance(self, base: float, now: float) -> float:
        """The probability asked now, where the mode asks for `base`."""
        self._fade(now)
        return 1 - (1 - base) / self.level

    def _fade(self, now: float) -> None:
        self.level = 1 + (self.level - 1) * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S)
        self._at = now
