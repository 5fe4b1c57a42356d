"""Text -> training examples: one causal context `[suffix] separator [prefix]`, shared by several canvases that are cut
at character positions inside the prefix, healed as in use.

A canvas may see the context only up to its own tail. The far suffix starts behind the last canvas, so for earlier
canvases some text between their head and the far suffix is unseen, as it is in use when a suffix KV is kept while
lines are typed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from caesura.engine.canvas import heal
from caesura.engine.tokenizer import Tokenizer

TAIL, HEAD = 4, 12  # locked rows before and after the slots
BUCKETS, SHARES = (16, 32), (3, 1)  # slots of a canvas, and how often


@dataclass(frozen=True)
class CanvasExample:
    """One canvas: `visible` context rows, then tail + slots + head. `target` holds the slots' true tokens, null-padded;
    `shown` is what the row holds instead: the mask id where the token is to be predicted."""

    visible: int
    tail: list[int]
    target: list[int]
    shown: list[int]
    head: list[int]


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
    canvases: int = 14,
    prefix_tokens: int = 320,
    suffix_tokens: int = 96,
) -> Example | None:
    """One context and its canvases, or None where the text is too short. `special` is (mask id, null id); `bucket` the
    most slots of a canvas."""
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
    for _ in range(canvases * 4):
        if len(made) == canvases:
            break
        a, b = spans(text, start + min(40, split - start - 1), split, rng)
        stable, forced = heal(text[start:a])
        index = where.get(len(stable.encode()))
        if b <= a or index is None or index < TAIL:
            continue
        canvas = cut(tokenizer, forced + text[a:b], text[b : b + HEAD * 8], bucket, special, rng)
        if canvas is not None:
            target, shown, head = canvas
            visible = len(suffix) + len(separator) + index - TAIL
            made.append(CanvasExample(visible, pieces[index - TAIL : index], target, shown, head))
    return Example(context, made) if made else None


def cut(
    tokenizer: Tokenizer, middle: str, after: str, bucket: int, special: tuple[int, int], rng: random.Random
) -> tuple[list[int], list[int], list[int]] | None:
    """(target, shown, head) of a hole, or None where it does not fit the bucket."""
    mask, null = special
    tokens = tokenizer.encode(middle)
    if not 0 < len(tokens) <= bucket:
        return None
    room = bucket - len(tokens)
    pad = rng.choices((0, rng.randint(0, min(8, room)), rng.randint(0, room)), (15, 25, 60))[0]
    target = tokens + [null] * pad
    return target, corrupt(target, len(tokens), mask, tokenizer.size, rng), tokenizer.encode(after)[:HEAD]


def corrupt(target: list[int], length: int, mask: int, vocabulary: int, rng: random.Random) -> list[int]:
    """Hide slots: all of them, all but a revealed left part, or each with probability t. Nulls are always hidden.

    A tenth of what stays visible is replaced by random tokens, so that the model learns to doubt a draft.
    """
    kind = rng.random()
    if kind < 0.35:
        hidden = [True] * length
    elif kind < 0.70:
        revealed = rng.randint(0, length - 1)
        hidden = [i >= revealed for i in range(length)]
    else:
        t = rng.uniform(0.05, 1)
        hidden = [rng.random() < t for _ in range(length)]
    shown = [mask if hide else token for token, hide in zip(target, hidden, strict=False)]
    shown = [rng.randrange(vocabulary) if s != mask and rng.random() < 0.1 else s for s in shown]
    return shown + [mask] * (len(target) - length)
