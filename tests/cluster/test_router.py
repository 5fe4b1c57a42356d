"""The door's routing table: one answer a job whatever breaks, one user's answers are nobody else's, and limits."""

from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.cluster import router
from caesura.cluster.budget import Bucket
from caesura.cluster.router import GRACE_S, LIFE_S, MAX_OWED, Close, Limits, Open, Order, Router, Send
from caesura.engine.supervisor import link

ANNA, BEN = "aa" * 32, "bb" * 32
NUMBERS = count()


def job(document: str = "d", **more: object) -> wire.Infill:
    fields = {"prefix": "x = ", "suffix": "", "segments": (wire.Hole(),), "deadline_ms": 10_000.0, **more}
    return wire.Infill(job=f"job {next(NUMBERS)}", document=document, **fields)  # type: ignore[arg-type]


MODELS = ("coder", "small")


def asks(
    found: Router, request: wire.Infill, now: float = 0.0, *, peer: bytes = b"p", user: str = ANNA, model: str = "coder"
) -> list[Order]:
    return found.take(link.NewJob(peer, request.deadline_ms, wire.encode(request), user, model), now)


def told(orders: list[Order]) -> list[wire.EngineMessage]:
    return [wire.decode_engine(order.frame) for order in orders if isinstance(order, link.Answer)]


def keys(orders: list[Order]) -> list[str]:
    return [order.key for order in orders if isinstance(order, Open)]


def welcome(protocol: int = wire.PROTOCOL, message: str = "") -> bytes:
    return wire.encode(wire.Welcome(protocol, "1+a", "m", "cpu", "failed" if message else "ready", message))


def locked(request: wire.Infill, step: int) -> bytes:
    return wire.encode(wire.Locked(request.job, step, (wire.Fill("a"),), step, 8))


def done(request: wire.Infill, steps: int = 1) -> bytes:
    found = wire.Done(
        job=request.job, seq=1, holes=(), steps=steps, tokens=wire.Tokens(), timings=wire.Timings(), stop="complete"
    )
    return wire.encode(found)


@pytest.fixture
def table() -> Router:
    return Router(Limits(), MODELS, b"secret")


def running(found: Router, *requests: wire.Infill, now: float = 0.0) -> None:
    """Jobs of one client whose streams are welcomed."""
    for request in requests:
        for order in asks(found, request, now):
            if isinstance(order, Open):
                found.hear(order.stream, welcome(), now)


# Streams


def test_the_same_user_and_document_go_to_the_same_place_from_any_of_its_clients(table: Router) -> None:
    first, second = keys(asks(table, job())), keys(asks(table, job(), peer=b"q"))
    assert first == second != keys(asks(table, job("other")))


def test_two_users_with_the_same_document_share_neither_place_nor_stream(table: Router) -> None:
    mine, theirs = asks(table, job()), asks(table, job(), peer=b"q", user=BEN)
    assert keys(mine) != keys(theirs)
    assert {order.stream for order in mine if isinstance(order, Open)}.isdisjoint(
        order.stream for order in theirs if isinstance(order, Open)
    )


def test_a_replica_learns_which_streams_are_of_one_user_and_not_whose(table: Router) -> None:
    asked = [asks(table, job("a")), asks(table, job("b"), peer=b"q"), asks(table, job("a"), peer=b"r", user=BEN)]
    hellos = [wire.decode_client(order.frame) for orders in asked for order in orders if isinstance(order, Send)]
    mine, also_mine, theirs = (hello.client for hello in hellos if isinstance(hello, wire.Hello))
    assert mine == also_mine != theirs
    assert ANNA not in mine


def test_a_key_tells_neither_user_nor_document(table: Router) -> None:
    (key,) = keys(asks(table, job("secret.py")))
    assert keys(asks(Router(Limits(), MODELS, b"another"), job("secret.py"))) != [key]
    assert ANNA not in key
    assert "secret" not in key


def test_a_stream_serves_a_document_until_it_is_old(table: Router) -> None:
    first, second = job(), job()
    running(table, first)
    assert [type(order) for order in asks(table, second, 1.0)] == [Send]
    table.hear(1, done(first), 2.0)
    table.hear(1, done(second), 2.0)
    assert table.look(LIFE_S) == []
    assert table.look(LIFE_S + 0.1) == [Close(1)]


def test_an_old_stream_keeps_its_other_jobs_while_the_next_one_takes_a_new_stream(table: Router) -> None:
    typed, fill, later = job(), job(kind="fill"), job()
    running(table, typed, fill)
    orders = asks(table, later, LIFE_S + 1)
    assert told(orders) == [wire.Failed(typed.job, "superseded")]
    assert [type(order) for order in orders] == [link.Answer, Send, Open, Send, Send]
    assert table.hear(1, done(typed), LIFE_S + 1) == []
    assert told(table.hear(1, done(fill), LIFE_S + 1))
    assert table.look(LIFE_S + 2) == [Close(1)]
    assert table.running == 1


