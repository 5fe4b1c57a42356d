"""The user's settings: from an editor's JSON to frozen Options. A setting that is wrong keeps its default.

The descriptions here are the documentation: docs/configuration.md has a table made from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from caesura import model_store, wire


@dataclass(frozen=True)
class Mode:
    """How forward the suggestions are. `chance` is the probability asked of what is shown; `backs_off`: ask more of it
    after suggestions that were not taken; `automatic`: also without being asked for."""

    chance: float
    backs_off: bool = True
    automatic: bool = True


OTHERS = ("editorInfo", "editorPluginInfo")  # what Copilot's plugins send along with `initializationOptions`

MODES = {
    "eager": Mode(chance=0.2, backs_off=False),
    "balanced": Mode(chance=0.5),
    "quiet": Mode(chance=0.7),
    "manual": Mode(chance=0.05, backs_off=False, automatic=False),
}


def _about(description: str, **bounds: Any) -> Meta:
    return Meta(description=description, **bounds)


class SchemaFor(msgspec.Struct, frozen=True, rename="camel"):
    """A JSON schema and the files that it is for, as VS Code's `json.schemas` has them."""

    file_match: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], _about("globs of the files that it is for")
    ] = ()
    url: Annotated[
        str, _about("what documents name in `$schema`; without `schema`, also the file that holds it", max_length=4096)
    ] = ""
    schema: Annotated[dict[str, Any] | bool | str | None, _about("the schema itself, or the file that holds it")] = None


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Settings by their camelCase names, in `initializationOptions` or under `caesura` in the workspace's settings."""

    enable: Annotated[bool, _about("off: every request gets an empty list and no job is started")] = True
    mode: Annotated[
        Literal["eager", "balanced", "quiet", "manual"],
        _about(
            "how readily suggestions appear: `eager` shows nearly all; `balanced` and `quiet` show likelier ones"
            " only, and fewer for a while after you reject some; `manual` shows only what you ask for"
        ),
    ] = "balanced"
    model: Annotated[
        str,
        _about(
            "a model's name (`coder`, `small`, one that `caesura models` lists), its folder or GGUF file; `default`:"
            " `coder` where it is installed, else `small`; read when the server starts",
            min_length=1,
            max_length=256,
        ),
    ] = model_store.DEFAULT
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _about("where another model runs; `coder` and `small` always run on the CPU; read when the server starts"),
    ] = "auto"
    deadline_ms: Annotated[
        float,
        _about(
            "after this time a request gets the whole words that are locked, if they are long enough; otherwise it"
            " waits for the fill, or for a newer edit or request",
            ge=1,
            le=10_000,
        ),
    ] = 250.0
    min_confidence: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        _about(
            "the least probability of a suggestion, which is cut where it would fall below; `null`: that of the mode"
        ),
    ] = None
    least_keys: Annotated[
        int,
        _about(
            "hide suggestions that save fewer keys than this, not counting the word at the cursor, unless they end the"
            " line or were asked for; 0 shows all",
            ge=0,
            le=80,
        ),
    ] = 4
    max_tokens: Annotated[
        int,
        _about(
            "the most tokens of a block, and of ghost text at the end of a line of code; other lines and spans have"
            " at most 32",
            ge=1,
            le=wire.MAX_SLOTS,
        ),
    ] = 64
    candidates: Annotated[int, _about("suggestions to choose from, where there are several", ge=1, le=8)] = 3
    context_before: Annotated[
        int,
        _about("characters before the cursor; `coder` and `small` read 768 tokens in all", ge=0, le=wire.MAX_CONTEXT),
    ] = 6000
    context_after: Annotated[
        int, _about("characters after the cursor; they get at most a third of those tokens", ge=0, le=wire.MAX_CONTEXT)
    ] = 2000
    languages: Annotated[
        dict[str, bool], _about('language ids to switch off, `{"markdown": false}`, or on; `"*"` stands for all others')
    ] = {}
    in_comments: Annotated[bool, _about("suggest in comments")] = True
    in_strings: Annotated[bool, _about("suggest in strings")] = True
    warm: Annotated[
        bool,
        _about(
            "begin to denoise at each edit, and to read the context where the cursor rests; off: at the request, which"
            " saves power"
        ),
    ] = True
    speculate: Annotated[bool, _about("in idle time, compute what comes after the suggestion that is shown")] = True
    structured: Annotated[
        bool, _about("in JSON and Markdown, suggest only what keeps the document valid, and offer structured edits")
    ] = True
    schemas: Annotated[
        tuple[SchemaFor, ...],
        _about(
            "JSON schemas, `{fileMatch, url, schema}` each: the globs of the files that it is for, the name that"
            " documents give it in `$schema`, the schema or its file; nothing is fetched"
        ),
    ] = ()
    syntax_gate: Annotated[bool, _about("hide suggestions that break the syntax around them")] = True
    neighbours: Annotated[
        bool,
        _about(
            "show the model related parts of other files of the workspace; off by default: `small` did not get"
            " measurably better"
        ),
    ] = False
    popup: Annotated[
        Literal["auto", "on", "off"],
        _about(
            "suggest in the completion popup, for editors without ghost text; `auto`: in those that do not announce"
            " inline completion, until they ask for it; read when the server starts"
        ),
    ] = "auto"
    trusted: Annotated[bool, _about("whether the workspace is trusted; off: no other file is looked at")] = True
    ignore: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...],
        _about(
            "globs of files that get no suggestions and that no model reads, in addition to those of"
            " `.caesuraignore`; `!` before a glob shows files that are hidden by default, in a trusted workspace only"
        ),
    ] = ()
    stats: Annotated[
        bool,
        _about(
            "count what was shown and taken and time the answers, in files on this machine: `caesura stats` and"
            " `caesura doctor` show them"
        ),
    ] = True

    @property
    def chance(self) -> float:
        """The probability asked of what is shown."""
        return MODES[self.mode].chance if self.min_confidence is None else self.min_confidence

    def allows(self, language: str) -> bool:
        return self.languages.get(language, self.languages.get("*", True))


def parse(settings: object) -> tuple[Options, list[str]]:
    """Options, and a sentence for each setting that was not understood."""
    if settings is None:
        return Options(), []
    if not isinstance(settings, Mapping):
        return Options(), ["The settings are not an object; all defaults are used."]
    fields = {field.encode_name: field for field in msgspec.structs.fields(Options)}
    good: dict[str, object] = {}
    problems = [f"Unknown setting {key!r} was ignored." for key in settings if key not in fields and key not in OTHERS]
    for key, field in fields.items():
        try:
            if key in settings:
                good[field.name] = msgspec.convert(settings[key], field.type)
        except msgspec.ValidationError as error:
            default = msgspec.json.encode(getattr(Options(), field.name)).decode()
            problems.append(f"Setting {key!r} keeps its default {default}: {error}.")
    return Options(**good), problems  # type: ignore[arg-type]  # each value was converted to its field's type
