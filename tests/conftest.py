"""Fixtures: one shared deployment per session, private ones for the tests that kill things, and the logs of both with a failure."""

import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import openai
import pytest

from tests.support.api import Api
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import McpServers
from tests.support.process_logs import tails
from tests.support.properties import register_profiles
from tests.support.stack import RUNNING_STACKS, Databases, Stack, SuiteSettings, databases, stack

PrivateStack = Callable[..., AbstractAsyncContextManager[Stack]]

register_profiles()

_log_sizes = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """What tests/clients can be told (docs/clients.md)."""
    parser.addoption(
        "--live",
        action="store_true",
        help="install the client libraries of others and run them (needs a network)",
    )
    parser.addoption(
        "--record",
        action="store_true",
        help="with --live: keep what they sent in tests/clients/requests",
    )


def pytest_configure() -> None:
    """A developer's own backburner.toml is none of the tests' business, not even while they are collected."""
    os.environ["BACKBURNER_CONFIG"] = ""  # noqa: TID251


_SLOW_FIRST = ("tests/chaos", "tests/integration", "tests/contract", "tests/clients", "tests/unit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker of xdist the slow kinds come first: the files of unit tests then fill what is left of the time."""
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next(
                (rank for rank, folder in enumerate(_SLOW_FIRST) if item.nodeid.startswith(folder)),
                0,
            )
        )


@pytest.fixture(scope="session")
def suite_settings() -> SuiteSettings:
    """What the environment says to the tests."""
    return SuiteSettings()


@pytest.fixture(scope="session")
async def fake(suite_settings: SuiteSettings) -> AsyncIterator[FakeUpstream]:
    """The one thing that is not real: the upstream."""
    recordings = suite_settings.recordings if suite_settings.recordings.is_dir() else None
    async with FakeUpstream(recordings) as upstream:
        yield upstream
    assert not upstream.faults, upstream.faults


@pytest.fixture(scope="session")
async def mcp_servers() -> AsyncIterator[McpServers]:
    """Real MCP servers, and how to make them misbehave."""
    async with McpServers() as running:
        yield running
    assert not running.faults, running.faults


@pytest.fixture(scope="session")
async def database_server(
    tmp_path_factory: pytest.TempPathFactory, suite_settings: SuiteSettings
) -> AsyncIterator[Databases]:
    """The session's PostgreSQL."""
    async with databases(tmp_path_factory.mktemp("servers"), suite_settings) as found:
        yield found


@pytest.fixture(scope="session")
async def shared_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """The deployment that ordinary tests share: two web processes, one worker. Nobody kills anything here."""
    small_bodies = {"BACKBURNER_LIMITS__BODY": "4000000"}
    async with stack(
        tmp_path_factory.mktemp("shared"),
        database_server,
        suite_settings,
        fake,
        webs=2,
        streams=300,
        settings=small_bodies,
    ) as one:
        yield one


@pytest.fixture(scope="session")
async def tool_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """Shared too: one web process, one worker, that may talk to MCP servers on this machine and can seal. A tool may take 3 s."""
    settings = {
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
        "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32),
        "BACKBURNER_TOOLS__TIME": "3",
    }
    async with stack(
        tmp_path_factory.mktemp("tools"), database_server, suite_settings, fake, settings=settings
    ) as one:
        yield one


@pytest.fixture
def private_stack(
    tmp_path: Path, database_server: Databases, suite_settings: SuiteSettings, fake: FakeUpstream
) -> Iterator[PrivateStack]:
    """`async with private(workers=2, …) as stack`: a deployment of the test's own, to do its worst to."""
    before = len(RUNNING_STACKS)
    yield lambda **wishes: stack(tmp_path, database_server, suite_settings, fake, **wishes)
    del RUNNING_STACKS[before:]


@pytest.fixture
def api(shared_stack: Stack) -> Api:
    """A raw client of the shared deployment's first web process."""
    return shared_stack.api()


@pytest.fixture
def client(shared_stack: Stack) -> openai.AsyncOpenAI:
    """The official client, against the shared deployment."""
    return shared_stack.openai()


@pytest.fixture
def embedded_redis(suite_settings: SuiteSettings) -> None:
    """For tests that kill Redis: not with somebody else's."""
    if suite_settings.redis_url is not None:
        pytest.skip("REDIS_URL names a server that is not ours to kill")


@pytest.fixture
def embedded_postgres(suite_settings: SuiteSettings) -> None:
    """For tests that kill PostgreSQL: not with somebody else's."""
    if suite_settings.database_url is not None:
        pytest.skip("DATABASE_URL names a server that is not ours to kill")


def _with_logs() -> list[Stack]:
    """A campaign takes the folders of its deployments along when it ends."""
    return [one for one in RUNNING_STACKS if one.folder.is_dir()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember how long the logs are, so that a failure shows only what was written during the test."""
    item.stash[_log_sizes] = {
        process.name: process.log.stat().st_size for one in _with_logs() for process in one.started
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the processes' logs with a failure."""
    report = yield
    if report.failed:
        for one in _with_logs():
            if text := tails(one.started, 4000, item.stash.get(_log_sizes, {})):
                report.sections.append(
                    (f"logs of {one.folder.name} at {time.strftime('%H:%M:%S')}", text)
                )
    return report
