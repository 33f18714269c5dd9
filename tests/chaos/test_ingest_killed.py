"""Files of all kinds are ingested while processes are killed: each chunk is stored once."""

import pytest

from tests.chaos.ingest.campaign import IngestPlan, run_ingest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


async def test_each_chunk_is_stored_once_although_processes_are_killed(
    embedded_postgres: None,
) -> None:
    result = await run_ingest(IngestPlan(files=220, pause=3))
    assert result.violations == []
    assert result.faults.total() >= 3
