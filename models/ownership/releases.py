"""Releases: many responses with one statement.

A worker that stops releases a thousand responses. One statement for each would take longer than a
supervisor waits, if Postgres answers slowly.
"""

import asyncio
import json
from collections.abc import Sequence
from contextvars import Context
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from uuid import UUID

from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Pool, fetch, retry_unless_refused
from models.db.queries.run import RELEASE, RELEASED
from models.errors import FailedCall, LeaseLost
from models.ownership.lease import Lease

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


@dataclass(frozen=True, slots=True)
class _Waiting:
    release: Release
    done: asyncio.Future[None] = field(default_factory=asyncio.Future)


class ReleaseWriter:
    """Writes the releases of one worker. While one statement is written, the next ones gather."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self._pool = pool
        self._lease = lease
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def release(self, release: Release) -> None:
        """Returns when the release is stored. Raises LeaseLost if this process does not own the
        response any more, and StatementRefused if Postgres answers and never does it."""
        waiting = _Waiting(release)
        self._waiting.append(waiting)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), context=Context())
        await waiting.done

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write(self._cut_batch())
        finally:
            self._writing = None

    def _cut_batch(self) -> list[_Waiting]:
        count, size = 0, 0
        for waiting in self._waiting[:_MAX_RESPONSES]:
            size += len(waiting.release.frames)
            if count and size > _MAX_BYTES:
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        return batch

    async def _write(self, batch: list[_Waiting]) -> None:
        """Writes these releases with one statement; if it fails, each with its own."""
        values = self._values([waiting.release for waiting in batch])
        try:
            released = await retry_unless_refused(
                lambda: self._store(values, len(batch)), lambda: self._lease.is_fresh
            )
        except Exception as error:  # noqa: BLE001  # raised by the caller of `release`
            if len(batch) > 1:
                for waiting in batch:
                    await self._write([waiting])
                return
            if not batch[0].done.done():
                batch[0].done.set_exception(error)
            return
        for waiting in batch:
            if waiting.done.done():
                continue
            if waiting.release.response_id in released:
                waiting.done.set_result(None)
            else:
                waiting.done.set_exception(LeaseLost("the response belongs to another attempt"))

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
