"""The header of traces, and what happens while their collector is away."""

import time
from uuid import UUID

import pytest
import structlog
from structlog.testing import LogCapture

from models.tracing.otel import OtelTracer
from models.tracing.spans import NO_SPAN, parse_traceparent, traceparent_of
from tests.support.api import until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "is_well_formed"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", True),
        (f"cc-{TRACE}-{SPAN}-01-later", True),
        (None, False),
        ("", False),
        (f"00-{TRACE}-{SPAN}-01-later", False),
        (f"cc-{TRACE}-{SPAN}-01later", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("x" * 10_000, False),
    ],
)
def test_only_a_well_formed_header_continues_a_trace(
    header: str | None, *, is_well_formed: bool
) -> None:
    assert (parse_traceparent(header) is not None) is is_well_formed


def test_each_attempt_of_a_response_without_a_trace_gets_the_same_one() -> None:
    response = UUID("01a20543-b224-718c-a3ed-1a9ef2f4bf6a")
    assert parse_traceparent(traceparent_of(response)) is not None
    assert traceparent_of(response) == traceparent_of(response)


async def test_a_collector_that_is_away_costs_one_log_line_and_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    # Whatever log levels an earlier test has configured.
    log = LogCapture()
    every_level = structlog.make_filtering_bound_logger(0)
    logger = structlog.wrap_logger(None, processors=[log], wrapper_class=every_level)
    monkeypatch.setattr("models.tracing.otel.logger", logger)
    tracer = OtelTracer("worker")
    for number in range(100):
        span = tracer.start("attempt", None, {"number": number})
        span.start("turn").end()
        span.end()
    await until(lambda: log.entries, 30)
    began_at = time.monotonic()
    tracer.close()
    assert time.monotonic() - began_at < 3
    assert [entry["event"] for entry in log.entries] == ["traces_not_sent"]


def test_a_trace_that_the_client_does_not_record_is_not_recorded_here() -> None:
    tracer = OtelTracer("worker")
    span = tracer.start("attempt", f"00-{TRACE}-{SPAN}-00", {})
    assert not span.is_recorded
    assert span.traceparent.startswith(f"00-{TRACE}-")
    assert span.traceparent.endswith("-00")
    tracer.close()


def test_without_traces_a_span_is_nothing() -> None:
    assert NO_SPAN.start("turn") is NO_SPAN
    assert NO_SPAN.traceparent is None
