"""Engines behind HTTP: whatever a service does, a job has one end and a failure is one sentence."""

import asyncio
import json
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caesura import wire
from caesura.client.backend import EngineBusy, EngineError, EngineFailed, EngineUnavailable, FinishedJob, job_id
from caesura.client.backends import KINDS as SERVICE_KINDS
from caesura.client.backends import Kind, health, kinds, named
from caesura.client.backends.api import Api
from caesura.client.backends.fim import Fim
from caesura.client.backends.http import Http
from caesura.client.backends.inception import Inception
from caesura.client.backends.jobs import HttpBackend
from caesura.client.backends.llama_server import LlamaServer
from caesura.client.backends.vllm import CANVAS, STEPS, VOCABULARY, Vllm
from caesura.fim_formats import FORMATS, FimFile, undo

from ..support.processes.service import Reply, Service, events, recorded, response, serving, until

PROPS = response({"total_slots": 4, "model_alias": "", "model_path": "/models/qwen.gguf"})
END = {"content": "", "stop": True, "stop_type": "eos", "timings": {"prompt_ms": 12.5, "predicted_ms": 30.25}}


def part(text: str, logprob: float = 0.0) -> dict[str, Any]:
    return {"content": text, "stop": False, "completion_probabilities": [{"id": 1, "logprob": logprob}]}


STREAM = events(part("a", -0.5), part(" +"), part(" b", -0.5), END, done=False)


def job(**changes: Any) -> wire.Infill:
    given = {"prefix": "x = ", "suffix": "\n", "segments": (wire.Hole(16, "line"),), "deadline_ms": 2000.0}
    return wire.Infill(**{"job": job_id(), "document": "d", **given, **changes})


def backend(service: Service, api: Api | None = None, key: str = "") -> HttpBackend:
    return HttpBackend(api or LlamaServer(), Http("desk", service.url, lambda: key), "127.0.0.1")


async def asked(found: HttpBackend, job: wire.Infill) -> list[wire.Locked | wire.Done]:
    async with aclosing(found.infill(job)) as heard:
        return [event async for event in heard]


async def test_an_answer_is_told_as_it_grows_and_then_whole() -> None:
    async with serving(PROPS, STREAM) as service:
        found = backend(service)
        finished = list[FinishedJob]()
        found.on_job = finished.append
        *locked, done = await asked(found, job())
        await found.close()
    assert [event.holes[0].text for event in locked] == ["a", "a +", "a + b"]
    assert [event.seq for event in locked] == [0, 1, 2]
    assert all(isinstance(event, wire.Locked) and event.holes[0].open for event in locked)
    assert isinstance(done, wire.Done)
    assert (done.seq, done.stop, done.holes[0].text, done.holes[0].open) == (3, "complete", "a + b", 0)
    assert done.holes[0].confidence == pytest.approx(0.3679, abs=1e-4)
    assert [end for end, _ in done.holes[0].probabilities] == [1, 3, 5]
    assert (done.timings.prefill_ms, done.timings.denoise_ms) == (12.5, 30.25)
    assert done.tokens == wire.Tokens(left_to_right=3)
    assert [(one.end, one.steps) for one in finished] == [("done", 3)]
    for event in (*locked, done):
        assert wire.decode_engine(wire.encode(event)) == event  # within the bounds of the wire


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (response({"error": {"type": "invalid_api_key"}}, 401), "does not accept the key"),
        (response({"error": {"type": "account_error"}}, 402), "asks for payment"),
        (response({"error": {"message": "x = secret"}}, 404), "has no such model or address"),
        (response({}, 429, retry_after="7"), "too many requests"),
        (response({}, 500), "failed with error 500"),
        (response(b"<html>\xe9", 502, kind="text/html"), "failed with error 502"),
        (response({}, 501), "cannot fill gaps"),
        (response({}, 503), "not ready yet"),
        (response({}, 418), "refuses the request with error 418"),
        (response({"error": {"type": "exceed_context_size_error"}}, 400), "too long for desk"),
        (response({"error": {"code": "context_length_exceeded"}}, 400), "too long for desk"),
        (response("", 302, location="http://127.0.0.1:1/"), "redirects to another address"),
        (response("<html>", kind="text/html"), "answers with a web page"),
        (response("{", kind="application/json"), "cannot be read"),
        (response({"content": 1, "stop": False}), "cannot be read"),
        (response({"content": "a", "stop": False}), "ended in the middle"),
        (events(part("a"), done=False), "ended in the middle"),
        (events({"error": {"code": 500, "message": "x = secret"}}, done=False), "failed with error 500"),
        (events('{"content": "é", "stop": false}', done=False).replace("é".encode(), b"\xff\xff"), "not UTF-8"),
        (events("[" * 100_000, done=False), "cannot be read"),
        (response(b"\x1f\x8b", content_encoding="gzip"), "compresses answers"),
        (response(zlib.compress(STREAM), kind="text/event-stream; charset=zlib"), "not UTF-8|ended in the middle"),
        (response("data: " + "x" * (1 << 20), kind="text/event-stream"), "an event of more than 1 MiB"),
        (response(" " * (1 << 20) + " ", kind="application/json"), "more than 1 MiB"),
        (events(*[part("abcd ")] * 600, done=False), "goes on after the limit"),
        (events(part("x" * 16_385), done=False), "goes on after the limit"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "broke the connection"),
        ((), "broke the connection"),
        ((b"HTTP/1.1 200 X\r\n", ...), "did not begin to answer in 0.2 seconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_failure_is_one_sentence_without_a_word_of_the_service(answer: Any, sentence: str) -> None:
    async with serving(PROPS, answer) as service:
        found = backend(service)
        with pytest.raises(EngineError, match=sentence) as raised:
            await asked(found, job(deadline_ms=200.0 if "begin" in sentence else 5000.0))
        await found.close()
    assert "secret" not in str(raised.value)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_replacement_character_that_a_service_sends_is_text_like_any_other(kind: str) -> None:
    choice = {"text": "a\ufffd", "finish_reason": "stop", "logprobs": {"tokens": ["\ufffd"], "token_logprobs": [0.0]}}
    body = json.dumps({"choices": [choice]}, ensure_ascii=False)
    async with serving(response(f"data: {body}\n\n" if "event" in kind else body, kind=kind)) as service:
        found = backend(service, Fim("m", ""))
        assert (await asked(found, job()))[-1].holes[0].text == "a\ufffd"
        await found.close()


async def test_a_service_that_failed_is_left_alone_and_asked_again_later() -> None:
    async with serving(PROPS, response({}, 429, retry_after="600"), PROPS, STREAM) as service:
        found = backend(service)
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match="too many requests"):
                await asked(found, job())
        assert len(service.asked) == 2
        assert (found.condition.state, found.condition.message[:8]) == ("unavailable", "desk has")
        found._health._rested = 0.0
        assert (await asked(found, job()))[-1].holes[0].text == "a + b"
        assert found.condition.state == "ready"
        await found.close()


