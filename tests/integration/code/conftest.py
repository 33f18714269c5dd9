"""A deployment that runs code, shared by the tests of this folder."""

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tests.support.fake_upstream import FakeUpstream
from tests.support.sandboxes import running_sandbox, sandbox_settings
from tests.support.stack import Databases, Stack, SuiteSettings, stack

FILE = """
[upstreams.native]
base_url = "{fake}"
api = "responses"

[upstreams.chat]
base_url = "{fake}"

[routes]
"*" = "chat"
"native-*" = "native"
"""


@pytest.fixture(scope="session")
async def code_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One web process, one worker, one sandbox. Tests must not break it. Models whose names begin
    with `native-` have an upstream with the Responses API. Code may reach the upstream."""
    token = secrets.token_urlsafe(16)
    allowed = f"*.example,localhost:{urlsplit(fake.base_url).port},127.0.0.0/8,::1"
    folder = tmp_path_factory.mktemp("sandbox")
    async with running_sandbox(folder, token, "--allowed-hosts", allowed) as sandbox:
        folder = tmp_path_factory.mktemp("code")
        (folder / "backburner.toml").write_text(FILE.format(fake=fake.base_url))
        config = {"BACKBURNER_CONFIG": str(folder / "backburner.toml")}
        settings = sandbox_settings(token, sandbox) | config
        settings["BACKBURNER_CODE__ALLOWED_HOSTS"] = allowed
        async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
            yield one
