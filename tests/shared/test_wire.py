"""The messages as bytes: what is sent is what arrives, and whatever else arrives is refused in one way."""

import contextlib

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire

HOSTILE = "vim\x1b]0;pwn\x07\x1b[31m\nready: FAKE on cpu"
FILL = wire.Fill("retürn 🐍", ((0, 3), (5, 7)), 0.5, 2, ((3, 1.0), (6, 0.25), (8, 0.0)))

CLIENT: list[wire.ClientMessage] = [
    wire.Hello(wire.PROTOCOL, "0.1.0", "nvim"),
    wire.Infill(job="j", document="d", prefix="", suffix="", segments=(wire.Hole(),)),
    wire.Infill(
        job="j",
        document="d",
        kind="edit",
        priority="invoked",
        deadline_ms=150.5,
        prefix="x = é\r\n\f",
        suffix="🐍",
        language="python",
        neighbours=(wire.Neighbour("a.py", "text"),),
        segments=(
            wire.Hole(8, "line"),
            wire.Text(", "),
            wire.Hole(256, "span", wire.Json(taken=("é",), schema=0, at="/a")),
        ),
        candidates=3,
        method="absorbing",
        sampler="threshold",
        prompt="plain",
        seed=2**53,
        draft=("one", "two"),
        schemas=("{}",),
    ),
    wire.Cancel("j"),
    wire.Ping(),
    wire.Query(),
    wire.Stop(),
    wire.Bye(),
]
ENGINE: list[wire.EngineMessage] = [
    wire.Welcome(wire.PROTOCOL, "0.1.0", "small", "cpu", "failed", "No model."),
    wire.Locked("j", 3, (FILL, FILL), 3, 8),
    wire.Done(
        job="j",
        seq=4,
        holes=(FILL,),
        alternatives=((FILL,), (FILL,)),
        steps=8,
        tokens=wire.Tokens(1, 2, 3),
        timings=wire.Timings(0.1, 2.0, 30.5, None, 33.0),
        stop="deadline",
    ),
    wire.Failed("j", "superseded", ""),
    wire.Busy("j"),
    wire.Pong(3),
    wire.Status(
        state="ready",
        build="0.1.0",
        model="small",
        device="cpu",
        pid=1,
        worker_pid=2,
        uptime_s=1.5,
        peers=2,
        worker_memory_mb=300.0,
        p50_ms={"total": 12.0},
    ),
]
ALL = [*CLIENT, *ENGINE]


@pytest.mark.parametrize("message", CLIENT, ids=lambda m: type(m).__name__)
def test_client_messages_survive_the_wire(message: wire.ClientMessage) -> None:
    assert wire.decode_client(wire.encode(message)) == message


@pytest.mark.parametrize("message", ENGINE, ids=lambda m: type(m).__name__)
def test_engine_messages_survive_the_wire(message: wire.EngineMessage) -> None:
    assert wire.decode_engine(wire.encode(message)) == message


def test_every_message_is_tried_here() -> None:
    sent = {type(message) for message in ALL}
    assert sent == set(wire.ClientMessage.__args__) | set(wire.EngineMessage.__args__)


@pytest.mark.parametrize("message", ALL, ids=lambda m: type(m).__name__)
def test_another_msgpack_library_reads_and_writes_the_same(message: wire.ClientMessage | wire.EngineMessage) -> None:
    theirs = msgpack.unpackb(wire.encode(message))
    assert theirs == msgspec.msgpack.decode(wire.encode(message))
    decode = wire.decode_client if message in CLIENT else wire.decode_engine
    assert decode(msgpack.packb(theirs)) == message


def _infill(**changes: object) -> bytes:
    fields = {"job": "j", "document": "d", "prefix": "", "suffix": "", "segments": [{"type": "hole"}]}
    return msgspec.msgpack.encode({"type": "infill", **fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"job": ""},
        {"job": "j" * 65},
        {"prefix": "x" * (wire.MAX_CONTEXT + 1)},
        {"neighbours": [{"name": "n", "text": ""}] * 33},
        {"neighbours": [{"name": "n", "text": "x" * (wire.MAX_NEIGHBOUR + 1)}]},
        {"segments": []},
        {"segments": [{"type": "hole"}] * 65},
        {"segments": [{"type": "hole", "max_tokens": 0}]},
        {"segments": [{"type": "hole", "max_tokens": wire.MAX_SLOTS + 1}]},
        {"segments": [{"type": "other"}]},
        {"candidates": 9},
        {"seed": -1},
        {"seed": 2**53 + 1},
        {"deadline_ms": -0.1},
        {"deadline_ms": 600_001},
        {"deadline_ms": float("nan")},
        {"deadline_ms": float("inf")},
        {"kind": "other"},
        {"draft": ["x" * 16_385]},
        {"unknown": 1},
        {"prefix": b"bytes"},
        {"prefix": None},
        *({field: HOSTILE} for field in ("language", "method", "sampler", "prompt")),
    ],
    ids=lambda changes: f"{next(iter(changes))}={str(next(iter(changes.values())))[:20]}",
)
def test_what_is_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    assert isinstance(wire.decode_client(_infill()), wire.Infill)
    with pytest.raises(msgspec.ValidationError):
        wire.decode_client(_infill(**changes))