async def test_a_server_that_was_started_again_is_asked_what_it_has_now() -> None:
    smaller = response({"total_slots": 1, "model_alias": "", "model_path": "/models/other.gguf"})
    async with serving(PROPS, STREAM, STREAM, response({}, 500), smaller, STREAM) as service:
        found = backend(service)
        for text in ("a\n", "b\n"):
            await asked(found, job(prefix=text))
        with pytest.raises(EngineUnavailable):
            await asked(found, job())
        assert found.condition.model == "qwen"
        found._health._rested = 0.0
        await asked(found, job(prefix="c\n"))
        assert found.condition.model == "other"
        assert service.asked[-1][1]["id_slot"] == 0
        await found.close()


@pytest.mark.parametrize("api", [lambda: Fim("", ""), lambda: Vllm("")], ids=["fim", "vllm"])
async def test_a_model_that_the_service_has_no_more_gives_way_to_the_one_it_has(api: Callable[[], Api]) -> None:
    names = ["old", "new"]

    def reply(path: str, body: Any) -> bytes:
        if path == "/v1/models":
            return response({"data": [{"id": names[0]}]})
        return recorded("written/fim") if body["model"] == names[0] else response({}, 404)

    async with serving(reply) as service:
        found = HttpBackend(api(), Http("desk", service.url, str), "host")
        await found.described()
        del names[0]
        with pytest.raises(EngineUnavailable, match="no such model"):
            await asked(found, job())
        await found.described()
        assert found.condition.model == "new"
        await found.close()


async def test_pauses_grow_and_a_text_that_is_too_long_makes_none() -> None:
    async with serving(PROPS, response({"error": {"type": "exceed_context_size_error"}}, 400)) as service:
        found = backend(service)
        for _ in range(2):
            with pytest.raises(EngineFailed, match="too long") as raised:
                await asked(found, job())
            assert raised.value.code == "invalid"
        assert found.condition.state == "ready"
        service.answers = [response({}, 500)]
        pauses = []
        for _ in range(3):
            found._health._rested = 0.0
            with pytest.raises(EngineUnavailable):
                await asked(found, job())
            pauses.append(round(found._health._rested - time.monotonic()))
        assert pauses == [1, 2, 4]
        await found.close()


