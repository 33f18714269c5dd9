"""One browser and one deployment for all tests of this folder."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.support.browser import find_browser, system_browser
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack


@pytest.fixture(scope="session")
def program(suite_settings: SuiteSettings) -> str:
    """The program of the browser; without one the tests are skipped, or fail in CI."""
    return find_browser(is_required=suite_settings.require_browser)


@pytest.fixture(scope="session")
async def browser(program: str) -> AsyncIterator[Browser]:
    """The browser of the system."""
    async with system_browser(program) as running:
        yield running


@pytest.fixture(scope="session")
async def watched(
    program: str,  # first: nothing is started where there is none
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment whose workers may be killed."""
    folder = tmp_path_factory.mktemp("watched")
    async with stack(
        folder, database_server, suite_settings, fake, workers=2, settings=SHORT_LEASES
    ) as one:
        yield one
