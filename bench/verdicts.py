"""Jobs and what came of them: a document with its fills is valid or it is not, whoever filled it."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema

from caesura import wire

from documents import Document  # isort: skip  (next to this script)
from latency import Report, spread  # isort: skip
from places import Edit  # isort: skip

_STRING = r'("(?:[^"\\]|\\.)*")'
_COMMENT = re.compile(_STRING + r"|//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING = re.compile(_STRING + r"|,(?=\s*[}\]])")


class Invalid(Exception):
    """Why a document is not valid."""


def values(text: str, language: str) -> tuple[list[Any], int]:
    """The values of a document, and how many keys stand twice in an object. Raises Invalid."""
    if language == "jsonc":
        text = _COMMENT.sub(lambda match: match[1] or " ", text)
        text = _TRAILING.sub(lambda match: match[1] or "", text)
    twice = 0

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice += len(found) - len(dict(found))
        return dict(found)

    def constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    lines = [line for line in re.split(r"\r?\n", text) if line.strip()] if language == "jsonl" else [text]
    try:
        return [json.loads(line, object_pairs_hook=pairs, parse_constant=constant) for line in lines], twice
    except (ValueError, RecursionError) as error:
        raise Invalid(str(error)) from error


@lru_cache(maxsize=4096)
def validator(schema: str) -> Any:
    loaded = json.loads(schema)
    return jsonschema.validators.validator_for(loaded, jsonschema.Draft202012Validator)(loaded)


def conforms(value: Any, schema: str) -> bool:
    return bool(validator(schema).is_valid(value))


@dataclass(frozen=True)
class Verdict:
    """What came of a job: `state` is valid, checked (parses; the schema is not in the grammar as a whole), expired,
    refused or invalid. `why` says more of the last two. `conforms` of a checked one: jsonschema agrees."""

    state: str
    holes: int = 0
    why: str = ""
    conforms: bool | None = None
    text: str = ""


def filled(document: Document, edit: Edit, fills: Sequence[str]) -> str:
    left = iter(fills)
    middle = "".join(part.text if isinstance(part, wire.Text) else next(left) for part in edit.segments)
    return document.text[: edit.start] + middle + document.text[edit.end :]


def judged(document: Document, edit: Edit, events: Sequence[wire.EngineMessage]) -> Verdict:
    last = events[-1]
    holes = sum(isinstance(segment, wire.Hole) for segment in edit.segments)
    if isinstance(last, wire.Failed):
        return Verdict("expired" if last.code == "expired" else "refused", holes, last.message)
    assert isinstance(last, wire.Done), last
    fills = [fill.text for fill in last.holes]
    for event in events[:-1]:
        assert isinstance(event, wire.Locked), event
        for fill, final in zip(event.holes, fills, strict=True):
            if fill.locked and fill.locked[0][0] == 0 and not final.startswith(fill.text[: fill.locked[0][1]]):
                return Verdict("invalid", holes, f"locked {fill.text!r} and answered {final!r}")
    text = filled(document, edit, fills)
    before, twice_before = values(document.text, document.language) if document.text.strip() else ([None], 0)
    try:
        found, twice = values(text, document.language)
        if twice > twice_before:
            raise Invalid("a key stands twice")
        added = edit.offer is not None and edit.offer.title.startswith("Add a line")
        if len(found) != len(before) + added:
            raise Invalid("a line more or less")
        agrees = conforms(found[0], document.schema) if edit.ruled and document.schema else None
        if last.level not in ("valid", "checked"):
            raise Invalid(f"the engine says {last.level!r}")
        level = "checked" if edit.offer and edit.offer.level == "checked" else last.level
        if level == "valid" and agrees is False and conforms_before(document):
            raise Invalid("it does not conform to its schema")
        if edit.offer and (sentence := edit.offer.check(text)):
            return Verdict("refused", holes, f"the server: {sentence}", agrees, text)
        if edit.offer and agrees is False and conforms_before(document):
            raise Invalid("the server does not see that it does not conform")
    except Invalid as invalid:
        return Verdict("invalid", holes, str(invalid), text=text)
    return Verdict(level, holes, conforms=agrees, text=text)


def conforms_before(document: Document) -> bool:
    """Whether a schema is to hold: an empty document has nothing that does not conform."""
    assert document.schema is not None
    if not document.text.strip():
        return True
    return all(conforms(value, document.schema) for value in values(document.text, document.language)[0])


@dataclass(frozen=True)
class Asked:
    document: Document
    edit: Edit
    deadline_ms: float


def job(number: int, asked: Asked) -> wire.Infill:
    text = asked.document.text
    return wire.Infill(
        job=str(number),
        document=str(number),
        kind="edit",
        priority="invoked",
        deadline_ms=asked.deadline_ms,
        prefix=text[: asked.edit.start],
        suffix=text[asked.edit.end :],
        language=asked.document.language,
        segments=asked.edit.segments,
        schemas=asked.edit.schemas,
        neighbours=asked.edit.offer.evidence if asked.edit.offer else (),
        seed=number,
    )


@dataclass
class Tally:
    """Verdicts by what they are of."""

    jobs: Counter[str] = field(default_factory=Counter)
    holes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    conform: Counter[bool] = field(default_factory=Counter)
    ms: list[float] = field(default_factory=list)

    def add(self, asked: Asked, verdict: Verdict) -> None:
        self.jobs[verdict.state] += 1
        self.holes[verdict.state] += verdict.holes
        if verdict.state == "refused":
            self.refusals[verdict.why] += 1
        if verdict.state == "checked" and verdict.conforms is not None:
            self.conform[verdict.conforms] += 1
        if verdict.state == "invalid":
            self.failures.append(
                f"{asked.document.name}: {asked.edit.kind}: {verdict.why}: {asked.edit} {verdict.text!r}"
            )

    def report(self) -> Report:
        return {
            "jobs": dict(self.jobs),
            "holes": dict(self.holes),
            "refusals": dict(self.refusals.most_common(8)),
            "failures": self.failures[:5],
            "checked_that_conform": f"{self.conform[True]} of {self.conform.total()}",
            "ms": spread(self.ms),
        }
