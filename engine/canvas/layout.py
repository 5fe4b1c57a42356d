"""A job as tokens: the context to prefill, and the canvas after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from caesura.engine.canvas.canvas import Canvas, HoleState, Slot
from caesura.engine.canvas.healing import heal
from caesura.engine.canvas.prompts import prompt
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.model import MAX_ROWS, Model
from caesura.wire import MAX_SLOTS, Hole, Impossible, Infill, Json, Pattern, Text

SLOTS = 16  # open slots of a hole at the start; a canvas that does not end grows


@dataclass(frozen=True)
class Layout:
    """A job in tokens: the context to prefill, and the canvas after it."""

    context: list[int]
    canvas: Canvas


def lay(model: Model, vocabulary: Vocabulary, job: Infill, slots: int) -> Layout:
    """Tokenise a job: the context in the job's prompt format (prompts.py), and the canvas after it. With full
    visibility there is no context, and the canvas is all of it. With blocks the canvas begins with the rest of the
    prefix that is no whole block.

    `slots` bounds the open slots of a hole at the start; a canvas that does not end grows. Raises Impossible for a job
    without a hole, with holes too far apart for one canvas, or with a grammar that nothing fits.
    """
    prefix, segments, suffix = fold(job.prefix, job.segments, job.suffix)
    encode = model.tokenizer.encode
    stable, forced = heal(model.tokenizer, prefix)
    before, layout, holes = prefix, list[Slot | int](), list[HoleState]()
    for index, segment in enumerate(segments):
        if isinstance(segment, Text):
            fixed, forced = heal(model.tokenizer, segment.text)
            layout += encode(fixed)
            before = segment.text
            continue
        following = "".join(s.text for s in segments[index + 1 :] if isinstance(s, Text)) + suffix
        hole = HoleState(
            single_line(segment, before, following), segment.max_tokens + len(encode(forced)), forced.encode()
        )
        if segment.grammar is not None:
            rule(vocabulary, hole, segment.grammar, job.schemas)
        layout += [Slot(len(holes)) for _ in range(max(len(hole.shortest), min(slots, hole.max_tokens)))]
        holes.append(hole)
        forced = ""
    if len(layout) > MAX_ROWS:
        raise Impossible(f"The holes are too far apart: {len(layout)} tokens lie between them, and {MAX_ROWS} fit.")
    shown = prompt(model, stable, suffix, job.neighbours, name=job.prompt, language=job.language)
    rows = [*shown.opening, *shown.before]
    cut = len(rows) - (min(model.spec.tail, len(shown.before)) or min(model.spec.tail, 1))
    cut -= cut % model.spec.block_size  # the context is whole blocks
    head = shown.head[: model.spec.head]
    if (
        not head and model.spec.ends
    ):  # no suffix: a line ends with a line break, and the model decides where a block ends
        head = encode("\n") if holes[-1].one_line else []
        holes[-1].last = not head and holes[-1].grammar is None
    return Layout(rows[:cut], Canvas(rows[cut:], layout, head + shown.closing, holes, vocabulary))


def rule(vocabulary: Vocabulary, hole: HoleState, spec: Json | Pattern, schemas: tuple[str, ...]) -> None:
    """Give a hole its grammar, and a budget that at least the shortest fill fits."""
    hole.grammar = vocabulary.grammar(spec, schemas)
    hole.state = hole.grammar.start(hole.forced)
    hole.shortest = vocabulary.spelled(hole.grammar.simplest(hole.forced))
    if len(hole.shortest) > MAX_SLOTS:
        raise Impossible(f"What has to stand here takes {len(hole.shortest)} tokens at least, and {MAX_SLOTS} fit.")
    hole.max_tokens = max(hole.max_tokens, len(hole.shortest))


def fold(prefix: str, segments: Sequence[Text | Hole], suffix: str) -> tuple[str, list[Text | Hole], str]:
    """Fixed text at either end of the segments becomes prefix and suffix, so that holes come first and last; texts that
    touch become one."""
    middle = list(segments)
    while middle and isinstance(first := middle[0], Text):
        prefix += first.text
        del middle[0]
    while middle and isinstance(last := middle[-1], Text):
        suffix = last.text + suffix
        del middle[-1]
    if not middle:
        raise Impossible("The job has no hole to fill.")
    joined: list[Text | Hole] = []
    for segment in middle:
        if joined and isinstance(segment, Text) and isinstance(before := joined[-1], Text):
            joined[-1] = Text(before.text + segment.text)
        else:
            joined.append(segment)
    return prefix, joined, suffix


def single_line(hole: Hole, before: str, after: str) -> bool:
    """True if a hole ends before a line break. `auto` is a block if an empty line follows an opened block."""
    if hole.kind != "auto":
        return hole.kind != "block"
    line = before.rpartition("\n")[2]
    opener = before.rstrip()[-1:] in (":", "{") and not line.strip()
    return not (opener and after.lstrip(" \t")[:1] in ("\n", "\r", ""))
