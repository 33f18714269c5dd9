"""A hostile file ends as one clear failure, within its limits, and harms nobody."""

from pathlib import Path

import pytest

from tests.support.hostile_files import HOSTILE, LIMITS, HostileFile, read, reading_processes


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file", HOSTILE, ids=lambda file: f"{file.kind}: {file.what}")
async def test_a_hostile_file_ends_within_its_limits(file: HostileFile, tmp_path: Path) -> None:
    outcome = await read(file, tmp_path, LIMITS)
    assert outcome.result.startswith(file.result)
    assert outcome.memory < LIMITS.memory
    assert outcome.seconds <= LIMITS.cpu_time + 1
    assert not reading_processes()
