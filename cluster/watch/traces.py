"""A trace a job for an OpenTelemetry collector, drawn by the door as the job ends.

    caesura.job            from the job's arrival at the door to its end; an event at the first locked text
      caesura.replica      as long as the replica says that it had the job, up to its answer
        caesura.queue      from its arrival there to the first turn
        caesura.prefill    from the first turn; as long as all its prefills
        caesura.denoise    as long as all its denoise steps, up to the answer

Only an answer tells times of the replica, so a job without one has the first span alone. The trace's id is the hash of
the job's id, which logs have too.
"""

import hashlib
import threading
import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from caesura import wire
from caesura.cluster.config import ENCRYPTED
from caesura.engine.supervisor.observer import JobEnd, Observer

MAX_WAITING = 4096  # spans, while the collector is slow or away; then the oldest are dropped
BATCH = 64  # spans encoded at once, which takes time from the door's loop
DELAY_MS = 1000
EXPORT_S = 5.0
END_S = 1.0  # for the last spans
FAULTS = ("engine_lost", "unavailable")


def exporter(collector: str) -> SpanExporter:
    """To HOST:PORT, encrypted if that is an https address."""
    return OTLPSpanExporter(endpoint=collector, insecure=not collector.startswith(ENCRYPTED), timeout=EXPORT_S)


class JobIds(RandomIdGenerator):
    """Random ids of spans; the trace is that of a job."""

    def __init__(self) -> None:
        self.trace = 0  # the id of the next one

    def generate_trace_id(self) -> int:
        return self.trace


class Traces(Observer):
    def __init__(self, exporter: SpanExporter) -> None:
        self._ids = JobIds()
        self._batches = BatchSpanProcessor(
            exporter, max_queue_size=MAX_WAITING, schedule_delay_millis=DELAY_MS, max_export_batch_size=BATCH
        )
        provider = TracerProvider(
            id_generator=self._ids, resource=Resource.create({"service.name": "caesura"}), shutdown_on_exit=False
        )
        provider.add_span_processor(self._batches)
        self._tracer = provider.get_tracer("caesura.door")

    def __repr__(self) -> str:
        return f"<Traces by {self._batches.span_exporter!r}>"

    def ended(self, end: JobEnd) -> None:
        now = time.time_ns()
        self._ids.trace = trace_id(end.job.request.job)
        begun = now - _ns(end.seconds)
        span = self._tracer.start_span("caesura.job", start_time=begun, kind=SpanKind.SERVER, attributes=_told(end))
        if end.outcome in FAULTS:
            span.set_status(Status(StatusCode.ERROR))
        if (first := end.first_locked_s) is not None:
            span.add_event("first locked", timestamp=begun + _ns(first))
        if end.head and end.head.timings:
            self._draw(end.head.timings, span, now)
        span.end(now)

    def close(self) -> None:
        """Send what waits, if that takes no longer than END_S."""
        ending = threading.Thread(target=self._batches.shutdown, daemon=True)
        ending.start()
        ending.join(END_S)

    def _draw(self, timings: wire.Timings, job: Span, end: int) -> None:
        begun = end - _ns(timings.total_ms / 1000)
        turned = begun + _ns(timings.queue_ms / 1000)
        replica = self._tracer.start_span("caesura.replica", set_span_in_context(job), start_time=begun)
        for name, start, until in (
            ("queue", begun, turned),
            ("prefill", turned, turned + _ns(timings.prefill_ms / 1000)),
            ("denoise", end - _ns(timings.denoise_ms / 1000), end),
        ):
            part = self._tracer.start_span(f"caesura.{name}", set_span_in_context(replica), start_time=start)
            part.end(until)
        replica.end(end)


def trace_id(job: str) -> int:
    return int.from_bytes(hashlib.sha256(job.encode()).digest()[:16], "big")


def _told(end: JobEnd) -> dict[str, str | int]:
    """Words that we have chosen, and numbers: none of a client's."""
    request, tokens = end.job.request, end.head.tokens if end.head else None
    return {
        "caesura.outcome": end.outcome,
        "caesura.kind": request.kind,
        "caesura.priority": request.priority,
        "caesura.holes": sum(isinstance(segment, wire.Hole) for segment in request.segments),
        "caesura.steps": end.steps,
        **({"caesura.refusal": end.refusal} if end.refusal else {}),
        **(
            {f"caesura.tokens.{name}": getattr(tokens, name) for name in wire.Tokens.__struct_fields__}
            if tokens
            else {}
        ),
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