def canvas_server(answer: str, broken: dict[str, Any] | None = None) -> Callable[[str, Any], bytes]:
    """vLLM with a tokenizer of one token a character, and a model that knows the answer."""

    def reply(path: str, body: Any) -> bytes:
        if path == "/v1/models":
            return response({"data": [{"id": "diffusion"}]})
        if path == "/tokenize":
            text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
            return response({"tokens": list(map(ord, text)), "count": len(text), "max_model_len": 8192})
        asked = body["vllm_xargs"]
        canvas, pinned = asked["diffusion_seed_canvas"], asked.get("diffusion_pinned", [])
        size = len(canvas) - len(pinned)
        fits = size == len(answer)
        text = (answer[:size].ljust(size) + "".join(chr(canvas[at]) for at in pinned)) if size else ""
        chances = [-0.1 if fits else -3.0] * size + [-0.1 if fits else -5.0] * len(pinned)
        choice = {"text": text, "finish_reason": "length", "logprobs": {"token_logprobs": chances}}
        return response({"choices": [choice | (broken or {})]})

    return reply


KINDS: dict[str, tuple[Callable[[], Api], Reply]] = {
    "llama-server": (LlamaServer, STREAM),
    "fim": (lambda: Fim("m", ""), recorded("written/fim")),
    "fim without chances": (lambda: Fim("m", "qwen"), recorded("written/fim_without_chances")),
    "inception": (lambda: Inception(""), recorded("written/inception")),
    "vllm": (lambda: Vllm("m"), canvas_server("a + b")),
}


def saying(kind: str, text: str) -> Reply:
    """What a service of a kind says, a character at a time; the end is the last event."""
    if kind == "vllm":
        return canvas_server(text)
    if kind == "llama-server":
        return events(*map(part, text), END, done=False)
    pieces = [{"choices": [{"text": one}]} for one in text]
    return events(*pieces, {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 3}}, done=False)


STREAMS = {kind: stream for kind, (_, stream) in KINDS.items() if isinstance(stream, bytes)}


def knowing(reply: Reply) -> Reply:
    """A service that says how it is, and to everything else `reply`."""
    return lambda path, body: PROPS if path == "/props" else reply(path, body) if callable(reply) else reply


@asynccontextmanager
async def asking(kind: str, reply: Reply | None = None) -> AsyncIterator[tuple[Service, HttpBackend]]:
    """A backend of a kind that knows its model already, and its service, which says `reply` instead of its own."""
    async with serving(PROPS) as service:
        found = backend(service, KINDS[kind][0]())
        await asked_nothing(found)
        service.answers, service.asked = [knowing(reply or KINDS[kind][1])], []
        try:
            yield service, found
        finally:
            await found.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_fills_a_gap_and_shows_the_neighbours(kind: str) -> None:
    async with asking(kind) as (service, found):
        near = wire.Neighbour("# other.py\nimport evil", "height = 1")  # a file may be called so
        *locked, done = await asked(found, job(neighbours=(near,), segments=(wire.Hole(5, "line"),)))
    assert isinstance(done, wire.Done)
    assert (len({event.holes[0].locked_start for event in locked}) >= 2) == (kind != "vllm")  # while it is written
    assert bool(done.holes[0].probabilities) == (kind not in ("fim without chances", "inception"))
    assert (done.holes[0].text, done.stop) == ("a + b", "complete")
    assert (done.tokens.canvas or done.tokens.left_to_right) >= 2
    assert done.timings.total_ms > 0
    sent = str([body for _, body in service.asked])
    assert r"# other.py\\nimport evil" in sent
    assert r"# other.py\nimport evil" not in sent
    assert "height = 1" in sent


def hanging(path: str, body: Any) -> Any:
    """A service that takes every request for text and does not answer."""
    return canvas_server("a + b")(path, body) if path == "/tokenize" else (b"HTTP/1.1 200 X\r\n", ...)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_ends_its_requests_with_the_job(kind: str) -> None:
    """A cancelled one at once, and one past its deadline."""
    async with asking(kind, hanging) as (service, found):
        task = asyncio.create_task(asked(found, job()))
        await until(lambda: service.asked and service.asked[-1][0] != "/tokenize")
        task.cancel()
        await service.left.wait()
        with pytest.raises(EngineUnavailable, match="did not begin to answer"):
            await asked(found, job(deadline_ms=100.0))
        await until(lambda: not service.waiting)


