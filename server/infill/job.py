"""The only builder of jobs for the engine. It masks secrets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from caesura import wire
from caesura.client.backend import job_id
from caesura.server.context import secrets
from caesura.server.context.context import Context
from caesura.server.languages import Language

if TYPE_CHECKING:
    from caesura.server.infill.site import Site

MOST_NEIGHBOURS = 32  # most neighbours of a job

Priority = Literal["invoked", "automatic", "speculative"]
JobKind = Literal["complete", "fill", "edit"]
Lines = tuple[Sequence[str], Sequence[str]]  # of an edit: the old ones and the new ones, without line breaks


@dataclass(frozen=True)
class Ask:
    """How a job is done, as in wire.Infill. `document` is a key that does not reveal the path: a job ends the older one
    of its client with the same key and kind. If it is empty, the job ends no other."""

    priority: Priority = "invoked"
    kind: JobKind = "complete"
    document: str = ""
    candidates: int = 1
    deadline_ms: float = 10_000.0
    method: str | None = None
    sampler: str | None = None
    prompt: str | None = None
    seed: int = 0
    min_probability: float = 0.0
    effort: Literal["ghost", "full"] = "full"


def infill(
    site: "Site", ask: Ask, draft: tuple[str, ...] | None, segments: Sequence[wire.Text | wire.Hole]
) -> wire.Infill:
    """A job with a new id for `segments` at the start of the site's span. The secrets of the text and of what its offer
    brings are masked here; the site's neighbours are masked already. `draft` has a text for each hole to start from,
    masked by `masked_draft` if it comes from the document."""
    around, offer = site.context, site.offer
    prefix, masked, suffix = secrets.concealed(around.prefix, segments, around.suffix)
    evidence = tuple(wire.Neighbour(near.name, secrets.masked(near.text)) for near in offer.evidence) if offer else ()
    return wire.Infill(
        job=job_id(),
        document=ask.document or job_id(),
        kind=ask.kind,
        priority=ask.priority,
        deadline_ms=ask.deadline_ms,
        prefix=prefix,
        suffix=suffix,
        language=around.language,
        neighbours=(evidence + site.neighbours)[:MOST_NEIGHBOURS],
        segments=masked,
        candidates=ask.candidates,
        method=ask.method,
        sampler=ask.sampler,
        prompt=ask.prompt,
        seed=ask.seed,
        min_probability=ask.min_probability,
        effort=ask.effort,
        missing=around.missing_from(masked),
        draft=draft,
        schemas=tuple(map(secrets.masked_schema, offer.schemas)) if offer else (),
    )


def question(row: Language, history: Sequence[Lines], places: Sequence[Lines], ask: Ask) -> wire.Infill:
    """A job that asks how likely each edit of `places` is after the edits of the `history`, oldest first: lines of a
    file and those that replace them. The answer is the confidence of each hole. The file's name stays here, and secrets
    are masked."""
    file = f"main{row.extensions[0] if row.extensions else ''}.diff"
    past = (f"original:\n{_joined(old)}\nupdated:\n{_joined(new)}" for old, new in history)
    return wire.Infill(
        job=job_id(),
        document=ask.document or job_id(),
        kind=ask.kind,
        priority=ask.priority,
        deadline_ms=ask.deadline_ms,
        prefix="",
        suffix="",
        neighbours=tuple(wire.Neighbour(file, text) for text in past),
        segments=tuple(wire.Hole(1, instead=_joined(old)) for old, _ in places),
        method="judge",
        prompt="edits",
        draft=tuple(_joined(new) for _, new in places),
    )


def _joined(lines: Sequence[str]) -> str:
    return secrets.masked("\n".join(lines))


def masked_draft(text: str, around: Context) -> str:
    """`text`, taken from the hole of `around`, with the secrets masked that its surroundings show."""
    start = len(around.prefix)
    return secrets.masked(around.prefix + text + around.suffix)[start : start + len(text)]
