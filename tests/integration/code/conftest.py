"""A deployment that runs code, shared by the tests of this folder."""

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.support.fake_upstream import FakeUpstream
from tests.support.sandboxes import running_sandbox, sandbox_settings
from tests.support.stack import Databases, Stack, SuiteSettings, stack


@pytest.fixture(scope="session")
async def code_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One web process, one worker, one sandbox. Tests must not break it."""
    token = secrets.token_urlsafe(16)
    async with running_sandbox(tmp_path_factory.mktemp("sandbox"), token) as sandbox:
        settings = sandbox_settings(token, sandbox)
        folder = tmp_path_factory.mktemp("code")
        async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
            yield one
