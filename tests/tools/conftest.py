"""The deployment that the tests of tools share: it may talk to servers on this machine and can seal credentials."""

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.fake_upstream import FakeUpstream
from tests.stack import Databases, Stack, Surroundings, stack


@pytest.fixture(scope="session")
async def tooled(
    tmp_path_factory: pytest.TempPathFactory, servers: Databases, surroundings: Surroundings, fake: FakeUpstream
) -> AsyncIterator[Stack]:
    """One web process, one worker; a tool may take 3 s. Nobody kills anything here."""
    settings = {
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
        "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32),
        "BACKBURNER_TOOLS__TIME": "3",
    }
    async with stack(tmp_path_factory.mktemp("tools"), servers, surroundings, fake, settings=settings) as one:
        yield one