@pytest.mark.parametrize(
    "name", [HOSTILE, "vim\n", "vim\x7f", "vim\x9b31m", "vi\u202em", "vim\u200b", "\u3164", "v" * 257]
)
def test_a_client_whose_name_is_not_plainly_printable_is_refused(name: str) -> None:
    hello = {"type": "hello", "protocol": wire.PROTOCOL, "build": "0.1.0", "client": "Neovim 0.12 — mañana 日本語 🐍"}
    assert isinstance(wire.decode_client(msgspec.msgpack.encode(hello)), wire.Hello)
    for field in ("build", "client"):
        with pytest.raises(msgspec.ValidationError):
            wire.decode_client(msgspec.msgpack.encode({**hello, field: name}))


@pytest.mark.parametrize(
    "changes",
    [
        {"p50_ms": {"x\n": 1.0}},
        {"p50_ms": {"total": -1.0}},
        {"p95_ms": {"total": 600_001.0}},
        {"p95_ms": {"x" * 17: 1.0}},
        {"p50_ms": {str(number): 1.0 for number in range(17)}},
        {"uptime_s": float("inf")},
        {"memory_mb": 1e300},
        {"worker_memory_mb": 1e300},
    ],
    ids=lambda changes: f"{next(iter(changes))}={str(next(iter(changes.values())))[:20]}",
)
def test_a_status_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    (status,) = (message for message in ENGINE if isinstance(message, wire.Status))
    fields = msgspec.msgpack.decode(wire.encode(status))
    with pytest.raises(msgspec.ValidationError):
        wire.decode_engine(msgspec.msgpack.encode({**fields, **changes}))


@pytest.mark.parametrize(
    "probabilities",
    [[[0, 1.5]], [[0, -0.1]], [[-1, 0.5]], [[16_385, 0.5]], [[1]], [[1, 0.5]] * (wire.MAX_TOKENS + 1), [[0.5, 0.5]]],
    ids=lambda value: str(value)[:20],
)
def test_a_fill_with_probabilities_out_of_bounds_is_refused(probabilities: object) -> None:
    done = msgspec.msgpack.decode(wire.encode(next(m for m in ENGINE if isinstance(m, wire.Done))))
    done["holes"][0]["probabilities"] = probabilities
    with pytest.raises(msgspec.ValidationError):
        wire.decode_engine(msgspec.msgpack.encode(done))


def test_the_job_of_a_frame_that_is_wrong_elsewhere() -> None:
    wrong = msgspec.structs.replace(FILL, confidence=2.0)
    frame = wire.encode(wire.Locked("j", 3, (wrong,), 3, 8))
    with pytest.raises(msgspec.ValidationError):
        wire.decode_engine(frame)
    assert wire.job_of(frame) == "j"
    assert [wire.job_of(other) for other in (b"", b"\xc1", frame[:5], wire.encode(wire.Pong(1)))] == [None] * 4


def test_the_head_of_an_event_is_read_without_the_rest() -> None:
    found = [
        wire.decode_head(wire.encode(m))
        for m in ENGINE
        if isinstance(m, wire.Locked | wire.Done | wire.Failed | wire.Busy)
    ]
    assert [(head.type, head.job) for head in found] == [(kind, "j") for kind in ("locked", "done", "failed", "busy")]
    assert [head.timings for head in found] == [None, wire.Timings(0.1, 2.0, 30.5, None, 33.0), None, None]
    for frame in (b"", b"\xc1", wire.encode(wire.Pong(1)), msgspec.msgpack.encode({"type": "other", "job": "j"})):
        with pytest.raises(msgspec.DecodeError):
            wire.decode_head(frame)


def test_bounds_count_code_points() -> None:
    assert wire.decode_client(_infill(prefix="🐍" * wire.MAX_CONTEXT))


def test_a_message_for_the_other_side_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.decode_client(wire.encode(wire.Pong(0)))
    with pytest.raises(msgspec.ValidationError):
        wire.decode_engine(wire.encode(wire.Ping()))


def test_what_follows_a_message_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_client(wire.encode(wire.Ping()) + b"\x00")


def _decode_both(frame: bytes) -> None:
    wire.job_of(frame)
    for decode in (wire.decode_client, wire.decode_engine, wire.decode_head):
        with contextlib.suppress(msgspec.DecodeError):
            decode(frame)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_decode_errors(frame: bytes) -> None:
    _decode_both(frame)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(ALL), st.data())
def test_damaged_messages_raise_nothing_but_decode_errors(
    message: wire.ClientMessage | wire.EngineMessage, data: st.DataObject
) -> None:
    _decode_damaged(message, data)


@pytest.mark.slow
@settings(max_examples=30_000, deadline=None)
@given(st.sampled_from(ALL), st.data())
def test_damaged_messages_for_minutes(message: wire.ClientMessage | wire.EngineMessage, data: st.DataObject) -> None:
    _decode_damaged(message, data)


def _decode_damaged(message: wire.ClientMessage | wire.EngineMessage, data: st.DataObject) -> None:
    frame = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    _decode_both(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


@pytest.mark.parametrize(
    "head", [b"\x91", b"\x81\xa1a", b"\xc7\x00\x01", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"]
)
def test_deep_and_huge_claims_are_refused(head: bytes) -> None:
    _decode_both(head * 100_000)
