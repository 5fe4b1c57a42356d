"""A replica's streams: frames as on the wire, answered once each, and the queue that autoscaling looks at."""

import pytest

from caesura import wire
from caesura.cluster.sessions import Sessions
from caesura.engine.supervisor import link

from .test_router import done, job, locked

HELLO = wire.encode(wire.Hello(wire.PROTOCOL, "1+a", "door"))


@pytest.fixture
def sessions() -> Sessions:
    found = Sessions("small", "cpu:avx2", jobs=3)
    found.hear(b"s", HELLO, 0.0)
    return found


def said(found: Sessions, frame: bytes, now: float = 0.0, stream: bytes = b"s") -> list[wire.EngineMessage]:
    return [wire.decode_engine(answer) for answer in found.hear(stream, frame, now).frames]


def asks(found: Sessions, request: wire.Infill, now: float = 0.0, stream: bytes = b"s") -> list[link.ToWorker]:
    return found.hear(stream, wire.encode(request), now).messages


def test_a_hello_is_answered_with_what_runs_here() -> None:
    (welcome,) = said(Sessions("small", "cpu:avx2"), HELLO)
    assert isinstance(welcome, wire.Welcome)
    assert (welcome.state, welcome.model, welcome.device) == ("ready", "small", "cpu:avx2")


def test_another_protocol_is_refused_in_a_sentence(sessions: Sessions) -> None:
    (welcome,) = said(sessions, wire.encode(wire.Hello(wire.PROTOCOL + 1, "2", "door")), stream=b"t")
    assert isinstance(welcome, wire.Welcome)
    assert welcome.state == "failed"
    assert "update the older one" in welcome.message
    assert asks(sessions, job(), stream=b"t") == []


def test_a_job_reaches_the_engine_and_its_events_its_stream(sessions: Sessions) -> None:
    request = job()
    assert asks(sessions, request) == [link.NewJob(b"s", request.deadline_ms, wire.encode(request))]
    assert asks(sessions, request) == []  # a copy
    for frame in (locked(request, 1), done(request)):
        assert sessions.relay(link.Answer(b"s", frame), 1.0) == request.job
    assert sessions.relay(link.Answer(b"s", done(request)), 1.0) is None
    assert sessions.running == 0


def test_a_replica_that_has_enough_to_do_says_busy_at_once(sessions: Sessions) -> None:
    for name in "abc":
        assert asks(sessions, job(name))
    late = job("d")
    assert said(sessions, wire.encode(late)) == [wire.Busy(late.job)]
    assert asks(sessions, job("a"))  # which replaces one of its own


def test_nothing_counts_before_a_hello_and_nonsense_never_does(sessions: Sessions) -> None:
    assert asks(sessions, job(), stream=b"stranger") == []
    for frame in (b"", b"\xc1", wire.encode(wire.Stop()), wire.encode(wire.Query())):
        assert sessions.hear(b"s", frame, 0.0) == ([], [])


def test_a_cancel_reaches_only_a_job_of_its_own_stream(sessions: Sessions) -> None:
    request = job()
    asks(sessions, request)
    sessions.hear(b"t", HELLO, 0.0)
    cancel = wire.encode(wire.Cancel(request.job))
    assert sessions.hear(b"t", cancel, 0.0).messages == []
    assert sessions.hear(b"s", cancel, 0.0).messages == [link.CancelJob(b"s", request.job)]


def test_a_stream_that_ends_takes_its_jobs_along(sessions: Sessions) -> None:
    request = job()
    asks(sessions, request)
    assert sessions.leave(b"s") == [link.Gone(b"s")]
    assert sessions.leave(b"s") == []
    assert sessions.relay(link.Answer(b"s", done(request)), 1.0) is None
    assert sessions.queue_ms(9.0) == 0.0


def test_the_queue_is_as_long_as_the_oldest_job_waits(sessions: Sessions) -> None:
    request = job()
    asks(sessions, request, 1.0)
    assert sessions.queue_ms(1.25) == 250.0
    sessions.relay(link.Answer(b"s", locked(request, 1)), 1.3)
    assert sessions.queue_ms(2.0) == 0.0
    waited = wire.Done(
        job=request.job,
        seq=1,
        holes=(),
        steps=1,
        tokens=wire.Tokens(),
        timings=wire.Timings(queue_ms=300.0),
        stop="complete",
    )
    sessions.relay(link.Answer(b"s", wire.encode(waited)), 2.0)
    assert sessions.queue_ms(3.0) == 300.0
    assert sessions.queue_ms(13.0) == 0.0
