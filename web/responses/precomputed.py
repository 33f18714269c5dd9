"""Responses that no worker has to run, because all that there is to say is known: remembered answers, and warm-ups (docs/cache.md,
docs/websocket.md). They are rows, items and events like any other's, stored finished by one transaction."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from models.db.database import Jsonb
from models.ids import new_item_id
from models.lifecycle import Status
from models.redis.answer_cache import Answer
from models.wire.events import Event, ResponseCompleted, ResponseInProgress, frame
from models.wire.includes import included
from models.wire.pairing import unanswered
from models.wire.response import ResponseFacts, response_object
from models.wire.retold import renamed, retold

_BLOCK = 64 * 1024
"""Bytes of frames from which a further row of the event log begins, as a worker's flushes make them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What `statements.FINISH` stores, and the Response object as it then is."""

    response: dict[str, Any]
    values: dict[str, object]


def finished(accepted_id: UUID, facts: ResponseFacts, answer: Answer, *, first: int) -> Finished:
    """The response with this answer, under ids of its own. `facts` as of its creation; `first`: the number of its next event."""
    output = renamed(answer.output, new_item_id)
    completed_at = int(time.time())
    ended = facts.evolve(
        status=Status.COMPLETED.value,
        usage=answer.usage,
        service_tier=answer.service_tier,
        completed_at=completed_at,
    )
    shown = included(output, facts.parameters.get("include", ()))
    response = response_object(ended, shown)
    events = [
        ResponseInProgress(response_object(facts.evolve(status=Status.IN_PROGRESS.value), [])),
        *retold(shown),
        ResponseCompleted(response),
    ]
    values: dict[str, object] = {
        "id": accepted_id, "completed_at": completed_at, "usage": answer.usage and Jsonb(answer.usage), "service_tier": answer.service_tier,
        "unanswered_calls": unanswered(output), "output": orjson.dumps(output).decode(), **_blocks(events, first),
    }  # fmt: skip
    return Finished(response, values)


def _blocks(events: Iterable[Event], first: int) -> dict[str, list[int] | list[bytes]]:
    """The events, encoded and numbered, in rows of the event log."""
    firsts: list[int] = []
    frames: list[bytearray] = []
    number = first
    for number, event in enumerate(events, start=first):
        if not frames or len(frames[-1]) >= _BLOCK:
            firsts.append(number)
            frames.append(bytearray())
        frames[-1] += frame(event, number)
    lasts = [*(start - 1 for start in firsts[1:]), number]
    return {"firsts": firsts, "lasts": lasts, "frames": [bytes(block) for block in frames]}
