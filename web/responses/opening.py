"""A response at its creation: its id, and the events that are stored together with it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from models.ids import response_id
from models.lifecycle import Status
from models.wire.events import Event, frame
from models.wire.request import CreateRequest
from models.wire.response import ResponseFacts, response_object
from web.responses.facts import opening_event_types
from web.stream.inboxes import Channel
from web.stream.reader import KnownEvents


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known of a response when it is created."""

    id: UUID
    facts: ResponseFacts
    response: dict[str, Any]
    """the Response object"""
    frames: list[bytes]
    """the opening events; their numbers begin with 0"""

    @classmethod
    def of(cls, request: CreateRequest, new_id: UUID, created_at: int) -> "Opening":
        """The opening of a new response to this request. `created_at`: whole seconds since the
        epoch."""
        facts = ResponseFacts(
            id=response_id(new_id),
            created_at=created_at,
            status=(Status.QUEUED if request.background else Status.IN_PROGRESS).value,
            model=request.model,
            parameters=request.parameters,
            background=request.background,
            store=request.store,
            previous_response_id=request.previous_response_id,
            conversation_id=request.conversation,
        )
        response = response_object(facts, [])
        events: list[Event] = [
            kind(response) for kind in opening_event_types(background=request.background)
        ]
        return cls(
            new_id, facts, response, [frame(event, number) for number, event in enumerate(events)]
        )

    def known_events(self, channel: Channel) -> KnownEvents:
        """The events for the reader of a prepared channel. Called before the enqueue."""
        return KnownEvents(b"".join(self.frames), len(self.frames) - 1, channel.is_subscribed)
