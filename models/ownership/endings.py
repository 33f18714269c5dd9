"""Endings of many responses with one statement."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from models.db.arrays import Byteas
from models.db.database import Jsonb, Pool, fetch
from models.db.queries.end import END_TOGETHER
from models.ownership.grouping import GroupedRequests
from models.ownership.lease import Lease
from models.ownership.steps import Ending
from models.ownership.takeover import Claim

logger = structlog.get_logger()

_MAX_FRAMES = 64 * 1024
"""Bytes of the tail of an ending that is sent with others; the items of the ending are in its last
event too. A larger one would make the others wait."""


@dataclass(frozen=True, slots=True)
class _Request:
    claim: Claim
    ending: Ending

    def to_json(self) -> dict[str, Any]:
        """The parts that END_TOGETHER takes as JSON."""
        ending = self.ending
        return {
            "id": self.claim.id,
            "attempt": self.claim.attempt,
            "status": ending.status,
            "turns": ending.turns,
            "usage": ending.usage,
            "error": ending.error,
            "upstream": ending.upstream,
            "service_tier": ending.service_tier,
            "upstream_fields": ending.upstream_fields,
            "reason": ending.reason,
            "failure": ending.failure,
            "unanswered_calls": ending.unanswered_calls,
            "completed_at": ending.completed_at,
            "history_size": ending.history_size,
            "position": ending.position,
            "items": ending.items,
            "origins": ending.origins,
            "first": ending.tail.first,
            "last": ending.tail.last,
        }


def _size_of(request: _Request) -> int:
    return len(request.ending.tail.frames)


class EndingWriter:
    """Writes the small endings of one worker. Those that come while a statement is on its way are
    stored together by the next one."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self._pool = pool
        self._lease = lease
        self._requests = GroupedRequests(self._store, _size_of)

    async def store(self, claim: Claim, ending: Ending) -> bool:
        """Stores the ending, with others. False: it is not stored, or nobody knows. Then it is to
        be sent alone, which also shows what it was that prevented it."""
        if (
            len(ending.tail.frames) > _MAX_FRAMES
            or ending.changed
            or claim.row.conversation_id is not None
        ):
            return False
        return await self._requests.submit(_Request(claim, ending))

    async def _store(self, requests: list[_Request]) -> list[bool]:
        """One try of one statement. An error says nothing about a single one of the endings."""
        await self._lease.wait_until_valid()
        try:
            values = {
                "me": self._lease.id,
                "endings": Jsonb([request.to_json() for request in requests]),
                "frames": Byteas([request.ending.tail.frames for request in requests]),
            }
            stored: set[UUID] = set(await fetch(self._pool, END_TOGETHER, values))
        except Exception as error:  # noqa: BLE001  # each ending is sent alone, and raises its own
            logger.warning(
                "endings_not_stored_together", responses=len(requests), error=str(error).strip()
            )
            return [False] * len(requests)
        return [request.claim.id in stored for request in requests]
