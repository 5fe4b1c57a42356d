"""The messages between a client (a language server, the command line) and the engine, and their contract.

Each message is one msgpack frame, over ROUTER (supervisor) and DEALER (client). Frames carry text and spans, never
token ids, tensors or pickles. Offsets count Unicode code points within the message's own strings.

A job gets any number of `Locked`, then exactly one `Done` or `Failed`, or only a `Busy` if it was not accepted. `seq`
counts up from 0. Each event replaces the one before, and its locked text extends the locked text before. A newer job
of the same (peer, document, kind) supersedes the older one, and continues it if only priority and deadline differ.
`Cancel` takes effect after the current step. `deadline_ms` counts from arrival: an expired job never reaches the model,
and at the deadline the best canvas so far is the answer.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from caesura.characters import PRINTABLE, shown

PROTOCOL = 4
MAX_FRAME = 16 << 20  # bytes; the socket refuses larger frames (MAXMSGSIZE)
MAX_CONTEXT = 1 << 20  # code points of the prefix, and of the suffix: at least 256K tokens
MAX_NEIGHBOUR = 65_536  # code points
MAX_HOLES = 16  # per job
MAX_SLOTS = 256  # tokens per hole
MAX_SCHEMAS = 4  # per job
MAX_TOKENS = 2 * MAX_SLOTS  # per fill: a token shared with the prefix may add a few

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(max_length=256, pattern=PRINTABLE)]  # one line; a client's with anything else is refused
ShortText = Annotated[str, Meta(max_length=256)]  # made one line and printable where it arrives
ContextText = Annotated[str, Meta(max_length=MAX_CONTEXT)]
GrammarText = Annotated[str, Meta(max_length=65_536)]  # the text next to a hole, a key or a pattern, in a grammar
Blank = Annotated[str, Meta(max_length=16)]  # white space or a separator of a layout
SchemaText = Annotated[str, Meta(max_length=MAX_CONTEXT)]  # a JSON schema as text
FillText = Annotated[str, Meta(max_length=16_384)]
Natural = Annotated[int, Meta(ge=0, le=2**53)]
Milliseconds = Annotated[float, Meta(ge=0, le=600_000)]
Seconds = Annotated[float, Meta(ge=0, le=2**32)]
Mebibytes = Annotated[float, Meta(ge=0, le=2**32)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Offset = Annotated[int, Meta(ge=0, le=16_384)]
StopReason = Literal["complete", "deadline", "steps", "unlikely"]
FailureCode = Literal["superseded", "cancelled", "expired", "invalid", "engine_lost", "unavailable"]
Stages = Annotated[dict[Annotated[str, Meta(max_length=16, pattern=PRINTABLE)], Milliseconds], Meta(max_length=16)]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    pass


# Parts of messages


class Text(_Struct, frozen=True, tag="text"):
    """A segment of fixed text, locked on the canvas."""

    text: ContextText


class Json(_Struct, frozen=True, tag="json"):
    """A grammar of JSON text: `typed`, the fill and `then` together are one `start`.

    `members` and `elements` are `least` to `most` items of a container, without its brackets and without a comma at
    either end; `key` is a quoted string. `taken` are the object's keys outside the hole. With `indent`, a container is
    on one line or has each item on its own line; `level` is the indentation level of the line that closes the value or
    the container. `loose` allows any white space instead. `schema` is an index into the job's `schemas`, and `at` a
    JSON pointer in it, to the subschema of the value or of the container.
    """

    start: Literal["value", "members", "elements", "key"] = "value"
    typed: GrammarText = ""
    then: GrammarText = ""
    least: Annotated[int, Meta(ge=1, le=1024)] = 1
    most: Annotated[int, Meta(ge=1, le=1024)] = 64
    taken: Annotated[tuple[GrammarText, ...], Meta(max_length=65_536)] = ()
    indent: Blank | None = None
    level: Annotated[int, Meta(ge=0, le=1024)] = 0
    colon: Blank = ": "
    comma: Blank = ", "
    newline: Literal["\n", "\r\n", "\r"] = "\n"
    loose: bool = False
    schema: Annotated[int, Meta(ge=0, lt=MAX_SCHEMAS)] | None = None
    at: Annotated[str, Meta(max_length=4096)] = ""


class Pattern(_Struct, frozen=True, tag="pattern"):
    """A grammar of text that matches `regex` as a whole: ECMA-262 syntax, characters are code points."""

    regex: GrammarText


class Hole(_Struct, frozen=True, tag="hole"):
    """A segment to fill with at most `max_tokens` tokens. A `line` ends before a line break, a `block` may have several
    lines, a `span` has text after it on the same line; with `auto` the engine decides. With a `grammar`, the fill is
    valid in it, whatever the model predicts and whenever the job ends. `instead`: what stands there, for the method
    `judge`, which says how likely the hole's draft is rather than that."""

    max_tokens: Annotated[int, Meta(ge=1, le=MAX_SLOTS)] = 32
    kind: Literal["line", "block", "span", "auto"] = "auto"
    grammar: Json | Pattern | None = None
    instead: FillText = ""


