"""A team's door shows an administrator figures over HTTP and spans at a collector: real door, relay and gRPC."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="needs the extra `cluster`")

import grpc.aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from caesura import wire
from caesura.client.backend import EngineError, job_id
from caesura.cluster import relay, rpc

from ..support.clients import READY_S, answer, job, running, until
from ..support.machines import Machine, client, free_port, listens
from ..support.team import START_S, Team, started

pytestmark = pytest.mark.cluster
NAME = "anna_secret"
EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"


class Collector:
    """Keeps what it gets, as an OpenTelemetry collector would take it."""

    def __init__(self, port: int) -> None:
        self.spans = list[Span]()
        self.raw = b""
        handler = grpc.unary_unary_rpc_method_handler(self._export, response_serializer=bytes)
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(EXPORT, {"Export": handler}),))
        assert self._server.add_insecure_port(f"127.0.0.1:{port}") == port
        self._server.start()

    def _export(self, frame: bytes, context: object) -> bytes:
        self.raw += frame
        for resource in ExportTraceServiceRequest.FromString(frame).resource_spans:
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        found: bytes = ExportTraceServiceResponse().SerializeToString()
        return found

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def stop(self) -> None:
        self._server.stop(None).wait()


class Watched:
    """A team whose door answers scrapers at one port, and sends traces to another."""

    def __init__(self, team: Team, port: int, collector: int) -> None:
        self.team, self.port, self.collector = team, port, collector

    async def get(self, path: str) -> tuple[int, str]:
        async with httpx2.AsyncClient(trust_env=False) as found:
            answered = await found.get(f"http://127.0.0.1:{self.port}{path}")
            return answered.status_code, answered.text

    async def figure(self, name: str) -> float:
        _, text = await self.get("/metrics")
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

    async def more_than_none(self, name: str) -> bool:
        return await self.figure(name) > 0

    async def becomes(self, what: Callable[[], Awaitable[object]], wanted: object, within_s: float = READY_S) -> None:
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(httpx2.TransportError):  # it does not listen yet
                    if await what() == wanted:
                        return
                await asyncio.sleep(0.02)

    async def healthy(self, wanted: tuple[int, str], within_s: float = READY_S) -> None:
        await self.becomes(lambda: self.get("/health"), wanted, within_s)


@pytest.fixture
async def watched(home: Path, laptop: Machine) -> AsyncIterator[Watched]:
    team = Team(home / "desk", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    found = Watched(team, free_port(), free_port())
    team.let_in(laptop, NAME)
    (team.home / "team.toml").write_text(
        f'listen = "{team.address}"\n[engine]\naddress = "{team.engine}"\nmodel = "fake"\n'
        "[limits]\njobs = 2\ncharacters = 1000\nburst = 60\nsteps_per_minute = 1\n"
        f'[watch]\nlisten = "127.0.0.1:{found.port}"\ntraces = "127.0.0.1:{found.collector}"\n'
    )
    team.door()
    await until(lambda: listens(team.address), READY_S)
    yield found
    team.end()


async def refused(found: object, request: wire.Infill) -> None:
    with pytest.raises(EngineError):
        await answer(found, request)  # type: ignore[arg-type]


FIGURES = {  # of ten answered jobs, two cancelled ones, and three refused ones
    'caesura_jobs_total{outcome="done"}': 10,
    'caesura_jobs_total{outcome="cancelled"}': 2,
    'caesura_jobs_total{outcome="refused"}': 3,
    'caesura_refusals_total{reason="size"}': 1,
    'caesura_refusals_total{reason="busy"}': 1,
    'caesura_refusals_total{reason="budget"}': 1,
    "caesura_steps_total": 60,
    'caesura_tokens_total{from="canvas"}': 10,
    "caesura_done_seconds_count": 10,
    "caesura_first_locked_seconds_count": 10,
    "caesura_queue_seconds_count": 10,
    'caesura_step_seconds_bucket{le="0.0025"}': 10,
    "caesura_jobs_running": 0,
    "caesura_clients": 1,
    "caesura_up": 1,
}


async def test_figures_follow_the_jobs(watched: Watched) -> None:
    watched.team.replica()
    async with running(client()) as found:
        await found.ready(READY_S)
        for number in range(9):
            assert await answer(found, job(document=f"{number}")) == "answer"
        await refused(found, job("x" * 1001))
        streams = [found.infill(job("endless", document=name)) for name in "ab"]
        for events in streams:
            await started(events)
        await refused(found, job(document="c"))
        for events in streams:
            await events.aclose()
        await watched.becomes(lambda: watched.figure('caesura_jobs_total{outcome="cancelled"}'), 2.0)
        await answer(found, job(document="d"))  # 60 steps
        await refused(found, job(document="d"))
        assert {name: await watched.figure(name) for name in FIGURES} == FIGURES
        await watched.becomes(lambda: watched.more_than_none("caesura_streams"), True)
        assert 'device="fake",model="fake"' in (await watched.get("/metrics"))[1]


async def test_health_follows_the_replica(watched: Watched) -> None:
    assert await watched.get("/health") == (503, "loading")
    watched.team.replica()
    await watched.healthy((200, "ok"))
    async with running(client()) as found:
        await found.ready(READY_S)
        await answer(found, job())
        watched.team.kill("replica")
        await watched.healthy((503, "away"))
        await watched.becomes(lambda: watched.more_than_none("caesura_streams_lost_total"), True)
        watched.team.replica()
        await watched.healthy((200, "ok"))


class Ingress:
    """Sends each affinity key to one of four replicas in turn, of which only the last one answers."""

    def __init__(self) -> None:
        self._keys = dict[str, int]()

    async def Session(self, frames: AsyncIterator[bytes], context: Any) -> AsyncIterator[rpc.Frame]:  # noqa: N802
        key = dict(context.invocation_metadata())[rpc.AFFINITY]
        if self._keys.setdefault(key, len(self._keys)) % 4 != 3:
            await asyncio.Event().wait()
        yield rpc.Frame(wire.encode(wire.Welcome(wire.PROTOCOL, "1+a", "fake", "cpu", "ready")))


async def test_health_is_that_of_the_replicas_that_answer_while_others_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HELLO_S", 0.2)
    server = grpc.aio.server()
    rpc.add(Ingress(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.channel(f"127.0.0.1:{port}") as channel:
        assert await relay.answered(channel, "fake")
    await server.stop(0)


async def test_a_relay_that_is_lost_takes_no_figure_along(watched: Watched) -> None:
    watched.team.replica()
    await watched.healthy((200, "ok"))
    async with running(client()) as found:
        await found.ready(READY_S)
        await answer(found, job())
        events = found.infill(job("endless"))
        await started(events)
        watched.team.kill("replica")  # the next relay cannot begin
        os.kill(watched.team.relay(), 9)
        await watched.healthy((503, "loading"))
        with pytest.raises(EngineError):
            await anext(events)
    for outcome in ("done", "engine_lost"):
        assert await watched.figure(f'caesura_jobs_total{{outcome="{outcome}"}}') == 1


async def test_a_job_is_one_trace_from_the_door_to_the_replica(watched: Watched) -> None:
    watched.team.replica()
    async with running(client()) as found:
        await found.ready(READY_S)
        await answer(found, job())  # and nobody is there to collect
        collector = Collector(watched.collector)
        request = job("x" * 1001)
        await refused(found, request)
        await until(lambda: len(collector.named("caesura.job")) == 2, READY_S)
    collector.stop()
    done, too_large = collector.named("caesura.job")
    (replica,) = collector.named("caesura.replica")
    parts = [collector.named(f"caesura.{name}")[0] for name in ("queue", "prefill", "denoise")]
    assert replica.parent_span_id == done.span_id
    assert {part.parent_span_id for part in parts} == {replica.span_id}
    assert {part.trace_id for part in (replica, *parts)} == {done.trace_id} != {too_large.trace_id}
    assert done.start_time_unix_nano <= replica.start_time_unix_nano <= replica.end_time_unix_nano
    assert replica.end_time_unix_nano == done.end_time_unix_nano
    assert {each.key: each.value.string_value for each in too_large.attributes}["caesura.refusal"] == "size"


async def test_those_who_watch_and_do_not_read_hold_up_nobody(watched: Watched) -> None:
    """A collector that takes connections and never answers, and scrapers that ask and never read."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", watched.collector)
    watched.team.replica()
    await watched.healthy((200, "ok"))
    asking = [await asyncio.open_connection("127.0.0.1", watched.port) for _ in range(20)]
    for _, writer in asking:
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 9)
    async with running(client()) as found:
        await found.ready(READY_S)
        assert [await answer(found, job()) for _ in range(9)] == ["answer"] * 9
    for _, writer in asking:
        writer.close()
    silent.close()


