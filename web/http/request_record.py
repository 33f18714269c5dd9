"""One HTTP request or WebSocket: its line in the log (docs/operations.md, "Logs"), its span in the
trace, and who sent it, for the audit log.

Bodies, query strings and headers are never part of it.
"""

import re
import time
from collections.abc import Callable, Mapping
from uuid import UUID

import structlog
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from models import logs
from models.db.queries.audit import Actor, ActorKind
from models.errors import ApiError
from models.ids import RESPONSE_ID_PATTERN, new_item_id, response_id
from models.load.pacing import Pacer
from models.tracing.spans import NO_SPAN, Span, SpanKind, Tracer
from web.http.transport import LARGE_BODY

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
"""A client's request id of any other form is replaced by ours."""
_ID_HEADERS = (b"x-request-id", b"x-client-request-id")
_START_TYPES = frozenset(
    ("http.response.start", "websocket.accept", "websocket.http.response.start")
)
"""The messages that carry response headers. An accepted WebSocket has the status 101."""
_RESPONSE_PATH = re.compile(f"/v1/responses/({RESPONSE_ID_PATTERN})(?:/|$)")
_QUIET_PATHS = frozenset(("/healthz", "/readyz", "/metrics"))
"""Their lines have the level debug: monitoring asks for them all the time."""
_MAX_PATH = 200
"""Characters of a path without a route."""
ANY_PATH = "{rest:path}"
"""In the template of a route that only refuses: it is none for logs and metrics."""
_SCOPE_KEY = "request_record"
_TRACE_HEADER = b"traceparent"


class RequestRecord:
    """One request: its id, and what its line shows. `receive` and `send` are those of the client,
    and note what passes."""

    __slots__ = (
        "_at_end",
        "_bytes",
        "_client_id",
        "_client_left",
        "_close_code",
        "_count_status",
        "_error",
        "_is_complete",
        "_is_refused",
        "_receive",
        "_response",
        "_scope",
        "_send",
        "_sends",
        "_started_at",
        "direct_route",
        "id",
        "key_headers",
        "key_id",
        "key_prefix",
        "project",
        "status",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        count_status: Callable[[int], None],
        sends: Pacer | None = None,
    ) -> None:
        """`count_status`: called with the status when the response begins. `sends`: paces
        the large parts of bodies that are sent."""
        scope[_SCOPE_KEY] = self
        given = _given_ids(scope)
        self.id = given[0] if given else new_item_id("req")
        """Also in the scope: the client's `X-Request-Id`, else `X-Client-Request-Id`, else ours."""
        scope["request_id"] = self.id
        self.direct_route: str | None = None
        """The template of the path, if it is not that of the route in the scope."""
        self.project: str | None = None
        """The name of the project of the request's key."""
        self.key_id: UUID | None = None
        """The id of the request's key, if it is valid."""
        self.key_prefix: str | None = None
        """The first characters of the request's key, if it is valid."""
        self.key_headers: Callable[[], Mapping[str, str]] | None = None
        """The headers that each answer to the request's key has, if it is valid."""
        self.status: int | None = None
        """Of the response, as soon as it has begun."""
        self._client_id = given[1] if len(given) > 1 else None
        self._response: UUID | None = None
        self._scope = scope
        self._receive = receive
        self._send = send
        self._count_status = count_status
        self._sends = sends
        self._started_at = time.monotonic()
        self._error: str | None = None
        """The code of the error that the client gets, else its type."""
        self._close_code: int | None = None
        self._bytes = 0
        self._at_end: list[Callable[[], None]] = []
        self._is_complete = False
        self._client_left = False
        self._is_refused = False
        structlog.contextvars.bind_contextvars(request=self.id)

    @property
    def route(self) -> str | None:
        """The template of the path; None for a path without a route. Known when it was called."""
        route: str | None
        route = self.direct_route or getattr(self._scope.get("route"), "path", None)
        return None if route is None or ANY_PATH in route else route

    @property
    def method(self) -> str:
        """The method; of a WebSocket GET."""
        method: str = self._scope.get("method", "GET")
        return method

    @property
    def response(self) -> str | None:
        """The id of the response that it has made or joined, or that its path names."""
        if self._response is not None:
            return response_id(self._response)
        named = _RESPONSE_PATH.match(self._scope["path"])
        return None if named is None else named[1]

    @property
    def seconds(self) -> float:
        """Since the head of the request."""
        return time.monotonic() - self._started_at

    async def receive(self) -> Message:
        """The client's next message."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._client_left = not self._is_complete
        elif message["type"] == "websocket.disconnect":
            self._close_code = message.get("code")
        return message

    async def send(self, message: Message) -> None:
        """Sends a message to the client. The headers of the response get `x-request-id`, which
        official clients show in errors, and `openai-processing-ms`, the time until now."""
        if self._is_refused:
            return
        kind = message["type"]
        if kind == "http.response.body":
            if not self._client_left:
                self._bytes += len(message.get("body", b""))
                self._is_complete = not message.get("more_body", False)
        elif kind in _START_TYPES:
            self.status = status = message.get("status", 101)
            self._count_status(status)
            headers = message.get("headers", [])
            message["headers"] = [
                *headers,
                *self._key_headers(headers),
                (b"x-request-id", self.id.encode()),
                (b"openai-processing-ms", b"%d" % int(self.seconds * 1000)),
            ]
        elif kind == "websocket.close":
            self._close_code = message.get("code")
        is_large = kind == "http.response.body" and len(message.get("body", b"")) > LARGE_BODY
        if is_large and self._sends is not None:
            await self._sends.wait(self.project)
        await self._send(message)
        if is_large:
            # What the request holds for the body is released when the request has ended.
            await self._scope["state"]["until_sent"]()

    def _key_headers(self, others: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers of the key that are not among the others: an error has its own."""
        given = None if self.key_headers is None else self.key_headers()
        if not given:
            return []
        names = {name for name, _ in others}
        encoded = ((name.encode(), value.encode()) for name, value in given.items())
        return [(name, value) for name, value in encoded if name not in names]

    def note_response(self, response: UUID) -> None:
        """The request has made or joined this response."""
        self._response = response
        bind_response(response)

    def note_error(self, error: ApiError) -> None:
        """The client gets this error."""
        self.note_error_code(error.code or error.type)

    def note_error_code(self, code: str) -> None:
        """The client gets an error with this code."""
        if not self._is_refused:
            self._error = code

    def at_end(self, release: Callable[[], None]) -> None:
        """Calls `release` when the request has ended, however it ends."""
        self._at_end.append(release)

    def refuse(self, error: ApiError, size: int) -> None:
        """The protocol has answered the incomplete request with this error, whose body has `size`
        bytes. What the application sends from now on reaches nobody."""
        self._is_refused = self._is_complete = True
        self.status, self._bytes, self._error = error.status, size, error.code or error.type
        self._count_status(error.status)

    def end(self) -> None:
        """The request has ended: releases what it holds, and writes its line.

        Nothing refers to it from its own scope any more. Otherwise each request would be left to
        the garbage collector, with all its objects.
        """
        del self._scope[_SCOPE_KEY]
        for release in self._at_end:
            release()
        self._at_end.clear()
        self._write_line()

    def _write_line(self) -> None:
        path: str = self._scope["path"]
        level = "debug" if path in _QUIET_PATHS else "info"
        if not logs.is_written(level):
            return
        fields = self.client_fields() | {
            "status": self.status,
            "seconds": round(self.seconds, 6),
        }
        if fields["route"] is None:
            fields["path"] = path[:_MAX_PATH]
        if self._error is not None:
            fields["error"] = self._error
        if self._scope["type"] == "websocket":
            logs.write_line("websocket_closed", fields | {"code": self._close_code}, level=level)
        else:
            logs.write_line("http_request", fields | self._http_fields(), level=level)

    def client_fields(self) -> dict[str, object]:
        """The fields of a line that say what was sent, and who sent it."""
        fields: dict[str, object] = {
            "method": self.method,
            "route": self.route,
            "request": self.id,
        }
        if self._client_id is not None:
            fields["client_request"] = self._client_id
        if self.project is not None:
            fields["project"], fields["key"] = self.project, self.key_prefix
        return fields

    def _http_fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"bytes": self._bytes}
        if self.response is not None:
            fields["response"] = self.response
        if not self._is_complete:
            fields["aborted"] = "client" if self._client_left else "server"
        return fields


