"""The figures and spans of ended jobs, and the board that shows the figures."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the extra `cluster`")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="needs the extra `cluster`")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from caesura import wire
from caesura.cluster.watch import traces
from caesura.cluster.watch.metrics import STALE_S, Metrics
from caesura.engine.supervisor import link
from caesura.engine.supervisor.ledger import Job, Ledger
from caesura.engine.supervisor.observer import JobEnd

pytestmark = pytest.mark.cluster
BOARD = Path(__file__).parents[2] / "examples" / "team" / "grafana.json"
SLOW = wire.Timings(queue_ms=20.0, prefill_ms=30.0, denoise_ms=80.0, first_lock_ms=60.0, total_ms=150.0)


def end(outcome: str = "done", refusal: link.Refusal = "", timings: wire.Timings | None = None) -> JobEnd:
    """A job that arrived 0.2 seconds ago has ended; its replica sent Done where there are timings."""
    request = wire.Infill(job="a job", document="a_secret", prefix="a_secret", suffix="", segments=(wire.Hole(),))
    tokens = wire.Tokens(canvas=3, lookup=2, left_to_right=1)
    head = timings and wire.EventHead("done", "a job", steps=8, timings=timings, tokens=tokens)
    return JobEnd(Job(b"p", request, None, 100.0, steps=2), 100.2, outcome, refusal, head)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(["coder", "small"], clock)


def samples(found: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(found.text().decode())
    return {
        " ".join([sample.name, *(sample.labels[label] for label in sorted(sample.labels))]): sample.value
        for family in families
        for sample in family.samples
    }


def test_an_answered_job_is_measured_from_its_arrival_at_the_door(metrics: Metrics) -> None:
    metrics.ended(end(timings=SLOW))
    found = samples(metrics)
    wanted = {
        "queue": 0.02,
        "first_locked": 0.11,
        "done": 0.2,
        "step": 0.01,
    }  # 0.05 s on the way, to the first text too
    assert {name: found[f"caesura_{name}_seconds_sum"] for name in wanted} == pytest.approx(wanted)
    assert (found["caesura_jobs_total done"], found["caesura_steps_total"]) == (1, 8)
    assert [found[f"caesura_tokens_total {source}"] for source in ("canvas", "lookup", "causal")] == [3, 2, 1]


def test_a_job_without_an_answer_counts_its_steps_and_is_in_no_duration(metrics: Metrics) -> None:
    metrics.ended(end("superseded"))
    metrics.ended(end("refused", "budget"))
    found = samples(metrics)
    assert (found["caesura_jobs_total superseded"], found["caesura_refusals_total budget"]) == (1, 1)
    assert (found["caesura_steps_total"], found["caesura_done_seconds_count"]) == (4, 0)


def test_one_word_says_why_no_job_could_be_answered(metrics: Metrics, clock: Clock) -> None:
    words = [metrics.trouble]
    ledger = Ledger()
    for state in ("ready", "failed", "loading", "stopping", "ready"):
        metrics.looked(state, "cpu", ledger)
        words.append(metrics.trouble)
    metrics.told(link.Upstream(2, 1, reached=False))
    words.append(metrics.trouble)
    assert samples(metrics)["caesura_up"] == 0
    metrics.told(link.Upstream(2, 0, reached=True))
    clock.now += STALE_S + 1
    words.append(metrics.trouble)
    assert words == ["loading", "", "failed", "loading", "stopping", "", "away", "hung"]


def test_each_model_has_a_label_and_none_has_a_path(clock: Clock) -> None:
    found = Metrics(["coder", "/srv/one/tuned", "/srv/other/tuned"], clock)
    found.looked("ready", "cpu", Ledger())
    infos = [name.split(" cpu ")[1] for name in samples(found) if name.startswith("caesura_model_info")]
    assert infos == ["coder", "tuned", "tuned 2"]


def test_a_relay_that_is_started_again_begins_without_streams_and_keeps_the_counts(metrics: Metrics) -> None:
    metrics.looked("ready", "cpu", Ledger())
    metrics.told(link.Upstream(5, 2, reached=False))
    for state in ("loading", "ready"):
        metrics.looked(state, "cuda", Ledger())
    found = samples(metrics)
    assert (found["caesura_streams"], found["caesura_streams_lost_total"], metrics.trouble) == (0, 2, "")
    assert [name.split()[2:] for name in found if name.startswith("caesura_model_info")] == [
        ["cuda", "coder"],
        ["cuda", "small"],
    ]


# Spans


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    found = InMemorySpanExporter()
    yield found
    found.shutdown()


def test_the_spans_of_a_job_lie_where_its_times_say(exporter: InMemorySpanExporter) -> None:
    drawn = traces.Traces(exporter)
    drawn.ended(end(timings=SLOW))
    drawn.close()
    spans = {span.name.removeprefix("caesura."): span for span in exporter.get_finished_spans()}
    job = spans["job"]
    placed = {
        name: tuple(round((t - job.start_time) / 1e6) for t in (span.start_time, span.end_time))
        for name, span in spans.items()
    }
    assert placed == {
        "job": (0, 200),
        "replica": (50, 200),
        "queue": (50, 70),
        "prefill": (70, 100),
        "denoise": (120, 200),
    }
    assert round((job.events[0].timestamp - job.start_time) / 1e6) == 110
    assert {span.context.trace_id for span in spans.values()} == {traces.trace_id("a job")}
    assert "secret" not in "".join(span.to_json() for span in spans.values())


def test_a_lost_job_is_a_span_with_an_error(exporter: InMemorySpanExporter) -> None:
    drawn = traces.Traces(exporter)
    drawn.ended(end("engine_lost"))
    drawn.close()
    (job,) = exporter.get_finished_spans()
    assert (job.status.is_ok, job.attributes["caesura.outcome"]) == (False, "engine_lost")


# The board


def test_the_board_shows_each_figure_and_asks_for_no_other(metrics: Metrics) -> None:
    metrics.looked("ready", "cpu", Ledger())
    families = list(text_string_to_metric_families(metrics.text().decode()))
    samples = {sample.name: family for family in families for sample in family.samples}
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    shown = set[str]()
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"caesura_\w+", target["expr"]))
            assert names
            assert names <= set(samples), target["expr"]
            shown |= {samples[name].name for name in names}
            assert set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", target["expr"])) <= labels
            assert set(re.findall(r"by \((\w+)\)", target["expr"])) <= labels
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
    assert shown == {family.name for family in families}


def test_the_board_is_as_grafana_wants_it() -> None:
    board = json.loads(BOARD.read_text())
    assert isinstance(board["schemaVersion"], int)
    (source,) = board["templating"]["list"]
    assert (source["type"], source["query"], source["name"]) == ("datasource", "prometheus", "datasource")
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = list[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells += [
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert {panel["datasource"]["uid"], *(target["datasource"]["uid"] for target in panel["targets"])} == {
            "${datasource}"
        }
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert panel["type"] in ("stat", "table", "timeseries")
    assert len(set(cells)) == len(cells), "panels overlap"
