"""The auditor's own parser of SSE."""

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
    try:
        data = json.loads(lines[1][6:])
        identity = data["type"], data["sequence_number"]
    except (ValueError, KeyError, TypeError) as error:
        stream.faults.append(f"this is not an event ({error!r}): {frame[:200]!r}")
        return
    if lines[0][7:].decode() != identity[0]:
        stream.faults.append(
            f"a frame named {lines[0][7:]!r} holds an event of type {identity[0]!r}"
        )
    stream.events.append(Event(time, frame, data))
