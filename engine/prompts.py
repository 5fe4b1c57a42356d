"""How the embedded family is shown a job: `[suffix] separator [neighbours][prefix]`, the canvas behind it.

Suffix first, so that typing only appends to the KV cache; the neighbours lie between and keep their rows while the
prefix grows. A neighbour is a comment line that says where it comes from, its text and a blank line. Its `name` is that
line, as the client wrote it: only the client knows the language's comments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caesura.engine.models import Model
from caesura.engine.tokenizer import Tokenizer
from caesura.wire import Neighbour

SUFFIX = 3  # the suffix gets one part in three of the model's context, at most,
NEIGHBOURS = 4  # and the neighbours one part in four of what it leaves
WORDY = 8  # code points a token is taken to have at most, before it is known: what is longer is not tokenised


@dataclass(frozen=True)
class Prompt:
    """The context in tokens: `suffix` and separator, then what stands `before` the hole."""

    suffix: list[int]
    before: list[int]


def prompt(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour] = ()) -> Prompt:
    """What fits the model's context. The prefix keeps what suffix and neighbours leave, and loses its start."""
    encode, limit = model.tokenizer.encode, model.max_context
    after = encode(suffix[: limit * WORDY])[: limit // SUFFIX]
    room = limit - len(after) - len(model.separator)
    beside = chosen(model.tokenizer, neighbours, room // NEIGHBOURS)
    return Prompt(after, beside + slide(encode(prefix), room - len(beside)))


def chosen(tokenizer: Tokenizer, neighbours: Sequence[Neighbour], room: int) -> list[int]:
    """The neighbours that fit, whole, in order of rank; the first is cut at a line start if it is too long alone."""
    rows: list[int] = []
    for rank, neighbour in enumerate(neighbours):
        text = f"{neighbour.name}\n{neighbour.text}".strip("\n")
        ids = tokenizer.encode(text[: room * WORDY].rstrip() + "\n\n") if neighbour.text.strip() else []
        whole = len(text) <= room * WORDY and len(ids) <= room - len(rows)
        if rank and not whole:
            continue
        rows += ids if whole else first_lines(tokenizer, ids, room)
    return rows


def first_lines(tokenizer: Tokenizer, ids: Sequence[int], room: int) -> list[int]:
    """The whole lines at the start of a text that fit in `room` tokens, and a blank line."""
    lines, line_break, _ = tokenizer.decode(ids[: max(0, room - 2)]).rpartition("\n")  # the blank line takes two
    cut = tokenizer.encode(lines.rstrip() + "\n\n") if line_break and lines.strip() else []
    return cut if len(cut) <= room else []


def slide(ids: list[int], room: int) -> list[int]:
    """The last tokens that fit, cut in strides: the start of the window stays put while a few hundred keys are typed,
    so the KV cache does too."""
    if len(ids) <= room:
        return ids
    stride = max(1, room // 4)
    start = -(-(len(ids) - room) // stride) * stride
    return ids[start:]
