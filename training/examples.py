"""Text -> training examples: one causal context `[suffix] separator [prefix]`, shared by several canvases that are cut
at character positions inside the prefix, healed as in use.

A canvas may see the context only up to its own tail. The far suffix starts behind the last canvas, so for earlier
canvases some text between their head and the far suffix is unseen, as it is in use when a suffix KV is kept while
lines are typed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from caesura.engine.canvas.healing import heal
from caesura.engine.tokens.tokenizer import Tokenizer

BUCKETS, SHARES = (16, 32), (3, 1)  # slots of a canvas, and how often
JOINT = 0.1  # share of the canvases that are two holes with text between them
SHORT = 0.25  # share of the gaps of under half a bucket that are used: most rows of theirs would predict nulls


@dataclass(frozen=True)
class CanvasExample:
    """One canvas: `visible` context rows, then tail + slots + head. `target` holds the slots' true tokens, null-padded;
    `shown` is what the row holds instead: the mask id where the token is to be predicted. A `causal` canvas shows its
    target, without nulls, and is read left to right through its head."""

    visible: int
    tail: list[int]
    target: list[int]
    shown: list[int]
    head: list[int]
    causal: bool = False


@dataclass(frozen=True)
class Mix:
    """What a run adds to the canvases of use: the share of those read left to right (they keep the verifier exact when
    its weights move), and whether randomly hidden slots come with their complement, so that each is predicted once."""

    causal: float = 0.0
    complement: bool = False


PLAIN = Mix()


@dataclass(frozen=True)
class Example:
    context: list[int]
    canvases: list[CanvasExample]


def spans(text: str, start: int, end: int, rng: random.Random) -> tuple[int, int]:
    """A hole [a, b) in text[start:end] by the span mix of use: lines, line ends, in-line spans, several lines."""
    kind = rng.random()
    at = rng.randrange(start, end)
    line = text.rfind("\n", 0, at) + 1
    stop = text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    if kind < 0.30:  # a whole line behind its indentation
        return line + len(text[line:stop]) - len(text[line:stop].lstrip(" \t")), stop
    if kind < 0.60:  # from a column to the end of the line
        return rng.randint(line, max(line, stop - 1)), stop
    if kind < 0.80:  # a span inside a line
        a = rng.randint(line, max(line, stop - 2))
        return a, min(stop, a + 1 + int(rng.expovariate(1 / 12)))
    if kind < 0.90:  # a few whole lines
        for _ in range(rng.randint(1, 2)):
            following = text.find("\n", stop + 1)
            stop = following if following > 0 else stop
        return line, stop
    return at, min(len(text), at + rng.randint(1, 80))  # any characters, mid-token at both ends


def example(
    text: str,
    tokenizer: Tokenizer,
    separator: Sequence[int],
    special: tuple[int, int],
    rng: random.Random,
    *,
    bucket: int,
    sides: tuple[int, int],
    canvases: int,
    prefix_tokens: int = 320,
    suffix_tokens: int = 96,
    mix: Mix = PLAIN,
) -> Example | None:
    """One context and its canvases, or None where the text is too short. `special` is (mask id, null id); `bucket` the
    most slots of a canvas; `sides` the locked rows before and after them, at most."""
    (mask, null), (before, after) = special, sides
    window = prefix_tokens * 4
    if len(text) < 200:
        return None
    split = rng.randint(min(len(text) // 2, window), len(text)) if rng.random() < 0.8 else len(text)
    start = text.rfind("\n", 0, max(0, split - window)) + 1
    pieces = tokenizer.encode(text[start:split])[:prefix_tokens]
    bounds = [0]
    for piece in pieces:
        bounds.append(bounds[-1] + len(tokenizer.pieces[piece]))
    where = {byte: index for index, byte in enumerate(bounds)}
    suffix = tokenizer.encode(text[split : split + suffix_tokens * 5])[:suffix_tokens]
    context = [*suffix, *separator, *pieces]
    made: list[CanvasExample] = []
    for _ in range(canvases * 8):
        if len(made) == canvases:
            break
        a, b = spans(text, start + min(40, split - start - 1), split, rng)
        stable, forced = heal(tokenizer, text[start:a])
        index = where.get(len(stable.encode()))
        if b <= a or index is None or index < before:
            continue
        tokens = tokenizer.encode(forced + text[a:b])
        if not 0 < len(tokens) <= bucket or (len(tokens) < bucket // 2 and rng.random() > SHORT):
            continue
        head = tokenizer.encode(text[b : b + after * 8])[:after]
        place = len(suffix) + len(separator) + index - before, pieces[index - before : index]
        if mix.causal and rng.random() < mix.causal:
            made.append(CanvasExample(*place, tokens, tokens, head, causal=True))
            continue
        if len(tokens) > 2 and rng.random() < JOINT:
            target, hidden = two_holes(tokens, null, bucket - len(tokens), rng)
            made.append(CanvasExample(*place, target, corrupt(target, hidden, mask, tokenizer.size, rng), head))
            continue
        target = tokens + [null] * padding(bucket - len(tokens), rng)
        for hidden in hide(len(tokens), mix.complement, rng)[: canvases - len(made)]:
            made.append(CanvasExample(*place, target, corrupt(target, hidden, mask, tokenizer.size, rng), head))
    return Example(context, made) if made else None


def padding(room: int, rng: random.Random) -> int:
    """How many nulls follow the target: to the end of the bucket, as a hole begins; none, or a few, as it goes on."""
    return rng.choices((room, 0, rng.randint(0, min(8, room))), (70, 15, 15))[0]


def two_holes(tokens: list[int], null: int, room: int, rng: random.Random) -> tuple[list[int], list[bool]]:
    """Hide the left and the right part of the tokens, with nulls after each, as in a job with two holes. Returns what
    the slots should hold, and which of them are hidden."""
    left, right = sorted(rng.sample(range(1, len(tokens)), 2))
    first = padding(room // 2, rng)
    last = padding(room - first, rng)
    target = [*tokens[:left], *[null] * first, *tokens[left:], *[null] * last]
    hidden = [True] * (left + first) + [False] * (right - left) + [True] * (len(tokens) - right + last)
    return target, hidden


def hide(length: int, complement: bool, rng: random.Random) -> list[list[bool]]:
    """Which slots to hide: all of them, all but a revealed left part, or each with probability t, then the others."""
    kind = rng.random()
    if kind < 0.55:
        return [[True] * length]
    if kind < 0.8:
        revealed = rng.randint(0, length - 1)
        return [[i >= revealed for i in range(length)]]
    t = rng.uniform(0.05, 1)
    hidden = [rng.random() < t for _ in range(length)]
    return [hidden, [not one for one in hidden]] if complement and 0 < sum(hidden) < length else [hidden]


def corrupt(target: list[int], hidden: list[bool], mask: int, vocabulary: int, rng: random.Random) -> list[int]:
    """What the slots show: a tenth of what is not hidden is replaced by random tokens, so that the model learns to
    doubt a draft. Nulls are always hidden."""
    shown = [mask if gone else token for token, gone in zip(target, hidden, strict=False)]
    shown = [rng.randrange(vocabulary) if s != mask and rng.random() < 0.1 else s for s in shown]
    return shown + [mask] * (len(target) - len(hidden))