# Models


def test_a_users_jobs_name_their_model_and_the_same_document_goes_elsewhere_with_another_one(table: Router) -> None:
    coder, small = asks(table, job()), asks(table, job(), peer=b"q", model="small")
    assert [order.model for order in (*coder, *small) if isinstance(order, Open)] == ["coder", "small"]
    assert keys(coder) != keys(small)


def test_a_user_who_gets_another_model_has_it_from_the_next_job_on(table: Router) -> None:
    typed, fill, later = job(), job(kind="fill"), job()
    running(table, typed, fill)
    orders = asks(table, later, 1.0, model="small")
    assert told(orders) == [wire.Failed(typed.job, "superseded")]
    assert [order.model for order in orders if isinstance(order, Open)] == ["small"]
    assert told(table.hear(1, done(fill), 1.0))
    assert table.look(1.0 + LIFE_S)[0] == Close(1)


def test_a_model_that_the_team_does_not_offer_is_refused_with_the_next_step(table: Router) -> None:
    request = job()
    (refusal,) = told(asks(table, request, model="another"))
    sentence = "The team's engine does not offer the model another; ask its administrator to invite you again."
    assert refusal == wire.Failed(request.job, "unavailable", sentence)


# Limits


@pytest.mark.parametrize("answered", [True, False], ids=["done", "cancelled after its last event"])
def test_a_user_who_spends_the_budget_of_steps_waits_and_others_do_not(answered: bool) -> None:
    found = Router(Limits(steps_per_minute=60, burst=10), MODELS, b"s")
    request = job()
    running(found, request)
    found.hear(1, locked(request, 6), 0.0)
    cancelled = wire.encode(wire.Failed(request.job, "cancelled", steps=14))
    found.hear(1, done(request, 14) if answered else cancelled, 0.0)
    (refusal,) = told(asks(found, job(), 0.0))
    assert refusal == wire.Failed(
        refusal.job,  # type: ignore[union-attr]
        "unavailable",
        "Your budget of steps on the team's engine is used up; wait 5 seconds.",
    )
    assert told(asks(found, job(), 0.0, peer=b"q", user=BEN)) == []
    (almost,) = told(asks(found, job(), 4.9))
    assert almost.message.endswith("wait 1 seconds.")  # type: ignore[union-attr]
    assert told(asks(found, job(), 5.0)) == []


def test_a_bucket_holds_no_more_than_its_burst() -> None:
    bucket = Bucket(rate=1.0, most=10.0, level=10.0, at=0.0)
    bucket.take(11, 1000.0)
    assert bucket.wait_s(1000.0) == 2.0
    assert bucket.wait_s(999.0) == 2.0  # a clock that goes back gives nothing
    assert bucket.wait_s(1002.0) == 0.0


def test_a_user_has_so_many_jobs_whatever_the_number_of_editors() -> None:
    found = Router(Limits(jobs=2), MODELS, b"s")
    for peer in (b"p", b"q"):
        assert told(asks(found, job(), peer=peer)) == []
    third = job("other")
    assert told(asks(found, third, peer=b"r")) == [wire.Busy(third.job)]
    assert told(asks(found, job(), peer=b"p")) == []  # which replaces one
    assert told(asks(found, job(), peer=b"s", user=BEN)) == []


def test_a_replica_that_reads_nothing_is_owed_so_many_jobs_though_each_replaces_the_one_before() -> None:
    found = Router(Limits(jobs=1), MODELS, b"s")
    assert [told(asks(found, job())) for _ in range(MAX_OWED)] == [[]] * MAX_OWED
    late = job()
    assert told(asks(found, late)) == [wire.Busy(late.job)]
    assert told(asks(found, job(), user=BEN, peer=b"q")) == []


def test_a_cancel_is_passed_on_once_however_often_it_is_asked_for(table: Router) -> None:
    request = job()
    running(table, request)
    cancels = [table.take(link.CancelJob(b"p", request.job), 0.0) for _ in range(3)]
    assert [len(orders) for orders in cancels] == [1, 0, 0]


def test_a_user_with_ever_more_documents_leaves_streams_to_the_others(table: Router) -> None:
    for number in range(router.MAX_STREAMS):
        request = job(f"{number}")
        running(table, request)
        table.hear(number + 1, done(request, 0), 0.0)
    assert table.news(True).streams == router.MAX_RESTING
    assert told(asks(table, job(), user=BEN, peer=b"q")) == []


