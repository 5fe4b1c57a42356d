"""The messages between a client (an LSP process, the command line) and the engine, and their contract.

One msgpack frame a message over ROUTER (supervisor) / DEALER (client). Only text and spans cross: never token ids,
tensors or pickles. Every offset is in Unicode code points within the message's own strings.

Contract of a job: any number of `Locked`, then exactly one `Done`, `Failed` or `Busy` (not taken: no `Locked` before
it), and nothing after it. `seq` counts up from 0. Each event is cumulative: it replaces the one before, and its locked
text extends the locked text before. A newer job of the same (peer, document, kind) supersedes the older one. `Cancel`
is obeyed at the next step boundary. `deadline_ms` is relative to arrival: an expired job never reaches the model, and
at the deadline the best canvas so far is the answer.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL = 2
MAX_FRAME = 16 << 20  # bytes; larger frames are refused by the socket (MAXMSGSIZE)
MAX_CONTEXT = 1 << 20  # code points of prefix and of suffix: 256K tokens and some
MAX_NEIGHBOUR = 65_536  # code points
MAX_HOLES = 16  # of a job
MAX_SLOTS = 256  # tokens of one hole
MAX_SCHEMAS = 4  # of a job
MAX_TOKENS = 2 * MAX_SLOTS  # of a fill: the start of its text may share a token with the prefix, and take a few more

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(max_length=256)]
Context = Annotated[str, Meta(max_length=MAX_CONTEXT)]
Around = Annotated[str, Meta(max_length=65_536)]  # of a grammar: what stands beside a hole, a key, a pattern
Blank = Annotated[str, Meta(max_length=16)]  # of a layout
Schema = Annotated[str, Meta(max_length=MAX_CONTEXT)]  # as JSON text
FillText = Annotated[str, Meta(max_length=16_384)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Milliseconds = Annotated[float, Meta(ge=0, le=600_000)]
Seconds = Annotated[float, Meta(ge=0, le=2**32)]
Mebibytes = Annotated[float, Meta(ge=0, le=2**32)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Offset = Annotated[int, Meta(ge=0, le=16_384)]
Stages = Annotated[dict[Annotated[str, Meta(max_length=16)], Milliseconds], Meta(max_length=16)]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    pass


# Parts of messages


class Text(_Struct, frozen=True, tag="text"):
    """A segment of fixed text: locked on the canvas, never written."""

    text: Context


class Json(_Struct, frozen=True, tag="json"):
    """JSON text: what a hole holds, between `typed` and `then`, is `start`.

    `members` and `elements` are those of a container, `least` to `most` of them, without its brackets and without a
    comma at either end; `key` is a quoted string. `taken` are the keys that the object has outside of the hole.
    With `indent` a container has all on one line or each item on its own; `level` is that of the line where a value
    would close its bracket, or of the container's. `loose` is any white space in the place of this layout.
    `schema` is a place in the job's `schemas`, and `at` a JSON pointer into it: to the subschema of the value, or of
    the container of members, elements or key.
    """

    start: Literal["value", "members", "elements", "key"] = "value"
    typed: Around = ""
    then: Around = ""
    least: Annotated[int, Meta(ge=1, le=1024)] = 1
    most: Annotated[int, Meta(ge=1, le=1024)] = 64
    taken: Annotated[tuple[Around, ...], Meta(max_length=65_536)] = ()
    indent: Blank | None = None
    level: Annotated[int, Meta(ge=0, le=1024)] = 0
    colon: Blank = ": "
    comma: Blank = ", "
    newline: Literal["\n", "\r\n", "\r"] = "\n"
    loose: bool = False
    schema: Annotated[int, Meta(ge=0, lt=MAX_SCHEMAS)] | None = None
    at: Annotated[str, Meta(max_length=4096)] = ""


class Pattern(_Struct, frozen=True, tag="pattern"):
    """Text that matches `regex` from end to end: ECMA-262 syntax, characters are code points."""

    regex: Around


class Hole(_Struct, frozen=True, tag="hole"):
    """A segment to fill with at most `max_tokens` tokens. `line` ends before a line break, `block` may hold several
    lines, `span` is bounded by the text after it on the same line, `auto` lets the engine decide from the context.
    With a `grammar` the fill is in its language, whatever the model says and whenever the job ends."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = 32
    kind: Literal["line", "block", "span", "auto"] = "auto"
    grammar: Json | Pattern | None = None


