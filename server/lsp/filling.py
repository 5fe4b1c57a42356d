"""A fill on request, from the editor's message to the edit. Ranges are in the editor's positions."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec
from lsprotocol import types
from msgspec import Meta

from caesura.server.fills.history import STALE
from caesura.server.fills.result import Events, FillResult, Progress
from caesura.server.fills.structured import Find, finder
from caesura.server.fills.task import MARKER, NoFill
from caesura.server.lsp.transport import Server
from caesura.server.session import Session
from caesura.server.text.document import Document, Span
from caesura.server.text.workspace import OpenDocument

FILL_SELECTION = "caesura.fillSelection"
FILL_HOLES = "caesura.fillHoles"
REPAIR = "caesura.repair"
ANOTHER = "caesura.another"
KEEP = "caesura.keep"
EDIT = "caesura.edit"
TITLES = {
    FILL_SELECTION: "Infill selection",
    FILL_HOLES: "Infill holes",
    REPAIR: "Repair this region",
    ANOTHER: "Another fill",
    KEEP: "Keep a part, fill the rest",
    EDIT: "Structured edit",
}

UInt31 = Annotated[int, Meta(ge=0, lt=2**31)]


class RequestPosition(msgspec.Struct, frozen=True):
    """A position of LSP, in the client's encoding."""

    line: UInt31
    character: UInt31


class RequestRange(msgspec.Struct, frozen=True):
    start: RequestPosition
    end: RequestPosition


class FillRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The argument of a command that fills. `ranges`: the texts to fill, or to search for holes or damage; those of
    `keep` lie in the text with the fill in it. `version`: refuse if the document has another. `id`: the fill that
    `another` and `keep` continue, by default the document's last. `preview`: answer with the edit instead of applying
    it. `snippet`: the text is a snippet that is being expanded, so `$1` in it is a hole. For a structured edit, `offer`
    is the title or the number of an offer, and `schema` the file of a JSON schema to use instead of the document's own.
    """

    uri: str
    ranges: Annotated[tuple[RequestRange, ...], Meta(max_length=256)] = ()
    version: int | None = None
    id: str | None = None
    marker: Annotated[str, Meta(min_length=1, max_length=64)] = MARKER
    preview: bool = False
    snippet: bool = False
    offer: Annotated[int, Meta(ge=0, lt=256)] | Annotated[str, Meta(max_length=256)] = 0
    schema: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


def begin(session: Session, command: str, request: FillRequest) -> tuple[OpenDocument, Events]:
    """The document of a request, and the events of its fill, which starts with the first of them. The text is read now.
    Raises NoFill."""
    opened = session.fillable(request.uri)
    if opened is None:
        raise NoFill("This document gets no fills: it is not open here, or the settings exclude it.")
    document, fills = opened.document, session.fills
    if request.version not in (None, document.version):
        raise NoFill(STALE)
    spans = [span_of(document, range) for range in request.ranges]
    if command not in TITLES:
        raise NoFill(f"There is no command {command}.")
    if command == FILL_HOLES:
        return opened, fills.holes(document, spans, request.marker, snippet=request.snippet)
    if command == ANOTHER:
        return opened, fills.another(document, request.id)
    if not spans:
        raise NoFill("No ranges were given; name the text in `ranges`.")
    if command == KEEP:
        filled = fills.filled(document, request.id)
        return opened, fills.keep(document, [span_of(filled, range) for range in request.ranges], request.id)
    if command == REPAIR:
        return opened, fills.repair(document, min(spans)[0], max(end for _, end in spans))
    if command == EDIT:
        if not session.settings.options.structured:
            raise NoFill("Structured edits are off; turn on the setting 'structured'.")
        return opened, session.edits.edit(document, spans, find(session, document, request.schema), request.offer)
    return opened, fills.selection(document, spans, session.project.schema(opened))


def find(session: Session, document: Document, schema: str | None = None) -> Find:
    """A Find for a document, with the schema in the file `schema`, else its own."""
    return finder(document.uri, document.language, session.project.schema_files, schema)


async def result_of(
    session: Session, opened: OpenDocument, events: Events, on_progress: Callable[[Progress], None] = lambda _: None
) -> FillResult:
    """Run a fill to its result. Raises NoFill, also if the document was closed meanwhile, or EngineError."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, FillResult):
                if session.workspace.get(opened.document.uri) is not opened:
                    raise NoFill(STALE)
                return event
            on_progress(event)
    raise AssertionError("a fill ends in a result, or raises")


def workspace_edit(can: types.ClientCapabilities, document: Document, result: FillResult) -> types.WorkspaceEdit:
    """The result as one edit, which the user undoes in one step."""
    edits = [types.TextEdit(lsp_range(document, (start, end)), text) for start, end, text in result.edits]
    able = can.workspace.workspace_edit if can.workspace else None
    if able and able.document_changes:
        target = types.OptionalVersionedTextDocumentIdentifier(document.uri, result.version)
        return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(target, edits)])
    return types.WorkspaceEdit(changes={document.uri: edits})


def log(server: Server, message: str) -> None:
    server.window_log_message(types.LogMessageParams(types.MessageType.Info, f"Caesura: {message}"))


def request_for(document: Document, spans: Sequence[Span]) -> FillRequest:
    return FillRequest(document.uri, tuple(range_of(document, span) for span in spans), document.version)


def span_of(document: Document, range: RequestRange | types.Range) -> Span:
    start = document.offset((range.start.line, range.start.character))
    end = document.offset((range.end.line, range.end.character))
    return min(start, end), max(start, end)


def range_of(document: Document, span: Span) -> RequestRange:
    start, end = (RequestPosition(*document.position(offset)) for offset in span)
    return RequestRange(start, end)


def lsp_range(document: Document, span: Span) -> types.Range:
    start, end = (types.Position(*document.position(offset)) for offset in span)
    return types.Range(start, end)
