"""Releases: many responses with one statement.

A worker that stops releases a thousand responses. One statement for each would take longer than a
supervisor waits, if Postgres answers slowly.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from uuid import UUID

from models.db.arrays import Byteas, Ints, Uuids
from models.db.database import Pool, fetch, retry_unless_refused
from models.db.queries.run import RELEASE, RELEASED
from models.errors import FailedCall, LeaseLost
from models.ownership.grouping import GroupedRequests
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


def _size_of(release: Release) -> int:
    return len(release.frames)


class ReleaseWriter:
    """Writes the releases of one worker. Those that come while a statement is on its way are stored
    together by the next one."""

    def __init__(self, pool: Pool, lease: Lease) -> None:
        self._pool = pool
        self._lease = lease
        self._requests = GroupedRequests(
            self._write, _size_of, max_requests=_MAX_RESPONSES, max_bytes=_MAX_BYTES
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
