"""A replica's streams: frames as on the wire, answered once each, and the queue that autoscaling looks at."""

import pytest

from caesura import wire
from caesura.cluster.models import RETRY_S, TURN_S, Load, Unload
from caesura.cluster.scaling import wanted
from caesura.cluster.sessions import LATE, Give, ReplicaOrder, Say, Sessions
from caesura.engine.supervisor import link

from .test_router import done, job, locked

HELLO = wire.encode(wire.Hello(wire.PROTOCOL, "1+a", "door"))


@pytest.fixture
def sessions() -> Sessions:
    """Two of three models are kept; `coder` is loaded."""
    found = Sessions(("coder", "small", "tuned"), "cpu", most=2, jobs=4)
    greeted(found, b"s", "coder")
    assert found.loaded("coder", "cpu:avx2", 0.0) == []
    return found


def greeted(found: Sessions, stream: bytes, model: str, now: float = 0.0, hello: bytes = HELLO) -> wire.Welcome:
    found.open(stream, model)
    (welcome,) = told(found.hear(stream, hello, now))
    assert isinstance(welcome, wire.Welcome)
    return welcome


def told(orders: list[ReplicaOrder]) -> list[wire.EngineMessage]:
    return [wire.decode_engine(order.frame) for order in orders if isinstance(order, Say)]


def asks(found: Sessions, request: wire.Infill, now: float = 0.0, stream: bytes = b"s") -> list[ReplicaOrder]:
    return found.hear(stream, wire.encode(request), now)


def new(
    request: wire.Infill, stream: bytes = b"s", left_ms: float = 10_000.0, model: str = "coder", user: str = "door"
) -> Give:
    return Give(model, link.NewJob(stream, left_ms, wire.encode(request), user))


def test_a_hello_is_answered_with_what_runs_here(sessions: Sessions) -> None:
    welcome = greeted(sessions, b"t", "coder")
    assert (welcome.state, welcome.model, welcome.device) == ("ready", "coder", "cpu:avx2")


def test_another_protocol_and_an_unknown_model_are_refused_in_a_sentence(sessions: Sessions) -> None:
    old = greeted(sessions, b"t", "coder", hello=wire.encode(wire.Hello(wire.PROTOCOL + 1, "2", "door")))
    assert "update the older one" in old.message
    unknown = greeted(sessions, b"u", "another")
    assert "have different models" in unknown.message
    assert (old.state, unknown.state) == ("failed", "failed")
    for stream in (b"t", b"u"):
        assert asks(sessions, job(), stream=stream) == []


def test_one_user_may_have_every_document_of_a_replica(sessions: Sessions) -> None:
    assert {greeted(sessions, b"%d" % n, "coder").state for n in range(200)} == {"ready"}


def test_the_engine_learns_which_streams_are_of_one_user(sessions: Sessions) -> None:
    for stream, user in ((b"t", "one"), (b"u", "one"), (b"v", "another")):
        greeted(sessions, stream, "coder", hello=wire.encode(wire.Hello(wire.PROTOCOL, "1+a", user)))
        request = job()
        assert asks(sessions, request, stream=stream) == [new(request, stream, user=user)]


def test_a_job_reaches_the_engine_and_its_events_its_stream(sessions: Sessions) -> None:
    request = job()
    assert asks(sessions, request) == [new(request)]
    assert asks(sessions, request) == []  # a copy
    for frame in (locked(request, 1), done(request)):
        assert sessions.relay(link.Answer(b"s", frame), 1.0) == [Say(b"s", request.job, frame)]
    assert sessions.relay(link.Answer(b"s", done(request)), 1.0) == []
    assert sessions.running == 0


def test_a_replica_that_has_enough_to_do_says_busy_at_once(sessions: Sessions) -> None:
    for name in "abcd":
        assert asks(sessions, job(name))
    late = job("e")
    assert told(asks(sessions, late)) == [wire.Busy(late.job)]
    replacing = job("a")
    assert asks(sessions, replacing) == [new(replacing)]


def test_nothing_counts_before_a_hello_and_nonsense_never_does(sessions: Sessions) -> None:
    sessions.open(b"stranger", "coder")
    assert asks(sessions, job(), stream=b"stranger") == []
    for frame in (b"", b"\xc1", wire.encode(wire.Stop()), wire.encode(wire.Query())):
        assert sessions.hear(b"s", frame, 0.0) == []


def test_a_cancel_reaches_only_a_job_of_its_own_stream(sessions: Sessions) -> None:
    request = job()
    asks(sessions, request)
    greeted(sessions, b"t", "coder")
    cancel = wire.encode(wire.Cancel(request.job))
    assert sessions.hear(b"t", cancel, 0.0) == []
    assert sessions.hear(b"s", cancel, 0.0) == [Give("coder", link.CancelJob(b"s", request.job))]


def test_a_stream_that_ends_takes_its_jobs_along(sessions: Sessions) -> None:
    request = job()
    asks(sessions, request)
    assert sessions.leave(b"s", 0.0) == [Give("coder", link.Gone(b"s"))]
    assert sessions.relay(link.Answer(b"s", done(request)), 1.0) == []
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