def test_the_text_of_a_grammar_counts_as_that_of_a_job() -> None:
    found = Router(Limits(characters=100), MODELS, b"s")
    for grammar in (wire.Json(taken=("x" * 60, "y" * 60)), wire.Pattern("x" * 120)):
        (refusal,) = told(asks(found, job(segments=(wire.Hole(grammar=grammar),))))
        assert "the team's engine takes 100" in refusal.message  # type: ignore[union-attr]


def test_a_job_that_is_too_large_is_refused_in_a_sentence() -> None:
    found = Router(Limits(characters=100), MODELS, b"s")
    neighbour = wire.Neighbour("name", "y" * 50)
    request = job(prefix="x" * 40, neighbours=(neighbour,), draft=("z" * 7,))
    sentence = "This job has 101 characters, the team's engine takes 100."
    assert told(asks(found, request)) == [wire.Failed(request.job, "invalid", sentence)]
    assert told(asks(found, job(prefix="x" * 46, neighbours=(neighbour,)))) == []
    judged = job(segments=(wire.Hole(instead="x" * 101),), method="judge")
    assert told(asks(found, judged))


def test_whoever_counts_is_told_which_limit_it_was() -> None:
    found = Router(Limits(jobs=1, characters=50, burst=5, steps_per_minute=1), MODELS, b"s")
    first = job()
    running(found, first)
    orders = [*asks(found, job(prefix="x" * 51)), *asks(found, job("other"))]
    found.hear(1, done(first, steps=5), 0.0)
    orders += [*asks(found, job()), *asks(found, job(), model="another")]
    assert [order.refusal for order in orders if isinstance(order, link.Answer)] == ["size", "busy", "budget", "model"]


def test_no_job_has_more_time_than_the_limit() -> None:
    found = Router(Limits(seconds=5), MODELS, b"s")
    *_, sent = asks(found, job(deadline_ms=60_000.0))
    assert isinstance(sent, Send)
    assert wire.decode_client(sent.frame).deadline_ms == 5000.0  # type: ignore[union-attr]


# Faults


def test_a_lost_replica_fails_each_of_its_jobs_once_and_no_others(table: Router) -> None:
    one, two, other = job(), job(kind="fill"), job("other")
    running(table, one, two, other)
    assert told(table.lost(1, 1.0)) == [wire.Failed(name, "engine_lost", router.LOST) for name in (one.job, two.job)]
    assert table.lost(1, 1.0) == []
    assert table.hear(1, done(one), 1.0) == []
    assert table.running == 1
    assert keys(asks(table, job(), 1.0)) != []  # the next job is on a new stream


def test_the_news_has_each_stream_that_its_replica_broke_once(table: Router) -> None:
    running(table, job(), job("other"), job("third"))
    table.lost(1, 1.0)
    table.take(link.Gone(b"p"), 1.0)
    asks(table, job(), 1.0)
    table.lost(4, 1.0)  # which no replica had taken
    asks(table, job(), 1.0)
    assert table.news(True) == link.Upstream(streams=1, lost=1, reached=True)
    assert table.news(False) == link.Upstream(streams=1, lost=0, reached=False)


def test_an_engine_that_cannot_be_reached_says_nothing_of_where_it_is(table: Router) -> None:
    request = job()
    asks(table, request)
    assert told(table.lost(1, 0.0)) == [wire.Failed(request.job, "unavailable", router.AWAY)]


def test_a_replica_that_is_silent_after_the_deadline_is_left(table: Router) -> None:
    request = job(deadline_ms=1000.0)
    running(table, request)
    assert table.look(1.0 + GRACE_S) == []
    orders = table.look(1.1 + GRACE_S)
    assert told(orders) == [wire.Failed(request.job, "engine_lost", router.SILENT)]
    assert orders[-1] == Close(1)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (welcome(wire.PROTOCOL + 1), "The team's engine is of another version than its door."),
        (b"\xc1", "The team's engine is of another version than its door."),
        (welcome(message="The engine is shutting down."), "The engine is shutting down."),
    ],
)
def test_a_replica_that_does_not_fit_is_refused_in_a_sentence(table: Router, frame: bytes, why: str) -> None:
    request = job()
    asks(table, request)
    assert told(table.hear(1, frame, 0.0)) == [wire.Failed(request.job, "unavailable", why)]


def test_an_answer_that_cannot_be_read_ends_its_stream(table: Router) -> None:
    request = job()
    running(table, request)
    assert told(table.hear(1, b"\xc1", 0.0)) == [wire.Failed(request.job, "engine_lost", router.UNREADABLE)]


def test_a_text_that_costs_two_replicas_is_refused(table: Router) -> None:
    for number in (1, 2):
        running(table, job(prefix="poison"), now=float(number))
        table.lost(number, float(number))
    orders = asks(table, job(prefix="poison"), 3.0, user=BEN, peer=b"q")
    assert isinstance(orders[0], link.Answer)
    assert orders[0].refusal == "suspect"
    (refusal,) = told(orders)
    assert refusal.message.startswith("This text stopped the engine twice")  # type: ignore[union-attr]


