"""Prompt formats by name: each shows a job to the model, and shares its context among suffix, neighbours and prefix.

In each but `inline` and `edits` the suffix comes first, so that typing only appends to the KV cache; the neighbours
lie between and keep their rows while the prefix grows. A neighbour is a comment line that says where it comes from, or
`# ...`, its text and a blank line. Its `name` is that line, as the client wrote it: only the client knows the
language's comments.

`small` was trained on `suffix_first`. Code models read it as two files of one repository, and fill gaps as well with it
as with `fim`, which uses their own gap tokens, suffix first (docs/log.md). No format for infilling is published for
chat models: the wording of the other formats is a guess, and which is best has not been measured on their weights.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from caesura.engine.model import Model
from caesura.engine.tokens.fim import fim_tokens
from caesura.engine.tokens.tokenizer import Tokenizer
from caesura.engine.tokens.turns import turns_of
from caesura.wire import Impossible, Neighbour

SUFFIX = 3  # the suffix gets at most 1/SUFFIX of the model's context,
NEIGHBOURS = 4  # and the neighbours at most 1/NEIGHBOURS of the rest
WORDY = 8  # assumed most code points of a token: text too long for its room by this measure is cut before tokenising
RULE = "\n\n----------\n\n"
FOLLOWS, BESIDE = "The text behind the cursor:\n", "Related text of other files:\n\n"
TASK = (
    "Write the text that stands before the cursor, and go on to where the text behind the cursor begins."
    " Answer with text of the file alone."
)
WHOLE = "Write a whole file. Answer with text of the file alone."
FENCE, LABEL = "```", re.compile(r"[\w+#.-]{1,32}")


@dataclass(frozen=True)
class Prompt:
    """The context in tokens: the `opening`, then what stands `before` the hole, which ends with the prefix. `head` is
    the suffix, whose start may be on the canvas too; `closing` ends the canvas."""

    opening: list[int]
    before: list[int]
    head: list[int]
    closing: list[int] = field(default_factory=list)


Format = Callable[[Model, str, str, Sequence[Neighbour], str], Prompt]  # prefix, suffix, neighbours, language


def prompt(
    model: Model,
    prefix: str,
    suffix: str,
    neighbours: Sequence[Neighbour] = (),
    name: str | None = None,
    language: str = "",
) -> Prompt:
    """Show as much of a job as fits the model's context, in the format `name` or the model's own. Raises Impossible,
    with one sentence, for an unknown format or one that needs tokens the model lacks."""
    name = name or model.spec.prompt
    found = FORMATS.get(name)
    if found is None:
        raise Impossible(f"There is no prompt format named {name!r}; there are {', '.join(FORMATS)}.")
    if not (found in (inline, chat, chat_fence) if model.spec.visibility == "full" else found is not inline):
        usual = f"The model {model.name} is shown a gap as {model.spec.prompt}"
        raise Impossible(f"{usual}; the prompt format {name} is for models that see it another way.")
    return found(model, prefix, suffix, neighbours, language)


def inline(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """`[neighbours][prefix]` the hole `[suffix]`, between the tokens that a text begins and ends with: for models whose
    rows all see each other. A suffix that is cut does not end."""
    after, beside, before = share(model, prefix, suffix, neighbours, len(model.spec.start) + len(model.spec.finish))
    closing = [*model.spec.finish] if whole(model, after, suffix) else []
    return Prompt([], [*model.spec.start, *beside, *before], after, closing)


def whole(model: Model, after: list[int], suffix: str) -> bool:
    """True if the shown tokens of a suffix go to its end."""
    return model.tokenizer.bytes(after) == suffix.encode()


def suffix_first(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """`[suffix] separator [neighbours][prefix]`, as training/examples.py has it."""
    if not model.spec.separator:
        raise Impossible(
            f"The model {model.name} has no separator for the prompt format suffix_first; try fim or plain."
        )
    after, beside, before = share(model, prefix, suffix, neighbours, len(model.spec.start) + len(model.spec.separator))
    return Prompt([*model.spec.start, *after, *model.spec.separator], beside + before, after)


def fim(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """`[prefix token][suffix token] suffix [middle token] [neighbours][prefix]`: the model's own gap tokens. The place
    of the prefix is empty; the real one comes last, so that typing only appends."""
    known = fim_tokens(model.tokenizer)
    if not known:
        raise Impossible(f"The model {model.name} has no tokens for fill-in-the-middle; try plain.")
    first, second, middle = known
    after, beside, before = share(model, prefix, suffix, neighbours, len(model.spec.start) + len(known))
    return Prompt([*model.spec.start, first, second, *after, middle], beside + before, after)


def plain(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """`[bos][suffix] a ruled line [neighbours][prefix]`: text without turns, as before any chat training."""
    gemma = model.tokenizer.find("<bos>")
    first, rule = [*model.spec.start] if gemma is None else [gemma], model.tokenizer.encode(RULE)
    after, beside, before = share(model, prefix, suffix, neighbours, len(first) + len(rule))
    return Prompt([*first, *after, *rule, *beside], before, after)


def chat(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """A user's turn with suffix, neighbours and task, and the prefix as the beginning of the model's answer. With full
    visibility the answer is the file: prefix, hole, suffix and the end of the turn."""
    return asked(model, prefix, suffix, neighbours, "", "")


def chat_fence(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """`chat` with suffix and answer in fenced code, as chat models answer. The model has to cope with the editor's name
    of the language, and with text that has fences of its own."""
    label = language if LABEL.fullmatch(language) else ""
    return asked(model, prefix, suffix, neighbours, f"{FENCE}{label}\n", f"\n{FENCE}")


def asked(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], opened: str, closed: str) -> Prompt:
    """The prompt in the turns of the model's template; code begins with `opened` and ends with `closed`."""
    found, full = turns_of(model.tokenizer), model.spec.visibility == "full"
    if found is None:
        raise Impossible(f"The model {model.name} has no tokens for the turns of a chat; try {model.spec.prompt}.")
    begun, behind, task = f"{found.before}{FOLLOWS}{opened}", f"{closed}\n\n", TASK
    if full:
        begun, behind, task = found.before, closed + found.end, WHOLE
    encode = partial(found.encode, model.tokenizer)
    first, ended, related, last = map(encode, (begun, behind, BESIDE, f"{task}{found.behind}{opened}"))
    own, limit = len(first) + len(ended) + len(related) + len(last), model.spec.max_context
    if own + limit // SUFFIX > limit:
        few = f"The context of {model.name} has {limit} tokens, too few for the {own} that a chat takes by itself"
        raise Impossible(f"{few}; try {model.spec.prompt}.")
    after, beside, before = share(model, prefix, suffix, neighbours, own)
    shown = related + beside if beside else []
    if full:
        return Prompt([], [*first, *shown, *last, *before], after, ended if whole(model, after, suffix) else [])
    return Prompt([*first, *after, *ended, *shown, *last], before, after)


