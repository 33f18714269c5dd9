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
    tool_stack: Stack,
) -> AsyncIterator[SecondCell]:
    """It opens what the deployment with tools has sealed. Skips the tests where both would share a
    server."""
    if suite_settings.database_url or suite_settings.redis_url:
        pytest.skip("DATABASE_URL or REDIS_URL names a server, which both cells would share")
    folder = tmp_path_factory.mktemp("cell-b")
    of_tools = tool_stack.settings
    model = "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL"
    more = {
        "BACKBURNER_SECRET_KEYS": f"{'B' * 43},{of_tools['BACKBURNER_SECRET_KEYS']}",
        model: of_tools[model],
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
    }
    async with second_cell(folder, suite_settings, fake, shared_stack, **more) as one:
        yield one
