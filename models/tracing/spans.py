"""What the rest of the code sees of OpenTelemetry, and `traceparent`, the header of W3C Trace
Context (https://www.w3.org/TR/trace-context/).

The SDK is an optional extra, and is imported only where traces are on (models/tracing/otel.py).
Where they are off, every span is `NO_SPAN`, which records nothing and costs a call of an empty
method.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from models.config.settings import Settings

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


class SpanKind(StrEnum):
    """What a span is in its trace."""

    SERVER = "SERVER"
    CLIENT = "CLIENT"
    CONSUMER = "CONSUMER"
    INTERNAL = "INTERNAL"


class Span:
    """A span that is not recorded."""

    __slots__ = ()

    @property
    def is_recorded(self) -> bool:
        """Whether attributes have an effect."""
        return False

    @property
    def traceparent(self) -> str | None:
        """The header by which another process continues the trace; None: there is no trace."""
        return None

    def start(
        self,
        name: str,  # noqa: ARG002
        attributes: Attributes | None = None,  # noqa: ARG002
        kind: SpanKind = SpanKind.INTERNAL,  # noqa: ARG002
    ) -> "Span":
        """A new span below this one. The caller ends it."""
        return self

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def rename(self, name: str) -> None:
        """Gives it the name that was not known at its start."""

    def event(self, name: str) -> None:
        """Marks this moment."""

    def fail(self, error_type: str) -> None:
        """The span's work failed. `error_type`: one of a few fixed words."""

    def end(self) -> None:
        """Ends the span now."""


NO_SPAN = Span()


class Tracer(Protocol):
    """Begins the traces of a process, and sends them."""

    def start(
        self,
        name: str,
        traceparent: str | None,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        seconds_ago: float = 0.0,
    ) -> Span:
        """A span of the trace `traceparent`, or the first one of a new trace. The caller ends it.

        `seconds_ago`: when it began.
        """
        ...

    def close(self) -> None:
        """Sends what was not sent yet, for at most two seconds."""
        ...


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_FIRST_VERSION_LENGTH = 55


def parse_traceparent(header: str | None) -> tuple[int, int, int] | None:
    """The ids of the trace and of the span, and the flags; None if the header is not
    well-formed."""
    match = None if header is None else _TRACEPARENT.match(header)
    if header is None or match is None:
        return None
    # Later versions may add fields; the first one has none.
    rest = header[_FIRST_VERSION_LENGTH:]
    if rest and (header.startswith("00") or not rest.startswith("-")):
        return None
    trace, span, flags = (int(part, 16) for part in match.groups())
    return (trace, span, flags) if trace and span else None


def well_formed_traceparent(header: str | None) -> str | None:
    """The header, or None if a client has sent one that is not well-formed."""
    return None if parse_traceparent(header) is None else header


def traceparent_of(response_id: UUID) -> str:
    """The trace of a response that has none: created before traces were on, or over a WebSocket
    whose client has sent none. All of its attempts have this one."""
    return f"00-{response_id.hex}-{response_id.hex[16:]}-01"


def open_tracer(settings: Settings, process: str) -> Tracer | None:
    """The tracer of this process, of the kind `process`; None if traces are off."""
    if not settings.traces.enabled:
        return None
    from models.tracing.otel import OtelTracer  # the optional extra

    return OtelTracer(process)
