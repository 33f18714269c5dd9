"""Endings of many responses with one statement, and releases of many.

A worker that stops releases a thousand responses. One statement for each would take longer than a
supervisor waits, if Postgres answers slowly.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Jsonb, Pool, fetch, retry_unless_refused
from models.db.queries.end import END_TOGETHER, EndedRow
from models.db.queries.run import RELEASE, RELEASED
from models.errors import FailedCall, LeaseLost
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
            "cost": ending.cost,
            "error": ending.error,
            "upstream": ending.upstream,
            "failed_upstream": ending.failed_upstream,
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

    async def store(self, claim: Claim, ending: Ending) -> EndedRow | None:
        """Stores the ending, with others. None: it is not stored, or nobody knows. Then it is to
        be sent alone, which also shows what it was that prevented it."""
        if (
            len(ending.tail.frames) > _MAX_FRAMES
            or ending.changed
            or claim.row.conversation_id is not None
            or ending.steering is not None
        ):
            return None
        return await self._requests.submit(_Request(claim, ending))

    async def _store(self, requests: list[_Request]) -> list[EndedRow | None]:
        """One try of one statement. An error says nothing about a single one of the endings."""
        await self._lease.wait_until_valid()
        try:
            values = {
                "me": self._lease.id,
                "endings": Jsonb([request.to_json() for request in requests]),
                "frames": Byteas([request.ending.tail.frames for request in requests]),
            }
            rows = await fetch(self._pool, END_TOGETHER, values)
        except Exception as error:  # noqa: BLE001  # each ending is sent alone, and raises its own
            logger.warning(
                "endings_not_stored_together", responses=len(requests), error=str(error).strip()
            )
            return [None] * len(requests)
        stored = {row.id: row for row in rows}
        return [stored.get(request.claim.id) for request in requests]


_MAX_RESPONSES = 500
"""Responses in one statement."""
_MAX_BYTES = 4 * 1024 * 1024
"""Bytes of frames in one statement, or the frames of one response if they are larger."""


@dataclass(frozen=True, slots=True)
class Release:
    """An attempt that is given up, with the end of its log: frames numbered `first` to `last`, none
    if `first` > `last`."""

    response_id: UUID
    attempt: int
    first: int
    last: int
    frames: bytes
    outcome: str
    """why, as in `attempts.outcome`"""
    pause: timedelta | None = None
    """for how long no worker may claim the response"""
    failures: Sequence[FailedCall] = ()
    """of a deferred response: why; the last one is what it waits for"""


def _release_size(release: Release) -> int:
    return len(release.frames)


class ReleaseWriter:
    """Writes the releases of one worker. Those that come while a statement is on its way are stored
    together by the next one."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self._pool = pool
        self._lease = lease
        self._requests = GroupedRequests(
            self._write, _release_size, max_requests=_MAX_RESPONSES, max_bytes=_MAX_BYTES
        )

    async def release(self, release: Release) -> None:
        """Returns when the release is stored. Raises LeaseLost if this process does not own the
        response any more, and StatementRefused if Postgres answers and never does it."""
        error = await self._requests.submit(release)
        if error is not None:
            raise error

    async def _write(self, releases: list[Release]) -> list[Exception | None]:
        """Writes these releases with one statement; if it fails, each with its own. Returns for
        each what `release` raises."""
        values = self._values(releases)
        try:
            released = await retry_unless_refused(
                lambda: self._store(values, len(releases)), lambda: self._lease.is_fresh
            )
        except Exception as error:  # noqa: BLE001  # raised by the caller of `release`
            if len(releases) == 1:
                return [error]
            return [(await self._write([release]))[0] for release in releases]
        return [
            None
            if release.response_id in released
            else LeaseLost("the response belongs to another attempt")
            for release in releases
        ]

    async def _store(self, values: dict[str, object], count: int) -> set[UUID]:
        """One try. Returns the responses that are released, now or by an earlier try."""
        await self._lease.wait_until_valid()
        released = set(await fetch(self._pool, RELEASE, values))
        if len(released) < count:
            released.update(await fetch(self._pool, RELEASED, values))
        return released

    def _values(self, releases: list[Release]) -> dict[str, object]:
        return {
            "me": self._lease.id,
            "ids": Uuids([release.response_id for release in releases]),
            "attempts": Ints([release.attempt for release in releases]),
            "firsts": Ints([release.first for release in releases]),
            "lasts": Ints([release.last for release in releases]),
            "frames": Byteas([release.frames for release in releases]),
            "outcomes": [release.outcome for release in releases],
            "pauses": [release.pause for release in releases],
            "failures": [failures_json(release.failures) for release in releases],
        }


def failures_json(failures: Sequence[FailedCall]) -> str | None:
    """The value of `attempts.failures`; None without any."""
    return json.dumps([asdict(call) for call in failures]) if failures else None