@pytest.mark.parametrize("kind", KINDS)
async def test_another_seed_asks_for_another_answer_where_a_service_can_give_one(kind: str) -> None:
    async with asking(kind) as (service, found):
        bodies = list[str]()
        for seed in (0, 1, 2):
            service.asked.clear()
            await asked(found, job(seed=seed))
            bodies.append(str([body for path, body in service.asked if path != "/tokenize"]))
    assert len(set(bodies)) == (1 if kind == "inception" else 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("segments", "sentence"),
    [
        ((wire.Hole(), wire.Text("+"), wire.Hole()), "desk cannot fill several holes together."),
        ((wire.Hole(instead="a"), wire.Hole(instead="b")), "desk cannot judge edits."),
        ((wire.Hole(grammar=wire.Json()),), "desk cannot keep to a grammar."),
    ],
)
async def test_no_kind_is_asked_for_what_it_cannot_do(kind: str, segments: Any, sentence: str) -> None:
    async with asking(kind) as (service, found):
        method = "judge" if segments[0].instead else None
        with pytest.raises(EngineFailed, match=sentence):
            await asked(found, job(segments=segments, method=method))
        assert not service.asked


@pytest.mark.parametrize("kind", KINDS)
async def test_no_kind_gives_more_than_one_answer_or_takes_a_draft(kind: str) -> None:
    async with asking(kind) as (service, found):
        done = (await asked(found, job(candidates=3, draft=("a draft",))))[-1]
        assert {"candidates", "drafts", "priorities"} <= found.condition.lacks
    assert isinstance(done, wire.Done)
    assert done.alternatives == ()
    assert "a draft" not in str(service.asked)


@pytest.mark.parametrize("kind", STREAMS)
async def test_wherever_a_stream_is_cut_a_job_has_one_end(kind: str) -> None:
    """At each byte: an answer that is whole, or a failure, and text only grows until then."""
    stream, ends = STREAMS[kind], set[str]()
    async with asking(kind) as (service, found):
        for size in range(stream.index(b"\r\n\r\n"), len(stream) + 1):
            service.answers = [knowing((stream[:size],))]
            found._health._rested, texts = 0.0, [""]
            try:
                async with aclosing(found.infill(job())) as heard:
                    async for event in heard:
                        assert event.holes[0].text.startswith(texts[-1])
                        texts.append(event.holes[0].text)
                        assert isinstance(event, wire.Locked) or event.holes[0].text == "a + b"
                ends.add("done")
            except EngineUnavailable as error:
                ends.add(str(error))
    assert {"done", "desk broke the connection in the middle of an answer; see its log."} <= ends


async def asked_nothing(found: HttpBackend) -> None:
    """Wait until the model is known."""
    await found.start()
    while found.condition.state == "connecting":
        await asyncio.sleep(0)


async def test_cancelling_closes_the_connection_at_once() -> None:
    async with serving(PROPS, (STREAM[:-60], ...)) as service:
        found = backend(service)
        await asked_nothing(found)
        taken = []
        for _ in range(5):
            service.left.clear()
            async with aclosing(found.infill(job())) as heard:
                await anext(heard)
                began = time.monotonic()
            await service.left.wait()
            taken.append((time.monotonic() - began) * 1000)
        await found.close()
    assert sorted(taken)[2] < 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("older", "code"), [({}, "superseded"), ({"document": "other", "priority": "speculative"}, "cancelled")]
)
async def test_a_newer_job_of_a_document_ends_the_older_one_and_any_job_a_speculative_one(
    kind: str, older: dict[str, Any], code: str
) -> None:
    async with asking(kind, hanging) as (service, found):
        ended = asyncio.create_task(asked(found, job(**older)))
        await until(lambda: service.waiting)
        service.answers = [KINDS[kind][1]]
        assert (await asked(found, job(segments=(wire.Hole(5, "line"),))))[-1].holes[0].text == "a + b"
        with pytest.raises(EngineFailed) as raised:
            await ended
        assert raised.value.code == code
        await until(lambda: not service.waiting)


async def drained(heard: Any) -> str:
    try:
        async for _ in heard:
            pass
    except EngineFailed as error:
        return error.code
    return "done"


async def test_a_closed_backend_has_ended_its_jobs_and_takes_no_more() -> None:
    async with serving(PROPS, (STREAM[:-60], ...), STREAM) as service:
        found = backend(service)
        finished = list[FinishedJob]()
        found.on_job = finished.append
        await asked_nothing(found)
        waits = asyncio.create_task(asked(found, job(document="waits")))
        await until(lambda: service.waiting)
        async with aclosing(found.infill(job(document="paused"))) as paused:  # its consumer is elsewhere
            async for event in paused:
                if isinstance(event, wire.Done):
                    break
            await found.close()
            assert [one.end for one in finished] == ["cancelled"]
            assert await drained(paused) == "done"
        assert not found._background._tasks
        with pytest.raises(EngineFailed, match="cancelled"):
            await waits
        with pytest.raises(EngineUnavailable, match="desk is closed"):
            await asked(found, job())


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_deadline_gives_what_there_is(kind: str) -> None:
    stream = saying(kind, "a + b\n")
    assert isinstance(stream, bytes)
    async with asking(kind, (stream[: stream.rindex(b"data: ")], ...)) as (_, found):
        done = (await asked(found, job(deadline_ms=200.0, segments=(wire.Hole(16, "block"),))))[-1]
    assert isinstance(done, wire.Done)
    assert (done.stop, done.holes[0].text) == ("deadline", "a + b")


