"""What the rest of the code sees of OpenTelemetry.

Its SDK is an optional extra, and is imported only where traces are on (models/tracing/otel.py).
Where they are off, every span is `NO_SPAN`, which records nothing and costs a call of an empty
method.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

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
