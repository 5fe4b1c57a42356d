"""How sure the model is of what is inserted, as a number and a word, and what is withheld because it is too unsure.

The number is the probability that the model gives to all tokens of the text. docs/configuration.md says how often the
fills of each word were right."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from caesura import wire
from caesura.commands import CommandFailed, Unsure

LIKELY, SURE = 0.3, 0.9  # the least of each word


@dataclass(frozen=True)
class Filled:
    """The text that is inserted in a hole, and its probability."""

    text: str
    chance: float

    def __str__(self) -> str:
        return f"{self.word} ({int(self.chance * 100 + 1e-9) / 100:.2f})"  # never rounded up to the next word

    @property
    def word(self) -> str:
        return "sure" if self.chance >= SURE else "likely" if self.chance >= LIKELY else "unsure"


def filled(text: str, fill: wire.Fill) -> Filled:
    """For `text`, made of a fill: of its tokens, as far as it begins with them, else of all. Without probabilities of
    tokens, the engine's confidence."""
    if not fill.probabilities:
        return Filled(text, fill.confidence)
    body = text.rstrip()
    kept = len(body) if body and fill.text.startswith(body) else len(fill.text)
    starts = [0, *(end for end, _ in fill.probabilities)]
    return Filled(text, math.prod(p for start, (_, p) in zip(starts, fill.probabilities, strict=False) if start < kept))


def least(options: argparse.Namespace) -> float:
    """The probability asked of what is shown."""
    if options.least is not None:
        return float(options.least)
    return LIKELY if options.strict else 0.0


def kept(filled: Filled, options: argparse.Namespace) -> Filled:
    """Without its text where it is too unlikely."""
    return filled if filled.chance >= least(options) else replace(filled, text="")


def withheld(what: str, options: argparse.Namespace) -> CommandFailed:
    """`what` is the beginning of the sentence."""
    kind = Unsure if options.strict else CommandFailed
    return kind(f"{what}, below {least(options):g}, and withheld; --least 0 shows all.")


def remarks(shown: Sequence[Filled], done: wire.Done) -> str:
    """What to say after the words of fills that are shown."""
    unsure = "; check it before you use it" if any(one.word == "unsure" for one in shown) else ""
    return unsure + ("; the deadline cut it short" if done.stop == "deadline" else "")
