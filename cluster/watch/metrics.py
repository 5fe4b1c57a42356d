"""The figures of a team's door, in Prometheus' text format.

Durations are of answered jobs, in seconds. `queue` is measured by the replica, from the job's arrival there until the
model turns to it. `first_locked` and `done` are measured by the door, from the job's arrival there until the first
locked text, or the answer, is sent to the user. `step` is the mean denoise step of a job.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from caesura import wire
from caesura.engine.supervisor import link
from caesura.engine.supervisor.ledger import Ledger
from caesura.engine.supervisor.observer import LEFT, REFUSED, JobEnd, Observer
from caesura.ipc.rendezvous import BUILD

OUTCOMES = ("done", REFUSED, LEFT, *get_args(wire.FailureCode))
REFUSALS = tuple(filter(None, get_args(link.Refusal)))
SOURCES = {"lookup": "lookup", "canvas": "canvas", "causal": "left_to_right"}  # a label, and its field of wire.Tokens
WAITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ANSWERS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)
STEPS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1)
NO_NEWS = link.Upstream(streams=0, lost=0, reached=True)
STALE_S = 5.0  # a door whose loop has not turned for this long hangs


class Metrics(Observer):
    """Counts from the door's start, whatever happens to the relay. `models` are names or paths; `clock` gives seconds
    that only grow."""

    def __init__(self, models: Sequence[str], clock: Callable[[], float]) -> None:
        disable_created_metrics()
        self._clock = clock
        self._models = _labels(models)
        self._seen = clock()
        self._state, self._device = "loading", ""
        self._news = NO_NEWS
        self._registry = registry = CollectorRegistry()
        self._jobs = Counter("caesura_jobs", "Ended jobs", ["outcome"], registry=registry)
        self._refusals = Counter("caesura_refusals", "Jobs that a limit has refused", ["reason"], registry=registry)
        self._running = Gauge("caesura_jobs_running", "Jobs that the relay or a replica has", registry=registry)
        self._waiting = Gauge("caesura_jobs_waiting", "Jobs that wait for the relay to be ready", registry=registry)
        self._clients = Gauge("caesura_clients", "Connected clients", registry=registry)
        self._streams = Gauge(
            "caesura_streams", "Open streams to replicas, one a client and document", registry=registry
        )
        self._lost = Counter("caesura_streams_lost", "Streams that ended with their replica", registry=registry)
        self._up = Gauge("caesura_up", "1 while a job could be answered", registry=registry)
        self._queue = _histogram("queue", "From arrival at the replica to its first turn", WAITS_S, registry)
        self._first = _histogram(
            "first_locked", "From arrival at the door to the first locked text", ANSWERS_S, registry
        )
        self._done = _histogram("done", "From arrival at the door to the answer", ANSWERS_S, registry)
        self._step = _histogram("step", "The mean denoise step of a job", STEPS_S, registry)
        self._steps = Counter("caesura_steps", "Denoise steps", registry=registry)
        self._tokens = Counter("caesura_tokens", "Tokens of answers, by their source", ["from"], registry=registry)
        self._info = Gauge("caesura_model_info", "Always 1", ["build", "model", "device"], registry=registry)
        for outcome in OUTCOMES:
            self._jobs.labels(outcome)
        for reason in REFUSALS:
            self._refusals.labels(reason)
        for source in SOURCES:
            self._tokens.labels(source)

    def __repr__(self) -> str:
        return f"<Metrics {self.trouble or 'up'}>"

    @property
    def trouble(self) -> str:
        """One word of why no job could be answered; empty if one could."""
        if self._clock() - self._seen > STALE_S:
            return "hung"
        if self._state != "ready":
            return self._state
        return "" if self._news.reached else "away"

    def text(self) -> bytes:
        """All figures. Called in another thread than all else here."""
        self._up.set(not self.trouble)
        found: bytes = generate_latest(self._registry)
        return found

    def looked(self, state: str, device: str, ledger: Ledger) -> None:
        self._seen = self._clock()
        running = len(ledger.live())
        self._running.set(running)
        self._waiting.set(len(list(ledger.jobs())) - running)
        self._clients.set(len(ledger.peers))
        if state == self._state:
            return
        self._state = state
        if state != "ready":  # the next relay begins from nothing
            self._news = NO_NEWS
            self._streams.set(0)
        elif device != self._device:
            self._info.clear()
            self._device = device
            for model in self._models:
                self._info.labels(BUILD, model, device).set(1)

    def told(self, news: link.Upstream) -> None:
        self._news = news
        self._streams.set(news.streams)
        self._lost.inc(news.lost)

    def ended(self, end: JobEnd) -> None:
        self._jobs.labels(end.outcome).inc()
        self._steps.inc(end.steps)
        if end.refusal:
            self._refusals.labels(end.refusal).inc()
        if end.head and end.head.timings:
            self._answered(end, end.head, end.head.timings)

    def _answered(self, end: JobEnd, head: wire.EventHead, timings: wire.Timings) -> None:
        self._queue.observe(timings.queue_ms / 1000)
        self._done.observe(end.seconds)
        if (first := end.first_locked_s) is not None:
            self._first.observe(first)
        if head.steps:
            self._step.observe(timings.denoise_ms / head.steps / 1000)
        for source, field in SOURCES.items():
            self._tokens.labels(source).inc(getattr(head.tokens, field, 0))


def _labels(models: Sequence[str]) -> list[str]:
    """The last part of each path, numbered where models share it."""
    names = [Path(model).name for model in models]
    return [f"{name} {before + 1}" if (before := names[:at].count(name)) else name for at, name in enumerate(names)]


def _histogram(name: str, about: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(f"caesura_{name}_seconds", about, buckets=buckets, registry=registry)
