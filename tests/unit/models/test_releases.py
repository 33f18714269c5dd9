"""Releases that are written together: one that fails, or that nobody waits for any more, is no
matter of the others."""

import asyncio
from datetime import timedelta
from typing import cast
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest

from models.db.arrays import Uuids
from models.db.database import Pool
from models.errors import LeaseLost
from models.ids import new_uuid
from models.ownership import endings
from models.ownership.endings import Release, ReleaseWriter
from models.ownership.lease import Lease


class _FreshLease:
    id = new_uuid()
    is_fresh = True

    async def wait_until_valid(self) -> None:
        return


def _release() -> Release:
    return Release(new_uuid(), 1, 0, -1, b"", "returned", timedelta(0))


async def test_a_waiter_that_left_does_not_stop_the_others() -> None:
    """Postgres refuses the statement for all and that for the first one, who is cancelled."""
    left, stays = _release(), _release()
    has_begun = asyncio.Event()

    async def store(_pool: Pool, _query: object, values: dict[str, Uuids]) -> list[UUID]:
        has_begun.set()
        await asyncio.sleep(0)
        if left.response_id.bytes in values["ids"].data:
            raise psycopg.errors.DataCorrupted("refused")
        return [stays.response_id]

    writer = ReleaseWriter(cast("Pool", None), cast("Lease", _FreshLease()))
    with patch.object(endings, "fetch", store):
        tasks = [asyncio.create_task(writer.release(each)) for each in (left, stays)]
        await has_begun.wait()
        tasks[0].cancel()
        async with asyncio.timeout(5):
            await tasks[1]
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


async def test_what_is_not_released_is_lost() -> None:
    async def store(_pool: Pool, _query: object, _values: object) -> list[UUID]:
        return []

    writer = ReleaseWriter(cast("Pool", None), cast("Lease", _FreshLease()))
    with patch.object(endings, "fetch", store), pytest.raises(LeaseLost):
        await writer.release(_release())
