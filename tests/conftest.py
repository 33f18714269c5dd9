"""Fixtures: deployments shared by a session, private ones, and their logs with a failing test."""

import gc
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest

from cli.embedded import process
from tests.support.abuse import AttackedStack, attacked_stack
from tests.support.api import Api
from tests.support.cells import KEY_OF_B, KEY_OF_TOOLS
from tests.support.console import CONSOLE_SETTINGS, PROXY_SETTINGS
from tests.support.embeddings import EMBEDDING_MODEL, REWRITE_MODEL, embeddings
from tests.support.fake_upstream import FakeUpstream
from tests.support.images import IMAGE_MODEL
from tests.support.mcp_servers import McpServers
from tests.support.process_logs import tails
from tests.support.properties import register_profiles
from tests.support.stack import RUNNING_STACKS, Databases, Stack, SuiteSettings, databases, stack

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]

    from tests.support.s3_server import S3Server
    from tests.support.scheduling import FileScheduling

PrivateStack = Callable[..., AbstractAsyncContextManager[Stack]]

register_profiles()
# Until all tests are collected: what they make stays.
gc.disable()

_log_sizes = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of tests/clients (docs/clients.md)."""
    parser.addoption(
        "--live",
        action="store_true",
        help="install the client libraries of others and run them (needs a network)",
    )
    parser.addoption(
        "--record",
        action="store_true",
        help="with --live: write what they sent to tests/clients/requests",
    )
    parser.addoption(
        "--engines",
        action="store_true",
        help="install a real inference server and run the tests before it (tests/engines)",
    )
    parser.addoption(
        "--screenshots",
        action="store_true",
        help="write the pictures of the console that the README shows (tests/browser)",
    )


def pytest_configure() -> None:
    """Ignores a developer's backburner.toml, also while tests are collected. Gives each of eight
    processes of pytest ports of its own: one that was found free is not taken at once."""
    os.environ["BACKBURNER_CONFIG"] = ""  # noqa: TID251
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))  # noqa: TID251
    process.PORTS = process.PORTS[number % 8 :: 8]


_ORDER = (
    *("tests/contract", "tests/clients", "tests/browser", "tests/integration", "tests/chaos"),
    "tests/unit",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the files for xdist.

    Chaos tests, which are sensitive to load, begin when `./dev check`, which .ci/run starts with
    the tests, has ended.
    """
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next(
                (rank for rank, folder in enumerate(_ORDER) if item.nodeid.startswith(folder)),
                0,
            )
        )


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "FileScheduling":
    """Gives whole files to processes, which start few deployments (tests/support/scheduling.py)."""
    from tests.support.scheduling import FileScheduling  # only the first of several processes

    return FileScheduling(config, log)