def request_record(connection: HTTPConnection) -> RequestRecord:
    """The record of this request."""
    record: RequestRecord = connection.scope[_SCOPE_KEY]
    return record


def record_in(scope: Mapping[str, object]) -> RequestRecord | None:
    """The record of this request; None if no application has begun it."""
    record = scope.get(_SCOPE_KEY)
    return record if isinstance(record, RequestRecord) else None


def write_refusal(status: int, request_id: str, message: str) -> None:
    """Writes the line of a request that was refused before its head was complete, or whose
    connection was."""
    fields = {"route": None, "status": status, "request": request_id, "reason": message}
    logs.write_line("http_request", fields)


def bind_response(response: UUID) -> None:
    """The lines that this task logs from now on are about this response."""
    structlog.contextvars.bind_contextvars(response=response_id(response))


def _given_ids(scope: Scope) -> list[str]:
    """The client's well-formed request ids, without repeats: `X-Request-Id`, which a proxy may have
    set, before `X-Client-Request-Id`."""
    given: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _ID_HEADERS and _REQUEST_ID.fullmatch(value):
            given.setdefault(name, value)
    if not given:
        return []
    ids = (given[name].decode() for name in _ID_HEADERS if name in given)
    return list(dict.fromkeys(ids))


def actor_of(connection: HTTPConnection) -> Actor:
    """The client of an authenticated request."""
    record = request_record(connection)
    return Actor(
        ActorKind.KEY,
        key_id=record.key_id,
        key_prefix=record.key_prefix,
        project=record.project,
        address=connection.client.host if connection.client else None,
        request_id=record.id,
    )


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
    given = next(
        (value.decode("latin-1") for name, value in headers if name == _TRACE_HEADER), None
    )
    method: str = scope["method"]
    span = tracer.start(
        method, given, {"http.request.method": method, "url.path": path}, SpanKind.SERVER
    )
    if span.traceparent is not None:
        others = [(name, value) for name, value in headers if name != _TRACE_HEADER]
        scope["headers"] = [*others, (_TRACE_HEADER, span.traceparent.encode())]
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
