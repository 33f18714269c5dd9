"""A deployment before a real inference server. Nothing of it runs without `--engines`."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engines.llama_cpp import CannotInstall, LlamaServer, install
from tests.support.api import Api
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack

EMBEDDING_MODEL = "smollm2-embeddings"
NATIVE_MODEL = "smollm2-responses"
"""The same engine, called through its own Responses API."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips the tests of this folder unless they are asked for."""
    if not item.config.getoption("--engines"):
        pytest.skip("runs a real inference server; ./dev test --engines installs it")


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python of the engine's environment."""
    try:
        return install()
    except CannotInstall as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
async def engine(
    engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LlamaServer]:
    """llama.cpp with SmolLM2-135M: one slot of 256 tokens."""
    server = LlamaServer(
        engine_python, tmp_path_factory.mktemp("engine"), "llama.cpp", "--ctx-size", "256"
    )
    await server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def embedding_engine(
    engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LlamaServer]:
    """llama.cpp for embeddings: it refuses a text of more than 64 tokens, its physical batch."""
    options = ("--embeddings", "--ctx-size", "256", "--ubatch-size", "64")
    server = LlamaServer(
        engine_python, tmp_path_factory.mktemp("engine"), "llama.cpp-embeddings", *options
    )
    await server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def engine_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    engine: LlamaServer,
    embedding_engine: LlamaServer,
) -> AsyncIterator[Stack]:
    """One web process and one worker, with the settings of docs/upstreams.md for llama.cpp, but no
    `concurrency`: calls wait for the slot in the engine's own line."""
    settings = {
        **SHORT_LEASES,
        "BACKBURNER_UPSTREAM__BASE_URL": engine.base_url,
        "BACKBURNER_UPSTREAM__SINGLE_SYSTEM_MESSAGE": "true",
        "BACKBURNER_UPSTREAM__PASSTHROUGH": '["ignore_eos", "stop"]',
        "BACKBURNER_UPSTREAM__COUNT": "llama.cpp",
        "BACKBURNER_UPSTREAM__CIRCUIT_PAUSE": "1",
        "BACKBURNER_UPSTREAMS__EMBEDDINGS__BASE_URL": embedding_engine.base_url,
        "BACKBURNER_UPSTREAMS__NATIVE__BASE_URL": engine.base_url,
        "BACKBURNER_UPSTREAMS__NATIVE__API": "responses",
        "BACKBURNER_UPSTREAMS__NATIVE__PASSTHROUGH": '["ignore_eos"]',
        "BACKBURNER_ROUTES": json.dumps(
            {EMBEDDING_MODEL: "embeddings", NATIVE_MODEL: "native", "*": "default"}
        ),
        "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
    }
    async with stack(
        tmp_path_factory.mktemp("engines"), database_server, suite_settings, fake, settings=settings
    ) as one:
        yield one


@pytest.fixture
def api(engine_stack: Stack) -> Api:
    """A raw client of the deployment before the engine."""
    return engine_stack.api()
