"""A response at its creation: its id, and the events that are stored together with it.

Some are stored already completed, because no worker has to run them: cache hits (docs/cache.md) and
warm-ups (docs/websocket.md). They have rows, items and events like every response, stored in one
transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from models.db.database import Jsonb
from models.ids import new_item_id, response_id
from models.lifecycle import Status
from models.redis.answer_cache import CachedAnswer
from models.wire.events import (
    Event,
    ResponseCompleted,
    ResponseInProgress,
    frame,
)
from models.wire.json_input import encoded_size
from models.wire.pairing import unanswered_calls
from models.wire.replay import replay, with_new_ids
from models.wire.request import CreateRequest
from models.wire.response import ResponseFacts, filter_items, opening_frames, response_object

_ROW_BYTES = 64 * 1024
"""Bytes of frames in one row of the event log; about what a worker's flush writes."""


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
        response, frames = opening_frames(facts)
        return cls(new_id, facts, response, frames)


@dataclass(frozen=True, slots=True)
class PrecomputedResponse:
    """A response with its complete output."""

    response: dict[str, Any]
    """the Response object"""
    values: dict[str, object]
    """of `end.COMPLETE_PRECOMPUTED`"""


def precompute(
    opening: Opening, answer: CachedAnswer, history_size: int | None
) -> PrecomputedResponse:
    """The response of this opening, completed at once with this answer, whose items get new ids.
    `history_size`: of what comes before the output (models/wire/json_input.py); None: unknown."""
    facts, first = opening.facts, len(opening.frames)
    completed_at = facts.created_at
    output = with_new_ids(answer.output, new_item_id)
    ended = facts.evolve(
        status=Status.COMPLETED.value,
        usage=answer.usage,
        service_tier=answer.service_tier,
        completed_at=completed_at,
    )
    visible_output = filter_items(output, facts.parameters.get("include", ()))
    response = response_object(ended, visible_output)
    events = [
        ResponseInProgress(response_object(facts.evolve(status=Status.IN_PROGRESS.value), [])),
        *replay(visible_output),
        ResponseCompleted(response),
    ]
    encoded_output = orjson.dumps(output)
    values: dict[str, object] = {
        "id": opening.id,
        "completed_at": completed_at,
        "usage": answer.usage and Jsonb(answer.usage),
        "service_tier": answer.service_tier,
        "unanswered_calls": unanswered_calls(output),
        "output": encoded_output.decode(),
        "history_size": None
        if history_size is None
        else history_size + encoded_size(encoded_output),
        **_blocks(events, first),
    }
    return PrecomputedResponse(response, values)


def _blocks(events: Iterable[Event], first: int) -> dict[str, list[int] | list[bytes]]:
    """The events as columns of event log rows; numbered from `first`."""
    firsts: list[int] = []
    frames: list[bytearray] = []
    number = first
    for number, event in enumerate(events, start=first):
        if not frames or len(frames[-1]) >= _ROW_BYTES:
            firsts.append(number)
            frames.append(bytearray())
        frames[-1] += frame(event, number)
    lasts = [*(start - 1 for start in firsts[1:]), number]
    return {"firsts": firsts, "lasts": lasts, "frames": [bytes(block) for block in frames]}
