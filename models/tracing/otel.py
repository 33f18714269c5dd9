"""OpenTelemetry's SDK behind models/tracing/spans.py: spans that are recorded and sent.

They are sent over OTLP/HTTP. The standard variables `OTEL_*` configure exporter, sampler, resource
and limits. The provider is not made the global one: libraries that also use OpenTelemetry would add
spans of their own, and would send trace ids to other servers.
"""

import logging
import os
import socket
import time
from threading import Thread
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from models.tracing.spans import Attributes, Span, SpanKind, parse_traceparent
from models.version import VERSION

logger = structlog.get_logger()

_CLOSE_SECONDS = 2.0
_KINDS = {kind: trace.SpanKind[kind.value] for kind in SpanKind}


class OtelSpan(Span):
    """A span that is recorded, unless the sampler has decided against its trace."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def is_recorded(self) -> bool:
        """Whether attributes have an effect."""
        return bool(self._span.is_recording())

    @property
    def traceparent(self) -> str:
        """The header by which another process continues the trace."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def start(
        self, name: str, attributes: Attributes | None = None, kind: SpanKind = SpanKind.INTERNAL
    ) -> "OtelSpan":
        """A new span below this one."""
        parent = trace.set_span_in_context(self._span, Context())
        span = self._tracer.start_span(name, parent, _KINDS[kind], attributes)
        return OtelSpan(self._tracer, span)

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        self._span.set_attributes(dict(attributes))

    def rename(self, name: str) -> None:
        """Gives it the name that was not known at its start."""
        self._span.update_name(name)

    def event(self, name: str) -> None:
        """Marks this moment."""
        self._span.add_event(name)

    def fail(self, error_type: str) -> None:
        """The span's work failed."""
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        """Ends the span now."""
        self._span.end()


class OtelTracer:
    """Begins the traces of a process. Spans that have ended wait in a bounded queue for a thread
    that sends them; what does not fit is dropped."""

    def __init__(self, process: str) -> None:
        """`process`: the kind of this process."""
        # The SDK logs each failure, with tracebacks. `_Exporter` logs the first of a row.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._provider = TracerProvider(resource=_resource(process), shutdown_on_exit=False)
        exporter: Any = _Exporter(OTLPSpanExporter())
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("backburner", VERSION)

    def start(
        self,
        name: str,
        traceparent: str | None,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        seconds_ago: float = 0.0,
    ) -> OtelSpan:
        """A span of the trace `traceparent`, or the first one of a new trace."""
        began_at = time.time_ns() - int(seconds_ago * 1e9)
        span = self._tracer.start_span(
            name, _remote(traceparent), _KINDS[kind], attributes, start_time=began_at
        )
        return OtelSpan(self._tracer, span)

    def close(self) -> None:
        """Sends what was not sent yet, for at most two seconds. The thread must not keep the
        process from its end: a collector may hang."""
        closing = Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class _Exporter:
    """Sends spans, and logs when that begins to fail and when it works again."""

    def __init__(self, exporter: Any) -> None:
        """`exporter`: a SpanExporter of the SDK."""
        self._exporter = exporter
        self._has_failed = False

    def export(self, spans: Any) -> SpanExportResult:
        """The result; spans that could not be sent are dropped."""
        result: SpanExportResult = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._has_failed:
            logger.warning("traces_not_sent", spans=len(spans))
        elif self._has_failed and not failed:
            logger.info("traces_sent_again")
        self._has_failed = failed
        return result

    def shutdown(self) -> None:
        """Closes the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return bool(self._exporter.force_flush(timeout_millis))


def _resource(process: str) -> Resource:
    """What the process is. The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have
    precedence."""
    attributes = {
        "service.version": VERSION,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        **Resource.create({}).attributes,
    }
    if str(attributes["service.name"]).startswith("unknown_service"):
        attributes["service.name"] = f"backburner-{process}"
    return Resource(attributes)


def _remote(traceparent: str | None) -> Context:
    """The context of a span of another process; an empty one if there is none."""
    parsed = parse_traceparent(traceparent)
    if parsed is None:
        return Context()
    trace_id, span_id, flags = parsed
    context = trace.SpanContext(
        trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags)
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())
