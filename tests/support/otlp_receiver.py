"""A collector for traces: OTLP over HTTP, as processes send it with the standard variables."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


@dataclass(frozen=True)
class ReceivedSpan:
    """A span. Ids are hexadecimal."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: list[str]
    failed: bool
    started: int
    """nanoseconds since the epoch"""
    ended: int


@dataclass
class OtlpReceiver:
    """The spans that have arrived."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)

    def of_trace(self, trace: str) -> list[ReceivedSpan]:
        """The spans of a trace, in the order in which they began."""
        return sorted(
            (span for span in self.spans if span.trace == trace), key=lambda span: span.started
        )

    async def receive(self, request: web.Request) -> web.Response:
        """Answers `POST /v1/traces`."""
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_received(service, span) for span in scope.spans]
        return web.Response()


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    """A receiver on a free port."""
    receiver = OtlpReceiver()
    application = web.Application()
    application.router.add_post("/v1/traces", receiver.receive)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def _received(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        events=[event.name for event in span.events],
        failed=span.status.code == 2,
        started=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