@pytest.mark.parametrize("kind", KINDS)
async def test_jobs_share_a_warm_connection(kind: str) -> None:
    async with asking(kind) as (service, found):
        for _ in range(3):
            await asked(found, job(segments=(wire.Hole(5, "line"),)))
            await asyncio.gather(*found._background._tasks)
    assert len(service.asked) >= 3
    assert service.connections <= (3 if kind == "vllm" else 1)  # it asks for several things at once


async def test_a_job_gets_the_slot_that_has_its_context() -> None:
    """Also under another name, as where a resting cursor's context was read before the first key."""
    one, two, three, four, five = (f"{word}\n" * 100 for word in ("one", "two", "three", "four", "five"))
    async with serving(PROPS, STREAM) as service:
        found = backend(service)
        for text in (one, two, one + "a = ", three, two[:-8] + "b\n", four, five, one, two):
            await asked(found, job(prefix=text, document=text[:9]))
        await found.close()
        slots = [body["id_slot"] for _, body in service.asked if body]
    first, second, again, third, edited, fourth, fifth, lost, kept = slots
    assert first == again
    assert second == edited == kept
    assert {first, second, third, fourth} == set(range(4))
    assert fifth == first  # out of use for the longest time
    assert lost == third


async def test_what_is_asked_of_a_llama_server() -> None:
    async with serving(PROPS, STREAM) as service:
        found = backend(service, key="k123")
        here = wire.Neighbour("# other.py", "y = 1\n")
        segments = (wire.Text("<"), wire.Hole(7, "block"), wire.Text(">"))
        await asked(found, job(neighbours=(here,), segments=segments, seed=5, prefix="a\n<|fim_prefix|>"))
        await asked(found, job(deadline_ms=900.0, prefix="a\nif b < c: d = "))
        await found.close()
    (path, body), (_, second) = service.asked[1:]
    assert path == "/infill"
    assert body["input_prefix"] == "a\n<|fim_prefix|><"
    assert "prompt" not in body  # of which the server reads tokens
    assert (body["input_suffix"], body["n_predict"]) == (">\n", 7)
    assert body["input_extra"] == [{"filename": "# other.py", "text": "y = 1\n"}]
    assert (body["seed"], body["stop"], body["cache_prompt"], body["stream"]) == (5, [], True, True)
    assert (second["temperature"], second["stop"]) == (0.0, ["\n"])
    assert 0 < second["t_max_predict_ms"] <= 900
    assert "authorization: bearer k123" in service.heads[1].lower()
    assert "accept-encoding: identity" in service.heads[1].lower()