def edits(model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], language: str) -> Prompt:
    """`separator edit separator edit ...`: the neighbours, edits in the order in which they were made, for the method
    `judge`. The earliest ones are left out if there is no room; prefix and suffix are not shown. Raises Impossible if
    the last one does not fit: without it there is nothing to judge by."""
    if not model.spec.separator:
        raise Impossible(f"The model {model.name} has no separator for the prompt format edits.")
    shown, room = list[int](), model.spec.max_context - len(model.spec.start)
    for one in reversed(neighbours):
        ids = [*model.spec.separator, *model.tokenizer.encode(f"{one.line}\n{one.text}\n")]
        if len(ids) + len(shown) > room:
            if not shown:
                raise Impossible("The last edit is too long for the model's context.")
            break
        shown = ids + shown
    return Prompt([*model.spec.start, *shown], [], [])


def edit_place(name: str, text: str) -> str:
    """An edit that is not made yet: the lines `text` of the file `name`, and the place of the new ones."""
    return f"{name}\noriginal:\n{text}\nupdated:\n"


FORMATS: dict[str, Format] = {f.__name__: f for f in (suffix_first, fim, plain, chat, chat_fence, inline, edits)}


def share(
    model: Model, prefix: str, suffix: str, neighbours: Sequence[Neighbour], own: int
) -> tuple[list[int], list[int], list[int]]:
    """Suffix, neighbours and prefix in tokens, as far as they fit next to a format's `own` tokens. The prefix gets the
    room that suffix and neighbours leave; its start is cut."""
    encode, limit = model.tokenizer.encode, model.spec.max_context
    after = encode(suffix[: limit * WORDY])[: limit // SUFFIX]
    room = limit - len(after) - own
    beside = fitting_neighbours(model.tokenizer, neighbours, room // NEIGHBOURS)
    near = prefix[strides(len(prefix), limit * WORDY) :]  # the rest is too far away to be tokenised at every key
    return after, beside, slide(encode(near), room - len(beside))


def fitting_neighbours(tokenizer: Tokenizer, neighbours: Sequence[Neighbour], room: int) -> list[int]:
    """The neighbours that fit, whole, in order of rank; the first is cut at a line start if it is too long alone."""
    rows: list[int] = []
    for rank, neighbour in enumerate(neighbours):
        text = f"{neighbour.line}\n{neighbour.text}".strip("\n")
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
    return ids[strides(len(ids), room) :]


def strides(size: int, room: int) -> int:
    """How much to cut at the start: a whole number of strides, so that at most `room` is left."""
    stride = max(1, room // 4)
    return max(0, -(-(size - room) // stride) * stride)
