"""The cell `b` beside the shared deployment. The last test of the last file kills it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.cells import SecondCell, second_cell
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import Stack, SuiteSettings


@pytest.fixture(scope="package")
async def second(
    tmp_path_factory: pytest.TempPathFactory,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    shared_stack: Stack,
) -> AsyncIterator[SecondCell]:
    """Skips the tests where both cells would share a server."""
    if suite_settings.database_url or suite_settings.redis_url:
        pytest.skip("DATABASE_URL or REDIS_URL names a server, which both cells would share")
    folder = tmp_path_factory.mktemp("cell-b")
    async with second_cell(folder, suite_settings, fake, shared_stack) as one:
        yield one
