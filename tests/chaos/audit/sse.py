"""SSE bytes, taken apart by the auditor itself (contract §4.1)."""

import json
from dataclasses import dataclass, field
from typing import cast

from tests.chaos.audit.record import JSON, Reading

ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed"})
SNAPSHOTS = ENDINGS | {"response.created", "response.queued", "response.in_progress"}
_DONE = b"data: [DONE]"
EARLY_DONE = "[DONE] came before the terminal event"
"""Right only for who asked for what follows the last event."""


@dataclass(slots=True)
class Event:
    """One event: its bytes as they came, and what they say."""

    at: float
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
    """A reading, parsed."""

    reading: Reading
    events: list[Event] = field(default_factory=list)
    incomplete_frame: bytes = b""
    """what followed the last whole frame"""
    done_count: int = 0
    """how often `[DONE]` came"""
    faults: list[str] = field(default_factory=list)
    """what is wrong with the framing"""

    @property
    def terminal_event(self) -> Event | None:
        """The terminal event, if it came."""
        return next((event for event in self.events if event.kind in ENDINGS), None)


def parse(reading: Reading) -> ParsedStream:
    """The events of a reading. Never raises: what cannot be read becomes a fault."""
    heard = ParsedStream(reading)
    buffer = b""
    for at, data in reading.chunks:
        *frames, buffer = (buffer + data).split(b"\n\n")
        for frame in frames:
            _parse_frame(heard, at, frame)
    heard.incomplete_frame = buffer
    return heard


def _parse_frame(stream: ParsedStream, at: float, frame: bytes) -> None:
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
        stream.faults.append(f"this is no frame: {frame[:200]!r}")
        return
    try:
        data = json.loads(lines[1][6:])
        named = data["type"], data["sequence_number"]
    except (ValueError, KeyError, TypeError) as error:
        stream.faults.append(f"this is no event ({error!r}): {frame[:200]!r}")
        return
    if lines[0][7:].decode() != named[0]:
        stream.faults.append(f"a frame called {lines[0][7:]!r} holds an event of type {named[0]!r}")
    stream.events.append(Event(at, frame, data))