class Neighbour(_Struct, frozen=True):
    """Text from elsewhere that helps. `name` is the line shown to the model above it: a comment in the language of
    `text` that says where it is from, never a path outside the workspace."""

    name: Name
    text: Annotated[str, Meta(max_length=MAX_NEIGHBOUR)]


class Fill(_Struct, frozen=True):
    """The state of one hole: the best guess so far, which parts of it are locked, and how sure the engine is.

    `locked` holds half-open, ascending spans of `text`; `open` counts the slots that are not yet decided.
    `probabilities` has for each token, in order, its end in `text` and how likely the model found it behind what stands
    before it: ends ascend, and the last is the end of `text`. Tokens that share a character are one.
    """

    text: FillText
    locked: Annotated[tuple[tuple[Offset, Offset], ...], Meta(max_length=MAX_SLOTS)] = ()
    confidence: Probability = 0.0
    open: Count = 0
    probabilities: Annotated[tuple[tuple[Offset, Probability], ...], Meta(max_length=MAX_TOKENS)] = ()


class Tokens(_Struct, frozen=True):
    """Where the tokens of the answer came from (all tokens of a plain diffusion fill count as `canvas`)."""

    canvas: Count = 0
    lookup: Count = 0
    left_to_right: Count = 0


class Timings(_Struct, frozen=True):
    """Milliseconds by stage: waiting for a step, writing context KV, denoise steps, from arrival to the last event."""

    queue_ms: Milliseconds = 0.0
    prefill_ms: Milliseconds = 0.0
    denoise_ms: Milliseconds = 0.0
    first_lock_ms: Milliseconds | None = None
    total_ms: Milliseconds = 0.0


# Client to engine


class Hello(_Message, frozen=True):
    protocol: Count
    build: Name
    client: Name


class Infill(_Message, frozen=True, kw_only=True):
    """One job. `document` is an opaque key (never a path); `segments` lie between `prefix` and `suffix`.

    `neighbours` come best first. `draft` holds one text per hole to warm-start from. `method` says how the holes are
    filled and `sampler` what a step of a canvas accepts, by file name, `prompt` how the context is shown, by name:
    without them the model's own are used. `schemas` are those that grammars refer to. `seed` 0 asks
    for the best answer, any other for another plausible one. Where drafts are verified, text that is less likely than
    `least` to be right is not followed any further: the answer may end there.
    """

    job: Id
    document: Id
    kind: Literal["complete", "fill", "edit"] = "complete"
    priority: Literal["invoked", "automatic", "speculative"] = "automatic"
    deadline_ms: Milliseconds = 10_000.0
    prefix: Context
    suffix: Context
    language: Name = ""
    neighbours: Annotated[tuple[Neighbour, ...], Meta(max_length=32)] = ()
    segments: Annotated[tuple[Text | Hole, ...], Meta(min_length=1, max_length=64)]
    candidates: Annotated[int, Meta(ge=1, le=8)] = 1
    method: Name | None = None
    sampler: Name | None = None
    prompt: Name | None = None
    seed: Count = 0
    least: Annotated[float, Meta(ge=0, le=1)] = 0.0
    draft: Annotated[tuple[FillText, ...], Meta(max_length=MAX_HOLES)] | None = None
    schemas: Annotated[tuple[Schema, ...], Meta(max_length=MAX_SCHEMAS)] = ()


class Cancel(_Message, frozen=True):
    job: Id


class Ping(_Message, frozen=True):
    pass


class Query(_Message, frozen=True):
    """Ask for `Status`."""


class Stop(_Message, frozen=True):
    """Ask the shared engine to finish and exit (`caesura stop`)."""


class Bye(_Message, frozen=True):
    pass


# Engine to client


class Welcome(_Message, frozen=True):
    """The answer to `Hello`, sent again whenever `state` changes. `message` says why it is `failed`."""

    protocol: Count
    build: Name
    model: Name
    device: Name
    state: Literal["loading", "ready", "failed"]
    message: Name = ""