def test_a_text_that_several_documents_have_is_not_refused_when_one_replica_is_lost(table: Router) -> None:
    running(table, *(job(name, prefix="the same") for name in "abc"))
    for number in (1, 2, 3):
        table.lost(number, number / 100)
    assert told(asks(table, job(prefix="the same"), 1.0)) == []


def test_a_client_that_leaves_takes_its_streams_along(table: Router) -> None:
    running(table, job(), job("other"))
    assert table.take(link.Gone(b"p"), 0.0) == [Close(1), Close(2)]
    assert table.take(link.Gone(b"p"), 0.0) == []


def test_a_cancel_travels_on_the_jobs_own_stream(table: Router) -> None:
    request = job()
    running(table, request)
    assert table.take(link.CancelJob(b"p", request.job), 0.0) == [Send(1, wire.encode(wire.Cancel(request.job)))]
    assert table.take(link.CancelJob(b"q", request.job), 0.0) == []


# Whatever happens in whatever order

A_MODEL = st.sampled_from([*MODELS, "another"])
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"), st.integers(0, 3), st.sampled_from("de"), st.sampled_from(["complete", "fill"]), A_MODEL
        ),
        st.tuples(st.sampled_from(["cancel", "locked", "done", "failed"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["lost", "welcome", "old", "noise"]), st.integers(0, 12)),
        st.tuples(st.just("gone"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 3.0, 13.0, 40.0])),
    ),
    max_size=80,
)


class Storm:
    """Two users with two clients each, at replicas that answer, break, hang and talk nonsense."""

    def __init__(self) -> None:
        self.router, self.now = Router(Limits(steps_per_minute=600, burst=50, jobs=4), MODELS, b"s"), 0.0
        self.asked, self.owner = list[wire.Infill](), dict[str, bytes]()
        self.opened, self.left, self.ended = set[int](), set[str](), Counter[str]()

    def happens(self, what: str, *more: Any) -> list[Order]:
        match what:
            case "ask":
                return self.ask(*more)
            case "gone":
                return self.leave(b"%d" % more[0])
            case "wait":
                self.now += more[0]
                return self.router.look(self.now)
            case "lost":
                return self.router.lost(more[0], self.now)
            case "welcome" | "old" | "noise":
                frame = {"welcome": welcome(), "old": welcome(1), "noise": b"\xc1"}[what]
                return self.router.hear(more[0], frame, self.now)
            case _ if self.asked:
                return self.about(self.asked[more[0] % len(self.asked)], what)
        return []

    def ask(self, client: int, document: str, kind: str, model: str) -> list[Order]:
        request, peer = job(document, kind=kind, deadline_ms=5000.0), b"%d" % client
        self.asked.append(request)
        self.owner[request.job] = peer
        return asks(self.router, request, self.now, peer=peer, user=(ANNA, BEN)[client % 2], model=model)

    def leave(self, peer: bytes) -> list[Order]:
        self.left |= {name for name, whose in self.owner.items() if whose == peer}
        return self.router.take(link.Gone(peer), self.now)

    def about(self, request: wire.Infill, what: str) -> list[Order]:
        """Its client cancels a job, or every replica, whose it may not be, says something about it."""
        if what == "cancel":
            return self.router.take(link.CancelJob(self.owner[request.job], request.job), self.now)
        failed = wire.encode(wire.Failed(request.job, "cancelled"))
        frame = {"locked": locked(request, 3), "done": done(request), "failed": failed}[what]
        return [order for stream in sorted(self.opened) for order in self.router.hear(stream, frame, self.now)]

    def obey(self, order: Order) -> None:
        match order:
            case Open(stream):
                self.opened.add(stream)
            case Send(stream):
                assert stream in self.opened
            case Close(stream):
                self.opened.remove(stream)
            case link.Answer(peer, frame):
                event = wire.decode_engine(frame)
                assert isinstance(event, wire.Locked | wire.Done | wire.Failed | wire.Busy)
                assert self.owner[event.job] == peer
                assert not self.ended[event.job]
                assert event.job not in self.left
                self.ended[event.job] += not isinstance(event, wire.Locked)


@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_every_job_ends_once_and_only_its_own_client_hears_of_it(steps: list[tuple[Any, ...]]) -> None:
    storm = Storm()
    for step in [*steps, ("wait", 100.0), ("wait", 100.0)]:
        for order in storm.happens(*step):
            storm.obey(order)
    assert storm.router.running == 0
    assert all(storm.ended[request.job] == 1 for request in storm.asked if request.job not in storm.left)