class Missing(_Struct, frozen=True, kw_only=True):
    """A name that the text after the hole reads and nothing before binds: most likely the hole binds it. `starts` are
    beginnings of a fill that does; a fill that does matches the RE2 `pattern` somewhere."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=PRINTABLE)]
    starts: Annotated[tuple[ShortText, ...], Meta(max_length=4)] = ()
    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]


class Neighbour(_Struct, frozen=True):
    """Related text from elsewhere. The model sees `name` as the line above it: a comment in the language of `text` that
    says where it is from, or `# ...`."""

    name: ShortText
    text: Annotated[str, Meta(max_length=MAX_NEIGHBOUR)]

    @property
    def line(self) -> str:
        """`name` as a prompt has it: a line break in a file's name begins no line of the prompt."""
        return shown(self.name)


class Fill(_Struct, frozen=True):
    """The state of one hole: its best text so far, the locked parts, and the confidence.

    `locked` has half-open, ascending spans of `text`; `open` counts the undecided slots. `probabilities` has, for each
    token in order, its end in `text` and the model's probability for it, given the text before. Ends ascend up to the
    end of `text`. Tokens that share a character count as one.
    """

    text: FillText
    locked: Annotated[tuple[tuple[Offset, Offset], ...], Meta(max_length=MAX_SLOTS)] = ()
    confidence: Probability = 0.0
    open: Natural = 0
    probabilities: Annotated[tuple[tuple[Offset, Probability], ...], Meta(max_length=MAX_TOKENS)] = ()

    @property
    def locked_start(self) -> str:
        """The text that is locked without a gap from the start."""
        end = 0
        for first, last in self.locked:
            if first > end:
                break
            end = max(end, last)
        return self.text[:end]


class Tokens(_Struct, frozen=True):
    """The answer's tokens by source; all tokens of a diffusion fill count as `canvas`."""

    canvas: Natural = 0
    lookup: Natural = 0
    left_to_right: Natural = 0


class Policy(_Struct, frozen=True):
    """An administrator's rules for the clients of a team's engine: gitignore patterns of files whose text is `never`
    sent, and settings of the language server that are `off`; a client ignores names that it does not know."""

    never: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=256)] = ()
    off: Annotated[tuple[Annotated[str, Meta(max_length=64, pattern=PRINTABLE)], ...], Meta(max_length=16)] = ()

    def __str__(self) -> str:
        rules = {"never sent": self.never, "off": self.off}
        return "; ".join(f"{rule}: {', '.join(found)}" for rule, found in rules.items() if found)


class Timings(_Struct, frozen=True):
    """Milliseconds by stage: in the queue, prefill, denoise steps, first locked text, and from arrival to the end."""

    queue_ms: Milliseconds = 0.0
    prefill_ms: Milliseconds = 0.0
    denoise_ms: Milliseconds = 0.0
    first_lock_ms: Milliseconds | None = None
    total_ms: Milliseconds = 0.0


# Client to engine


class Hello(_Message, frozen=True):
    protocol: Natural
    build: Name
    client: Name


class Infill(_Message, frozen=True, kw_only=True):
    """One job. `document` is an opaque key, never a path; `segments` are between `prefix` and `suffix`.

    `neighbours` come best first. `draft` has one text per hole to warm-start from. `method` and `sampler` are file
    names, and `prompt` is the name of a context format; the default is the model's own. Grammars refer to `schemas`.
    `seed` 0 asks for the best answer, any other for another plausible one. A method that verifies drafts may end the
    answer where its probability falls below `min_probability`. With effort `ghost` it locks text early and ends soon;
    with `full` it looks for the best answer and locks nothing before. `missing` is for a job of one hole.
    """

    job: Id
    document: Id
    kind: Literal["complete", "fill", "edit"] = "complete"
    priority: Literal["invoked", "automatic", "speculative"] = "automatic"
    deadline_ms: Milliseconds = 10_000.0
    prefix: ContextText
    suffix: ContextText
    language: Name = ""
    neighbours: Annotated[tuple[Neighbour, ...], Meta(max_length=32)] = ()
    segments: Annotated[tuple[Text | Hole, ...], Meta(min_length=1, max_length=64)]
    candidates: Annotated[int, Meta(ge=1, le=8)] = 1
    method: Name | None = None
    sampler: Name | None = None
    prompt: Name | None = None
    seed: Natural = 0
    min_probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
    effort: Literal["ghost", "full"] = "full"
    missing: Missing | None = None
    draft: Annotated[tuple[FillText, ...], Meta(max_length=MAX_HOLES)] | None = None
    schemas: Annotated[tuple[SchemaText, ...], Meta(max_length=MAX_SCHEMAS)] = ()


class Cancel(_Message, frozen=True):
    job: Id


class Ping(_Message, frozen=True):
    pass


class Query(_Message, frozen=True):
    """Ask for `Status`."""


class Stop(_Message, frozen=True):
    """Ask the engine to finish and exit (`caesura stop`)."""


class Bye(_Message, frozen=True):
    pass


# Engine to client


