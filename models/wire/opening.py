"""The first events of a response, which are stored together with it."""

from typing import Any

from models.wire.events import Event, ResponseCreated, ResponseQueued, frame
from models.wire.response import ResponseFacts, response_object


def opening_event_types(
    *, background: bool
) -> tuple[type[ResponseCreated] | type[ResponseQueued], ...]:
    """The types of a response's first events."""
    return (ResponseCreated, ResponseQueued) if background else (ResponseCreated,)


def opening_frames(facts: ResponseFacts) -> tuple[dict[str, Any], list[bytes]]:
    """The Response object at its creation, and the first events; their numbers begin with 0."""
    response = response_object(facts, [])
    events: list[Event] = [
        kind(response) for kind in opening_event_types(background=facts.background)
    ]
    return response, [frame(event, number) for number, event in enumerate(events)]