def test_jobs_that_wait_ask_for_a_replica_and_one_is_spare_where_none_waits() -> None:
    assert wanted([80.0, 40.0], 2) == 3
    assert wanted([60.0, 10.0], 2) == 2
    assert wanted([0.0, 6.0], 2) == 2
    assert wanted([0.0, 4.0], 2) == 1
    assert wanted([], 2) == 2


# Several models


def test_a_job_waits_for_its_model_and_runs_with_the_time_that_is_left(sessions: Sessions) -> None:
    request, other = job(), job()
    assert greeted(sessions, b"t", "small").state == "ready"  # the first job loads it
    assert asks(sessions, request, 0.0, b"t") == [Load("small")]
    assert greeted(sessions, b"u", "small").state == "loading"
    assert asks(sessions, other, 1.0) == [new(other)], "nobody else waits"
    assert sessions.queue_ms(1.0) == 0.0, "another replica would have to load it too"
    assert sessions.loaded("small", "cpu", 3.0) == [new(request, b"t", 7000.0, "small")]
    assert sessions.queue_ms(3.5) == 2500.0


def test_a_job_that_waits_for_its_model_ends_once(sessions: Sessions) -> None:
    """It is replaced, cancelled or too late."""
    greeted(sessions, b"t", "small")
    first, second, third = job(), job(), job(deadline_ms=1000.0)
    asks(sessions, first, 0.0, b"t")
    assert told(asks(sessions, second, 0.0, b"t")) == [wire.Failed(first.job, "superseded")]
    cancel = wire.encode(wire.Cancel(second.job))
    assert told(sessions.hear(b"t", cancel, 0.0)) == [wire.Failed(second.job, "cancelled")]
    asks(sessions, third, 0.0, b"t")
    assert sessions.look(0.9) == []
    assert told(sessions.look(1.0)) == [wire.Failed(third.job, "expired", LATE)]
    assert sessions.loaded("small", "cpu", 2.0) == []


def test_a_model_that_cannot_be_loaded_fails_its_own_jobs_until_it_is_tried_again(sessions: Sessions) -> None:
    greeted(sessions, b"t", "small")
    mine, theirs = job(), job()
    asks(sessions, mine, 0.0, b"t")
    asks(sessions, theirs)
    why = "The file is damaged."
    assert told(sessions.refused("small", why, 1.0)) == [wire.Failed(mine.job, "unavailable", why)]
    assert greeted(sessions, b"u", "small", 2.0).message == why
    again = job()
    assert told(asks(sessions, again, 2.0, b"t")) == [wire.Failed(again.job, "unavailable", why)]
    assert asks(sessions, job(), 1.0 + RETRY_S, b"t") == [Load("small")]
    assert told(sessions.relay(link.Answer(b"s", done(theirs)), 1.0))


@pytest.fixture
def full(sessions: Sessions) -> Sessions:
    """As many models are loaded as are kept, and a job waits for the third."""
    greeted(sessions, b"t", "small")
    greeted(sessions, b"u", "tuned")
    request = job()
    asks(sessions, request, 0.0, b"t")
    sessions.loaded("small", "cpu", 0.0)
    sessions.relay(link.Answer(b"t", done(request)), 0.0)
    return sessions


def test_the_model_without_a_job_for_longest_makes_room_and_only_then_the_other_is_loaded(full: Sessions) -> None:
    typed = job()
    asks(full, typed, 1.0)
    full.relay(link.Answer(b"s", done(typed)), 1.0)
    assert asks(full, job(), 2.0, b"u") == [Unload("small")]
    assert asks(full, job(), 2.5, b"t") == []  # too late for small to stay
    assert full.gone("small", 3.0) == [Load("tuned"), Unload("coder")]
    assert full.gone("coder", 4.0) == [Load("small")]


def test_a_model_with_jobs_is_not_let_go_before_they_have_ended(full: Sessions) -> None:
    mine, theirs, late = job(), job(), job(deadline_ms=60_000.0)
    asks(full, mine, 1.0)
    asks(full, theirs, 1.0, b"t")
    assert asks(full, late, 2.0, b"u") == []
    assert full.relay(link.Answer(b"t", locked(theirs, 1)), 3.0) == [Say(b"t", theirs.job, locked(theirs, 1))]
    *said, last = full.relay(link.Answer(b"s", done(mine)), 3.0)
    assert (told(said), last) == ([wire.decode_engine(done(mine))], Unload("coder"))
    assert full.gone("coder", 4.0) == [Load("tuned")]
    assert full.loaded("tuned", "cpu", 5.0) == [new(late, b"u", 57_000.0, "tuned")]


def test_a_model_that_always_has_jobs_takes_turns(full: Sessions) -> None:
    asks(full, job(), 1.0, b"t")  # never ends
    before, after, theirs = job("a"), job("b"), job(deadline_ms=60_000.0)
    asks(full, before, 1.0)
    asks(full, theirs, 1.0, b"u")
    assert full.look(TURN_S) == []
    assert full.look(TURN_S + 1) == []
    assert asks(full, after, TURN_S + 1) == [], "it waits, as for a model that is not loaded"
    assert full.relay(link.Answer(b"s", done(before)), TURN_S + 2)[-1] == Unload("coder")
    assert full.gone("coder", TURN_S + 3) == [Load("tuned")]
