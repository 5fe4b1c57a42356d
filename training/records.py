"""Short JSON records: a prompt that holds a record, a canvas that repeats it, and holes whose text, and so whose
length, only the prompt tells.

Records are made of whole tokens, so that ids are composed without the tokenizer.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

KEYS = "name type color size date user role tag note title"
WORDS = """
red old new open side point line space flow land day air front light play word stone ground place state year round
bridge fire wind river plane tree bird fish snow wall door street house garden market paper metal glass iron gold
green black white blue brown wild warm cold dark high deep long short small large quick slow soft hard rich fresh
north south east west moon star sun sea lake hill field stream rain cloud storm summer winter spring music story
letter number circle square corner center table board chain ring wheel engine horse cat dog bear wolf lion frog duck
"""


class Example(NamedTuple):
    """Ids of prompt and canvas, and the [start, end) of each value in the canvas."""

    prompt: list[int]
    canvas: list[int]
    values: list[tuple[int, int]]


class Records:
    """`encode` turns text into ids; words that are not one token both after a quote and after a space are left out."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        def one(text: str) -> int:
            (token,) = encode(text)
            return token

        self.open, self.colon, self.quote, self.comma = one('{"'), one('":'), one(' "'), one('",')
        self.close, self.newline = one('"}'), one("\n")
        self.keys = [one(key) for key in KEYS.split()]
        whole = [word for word in WORDS.split() if len(encode(word)) == len(encode(f" {word}")) == 1]
        self.words = [(one(word), one(f" {word}")) for word in whole]

    @property
    def tokens(self) -> set[int]:
        """Every id that a record can hold."""
        marks = {self.open, self.colon, self.quote, self.comma, self.close, self.newline}
        return marks | set(self.keys) | {i for pair in self.words for i in pair}

    def fields(self, rng: random.Random) -> list[tuple[int, list[int]]]:
        """Two to four keys, each with a value of one to four words."""
        keys = rng.sample(self.keys, rng.randint(2, 4))
        chosen = [rng.choices(self.words, k=rng.choice((1, 1, 2, 2, 3, 4))) for _ in keys]
        return [
            (key, [first, *(word for _, word in more)]) for key, ((first, _), *more) in zip(keys, chosen, strict=True)
        ]

    def render(self, fields: list[tuple[int, list[int]]]) -> tuple[list[int], list[tuple[int, int]]]:
        ids, spans = [], []
        for n, (key, value) in enumerate(fields):
            ids += [self.open] if n == 0 else [self.comma, self.quote]
            ids += [key, self.colon, self.quote]
            spans.append((len(ids), len(ids) + len(value)))
            ids += value
        return [*ids, self.close, self.newline], spans

    def example(self, rng: random.Random, *, moved: bool) -> Example:
        """`moved`: the canvas has the fields in another order."""
        fields = self.fields(rng)
        prompt, _ = self.render(fields)
        if moved:
            rng.shuffle(fields)
        return Example(prompt, *self.render(fields))