SECRETS = [f"s3cret{number:02}" for number in range(50)]
BEGUN = ("", "refuse ", "x" * 1001, "late ", "some ", "raise ", "")  # so that the model fails on a text, and says it


def jobs() -> Iterator[wire.Infill]:
    """They have every secret in every place that a job has."""
    secret = cycle(SECRETS)
    for begins in BEGUN:
        yield wire.Infill(
            job=job_id(),
            document=next(secret),
            prefix=f"{begins}{next(secret)}",
            suffix=next(secret),
            language=next(secret),
            neighbours=(wire.Neighbour(f"# /home/{next(secret)}/a.py", next(secret)),),
            segments=(wire.Hole(), wire.Text(next(secret)), wire.Hole()),
            draft=(next(secret), ""),
        )


async def leaks(watched: Watched, *folders: Path) -> set[str]:
    """Where secrets are found after such jobs: in the figures, the spans, or a file below the folders."""
    collector = Collector(watched.collector)
    async with running(client()) as found:
        await found.ready(READY_S)
        for request in jobs():
            with contextlib.suppress(EngineError):
                await answer(found, request)
    await until(lambda: len(collector.named("caesura.job")) == len(BEGUN), READY_S)
    collector.stop()
    seen = {"metrics": (await watched.get("/metrics"))[1].encode(), "traces": collector.raw}
    seen |= {str(file): file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()}
    return {where for where, text in seen.items() for word in (*SECRETS, NAME) if word.encode() in text}


async def test_no_metric_trace_or_log_has_what_jobs_hold_or_who_sends_them(watched: Watched) -> None:
    watched.team.replica()
    await watched.healthy((200, "ok"))
    team = watched.team
    assert await leaks(watched, team.home, Path(team.environment["CAESURA_RUNTIME"])) == {str(team.keys / "pairs.json")}


@pytest.mark.usefixtures("isolated")
async def test_no_file_of_ray_has_it_either(
    watched: Watched, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Ray of the door's own, in a network that no scraper reaches."""
    team, runtime = watched.team, Path(watched.team.environment["CAESURA_RUNTIME"])
    team.kill("door")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    written = (team.home / "team.toml").read_text()
    (team.home / "team.toml").write_text(
        re.sub(r'(?s)address = .*"fake"', f'model = "{tiny_folder}"\ndevice = "cpu"', written)
    )
    team.door()
    try:
        await watched.healthy((200, "ok"), START_S)
        assert await leaks(watched, team.home, runtime) == {str(team.keys / "pairs.json")}
        assert list(runtime.glob("ray/t/session_latest/logs/serve/replica*"))
    finally:
        team.kill("door")
        shutil.rmtree(runtime, ignore_errors=True)
