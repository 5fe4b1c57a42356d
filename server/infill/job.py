"""The server's only builder of jobs for the engine. It masks secrets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tree_sitter

from caesura import wire
from caesura.client.backend import job_id
from caesura.server.context import secrets
from caesura.server.context.context import Budget, Context, HoleKind, context
from caesura.server.options import Options

MOST_NEIGHBOURS = 32  # most neighbours of a job

Priority = Literal["invoked", "automatic", "speculative"]


@dataclass(frozen=True)
class Site:
    """The place to fill: `segments` lie between the prefix and the suffix of `around`. `draft` has a text for each hole
    to start from, masked by `masked_draft` if it comes from the document. `evidence` precedes `neighbours`, and is
    masked here; `neighbours` are masked already."""

    around: Context
    segments: Sequence[wire.Text | wire.Hole]
    neighbours: tuple[wire.Neighbour, ...] = ()
    draft: tuple[str, ...] | None = None
    evidence: tuple[wire.Neighbour, ...] = ()
    schemas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ask:
    """The other fields of a job, as in wire.Infill. `document` is a key for the engine's cache that does not reveal the
    path."""

    document: str
    priority: Priority
    candidates: int
    kind: Literal["complete", "fill", "edit"] = "complete"
    deadline_ms: float = 10_000.0
    seed: int = 0
    min_probability: float = 0.0
    effort: Literal["ghost", "full"] = "full"


def context_of(
    text: str,
    start: int,
    end: int,
    *,
    options: Options,
    language: str,
    tree: tree_sitter.Tree | None = None,
    kind: HoleKind | None = None,
    following: bool = False,
) -> Context:
    """The context of a hole, as large as the settings allow; see `context`."""
    found = budget(options)
    return context(text, start, end, language=language, tree=tree, budget=found, kind=kind, following=following)


def budget(options: Options) -> Budget:
    return Budget(options.context_before, options.context_after)


def infill(site: Site, ask: Ask) -> wire.Infill:
    """A job with a new id, without the secrets of the document, its schemas or its evidence."""
    prefix, segments, suffix = secrets.concealed(site.around.prefix, site.segments, site.around.suffix)
    evidence = tuple(wire.Neighbour(near.name, secrets.masked(near.text)) for near in site.evidence)
    return wire.Infill(
        job=job_id(),
        document=ask.document,
        kind=ask.kind,
        priority=ask.priority,
        deadline_ms=ask.deadline_ms,
        prefix=prefix,
        suffix=suffix,
        language=site.around.language,
        neighbours=(evidence + site.neighbours)[:MOST_NEIGHBOURS],
        segments=segments,
        candidates=ask.candidates,
        seed=ask.seed,
        min_probability=ask.min_probability,
        effort=ask.effort,
        missing=site.around.missing_from(segments),
        draft=site.draft,
        schemas=tuple(map(secrets.masked_schema, site.schemas)),
    )


def masked_draft(text: str, around: Context) -> str:
    """`text`, taken from the hole of `around`, with the secrets masked that its surroundings show."""
    start = len(around.prefix)
    return secrets.masked(around.prefix + text + around.suffix)[start : start + len(text)]
