"""The auditor's own parser of SSE and of the frames of a WebSocket."""

import json
from dataclasses import dataclass, field
from typing import cast

from tests.chaos.audit.record import JSON, Reading

ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})
SNAPSHOTS = ENDINGS | {"response.created", "response.queued", "response.in_progress"}
_DONE = b"data: [DONE]"
EARLY_DONE = "[DONE] came before the terminal event"
"""Right only for a reader that asked for what follows the last event."""


@dataclass(slots=True)
class Event:
    """One event: its bytes and its data."""

    time: float
    raw: bytes
    data: JSON

    @property
    def number(self) -> int:
        return cast("int", self.data["sequence_number"])

    @property
    def kind(self) -> str:
        return cast("str", self.data["type"])


@dataclass(slots=True)
class ParsedStream:
    """A reading and its events."""

    reading: Reading
    events: list[Event] = field(default_factory=list)
    incomplete_frame: bytes = b""
    """Bytes after the last whole frame."""
    done_count: int = 0
    """How often `[DONE]` came."""
    faults: list[str] = field(default_factory=list)
    """Errors in the framing."""

    @property
    def terminal_event(self) -> Event | None:
        """The terminal event, if it came."""
        return next((event for event in self.events if event.kind in ENDINGS), None)


def parse(reading: Reading) -> ParsedStream:
    """Parses a reading. It never raises: what cannot be parsed becomes a fault."""
    stream = ParsedStream(reading)
    if reading.is_socket:
        for time, data in reading.chunks:
            _parse_event(stream, time, data, data)
        return stream
    buffer = b""
    for time, data in reading.chunks:
        *frames, buffer = (buffer + data).split(b"\n\n")
        for frame in frames:
            _parse_frame(stream, time, frame)
    stream.incomplete_frame = buffer
    return stream


def _parse_frame(stream: ParsedStream, time: float, frame: bytes) -> None:
    if frame.startswith(b":"):
        return
    if frame == _DONE:
        stream.done_count += 1
        if stream.terminal_event is None:
            stream.faults.append(EARLY_DONE)
        return
    if stream.done_count:
        stream.faults.append(f"something follows [DONE]: {frame[:200]!r}")
    lines = frame.split(b"\n")
    if len(lines) != 2 or not lines[0].startswith(b"event: ") or not lines[1].startswith(b"data: "):
        stream.faults.append(f"this is not a frame: {frame[:200]!r}")
        return
    kind = _parse_event(stream, time, frame, lines[1][6:])
    if kind is not None and lines[0][7:].decode() != kind:
        stream.faults.append(f"a frame named {lines[0][7:]!r} holds an event of type {kind!r}")


def _parse_event(stream: ParsedStream, time: float, frame: bytes, text: bytes) -> str | None:
    """Adds the event in `text`, the JSON of `frame`; returns its type, or None if it is none."""
    try:
        data = json.loads(text)
        kind, _ = data["type"], data["sequence_number"]
    except (ValueError, KeyError, TypeError) as error:
        stream.faults.append(f"this is not an event ({error!r}): {frame[:200]!r}")
        return None
    stream.events.append(Event(time, frame, data))
    return str(kind)
