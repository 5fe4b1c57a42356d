"""The user's settings: from an editor's JSON to frozen Options. A setting that is wrong keeps its default."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from caesura import wire


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings by their camelCase names, in `initializationOptions` or under `caesura` in the workspace's settings.

    `model` and `device` count when the server starts. `deadline_ms` bounds how long a request waits for its answer;
    `context_before` and `context_after` are code points shown to the model.
    """

    enable: bool = True
    model: Annotated[str, Meta(min_length=1, max_length=256)] = "embedded"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deadline_ms: Annotated[float, Meta(ge=1, le=10_000)] = 250.0
    min_confidence: Annotated[float, Meta(ge=0, le=1)] = 0.25
    max_tokens: Annotated[int, Meta(ge=1, le=wire.MAX_SLOTS)] = 64
    context_before: Annotated[int, Meta(ge=0, le=wire.MAX_CONTEXT)] = 6000
    context_after: Annotated[int, Meta(ge=0, le=wire.MAX_CONTEXT)] = 2000


def parse(settings: object) -> tuple[Options, list[str]]:
    """Options, and a sentence for each setting that was not understood."""
    if settings is None:
        return Options(), []
    if not isinstance(settings, Mapping):
        return Options(), ["The settings are not an object; all defaults are used."]
    fields = {field.encode_name: field for field in msgspec.structs.fields(Options)}
    good: dict[str, object] = {}
    problems = [f"Unknown setting {key!r} was ignored." for key in settings if key not in fields]
    for key in fields.keys() & settings.keys():
        try:
            good[fields[key].name] = msgspec.convert(settings[key], fields[key].type)
        except msgspec.ValidationError as error:
            problems.append(f"Setting {key!r} keeps its default {fields[key].default!r}: {error}.")
    return Options(**good), problems  # type: ignore[arg-type]  # each value was converted to its field's type
