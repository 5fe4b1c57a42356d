"""The user's settings: an editor's JSON becomes frozen Options. An invalid setting keeps its default.

The descriptions are the documentation: the table in docs/configuration.md is made from them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from caesura import model_store, wire


@dataclass(frozen=True)
class Mode:
    """How readily suggestions appear. `chance` is the minimum probability of a suggestion; `backs_off`: raise it after
    rejected ones; `automatic`: suggest while the user types."""

    chance: float
    backs_off: bool = True
    automatic: bool = True


OTHERS = ("editorInfo", "editorPluginInfo")  # sent by Copilot's plugins in `initializationOptions`

MODES = {
    "eager": Mode(chance=0.2, backs_off=False),
    "balanced": Mode(chance=0.5),
    "quiet": Mode(chance=0.7),
    "manual": Mode(chance=0.05, backs_off=False, automatic=False),
}


def _about(description: str, **bounds: Any) -> Meta:
    return Meta(description=description, **bounds)


class SchemaFor(msgspec.Struct, frozen=True, rename="camel"):
    """A JSON schema and its files, in the form of VS Code's `json.schemas`."""

    file_match: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], _about("globs of the files that the schema is for")
    ] = ()
    url: Annotated[
        str, _about("the schema's name in a document's `$schema`; without `schema`, also its file", max_length=4096)
    ] = ""
    schema: Annotated[dict[str, Any] | bool | str | None, _about("the schema itself, or its file")] = None


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """The settings, in camelCase in `initializationOptions` or under `caesura` in the workspace's settings."""

    enable: Annotated[bool, _about("suggest at all; off: every answer is empty and no job is started")] = True
    mode: Annotated[
        Literal["eager", "balanced", "quiet", "manual"],
        _about(
            "how readily suggestions appear: `eager` shows nearly all; `balanced` and `quiet` show only likely ones,"
            " and fewer for a while after you reject some; `manual` shows them only on request"
        ),
    ] = "balanced"
    model: Annotated[
        str,
        _about(
            "the model, by name (`coder`, `small` or another from `caesura models`), folder or GGUF file; `default`:"
            " `coder` if installed, else `small`; read when the server starts",
            min_length=1,
            max_length=256,
        ),
    ] = model_store.DEFAULT
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _about("the device of other models; `coder` and `small` always run on the CPU; read when the server starts"),
    ] = "auto"
    deadline_ms: Annotated[
        float,
        _about(
            "milliseconds after which a request is answered with the locked whole words, if they are long enough;"
            " otherwise it waits for the fill, or for a newer edit or request",
            ge=1,
            le=10_000,
        ),
    ] = 250.0
    min_confidence: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        _about("minimum probability of a suggestion; it is cut where its probability falls below; `null`: the mode's"),
    ] = None
    least_keys: Annotated[
        int,
        _about(
            "hide suggestions that save fewer keys, not counting the word at the cursor, unless they end the line or"
            " were requested; 0 shows all",
            ge=0,
            le=80,
        ),
    ] = 4
    max_tokens: Annotated[
        int,
        _about(
            "maximum tokens of a block, and of ghost text at the end of a line of code; other lines and spans have at"
            " most 32",
            ge=1,
            le=wire.MAX_SLOTS,
        ),
    ] = 64
    candidates: Annotated[int, _about("maximum number of suggestions to choose from", ge=1, le=8)] = 3
    context_before: Annotated[
        int,
        _about(
            "characters of context before the cursor; `coder` and `small` read 768 tokens in all",
            ge=0,
            le=wire.MAX_CONTEXT,
        ),
    ] = 6000
    context_after: Annotated[
        int,
        _about(
            "characters of context after the cursor; they get at most a third of those tokens",
            ge=0,
            le=wire.MAX_CONTEXT,
        ),
    ] = 2000
    languages: Annotated[
        dict[str, bool], _about('languages to turn off, `{"markdown": false}`, or on; `"*"` means all others')
    ] = {}
    in_comments: Annotated[bool, _about("suggest in comments")] = True
    in_strings: Annotated[bool, _about("suggest in strings")] = True
    warm: Annotated[
        bool,
        _about(
            "start a fill at each edit, and prefill the context where the cursor rests; off: start at the request,"
            " which saves power"
        ),
    ] = True
    speculate: Annotated[bool, _about("compute the text after the shown suggestion in idle time")] = True
    next_edit: Annotated[
        Literal["off", "quiet", "eager", "manual"],
        _about(
            "propose to rename the uses of a name that you renamed, and to repeat your last edit at similar places:"
            " `quiet` where the model is sure, `eager` at more, `manual` only on request, `off` never"
        ),
    ] = "quiet"
    structured: Annotated[
        bool, _about("in JSON and Markdown, suggest only text that keeps the document valid; offer structured edits")
    ] = True
    schemas: Annotated[
        tuple[SchemaFor, ...],
        _about(
            "JSON schemas, each `{fileMatch, url, schema}`: globs of its files, its name in a document's `$schema`,"
            " the schema or its file; nothing is fetched"
        ),
    ] = ()
    syntax_gate: Annotated[bool, _about("hide suggestions that add syntax errors")] = True
    popup: Annotated[
        Literal["auto", "on", "off"],
        _about(
            "suggest in the completion popup, for editors without ghost text; `auto`: in editors that do not announce"
            " inline completion, until they request it; read when the server starts"
        ),
    ] = "auto"
    trusted: Annotated[bool, _about("trust the workspace; off: read only open documents")] = True
    ignore: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...],
        _about(
            "globs of files that get no suggestions and that no model reads, in addition to `.caesuraignore`; `!`"
            " before a glob reveals files that are hidden by default, in a trusted workspace only"
        ),
    ] = ()
    stats: Annotated[
        bool,
        _about(
            "count shown and accepted suggestions and time the answers, in files on this machine, for `caesura stats`"
            " and `caesura doctor`"
        ),
    ] = True

    @property
    def chance(self) -> float:
        """The minimum probability of a suggestion."""
        return MODES[self.mode].chance if self.min_confidence is None else self.min_confidence

    def allows(self, language: str) -> bool:
        return self.languages.get(language, self.languages.get("*", True))


@dataclass
class Settings:
    """The options of a session as they are now."""

    options: Options = field(default_factory=Options)


def without(options: Options, off: Collection[str]) -> Options:
    """The options with the settings of these names off, those that can be."""
    known = {field.encode_name: field.name for field in msgspec.structs.fields(Options)}
    switches = {known[name]: False for name in off if isinstance(getattr(options, known.get(name, ""), None), bool)}
    next_edit: dict[str, object] = {"next_edit": "off"} if "nextEdit" in off else {}
    return msgspec.structs.replace(options, **switches, **next_edit)


def parse(settings: object) -> tuple[Options, list[str]]:
    """The options, and a sentence for each setting that was ignored."""
    if settings is None:
        return Options(), []
    if not isinstance(settings, Mapping):
        return Options(), ["The settings are not an object; all defaults are used."]
    fields = {field.encode_name: field for field in msgspec.structs.fields(Options)}
    good: dict[str, object] = {}
    problems = [f"Unknown setting {key!r} was ignored." for key in settings if key not in fields and key not in OTHERS]
    for key, known in fields.items():
        try:
            if key in settings:
                good[known.name] = msgspec.convert(settings[key], known.type)
        except msgspec.ValidationError as error:
            default = msgspec.json.encode(getattr(Options(), known.name)).decode()
            problems.append(f"Setting {key!r} keeps its default {default}: {error}.")
    return Options(**good), problems  # type: ignore[arg-type]  # each value was converted to its field's type
