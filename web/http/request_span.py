"""The span of one HTTP request of the API."""

from starlette.types import Scope

from models.tracing.spans import NO_SPAN, Span, SpanKind, Tracer
from web.http.request_record import RequestRecord

_HEADER = b"traceparent"


def start_request_span(tracer: Tracer, scope: Scope) -> Span:
    """The span of a request below `/v1`; it continues the client's trace.

    From now on the request's header `traceparent` is that of this span, so a response that it makes
    becomes part of the trace. A WebSocket has no span: its responses continue the client's trace
    directly.
    """
    path: str = scope["path"]
    if scope["type"] != "http" or not path.startswith("/v1/"):
        return NO_SPAN
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    given = next((value.decode("latin-1") for name, value in headers if name == _HEADER), None)
    method: str = scope["method"]
    span = tracer.start(
        method, given, {"http.request.method": method, "url.path": path}, SpanKind.SERVER
    )
    if span.traceparent is not None:
        others = [(name, value) for name, value in headers if name != _HEADER]
        scope["headers"] = [*others, (_HEADER, span.traceparent.encode())]
    return span


def end_request_span(span: Span, record: RequestRecord) -> None:
    """Ends the span when the response has been sent, or was broken off."""
    method: str = record.method
    if record.route is not None:
        span.rename(f"{method} {record.route}")
        span.set({"http.route": record.route})
    if record.response is not None:
        span.set({"backburner.response.id": record.response})
    if record.status is not None:
        span.set({"http.response.status_code": record.status})
    if record.status is None or record.status >= 500:
        span.fail(str(record.status or "no_response"))
    span.end()