@pytest.mark.parametrize(
    ("hole", "prefix", "suffix", "text", "kept"),
    [
        (wire.Hole(16, "line"), "x = ", "\n", "1\ny = 2", "1"),
        (wire.Hole(16, "span"), "f(", ")\n", "a, b\r\n", "a, b"),
        (wire.Hole(16, "auto"), "f(", ")\n", "a\nb", "a"),
        (wire.Hole(16, "auto"), "x = ", "\n", "1\ny = 2\n", "1\ny = 2\n"),
        (wire.Hole(16, "block"), "def f():\n    ", "\n", "a\n\n    b\n  )\nc\nd", "a\n\n    b\n  )"),
        (wire.Hole(16, "block"), "def f():\n    ", "\n", "a()\n\n\nc\n", "a()"),
        (wire.Hole(16, "block"), "x\n", "\n", "a\nb\n", "a\nb\n"),
        (wire.Hole(16, "block"), "def f():\n    ", "\n", "a\n\n  \nc", "a"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_ends_where_its_hole_does(
    kind: str, hole: wire.Hole, prefix: str, suffix: str, text: str, kept: str
) -> None:
    hole = wire.Hole(len(text), hole.kind)
    async with asking(kind, saying(kind, text)) as (_, found):
        heard = await asked(found, job(segments=(hole,), prefix=prefix, suffix=suffix))
    done = heard[-1]
    assert isinstance(done, wire.Done)
    assert (done.holes[0].text, done.stop) == (kept, "complete")
    texts = [event.holes[0].locked_start for event in heard]
    assert all(later.startswith(text) for text, later in pairwise(texts))
    assert not done.holes[0].probabilities or done.holes[0].probabilities[-1][0] == len(kept)


async def test_a_service_that_loads_its_model_is_ready_later() -> None:
    async with serving(response({"error": {"code": 503}}, 503, retry_after="0"), PROPS) as service:
        found = backend(service)
        states = list[str]()
        found.on_change = lambda: states.append(found.condition.state)
        await found.start()
        await until(lambda: found.condition.state == "ready")
        assert states[0] == "loading"
        assert states[-1] == "ready"
        assert (found.condition.model, found.condition.device) == ("qwen", "desk (127.0.0.1)")
        await found.close()


async def test_a_service_that_takes_the_connection_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DESCRIBE_S", 0.05)
    async with serving((b"HTTP/1.1 200 X\r\n", ...)) as service:
        found = backend(service)
        await found.start()
        with pytest.raises(EngineUnavailable, match="takes connections but does not answer"):
            await asked(found, job())
        await service.left.wait()
        await found.close()


async def test_a_service_that_closes_its_connections_as_they_are_used_again_is_asked_again() -> None:
    async with serving(PROPS, STREAM, (), STREAM, (STREAM,)) as service:
        found = backend(service)
        for _ in range(20):
            assert (await asked(found, job()))[-1].holes[0].text == "a + b"
            await asyncio.gather(*found._background._tasks)
        await found.close()
    assert len(service.asked) == 22


async def test_no_cookie_is_kept() -> None:
    async with serving(response({}, set_cookie="id=1"), STREAM) as service:
        found = backend(service)
        await asked(found, job())
        await found.close()
    assert not any("cookie" in head.lower() for head in service.heads)


async def test_the_model_is_told_as_soon_as_it_is_known() -> None:
    async with serving(PROPS) as service:
        found = backend(service)
        states = list[str]()
        found.on_change = lambda: states.append(found.condition.state)
        await asked_nothing(found)
        await found.close()
    assert states == ["ready"]


async def test_a_models_name_cannot_write_on_a_terminal() -> None:
    models = response({"data": [{"id": "evil\x1b[2J\n\u202e" + "x" * 100}]})
    async with serving(models, recorded("written/fim")) as service:
        found = backend(service, Fim("", ""))
        await asked(found, job())
        await found.close()
    assert found.condition.model == r"evil\x1b[2J\n\u202e" + "x" * 44 + "…"
    assert service.asked[1][1]["model"].startswith("evil\x1b")  # the service gets its own word


async def test_nobody_at_the_address() -> None:
    found = HttpBackend(LlamaServer(), Http("desk", "http://127.0.0.1:1", str), "127.0.0.1")
    with pytest.raises(EngineUnavailable, match="desk cannot be reached"):
        await asked(found, job())
    await found.close()


async def test_jobs_wait_for_one_call_to_the_keyring_and_a_closed_backend_for_none() -> None:
    """As while its dialog is open."""
    opened, calls = threading.Event(), list[threading.Thread]()

    def key() -> str:
        calls.append(threading.current_thread())
        opened.wait(10)
        return "k123"

    async with serving(PROPS, STREAM) as service:
        found, other = (HttpBackend(LlamaServer(), Http("desk", service.url, key), "127.0.0.1") for _ in range(2))
        for _ in range(2):
            with pytest.raises(EngineUnavailable):
                await asked(found, job(deadline_ms=30.0))
            found._health._rested = 0.0
        await other.start()
        await until(lambda: len(calls) >= 2)
        await other.close()
        answers = asyncio.create_task(asked(found, job()))
        await asyncio.sleep(0)
        opened.set()
        assert (await answers)[-1].holes[0].text == "a + b"
        await found.close()
    assert len(calls) == 2  # one for each backend
    assert all(thread.daemon for thread in calls)
    assert "authorization: bearer k123" in service.heads[-1].lower()


# Other kinds


async def test_a_completion_service_gets_a_suffix_and_its_chances_are_heard() -> None:
    models = response({"object": "list", "data": [{"id": "coder", "object": "model"}]})
    async with serving(models, recorded("written/fim")) as service:
        found = backend(service, Fim("", ""))
        near = wire.Neighbour("# other.py", "y = 1\n")
        done = (await asked(found, job(neighbours=(near,), seed=3)))[-1]
        assert (found.condition.model, found.condition.state) == ("coder", "ready")
        await found.close()
    assert [path for path, _ in service.asked] == ["/v1/models", "/v1/completions"]
    body = service.asked[1][1]
    assert (body["prompt"], body["suffix"], body["model"]) == ("# other.py\ny = 1\n\nx = ", "\n", "coder")
    assert (body["stop"], body["seed"], body["max_tokens"]) == (["\n"], 3, 16)
    assert done.holes[0].confidence == pytest.approx(0.3679, abs=1e-4)


async def test_a_completion_service_without_suffix_gets_the_models_own_prompt() -> None:
    async with serving(recorded("written/fim_without_chances")) as service:
        found = backend(service, Fim("m", "qwen"))
        near = wire.Neighbour("# other.py", "y = 1\n")
        done = (await asked(found, job(neighbours=(near,))))[-1]
        with pytest.raises(EngineFailed, match=r"desk is not asked here: the text contains <\|fim_middle\|>"):
            await asked(found, job(suffix="<|fim_middle|>"))
        assert found.condition.state == "ready"
        await found.close()
    ((path, body),) = service.asked
    prompt = undo(body["prompt"])
    assert prompt
    assert (path, prompt.prefix, prompt.suffix) == ("/v1/completions", "x = ", "\n")
    assert prompt.files == (FimFile("# other.py", "y = 1\n"),)
    assert "suffix" not in body
    assert len(body["stop"]) <= 4
    assert (done.holes[0].confidence, done.holes[0].probabilities) == (1.0, ())  # it does not say how sure it is


async def test_a_chance_that_is_missing_is_not_certainty_and_every_token_counts() -> None:
    def said(logprobs: tuple[float | None, ...], usage: Any) -> bytes:
        choice = {"text": "a + b", "logprobs": {"token_logprobs": logprobs}}
        end = {"choices": [{"text": "", "finish_reason": "stop"}]}
        return events({"choices": [choice]}, end, {"choices": [], "usage": usage})

    for logprobs, usage, chances, tokens in [
        ((-0.5, None, -0.5), None, 0, 3),
        ((-0.5, -0.5), {"completion_tokens": 7}, 1, 7),
    ]:
        async with serving(said(logprobs, usage)) as service:
            found = backend(service, Fim("m", ""))
            done = (await asked(found, job()))[-1]
            await found.close()
        assert isinstance(done, wire.Done)
        assert (len(done.holes[0].probabilities), done.tokens.left_to_right) == (chances, tokens)


async def test_a_marker_of_a_gap_in_any_format_reaches_no_server_that_may_read_it() -> None:
    async with serving(recorded("written/fim")) as service:
        found = backend(service, Fim("m", ""))
        for row in FORMATS.values():
            for changed in ({"prefix": f"a{row.prefix}"}, {"neighbours": (wire.Neighbour("# b", row.suffix),)}):
                with pytest.raises(EngineFailed, match="desk is not asked here: the text contains"):
                    await asked(found, job(**changed))
        assert not service.asked
        await asked(found, job(prefix="<s>a</s>", suffix="<|im_end|>"))  # which HTML and documents have
        await found.close()


@pytest.mark.parametrize("marker", FORMATS["qwen"].markers)
async def test_no_marker_of_the_format_lands_in_the_file(marker: str) -> None:
    """Also one that came as text, character by character."""
    said = events(*({"choices": [{"text": one}]} for one in f"a < b{marker}\nx"), done=False)
    async with serving(said) as service:
        found = backend(service, Fim("m", "qwen"))
        *locked, done = await asked(found, job(segments=(wire.Hole(64, "block"),)))
        await found.close()
    assert done.holes[0].text == "a < b"
    assert {event.holes[0].text for event in locked} <= {"a < b"[:size] for size in range(6)}


async def test_mercury_is_asked_without_its_defaults_for_prose() -> None:
    async with serving(recorded("written/inception")) as service:
        found = backend(service, Inception(""))
        done = (await asked(found, job(segments=(wire.Hole(32, "block"),))))[-1]
        await asked(found, job())
        await found.close()
    (path, block), (_, line) = service.asked
    assert path == "/v1/fim/completions"
    assert (block["model"], block["presence_penalty"], block["max_tokens"]) == ("mercury-edit-2", 0.0, 32)
    assert "\n\n" not in block["stop"]
    assert block["stop"]
    assert line["stop"] == ["\n"]
    assert isinstance(done, wire.Done)
    assert done.tokens == wire.Tokens(canvas=3)


@pytest.mark.parametrize("kind", SERVICE_KINDS)
@pytest.mark.parametrize(
    ("url", "near"),
    [("http://127.0.0.1:1/", True), ("http://192.168.0.7:1/", True), ("https://desk.example.com/", False)],
)
async def test_what_may_cost_money_is_not_asked_ahead_of_time(kind: Kind, url: str, near: bool) -> None:
    found = kinds.backend(named.NamedService("desk", url, kind))
    assert ("speculation" in found.condition.lacks) != near
    if not near:
        with pytest.raises(EngineBusy, match="not asked ahead of time"):
            await asked(found, job(priority="speculative"))
    await found.close()


# Our canvas on vLLM


async def test_our_canvas_on_vllm_tries_lengths_and_takes_the_one_that_fits() -> None:
    async with serving(canvas_server("a + bc")) as service:
        found = backend(service, Vllm(""))
        locked, done = await asked(found, job(prefix="x = ", suffix="\n\ny = 1\n", segments=(wire.Hole(20, "line"),)))
        await found.close()
    assert isinstance(done, wire.Done)
    assert (done.holes[0].text, done.steps, done.tokens) == ("a + bc", STEPS, wire.Tokens(canvas=6))
    assert done.holes[0].confidence == pytest.approx(0.5488, abs=1e-4)
    assert locked.holes[0].text == "a + bc"
    bodies = [body for path, body in service.asked if path == "/v1/completions"]
    assert sorted(body["max_tokens"] for body in bodies) == [11, 14, 20, 28]
    for body in bodies:
        asked_for = body["vllm_xargs"]
        canvas, pinned = asked_for["diffusion_seed_canvas"], asked_for["diffusion_pinned"]
        assert len(canvas) == asked_for["diffusion_canvas_length"] == body["max_tokens"] <= CANVAS
        assert [chr(canvas[at]) for at in pinned] == list("\n\ny = 1\n")
        assert pinned == list(range(len(canvas) - 8, len(canvas)))
        assert all(0 <= token < VOCABULARY for token in canvas)
        assert (asked_for["diffusion_read_only"], asked_for["diffusion_max_steps"]) == (1, STEPS)
        assert "".join(map(chr, body["prompt"])).endswith("x = ")
    thought = next(body for path, body in service.asked if path == "/tokenize" and "messages" in body)
    assert thought["chat_template_kwargs"] == {"enable_thinking": False}


async def test_the_ids_of_what_stays_are_asked_for_once() -> None:
    async with serving(canvas_server("abc")) as service:
        found = backend(service, Vllm("m"))
        for prefix in ("x = ", "x = a"):
            await asked(found, job(prefix=prefix))
        await found.close()
    asked_for = [body for path, body in service.asked if path == "/tokenize"]
    assert [body["prompt"] for body in asked_for if "prompt" in body] == ["x = ", "\n", "x = a"]
    assert sum("messages" in body for body in asked_for) == 1


@pytest.mark.parametrize(
    "broken", [{"text": "abc"}, {"logprobs": {"token_logprobs": [-1.0]}}, {"text": "abc", "logprobs": None}]
)
async def test_a_server_that_ignores_the_canvas_is_found_out(broken: dict[str, Any]) -> None:
    async with serving(canvas_server("abc", broken)) as service:
        found = backend(service, Vllm("m"))
        with pytest.raises(EngineUnavailable, match=r"keep to the canvas|cannot be read"):
            await asked(found, job())
        await found.close()


@pytest.mark.parametrize("status", [400, 503])
async def test_a_length_that_fails_fails_the_job(status: int) -> None:
    def fails(path: str, body: Any) -> Any:
        failed = path == "/v1/completions" and body["max_tokens"] > 5
        return response({}, status) if failed else canvas_server("abc")(path, body)

    async with serving(fails) as service:
        found = backend(service, Vllm("m"))
        with pytest.raises(EngineUnavailable):
            await asked(found, job())
        await found.close()


@pytest.mark.parametrize("failing", ["/tokenize", "/v1/completions"])
async def test_where_one_request_of_a_job_fails_none_of_the_others_stays_open(failing: str) -> None:
    first = True

    def reply(path: str, body: Any) -> Any:
        nonlocal first
        if path != failing:
            return canvas_server("abc")(path, body)
        fails, first = first, False
        return response({}, 500) if fails else (b"HTTP/1.1 200 X\r\n", ...)

    async with serving(reply) as service:
        found = backend(service, Vllm("m"))
        with pytest.raises(EngineUnavailable, match="error 500"):
            await asked(found, job())
        await service.left.wait()
        await until(lambda: not service.waiting)
        await found.close()


@pytest.mark.parametrize("kind", STREAMS)
@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_bytes_come_a_job_has_one_end(kind: str, data: st.DataObject) -> None:
    stream = bytearray(STREAMS[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))

    async def ask() -> None:
        async with asking(kind, (bytes(stream),)) as (_, found):
            finished = list[FinishedJob]()
            found.on_job = finished.append
            heard, ended = list[Any](), 0
            try:
                heard = await asked(found, job())
            except EngineError as error:
                ended, sentence = 1, str(error)
                assert sentence.endswith(".")
            assert ended + sum(isinstance(event, wire.Done) for event in heard) == len(finished) == 1
            assert not heard or isinstance(heard[-1], wire.Done)

    asyncio.run(ask())