class Locked(_Message, frozen=True):
    job: Id
    seq: Count
    holes: Annotated[tuple[Fill, ...], Meta(max_length=MAX_HOLES)]
    step: Count
    of: Count


class Done(_Message, frozen=True, kw_only=True):
    """The answer. `alternatives` holds further candidates, best first, each with one `Fill` per hole.

    `level` is what is sure of the holes that have a grammar: they are `valid`, or they have to be `checked`, since a
    schema asks for more than the grammar holds. If `approximate`, some forwards took keys and values of earlier ones
    for text far from the holes."""

    job: Id
    seq: Count
    holes: Annotated[tuple[Fill, ...], Meta(max_length=MAX_HOLES)]
    alternatives: Annotated[tuple[tuple[Fill, ...], ...], Meta(max_length=8)] = ()
    steps: Count
    tokens: Tokens
    timings: Timings
    stop: Literal["complete", "deadline", "steps"]
    level: Literal["", "valid", "checked"] = ""
    approximate: bool = False


class Failed(_Message, frozen=True):
    """The job has no answer. `message` is one sentence for a person; the cause is in the engine's log."""

    job: Id
    code: Literal["superseded", "cancelled", "expired", "invalid", "engine_lost", "unavailable"]
    message: Name = ""


class Busy(_Message, frozen=True):
    """The queue is full: the job was not taken and nothing else will be sent for it."""

    job: Id


class Pong(_Message, frozen=True):
    load: Count


class Status(_Message, frozen=True, kw_only=True):
    """What `caesura status` prints. Memory in MiB, on Linux with shared pages divided; `p50_ms`/`p95_ms` by stage over
    the last jobs."""

    state: Literal["loading", "ready", "failed", "idle"]
    build: Name
    model: Name
    device: Name
    pid: Count
    worker_pid: Count | None = None
    uptime_s: Seconds
    peers: Count
    clients: Annotated[tuple[Name, ...], Meta(max_length=256)] = ()  # what the peers call themselves
    live: Count = 0
    queued: Count = 0
    done: Count = 0
    dropped: Count = 0
    restarts: Count = 0
    memory_mb: Mebibytes = 0.0
    worker_memory_mb: Mebibytes | None = None
    p50_ms: Stages = {}
    p95_ms: Stages = {}
    message: Name = ""


ClientMessage = Hello | Infill | Cancel | Ping | Query | Stop | Bye
EngineMessage = Welcome | Locked | Done | Failed | Busy | Pong | Status

WireError = msgspec.ValidationError  # raised by both decoders on a well-formed frame that breaks the schema


class Impossible(ValueError):
    """A job that cannot be done as it is; the message is a sentence for whoever asked, and `Failed` with `invalid`."""


class _About(msgspec.Struct, frozen=True):
    job: Id


class EventHead(msgspec.Struct, frozen=True):
    """The parts of an event that the supervisor reads: its kind, its job and, of a `Done`, the timings."""

    type: Literal["locked", "done", "failed", "busy"]
    job: Id
    timings: Timings | None = None


_encoder = msgspec.msgpack.Encoder()
_client_decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_engine_decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
_head_decoder: msgspec.msgpack.Decoder[EventHead] = msgspec.msgpack.Decoder(EventHead)


def encode(message: ClientMessage | EngineMessage) -> bytes:
    """One msgpack frame."""
    return _encoder.encode(message)


def decode_client(frame: bytes) -> ClientMessage:
    """A frame from a client. Raises msgspec.DecodeError (its child WireError on a schema violation)."""
    try:
        return _client_decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:  # the others that msgspec lets through
        raise msgspec.DecodeError(str(error)) from error


def decode_engine(frame: bytes) -> EngineMessage:
    """A frame from the engine. Raises msgspec.DecodeError (its child WireError on a schema violation)."""
    try:
        return _engine_decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_head(frame: bytes) -> EventHead:
    """The head of a job's event; the rest of the frame is skipped. Raises msgspec.DecodeError."""
    try:
        return _head_decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def job_of(frame: bytes) -> str | None:
    """The job that a frame is about, however wrong the rest of it is."""
    try:
        return msgspec.msgpack.decode(frame, type=_About).job
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
