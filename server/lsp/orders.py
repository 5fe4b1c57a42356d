"""What a command that fills is asked: the one argument of each, in the editor's positions."""

from typing import Annotated

import msgspec
from msgspec import Meta

from caesura.server.fills.gaps import MARKER

Count = Annotated[int, Meta(ge=0, lt=2**31)]


class Position(msgspec.Struct, frozen=True):
    """As in LSP, in the client's encoding."""

    line: Count
    character: Count


class Range(msgspec.Struct, frozen=True):
    start: Position
    end: Position


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ranges` are what to fill, or what to look for holes or damage in; those of `keep` lie in the text with the fill
    in it. `version`: refuse if the document has another. `id`: the fill that `another` and `keep` go on from, else the
    document's last one. `preview`: answer with the edit instead of applying it. Of a structured edit, `offer` is the
    title or the number of the one that is wanted, and `schema` the file of a JSON schema in
    the place of the document's own."""

    uri: str
    ranges: Annotated[tuple[Range, ...], Meta(max_length=256)] = ()
    version: int | None = None
    id: str | None = None
    marker: Annotated[str, Meta(min_length=1, max_length=64)] = MARKER
    preview: bool = False
    offer: Annotated[int, Meta(ge=0, lt=256)] | Annotated[str, Meta(max_length=256)] = 0
    schema: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
