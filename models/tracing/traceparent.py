"""`traceparent`, the header of W3C Trace Context (https://www.w3.org/TR/trace-context/)."""

import re
from uuid import UUID

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