def pytest_collection_finish() -> None:
    """Leaves the collected tests to no later garbage collection: with half a gigabyte one takes two
    seconds, in which no double of an upstream or a tool server answers."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(scope="session")
def suite_settings() -> SuiteSettings:
    """Settings of the tests, from the environment."""
    return SuiteSettings()


@pytest.fixture(scope="session")
async def fake(suite_settings: SuiteSettings) -> AsyncIterator[FakeUpstream]:
    """The scripted upstream, the only double that all tests share."""
    recordings = suite_settings.recordings if suite_settings.recordings.is_dir() else None
    async with FakeUpstream(recordings) as upstream:
        upstream.decide(EMBEDDING_MODEL, embeddings)
        yield upstream
    assert not upstream.faults, upstream.faults


@pytest.fixture(scope="session")
async def mcp_servers() -> AsyncIterator[McpServers]:
    """Real MCP servers that tests can make misbehave."""
    async with McpServers() as running:
        yield running
    assert not running.faults, running.faults


@pytest.fixture(scope="session")
async def database_server(
    tmp_path_factory: pytest.TempPathFactory, suite_settings: SuiteSettings
) -> AsyncIterator[Databases]:
    """The PostgreSQL server of the session."""
    async with databases(tmp_path_factory.mktemp("servers"), suite_settings) as server:
        yield server


PRICES = '{"priced-*": {"input": 2.5, "cached_input": 0.25, "output": 10}}'
"""Of the shared deployment: what models with other names cost is not known."""


@pytest.fixture(scope="session")
async def shared_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """The deployment of ordinary tests: two web processes, one worker. Tests must not break it."""
    settings = {
        "BACKBURNER_LIMITS__BODY": "4000000",
        "BACKBURNER_WEB_SEARCH__OMIT": "true",
        "BACKBURNER_PRICES__WINDOW_2H": "0.75",
        "BACKBURNER_PRICES__WINDOW_8H": "0.5",
        "BACKBURNER_PRICES__FLEX": "0.5",
        "BACKBURNER_PRICES__CURRENCY": "EUR",
        "BACKBURNER_PRICES__MODELS": PRICES,
        **CONSOLE_SETTINGS,
    }
    async with stack(
        tmp_path_factory.mktemp("shared"),
        database_server,
        suite_settings,
        fake,
        webs=2,
        streams=300,
        settings=settings,
    ) as one:
        yield one


@pytest.fixture(scope="session")
async def tool_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """Shared as well: one web process and one worker that may call MCP servers on this machine.

    It has keys to seal credentials. A tool call may take 3 s; histories and files have little
    memory.
    """
    settings = {
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
        "BACKBURNER_SECRET_KEYS": f"{KEY_OF_TOOLS},{KEY_OF_B}",
        "BACKBURNER_TOOLS__TIME": "3",
        "BACKBURNER_IMAGES__MODEL": IMAGE_MODEL,
        "BACKBURNER_IMAGES__BYTES": "1000000",
        "BACKBURNER_EGRESS__MEMORY": "16000000",
        "BACKBURNER_LIMITS__HISTORY": "12000000",
        "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
        "BACKBURNER_RETRIEVAL__EMBEDDING_BATCH": "4",
        "BACKBURNER_RETRIEVAL__REWRITE_MODEL": REWRITE_MODEL,
        "BACKBURNER_RETRIEVAL__REWRITE_TIME": "1",
        "BACKBURNER_WEB__STRICT_SCHEMAS": "openai",
        "BACKBURNER_WEB_SEARCH__OMIT": "true",
        "BACKBURNER_CODE__SANDBOXES": "http://127.0.0.1:1",
        "BACKBURNER_CODE__TOKEN": secrets.token_urlsafe(16),
        **PROXY_SETTINGS,
    }
    async with stack(
        tmp_path_factory.mktemp("tools"), database_server, suite_settings, fake, settings=settings
    ) as one:
        yield one


@pytest.fixture(scope="session")
async def attacked(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[AttackedStack]:
    """Shared as well: one web process and one worker with the memory of Compose's, for attacks."""
    if sys.platform != "linux":
        pytest.skip("only Linux counts the peak of a process's memory so that it can be limited")
    folder = tmp_path_factory.mktemp("attacked")
    async with attacked_stack(folder, database_server, suite_settings, fake) as running:
        yield running


@pytest.fixture
def private_stack(
    tmp_path: Path, database_server: Databases, suite_settings: SuiteSettings, fake: FakeUpstream
) -> Iterator[PrivateStack]:
    """`async with private_stack(workers=2, …) as own_stack`: a deployment for one test, which may
    break it.
    """
    before = len(RUNNING_STACKS)
    yield lambda **options: stack(tmp_path, database_server, suite_settings, fake, **options)
    del RUNNING_STACKS[before:]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["S3Server"]:
    """An S3 server for tests that do not stop it. They are skipped where none is installed."""
    from tests.support.s3_server import S3Server  # its library takes half a second

    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


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
    """Skips tests that kill Redis where REDIS_URL names the server."""
    if suite_settings.redis_url is not None:
        pytest.skip("REDIS_URL names a server that tests must not kill")


@pytest.fixture
def embedded_postgres(suite_settings: SuiteSettings) -> None:
    """Skips tests that kill PostgreSQL where DATABASE_URL names the server."""
    if suite_settings.database_url is not None:
        pytest.skip("DATABASE_URL names a server that tests must not kill")


def _with_logs() -> list[Stack]:
    """The stacks whose logs still exist: a campaign moves the folders of its deployments."""
    return [one for one in RUNNING_STACKS if one.folder.is_dir()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Notes the sizes of the logs, so that a failure shows only what the test wrote."""
    item.stash[_log_sizes] = {
        process.name: process.log.stat().st_size for one in _with_logs() for process in one.started
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the processes' logs to the report of a failure."""
    report = yield
    if report.failed:
        for one in _with_logs():
            if text := tails(one.started, 4000, item.stash.get(_log_sizes, {})):
                report.sections.append(
                    (f"logs of {one.folder.name} at {time.strftime('%H:%M:%S')}", text)
                )
    return report