class Welcome(_Message, frozen=True, omit_defaults=True):
    """The answer to `Hello`, sent again at each change of `state` or `message`, which is the reason of `failed`, or how
    far `loading` is: a stage and, after a comma, the share that is done. A client obeys `policy` before it sends a job.
    Without one the field is left out, so that a client of the protocol before can read why it is refused."""

    protocol: Natural
    build: ShortText
    model: ShortText
    device: ShortText
    state: Literal["loading", "ready", "failed"]
    message: ShortText = ""
    policy: Policy = Policy()


class Locked(_Message, frozen=True):
    job: Id
    seq: Natural
    holes: Annotated[tuple[Fill, ...], Meta(max_length=MAX_HOLES)]
    step: Natural
    of: Natural


class Done(_Message, frozen=True, kw_only=True):
    """The answer. `alternatives` are further candidates, best first, each with one `Fill` per hole.

    `level` is the guarantee for holes with a grammar: `valid`, or to be `checked` by the client because the schema asks
    for more than the grammar can express. `stop` is "unlikely" if nothing is as likely as the job's `min_probability`:
    the text is a start at most. `approximate`: some forwards reused keys and values for text far from the holes."""

    job: Id
    seq: Natural
    holes: Annotated[tuple[Fill, ...], Meta(max_length=MAX_HOLES)]
    alternatives: Annotated[tuple[tuple[Fill, ...], ...], Meta(max_length=8)] = ()
    steps: Natural
    tokens: Tokens
    timings: Timings
    stop: StopReason
    level: Literal["", "valid", "checked"] = ""
    approximate: bool = False


class Failed(_Message, frozen=True, omit_defaults=True):
    """The job ended without an answer. `steps`: how many it had taken; without any the field is left out, so that a
    client of the protocol before can read why it is refused. `message` is one sentence for the user; the cause is in
    the engine's log."""

    job: Id
    code: FailureCode
    message: ShortText = ""
    steps: Natural = 0


class Busy(_Message, frozen=True):
    """The queue is full: the job was not accepted. Its only event."""

    job: Id


class Pong(_Message, frozen=True):
    load: Natural


class Status(_Message, frozen=True, kw_only=True):
    """The engine's status, for `caesura status`. Memory is in MiB; on Linux, shared pages are divided. `p50_ms` and
    `p95_ms` are by stage, over the last jobs. A team's user gets `clients` of their own alone, no process (`pid` 0) and
    no memory."""

    state: Literal["loading", "ready", "failed", "idle"]
    build: ShortText
    model: ShortText
    device: ShortText
    pid: Natural
    worker_pid: Natural | None = None
    uptime_s: Seconds
    peers: Natural
    clients: Annotated[tuple[ShortText, ...], Meta(max_length=256)] = ()  # the peers' names for themselves
    live: Natural = 0
    queued: Natural = 0
    done: Natural = 0
    dropped: Natural = 0
    restarts: Natural = 0
    memory_mb: Mebibytes = 0.0
    worker_memory_mb: Mebibytes | None = None
    p50_ms: Stages = {}
    p95_ms: Stages = {}
    message: ShortText = ""


ClientMessage = Hello | Infill | Cancel | Ping | Query | Stop | Bye
EngineMessage = Welcome | Locked | Done | Failed | Busy | Pong | Status


class Impossible(ValueError):
    """A job cannot be done as it is. The message is a sentence for the user, sent as `Failed` with code `invalid`."""


class _About(msgspec.Struct, frozen=True):
    job: Id


class EventHead(msgspec.Struct, frozen=True):
    """The part of an event that the supervisor and a team's door read: a `Done` has timings, `steps` and `tokens`, a
    `Failed` its code and `steps`."""

    type: Literal["locked", "done", "failed", "busy"]
    job: Id
    step: Natural = 0
    steps: Natural = 0
    timings: Timings | None = None
    tokens: Tokens | None = None
    code: FailureCode | None = None

    @property
    def taken(self) -> int:
        """The steps of the job so far."""
        return self.steps or self.step


_encoder = msgspec.msgpack.Encoder()
_client_decoder: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
_engine_decoder: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
_head_decoder: msgspec.msgpack.Decoder[EventHead] = msgspec.msgpack.Decoder(EventHead)


def encode(message: ClientMessage | EngineMessage) -> bytes:
    """One msgpack frame."""
    return _encoder.encode(message)


def decode_client(frame: bytes) -> ClientMessage:
    """A frame from a client. Raises msgspec.DecodeError (its child ValidationError if it breaks the schema)."""
    try:
        return _client_decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:  # not converted by msgspec
        raise msgspec.DecodeError(str(error)) from error


def decode_engine(frame: bytes) -> EngineMessage:
    """A frame from the engine. Raises msgspec.DecodeError (its child ValidationError if it breaks the schema)."""
    try:
        return _engine_decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_head(frame: bytes) -> EventHead:
    """The head of a job's event, skipping the rest of the frame. Raises msgspec.DecodeError."""
    try:
        return _head_decoder.decode(frame)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def job_of(frame: bytes) -> str | None:
    """The job of a frame, even if the rest is invalid."""
    try:
        return msgspec.msgpack.decode(frame, type=_About).job
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
